"""Deletion vectors, of Delta Lake and in Iceberg's Puffin files: the places of a data file's rows that are deleted.

A Roaring bitmap of 64 bits in its portable form: bitmaps of 32 bits by the upper half of their numbers, each of containers of 2^16
numbers. (delta.io, PROTOCOL.md; iceberg.apache.org, Puffin Spec; github.com/RoaringBitmap/RoaringFormatSpec.) Each step takes bytes away,
and gives one container: however hostile they are, work is bounded by their number, and memory by that of a container.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]
"""Numbers of rows, the first is 0; in order, none twice."""
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
_CONTAINER_BYTES_MAX: Final = 2 + 4 * 32_768 + 4 + 4 + 8 + 4
"""Of a container with as many runs as it can have, its head, its place, and what stands around a bitmap of it alone."""
_AROUND_MAX: Final = 64
"""Bytes of a vector in front of its first bitmap and behind its last, by far."""
_HALF: Final = 16
_HIGH_MAX: Final = 2**31 - 1
"""With more a number would not fit 64 bits with a sign."""


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


def check_bytes(size: int, rows: int) -> None:
    """ValueError for a vector of so many bytes that no file of so many rows has one: it is not even read."""
    most = _AROUND_MAX + (rows // (1 << _HALF) + 1) * _CONTAINER_BYTES_MAX
    if not 0 <= size <= most:
        raise ValueError(f"a deletion vector has {size} bytes, and one of a file with {rows} rows has {most} at most")


def unframed(blob: bytes) -> bytes:
    """A vector as it lies in a file, without what is around it. ValueError where its checksum is another."""
    data = _Bytes(blob)
    inner = bytes(data.take(data.number(">I")))
    if data.number(">I") != zlib.crc32(inner):
        raise ValueError("a deletion vector is damaged: its checksum is another")
    return inner


def places_of(vector: bytes, rows: int, cardinality: int | None) -> Iterator[Places]:
    """Those of a file of so many rows, in pieces. ValueError, before the first one, for no vector of it, or another number of rows."""
    count, last = 0, -1
    for places in places_in(vector):
        if not len(places):
            continue
        if places[0] <= last:
            raise ValueError("a deletion vector has rows that are not in order")
        count, last = count + len(places), int(places[-1])
        if last >= rows:
            raise ValueError(f"a deletion vector has row {last} of a file with {rows}")
    if cardinality not in (None, count):
        raise ValueError(f"a deletion vector has {count} rows, and is told to have {cardinality}")
    return places_in(vector)


def places_in(vector: bytes) -> Iterator[Places]:
    """Of rows that are deleted, in pieces. ValueError for what is no deletion vector, or damaged."""
    data = _Bytes(vector)
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
        ends = begins + sizes
        if (begins[1:] < ends[:-1]).any() or (ends > 1 << _HALF).any():
            raise ValueError("a deletion vector has runs that overlap, or are not in order")
        return np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(int(sizes.sum()))
    if count <= _ARRAY_MAX:
        places = data.shorts(count)
        if (np.diff(places) <= 0).any():
            raise ValueError("a deletion vector has rows that are not in order")
        return places
    return np.flatnonzero(np.unpackbits(np.frombuffer(data.take(_SET_BYTES), np.uint8), bitorder="little"))
