"""Deletion vectors (`deletion-vector-v1` of Iceberg's Puffin files): the places of a data file's rows that are deleted.

A Roaring bitmap of 64 bits in its portable form: bitmaps of 32 bits by the upper half of their numbers, each of containers of 2^16
numbers. (iceberg.apache.org, Puffin Spec; github.com/RoaringBitmap/RoaringFormatSpec.) Each step takes bytes away, so however hostile they
are, work and memory are bounded by their number.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyiceberg.table.deletion_vector import PROPERTY_REFERENCED_DATA_FILE
from pyiceberg.table.puffin import MAGIC_BYTES, Footer

Places = npt.NDArray[np.int64]
_MAGIC: Final = 1681511377
_RUNS: Final = 12347
"""Where a bitmap may have containers of runs; else it has none."""
_PLAIN: Final = 12346
_OFFSETS_LEAST: Final = 4
"""So many containers have a table of offsets, where runs are possible; else any number has."""
_ARRAY_MAX: Final = 4096
"""Numbers in a container that is a list; with more it is a set of bits."""
_SET_BYTES: Final = 8192
"""Of such a set, a bit for each of its 2^16 numbers: part of the format."""
_HALF: Final = 16
_HIGH_MAX: Final = 2**31 - 1
"""With more a number would not fit 64 bits with a sign."""
_TAIL: Final = 12
"""Bytes behind a footer."""


def deleted_in(puffin: Any, path: str) -> Iterator[Places]:
    """Of a data file's rows that an open file deletes, in pieces. ValueError for what is no file of deletion vectors, or damaged."""
    size = int(puffin.seek(0, 2))
    tail = _part(puffin, size - _TAIL, _TAIL, size)
    length, flags, mark = struct.unpack("<iI4s", tail)
    if mark != MAGIC_BYTES or flags:
        raise ValueError("expected a Puffin file with a plain footer")
    footer = Footer.model_validate_json(_part(puffin, size - _TAIL - length, length, size))
    for blob in footer.blobs:
        if blob.properties.get(PROPERTY_REFERENCED_DATA_FILE) == path:
            if blob.compression_codec is not None:
                raise ValueError(f"a deletion vector is packed by {blob.compression_codec}; expected a plain one")
            yield from places_in(_part(puffin, blob.offset, blob.length, size))


def _part(file: Any, begin: int, length: int, size: int) -> bytes:
    if begin < 0 or length < 0 or begin + length > size:
        raise ValueError(f"a Puffin file of {size} bytes has a part of {length} at {begin}")
    file.seek(begin)
    return bytes(file.read(length))


class _Bytes:
    """Taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def take(self, size: int) -> memoryview:
        if size > len(self._data):
            raise ValueError(f"a deletion vector ends {size - len(self._data)} bytes too early")
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def shorts(self, count: int) -> Places:
        return np.frombuffer(self.take(2 * count), "<u2").astype(np.int64)


def places_in(blob: bytes) -> Iterator[Places]:
    """Of rows that are deleted, in pieces. ValueError for what is no deletion vector, or damaged."""
    data = _Bytes(blob)
    inner = bytes(data.take(data.number(">I")))
    if data.number(">I") != zlib.crc32(inner):
        raise ValueError("a deletion vector is damaged: its checksum is another")
    data = _Bytes(inner)
    if (magic := data.number("<I")) != _MAGIC:
        raise ValueError(f"a deletion vector begins with {magic}, expected {_MAGIC}")
    for _ in range(data.number("<Q")):
        high = data.number("<I")
        if high > _HIGH_MAX:
            raise ValueError(f"a deletion vector has rows behind the {_HIGH_MAX + 1} times 2^32nd")
        for places in _bitmap(data):
            yield places + (high << 32)


def _bitmap(data: _Bytes) -> Iterator[Places]:
    cookie = data.number("<I")
    runs: Places = np.zeros(0, np.int64)
    if cookie & 0xFFFF == _RUNS:
        count = (cookie >> _HALF) + 1
        runs = np.unpackbits(np.frombuffer(data.take(-(-count // 8)), np.uint8), bitorder="little").astype(np.int64)
    elif cookie == _PLAIN:
        count = data.number("<I")
    else:
        raise ValueError(f"a deletion vector has a bitmap that begins with {cookie}")
    heads = data.shorts(2 * count)
    if not len(runs) or count >= _OFFSETS_LEAST:
        data.take(4 * count)
    for at, (high, last) in enumerate(zip(heads[::2].tolist(), heads[1::2].tolist(), strict=True)):
        yield _container(data, last + 1, runs=at < len(runs) and bool(runs[at])) + (high << _HALF)


def _container(data: _Bytes, count: int, *, runs: bool) -> Places:
    if runs:
        bounds = data.shorts(2 * data.number("<H"))
        begins, sizes = bounds[::2], bounds[1::2] + 1
        if int(sizes.sum()) > 1 << _HALF:
            raise ValueError("a deletion vector has runs that overlap")
        return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    if count <= _ARRAY_MAX:
        return data.shorts(count)
    return np.flatnonzero(np.unpackbits(np.frombuffer(data.take(_SET_BYTES), np.uint8), bitorder="little"))
