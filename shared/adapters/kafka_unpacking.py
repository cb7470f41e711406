"""Compressed batches of Kafka, which may unpack to many thousand times their bytes: a bound holds for each step of unpacking.

A batch that unpacks to more than the bound goes out in parts, each of whole records, and the rest stays packed until it is asked for. So
memory is bounded for every batch. A record that is itself above the bound is passed, and told with its size.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

UNPACKED_BYTES_MAX: Final = 32 << 20
"""Of the batches that are unpacked together, or of a record: producers' batches have a megabyte, packed, and brokers' records less."""
PART_BYTES: Final = 4 << 20
"""Unpacked at once of a batch that goes out in parts."""
GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
UNPACK: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    GZIP: gzip_decode, SNAPPY: snappy_decode, LZ4: lz4_decode, ZSTD: zstd_decode,
}  # fmt: skip
"""By the number of a compression in a batch's attributes."""
_TIMES_MAX: Final[Mapping[int, int]] = {GZIP: 1_032, SNAPPY: 64, LZ4: 255}
"""The most bytes that one byte may unpack to, where the format bounds it."""
_STREAMS: Final[Mapping[int, str]] = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}
_HEAD_BYTES_MAX: Final = 32
"""Of a record: its length, attributes, time and offset."""
_MORE: Final = 0x80
_SEVEN: Final = 0x7F
_BITS: Final = 7
_VARINT_BITS_MAX: Final = 70
"""Bits of the longest number of variable length: more bits are no number."""


class BatchCut(Exception):
    """A batch does not unpack to the records that it names."""


def unpacked(packed: bytes, codec: int) -> bytes | None:
    """The unpacked records of a batch; None if they are more than UNPACKED_BYTES_MAX. Raises the errors of its library."""
    if codec == SNAPPY or len(packed) * _TIMES_MAX.get(codec, UNPACKED_BYTES_MAX) <= UNPACKED_BYTES_MAX:
        return UNPACK[codec](packed)  # snappy's block says its size: 64 times the packed bytes at the most
    found = bytearray()
    stream = stream_of(packed, codec)
    while more := stream.read(PART_BYTES):
        found += more
        if len(found) > UNPACKED_BYTES_MAX:
            return None
    return bytes(found)


def unpacks_to_more(packed: bytes, codec: int) -> bool:
    """Whether a batch's records unpack to more than UNPACKED_BYTES_MAX, looked at in parts; no for a batch that cannot be unpacked."""
    if codec not in _STREAMS or len(packed) * _TIMES_MAX.get(codec, UNPACKED_BYTES_MAX) <= UNPACKED_BYTES_MAX:
        return False
    try:
        stream, count = stream_of(packed, codec), 0
        while count <= UNPACKED_BYTES_MAX and (more := len(stream.read(PART_BYTES))):
            count += more
    except (OSError, zlib.error, BatchCut):
        return False  # the library reports the error
    return count > UNPACKED_BYTES_MAX


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some records of a batch, in their order."""

    data: bytes
    """As they lie in a batch that is not compressed."""
    count: int
    large: tuple[int, int] | None = None
    """Instead of records: (offset from the batch's, bytes) of one that is too large."""


class Unpacking:
    """One batch on its way out. record_bytes_max: of a record."""

    def __init__(self, packed: bytes, codec: int, count: int, record_bytes_max: int) -> None:
        self._stream = stream_of(packed, codec)
        self._count = count
        self._record_bytes_max = record_bytes_max
        self._given = 0
        self._left = b""

    @property
    def more(self) -> bool:
        """Whether records are left."""
        return self._given < self._count

    def next(self) -> BatchPart:
        """Whole records of about PART_BYTES, one at least, or one that is too large. BatchCut."""
        data, more = self._left, b""
        while True:
            count, end, large = self._whole(data)
            if count:
                self._left = data[end:]
                self._given += count
                return BatchPart(data[:end], count)
            if large:
                return self._passed(data, large)
            more = bytes(self._stream.read(PART_BYTES))
            if not more:
                raise BatchCut(f"names {self._count} records, and unpacks to {self._given}")
            data += more

    def _whole(self, data: bytes) -> tuple[int, int, int]:
        """How many records lie whole in the data, where they end, and the length of the next where that is too large, or 0."""
        count = at = 0
        while self._given + count < self._count:
            found = _varint(data, at)
            if found is None:
                break
            length, behind = found
            if length < 0:
                raise BatchCut(f"has a record of {length} bytes")
            if length > self._record_bytes_max:
                return count, at, length
            if behind + length > len(data):
                break
            at = behind + length
            count += 1
        return count, at, 0

    def _passed(self, data: bytes, length: int) -> BatchPart:
        while len(data) < _HEAD_BYTES_MAX and (more := bytes(self._stream.read(_HEAD_BYTES_MAX))):
            data += more
        _, begin = _sure(data, 0)
        _, at = _sure(data, begin + 1)  # its attributes, then its time
        delta, _ = _sure(data, at)
        left = begin + length - len(data)
        while left > 0:
            passed = len(self._stream.read(min(left, PART_BYTES)))
            if not passed:
                raise BatchCut("has a record that is cut")
            left -= passed
        self._left = data[begin + length :]
        self._given += 1
        return BatchPart(b"", 0, (delta, length))


class _Gzip:
    """One or several members."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)

    def read(self, nbytes: int) -> bytes:
        """So many bytes at most; none at the end."""
        while self._packed or self._member.unconsumed_tail:
            data = self._member.decompress(self._member.unconsumed_tail or self._packed, nbytes)
            self._packed = self._member.unused_data if self._member.eof else b""
            if self._member.eof:
                self._member = zlib.decompressobj(16 + zlib.MAX_WBITS)
            if data:
                return data
        return self._member.decompress(b"", nbytes)


def stream_of(packed: bytes, codec: int) -> Any:
    """What unpacks bytes in pieces, by `read`; not for snappy, whose blocks say their size."""
    if codec == GZIP:
        return _Gzip(packed)
    return pa.CompressedInputStream(pa.BufferReader(packed), _STREAMS[codec])


def _varint(data: bytes, at: int) -> tuple[int, int] | None:
    """A zigzag varint, and the place behind it; None where it is not whole."""
    raw = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        raw |= (byte & _SEVEN) << shift
        if byte < _MORE:
            return (raw >> 1) ^ -(raw & 1), at
        shift += _BITS
        if shift > _VARINT_BITS_MAX:
            raise BatchCut("has a number without an end")
    return None


def _sure(data: bytes, at: int) -> tuple[int, int]:
    found = _varint(data, at)
    if found is None:
        raise BatchCut("has a record that is cut")
    return found
