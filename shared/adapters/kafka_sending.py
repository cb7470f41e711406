"""What a producer sends, put together with few copies and with CRCs by the processor's own instruction.

The client library copies a batch for each level of a request's form, eight times, and takes its CRC in software: of a source whose
documents have a kibibyte, a fifth of the processor time. No compiled code: a process that writes single records alone needs no LLVM for it.
"""

import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.types import Array, Bytes, Int32, Schema
from aiokafka.record.util import encode_varint
from crc32c import crc32c

from tidemark.shared.compiled import kafka

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Of a batch: base offset, length, leader's epoch, format, CRC, attributes, last place, times, producer, its epoch, number, count."""
_CODECS: Final[Mapping[str, tuple[int, Callable[[bytes], bytes]]]] = {
    "gzip": (1, gzip_encode), "snappy": (2, snappy_encode), "lz4": (3, lz4_encode), "zstd": (4, zstd_encode),
}  # fmt: skip


class Place(NamedTuple):
    """A record's place in its batch, and its time, ms: what the library asks an appended record for."""

    offset: int
    timestamp: int


class Batch:
    """Records in pieces of bytes, with the methods of the library's `BatchBuilder` that its sender calls."""

    def __init__(self, compression: str | None, *, transactional: bool) -> None:
        self._compression = compression
        self._transactional = transactional
        self._pieces: list[Any] = []
        """Of bytes."""
        self._size = HEADER.size
        self._count = 0
        self._first_ms = self._latest_ms = 0
        self._producer = -1, -1, -1
        self._built = False

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = producer_id, producer_epoch, base_sequence

    def _build(self) -> Sequence[Any]:
        """All of its bytes, in pieces: `joined` puts them into a request."""
        if not self._built:
            codec = 0
            if self._compression is not None:
                self._pieces, codec = _compressed(b"".join(self._pieces), self._compression)
            self._size = HEADER.size + sum(map(len, self._pieces))
            attributes = codec | (kafka.TRANSACTIONAL if self._transactional else 0)
            times = self._first_ms, self._latest_ms
            behind = attributes, self._count - 1, *times, *self._producer, self._count
            header = bytearray(HEADER.pack(0, self._size - kafka.LOG_OVERHEAD_BYTES, -1, kafka.FORMAT, 0, *behind))
            check = crc32c(header[kafka.CHECKED_FROM :])
            for piece in self._pieces:
                check = crc32c(piece, check)
            struct.pack_into(">I", header, kafka.CRC_AT, check)
            self._pieces.insert(0, header)
            self._built = True
        return self._pieces

    def size(self) -> int:
        """The batch's size, bytes; before it is built, not compressed."""
        return self._size

    def record_count(self) -> int:
        """How many records it has."""
        return self._count

    def closed(self) -> bool:
        """It takes no more records."""
        return True

    def close(self) -> None:
        """Nothing to do: it takes no more records."""


class PackedBatch(Batch):
    """Records that are packed already."""

    def __init__(
        self, records: Any, count: int, times: tuple[int, int], compression: str | None, *, transactional: bool
    ) -> None:
        """Times: ms, of the first record and the latest."""
        super().__init__(compression, transactional=transactional)
        self._pieces = [records]
        self._size += len(records)
        self._count = count
        self._first_ms, self._latest_ms = times


class OpenBatch(Batch):
    """A batch that is filled record by record, up to a number of bytes; one record alone may be larger."""

    def __init__(self, bytes_max: int, compression: str | None, *, transactional: bool) -> None:
        super().__init__(compression, transactional=transactional)
        self._bytes_max = bytes_max
        self._closed = False

    def append(
        self,
        *,
        timestamp: int | None,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> Place | None:
        """Take a record, with a time in ms or none; its place, None where the batch is full."""
        if self._closed or self._built:
            return None
        time_ms = int(time.time() * 1000) if timestamp is None else timestamp
        first_ms = self._first_ms if self._count else time_ms
        before, behind = bytearray(b"\0"), bytearray()
        encode_varint(time_ms - first_ms, before.append)
        encode_varint(self._count, before.append)
        _put(before, key)
        encode_varint(-1 if value is None else len(value), before.append)
        encode_varint(len(headers), behind.append)
        for name, content in headers:
            _put(behind, name.encode())
            _put(behind, content)
        pieces = (before, value or b"", behind)
        size, length = sum(map(len, pieces)), bytearray()
        encode_varint(size, length.append)
        if self._count and self._size + size + len(length) > self._bytes_max:
            self._closed = True
            return None
        self._pieces += (length, *pieces)
        self._size += size + len(length)
        self._first_ms, self._latest_ms = first_ms, max(self._latest_ms, time_ms)
        self._count += 1
        return Place(self._count - 1, time_ms)

    def closed(self) -> bool:
        """Whether it takes no more records."""
        return self._closed

    def close(self) -> None:
        """Take no more records."""
        self._closed = True


def _put(out: bytearray, data: bytes | None) -> None:
    """Bytes with their length before them, which is -1 for none."""
    encode_varint(-1 if data is None else len(data), out.append)
    out += data or b""


def _compressed(records: bytes, compression: str) -> tuple[list[bytes], int]:
    """The records as they are sent, and the codec's number; 0 where compressing does not make them smaller."""
    codec, encode = _CODECS[compression]
    smaller = encode(records)
    return ([smaller], codec) if len(smaller) < len(records) else ([records], 0)


def joined(request: Any) -> Any:
    """The library's request to write batches, of which all pieces are joined once."""
    build = request.build

    def built(version: Any) -> Any:
        form = build(version)
        values = [getattr(form, name) for name in form.SCHEMA.names]
        form.encode = lambda: b"".join(_pieces(form.SCHEMA, values))
        return form

    request.build = built
    return request


def _pieces(form: Any, value: Any) -> Iterator[Any]:
    """The bytes of a value of one of the protocol's forms; those of a batch are in pieces already."""
    if isinstance(form, Schema):
        for part, each in zip(form.fields, value, strict=True):
            yield from _pieces(part, each)
    elif isinstance(form, Array) and value is not None:
        yield Int32.encode(len(value))
        for each in value:
            yield from _pieces(form.array_of, each)
    elif form is Bytes and value is not None:
        yield Int32.encode(sum(map(len, value)))
        yield from value
    else:
        yield form.encode(value)


def send_by(raw: Any, bytes_max: int, compression: str | None, *, transactional: bool) -> None:
    """Let a producer of the library write batches and requests of this module. bytes_max: of a batch."""
    send = raw.client.send

    async def send_joined(node_id: Any, request: Any, **more: Any) -> Any:
        return await send(node_id, joined(request) if isinstance(request, ProduceRequest) else request, **more)

    def builder() -> OpenBatch:
        return OpenBatch(bytes_max, compression, transactional=transactional)

    raw.client.send = send_joined
    raw._message_accumulator.create_builder = builder
