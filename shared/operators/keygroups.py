"""Key groups: murmur2 of a key's canonical bytes modulo G, for one key or for a column of them.

The hash is Kafka's murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`, seed 0x9747b28c), so that a partition chosen here is the one
that Kafka's clients choose. The group is Kafka's too: the hash without its sign bit, modulo G. Durable state is routed by it:
neither may ever change.

Canonical bytes of a column of values (`tidemark.shared.language.values.canonical_key`), vectorised for strings, ints, longs and dates.

Equal values have equal bytes whatever columns they come from, so the vectorised forms must give what `canonical_key` gives.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.values import canonical_key
from tidemark.shared.operators.batches import values_of

Words: TypeAlias = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x7FFFFFFF
_M32: Final = np.uint32(_M)
_CHUNK_ROWS: Final = 16_384
"""Rows hashed at a time: the working arrays then stay in the processor's cache."""


def murmur2(data: bytes) -> int:
    """The hash of one key as an unsigned 32-bit number."""
    h = _SEED ^ len(data)
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = (h * _M & _MASK) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def key_group(key: bytes, groups: int) -> int:
    """The group, of `groups`, that a key with these canonical bytes belongs to."""
    return (murmur2(key) & _SIGN) % groups


def murmur2_column(keys: pa.BinaryArray) -> Words:
    """The hashes of n keys, shape (n,), uint32. A null is hashed as the empty key; columns with keys of one length are fastest."""
    count = len(keys)
    out = np.empty(count, dtype=np.uint32)
    if not count:
        return out
    offsets, data = _buffers(keys)
    lengths = np.diff(offsets)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        start = int(offsets[0])
        _hash_rows(data[start : start + count * longest].reshape(count, longest), out)
        return out
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    for rows in np.split(order, bounds):
        length = int(lengths[rows[0]])
        hashes = np.empty(len(rows), dtype=np.uint32)
        _hash_rows(data[offsets[rows][:, None] + np.arange(length)], hashes)
        out[rows] = hashes
    return out


def key_groups(keys: pa.BinaryArray, groups: int) -> npt.NDArray[np.uint16]:
    """The groups of n keys, shape (n,), each in [0, groups); `groups` at most 65,536."""
    return groups_of(murmur2_column(keys), groups)


def groups_of(hashes: Words, groups: int) -> npt.NDArray[np.uint16]:
    """The groups of n keys with these hashes, shape (n,)."""
    return ((hashes & np.uint32(_SIGN)) % np.uint32(groups)).astype(np.uint16)


def _buffers(keys: pa.BinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets, n + 1 of them, and all bytes. A null's length is made 0: its slot may hold anything."""
    if keys.null_count:
        keys = keys.fill_null(b"")
    if pa.types.is_fixed_size_binary(keys.type) or pa.types.is_large_binary(keys.type):
        keys = keys.cast(pa.binary())
    _, offsets, data = keys.buffers()
    all_offsets = np.frombuffer(offsets, dtype=np.int32)[keys.offset : keys.offset + len(keys) + 1]
    octets = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return all_offsets.astype(np.int64), octets


def _hash_rows(rows: npt.NDArray[np.uint8], out: Words) -> None:
    """Hash the rows of a (n, length) array into `out`, shape (n,)."""
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[start : start + _CHUNK_ROWS]
        _hash_chunk(chunk, out[start : start + len(chunk)])


def _hash_chunk(rows: npt.NDArray[np.uint8], h: Words) -> None:
    length = rows.shape[1]
    whole = length & ~3
    h[:] = np.uint32((_SEED ^ length) & _MASK)
    words = np.ascontiguousarray(rows[:, :whole]).view("<u4")
    k = np.empty(len(rows), dtype=np.uint32)
    for column in range(whole // 4):
        np.multiply(words[:, column], _M32, out=k)
        k ^= k >> np.uint32(24)
        k *= _M32
        h *= _M32
        h ^= k
    if whole < length:
        for byte in range(whole, length):
            h ^= rows[:, byte].astype(np.uint32) << np.uint32(8 * (byte - whole))
        h *= _M32
    h ^= h >> np.uint32(13)
    h *= _M32
    h ^= h >> np.uint32(15)


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
