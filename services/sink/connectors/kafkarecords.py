"""Documents as Kafka records: topic, key, headers, value, tombstones, as `$emit` says; and rows that a broker would refuse (S6)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.sink.connectors.kafkacells import (
    Bools,
    RecordRefused,
    conditions_of,
    header_cells,
    header_pairs,
    headers_of,
    keys_of,
)
from tidemark.services.sink.connectors.kafkaruns import Int64s, TopicRun, sizes_of
from tidemark.services.sink.connectors.registered import RegisteredForms
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.expressions.ast import Expr, FieldPath, Literal, ObjectExpr
from tidemark.shared.language.kernels.base import filled
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.language.values import type_name, written
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import documents_of, values_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.frame import Cells, frame_of
from tidemark.shared.operators.rendered import rendered
from tidemark.shared.ports.log import HEADERS, RecordColumns
from tidemark.shared.ports.sink import Rejected
from tidemark.shared.runtime.topics import may_be, refusal


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


Made = tuple[list[tuple[Int64s, TopicRun]], list[Rejected]]
"""Runs with the rows that their records come from, and the rows that are none."""


class RecordMaker:
    """Rows to records; rows that a broker would refuse are told instead (S6). Expressions become columns, a batch at a time."""

    def __init__(
        self,
        stage: KafkaEmit,
        takes: Takes | None = None,
        forms: RegisteredForms | FormattedForms | None = None,
        source_topics: Topics = None,
    ) -> None:
        """`forms`: of a stage with a schema registry or a format; `runs` raises `Unregistered` until it has been asked for the topic.

        `source_topics`: those that the rows came from, for `$meta`.
        """
        self.stage = stage
        self.takes = takes or Takes()
        self.forms = forms
        self._source_topics = source_topics
        self._exprs = [e for e in (stage.topic, stage.key, stage.headers, stage.tombstone_when) if e is not None]

    @property
    def is_light(self) -> bool:
        """Whether no row may take long: nothing is evaluated but constants and fields, and nothing is written document by document."""
        return self.forms is None and all(isinstance(expr, Literal | FieldPath) for expr in self._exprs)

    def runs(self, batch: pa.RecordBatch) -> Made:
        """Runs of records with the rows that they come from, one a topic, and the rows that are none."""
        if not batch.num_rows:
            return [], []
        rows = _Rows(batch, self._exprs, self._source_topics)
        topics, places = self._topics(rows)
        keys, headers, without_value = self._keys(rows, topics, places), self._headers(rows), self._tombstones(rows)
        if without_value is not None:
            keyless = without_value if keys is None else without_value & filled(keys.is_null())
            reason = "$emit.config.tombstoneWhen: a record without a value needs a key, found none"
            rows.refuse(dict.fromkeys(np.flatnonzero(keyless).tolist(), reason))
        values = self._values(rows, topics, places, without_value)
        columns = RecordColumns(values, keys, _kafka_times(batch), headers)
        self._within_bounds(rows, topics, places, columns)
        return _by_topic(rows, topics, places, columns), rows.rejected()

    def _topics(self, rows: "_Rows") -> tuple[list[str], Int64s]:
        """The different topics, and which of them is each row's, shape (n,); -1 for a row that is refused."""
        stage = self.stage
        if isinstance(stage.topic, Literal):
            value = stage.topic.value
            if isinstance(value, str):
                return self._permitted(rows, [value], np.zeros(rows.count, np.int64))
        found = rows.computed(stage.topic, stage.path)
        if not pa.types.is_string(found.array.type):
            names, places = _numbered(found)
        else:
            coded = found.array.dictionary_encode()
            names, places = coded.dictionary.to_pylist(), coded.indices.fill_null(-1).to_numpy().astype(np.int64)
        odd = [row for row in np.flatnonzero(places < 0).tolist() if row not in found.errors]
        for row, value in zip(odd, rows.cells(found, odd), strict=True):
            rows.refuse({row: self._no_topic(value)})
        return self._permitted(rows, names, places)

    def _permitted(self, rows: "_Rows", names: list[str], places: Int64s) -> tuple[list[str], Int64s]:
        for place, name in enumerate(names):
            reason = None if may_be(name) else self._no_topic(name)
            if reason is None and (internal := refusal(name, self.takes.prefix)):
                reason = f"{self.stage.path}.topic: {internal}"
            if reason is not None:
                rows.refuse(dict.fromkeys(np.flatnonzero(places == place).tolist(), reason))
        return names, places

    def _no_topic(self, value: Value) -> str:
        found = repr(value) if isinstance(value, str) else f"a value of type {type_name(value)}"
        return f"{self.stage.path}.topic: expected a name of letters, digits, '.', '_' and '-', found {found}"

    def _keys(self, rows: "_Rows", topics: list[str], places: Int64s) -> pa.BinaryArray | None:
        stage = self.stage
        if stage.key is None:
            return None
        found = rows.computed(stage.key, stage.path)
        if self.forms is None or not self.forms.has_keys:
            keys, refused = keys_of(found, stage.key_format)
            rows.refuse(refused)
            return keys
        written: list[bytes | None] = [None] * rows.count
        kept = rows.kept()
        for row, value in zip(kept, rows.cells(found, kept), strict=True):
            if value is not None and value is not MISSING:
                written[row] = rows.made(row, partial(self.forms.key, value, topics[places[row]]))
        return pa.array(written, pa.binary())

    def _headers(self, rows: "_Rows") -> pa.ListArray | None:
        expr, path = self.stage.headers, self.stage.path
        if expr is None:
            return None
        if isinstance(expr, ObjectExpr) and len(expr.fields) <= self.takes.headers_max:
            contents = [header_cells(rows.computed(value, path)) for _, value in expr.fields]
            return headers_of([name for name, _ in expr.fields], contents) if contents else None
        if isinstance(expr, Literal):
            pairs = [self._pairs(rows, range(rows.count), expr.value)] * rows.count
        else:
            found, kept = rows.computed(expr, path), rows.kept()
            pairs = [[] for _ in range(rows.count)]
            for row, value in zip(kept, rows.cells(found, kept), strict=True):
                pairs[row] = self._pairs(rows, [row], value)
        return pa.array([[{"name": n, "value": v} for n, v in each] for each in pairs], HEADERS) if any(pairs) else None

    def _pairs(self, rows: "_Rows", places: Iterable[int], value: Value) -> list[tuple[str, bytes]]:
        """The headers that a value says; none, and the rows at these places are refused, where it says none or too many."""
        try:
            found, reason = header_pairs(value), ""
        except RecordRefused as error:
            found, reason = [], str(error)
        if len(found) > self.takes.headers_max:
            reason = f"$emit.config.headers: expected at most {self.takes.headers_max} headers, found {len(found)}"
        if reason:
            rows.refuse(dict.fromkeys(places, reason))
        return [] if reason else found

    def _tombstones(self, rows: "_Rows") -> Bools | None:
        """Which rows have no value, shape (n,); None for none."""
        if self.stage.tombstone_when is None:
            return None
        held, refused = conditions_of(rows.computed(self.stage.tombstone_when, self.stage.path))
        rows.refuse(refused)
        return held

    def _values(self, rows: "_Rows", topics: list[str], places: Int64s, without: Bools | None) -> pa.BinaryArray:
        stage = self.stage
        if self.forms is None:
            whole = rendered(rows.batch, stage.output_format, stage.date_format)
            return whole if without is None else pc.if_else(pa.array(without), None, whole)
        values: list[bytes | None] = [None] * rows.count
        kept = [row for row in rows.kept() if without is None or not without[row]]
        many = self._many(rows.batch.take(pa.array(kept, pa.int64())), topics, places[kept]) if kept else None
        left = kept if many is None else [kept[n] for n in np.flatnonzero(many.is_null()).tolist()]
        for row, document in zip(left, documents_of(rows.batch.take(pa.array(left, pa.int64()))), strict=True):
            text = partial(written, document, stage.output_format, stage.date_format)
            values[row] = rows.made(row, partial(self.forms.value, document, text, topics[places[row]]))
        others = pa.array(values, pa.binary())
        if many is None:
            return others
        there = many.is_valid().to_numpy(zero_copy_only=False)
        return with_rows(others, np.array(kept)[there], many.drop_null())

    def _many(self, batch: pa.RecordBatch, topics: list[str], places: Int64s) -> pa.BinaryArray | None:
        """The values of many rows at once, null for those that are made one by one; None where all are."""
        assert self.forms is not None, "the caller looks"
        texts = partial(rendered, batch, self.stage.output_format, self.stage.date_format)
        return self.forms.values(partial(encoded, batch), texts, topics, places)

    def _within_bounds(self, rows: "_Rows", topics: list[str], places: Int64s, columns: RecordColumns) -> None:
        sizes = sizes_of(columns)
        for row in np.flatnonzero(sizes > self.takes.record_bytes_max).tolist():
            if row not in rows.refused:
                reason = (
                    f"{self.stage.path}: the record for topic {topics[places[row]]} has {sizes[row]} bytes, at most"
                    f" {self.takes.record_bytes_max} are allowed; project fields away, or raise the limits of topic and sink"
                )
                rows.refuse({row: reason})


class _Rows:
    """The rows of a batch while they become records: their expressions as columns, and those that are refused, by the first reason."""

    def __init__(self, batch: pa.RecordBatch, exprs: Sequence[Expr], source_topics: Topics) -> None:
        self.batch = batch
        self.count = batch.num_rows
        self.refused: dict[int, str] = {}
        self._frame = frame_of(exprs, batch, source_topics)

    def computed(self, expr: Expr, path: str) -> Cells:
        """An expression's values; a row on which it fails is refused."""
        found = self._frame.computed(expr)
        self.refuse({row: f"{path}: {error}" for row, error in found.errors.items()})
        return found

    def cells(self, found: Cells, rows: Sequence[int]) -> list[Value]:
        """The values of some rows."""
        return values_of(found.array.take(pa.array(rows, pa.int64())), found.field)

    def refuse(self, reasons: Mapping[int, str]) -> None:
        """Rows that become no records."""
        for row, reason in reasons.items():
            self.refused.setdefault(row, reason)

    def kept(self) -> list[int]:
        """The rows that are not refused so far."""
        return [row for row in range(self.count) if row not in self.refused]

    def made(self, row: int, how: Callable[[], bytes]) -> bytes | None:
        """The result of `how`; None, and the row is refused, where a schema does not have it."""
        try:
            return how()
        except RecordRefused as error:
            self.refuse({row: str(error)})
            return None

    def rejected(self) -> list[Rejected]:
        """The refused rows, in order."""
        return [Rejected(row, reason) for row, reason in sorted(self.refused.items())]


def _numbered(found: Cells) -> tuple[list[str], Int64s]:
    """As of `dictionary_encode`, of values that have no one type: -1 for what is no text."""
    names: dict[str, int] = {}
    values = found.values()
    places = [names.setdefault(value, len(names)) if isinstance(value, str) else -1 for value in values]
    return list(names), np.array(places, np.int64)


def _by_topic(rows: _Rows, topics: list[str], places: Int64s, columns: RecordColumns) -> list[tuple[Int64s, TopicRun]]:
    """The records of each topic, in order."""
    if len(topics) == 1 and not rows.refused:
        return [(np.arange(rows.count), TopicRun(topics[0], columns))]
    kept = np.array(rows.kept(), np.int64)
    order = kept[np.argsort(places[kept], kind="stable")]
    bounds = np.searchsorted(places[order], np.arange(len(topics) + 1))
    parts = [(topic, order[bounds[n] : bounds[n + 1]]) for n, topic in enumerate(topics)]
    return [(own, TopicRun(topic, columns.take(own))) for topic, own in parts if len(own)]


def _kafka_times(batch: pa.RecordBatch) -> pa.Array | None:
    """Event times, ms: Kafka has none before 1970. Kafka's time of a record is never read as event time (F5)."""
    if TS not in batch.schema.names:
        return None
    times = batch.column(TS)
    numbers = times.to_numpy(zero_copy_only=False)
    return pc.if_else(pc.less(times, 0), None, times) if times.null_count or (numbers < 0).any() else times
