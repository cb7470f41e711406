"""`$source` of steps in a given order, for tests: data, watermarks and time."""

from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias

from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    BOOLEAN,
    DATE,
    DOCUMENT,
    Kind,
    Option,
    closed_schema,
    integer,
    list_of,
    read_options,
)
from tidemark.shared.language.stages.sources.base import TIMING, SourceBase, SourceKind
from tidemark.shared.model.values import INT64_MAX, Document


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSource(SourceBase):
    """Data, watermarks and processing time in a given order, for tests; bounded. Partitions are those that steps name, 0 by default."""

    one_task: ClassVar[bool] = True
    script: tuple[ScriptStep, ...]


_STEP_PARTITION: Final = Option("partition", integer(0, 10_000), "0 by default")
_STEPS: Final = {
    "data": (Option("data", DOCUMENT, "a document that arrives", required=True), _STEP_PARTITION),
    "watermark": (Option("watermark", DATE, "the watermark rises to this", required=True), _STEP_PARTITION),
    "processingTime": (Option("processingTime", DATE, "processing time goes to this", required=True),),
    "idle": (Option("idle", BOOLEAN, "true: the partition is idle", required=True), _STEP_PARTITION),
}


def _step(tree: object, path: str, scope: Scope) -> ScriptStep | None:
    kinds = [name for name in _STEPS if type(tree) is dict and name in tree]
    if len(kinds) != 1:
        scope.problems.add(
            path, "a step is one of {data}, {watermark}, {processingTime}, {idle: true}", accepted=_STEPS
        )
        return None
    found = read_options(tree, path, scope, _STEPS[kinds[0]], "a step")
    if kinds[0] not in found:
        return None
    value, partition = found[kinds[0]], found.get("partition")
    if kinds[0] == "data":
        return DataStep(value, partition or 0)
    if kinds[0] == "watermark":
        # The maximum itself says that the input has ended.
        return WatermarkStep(min(int(value), INT64_MAX - 1), partition)
    return ProcessingTimeStep(int(value)) if kinds[0] == "processingTime" else IdleStep(partition)


_OPTIONS: Final = (
    Option(
        "script",
        list_of(Kind(_step, {"anyOf": [closed_schema(o) for o in _STEPS.values()]})),
        "the steps",
        required=True,
    ),
    *TIMING,
)
KIND: Final = SourceKind(ScriptSource, _OPTIONS)
