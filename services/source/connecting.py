"""From a document's `$source` to a connector that the source's tasks read from."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from tidemark.services.source.connectors.files import FileSource, FileSourceSettings
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.kafka import KafkaSource, KafkaSourceSettings
from tidemark.services.source.connectors.plugin import PluginSource
from tidemark.services.source.connectors.postgres import PostgresSettings, PostgresSource
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.services.source.connectors.sample import SampleSource
from tidemark.services.source.connectors.script import DocumentsSource, ScriptSource
from tidemark.services.source.settings import SourceSettings
from tidemark.services.source.steps import ClockNotSettable, looks_at_time
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.stages import ChangesSource as ChangesStage
from tidemark.shared.language.stages import ChangeStreamSource as ChangeStreamStage
from tidemark.shared.language.stages import DocumentsSource as DocumentsStage
from tidemark.shared.language.stages import FileSource as FileStage
from tidemark.shared.language.stages import KafkaSource as KafkaStage
from tidemark.shared.language.stages import PluginSource as PluginStage
from tidemark.shared.language.stages import SampleSource as SampleStage
from tidemark.shared.language.stages import ScriptSource as ScriptStage
from tidemark.shared.language.stages import Source as SourceStage
from tidemark.shared.model.values import Document
from tidemark.shared.plugins.installed import make_plugin
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.source import Source
from tidemark.shared.process.connections import Connections, filesystem_at
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.context import Outside

if TYPE_CHECKING:
    from tidemark.services.source.connectors.changestream import ChangeStream

_GATHERINGS: Final = 10
"""Of an epoch."""
_GATHERS_MS_MIN: Final = 5
"""Below it a batch costs more than its wait."""


class SourceConnectors(Protocol):
    """Makes the sources of one process; an installation brings its own."""

    async def connect(self, outside: Outside, processor: Processor, stage: SourceStage) -> Source:
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

    async def connect(self, outside: Outside, processor: Processor, stage: SourceStage) -> Source:
        """See `SourceConnectors.connect`."""
        match stage:
            case KafkaStage():
                connection = self._connections.get(processor, stage.connection_name)
                kafka = self._connections.kafka_settings(connection)
                self._settings.check_answers(kafka.fetch_wait_ms, connection.name)
                reader = RawReader(replace(kafka, fetch_gather_ms=gathers_ms(kafka, processor)))
                await reader.start()
                settings = KafkaSourceSettings(
                    topics=stage.topics,
                    start_at=stage.start_at,
                    until=stage.until,
                    answer_age_ms_max=self._settings.answer_age_ms_max,
                    splits_max=self._settings.splits_max,
                    cluster=kafka.bootstrap,
                )
                records = records_of(self._connections, processor, stage, outside.executor)
                return KafkaSource(settings, self._connections.log(connection), reader, outside.clock, records)
            case FileStage():
                return file_source(self._connections, outside, processor, stage, self._settings)
            case ChangesStage():
                return changes_source(self._connections, processor, stage, outside.executor, outside.clock)
            case ChangeStreamStage():
                return change_stream_source(self._connections, processor, stage, outside.executor, outside.clock)
            case SampleStage():
                return SampleSource(outside.clock)
            case PluginStage():
                return plugin_source(self._connections, processor, stage, outside.executor, outside.clock)
            case DocumentsStage() | ScriptStage():
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


def records_of(
    connections: Connections, processor: Processor, stage: KafkaStage, executor: Executor
) -> RegisteredRecords | FormattedRecords | None:
    """What makes JSON of a topic's records; None where they are JSON. NotAllowed for a plug-in's format."""
    bytes_max = processor.options.limits.record_bytes_max
    if stage.format is not None:
        return FormattedRecords(connections.format_of(stage.format), stage.format, executor, bytes_max)
    if stage.registry is None:
        return None
    registry = connections.registry(connections.get(processor, stage.registry))
    return RegisteredRecords(registry, stage, executor, bytes_max)


def gathers_ms(kafka: KafkaSettings, processor: Processor) -> int:
    """How long a reader gathers, ms. Nothing is seen before its epoch ends: ten batches in each are soon enough, and more only cost."""
    interval_ms = processor.options.checkpoint_interval_ms or CoordinatorSettings().checkpoint_interval_ms
    return min(kafka.fetch_gather_ms, max(_GATHERS_MS_MIN, interval_ms // _GATHERINGS))


def own_documents(processor: Processor, stage: DocumentsStage | ScriptStage, clock: Clock) -> Source:
    """A source of the records that the document itself holds; step by step where stages look at time."""
    one_by_one = looks_at_time(processor)
    if isinstance(stage, ScriptStage):
        return ScriptSource(stage.script, clock, one_by_one=one_by_one)
    return DocumentsSource(stage.documents, clock, one_by_one=one_by_one)


def given_documents(processor: Processor, rows: Sequence[Document], clock: Clock) -> Source:
    """A source of rows that a caller gives in place of a document's own."""
    return DocumentsSource(rows, clock, one_by_one=looks_at_time(processor, given=True))


def changes_source(
    connections: Connections, processor: Processor, stage: ChangesStage, executor: Executor, clock: Clock
) -> PostgresSource:
    """The changes that a replication slot keeps."""
    connection = connections.get(processor, stage.connection_name)
    settings = PostgresSettings(
        url=str(connection.settings["url"]),
        publication=stage.publication,
        slot=stage.slot,
        initial_sync=stage.initial_sync,
        connection_name=connection.name,
    )
    return PostgresSource(settings, executor, clock)


def change_stream_source(
    connections: Connections, processor: Processor, stage: ChangeStreamStage, executor: Executor, clock: Clock
) -> "ChangeStream":
    """The change stream of collections of MongoDB. StreamRefused for values that no server takes."""
    from tidemark.services.source.connectors.changestream import ChangeStream  # noqa: PLC0415 - a driver that few need

    connection = connections.get(processor, stage.connection_name)
    return ChangeStream(stage, str(connection.settings["url"]), executor, clock)


def plugin_source(
    connections: Connections, processor: Processor, stage: PluginStage, executor: Executor, clock: Clock
) -> PluginSource:
    """A source of another package. NotAllowed; what the package lacks shows with the first call."""
    settings = connections.plugin_settings(processor, stage)
    return PluginSource(
        lambda: make_plugin("source", stage.plugin, stage.config, settings),
        f"{stage.path}, plug-in {stage.plugin}",
        executor,
        clock,
    )


_DEFAULTS: Final = SourceSettings()


def files_of(connections: Connections, processor: Processor, stage: FileStage) -> tuple[Any, str]:
    """The file system (fsspec's) of a source of files, and the glob in it."""
    place, config = connections.place_of(processor, stage.connection_name, stage.path_glob, stage.path)
    return filesystem_at(place, stage.path, config)


def file_source(
    connections: Connections,
    outside: Outside,
    processor: Processor,
    stage: FileStage,
    bounds: SourceSettings = _DEFAULTS,
) -> FileSource:
    """Files, below the folder of their connection if they have one."""
    filesystem, glob = files_of(connections, processor, stage)
    settings = FileSourceSettings(
        glob=glob,
        format=stage.format,
        ordered=stage.ordered,
        follow=stage.follow,
        types={field.name: field.type for field in stage.schema.fields},
        files_max=bounds.files_max,
        poll_ms=bounds.file_poll_ms,
        record_bytes_max=processor.options.limits.record_bytes_max,
    )
    return FileSource(settings, filesystem, outside.executor, outside.clock)
