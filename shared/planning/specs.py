"""Heads of vertices: the work of one kind of service. The operators fused behind a head are specs of `shared.operators.specs`."""

from dataclasses import dataclass

from tidemark.shared.language.documents import Dlq
from tidemark.shared.language.stages import Https, Lookup, Sink, Source
from tidemark.shared.operators.specs import StepSpec


@dataclass(frozen=True, slots=True)
class ReadHead:
    """A source: read splits, decode, watermark, dedupe."""

    stage: Source


@dataclass(frozen=True, slots=True)
class LookupHead:
    """A lookup, or requests: I/O, so it stands before the pure operators of its vertex."""

    stage: Lookup | Https


@dataclass(frozen=True, slots=True)
class StepHead:
    """A Spark stage: one step an epoch (protocol, section 8)."""

    step: StepSpec


@dataclass(frozen=True, slots=True)
class WriteHead:
    """A sink: stage, and release when the checkpoint is committed (protocol, section 6)."""

    stage: Sink


@dataclass(frozen=True, slots=True)
class DeadLetterHead:
    """The dead letter queue: a sink for documents that are dead letters already (`tidemark.shared.operators.dead_letters`)."""

    queue: Dlq | None
    """None: the document names none, and they are collected (`plan_processor`)."""


@dataclass(frozen=True, slots=True)
class CollectHead:
    """The end of a pipeline that has no sink of its own, for trying out: its output is collected."""


Head = ReadHead | LookupHead | StepHead | WriteHead | DeadLetterHead | CollectHead | None
