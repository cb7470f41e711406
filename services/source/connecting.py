"""From a document's `$source` to a connector that the source's tasks read from."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.kafka import KafkaConnector, KafkaSourceSettings
from tidemark.services.source.connectors.pgslot import PostgresSettings
from tidemark.services.source.connectors.plugin import PluginConnector
from tidemark.services.source.connectors.postgres import PostgresConnector
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.services.source.connectors.sample import SampleTimetable
from tidemark.services.source.connectors.schedule import ScheduleTimetable
from tidemark.services.source.connectors.script import DocumentsConnector, ScriptConnector
from tidemark.services.source.connectors.timed import TimedConnector, Timetable
from tidemark.services.source.filesources import file_source
from tidemark.services.source.settings import SourceSettings
from tidemark.services.source.steps import ClockNotSettable, looks_at_time
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import (
    ChangesSource,
    ChangeStreamSource,
    DocumentsSource,
    FileSource,
    KafkaSource,
    PluginSource,
    SampleSource,
    ScheduleSource,
    ScriptSource,
    Source,
)
from tidemark.shared.model.values import Document
from tidemark.shared.plugins.installed import make_plugin
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.source import SourcePort
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.context import Outside

if TYPE_CHECKING:
    from tidemark.services.source.connectors.changestream import ChangeStream


class SourceConnectors(Protocol):
    """Makes the sources of one process; an installation brings its own."""

    async def connect(self, outside: Outside, processor: Processor, stage: Source) -> SourcePort:
        """A source, not yet opened."""
        ...

    def set_time(self, time_ms: int) -> None:
        """Put the wall clock of all tasks to this, ms. ClockNotSettable where it is the machine's."""
        ...

    async def close(self) -> None:
        """Let go of the clients that tasks share."""
        ...


class RealSources:
    """`SourceConnectors` to the places that a document's connections name."""

    def __init__(self, connections: Connections, settings: SourceSettings | None = None) -> None:
        self._connections = connections
        self._settings = settings or SourceSettings()

    async def connect(self, outside: Outside, processor: Processor, stage: Source) -> SourcePort:
        """See `SourceConnectors.connect`."""
        match stage:
            case KafkaSource():
                connection = self._connections.get(processor, stage.connection_name)
                kafka = self._connections.kafka_settings(connection)
                self._settings.check_answers(kafka.fetch_wait_ms, connection.name)
                reader = RawReader(kafka)
                await reader.start()
                settings = KafkaSourceSettings(
                    topics=stage.topics,
                    start_at=stage.start_at,
                    until=stage.until,
                    answer_age_ms_max=self._settings.answer_age_ms_max,
                    gather_ms_max=self._settings.gather_ms_max,
                    splits_max=self._settings.splits_max,
                    cluster=kafka.bootstrap,
                )
                records = records_of(self._connections, processor, stage, outside.executor)
                return KafkaConnector(settings, self._connections.log(connection), reader, outside.clock, records)
            case FileSource():
                return await file_source(self._connections, outside, processor, stage, self._settings)
            case ChangesSource():
                return changes_source(self._connections, processor, stage, outside.executor, outside.clock)
            case ChangeStreamSource():
                return change_stream_source(self._connections, processor, stage, outside.executor, outside.clock)
            case SampleSource() | ScheduleSource():
                return TimedConnector(timetable_of(stage), outside.clock)
            case PluginSource():
                return plugin_source(self._connections, processor, stage, outside.executor, outside.clock)
            case DocumentsSource() | ScriptSource():
                return own_documents(processor, stage, outside.clock)

    def set_time(self, time_ms: int) -> None:
        """The clock is the machine's."""
        raise ClockNotSettable(
            f"$source.script: a processingTime step would set the clock to {time_ms} ms, and this installation runs by the machine's; "
            "run the script with `tidemark process`"
        )

    async def close(self) -> None:
        """See `SourceConnectors.close`."""
        await self._connections.close()


def timetable_of(stage: SampleSource | ScheduleSource) -> Timetable:
    """What comes when."""
    return ScheduleTimetable(stage.schedule) if isinstance(stage, ScheduleSource) else SampleTimetable()


def records_of(
    connections: Connections, processor: Processor, stage: KafkaSource, executor: Executor
) -> RegisteredRecords | FormattedRecords | None:
    """The reader that makes JSON of a topic's records; None where they are JSON. NotAllowed for a plug-in's format."""
    bytes_max = processor.options.limits.record_bytes_max
    values, keys = connections.format_of(stage.format, stage.schema), connections.format_of(stage.key_plugin)
    keys_must = stage.key_format_error == "dlq"
    registered: RegisteredRecords | None = None
    if stage.registry is not None:
        registry = connections.registry(connections.get(processor, stage.registry))
        too = stage.key_format == "schemaRegistry"
        registered = RegisteredRecords(
            registry, executor, bytes_max, values=values is None, keys=too, keys_must=keys_must
        )
    if values is None and keys is None:
        return registered
    return FormattedRecords(values, keys, executor, bytes_max, keys_must=keys_must, registered=registered)


def own_documents(processor: Processor, stage: DocumentsSource | ScriptSource, clock: Clock) -> SourcePort:
    """A source of the records that the document itself holds; step by step where stages look at time."""
    one_by_one = looks_at_time(processor)
    if isinstance(stage, ScriptSource):
        return ScriptConnector(stage.script, clock, one_by_one=one_by_one)
    return DocumentsConnector(stage.documents, clock, one_by_one=one_by_one)


def given_documents(processor: Processor, rows: Sequence[Document], clock: Clock) -> SourcePort:
    """A source of rows that a caller gives in place of a document's own."""
    return DocumentsConnector(rows, clock, one_by_one=looks_at_time(processor, given=True))


def changes_source(
    connections: Connections, processor: Processor, stage: ChangesSource, executor: Executor, clock: Clock
) -> PostgresConnector:
    """The changes that a replication slot keeps."""
    connection = connections.get(processor, stage.connection_name)
    settings = PostgresSettings(
        url=str(connection.settings["url"]),
        publication=stage.publication,
        slot=stage.slot,
        initial_sync=stage.initial_sync,
        connection_name=connection.name,
    )
    return PostgresConnector(settings, executor, clock)


def change_stream_source(
    connections: Connections, processor: Processor, stage: ChangeStreamSource, executor: Executor, clock: Clock
) -> "ChangeStream":
    """The change stream of collections of MongoDB. StreamRefused for values that no server takes."""
    from tidemark.services.source.connectors.changestream import ChangeStream  # noqa: PLC0415 - a driver that few need

    connection = connections.get(processor, stage.connection_name)
    return ChangeStream(stage, str(connection.settings["url"]), executor, clock)


def plugin_source(
    connections: Connections,
    processor: Processor,
    stage: PluginSource,
    executor: Executor,
    clock: Clock,
    *,
    ends_now: bool = False,
) -> PluginConnector:
    """A source of another package. NotAllowed; what the package lacks shows with the first call."""
    settings = connections.plugin_settings(processor, stage)
    return PluginConnector(
        lambda: make_plugin("source", stage.plugin, stage.config, settings),
        f"{stage.path}, plug-in {stage.plugin}",
        executor,
        clock,
        ends_now=ends_now,
    )
