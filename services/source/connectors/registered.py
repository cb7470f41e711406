"""Records of a schema registry as the JSON that sources read: Avro and Protobuf by the schema that each was written with, JSON as it is.

A record that is none (another first byte, a number that the registry does not know, bytes that are no record of the schema) stays as it is,
with the reason. A registry that is away is an outage: the same records are asked for again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled.documents import buffers
from tidemark.shared.language import protobuf
from tidemark.shared.language.avro import AvroError, AvroSchemaError, parse_text, reader_of
from tidemark.shared.language.avro.many import ManyAvroReader
from tidemark.shared.model.records import RawBatch
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.log import LogDenied, LogUnavailable
from tidemark.shared.ports.registry import (
    HEADER_BYTES,
    MAGIC,
    KnownSchema,
    RegistryDenied,
    RegistryUnavailable,
    SchemaRegistry,
    SchemaUnknown,
)

_READERS_MAX: Final = 1_000
"""Of schemas; beyond it the oldest is made anew when it is needed."""
_END: Final = 2**31
"""Behind any record: Arrow's slices without an end fail for two records and more."""
_One: TypeAlias = Callable[[bytes], bytes]
_Many: TypeAlias = Callable[[pa.BinaryArray], tuple[pa.BinaryArray, npt.NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class _ToJson:
    """Of a schema's records, without their header, to JSON."""

    one: _One
    many: _Many | None = None
    """Many at once, and which of them are read; None where each is read for itself."""


class _NoRecord(Exception):
    """Why bytes are no record of the registry."""


class RegisteredRecords:
    """Reads the records of one source, by the schemas of a registry."""

    def __init__(
        self,
        registry: SchemaRegistry,
        executor: Executor,
        record_bytes_max: int,
        *,
        values: bool = True,
        keys: bool = False,
        keys_must: bool = True,
    ) -> None:
        """values, keys: which of them are of the registry. keys_must: a record with a key that is not is none."""
        self._registry = registry
        self._values = values
        self._keys = keys
        self._keys_must = keys_must
        self._executor = executor
        self._record_bytes_max = record_bytes_max
        self._readers: dict[int, _ToJson | str] = {}
        """By schema; the reason where its records cannot be read."""

    async def decoded(self, batch: RawBatch) -> RawBatch:
        """The same records, values, keys or both as JSON. LogUnavailable, LogDenied: nothing was taken, ask again."""
        columns = [batch.values] if self._values else []
        columns += [batch.keys] if self._keys and batch.keys is not None else []
        numbers = {number for column in columns for number in np.unique(_numbers(column)).tolist() if number >= 0}
        readers: Mapping[int, _ToJson | str] = {number: await self._reader(number) for number in sorted(numbers)}
        return await self._executor.blocking(self._read, batch, readers)

    async def _reader(self, number: int) -> _ToJson | str:
        if number in self._readers:
            return self._readers[number]
        try:
            known = await self._registry.schema(number)
        except SchemaUnknown as error:
            return str(error)  # not kept: it may be a registry that lags behind
        except RegistryUnavailable as error:
            raise LogUnavailable(str(error)) from error
        except RegistryDenied as error:
            raise LogDenied(str(error)) from error
        if len(self._readers) >= _READERS_MAX:
            del self._readers[next(iter(self._readers))]
        try:
            self._readers[number] = found = await self._executor.blocking(_reader_of, known, number)
        except OSError as error:
            raise LogUnavailable(f"schema {number} of the registry cannot be compiled now: {error}") from error
        return found

    def _read(self, batch: RawBatch, readers: Mapping[int, _ToJson | str]) -> RawBatch:
        values, keys, unread = batch.values, batch.keys, dict[int, str]()
        if self._values:
            values, unread = self._column(values, readers)
        if self._keys and keys is not None:
            keys, wrong = self._column(keys, readers)
            if self._keys_must:
                unread = {**{row: f"its key: {why}" for row, why in wrong.items()}, **unread}
        return replace(batch, values=values, keys=keys, unread={**unread, **batch.unread})

    def _column(
        self, column: pa.BinaryArray, readers: Mapping[int, _ToJson | str]
    ) -> tuple[pa.BinaryArray, dict[int, str]]:
        """The records as JSON, and why some stay as they are."""
        unread: dict[int, str] = {}
        numbers = _numbers(column)
        left, pieces, order = column.is_valid().to_numpy(zero_copy_only=False).copy(), [], []
        for number in np.unique(numbers[numbers >= 0]).tolist():
            reader = readers[number]
            if isinstance(reader, str) or reader.many is None:
                continue
            rows = np.flatnonzero(numbers == number)
            texts, sure = reader.many(pc.binary_slice(column.take(pa.array(rows)), HEADER_BYTES, _END))
            sure = sure & (pc.binary_length(texts).to_numpy() <= self._record_bytes_max)
            left[rows[sure]] = False
            pieces.append(texts.filter(pa.array(sure)))
            order.append(rows[sure])
        others = np.flatnonzero(left)
        found: list[bytes] = []
        for row, data in zip(others.tolist(), column.take(pa.array(others)).to_pylist(), strict=True):
            try:
                found.append(self._one(data, readers))
            except _NoRecord as error:
                unread[row] = str(error)
                found.append(data)
        pieces.append(pa.array(found, pa.binary()))
        order.append(others)
        places = np.full(len(column), -1, np.int64)
        places[np.concatenate(order)] = np.arange(sum(map(len, order)))
        return pa.concat_arrays(pieces).take(pa.array(places, mask=places < 0)), unread

    def _one(self, data: bytes, readers: Mapping[int, _ToJson | str]) -> bytes:
        number = _number(data)
        if number is None:
            raise _NoRecord(
                f"expected a record of the schema registry, which begins with byte {MAGIC} and four of the schema's number, found"
                f" {data[:HEADER_BYTES].hex(' ') or 'nothing'}"
            )
        reader = readers[number]
        if isinstance(reader, str):
            raise _NoRecord(reader)
        try:
            text = reader.one(data[HEADER_BYTES:])
        except (AvroError, protobuf.ProtobufError) as error:
            raise _NoRecord(f"no record of schema {number}: {error}") from error
        if len(text) > self._record_bytes_max:
            raise _NoRecord(
                f"schema {number}: as JSON it has {len(text)} bytes, at most {self._record_bytes_max} are allowed"
                " (options.limits.recordBytes)"
            )
        return text


def _number(data: bytes) -> int | None:
    """The number of a record's schema; None if the bytes have none."""
    if len(data) < HEADER_BYTES or data[0] != MAGIC:
        return None
    return int.from_bytes(data[1:HEADER_BYTES], "big")


def _numbers(column: pa.BinaryArray) -> npt.NDArray[np.int64]:
    """As `_number`, of each record, shape (n,); -1 where it has none."""
    text, bounds = buffers(column)
    begins = bounds[:-1]
    there = np.diff(bounds) >= HEADER_BYTES
    if column.null_count:
        there &= column.is_valid().to_numpy(zero_copy_only=False)
    heads = np.concatenate((text, np.zeros(HEADER_BYTES, np.uint8)))[begins[:, None] + np.arange(HEADER_BYTES)].astype(
        np.int64
    )
    found = heads[:, 1] << 24 | heads[:, 2] << 16 | heads[:, 3] << 8 | heads[:, 4]
    numbers: npt.NDArray[np.int64] = np.where(there & (heads[:, 0] == MAGIC), found, -1)
    return numbers


def _reader_of(known: KnownSchema, number: int) -> _ToJson | str:
    """The reader of a schema's records, or why there is none."""
    match known.type:
        case "JSON":
            return _ToJson(lambda data: data, lambda records: (records, np.ones(len(records), np.bool_)))
        case "AVRO":
            try:
                schema = parse_text(known.text, (each.text for each in known.references))
                return _ToJson(reader_of(schema), ManyAvroReader(schema).read)
            except (AvroSchemaError, ValueError, RecursionError) as error:
                return f"schema {number} of the registry: {error}"
        case "PROTOBUF":
            # Loaded where it is needed: few pipelines have such records.
            from tidemark.shared.language.protobuf.many import ManyProtobufReader  # noqa: PLC0415
            from tidemark.shared.language.protobuf.reading import reader_of as message_reader_of  # noqa: PLC0415
            from tidemark.shared.process.protobuf_compiler import compiled  # noqa: PLC0415

            try:
                messages = compiled(known.text, {each.name: each.text for each in known.references})
                return _ToJson(message_reader_of(messages), ManyProtobufReader(messages).read)
            except (protobuf.ProtobufSchemaError, RecursionError) as error:
                return f"schema {number} of the registry: {error}"
