"""Kafka's record batches (format 2, `DefaultRecordBatch`) taken apart, and the messages of formats 0 and 1, each of which is a batch here.

- KB1 The result is that of Kafka's own clients, which read record by record: offsets, times, keys and values; headers are passed.
- KB2 A reader of committed records does not see those of aborted transactions (KIP-98); no reader sees control batches.
- KB3 Each record's parts have to end where its length says, and the last record of a batch where the batch ends; a batch that
  breaks this is named, and none of its records is given out.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tidemark.shared.compiled.compiling import (
    BOOLS_OUT,
    BYTES,
    BYTES_OUT,
    INT32S_OUT,
    INT64_ROWS_OUT,
    INT64S,
    INT64S_OUT,
    compiled,
    part,
)
from tidemark.shared.compiled.memory import borrowed, byte_at, copy_bytes, word_at

HEADER_BYTES: Final = 61
"""Of a batch, before its first record."""
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length, which the length does not count."""
BEGIN, END, BASE, NEXT, MAGIC, ATTRIBUTES, FIRST_TIME, MAX_TIME, PRODUCER, COUNT = range(10)
"""The columns of a table of batches: where each begins and ends, its base offset, the offset behind it, …"""
FIELDS: Final = 10
CODEC_MASK, APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
"""Bits of the attributes."""
FORMAT: Final = 2
"""Of batches; below it, of messages, which brokers before 0.11 wrote."""
NO_TIME: Final = -1
"""The time of a record that has none, as those of format 0."""
MESSAGE_CRC_AT: Final = 12
"""Of a message: the CRC-32, 4 bytes, of all that follows it."""
MESSAGE_CHECKED_FROM: Final = 16
MESSAGE_KEY_AT: Final = 18
"""Of a message of format 0."""
_MESSAGE_BYTES_MIN: Final = 26
"""Of a message of format 0 that has neither key nor value."""
TIME_BYTES: Final = 8
"""What a message of format 1 has more than one of format 0."""
_ABORT: Final = 0
_VARINT_BYTES_MAX: Final = 10
"""Of 64 bits, seven a byte."""


CRC_AT: Final = 17
"""Of a batch: the CRC-32C, 4 bytes, of all that follows it."""
CHECKED_FROM: Final = 21


def _checks(polynomial: int) -> npt.NDArray[np.uint32]:
    """The CRC of each byte with 0 to 7 bytes of zeros behind it; shape (8, 256)."""
    found = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        check = byte
        for _ in range(8):
            check = check >> 1 ^ (polynomial if check & 1 else 0)
        found[0, byte] = check
    for zeros in range(1, 8):
        found[zeros] = found[zeros - 1] >> 8 ^ found[0, found[zeros - 1] & 0xFF]
    return found


_CHECKS: Final = np.concatenate((_checks(0x82F63B78), _checks(0xEDB88320)))
"""Of CRC-32C, which batches have; behind it those of CRC-32, which messages have."""
_OF_MESSAGES: Final = 8


@part
def _number(data, at, size):
    """A big-endian number with a sign."""
    found = np.uint64(0)
    for place in range(at, at + size):
        found = found << np.uint64(8) | np.uint64(byte_at(data, place))
    shift = 64 - 8 * size
    return np.int64(found << np.uint64(shift)) >> shift


@part
def _varint(data, at, end):
    """(behind it, value) of a zigzag varint; (-1, 0) if it is none."""
    found, shift = np.uint64(0), np.uint64(0)
    for place in range(at, min(end, at + _VARINT_BYTES_MAX)):
        byte = np.uint64(byte_at(data, place))
        found |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return place + 1, np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))
        shift += np.uint64(7)
    return -1, np.int64(0)


@part
def _piece(data, at, end):
    """(where it begins, bytes, behind it) of a key or a value; below 0 bytes for null. (-1, 0, -1) if it is none."""
    at, size = _varint(data, at, end)
    if at < 0 or size > end - at:
        return -1, np.int64(0), -1
    return at, size, at + max(size, 0)


@part
def _is_abort(data, at, end):
    """Whether the first record of a control batch, which begins at a place, ends a transaction that is aborted."""
    at, _ = _varint(data, at, end)
    if at >= 0:
        at, _ = _varint(data, at + 1, end)
    if at >= 0:
        at, _ = _varint(data, at, end)
    if at < 0:
        return False
    key, size, _ = _piece(data, at, end)
    return key >= 0 and size >= 4 and _number(data, key + 2, 2) == _ABORT


@compiled(1, BYTES, "int64", INT64_ROWS_OUT)
def walk(data, at, table):
    """Fill a table of shape (n, FIELDS) with the next n batches, or as many as lie there whole; how many do, even beyond n.

    A batch that is too short to be one has END as its bytes say, and no more.
    """
    count, text = 0, borrowed(data)
    while at + LOG_OVERHEAD_BYTES <= len(data):
        end = at + LOG_OVERHEAD_BYTES + _number(text, at + 8, 4)
        if end > len(data) or end <= at:
            break
        if count < len(table):
            row = table[count]
            row[:] = 0
            row[BEGIN], row[END], row[BASE], row[MAGIC] = at, end, _number(text, at, 8), -1
            if end - at > 16:
                row[MAGIC] = _number(text, at + 16, 1)
            if row[MAGIC] >= FORMAT and end - at >= HEADER_BYTES:
                row[ATTRIBUTES], row[NEXT] = _number(text, at + 21, 2), row[BASE] + _number(text, at + 23, 4) + 1
                row[FIRST_TIME], row[MAX_TIME] = _number(text, at + 27, 8), _number(text, at + 35, 8)
                row[PRODUCER], row[COUNT] = _number(text, at + 43, 8), _number(text, at + 57, 4)
            elif 0 <= row[MAGIC] < FORMAT and end - at >= _MESSAGE_BYTES_MIN + row[MAGIC] * TIME_BYTES:
                row[ATTRIBUTES], row[NEXT], row[COUNT] = (
                    _number(text, at + 17, 1) & (CODEC_MASK | APPEND_TIME),
                    row[BASE] + 1,
                    1,
                )
                row[FIRST_TIME] = row[MAX_TIME] = _number(text, at + 18, 8) if row[MAGIC] else NO_TIME
            else:
                row[MAGIC] = -1
        count += 1
        at = end
    return count


@part
def _checksum(data, at, end, table):
    """The CRC of bytes, eight at a time (Kounavis and Berry, 2005); the table begins at a row of `_CHECKS`."""
    found = np.uint64(0xFFFFFFFF)
    while at + 8 <= end:
        word = word_at(data, at) ^ found
        found = np.uint64(0)
        for i in range(8):
            found ^= np.uint64(_CHECKS[table + 7 - i, np.int64((word >> np.uint64(8 * i)) & np.uint64(0xFF))])
        at += 8
    while at < end:
        low = np.int64((found ^ np.uint64(byte_at(data, at))) & np.uint64(0xFF))
        found = found >> np.uint64(8) ^ np.uint64(_CHECKS[table, low])
        at += 1
    return np.int64(found ^ np.uint64(0xFFFFFFFF))


@compiled(0, BYTES, INT64_ROWS_OUT, "int64", BYTES_OUT)
def intact(data, table, bytes_max, out):
    """Which batches have the CRC that they name, shape (n,): 1 or 0; 2 for larger ones and what is none: not looked at."""
    text = borrowed(data)
    for i in range(len(table)):
        at, end = table[i, BEGIN], table[i, END]
        out[i] = 2
        if table[i, MAGIC] >= FORMAT and end - at <= bytes_max:
            named = _number(text, at + CRC_AT, 4) & 0xFFFFFFFF
            out[i] = 1 if _checksum(text, at + CHECKED_FROM, end, 0) == named else 0
        elif table[i, MAGIC] >= 0 and end - at <= bytes_max:
            named = _number(text, at + MESSAGE_CRC_AT, 4) & 0xFFFFFFFF
            out[i] = 1 if _checksum(text, at + MESSAGE_CHECKED_FROM, end, _OF_MESSAGES) == named else 0


@compiled(0, BYTES, INT64_ROWS_OUT, INT64S, INT64S, INT64S_OUT, INT64S_OUT, "bool", BOOLS_OUT)
def visible(data, table, producers, firsts, active, state, committed, out):
    """Which batches of a table are for readers (KB2), shape (n,).

    producers, firsts: the aborted transactions that the broker named, by first offset. active, state: the producers left
    out now, `state[0]` of them, and the number of transactions begun, `state[1]`: kept from table to table; `active` has room for all.
    """
    text = borrowed(data)
    for i in range(len(table)):
        attributes, producer = table[i, ATTRIBUTES], table[i, PRODUCER]
        out[i] = not attributes & CONTROL
        if not committed or table[i, MAGIC] < FORMAT:
            continue
        while state[1] < len(firsts) and firsts[state[1]] <= table[i, BASE]:
            active[state[0]] = producers[state[1]]
            state[0] += 1
            state[1] += 1
        for j in range(state[0] - 1, -1, -1):
            if active[j] == producer:
                if attributes & CONTROL and _is_abort(text, table[i, BEGIN] + HEADER_BYTES, table[i, END]):
                    state[0] -= 1
                    active[j] = active[state[0]]
                elif attributes & TRANSACTIONAL:
                    out[i] = False


@part
def _record(data, at, end, row, base, first_time, columns):
    """Fill a row with the record at a place; the place behind it, -1 if it is none (KB3)."""
    at, size = _varint(data, at, end)
    if at < 0 or size < 1 or size > end - at:
        return -1
    stop = at + size
    at, _ = _varint(data, at, stop)  # attributes: no bit of them is in use
    if at < 0:
        return -1
    at, time = _varint(data, at, stop)
    if at < 0:
        return -1
    at, delta = _varint(data, at, stop)
    if at < 0:
        return -1
    key, key_bytes, at = _piece(data, at, stop)
    if at < 0:
        return -1
    value, value_bytes, at = _piece(data, at, stop)
    if at < 0:
        return -1
    at, headers = _varint(data, at, stop)
    if at < 0 or headers < 0:
        return -1
    for _ in range(headers):
        _, name_bytes, at = _piece(data, at, stop)
        if at < 0 or name_bytes < 0:
            return -1
        _, _, at = _piece(data, at, stop)
        if at < 0:
            return -1
    columns[0, row], columns[1, row] = base + delta, first_time + time
    columns[2, row], columns[3, row], columns[4, row], columns[5, row] = key, key_bytes, value, value_bytes
    return at if at == stop else -1


@compiled(1, BYTES, INT64_ROWS_OUT, INT64_ROWS_OUT)
def records(data, table, columns):
    """Take apart batches with uncompressed records from BEGIN to END; the first batch that is malformed (KB3), -1 if none is.

    columns: shape (6, n), to be filled: offsets, times, where keys begin, their bytes (below 0: null), where values begin, their bytes.
    """
    row, text, out = 0, borrowed(data), borrowed(columns)
    for i in range(len(table)):
        at, end, first = table[i, BEGIN], table[i, END], row
        for _ in range(table[i, COUNT]):
            at = _record(text, at, end, row, table[i, BASE], table[i, FIRST_TIME], out)
            if at < 0:
                return i
            row += 1
        if at != end:
            return i
        if table[i, ATTRIBUTES] & APPEND_TIME:
            out[1, first:row] = table[i, MAX_TIME]
    return -1


@part
def _field(data, at, end):
    """(where it begins, bytes, behind it) of a message's key or value, as `_piece`."""
    if end - at < 4:
        return -1, np.int64(0), -1
    size = _number(data, at, 4)
    if size > end - at - 4:
        return -1, np.int64(0), -1
    return at + 4, size, at + 4 + max(size, 0)


@compiled(1, BYTES, INT64_ROWS_OUT, INT64_ROWS_OUT)
def messages(data, table, columns):
    """Take apart messages that are not compressed, as `records` does batches; the first that is malformed (KB3), -1 if none is."""
    text, out = borrowed(data), borrowed(columns)
    for i in range(len(table)):
        at, end = table[i, BEGIN] + MESSAGE_KEY_AT + table[i, MAGIC] * TIME_BYTES, table[i, END]
        key, key_bytes, at = _field(text, at, end)
        if at < 0:
            return i
        value, value_bytes, at = _field(text, at, end)
        if at != end:
            return i
        out[0, i], out[1, i] = table[i, BASE], table[i, FIRST_TIME]
        out[2, i], out[3, i], out[4, i], out[5, i] = key, key_bytes, value, value_bytes
    return -1


@compiled(0, BYTES, INT64S, INT64S, INT32S_OUT, BYTES_OUT)
def gather(data, begins, lengths, offsets, out):
    """Pieces of the data one behind the other; none of those of a negative length. offsets: shape (n + 1,), where each goes."""
    text, target = borrowed(data), borrowed(out)
    for row in range(len(begins)):
        if lengths[row] > 0:
            copy_bytes(target, offsets[row], text, begins[row], lengths[row])
