"""Canonical bytes of a column of values (`tidemark.shared.language.values.canonical_key`), vectorised for strings, ints, longs and dates.

Equal values have equal bytes whatever columns they come from, so the vectorised forms must give what `canonical_key` gives.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.values import canonical_key
from tidemark.shared.operators.batches import values_of

_HEAD_BYTES: Final = 5  # tag and length of a string
"""The key's format."""
_INT_BYTES: Final = 9  # tag and eight bytes
"""The key's format."""


def canonical_column(column: pa.Array, field: pa.Field) -> pa.BinaryArray:
    """The canonical bytes of each cell, a null cell as null's; shape (n,), no nulls."""
    if not len(column):
        return pa.array([], type=pa.binary())
    if pa.types.is_string(column.type) and not column.null_count:
        return _strings(column)
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
        tag = b"d" if pa.types.is_timestamp(column.type) else b"i"
        return _integers(column.cast(pa.int64()).to_numpy(zero_copy_only=False), tag)
    return canonical_values(values_of(column, field))


def canonical_values(values: Sequence[Any]) -> pa.BinaryArray:
    """The canonical bytes of values of the language, MISSING as null."""
    return pa.array([canonical_key(v) for v in values], type=pa.binary())


def _strings(column: pa.StringArray) -> pa.BinaryArray:
    """Tag `s`, length (4 bytes, big endian), the UTF-8 bytes."""
    n = len(column)
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + n + 1].astype(np.int64)
    lengths = np.diff(ends)
    out_ends = np.concatenate(([0], np.cumsum(lengths + _HEAD_BYTES)))
    out = np.empty(int(out_ends[-1]), dtype=np.uint8)
    heads = np.empty((n, _HEAD_BYTES), dtype=np.uint8)
    heads[:, 0] = ord("s")
    heads[:, 1:] = lengths.astype(">u4").view(np.uint8).reshape(n, 4)
    at = out_ends[:-1]
    out[(at[:, None] + np.arange(_HEAD_BYTES)).ravel()] = heads.ravel()
    body = np.ones(len(out), dtype=np.bool_)
    body[(at[:, None] + np.arange(_HEAD_BYTES)).ravel()] = False
    if data is not None:
        out[body] = np.frombuffer(data, dtype=np.uint8)[ends[0] : ends[-1]]
    return _binary(out_ends, out)


def _integers(numbers: npt.NDArray[np.int64], tag: bytes) -> pa.BinaryArray:
    """A tag, then eight bytes, big endian, two's complement."""
    n = len(numbers)
    out = np.empty((n, _INT_BYTES), dtype=np.uint8)
    out[:, 0] = tag[0]
    out[:, 1:] = numbers.astype(">i8").view(np.uint8).reshape(n, 8)
    return _binary(np.arange(n + 1, dtype=np.int64) * _INT_BYTES, out.ravel())


def _binary(ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    offsets = ends.astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
