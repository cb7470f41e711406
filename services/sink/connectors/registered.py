"""Documents and keys as records of a schema registry: the number of the schema, then Avro, Protobuf, or JSON.

The document holds the schema; the registry's number for it stays the same, so the bytes are a function of document and row. They are staged
with the number in them: a release asks no registry. Numbers are asked for when the sink opens, or when a topic first comes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.services.sink.connectors.kafkacells import RecordRefused
from tidemark.shared.language.avro import AvroError, AvroSchemaError, parse_text, writer_of
from tidemark.shared.language.avro.many_writing import ManyAvroWriter
from tidemark.shared.language.forms import RegisteredSchema
from tidemark.shared.language.protobuf import ProtobufError, ProtobufSchemaError
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import Document, Value
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.registry import (
    RegistryDenied,
    RegistryUnavailable,
    SchemaRefused,
    SchemaRegistry,
    SchemaUnknown,
    header_of,
)
from tidemark.shared.ports.sink import TargetDenied, TargetRefused, TargetUnavailable
from tidemark.shared.process.registered import SCHEMA_TYPES

Part = Literal["key", "value"]
_SUBJECTS_MAX: Final = 10_000
"""Subjects with their schemas' numbers that are kept: as many as one sink may have topics; beyond it the oldest is asked for again."""


_Many: TypeAlias = Callable[[pa.BinaryArray], tuple[pa.BinaryArray, npt.NDArray[np.bool_]]]


@dataclass(frozen=True, slots=True)
class _FromValues:
    """Of values, to records behind the schema's number."""

    one: Callable[[Value], bytes]
    many: _Many | None = None
    """Many encoded values at once, and which of them are written; None where each is written for itself."""


class Unregistered(Exception):
    """The numbers of a topic's schemas are not known yet: `ask` for them, and come again."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class RegisteredForms:
    """Makes the records of one sink, by the schemas of a registry."""

    def __init__(
        self, registry: SchemaRegistry, stage: KafkaEmit, executor: Executor, *, registers: bool = True
    ) -> None:
        """registers: what the document says; else nothing is, and what should have been has to be there."""
        self._registry = registry
        self._registers = registers
        self._executor = executor
        self._path = stage.path
        found: dict[Part, RegisteredSchema | None] = {"key": stage.key_schema, "value": stage.value_schema}
        self._schemas = {part: schema for part, schema in found.items() if schema is not None}
        self._write: dict[Part, _FromValues] = {}
        self._headers: dict[str, bytes] = {}
        """By subject."""
        self._unknown: dict[str, str] = {}
        """Why subjects have no number, as far as the batch in hand has asked."""

    @property
    def has_keys(self) -> bool:
        """Whether `key` makes the keys."""
        return "key" in self._schemas

    async def prepare(self, topic: str) -> None:
        """Ask for the numbers of a topic's schemas. An unknown one, which is not to be registered, may come later."""
        await self.ask(topic)
        self.begin()

    def begin(self) -> None:
        """Another batch: ask again for schemas that were unknown."""
        self._unknown.clear()

    async def ask(self, topic: str) -> None:
        """Have the writers, and the numbers of a topic's schemas. TargetUnavailable, TargetDenied, TargetRefused."""
        with _as_of_target():
            for part, schema in self._schemas.items():
                place = f"{self._path}.schemaRegistry.{part}Schema"
                if part not in self._write:
                    self._write[part] = await self._writer(schema, place)
                await self._number(schema.subject(topic, part), schema, place)

    async def _writer(self, schema: RegisteredSchema, place: str) -> _FromValues:
        try:
            known = await self._registry.referenced(schema.references) if schema.references else ()
            imports = {each.name: each.text for each in known}
            return await self._executor.blocking(_writer_of, schema, imports)
        except OSError as error:
            raise TargetUnavailable(f"{self._path}: the schema cannot be compiled now: {error}") from error
        except (ProtobufSchemaError, AvroSchemaError, SchemaUnknown, RecursionError) as error:
            raise TargetRefused(f"{place}: {error}") from error

    async def _number(self, subject: str, schema: RegisteredSchema, place: str) -> None:
        if subject in self._headers or subject in self._unknown:
            return
        register, kind = schema.auto_register_schemas and self._registers, SCHEMA_TYPES[schema.type]
        try:
            number = await self._registry.number(subject, kind, schema.text, schema.references, register=register)
        except SchemaUnknown as error:
            if schema.auto_register_schemas:
                raise TargetRefused(f"{place}: {error}") from error
            self._unknown[subject] = str(error)
        except SchemaRefused as error:
            raise TargetRefused(f"{place}: {error}") from error
        else:
            if len(self._headers) >= _SUBJECTS_MAX:
                del self._headers[next(iter(self._headers))]
            self._headers[subject] = header_of(number)

    def key(self, value: Value, topic: str) -> bytes:
        """A key's record. Unregistered, RecordRefused."""
        return self._record("key", value, topic)

    def value(self, document: Document, text: Callable[[], bytes], topic: str) -> bytes:
        """A document's record; `text` gives its JSON. Unregistered, RecordRefused."""
        schema = self._schemas.get("value")
        if schema is None:
            return text()
        return self._record("value", document, topic, text if schema.type == "json" else None)

    def values(
        self,
        documents: Callable[[], pa.BinaryArray],
        texts: Callable[[], pa.BinaryArray],
        topics: Sequence[str],
        places: npt.NDArray[np.int64],
    ) -> pa.BinaryArray | None:
        """The records of many documents, null for those that `value` has to make; None where it has to make all.

        documents, texts: they give them encoded, and as JSON, shape (n,). places: the topic of each, shape (n,).
        """
        schema = self._schemas.get("value")
        if schema is None:
            return texts()
        writer = self._write.get("value")
        if writer is None or (writer.many is None and schema.type != "json"):
            return None
        heads = [self._headers.get(schema.subject(topic, "value")) for topic in topics]
        if writer.many is None:
            records = texts()
        else:
            records, sure = writer.many(documents())
            if not sure.all():
                records = pc.if_else(pa.array(sure), records, None)
        return pc.binary_join_element_wise(pa.array(heads, pa.binary()).take(pa.array(places)), records, b"")

    def _record(self, part: Part, value: Value, topic: str, text: Callable[[], bytes] | None = None) -> bytes:
        subject = self._schemas[part].subject(topic, part)
        header = self._headers.get(subject)
        if header is None and subject in self._unknown:
            raise RecordRefused(
                f"{self._path}.schemaRegistry: {self._unknown[subject]}; register it, or set autoRegisterSchemas"
            )
        if header is None:
            raise Unregistered(topic)
        try:
            return header + (self._write[part].one(value) if text is None else text())
        except (AvroError, ProtobufError, UnicodeEncodeError) as error:
            raise RecordRefused(f"{self._path}.schemaRegistry.{part}Schema: {error}") from error


@contextmanager
def _as_of_target() -> Iterator[None]:
    try:
        yield
    except RegistryUnavailable as error:
        raise TargetUnavailable(str(error)) from error
    except RegistryDenied as error:
        raise TargetDenied(str(error)) from error


def _writer_of(schema: RegisteredSchema, imports: Mapping[str, str]) -> _FromValues:
    """From a value to its record behind the schema's number. AvroSchemaError, ProtobufSchemaError."""
    match schema.type:
        case "avro":
            known = parse_text(schema.text, imports.values())
            return _FromValues(writer_of(known), ManyAvroWriter(known).write)
        case "protobuf":
            # Loaded where it is needed: few pipelines write such records.
            from tidemark.shared.language.protobuf.many_writing import ManyProtobufWriter  # noqa: PLC0415
            from tidemark.shared.language.protobuf.writing import writer_of as message_writer_of  # noqa: PLC0415
            from tidemark.shared.process.protobuf_compiler import compiled  # noqa: PLC0415

            messages = compiled(schema.text, imports)
            return _FromValues(
                message_writer_of(messages, schema.name), ManyProtobufWriter(messages, schema.name).write
            )
        case "json":
            return _FromValues(render_json)
