"""`tidemark check --connect`: looks at everything outside that a document names, before anything starts.

It looks at topics, tables with their columns and unique keys, files and folders, with the connectors of a run and their messages; at the
rights that these need; and whether a server of `$https` takes connections. A place that cannot be reached, or that denies access, is an
error, too. It does not look at connections of the registry, or at a run's own broker.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tidemark.services.cli.rights import reached, sink_rights, source_rights
from tidemark.services.local.folders import BROKER_VARIABLE
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import CollectionDlq, FileDlq, InvalidDocument, KafkaDlq, Processor, all_stages
from tidemark.shared.language.documents.connections import REFERENCE
from tidemark.shared.language.documents.model import plugin_uses
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.forms import PluginKind, PluginUse
from tidemark.shared.language.problems import DocumentError, join
from tidemark.shared.language.redaction import redacted_line
from tidemark.shared.language.stages import (
    ChangesSource,
    ChangeStreamSource,
    FileEmit,
    FileSource,
    Https,
    HttpsEmit,
    KafkaEmit,
    KafkaSource,
    Lookup,
    Merge,
    TableRef,
)
from tidemark.shared.language.stages.base import Stage, written
from tidemark.shared.language.stages.sources.files import no_file
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.plugins.installed import make_plugin
from tidemark.shared.plugins.interface import PluginError, PluginFailed
from tidemark.shared.ports.log import LogError
from tidemark.shared.ports.registry import RegistryDenied, RegistryUnavailable, SchemaUnknown
from tidemark.shared.ports.sink import TargetDenied, TargetRefused, TargetUnavailable
from tidemark.shared.ports.tables import TableDenied, TableRefused, TableUnavailable
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections, filesystem_at
from tidemark.shared.process.registered import refused_schemas
from tidemark.shared.runtime.plugged import Plugged
from tidemark.shared.runtime.settings import LookupSettings

ANSWER_S_MAX: Final = 20
"""For one broker, database or file system: longer, and it is said not to answer."""
_QUESTIONS: Final[Mapping[PluginKind, Callable[[Any], Any]]] = {
    "source": lambda source: source.splits(),
    "sink": lambda _: None,  # a target may make something for an identity that it is asked about
    "lookup": lambda _: None,
}
"""What a plug-in is asked that is open; formats are never opened."""


@dataclass(frozen=True, slots=True)
class _Looks:
    """The processor to check, and the clients that the checks use."""

    processor: Processor
    connections: Connections
    executor: AsyncExecutor
    clock: SystemClock

    def cluster(self, name: str) -> str:
        """The brokers of a connection, for messages."""
        return self.connections.kafka_settings(self.connections.get(self.processor, name)).bootstrap

    async def source(self, stage: KafkaSource) -> Iterable[str]:
        """Look whether the source's topics are there."""
        from tidemark.services.source.connectors.kafka import topics_there

        log = self.connections.log(self.connections.get(self.processor, stage.connection_name))
        await topics_there(log, stage.topics, self.cluster(stage.connection_name), self.clock)
        return await source_rights(log, stage.topics)

    async def changes(self, stage: ChangesSource | ChangeStreamSource) -> Iterable[str]:
        """Publication and slot are there, and may be read; a change stream may be opened, as it is described."""
        from tidemark.services.cli.tablerights import slot_rights
        from tidemark.services.source.connecting import change_stream_source, changes_source

        if isinstance(stage, ChangesSource):
            await changes_source(self.connections, self.processor, stage, self.executor, self.clock).state()
            url = str(self.connections.get(self.processor, stage.connection_name).settings["url"])
            return await self.executor.blocking(slot_rights, url)
        source = change_stream_source(self.connections, self.processor, stage, self.executor, self.clock)
        try:
            await source.found(list(await source.splits()), first=True)
        finally:
            await source.close()
        return ()

    async def registry(self, stage: KafkaSource | KafkaEmit, name: str) -> Iterable[str]:
        """A schema registry answers, and would take the schemas."""
        registry = self.connections.registry(self.connections.get(self.processor, name))
        if isinstance(stage, KafkaEmit):
            return await refused_schemas(stage, registry)
        with contextlib.suppress(SchemaUnknown):  # any answer will do
            await registry.schema(0)
        return ()

    async def files(self, stage: FileSource) -> Iterable[str]:
        """Files match, unless the folder is said to grow; a table can be read as it is now."""
        from tidemark.services.source.filesources import NothingYet, file_source

        try:
            source = await file_source(self.connections, self, self.processor, stage)
        except NothingYet:  # of a job that may start later
            return ()
        try:
            there = await source.look()
        finally:
            await source.close()
        return (
            () if there or stage.follow else [no_file(stage.path, self.connections.files_of(self.processor, stage)[1])]
        )

    async def topic(self, connection_name: str, topic: str, *, has_key: bool) -> Iterable[str]:
        """A topic that is written to is there, or may be made; and takes records without a key, if they have none."""
        from tidemark.services.sink.connectors.kafkarecords import Takes

        connection = self.connections.get(self.processor, connection_name)
        log, takes = self.connections.log(connection), Takes.of(self.connections.kafka_settings(connection))
        topics = await log.list_topics()
        if lacks := [*await sink_rights(log, topic, there=topic in topics or not takes.new_topic_partitions)]:
            return lacks
        if topic not in topics:
            where = f"the topic {topic} is not in the cluster {self.cluster(connection_name)}"
            return (
                () if takes.new_topic_partitions else [f"{where}, and the connection's config has none made: create it"]
            )
        needs_key = (await log.topic_rules([topic]))[topic].needs_key
        return (
            [f"topic {topic} is compacted, and records have no key; set config.key"]
            if needs_key and not has_key
            else ()
        )

    async def table(self, stage: Merge) -> Iterable[str]:
        """The table, its unique key and the columns of the fields that are known to come."""
        connection = self.connections.get(self.processor, stage.connection_name)
        if connection.type == "mongodb":
            return await self.executor.blocking(partial(_collection, str(connection.settings["url"]), stage))
        names = self._names_at(stage) if stage.is_constant else None
        return await self.executor.blocking(partial(_table, str(connection.settings["url"]), stage, names))

    async def lookup(self, stage: Lookup) -> Iterable[str]:
        """The table or file that is asked, and the column that is compared."""
        from tidemark.services.cli.tablerights import select_rights
        from tidemark.services.operator.connecting import table_of
        from tidemark.services.operator.tables.sql import SqlTable

        table = table_of(self.connections, self.processor, stage, LookupSettings(), self.executor, self.clock)
        try:
            if not isinstance(table, SqlTable):
                await table.find((), ())
                return ()
            columns = await table.columns()
            field = None if stage.foreign_field is None else stage.foreign_field[0]
            if field is None or field in columns:
                return await self.executor.blocking(select_rights, table.engine, str(getattr(stage.from_, "table", "")))
            return [f"foreignField: the table has no column {field}; it has {', '.join(sorted(columns))}"]
        finally:
            await table.close()

    async def server(self, name: str) -> Iterable[str]:
        """A server takes connections."""
        return await reached(self.connections.get(self.processor, name))

    async def plugin(self, use: PluginUse) -> Iterable[str]:
        """A plug-in opens, and a source lists its splits."""
        settings, kind = self.connections.plugin_settings(self.processor, use), use.kind
        assert kind != "computation", "it is not opened"
        plugged = Plugged(
            lambda: make_plugin(kind, use.plugin, use.config, settings),
            f"{use.path}, plug-in {use.plugin}",
            self.executor,
            TargetUnavailable,
            TargetRefused,
        )
        try:
            await plugged.ask("opening", _QUESTIONS[kind])
        finally:
            await plugged.close()
        return ()

    async def output(self, stage: FileEmit) -> Iterable[str]:
        """The folder of files; a table that is there already, and whether it takes the fields that are known to come."""
        from tidemark.services.sink.connectors.destinations import destination_of
        from tidemark.services.sink.connectors.filerows import encoding_of
        from tidemark.services.sink.connectors.tablereleases import table_releases

        name = stage.connection_name
        connection = None if name is None else self.connections.get(self.processor, name)
        encoding = encoding_of(stage, connection, check=self.connections.check_at(stage.path))
        if refused := [*await self.folder(name, stage.file_path, stage.path)]:
            return refused
        destination = destination_of(self.connections, self.processor, stage, "check")
        releases = table_releases(destination, encoding)
        if releases is None:
            return ()
        try:
            return await self.executor.blocking(releases.misfits_of, self._names_at(stage))
        finally:
            releases.close()

    def _names_at(self, stage: Stage) -> Fields:
        """The top-level fields that may come to a sink, no others; None where the text does not tell."""
        pipeline, told = self.processor.pipeline, self.processor.options.stream_meta_field_name
        names = written(pipeline[: pipeline.index(stage) if stage in pipeline else 0])
        return names if names is None or told is None else names | {told}

    async def folder(self, connection_name: str | None, path: str, place: str) -> Iterable[str]:
        """A folder that is written to, or the one that it would be made in."""
        where, config = self.connections.place_of(self.processor, connection_name, path, place)
        return await self.executor.blocking(partial(_folder, where, config, place))


async def refused_by_what_is_there(processor: Processor) -> list[DocumentError]:
    """Errors about the topics, tables and files that a valid document names."""
    looks = _Looks(processor, Connections("check", allowed=OWNER, values=os.environ), AsyncExecutor(), SystemClock())
    try:
        found = await asyncio.gather(
            *(_answer(place, ask) for place, name, ask in _asked(looks) if _can_look(processor, name))
        )
    finally:
        await looks.connections.close()
        await looks.executor.close()
    return [error for errors in found for error in errors]


def _can_look(processor: Processor, name: str | None) -> bool:
    """Whether a connection stands in the document, its variables are set here, and none is the broker's that a run starts itself."""
    if name is None:
        return True
    connection = processor.connections.get(name)
    if connection is None:
        return False
    variables = REFERENCE.findall(str(dict(connection.settings)))
    return all(each in os.environ and each != BROKER_VARIABLE for each in variables)


_Ask = Callable[[], Awaitable[Iterable[str]]]


_Asked = tuple[str, str | None, _Ask]


def _asked(looks: _Looks) -> Iterator[_Asked]:
    """Of each place that leads outside: where it stands, its connection, and how it is looked at."""
    yield from _of_stages(looks)
    yield from _of_letters(looks)
    for use in plugin_uses(looks.processor.pipeline):
        if use.kind in _QUESTIONS:
            yield use.path, use.connection_name, partial(looks.plugin, use)


def _of_stages(looks: _Looks) -> Iterator[_Asked]:
    for stage in all_stages(looks.processor.pipeline):
        if isinstance(stage, KafkaSource | KafkaEmit) and stage.registry is not None:
            yield stage.path, stage.registry, partial(looks.registry, stage, stage.registry)
        match stage:
            case KafkaSource():
                yield stage.path, stage.connection_name, partial(looks.source, stage)
            case ChangesSource() | ChangeStreamSource():
                yield stage.path, stage.connection_name, partial(looks.changes, stage)
            case FileSource():
                yield stage.path, stage.connection_name, partial(looks.files, stage)
            case KafkaEmit(topic=Literal(value=str() as topic)):
                keyed = stage.key is not None
                yield (
                    stage.path,
                    stage.connection_name,
                    partial(looks.topic, stage.connection_name, topic, has_key=keyed),
                )
            case FileEmit():
                yield stage.path, stage.connection_name, partial(looks.output, stage)
            case Https() | HttpsEmit():
                yield stage.path, stage.connection_name, partial(looks.server, stage.connection_name)
            case Merge(table=str()):
                yield stage.path, stage.connection_name, partial(looks.table, stage)
            case Lookup(from_=TableRef(name)):
                yield join(stage.path, "from"), name, partial(looks.lookup, stage)


def _of_letters(looks: _Looks) -> Iterator[_Asked]:
    match looks.processor.options.dlq:
        case KafkaDlq(name, topic):
            yield "options.dlq", name, partial(looks.topic, name, topic, has_key=False)
        case CollectionDlq(name) as queue:
            table = f"{queue.db}.{queue.coll}"
            stage = Merge(path="options.dlq", connection_name=name, table=table, when_matched="replace")
            yield "options.dlq", name, partial(looks.table, stage)
        case FileDlq(path, name):
            yield "options.dlq", name, partial(looks.folder, name, path, "options.dlq")
        case None:
            pass


async def _answer(place: str, ask: _Ask) -> list[DocumentError]:
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            return [_error(place, text) for text in await ask()]
    except TimeoutError:
        return [DocumentError(place, f"what it names does not answer within {ANSWER_S_MAX} s")]
    except _errors() as error:
        said = getattr(error, "orig", None) or error  # without the library's own words around it
        return [_error(place, redacted_line(" ".join(str(said).split())))]


def _errors() -> tuple[type[Exception], ...]:
    """Of connectors; their messages are written for people."""
    from sqlalchemy import exc

    targets = (TargetRefused, TargetDenied, TargetUnavailable, TableRefused, TableDenied, TableUnavailable)
    others = (RegistryUnavailable, RegistryDenied, PluginError, PluginFailed, OSError, exc.SQLAlchemyError)
    return (InvalidDocument, LogError, WrongSetup, *targets, *others)


def _error(place: str, text: str) -> DocumentError:
    """A connector's sentence may begin with the place itself."""
    return DocumentError("" if text.startswith(place) else place, text)


def _table(url: str, stage: Merge, names: frozenset[str] | None) -> list[str]:
    from tidemark.services.cli.tablerights import merge_rights
    from tidemark.services.sink.connectors.mergechanges import place_of
    from tidemark.services.sink.connectors.sql import MARKERS_TABLE, engine_at
    from tidemark.services.sink.connectors.sqlrows import maker_of
    from tidemark.services.sink.connectors.sqltable import target_table

    engine = engine_at(url)
    try:
        table = target_table(engine, stage)
        maker = maker_of(table, stage, engine.dialect)
        misfits = () if names is None else maker.misfits_of(names)
        return [f"{place_of(stage)}: {text}" for text in (*merge_rights(engine, stage, MARKERS_TABLE), *misfits)]
    finally:
        engine.dispose()


def _collection(url: str, stage: Merge) -> list[str]:
    from pymongo.errors import PyMongoError

    from tidemark.services.sink.connectors.mergechanges import place_of
    from tidemark.services.sink.connectors.mongodb import refusal
    from tidemark.shared.adapters.mongodb import client_at, has_transactions, words_of

    try:
        client = client_at(url, ANSWER_S_MAX * 1000 // 2)
    except ValueError as error:
        return [str(error)]
    try:
        why = refusal(client, stage, transactions=has_transactions(client))
        return [] if why is None else [f"{place_of(stage)}: {why}"]
    except PyMongoError as error:
        return [f"{place_of(stage)}: {words_of(error)}"]
    finally:
        client.close()


def _folder(where: str, config: Mapping[str, object], place: str) -> list[str]:
    if "://" in where and not where.startswith("file://"):
        filesystem, path = filesystem_at(where, place, config)
        filesystem.exists(path)
        return []
    folder = Path(where.removeprefix("file://")).absolute()
    nearest = next(each for each in (folder, *folder.parents) if each.exists())
    if not nearest.is_dir():
        return [f"{nearest} is a file; the output is a folder"]
    return [] if os.access(nearest, os.W_OK | os.X_OK) else [f"{nearest}: nothing may be written there"]
