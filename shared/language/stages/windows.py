"""The windows: `$tumblingWindow`, `$hoppingWindow`, `$sessionWindow`."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import Expr, Meta, constant
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import (
    DURATION_MAX_MS,
    EXPRESSION,
    Kind,
    Option,
    StageSpec,
    choice,
    closed_schema,
    duration,
    read_options,
    read_stages,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import https, lookup
from tidemark.shared.language.stages.base import Gathering, InnerStage, Stage, written
from tidemark.shared.language.stages.https import Https
from tidemark.shared.language.stages.inner import GATHERING_NAMES, INNER
from tidemark.shared.language.stages.lookup import Lookup

Boundary = Literal["eventTime", "processingTime"]
OutputTime = Literal["end", "earliest", "latest"]
DEFAULT_LATENESS_MS = 3000
"""`allowedLateness` of an event-time window that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBase(Stage):
    """The options of all windows. With `processingTime` there is no lateness (0) and no idle time-out."""

    pipeline: tuple[InnerStage, ...]
    boundary: Boundary = "eventTime"
    allowed_lateness_ms: int = DEFAULT_LATENESS_MS
    output_time: OutputTime = "end"

    def written(self, names: Fields) -> Fields:
        """The fields that its pipeline writes."""
        return written(self.pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class TumblingWindow(WindowBase):
    """Windows [k · interval + offset, + interval)."""

    interval_ms: int
    offset_ms: int = 0
    idle_timeout_ms: int | None = None

    @property
    def hop_size_ms(self) -> int:
        """A tumbling window hops by its interval."""
        return self.interval_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class HoppingWindow(WindowBase):
    """Windows [k · hop + offset, + interval); with a hop above the interval there are gaps."""

    interval_ms: int
    hop_size_ms: int
    offset_ms: int = 0
    idle_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(WindowBase):
    """Sessions [first, last + gap) per key; a missing key is null; None: one key for all."""

    gap_ms: int
    partition_by: Expr | None = None


Window: TypeAlias = TumblingWindow | HoppingWindow | SessionWindow


INSIDE: Final[dict[str, StageSpec]] = {
    **INNER,
    "$lookup": lookup.SPEC,
    "$cachedLookup": lookup.CACHED,
    "$https": https.SPEC,
}
"""The stages of a window's pipeline. Lookups and requests stand at one of its ends (`unnested`)."""


def _stages(tree: object, path: str, scope: Scope) -> tuple[Any, ...] | None:
    return read_stages(tree, path, scope, INSIDE, "does not belong inside a window's pipeline")


def unnested(window: Window, scope: Scope) -> Iterator[Stage]:
    """The window, and the lookups and requests of its pipeline in front of it and behind: others are asked for rows, wherever they stand.

    What stands in front of the first stage that gathers documents does to each what it would do in front of the window; what stands
    behind the last, behind it. One between two of them is noted as an error.
    """
    stages: tuple[Any, ...] = window.pipeline
    gathers = [i for i, stage in enumerate(stages) if isinstance(stage, Gathering)]
    first, last = (gathers[0], gathers[-1]) if gathers else (len(stages), len(stages) - 1)
    looks = [i for i, stage in enumerate(stages) if isinstance(stage, Lookup | Https)]
    front = max((i + 1 for i in looks if i < first), default=0)
    behind = min((i for i in looks if i > last), default=len(stages)) if gathers else len(stages)
    for i in looks:
        if first < i < last:
            scope.problems.add(
                stages[i].path,
                f"{stages[i].name} stands in front of the window's first {GATHERING_NAMES}, or behind its last",
            )
    if front and (why := _why_inside(window, stages[:front])):
        scope.problems.add(stages[front - 1].path, f"{stages[front - 1].name} {why}; put it in front of the window")
    yield from stages[:front]
    yield replace(window, pipeline=stages[front:behind])
    yield from stages[behind:]


def _why_inside(window: Window, stages: Sequence[Stage]) -> str | None:
    """Why stages do not do the same in front of the window."""
    if isinstance(window, SessionWindow) and window.partition_by is not None:
        return "would change documents before partitionBy sees them"
    for node in nodes_in(stages):
        if isinstance(node, Meta) and node.names[:1] in ((), ("window",)):
            return "stands behind what reads the window's metadata"
    return None


def nodes_in(value: object) -> Iterator[Any]:
    """All parsed things within a parsed thing."""
    stack = [value]
    while stack:
        item = stack.pop()
        yield item
        if is_dataclass(item) and not isinstance(item, type):
            stack.extend(getattr(item, field.name) for field in fields(item))
        elif isinstance(item, tuple | list):
            stack.extend(item)


_BOUNDARY: Final = Option(
    "boundary", choice("eventTime", "processingTime"), "which time windows go by (default eventTime)"
)
_LATENESS: Final = Option(
    "allowedLateness", duration(least=0, zero_alone=True), "how long after its end a window stays open (default 3 s)"
)
_IDLE: Final = Option("idleTimeout", duration(least=0, zero_alone=True), "after which a window without arrivals closes")
_OUTPUT: Final = Option(
    "outputTime",
    choice("end", "earliest", "latest"),
    "the event time of what comes out: of its last instant (default), or of the earliest or latest element that was on time",
)
_OFFSET: Final = Option(
    "offset",
    duration(least=-(2**31), size_name="offsetFromUtc"),
    "how much later than 1970 modulo the hop windows begin",
)
_INTERVAL: Final = Option("interval", duration(least=1), "the length of a window", required=True)
_HOP: Final = Option("hopSize", duration(least=1), "how far apart windows begin", required=True)
_GAP: Final = Option("gap", duration(least=1), "how long after its last document a session ends", required=True)
_PARTITION: Final = Option("partitionBy", EXPRESSION, "the key of a session; without it all documents share sessions")
_PIPELINE: Final = Option(
    "pipeline",
    Kind(_stages, {"type": "array", "items": {"$ref": "#/$defs/innerStage"}}),
    "what is done with a window's documents",
    required=True,
)


def _window(made: Callable[..., Window], doc: str, options: tuple[Option, ...]) -> StageSpec:
    def read(tree: object, path: str, scope: Scope) -> Window | None:
        before = len(scope.problems.errors)
        found = read_options(tree, path, scope, options)
        if type(tree) is dict and tree.get("boundary") == "processingTime":
            found.fields["allowed_lateness_ms"] = 0
            for banned in ("allowedLateness", "idleTimeout"):
                if banned in tree:
                    scope.problems.add(join(path, banned), f"{banned} cannot be set where boundary is processingTime")
        key = found.get("partitionBy")
        if isinstance(key, Constant) and key.value is not None:
            what = f"partitionBy is {constant(key.value)}: all records are one session"
            scope.problems.warn(join(path, "partitionBy"), what)
        most = scope.limits.windows_of_one_max
        if found.get("interval", 0) > most * found.get("hopSize", DURATION_MAX_MS):
            scope.problems.add(
                join(path, "hopSize"),
                f"the interval has more than {most} hops: every document would be in as many windows; "
                "take a longer hop, windows of windows, or a larger options.limits.windowsPerDocument",
            )
        return None if len(scope.problems.errors) > before else made(path=path, **found.fields)

    return StageSpec(doc, read, closed_schema(options))


TUMBLING: Final = _window(
    TumblingWindow,
    "Windows that follow each other.",
    (_BOUNDARY, _INTERVAL, _OFFSET, _IDLE, _LATENESS, _OUTPUT, _PIPELINE),
)
HOPPING: Final = _window(
    HoppingWindow,
    "Windows that overlap, or leave gaps.",
    (_BOUNDARY, _INTERVAL, _HOP, _OFFSET, _IDLE, _LATENESS, _OUTPUT, _PIPELINE),
)
SESSION: Final = _window(
    SessionWindow,
    "Windows of activity by key, ended by a gap.",
    (_PARTITION, _GAP, _BOUNDARY, _LATENESS, _OUTPUT, _PIPELINE),
)
