"""A processor's document in its parsed form."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.language.stages import Sink, Source, Stage
from shared.language.stages.source import Connection
from shared.model.ids import ProcessorName


@dataclass(frozen=True, slots=True)
class KafkaDlq:
    """Dead letters go to a topic."""

    connection_name: str
    topic: str


@dataclass(frozen=True, slots=True)
class FileDlq:
    """Dead letters go to files, as JSON lines."""

    file_path: str
    connection_name: str | None = None


@dataclass(frozen=True, slots=True)
class TableDlq:
    """Dead letters go to a table."""

    connection_name: str
    table: str


@dataclass(frozen=True, slots=True)
class Options:
    """`options` of a document."""

    dlq: KafkaDlq | FileDlq | TableDlq | None = None
    checkpoint_interval_ms: int | None = None
    """None: the coordinator's setting."""
    lateness: Literal["merged", "split"] = "merged"
    stream_meta_field_name: str | None = None
    """The field of outputs that carries `_stream_meta`; None: they do not carry it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A document without errors. `connections` are those written in it; others are kept in the registry."""

    name: ProcessorName | None
    pipeline: tuple[Stage, ...]
    options: Options = Options()
    connections: Mapping[str, Connection] = field(default_factory=dict)

    @property
    def source(self) -> Source:
        """The first stage."""
        first = self.pipeline[0]
        assert isinstance(first, Source)
        return first

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The stages that write, in order; those of joined pipelines are not among them."""
        return tuple(stage for stage in self.pipeline if isinstance(stage, Sink))
