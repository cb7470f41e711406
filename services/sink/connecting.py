"""From the last stage of a pipeline to a connector that the sink's tasks write to."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import sqlalchemy as sa

from tidemark.services.sink.connectors.destinations import destination_of
from tidemark.services.sink.connectors.filerows import Encoding, encoding_of
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.sink.connectors.formatted import FormattedForms
from tidemark.services.sink.connectors.https import HttpsSink
from tidemark.services.sink.connectors.kafka import KafkaSink
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.plugin import PluginSink
from tidemark.services.sink.connectors.registered import RegisteredForms
from tidemark.services.sink.connectors.sql import SqlSink, engine_at
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.services.sink.settings import SinkSettings
from tidemark.shared.language.documents import CollectionDlq, FileDlq, KafkaDlq, Processor
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.stages import Connection, FileEmit, HttpsEmit, KafkaEmit, Merge, PluginEmit, Sink
from tidemark.shared.model.ids import Epoch, VertexId
from tidemark.shared.operators.context import Topics
from tidemark.shared.planning import DeadLetterHead, Head, WriteHead
from tidemark.shared.plugins.installed import make_plugin
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import SinkPort, TargetRefused
from tidemark.shared.process.connections import Connections, check_room
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.exchange import blob_name
from tidemark.shared.runtime.requests import Asking


class SinkConnectors(Protocol):
    """Makes the sinks of one process; an installation brings its own."""

    def make(self, context: AssignedTask, processor: Processor, head: Head, vertex: VertexId, index: int) -> SinkPort:
        """A sink for a release identity, not yet opened. TypeError for a head that this installation has no sink for."""
        ...

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        ...


class RealSinks:
    """`SinkConnectors` to the places that a document's connections name."""

    def __init__(self, connections: Connections, settings: SinkSettings | None = None) -> None:
        self._connections = connections
        self._settings = settings or SinkSettings()
        self._engines: dict[str, sa.Engine] = {}
        self._clients: dict[str, Any] = {}
        """Of MongoDB, by url."""

    def make(self, context: AssignedTask, processor: Processor, head: Head, vertex: VertexId, index: int) -> SinkPort:
        """See `SinkConnectors.make`."""
        stage, topics = stage_of(head), context.operators.topic
        match stage:
            case KafkaEmit():
                connection = _compressing(self._connections.get(processor, stage.connection_name), stage)
                takes = Takes.of(self._connections.kafka_settings(connection), context.outside.topics.prefix)
                log, parts = self._connections.log(connection), self._parts(context, vertex, index)
                forms = forms_of(self._connections, processor, stage, context.outside.executor)
                outside = context.outside
                maker = RecordMaker(stage, takes, forms, topics)
                return KafkaSink(maker, log, parts, outside.clock, outside.executor, self._settings.kafka)
            case FileEmit():
                return self._files(context, processor, stage)
            case PluginEmit():
                settings = self._connections.plugin_settings(processor, stage)
                parts, executor = self._parts(context, vertex, index), context.outside.executor
                return plugin_sink(stage, settings, parts, executor)
            case Merge():
                connection = self._connections.get(processor, stage.connection_name)
                url, clients_max = str(connection.settings["url"]), context.outside.settings.connections_max
                parts, executor = self._parts(context, vertex, index), context.outside.executor
                if connection.type == "mongodb":
                    return self._collections(stage, url, clients_max, parts, executor, topics)
                return SqlSink(stage, self._engine(url, clients_max), parts, executor, self._settings.sql, topics)
            case HttpsEmit():
                connection, outside = self._connections.get(processor, stage.connection_name), context.outside
                client, lookup = self._connections.http(), outside.settings.lookup
                asking = Asking(stage, connection, client, outside.clock, outside.executor, lookup, context.waits)
                parts = self._parts(context, vertex, index)
                return HttpsSink(
                    asking, outside.log, parts, outside.unique(), self._settings.kafka, source_topics=topics
                )

    def _engine(self, url: str, connections_max: int) -> sa.Engine:
        """One pool for a database: tasks of one process share it."""
        if url not in self._engines:
            check_room(len(self._engines), connections_max, "database")
            self._engines[url] = engine_at(url, self._settings.sql)
        return self._engines[url]

    def _collections(
        self, stage: Merge, url: str, clients_max: int, parts: PartStore, executor: Executor, topics: Topics
    ) -> SinkPort:
        """One client for a server, as for databases. TargetRefused for a url that is none of MongoDB's."""
        from tidemark.services.sink.connectors.mongodb import MongoSink  # noqa: PLC0415 - a driver that few need
        from tidemark.shared.adapters.mongodb import client_at  # noqa: PLC0415

        settings = self._settings.mongodb
        if url not in self._clients:
            check_room(len(self._clients), clients_max, "MongoDB server")
            try:
                self._clients[url] = client_at(url, settings.answer_ms, settings.connections_max)
            except ValueError as error:
                raise TargetRefused(str(error)) from error
        return MongoSink(stage, self._clients[url], parts, executor, settings, topics)

    def _files(self, context: AssignedTask, processor: Processor, stage: FileEmit) -> SinkPort:
        outside = context.outside
        attempt = outside.unique()
        encoding = self._encoding(context, processor, stage)
        destination, settings = destination_of(self._connections, processor, stage, attempt), self._settings
        handle_bytes_max = settings.staging.handle_bytes_max
        return FileSink(destination, encoding, attempt, outside.executor, settings.files, handle_bytes_max)

    def _encoding(self, context: AssignedTask, processor: Processor, stage: FileEmit) -> Encoding:
        name = stage.connection_name
        connection = None if name is None else self._connections.get(processor, name)
        return encoding_of(stage, connection, context.operators.topic, self._connections.check_at(stage.path))

    def _parts(self, context: AssignedTask, vertex: VertexId, index: int) -> PartStore:
        """A row of the mirror has bounded space for staged data: each sink task of the plan has its share."""
        assign, outside, staging = context.assign, context.outside, self._settings.staging

        def name_of(epoch: Epoch) -> str:
            return blob_name(assign.job, vertex, assign.generation, epoch, f"{index}-{outside.unique()}")

        tasks = sum(count for vertex, count in assign.plan.tasks.items() if assign.plan.services.get(vertex) == "sink")
        bounds = staging.inline_of(tasks), staging.handle_bytes_max, staging.kept_bytes_max
        return PartStore(outside.blobs, name_of, *bounds)

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        for engine in self._engines.values():
            engine.dispose()
        for client in self._clients.values():
            client.close()
        await self._connections.close()


def plugin_sink(stage: PluginEmit, settings: Mapping[str, object], parts: PartStore, executor: Executor) -> PluginSink:
    """A sink of another package. settings: the config of its connection; what the package lacks shows when it is opened."""
    return PluginSink(
        lambda: make_plugin("sink", stage.plugin, stage.config, settings),
        f"{stage.path}, plug-in {stage.plugin}",
        parts,
        executor,
    )


def forms_of(
    connections: Connections, processor: Processor, stage: KafkaEmit, executor: Executor, *, registers: bool = True
) -> RegisteredForms | FormattedForms | None:
    """The forms of a stage's records where it names a schema registry or a format. NotAllowed for a plug-in.

    registers: schemas that the document says to register.
    """
    registered: RegisteredForms | None = None
    if stage.registry is not None:
        registry = connections.registry(connections.get(processor, stage.registry))
        registered = RegisteredForms(registry, stage, executor, registers=registers)
    values, keys = connections.format_of(stage.format), connections.format_of(stage.key_plugin)
    return registered if values is None and keys is None else FormattedForms(values, keys, executor, registered)


def _compressing(connection: Connection, stage: KafkaEmit) -> Connection:
    """The connection, with the compression that the stage names."""
    if stage.compression_type is None:
        return connection
    compression = None if stage.compression_type == "none" else stage.compression_type
    config = {**connection.settings.get("config", {}), "compression": compression}
    return replace(connection, settings={**connection.settings, "config": config})


def stage_of(head: Head) -> Sink:
    """The stage to write by; the dead letter queue as an `$emit`."""
    if isinstance(head, WriteHead):
        return head.stage
    queue = head.queue if isinstance(head, DeadLetterHead) else None
    if isinstance(queue, KafkaDlq):
        return KafkaEmit(path="options.dlq", connection_name=queue.connection_name, topic=Literal(queue.topic))
    if isinstance(queue, FileDlq):
        return FileEmit(
            path="options.dlq", file_path=queue.file_path, format="json", connection_name=queue.connection_name
        )
    if isinstance(queue, CollectionDlq):
        table, name = f"{queue.db}.{queue.coll}", queue.connection_name
        return Merge(path="options.dlq", connection_name=name, table=table, when_matched="replace")
    message = f"no sink for {head}"
    raise TypeError(message)
