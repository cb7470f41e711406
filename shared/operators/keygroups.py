"""Key groups: murmur2 of a key's canonical bytes modulo G, for one key or for a column of them.

The hash is Kafka's murmur2 (`org.apache.kafka.common.utils.Utils.murmur2`, seed 0x9747b28c), so that a partition chosen here is the one
that Kafka's clients choose. The group is Kafka's too: the hash without its sign bit, modulo G. Durable state is routed by it:
neither may ever change.

A computation's child loads this file: nothing here takes machine code.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Words: TypeAlias = npt.NDArray[np.uint32]

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x7FFFFFFF
_M32: Final = np.uint32(_M)
_WORTH_A_COLUMN: Final = 32
"""Keys from which a column is hashed sooner than one by one."""
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


def groups_of_keys(keys: Sequence[bytes], groups: int) -> list[int]:
    """The group of each key."""
    if len(keys) < _WORTH_A_COLUMN:
        return [key_group(key, groups) for key in keys]
    found: list[int] = key_groups(pa.array(keys, pa.binary()), groups).tolist()
    return found


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
