"""Settings of the sink service (TIDEMARK_EXTRA, JSON). Settings that decide results stand in a document's connection instead."""

from dataclasses import dataclass, field

from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.kafka import KafkaSinkSettings
from tidemark.services.sink.connectors.mongodbsettings import MongoSinkSettings
from tidemark.services.sink.connectors.sql import SqlSinkSettings
from tidemark.services.sink.connectors.staging import StagingSettings
from tidemark.shared.model.knobs import knob
from tidemark.shared.model.positive import check_positive
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, kafka_settings, settings_of
from tidemark.shared.runtime.settings import HEADER_BYTES_MAX


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
    sample_bytes_max: int = knob(256 * 1024)
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
    found = settings_of(settings.extra, SinkSettings, "TIDEMARK_EXTRA", others=True)
    message_bytes_max = kafka_settings(settings).message_bytes_max
    staging = found.staging
    for name, size in (
        ("handle_bytes_max", staging.handle_bytes_max),
        ("mirror_inline_bytes_max", 2 * staging.mirror_inline_bytes_max),
        ("sample_bytes_max", found.sample_bytes_max),
    ):
        if size + HEADER_BYTES_MAX > message_bytes_max:
            place = name if hasattr(found, name) else f"staging.{name}"
            twice = "twice " if name == "mirror_inline_bytes_max" else ""
            message = (
                f"TIDEMARK_EXTRA.{place}: {twice}its {size} bytes and a header of up to {HEADER_BYTES_MAX} must not be above"
                f" message_bytes_max={message_bytes_max} of TIDEMARK_KAFKA_CONFIG: no broker would take the message that carries it"
            )
            raise ProcessSettingsError(message)
    if found.sample_bytes_max + HEADER_BYTES_MAX > settings.runtime.wire.message_bytes_max:
        message = (
            f"TIDEMARK_EXTRA.sample_bytes_max={found.sample_bytes_max} must be below wire.message_bytes_max="
            f"{settings.runtime.wire.message_bytes_max} of TIDEMARK_RUNTIME"
        )
        raise ProcessSettingsError(message)
    return found
