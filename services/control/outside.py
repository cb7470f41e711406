"""Questions to the systems outside that documents and connections name: are topics there, schemas fit, dead letters, a sign of life."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import sqlalchemy as sa

from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.sql import with_driver
from tidemark.shared.language.documents import CollectionDlq, FileDlq, InvalidDocument, KafkaDlq, Processor, all_stages
from tidemark.shared.language.problems import DocumentError, join
from tidemark.shared.language.redaction import HIDDEN, redacted_line
from tidemark.shared.language.stages import Connection, KafkaEmit, KafkaSource
from tidemark.shared.language.values import ExtendedJsonError, parse_json, to_json
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.log import LogError
from tidemark.shared.ports.registry import RegistryDenied, RegistryUnavailable, SchemaUnknown
from tidemark.shared.process.connections import Connections, filesystem_at
from tidemark.shared.process.registered import refused_schemas
from tidemark.shared.process.web import CONFLICT, NOT_FOUND, Problem
from tidemark.shared.runtime.reading import newest

ANSWER_MS_MAX: Final = 3_000
"""For a cluster to answer whether topics are there."""
LETTERS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of dead letters that one answer is made from: a document may let each be large, and anyone may ask at the same time."""


async def refused_outside(processor: Processor, connections: Connections) -> list[DocumentError]:
    """Reasons why a document can never run: missing topics, and schemas that a registry refuses."""
    return [*await missing_topics(processor, connections), *await refused_by_registries(processor, connections)]


async def refused_by_registries(processor: Processor, connections: Connections) -> list[DocumentError]:
    """Schemas of `$emit` that their registry would not take. A registry that is away may come back: it is no error."""
    errors: list[DocumentError] = []
    for stage in all_stages(processor.pipeline):
        if not isinstance(stage, KafkaEmit) or stage.registry is None or stage.registry not in processor.connections:
            continue
        try:
            registry = connections.registry(connections.get(processor, stage.registry))
            found = await refused_schemas(stage, registry)
        except (WrongSetup, RegistryDenied) as error:
            errors.append(DocumentError(stage.path, redacted_line(str(error))))
        except RegistryUnavailable:
            continue
        else:
            errors += [DocumentError(stage.path, redacted_line(why)) for why in found]
    return errors


async def missing_topics(processor: Processor, connections: Connections) -> list[DocumentError]:
    """Sources whose topics are not there, or that a document may not reach. A cluster that is away may come back: it is no error."""
    errors: list[DocumentError] = []
    for stage in all_stages(processor.pipeline):
        if not isinstance(stage, KafkaSource) or stage.connection_name not in processor.connections:
            continue
        try:
            connection = connections.get(processor, stage.connection_name)
            found = await connections.log(connection).describe_topics(stage.topics)
        except WrongSetup as error:
            errors.append(DocumentError(stage.path, redacted_line(str(error))))
        except LogError:
            continue
        else:
            cluster = connections.kafka_settings(connection).bootstrap
            errors += [
                DocumentError(join(stage.path, "topic"), f"the topic {topic} is not in the cluster {cluster}")
                for topic in stage.topics
                if topic not in found
            ]
    return errors


class Briefly(Connections):
    """Connections for a single question, which does not wait for a cluster that is away."""

    def kafka_settings(self, connection: Connection) -> KafkaSettings:
        """See `Connections`."""
        return replace(super().kafka_settings(connection), request_timeout_ms=ANSWER_MS_MAX)


def _known(connection: Connection | None) -> None:
    """Problem for a connection whose secrets are its own: the registry tells nobody of them."""
    if connection is not None and HIDDEN in str(connection.settings):
        raise Problem(
            CONFLICT,
            f"connections.{connection.name}",
            "secrets by name (${NAME}), which this service may have, too",
            "secrets in the connection itself, which the coordinator alone knows",
        )


async def letters_of(processor: Processor, connections: Connections, limit: int) -> list[Document]:
    """The newest dead letters of the processor's queue, oldest first. Problem."""
    match processor.options.dlq:
        case KafkaDlq(name, topic):
            _known(processor.connections.get(name))
            with _saying(f"connections.{name}"):
                log = connections.log(connections.get(processor, name))
                records = await newest(log, topic, limit, bytes_max=LETTERS_BYTES_MAX)
            return [_letter(record.value) for record in records]
        case FileDlq() | CollectionDlq() as queue:
            found = "files" if isinstance(queue, FileDlq) else "a collection"
            remedy = "`tidemark dlq` reads them; or let options.dlq name a topic"
            raise Problem(NOT_FOUND, "options.dlq", "a topic, which this service reads", found, remedy)
        case None:
            remedy = "options.dlq names a place for them"
            raise Problem(NOT_FOUND, "options.dlq", "a topic of dead letters", "none: they are kept nowhere", remedy)


async def newest_of(processor: Processor, connections: Connections, limit: int) -> tuple[list[Any], int]:
    """The newest documents of its source's topics as JSON, oldest first, and how many records were none. Problem."""
    source = processor.source
    if not isinstance(source, KafkaSource) or source.registry is not None or source.format is not None:
        remedy = "give `rows`"
        raise Problem(
            CONFLICT, "rows", "a source of JSON in topics, whose newest records are taken", "another source", remedy
        )
    _known(processor.connections.get(source.connection_name))
    with _saying(f"connections.{source.connection_name}"):
        connection = connections.get(processor, source.connection_name)
        log = connections.log(connection)
        known = await log.describe_topics(source.topics)
        if missing := [topic for topic in source.topics if topic not in known]:
            cluster = connections.kafka_settings(connection).bootstrap
            raise Problem(
                CONFLICT, join(source.path, "topic"), f"a topic of the cluster {cluster}", f"no topic {missing[0]}"
            )
        records = [r for topic in source.topics for r in await newest(log, topic, limit, bytes_max=LETTERS_BYTES_MAX)]
    found = []
    for record in sorted(records, key=lambda record: record.timestamp_ms)[-limit:]:
        with suppress(ExtendedJsonError):
            value = parse_json(record.value or b"null")
            if type(value) is dict:
                found.append(to_json(value, canonical=False))
    return found, min(len(records), limit) - len(found)


def _letter(data: bytes | None) -> Document:
    try:
        found = parse_json(data or b"null")
    except ExtendedJsonError as error:
        found = {"errInfo": {"reason": f"no letter: {error}", "code": "Unreadable"}}
    return found if type(found) is dict else {"doc": found}


async def try_connection(unresolved: Connection, connections: Connections, executor: Executor) -> str:
    """Whether the other side answers: what it said. Problem if it does not."""
    _known(unresolved)
    where = f"connections.{unresolved.name}"
    with _saying(where):
        connection = connections.resolved(unresolved)
        match connection.type:
            case "kafka" | "gateway":
                count = len(await connections.log(connection).list_topics())
                return f"the brokers answer; this service sees {count} topics"
            case "files":
                there = await executor.blocking(_is_there, connection, where)
                return f"the folder {'is there' if there else 'is not there yet: a sink makes it'}"
            case "sql":
                return await executor.blocking(_asked, connection)
            case "mongodb":
                return await executor.blocking(_asked_mongodb, connection)
            case "schemaRegistry":
                with suppress(SchemaUnknown):
                    await connections.registry(connection).schema(1)
                return "the registry answers"
            case other:
                return f"a connection of type {other} is not tested: nothing has been asked"


def _is_there(connection: Connection, where: str) -> bool:
    settings = connection.settings
    filesystem, path = filesystem_at(str(settings["path"]), where, settings.get("config", {}))
    return bool(filesystem.exists(path))


def _asked(connection: Connection) -> str:
    """One statement, with the driver that sinks use."""
    engine = sa.create_engine(with_driver(sa.make_url(str(connection.settings["url"]))), poolclass=sa.NullPool)
    with engine.connect() as found:
        found.execute(sa.text("select 1"))
    return f"the database answers ({engine.dialect.name})"


def _asked_mongodb(connection: Connection) -> str:
    """A sign of life, with the driver that sinks use. ValueError with what it says."""
    from pymongo.errors import PyMongoError  # noqa: PLC0415 - a driver that few need

    from tidemark.shared.adapters.mongodb import client_at, has_transactions  # noqa: PLC0415

    client = client_at(str(connection.settings["url"]), ANSWER_MS_MAX)
    try:
        several = has_transactions(client)
    except PyMongoError as error:
        raise ValueError(str(error)) from error
    finally:
        client.close()
    return f"the server answers (MongoDB, {'with' if several else 'without'} transactions)"


_SAID: Final = (
    WrongSetup, InvalidDocument, LogError, RegistryUnavailable, RegistryDenied, OSError, ValueError, sa.exc.SQLAlchemyError,
)  # fmt: skip
"""Errors of the other side, or on the way to it; their messages are written for people."""


@contextmanager
def _saying(where: str) -> Iterator[None]:
    """Errors of the other side, in its words and without secrets."""
    try:
        yield
    except _SAID as error:
        remedy = "this service must reach it as workers do: network, TIDEMARK_ALLOW, secrets"
        finding = redacted_line(str(error)) or type(error).__name__
        raise Problem(CONFLICT, where, "an answer", finding, remedy) from error
