"""Messages of formats 0 and 1, which brokers before 0.11 wrote: old segments have them, and topics that keep these formats.

Messages that are compressed are the value of another one, whose offset is that of the last. In format 1 those within count from 0, and
have the time of the outer one where that is the broker's. Format 0 has no times.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from tidemark.shared.adapters.kafka_unpacking import (
    LZ4,
    PART_BYTES,
    UNPACK,
    UNPACKED_BYTES_MAX,
    BatchCut,
    stream_of,
    unpacked,
)
from tidemark.shared.compiled import kafka

Int64s: TypeAlias = npt.NDArray[np.int64]
_NO_MESSAGES: Final = "does not unpack to messages of its own format"
_FIELD: Final = struct.Struct(">i")
_WORD: Final = 0xFFFFFFFF
_PRIMES: Final = (2654435761, 2246822519, 3266489917, 668265263, 374761393)
_FRAME_FLAGS_AT: Final = 4
_CONTENT_SIZE: Final = 0x08
"""Bit of a frame's flags: eight bytes with the size follow its descriptor."""


def is_intact(data: bytes, row: Int64s) -> bool:
    """Whether a message has the CRC that it names."""
    begin, end = int(row[kafka.BEGIN]), int(row[kafka.END])
    named = int.from_bytes(data[begin + kafka.MESSAGE_CRC_AT : begin + kafka.MESSAGE_CHECKED_FROM], "big")
    return zlib.crc32(memoryview(data)[begin + kafka.MESSAGE_CHECKED_FROM : end]) == named


def within(data: bytes, row: Int64s) -> tuple[bytes, Int64s] | None:
    """The messages in a compressed one: their bytes and table; None if they are more than UNPACKED_BYTES_MAX.

    BatchCut where there are none, or the errors of the compression's library.
    """
    packed, codec = _packed(data, row)
    found = unpacked(packed, codec)
    if found is None:
        return None
    table = _table(found, row)
    if not len(table) or int(table[-1, kafka.END]) != len(found):
        raise BatchCut(_NO_MESSAGES)
    return found, _placed(table, row, int(table[-1, kafka.BASE]))


class MessageParts:
    """The same on its way out in parts of whole messages, about PART_BYTES each."""

    def __init__(self, data: bytes, row: Int64s) -> None:
        self._data = data
        self._row = row
        self._last = 0
        self._left: Iterator[tuple[bytes, Int64s]] | None = None
        """None before the first."""
        self._ahead: tuple[bytes, Int64s] | None = None

    def _parts(self) -> Iterator[tuple[bytes, Int64s]]:
        stream, left = stream_of(*_packed(self._data, self._row)), b""
        while more := bytes(stream.read(PART_BYTES)):
            left += more
            table = _table(left, self._row)
            if len(table):
                end = int(table[-1, kafka.END])
                yield left[:end], table
                left = left[end:]
            if len(left) > UNPACKED_BYTES_MAX:
                raise BatchCut(f"has a message of more than {UNPACKED_BYTES_MAX} bytes")
        if left:
            raise BatchCut(_NO_MESSAGES)

    @property
    def more(self) -> bool:
        """Whether messages are left."""
        return self._left is None or self._ahead is not None

    def next(self) -> tuple[bytes, Int64s]:
        """The next messages, as `within` gives them. BatchCut, or the errors of the compression's library."""
        if self._left is None:  # the last of them says where the first lies
            for _, table in self._parts():
                self._last = int(table[-1, kafka.BASE])
            self._left = self._parts()
            self._ahead = next(self._left, None)
        if self._ahead is None:
            raise BatchCut(_NO_MESSAGES)
        (found, table), self._ahead = self._ahead, next(self._left, None)
        return found, _placed(table, self._row, self._last)


def _table(data: bytes, row: Int64s) -> Int64s:
    """Of the messages that lie whole in the data."""
    told: Any = np.frombuffer(data, dtype=np.uint8)
    table = np.empty((kafka.walk(told, 0, np.empty((0, kafka.FIELDS), dtype=np.int64)), kafka.FIELDS), dtype=np.int64)
    kafka.walk(told, 0, table)
    if (table[:, kafka.MAGIC] != row[kafka.MAGIC]).any() or (table[:, kafka.ATTRIBUTES] & kafka.CODEC_MASK).any():
        raise BatchCut(_NO_MESSAGES)
    return table


def _placed(table: Int64s, row: Int64s, last: int) -> Int64s:
    """With the offsets and times of a log. last: the offset of the last message, as it stands within."""
    if row[kafka.MAGIC]:
        table[:, kafka.BASE] += row[kafka.BASE] - last
        if row[kafka.ATTRIBUTES] & kafka.APPEND_TIME:
            table[:, kafka.FIRST_TIME] = row[kafka.FIRST_TIME]
    return table


def _packed(data: bytes, row: Int64s) -> tuple[bytes, int]:
    codec, magic = int(row[kafka.ATTRIBUTES] & kafka.CODEC_MASK), int(row[kafka.MAGIC])
    if codec not in UNPACK:
        raise BatchCut(f"is compressed in a way that is not known ({codec})")
    packed = _value(data, row)
    return _with_checksum(packed) if codec == LZ4 and magic == 0 else packed, codec


def _value(data: bytes, row: Int64s) -> bytes:
    at, end = (
        int(row[kafka.BEGIN]) + kafka.MESSAGE_KEY_AT + int(row[kafka.MAGIC]) * kafka.TIME_BYTES,
        int(row[kafka.END]),
    )
    at += _FIELD.size + max(_FIELD.unpack_from(data, at)[0], 0)
    if at + _FIELD.size > end or at + _FIELD.size + _FIELD.unpack_from(data, at)[0] != end:
        raise BatchCut("has a key and a value that do not end where it does")
    return data[at + _FIELD.size : end]


def _with_checksum(packed: bytes) -> bytes:
    """A frame of LZ4 with the right checksum of its head: in format 0 clients wrote one of other bytes (KAFKA-3160)."""
    at = _FRAME_FLAGS_AT + 2 + (8 if len(packed) > _FRAME_FLAGS_AT and packed[_FRAME_FLAGS_AT] & _CONTENT_SIZE else 0)
    right = (_xxhash(packed[_FRAME_FLAGS_AT:at]) >> 8) & 0xFF
    return packed[:at] + bytes([right]) + packed[at + 1 :]


def _xxhash(data: bytes) -> int:
    """The hash of xxHash, of 32 bits, without a seed, of less than 16 bytes."""
    found, at = (_PRIMES[4] + len(data)) & _WORD, 0
    while at + 4 <= len(data):
        found = (found + int.from_bytes(data[at : at + 4], "little") * _PRIMES[2]) & _WORD
        found = (_rotated(found, 17) * _PRIMES[3]) & _WORD
        at += 4
    for byte in data[at:]:
        found = (_rotated((found + byte * _PRIMES[4]) & _WORD, 11) * _PRIMES[0]) & _WORD
    found = ((found ^ found >> 15) * _PRIMES[1]) & _WORD
    found = ((found ^ found >> 13) * _PRIMES[2]) & _WORD
    return found ^ found >> 16


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD
