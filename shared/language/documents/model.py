"""A processor's document in its parsed form."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidemark.shared.language.forms import PluginUse
from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import DocumentError
from tidemark.shared.language.stages import Connection, Join, Lookup, Sink, Source, Stage, Union
from tidemark.shared.language.stages.base import ConnectionNeed
from tidemark.shared.model.ids import ProcessorName


def all_stages(pipeline: Iterable[Stage]) -> Iterator[Stage]:
    """The stages of a pipeline in order, behind a `$join` or `$union` those of its pipelines, behind a `$lookup` those within it."""
    for stage in pipeline:
        yield stage
        inner: Iterable[Iterable[Stage]] = ()
        match stage:
            case Join():
                inner = (stage.from_,)
            case Union():
                inner = stage.pipelines
            case Lookup():
                inner = (stage.nested,)
        for stages in inner:
            yield from all_stages(stages)


def connection_needs(pipeline: Iterable[Stage], dlq: "Dlq | None") -> Iterator[ConnectionNeed]:
    """The connections that stages and the queue of dead letters name."""
    for stage in all_stages(pipeline):
        yield from stage.needs()
    if dlq is not None:
        yield from dlq.needs()


def plugin_uses(pipeline: Iterable[Stage]) -> Iterator[PluginUse]:
    """The plug-ins that stages name: sources, sinks, lookups, and the formats of topics' records."""
    return (use for stage in all_stages(pipeline) for use in stage.plugins())


@dataclass(frozen=True, slots=True)
class KafkaDlq:
    """Dead letters go to a topic."""

    connection_name: str
    topic: str

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the brokers."""
        yield ConnectionNeed(self.connection_name, ("kafka",), "options.dlq")


@dataclass(frozen=True, slots=True)
class FileDlq:
    """Dead letters go to files, as JSON lines."""

    file_path: str
    connection_name: str | None = None

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection, if the path is no local one."""
        if self.connection_name is not None:
            yield ConnectionNeed(self.connection_name, ("files",), "options.dlq")


@dataclass(frozen=True, slots=True)
class CollectionDlq:
    """Dead letters go into a collection of MongoDB."""

    connection_name: str
    db: str
    coll: str

    def needs(self) -> Iterator[ConnectionNeed]:
        """The connection to the database."""
        yield ConnectionNeed(self.connection_name, ("mongodb",), "options.dlq")


Dlq: TypeAlias = KafkaDlq | FileDlq | CollectionDlq


@dataclass(frozen=True, slots=True)
class TaskBounds:
    """How many tasks each vertex of a service may have where it follows its load."""

    min: int
    max: int


@dataclass(frozen=True, slots=True)
class Options:
    """`options` of a document."""

    dlq: Dlq | None = None
    checkpoint_interval_ms: int | None = None
    """None: the coordinator's setting."""
    alignment_timeout_ms: int | None = None
    """How long operators wait for barriers; None: until all have come (C13)."""
    lateness: Literal["merged", "split"] = "merged"
    stream_meta_field_name: str | None = None
    """The field of outputs that carries `_stream_meta`; None: they do not carry it."""
    tasks: Mapping[str, TaskBounds] = field(default_factory=dict)
    """By service; of one that is not here the number is as it was asked for."""
    limits: Limits = DEFAULTS
    """Those that are written, and the defaults of the others; the stages that they bound have them, too."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A document without errors. `connections` are those written in it; others are kept in the registry."""

    name: ProcessorName | None
    pipeline: tuple[Stage, ...]
    options: Options = Options()
    connections: Mapping[str, Connection] = field(default_factory=dict)
    warnings: tuple[DocumentError, ...] = ()
    """Parts of the document that are valid, but hardly meant."""

    @property
    def source(self) -> Source:
        """The first stage."""
        first = self.pipeline[0]
        assert isinstance(first, Source)
        return first

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources of all pipelines, those that are joined and merged in included."""
        return tuple(stage for stage in all_stages(self.pipeline) if isinstance(stage, Source))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """The stages that write, in order; those of joined pipelines are not among them."""
        return tuple(stage for stage in self.pipeline if isinstance(stage, Sink))
