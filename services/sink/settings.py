"""Settings of the sink service (TIDEMARK_EXTRA, JSON). Settings that decide results stand in a document's connection instead."""

from dataclasses import dataclass, field

from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.kafka import KafkaSinkSettings
from tidemark.services.sink.connectors.mongodbsettings import MongoSinkSettings
from tidemark.services.sink.connectors.sql import SqlSinkSettings
from tidemark.services.sink.connectors.staging import StagingSettings
from tidemark.shared.model.message_sizes import sized
from tidemark.shared.model.settings import check_positive
from tidemark.shared.process.settings import ProcessSettings, fitting, settings_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """Of one sink worker. Raises ValueError, naming the setting, where settings contradict each other."""

    kafka: KafkaSinkSettings = field(default_factory=KafkaSinkSettings)
    sql: SqlSinkSettings = field(default_factory=SqlSinkSettings)
    mongodb: MongoSinkSettings = field(default_factory=MongoSinkSettings)
    files: FileSinkSettings = field(default_factory=FileSinkSettings)
    staging: StagingSettings = field(default_factory=StagingSettings)
    sample_rows_max: int = 100
    """Rows of the last batch that a task keeps, for samples."""
    sample_bytes_max: int = sized(256 * 1024, grows=False)
    """Of the documents that a task shows as a sample."""
    target_wait_ms: int = 500
    """Between two tries of a target that is away."""

    def __post_init__(self) -> None:
        check_positive(self, "sink")
        if self.files.handle_bytes_max > self.staging.handle_bytes_max:
            raise ValueError(
                f"sink settings: files.handle_bytes_max {self.files.handle_bytes_max} must not be above"
                f" staging.handle_bytes_max {self.staging.handle_bytes_max}: no larger handle is read back"
            )


def sink_settings(settings: ProcessSettings) -> SinkSettings:
    """From the process' settings, with their relation to the brokers'. ProcessSettingsError."""
    return fitting(settings_of(settings.extra, SinkSettings, "TIDEMARK_EXTRA", others=True), settings)
