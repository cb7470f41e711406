"""Records as Kafka's batches hold them (format 2), packed from columns.

- KP1 The bytes are those of the client library, which packs record by record.
- KP2 As many records as fit are packed, the first always; the rest begins the next batch.
"""

from typing import Final

import numpy as np

from tidemark.shared.compiled.compiling import BOOLS, BYTES, BYTES_OUT, INT64S, INT64S_OUT, compiled, part
from tidemark.shared.compiled.memory import borrowed, copy_bytes
from tidemark.shared.compiled.varints import put_signed

RECORD_BYTES_MAX: Final = 40
"""Of a record, beside its key, its value and its headers: its length, times, places and the lengths within."""
HEADER_BYTES_MAX: Final = 20
"""Of one header, beside its name and its value."""
ROWS, SIZE, LATEST = range(3)
"""The results of `pack`: number of records taken, their bytes, the latest of their times."""


@part
def _size(number):
    """Bytes of a varint, of a number with a sign."""
    word = np.uint64((number << 1) ^ (number >> 63))
    size = 1
    while word >= np.uint64(0x80):
        word >>= np.uint64(7)
        size += 1
    return size


@part
def _piece_size(pieces, row):
    """Bytes of a piece with its length before it."""
    _, bounds, there = pieces
    if not there[row]:
        return np.int64(1)
    size = bounds[row + 1] - bounds[row]
    return size + _size(size)


@part
def _put_piece(out, to, pieces, row):
    """Write a piece with its length, which is -1 for none; the place behind it."""
    text, bounds, there = pieces
    if not there[row]:
        return put_signed(out, to, np.int64(-1))
    size = bounds[row + 1] - bounds[row]
    to = put_signed(out, to, size)
    copy_bytes(out, to, text, bounds[row], size)
    return to + size


_PIECES: Final = (BYTES, INT64S, BOOLS)


@compiled(
    *(0, "int64", "int64", INT64S),
    *(*_PIECES, *_PIECES, *_PIECES, *_PIECES, INT64S),
    *(BYTES_OUT, "int64", "int64", INT64S_OUT),
)
def pack(
    first, count, times, keys, key_bounds, keyed, values, value_bounds, valued,
    names, name_bounds, named, contents, content_bounds, filled, header_bounds, out, at, bytes_max, told,
):  # fmt: skip
    """Pack the records from `first` on, at most `count`, into `out` from a place on, as many as take `bytes_max` (KP2); fills `told`.

    times: shape (n,), ms. Keys, values, and of headers names and contents: bytes, bounds of shape (n + 1,), which are there, shape (n,).
    header_bounds: shape (n + 1,), which headers are a record's.
    """
    target = borrowed(out)
    key = borrowed(keys), borrowed(key_bounds), borrowed(keyed)
    value = borrowed(values), borrowed(value_bounds), borrowed(valued)
    name = borrowed(names), borrowed(name_bounds), borrowed(named)
    content = borrowed(contents), borrowed(content_bounds), borrowed(filled)
    to, taken, latest = at, np.int64(0), times[first]
    while taken < count:
        row = first + taken
        low, high = header_bounds[row], header_bounds[row + 1]
        time = times[row] - times[first]
        size = 1 + _size(time) + _size(taken) + _piece_size(key, row) + _piece_size(value, row) + _size(high - low)
        for header in range(low, high):
            size += _piece_size(name, header) + _piece_size(content, header)
        if taken > 0 and to - at + size + _size(size) > bytes_max:
            break
        to = put_signed(target, to, size)
        target[to] = 0
        to = put_signed(target, to + 1, time)
        to = put_signed(target, to, taken)
        to = _put_piece(target, to, key, row)
        to = _put_piece(target, to, value, row)
        to = put_signed(target, to, high - low)
        for header in range(low, high):
            to = _put_piece(target, to, name, header)
            to = _put_piece(target, to, content, header)
        latest = max(latest, times[row])
        taken += 1
    told[ROWS], told[SIZE], told[LATEST] = taken, to - at, latest
