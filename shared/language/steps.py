"""Steps of a script, which is a source for tests: data, watermarks and time in a given order."""

from dataclasses import dataclass
from typing import TypeAlias

from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True)
class DataStep:
    """A document arrives on a partition."""

    data: Document
    partition: int


@dataclass(frozen=True, slots=True)
class WatermarkStep:
    """The watermark of a partition, or of all, rises to at least this (ms)."""

    time_ms: int
    partition: int | None


@dataclass(frozen=True, slots=True)
class ProcessingTimeStep:
    """Processing time goes to this (ms)."""

    time_ms: int


@dataclass(frozen=True, slots=True)
class IdleStep:
    """A partition, or all, is idle until data or a watermark comes."""

    partition: int | None


ScriptStep: TypeAlias = DataStep | WatermarkStep | ProcessingTimeStep | IdleStep
