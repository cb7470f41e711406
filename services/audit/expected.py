"""An audit's expectation at a target: the rows that the sink would not have taken (S6), and the documents as they look there.

A topic's values may be canonical JSON, records of another form (forms.py), or none (tombstones). A Parquet file has lost types:
values that agreed on none are JSON text there, decimals and ids are text, missing and null are one. Both sides are brought to one form, in
which a value and its text are the same; bytes that were changed afterwards show in digests.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tidemark.services.audit.forms import TargetForms, encoding_of
from tidemark.services.audit.recompute import Accept, Texts
from tidemark.services.sink.connectors.filerows import Encoding, RowBuffer
from tidemark.services.sink.connectors.kafkacells import key_bytes
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.kafkatopics import TopicLimits
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.csv_cells import text_of
from tidemark.shared.language.expressions.ast import Literal, Meta, walk
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import Connection, FileEmit, KafkaEmit
from tidemark.shared.language.values import ExtendedJsonError, parse_json, to_json, written
from tidemark.shared.model.values import MISSING, Binary, Date, Document, Long, ObjectId
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import WOULD_REFUSE
from tidemark.shared.operators.rows import environments
from tidemark.shared.ports.log import Log
from tidemark.shared.ports.sink import Rejected
from tidemark.shared.runtime.topics import is_internal

_TAKES: Final = {
    "message_bytes_max": "record_bytes_max",
    "emit_headers_max": "headers_max",
    "emit_topics_max": "topics_max",
    "emit_topic_partitions": "new_topic_partitions",
}
_EXACT: Final = 2**53
"""Whole doubles up to this are as good as whole numbers."""

Line = str
"""A document as canonical JSON text, for comparison."""


def line_of(tree: object) -> Line:
    """Canonical text of a JSON tree; of a letter that a sink made, or about no record, without its time: no record tells it."""
    if (
        isinstance(tree, dict)
        and isinstance(tree.get("errInfo"), dict)
        and (_is_of_a_sink(tree) or _is_of_no_record(tree))
    ):
        tree = {name: value for name, value in tree.items() if name != "dlqTime"}
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)


def _is_of_a_sink(letter: dict[str, Any]) -> bool:
    return bool(letter["errInfo"].get("code") == WOULD_REFUSE)


def _is_of_no_record(letter: dict[str, Any]) -> bool:
    """Of a window's row, say: it has no place in a source."""
    meta = letter.get("_stream_meta")
    return isinstance(meta, dict) and meta.get("source") == {}


def text_of_record(key: bytes | None, value: bytes | None, encoding: str) -> str:
    """A record of a topic as it was written; without a value its key tells it. ValueError if the value is no text."""
    return line_of({"tombstone": None if key is None else key.hex()}) if value is None else value.decode(encoding)


def canonical(text: str) -> Line:
    """A document's text as one that can be compared with any other text of it. ValueError if it is no JSON."""
    return line_of(json.loads(text))


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """What one sink vertex accepts, and how it writes that."""

    accept: Accept
    text: Callable[[Document], str]
    """A document as it is written there, or its line."""
    texts: Texts | None = None
    """As `text`, of rows whose metadata decide it, too; None where documents do so alone."""
    forms: TargetForms | None = None
    """How its target's texts are read where they are no JSON."""

    async def ask(self, topic: str) -> bool:
        """Whether there was more to know for records of a topic; now it is known. As `TargetForms.ask`."""
        return self.forms is not None and await self.forms.ask(topic)


def _line_of_document(document: Document) -> Line:
    return canonical(json.dumps(to_json(document)))


PLAIN: Final = ExpectedOutput(lambda _: (), _line_of_document)
"""Where nothing is special."""


async def expected_at_topic(
    stage: KafkaEmit, connection: Connection, log: Log, prefix: str, source_topics: Topics, forms: TargetForms | None
) -> ExpectedOutput:
    """A topic's rules are those that it has now. source_topics: those of the rows. LogError."""
    takes = replace(_takes_of(connection.settings.get("config", {})), prefix=prefix)
    form, encoding = None if forms is None else forms.forms, encoding_of(stage)
    maker, topics = RecordMaker(stage, takes, form, source_topics), TopicLimits(log, takes)
    known = {name for name in await log.list_topics() if not is_internal(name, prefix)}
    await topics.look_up(known & {str(stage.topic.value)} if isinstance(stage.topic, Literal) else known)

    def accept(batch: pa.RecordBatch) -> Sequence[Rejected]:
        made, rejected = maker.runs(batch)
        for rows, run in made:
            rejected += [Rejected(rows[n], reason) for n, reason in topics.refused(run).items()]
        return rejected

    def text_of(environment: Environment) -> str:
        document = environment.root
        topic = "" if stage.registry is None else str(evaluate(stage.topic, environment))  # for its schemas' numbers
        if stage.tombstone_when is not None and evaluate(stage.tombstone_when, environment) is True:
            key = None if stage.key is None else evaluate(stage.key, environment)
            named = form.key(key, topic) if form is not None and form.has_keys else key_bytes(key, stage.key_format)
            return text_of_record(named, None, encoding)
        json_of = partial(written, document, stage.output_format, stage.date_format)
        value = json_of() if form is None else form.value(document, json_of, topic)
        return text_of_record(None, value, encoding)

    def texts(batch: pa.RecordBatch, left_out: Collection[int]) -> list[str]:
        rows = environments(batch, documents_of(batch), source_topics)
        return [text_of(row) for number, row in enumerate(rows) if number not in left_out]

    by_metadata = texts if _is_told_by_metadata(stage) else None
    return ExpectedOutput(accept, lambda document: text_of(Environment(document)), by_metadata, forms)


def _is_told_by_metadata(stage: KafkaEmit) -> bool:
    """Whether a record cannot be made again of its document alone."""
    exprs = [stage.tombstone_when, None if stage.tombstone_when is None else stage.key]
    exprs.append(None if stage.registry is None else stage.topic)
    return any(isinstance(node, Meta) for expr in exprs if expr is not None for node in walk(expr))


def _takes_of(config: Mapping[str, Any]) -> Takes:
    """The limits in a connection's settings. Settings for connecting are left out: they may need variables that this environment lacks."""
    said = {ours: config[name] for name, ours in _TAKES.items() if isinstance(config.get(name), int)}
    return replace(Takes.of(KafkaSettings(bootstrap="unused:0")), **said)


def expected_in_files(stage: FileEmit, source_topics: Topics) -> ExpectedOutput:
    """By the sink's own rows."""
    encoding = Encoding.of(stage, source_topics=source_topics)
    return ExpectedOutput(
        lambda batch: RowBuffer(encoding).add(batch),
        table_line(stage.partition_by) if stage.format in ("parquet", "iceberg") else partial(_line_as_written, stage),
    )


def _line_as_written(stage: FileEmit, document: Document) -> Line:
    return canonical(written(document, stage.output_format, stage.date_format).decode())


def table_line(partition_by: Sequence[str]) -> Callable[[Document], Line]:
    """A document as it is in a table, in every type that its values' columns have there; the columns that divide the table are text."""

    def line(document: Document) -> Line:
        texts = {
            field: text_of(value) for field in partition_by if (value := document.get(field)) not in (None, MISSING)
        }
        others = {name: value for name, value in document.items() if name not in partition_by}
        return line_of({**_levelled(others), **texts})

    return line


def _levelled(value: object) -> Any:
    match value:
        case Date():
            return {"$date": int(value)}
        case bool() | None:
            return value
        case Long() | int():
            return int(value)
        case float():
            return int(value) if value.is_integer() and abs(value) <= _EXACT else repr(value)
        case Decimal() | ObjectId():
            return _levelled(str(value))
        case Binary():
            return {"$binary": bytes(value).hex()}
        case str():
            return _of_text(value)
        case dict():
            return {name: _levelled(inner) for name, inner in value.items() if inner is not None}
        case list():
            return [_levelled(inner) for inner in value]
        case _:
            return to_json(value)


def _of_text(text: str) -> Any:
    """A text that is JSON stands for its value."""
    try:
        parsed = parse_json(text.encode())
    except ExtendedJsonError:
        return text
    return parsed if isinstance(parsed, str) and parsed == text else _levelled(parsed)
