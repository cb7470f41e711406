"""Documents as Kafka records: topic, key, headers, value, tombstones, as `$emit` says; and what a broker would refuse (protocol, S6).

Key formats are those of Kafka's own serializers: int and long big-endian, strings UTF-8, JSON as relaxed extended JSON.
"""

import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct

from shared.language.expressions.environment import Environment
from shared.language.expressions.errors import ExpressionError
from shared.language.expressions.interpreter import evaluate
from shared.language.stages.sinks import KafkaEmit
from shared.language.stages.source import KeyFormat
from shared.language.values import render_json, type_name
from shared.model.values import INT32_MAX, INT32_MIN, MISSING, Binary, Date, Document, Long
from shared.operators.base import ARRIVAL, TS
from shared.operators.batches import documents_of
from shared.ports.log import NewRecord
from shared.ports.sink import Rejected, TargetRefused

OVERHEAD_BYTES: Final = 128
"""A record's own fields, and the batch around it when it is alone."""
HEADERS_MAX: Final = 1000
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class StagedRecord(Struct, frozen=True, array_like=True):
    """A record as it is staged."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes], ...] = ()

    @property
    def size_bytes(self) -> int:
        """What the broker counts, about."""
        inner = sum(len(name.encode()) + len(value) + 8 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + inner + OVERHEAD_BYTES

    def record(self) -> NewRecord:
        """As the log takes it."""
        return NewRecord(self.value, self.key, self.headers, self.timestamp_ms)


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(list[StagedRecord])


def encode_records(records: Sequence[StagedRecord]) -> bytes:
    """A part's bytes."""
    return _ENCODER.encode(records)


def decode_records(data: bytes) -> list[StagedRecord]:
    """The records of a part. TargetRefused if the bytes are none."""
    try:
        return _DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise TargetRefused(
            f"staged records do not decode: {error}; was the part written by a later version?"
        ) from error


class _Refused(Exception):
    """Why a row cannot become a record."""


class RecordMaker:
    """Rows to records; rows that a broker would refuse are told instead (S6)."""

    def __init__(self, stage: KafkaEmit, record_bytes_max: int) -> None:
        self._stage = stage
        self._record_bytes_max = record_bytes_max

    def records(self, batch: pa.RecordBatch) -> tuple[list[tuple[int, StagedRecord]], list[Rejected]]:
        """Records with the rows that they come from, and the rows that are none."""
        times = _column(batch, TS)
        arrivals = _column(batch, ARRIVAL)
        made: list[tuple[int, StagedRecord]] = []
        rejected: list[Rejected] = []
        for row, document in enumerate(documents_of(batch)):
            arrival = arrivals[row]
            environment = Environment(document, now=None if arrival is None else Date(arrival))
            try:
                made.append((row, self._record(document, environment, times[row])))
            except _Refused as refused:
                rejected.append(Rejected(row, str(refused)))
            except ExpressionError as error:
                rejected.append(Rejected(row, f"{self._stage.path}: {error}"))
        return made, rejected

    def _record(self, document: Document, environment: Environment, time_ms: int | None) -> StagedRecord:
        stage = self._stage
        topic = evaluate(stage.topic, environment)
        if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            found = repr(topic) if isinstance(topic, str) else f"a value of type {type_name(topic)}"
            raise _Refused(f"{stage.path}.topic: expected a name of letters, digits, '.', '_' and '-', found {found}")
        key = None if stage.key is None else key_bytes(evaluate(stage.key, environment), stage.key_format)
        headers = () if stage.headers is None else header_pairs(evaluate(stage.headers, environment))
        tombstone = stage.tombstone_when is not None and _condition(evaluate(stage.tombstone_when, environment))
        value = None if tombstone else render_json(document, canonical=stage.output_format == "canonicalJson")
        # Kafka has no times before 1970; what it says of a record is never read as event time (F5).
        record = StagedRecord(topic, key, value, time_ms if time_ms is not None and time_ms >= 0 else None, headers)
        if record.size_bytes > self._record_bytes_max:
            raise _Refused(
                f"{stage.path}: the record for topic {topic} has {record.size_bytes} bytes, at most {self._record_bytes_max}"
                " are allowed; project fields away, or raise the limits of topic and sink"
            )
        return record


def _column(batch: pa.RecordBatch, name: str) -> list[int | None]:
    if name not in batch.schema.names:
        return [None] * batch.num_rows
    values: list[int | None] = batch.column(name).to_pylist()
    return values


def _condition(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _Refused(f"$emit.config.tombstoneWhen: expected true or false, found a value of type {type_name(value)}")


def key_bytes(value: Any, key_format: KeyFormat) -> bytes | None:
    """A key's bytes in a format; None for null and missing. `_Refused` if the value's type is not the format's."""
    if value is None or value is MISSING:
        return None
    kind = type(value)
    match key_format:
        case "json":
            return render_json(value)
        case "string" if kind is str:
            return str(value).encode()
        case "binData" if kind is Binary:
            return bytes(value)
        case "int" if kind in (int, Long) and INT32_MIN <= value <= INT32_MAX:
            return struct.pack(">i", value)
        case "long" if kind in (int, Long):
            return struct.pack(">q", value)
        case "double" if kind is float:
            return struct.pack(">d", value)
        case _:
            raise _Refused(f"$emit.config.key: keyFormat is {key_format}, found a value of type {type_name(value)}")


def header_pairs(value: Any) -> tuple[tuple[str, bytes], ...]:
    """Headers of a document {name: value}, or an array of {k, v}. Strings as UTF-8, binary as it is, others as relaxed JSON."""
    if value is None or value is MISSING:
        return ()
    match value:
        case dict():
            pairs = list(value.items())
        case list() if all(
            isinstance(item, dict) and set(item) == {"k", "v"} and isinstance(item["k"], str) for item in value
        ):
            pairs = [(item["k"], item["v"]) for item in value]
        case _:
            raise _Refused(
                f"$emit.config.headers: expected a document, or an array of {{k, v}}, found type {type_name(value)}"
            )
    if len(pairs) > HEADERS_MAX:
        raise _Refused(f"$emit.config.headers: expected at most {HEADERS_MAX} headers, found {len(pairs)}")
    return tuple((name, _header_value(item)) for name, item in pairs)


def _header_value(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case Binary():
            return bytes(value)
        case _:
            return render_json(value)
