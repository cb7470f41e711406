"""Window stages, and the stages that only stand inside a window."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from tidemark.shared.language.accumulators.base import Accumulator
from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES, parse_accumulator, with_key
from tidemark.shared.language.documents.kinds import (
    DURATION_MAX_MS,
    EXPRESSION,
    Kind,
    Option,
    StageSpec,
    choice,
    closed_schema,
    duration,
    integer,
    read_options,
    read_stage,
)
from tidemark.shared.language.documents.stateless import STATELESS
from tidemark.shared.language.expressions.ast import Literal, Meta, constant, is_bare_name
from tidemark.shared.language.expressions.forms import parse_sort_keys
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import join
from tidemark.shared.language.stages import (
    Count,
    Group,
    GroupField,
    HoppingWindow,
    Https,
    Limit,
    Lookup,
    SessionWindow,
    Sort,
    Stage,
    TumblingWindow,
    Window,
)
from tidemark.shared.model.values import INT64_MAX


def _group(tree: Any, path: str, scope: Scope) -> Group | None:
    if type(tree) is not dict or "_id" not in tree:
        scope.problems.add(path, "$group needs _id, the key (null for one group of all)")
        return None
    _constants(tree["_id"], join(path, "_id"), scope)
    key = parse_expression(tree["_id"], join(path, "_id"), scope)
    if isinstance(key, Literal) and key.value is not None:
        scope.problems.warn(join(path, "_id"), f"the key is {constant(key.value)}: all documents are one group")
    fields = []
    for name, item in tree.items():
        place = join(path, name)
        if name == "_id":
            continue
        if "." in name or name.startswith("$") or not name:
            scope.problems.add(place, f"{name!r} is no name for an output field: no dots, no leading $")
            continue
        accumulator = parse_accumulator(item, place, scope)
        if accumulator is not None:
            _idle_accumulator(accumulator, place, scope)
            fields.append(GroupField(name, with_key(accumulator, key)))
    return Group(path=path, id=key, fields=tuple(fields))


_KEEPING: Final = frozenset({"$push", "$addToSet", "$mergeObjects", "$concatArrays", "$setUnion"})
_NUMERIC: Final = frozenset({"$sum", "$avg", "$stdDevPop", "$stdDevSamp", "$percentile", "$median"})


def _idle_accumulator(accumulator: Accumulator, path: str, scope: Scope) -> None:
    value = accumulator.input.value if isinstance(accumulator.input, Literal) else None
    if type(value) is str and accumulator.op in _NUMERIC:
        scope.problems.warn(
            join(path, accumulator.op), f"{accumulator.op} of {constant(value)}, which is no number, counts nothing"
        )
    elif is_bare_name(value) and accumulator.op not in _KEEPING:
        scope.problems.warn(
            join(path, accumulator.op), f"{accumulator.op} of {constant(value)}: the same of every record"
        )


def _constants(tree: Any, path: str, scope: Scope) -> None:
    """`_id: {a: 1}` looks like a projection, and would be the same key for all: as in the reference it is an error."""
    if type(tree) is not dict or any(name.startswith("$") for name in tree):
        return
    for name, item in tree.items():
        number = type(item) is dict and len(item) == 1 and next(iter(item)).startswith("$number")
        if number or type(item) in (bool, int, float):
            scope.problems.add(
                join(path, name),
                f"a field of the key is an expression such as '$field', found {item!r} ({{$literal: …}} is a constant)",
            )


def _sort(tree: Any, path: str, scope: Scope) -> Sort | None:
    keys = parse_sort_keys(tree, path, scope)
    return Sort(path=path, keys=keys) if keys else None


def _limit(tree: Any, path: str, scope: Scope) -> Limit | None:
    limit = integer(1, INT64_MAX).read(tree, path, scope)
    return None if limit is None else Limit(path=path, limit=limit)


def _count(tree: Any, path: str, scope: Scope) -> Count | None:
    if type(tree) is not str or not tree or tree.startswith("$") or "." in tree or tree == "_id":
        scope.problems.add(
            path, f"$count takes the name of the output field, without $ and dots, not _id; found {tree!r}"
        )
        return None
    return Count(path=path, field=tree)


_GROUP_SCHEMA: Final = {
    "type": "object",
    "required": ["_id"],
    "properties": {"_id": EXPRESSION.schema},
    "additionalProperties": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "propertyNames": {"enum": list(ACCUMULATOR_NAMES)},
    },
}
ONLY_INSIDE: Final[dict[str, StageSpec]] = {
    "$group": StageSpec("One document for each key, filled by accumulators.", _group, _GROUP_SCHEMA),
    "$sort": StageSpec(
        "Orders the window's documents.",
        _sort,
        {"type": "object", "minProperties": 1, "additionalProperties": {"enum": [1, -1]}},
    ),
    "$limit": StageSpec("The first documents of the window.", _limit, {"type": "integer", "minimum": 1}),
    "$count": StageSpec("The number of the window's documents.", _count, {"type": "string", "minLength": 1}),
}
INNER: Final[dict[str, StageSpec]] = {**STATELESS, **ONLY_INSIDE}
_OUTSIDE: Final = dict.fromkeys(
    (
        "$source",
        "$emit",
        "$merge",
        "$tumblingWindow",
        "$hoppingWindow",
        "$sessionWindow",
        "$join",
        "$union",
        "$compute",
    ),
    "does not belong inside a window's pipeline",
)


def _pipeline_of(lookups: Mapping[str, StageSpec]) -> Option:
    """The option of a window's pipeline; `lookups`, requests among them, stand at one of its ends (`unnested`)."""
    specs = {**INNER, **lookups}

    def read(tree: Any, path: str, scope: Scope) -> tuple[Any, ...] | None:
        if type(tree) is not list:
            scope.problems.add(path, "a window's pipeline is a list of stages")
            return None
        stages = [read_stage(item, f"{path}[{i}]", scope, specs, _OUTSIDE) for i, item in enumerate(tree)]
        return tuple(stage for stage in stages if stage is not None)

    kind = Kind(read, {"type": "array", "items": {"$ref": "#/$defs/innerStage"}})
    return Option("pipeline", kind, "what is done with a window's documents", required=True)


def unnested(window: Window, scope: Scope) -> Iterator[Stage]:
    """The window, and the lookups and requests of its pipeline in front of it and behind: others are asked for rows, wherever they stand.

    What stands in front of the first stage that gathers documents does to each what it would do in front of the window; what stands
    behind the last, behind it. One between two of them is noted as an error.
    """
    stages: tuple[Any, ...] = window.pipeline
    gathers = [i for i, stage in enumerate(stages) if isinstance(stage, Group | Sort | Limit | Count)]
    first, last = (gathers[0], gathers[-1]) if gathers else (len(stages), len(stages) - 1)
    looks = [i for i, stage in enumerate(stages) if isinstance(stage, Lookup | Https)]
    front = max((i + 1 for i in looks if i < first), default=0)
    behind = min((i for i in looks if i > last), default=len(stages)) if gathers else len(stages)
    for i in looks:
        if first < i < last:
            scope.problems.add(
                stages[i].path,
                f"{stages[i].name} stands in front of the window's first $group, $sort, $limit or $count, or behind its last",
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


def nodes_in(value: Any) -> Iterator[Any]:
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

_TUMBLING: Final = (_BOUNDARY, _INTERVAL, _OFFSET, _IDLE, _LATENESS, _OUTPUT)
_HOPPING: Final = (_BOUNDARY, _INTERVAL, _HOP, _OFFSET, _IDLE, _LATENESS, _OUTPUT)
_SESSION: Final = (_PARTITION, _GAP, _BOUNDARY, _LATENESS, _OUTPUT)


def _window(made: Callable[..., Window], doc: str, options: tuple[Option, ...]) -> StageSpec:
    def read(tree: Any, path: str, scope: Scope) -> Window | None:
        before = len(scope.problems.errors)
        found = read_options(tree, path, scope, options)
        if type(tree) is dict and tree.get("boundary") == "processingTime":
            found.fields["allowed_lateness_ms"] = 0
            for banned in ("allowedLateness", "idleTimeout"):
                if banned in tree:
                    scope.problems.add(join(path, banned), f"{banned} cannot be set where boundary is processingTime")
        most = scope.limits.windows_of_one_max
        if found.get("interval", 0) > most * found.get("hopSize", DURATION_MAX_MS):
            scope.problems.add(
                join(path, "hopSize"),
                f"the interval has more than {most} hops: every document would be in as many windows; "
                "take a longer hop, windows of windows, or a larger options.limits.windowsPerDocument",
            )
        return None if len(scope.problems.errors) > before else made(path=path, **found.fields)

    return StageSpec(doc, read, closed_schema(options))


def windows(lookups: Mapping[str, StageSpec]) -> dict[str, StageSpec]:
    """The specs; `lookups` are those of the stages that ask others."""
    pipeline = _pipeline_of(lookups)
    return {
        "$tumblingWindow": _window(TumblingWindow, "Windows that follow each other.", (*_TUMBLING, pipeline)),
        "$hoppingWindow": _window(HoppingWindow, "Windows that overlap, or leave gaps.", (*_HOPPING, pipeline)),
        "$sessionWindow": _window(SessionWindow, "Windows of activity by key, ended by a gap.", (*_SESSION, pipeline)),
    }
