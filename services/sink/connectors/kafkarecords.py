"""Documents as Kafka records: topic, key, headers, value, tombstones, as `$emit` says; and rows that a broker would refuse (protocol, S6).

Key formats are those of Kafka's own serializers: int and long big-endian, strings UTF-8, JSON as relaxed extended JSON.
"""

import re
import struct
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.services.sink.connectors.kafkaruns import Int64s, Run, size_of, sizes_of
from tidemark.services.sink.connectors.registered import NotWritten, RegisteredForms
from tidemark.services.sink.connectors.rendered import rendered
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.expressions.ast import Expr, FieldPath, Literal
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import KafkaEmit, KeyFormat
from tidemark.shared.language.values import is_relaxed, render_json, type_name, written
from tidemark.shared.model.values import INT32_MAX, INT32_MIN, MISSING, Binary, Date, Document, Long, Value
from tidemark.shared.operators.base import ARRIVAL, TS
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.ports.log import NewRecord, RecordColumns
from tidemark.shared.ports.sink import Rejected
from tidemark.shared.runtime.topics import is_internal, refusal

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class _Refused(Exception):
    """Why a row cannot become a record."""


def _run_of(items: list[tuple[int, str, NewRecord]]) -> tuple[Int64s, Run]:
    """Records of one topic, with their rows."""
    rows = np.array([row for row, _, _ in items], dtype=np.int64)
    return rows, Run(items[0][1], RecordColumns.of([record for _, _, record in items]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """The limits of a cluster. They decide which rows are refused, so they stand in the document, in the connection's `config`."""

    record_bytes_max: int = 1_000_000
    headers_max: int = 1_000
    topics_max: int = 10_000
    new_topic_partitions: int = 1
    prefix: str = "tidemark"
    """Of the topics that are the installation's own: records for them are refused."""

    @staticmethod
    def of(settings: KafkaSettings, prefix: str = "tidemark") -> "Takes":
        """By a connection's settings, and the prefix of the installation's own topics."""
        return Takes(
            record_bytes_max=settings.message_bytes_max,
            headers_max=settings.emit_headers_max,
            topics_max=settings.emit_topics_max,
            new_topic_partitions=settings.emit_topic_partitions,
            prefix=prefix,
        )


Made = tuple[list[tuple[Int64s, Run]], list[Rejected]]
"""Runs with the rows that their records come from, and the rows that are none."""


class RecordMaker:
    """Rows to records; rows that a broker would refuse are told instead (S6)."""

    def __init__(self, stage: KafkaEmit, takes: Takes, forms: RegisteredForms | None = None) -> None:
        """`forms`: of a stage with a schema registry; `each` then raises `Unregistered` until it has the numbers of all schemas."""
        self._stage = stage
        self._forms = forms
        self._record_bytes_max = takes.record_bytes_max
        self._headers_max = takes.headers_max
        self._prefix = takes.prefix

    def runs(self, batch: pa.RecordBatch) -> Made:
        """All rows at once where that can be, else row by row."""
        whole = self.whole(batch)
        return ([(np.arange(batch.num_rows), whole)], []) if whole is not None else self.each(batch)

    def whole(self, batch: pa.RecordBatch) -> Run | None:
        """All rows at once: for one topic, without expressions on documents, and none that would be refused; else None."""
        stage = self._stage
        topic = stage.topic.value if isinstance(stage.topic, Literal) else None
        plain = (
            stage.headers is None
            and stage.tombstone_when is None
            and stage.registry is None
            and is_relaxed(stage.output_format, stage.date_format)
        )
        if not plain or not isinstance(topic, str) or not self._may_write(topic) or not batch.num_rows:
            return None
        keys = None
        if stage.key is not None:
            keys = _text_column(stage.key, stage.key_format, batch)
            if keys is None:
                return None
        columns = RecordColumns(rendered(batch), keys, _kafka_times(batch))
        return Run(topic, columns) if int(sizes_of(columns).max()) <= self._record_bytes_max else None

    def _may_write(self, topic: str) -> bool:
        return _may_be_topic(topic) and not is_internal(topic, self._prefix)

    def each(self, batch: pa.RecordBatch) -> Made:
        """Row by row, which may take long: expressions are evaluated."""
        times = _kafka_times(batch)
        arrivals = batch.column(ARRIVAL).to_pylist() if ARRIVAL in batch.schema.names else [None] * batch.num_rows
        made: list[tuple[int, str, NewRecord]] = []
        rejected: list[Rejected] = []
        for row, document in enumerate(documents_of(batch)):
            arrival = arrivals[row]
            environment = Environment(document, now=None if arrival is None else Date(arrival))
            time_ms = None if times is None else times[row].as_py()
            try:
                made.append((row, *self._record(document, environment, time_ms)))
            except (_Refused, NotWritten) as refused:
                rejected.append(Rejected(row, str(refused)))
            except ExpressionError as error:
                rejected.append(Rejected(row, f"{self._stage.path}: {error}"))
        return [_run_of(list(group)) for _, group in groupby(made, lambda item: item[1])], rejected

    def _record(self, document: Document, environment: Environment, time_ms: int | None) -> tuple[str, NewRecord]:
        stage = self._stage
        topic = evaluate(stage.topic, environment)
        if not isinstance(topic, str) or not _may_be_topic(topic):
            found = repr(topic) if isinstance(topic, str) else f"a value of type {type_name(topic)}"
            raise _Refused(f"{stage.path}.topic: expected a name of letters, digits, '.', '_' and '-', found {found}")
        if reason := refusal(topic, self._prefix):
            raise _Refused(f"{stage.path}.topic: {reason}")
        key = None if stage.key is None else self._key(evaluate(stage.key, environment), topic)
        headers = () if stage.headers is None else header_pairs(evaluate(stage.headers, environment), self._headers_max)
        tombstone = stage.tombstone_when is not None and _condition(evaluate(stage.tombstone_when, environment))
        if tombstone and key is None:
            raise _Refused(f"{stage.path}.config.tombstoneWhen: a record without a value needs a key, found none")
        value = None if tombstone else self._value(document, topic)
        record = NewRecord(value, key, headers, time_ms)
        size_bytes = size_of(record)
        if size_bytes > self._record_bytes_max:
            raise _Refused(
                f"{stage.path}: the record for topic {topic} has {size_bytes} bytes, at most {self._record_bytes_max}"
                " are allowed; project fields away, or raise the limits of topic and sink"
            )
        return topic, record

    def _key(self, value: Value, topic: str) -> bytes | None:
        if self._forms is None or self._stage.key_schema is None or value is None or value is MISSING:
            return key_bytes(value, self._stage.key_format)
        return self._forms.key(value, topic)

    def _value(self, document: Document, topic: str) -> bytes:
        text = partial(written, document, self._stage.output_format, self._stage.date_format)
        return text() if self._forms is None else self._forms.value(document, text, topic)


def _may_be_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def _kafka_times(batch: pa.RecordBatch) -> pa.Array | None:
    """Event times, ms: Kafka has none before 1970. Kafka's time of a record is never read as event time (F5)."""
    if TS not in batch.schema.names:
        return None
    times = batch.column(TS)
    numbers = times.to_numpy(zero_copy_only=False)
    return pc.if_else(pc.less(times, 0), None, times) if times.null_count or (numbers < 0).any() else times


def _text_column(expr: Expr, key_format: KeyFormat, batch: pa.RecordBatch) -> pa.BinaryArray | None:
    """Keys that are a declared text, null where there is none; None where they are anything else."""
    if not isinstance(expr, FieldPath) or len(expr.names) != 1 or key_format != "string":
        return None
    at = batch.schema.get_field_index(expr.names[0])
    if at < 0 or not pa.types.is_string(batch.column(at).type):
        return None
    return batch.column(at).cast(pa.binary())


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


def header_pairs(value: Any, headers_max: int) -> tuple[tuple[str, bytes], ...]:
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
    if len(pairs) > headers_max:
        raise _Refused(f"$emit.config.headers: expected at most {headers_max} headers, found {len(pairs)}")
    return tuple((name, _header_value(item)) for name, item in pairs)


def _header_value(value: Any) -> bytes:
    match value:
        case str():
            return value.encode()
        case Binary():
            return bytes(value)
        case _:
            return render_json(value)
