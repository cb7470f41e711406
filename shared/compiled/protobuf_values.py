"""Values of messages of Protocol Buffers, as JSON: the part of `protobuf.py` that knows the encoding of each type.

A place of -1 stands for what the plain reader has to read (PM1).
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled.compiling import part, rare
from tidemark.shared.compiled.memory import byte_at, copy_bytes
from tidemark.shared.compiled.packed import is_text
from tidemark.shared.compiled.typed import double_of_float, put_any_double, put_binary, put_decimal, put_long
from tidemark.shared.compiled.varints import varint
from tidemark.shared.compiled.writing import put_all, put_date_number, put_text, put_whole

DOUBLE, FLOAT, INT64, UINT64, INT32, FIXED64, FIXED32, BOOL, STRING, ODD, MESSAGE, BYTES_, UINT32, ENUM = range(1, 15)
SFIXED32, SFIXED64, SINT32, SINT64, TIMESTAMP, DECIMAL, WRAPPER = range(15, 22)
"""ODD is a group, or a type that this code does not read."""
WIRES: Final = np.array([7, 1, 5, 0, 0, 0, 1, 5, 0, 2, 3, 2, 2, 0, 0, 5, 1, 0, 0, 2, 2, 2], np.int64)
"""How values of each type are written: 0 a varint, 1 eight bytes, 2 with their length, 5 four bytes."""
ROOM_BYTES: Final = 128
"""A value without its characters, and the end of what is open."""
_SECONDS_MAX: Final = 1 << 52
"""The milliseconds of fewer fit 64 bits; others are left to the plain reader."""
_SCALE_MAX: Final = 100
"""Decimals of more places are rare, and left to the plain reader."""
_TRUE, _FALSE = (np.frombuffer(text, dtype=np.uint8) for text in (b"true", b"false"))


# --- the encoding -----------------------------------------------------------------------------------------------------


@part
def short(text, at, end):
    """As `varint`, of a tag or a length, which have no more than five bytes."""
    behind, found = varint(text, at, end)
    return (behind, found) if behind - at <= 5 else (np.int64(-1), np.uint64(0))


@part
def content(text, at, end):
    """(begin, end) of what has its length in front; (-1, -1) where the plain reader has to look."""
    at, size = short(text, at, end)
    if at < 0 or size > np.uint64(end - at):
        return np.int64(-1), np.int64(-1)
    return np.int64(at), at + np.int64(size)


@part
def behind_value(text, at, end, wire):
    """The place behind a value; -1 where the plain reader has to look."""
    if wire == 0:
        return varint(text, at, end)[0]
    if wire == 2:
        return content(text, at, end)[1]
    width = 8 if wire == 1 else 4
    return at + width if (wire == 1 or wire == 5) and at + width <= end else -1


@part
def fixed(text, at, width):
    """The number of so many bytes."""
    found = np.uint64(0)
    for place in range(at + width - 1, at - 1, -1):
        found = found << np.uint64(8) | np.uint64(byte_at(text, place))
    return found


@part
def low_number(found):
    """The number of 32 bits with a sign that a varint stands for: the others are cut off."""
    return np.int64(found << np.uint64(32)) >> 32


# --- values -----------------------------------------------------------------------------------------------------------


@part
def put_name(out, to, names, begin, end):
    """Write a part of `names`."""
    copy_bytes(out, to, names, begin, end - begin)
    return to + end - begin


@rare
def _put_symbol(node, number, schema, out, to):
    """Write the name of an enumeration's number, or the number; -1 where the plain reader has to look."""
    nodes, _, _, symbols, names = schema
    low, behind = nodes[node, 1], nodes[node, 1] + nodes[node, 2]
    while low < behind:
        middle = (low + behind) >> 1
        if symbols[middle, 0] < number:
            low = middle + 1
        else:
            behind = middle
    if low < nodes[node, 1] + nodes[node, 2] and symbols[low, 0] == number:
        return put_name(out, to, names, symbols[low, 1], symbols[low, 2])
    return put_whole(out, to, number) if nodes[node, 3] else -1


@rare
def _put_timestamp(text, at, end, out, to):
    seconds, nanos, seen = np.int64(0), np.int64(0), np.uint64(0)
    while at < end:
        at, tag = short(text, at, end)
        if at < 0 or (tag != np.uint64(8) and tag != np.uint64(16)) or seen & tag:
            return -1
        seen |= tag
        at, found = varint(text, at, end)
        if at < 0:
            return -1
        if tag == np.uint64(8):
            seconds = np.int64(found)
        else:
            nanos = low_number(found)
    if not -_SECONDS_MAX < seconds < _SECONDS_MAX:
        return -1
    return put_date_number(out, to, seconds * 1000 + nanos // 1_000_000)


@rare
def _put_money(text, at, end, out, to):
    """Write Confluent's decimal: the unscaled number, how many digits it has, how many of them are behind the point."""
    begin, stop, scale, seen = np.int64(0), np.int64(0), np.int64(0), np.uint64(0)
    while at < end:
        at, tag = short(text, at, end)
        if at < 0 or (tag != np.uint64(10) and tag != np.uint64(16) and tag != np.uint64(24)):
            return -1
        bit = np.uint64(1) << (tag >> np.uint64(3))
        if seen & bit:
            return -1
        seen |= bit
        if tag == np.uint64(10):
            begin, stop = content(text, at, end)
            at = stop
        else:
            at, found = varint(text, at, end)
            scale = low_number(found) if tag == np.uint64(24) else scale
        if at < 0:
            return -1
    if not 0 <= scale < _SCALE_MAX:
        return -1
    return put_decimal(out, to, text, begin, stop - begin, scale)


@part
def _put_bytes(op, text, at, stop, size, out, to, room):
    """Write what has its length in front; -1 where the plain reader has to look."""
    if at < 0 or to + 6 * (stop - at) + ROOM_BYTES > room:
        return -1
    if op == STRING:
        return put_text(out, to, text, at, stop, size) if is_text(text, at, stop - at) else -1
    if op == BYTES_:
        return put_binary(out, to, text, at, stop - at, False)
    return _put_timestamp(text, at, stop, out, to) if op == TIMESTAMP else _put_money(text, at, stop, out, to)


@part
def _put_number(op, node, found, schema, out, to):
    """Write a number, as it stands in the bytes; -1 where the plain reader has to look."""
    if op == DOUBLE:
        return put_any_double(out, to, np.int64(found))
    if op == FLOAT:
        return put_any_double(out, to, double_of_float(np.int64(found)))
    if op == BOOL:
        return put_all(out, to, _TRUE) if found else put_all(out, to, _FALSE)
    if op == ENUM:
        return _put_symbol(node, low_number(found), schema, out, to)
    if op == SINT32:
        found &= np.uint64(0xFFFFFFFF)
    if op == SINT32 or op == SINT64:
        number = np.int64(found >> np.uint64(1)) ^ -np.int64(found & np.uint64(1))
    elif op == INT32 or op == SFIXED32:
        number = low_number(found)
    else:
        number = np.int64(found & np.uint64(0xFFFFFFFF)) if op == UINT32 or op == FIXED32 else np.int64(found)
    if op == INT32 or op == SFIXED32 or op == SINT32:
        return put_whole(out, to, number)
    if (op == UINT64 or op == FIXED64) and number < 0:
        return -1
    return put_long(out, to, number)


@rare
def plain(node, text, at, end, size, schema, out, to, room):
    """(behind it, behind the output) of a value without fields; (-1, …) where the plain reader has to look."""
    nodes, _, _, _, names = schema
    op, close = nodes[node, 0], np.int64(-1)
    if op == WRAPPER:
        at, close = content(text, at, end)
        if at < 0:
            return -1, to
        node, end = nodes[node, 1], close
        op = nodes[node, 0]
        if at == close:
            return close, put_name(out, to, names, nodes[node, 4], nodes[node, 5])
        at, tag = short(text, at, close)
        if at < 0 or np.int64(tag) != 8 | WIRES[op]:
            return -1, to
    wire = WIRES[op]
    if wire == 2:
        at, stop = content(text, at, end)
        to = _put_bytes(op, text, at, stop, size, out, to, room)
        at = stop
    else:
        if wire == 0:
            at, found = varint(text, at, end)
        else:
            width = 8 if wire == 1 else 4
            if at + width > end:
                return -1, to
            found = fixed(text, at, width)
            at += width
        if at < 0:
            return -1, to
        to = _put_number(op, node, found, schema, out, to)
    if to < 0 or (close >= 0 and at != close):
        return -1, to
    return at, to
