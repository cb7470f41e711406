"""The base of all sources: event time, watermark, record ids; and how their options are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, TypeAlias

from tidemark.shared.language.expressions.ast import NULL, ArrayExpr, Call, Expr, FieldPath, ObjectExpr, constant
from tidemark.shared.language.expressions.ast import Literal as Constant
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import (
    EXPRESSION,
    STRING,
    Kind,
    Option,
    Read,
    choice,
    closed_schema,
    duration,
    fraction,
    integer,
    read_options,
)
from tidemark.shared.language.problems import join
from tidemark.shared.language.schema import FIELD_TYPES, NO_SCHEMA, Schema, parse_schema
from tidemark.shared.language.stages.base import Stage, Told
from tidemark.shared.model.values import Date


@dataclass(frozen=True, slots=True)
class MaxSeen:
    """Watermark = the highest event time so far (the default)."""


@dataclass(frozen=True, slots=True)
class BoundedDisorder:
    """Watermark = the highest event time so far − max_delay_ms."""

    max_delay_ms: int


@dataclass(frozen=True, slots=True)
class Percentile:
    """Watermark held back just enough that at most `late_fraction` of the data of a `window_ms` comes late."""

    late_fraction: float
    window_ms: int


@dataclass(frozen=True, slots=True)
class Perfect:
    """Watermark = the event time of the last record, a promise of the source; going back is an error, not late data."""


Watermark: TypeAlias = MaxSeen | BoundedDisorder | Percentile | Perfect


@dataclass(frozen=True, slots=True)
class TimeHorizon:
    """Repeats of a record id are noticed within this much event time."""

    duration_ms: int


@dataclass(frozen=True, slots=True)
class PositionHorizon:
    """Repeats of a record id are noticed within this many positions of the split."""

    positions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBase(Stage):
    """The options of every source. Expressions are evaluated on the decoded document."""

    time_field: Expr | None = None
    """The event time, a date; None: the record's own timestamp (documents and script: the arrival)."""
    schema: Schema = NO_SCHEMA
    record_id: Expr | None = None
    record_id_horizon: TimeHorizon | PositionHorizon | None = None
    """None: a day."""
    record_id_scope: Literal["source", "split"] = "source"
    """split: the document promises that repeats come in the split of their first."""
    watermark: Watermark = MaxSeen()
    partition_idle_timeout_ms: int | None = None
    max_event_time_jump_ms: int | None = None
    from_ms: int | None = None
    """Records with an earlier event time are left to the history in front of this source (D16); its watermark begins here."""
    before_ms: int | None = None
    """Records with this event time or a later one are left to the source behind this history (D16)."""

    one_task: ClassVar[bool] = False
    """Whether its rows have one order, of steps or of commits: then one task takes them."""
    free: ClassVar[frozenset[str]] = frozenset({"watermark", "partition_idle_timeout_ms", "max_event_time_jump_ms"})
    """Fields that may change: positions and event times keep their meaning, and what comes is judged anew from there on."""
    positions_are_times: ClassVar[bool] = False
    """Whether a position is the record's own timestamp, ms, and goes on with the clock where there is no record."""

    @property
    def bounded(self) -> bool:
        """Whether the input ends by itself (E1)."""
        return True

    @property
    def keeps_time(self) -> bool:
        """Whether positions are event times: nothing earlier follows, so the watermark goes with them (SF6)."""
        return self.positions_are_times and self.time_field is None

    @property
    def name(self) -> str:
        """`$source`, also for the parts of one."""
        return "$source"

    def declared(self, schema: Schema) -> Schema:
        """The schema that the source itself declares."""
        return self.schema

    def told(self) -> tuple[Told, ...]:
        """The event time and the record id."""
        given = (("timeField", self.time_field), ("recordId", self.record_id))
        return tuple((name, expr) for name, expr in given if expr is not None)


_STRATEGIES: Final = {
    "maxSeen": (MaxSeen, ()),
    "boundedDisorder": (
        BoundedDisorder,
        (Option("maxDelay", duration(least=0), "how far behind the highest time data may come", required=True),),
    ),
    "percentile": (
        Percentile,
        (
            Option("lateFraction", fraction(), "at most this fraction may come late", required=True),
            Option("window", duration(least=1), "over how much event time the fraction is taken", required=True),
        ),
    ),
    "perfect": (Perfect, ()),
}
_STRATEGY: Final = Option("strategy", choice(*_STRATEGIES), "how the watermark is made", required=True, into=None)


def _watermark(tree: object, path: str, scope: Scope) -> Watermark | None:
    if type(tree) is not dict or tree.get("strategy") not in list(_STRATEGIES):
        read_options(tree, path, scope, (_STRATEGY,), "watermark")
        return None
    before = len(scope.problems.errors)
    strategy = tree["strategy"]
    made, options = _STRATEGIES[strategy]
    found = read_options(tree, path, scope, (_STRATEGY, *options), f"the watermark strategy {strategy}")
    return None if len(scope.problems.errors) > before else made(**found.fields)


_WATERMARK: Final = Kind(
    _watermark, {"oneOf": [closed_schema((_STRATEGY, *options)) for _, options in _STRATEGIES.values()]}
)


def _horizon(tree: object, path: str, scope: Scope) -> TimeHorizon | PositionHorizon | None:
    if type(tree) is dict and "positions" in tree:
        found = read_options(tree, path, scope, (Option("positions", integer(1), "how many positions", required=True),))
        return PositionHorizon(found["positions"]) if "positions" in found else None
    ms = duration(least=1).read(tree, path, scope)
    return None if ms is None else TimeHorizon(ms)


_SCHEMA: Final = Kind(
    lambda tree, path, scope: parse_schema(tree, path, scope.problems),
    {"type": "object", "additionalProperties": {"enum": [t + mark for t in FIELD_TYPES for mark in ("", "?")]}},
)


def _time(tree: object, path: str, scope: Scope) -> Expr:
    expr = parse_expression(tree, path, scope)
    if isinstance(expr, Constant) and type(expr.value) is not Date:
        scope.problems.add(path, f"timeField is {constant(expr.value)}, which is no date")
    elif isinstance(expr, Constant):
        scope.problems.warn(path, "timeField is a constant: all records have one event time")
    elif isinstance(expr, ArrayExpr | ObjectExpr):
        kind = "an array" if isinstance(expr, ArrayExpr) else "a document"
        scope.problems.add(path, f"timeField is {kind}, which is no date; found {tree!r}")
    elif isinstance(expr, Call) and expr.args and all(arg == NULL for arg in expr.args if arg is not None):
        scope.problems.add(path, f"timeField is {expr.op} of null, which is no date")
    return expr


def _check_time(found: Read, path: str, scope: Scope) -> None:
    """A field that is declared to be of another type is a date in no record."""
    match found.get("timeField"), found.get("schema"):
        case FieldPath((name,)), Schema() as schema if (field := schema.get(name)) and field.type != "date":
            way = f"; {{$toDate: ${name}}} makes one of it" if field.type in _TO_DATE else ""
            what = f"timeField is ${name}, which schema declares as {field.declared}, and no date{way}"
            scope.problems.add(join(path, "timeField"), what)


_TO_DATE: Final = frozenset({"string", "long", "double", "decimal"})
"""Declared types that `$toDate` takes."""


def _id(tree: object, path: str, scope: Scope) -> Expr:
    expr = parse_expression(tree, path, scope)
    if isinstance(expr, Constant):
        scope.problems.add(
            path, f"recordId is {constant(expr.value)}: all records but the first would count as repeated"
        )
    return expr


_TIME: Final = Kind(_time, EXPRESSION.schema)
_ID: Final = Kind(_id, EXPRESSION.schema)
TS_FIELD: Final = "tsFieldName"
TIMING: Final = (
    Option("timeField", _TIME, "the event time, a date; without it the record's own timestamp"),
    Option("schema", _SCHEMA, "declared fields: field: type, a trailing ? for what may be null or missing"),
    Option("recordId", _ID, "a repeated record, one with the same id, counts once"),
    Option("recordIdHorizon", Kind(_horizon, {"type": "object"}), "{size, unit} of event time or {positions} of a split"),
    Option("recordIdScope", choice("source", "split"), "split: a promise that a repeat comes in the split of its first (default source)"),
    Option("watermark", _WATERMARK, "how the watermark is made (default maxSeen)"),
    Option("partitionIdleTimeout", duration(least=0, zero_alone=True), "after which a silent partition no longer holds the watermark"),
    Option("maxEventTimeJump", duration(least=1), "a document further ahead than this goes to the dead letters"),
    Option(TS_FIELD, STRING, "a field for the event time: $addFields with {$meta: stream.source.ts}", into=None),
)  # fmt: skip


def _check_ids(found: Read, path: str, scope: Scope) -> None:
    """Positions are of one split, and say nothing of another: repeats are looked for within it."""
    at = join(path, "recordIdHorizon")
    if isinstance(found.get("recordIdHorizon"), PositionHorizon):
        if found.get("recordIdScope") == "source":
            scope.problems.add(
                at, "positions are counted in one split, and recordIdScope is source: give {size, unit} of event time"
            )
        elif "recordIdScope" not in found:
            found.fields["record_id_scope"] = "split"
            scope.problems.warn(
                at,
                "repeats are looked for within each split, whose positions these are: say recordIdScope: split",
            )
    for name in ("recordIdHorizon", "recordIdScope"):
        if name in found and "recordId" not in found:
            scope.problems.warn(join(path, name), "without recordId it has no effect")


@dataclass(frozen=True, slots=True)
class SourceKind:
    """One kind of `$source`: its stage, its options, and what is said of options that do not go together (tree, found, path, scope)."""

    made: Callable[..., SourceBase]
    options: tuple[Option, ...]
    check: Callable[[Any, Read, str, Scope], None] = lambda *_: None

    def read(self, tree: object, path: str, scope: Scope) -> SourceBase | None:
        """The source; errors are noted."""
        before = len(scope.problems.errors)
        found = read_options(tree, path, scope, self.options)
        _check_ids(found, path, scope)
        _check_time(found, path, scope)
        self.check(tree, found, path, scope)
        return None if len(scope.problems.errors) > before else self.made(path=path, **found.fields)
