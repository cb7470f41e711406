"""Cliffs of cost among pipelines drawn at random, over documents drawn at random: each beside the best that its stages cost anywhere.

A stage should cost what stages of its kind cost, whatever stands in front of it, and whatever it says. One that costs many times as much
stands on a cliff. A pipeline's best is the sum of the least that the kinds of its stages cost a row, in any of the pipelines drawn. A stage
that refuses most of its rows is of a kind of its own: it writes a dead letter for each, with the reason and the whole document.

`python -m tests.harness.bench.pipeline_cliffs [SEED] [PIPELINES]` prints the steepest, each with its rate and the stage that limits it.
"""

import gc
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tests.harness.bench.cliffs import drawn
from tests.harness.bench.line import Line
from tests.harness.bench.readings import BEGIN_MS, SPLIT, document, readings, source
from tidemark.shared.model.records import RawBatch

ROWS: Final = 10_000
FLOOR_NS: Final = 100.0
"""What any stage may cost a row."""
_FEW: Final = 10
"""Where less than one row in so many reaches a stage, it tells nothing of what its kind costs."""
_NOISE: Final = 5
"""A stage that costs less than such a part of all before it is not told from their noise: no kind has its best there."""
_FIFTH: Final = 5
"""A pipeline that costs more times its best has less than a fifth of its stages' rate."""
_WINDOWS: Final = ("$tumblingWindow", "$hoppingWindow", "$sessionWindow")
_KEYS: Final = ("$sensor", "$unit", "$place.room", "$n", None)
_ACCUMULATORS: Final = ("$sum", "$avg", "$min", "$max", "$first", "$push", "$addToSet", "$stdDevPop", "$count")


@dataclass(frozen=True)
class Cliff:
    """A pipeline, ns of processor time a record."""

    stages: tuple[Any, ...]
    ns: float
    best_ns: float
    limits: str
    """The stage that costs most beside its best."""

    @property
    def steepness(self) -> float:
        """How many times its best it costs."""
        return self.ns / self.best_ns

    @property
    def thousands_per_s(self) -> float:
        """Records of one thread, in thousands a second."""
        return 1_000_000 / self.ns


# --- what is drawn ----------------------------------------------------------------------------------------------------


def records(chooser: random.Random, count: int) -> RawBatch:
    """Readings with fields that are missing, null, of another type, nested or long in some of the documents."""
    odd = [None, "text", 7, 2.5, True, [1, "a", None], {"room": 1, "deep": {"x": [1]}}, 2**40, "x" * 300]
    found = readings(count, chooser.randrange(1000))
    for name in chooser.sample(["n", "value", "text", "tags", "place", "more", "wide"], chooser.randint(0, 4)):
        part, value = chooser.choice([0.001, 0.3, 1.0]), chooser.choice(odd)
        if name in ("more", "wide"):
            value = {f"f{i}": value for i in range(chooser.choice([1, 20]))}
        for each in found:
            if chooser.random() < part:
                each[name] = value
    positions = np.arange(count, dtype=np.int64)
    values = pa.array([json.dumps(each).encode() for each in found], type=pa.binary())
    return RawBatch(SPLIT, 0, positions, positions * 0 + BEGIN_MS, values)


def stages(chooser: random.Random) -> list[Any]:
    """A pipeline behind its source."""
    found = [_stateless(chooser) for _ in range(chooser.randint(0, 3))]
    if chooser.random() < 0.2:
        found.append(_join(chooser))
    if chooser.random() < 0.2:
        found.append(_lookup(chooser))
    if chooser.random() < 0.7:
        found.append(_window(chooser))
        found += [_computed(chooser, ["$c", "$s"]) for _ in range(chooser.randint(0, 1))]
    return found or [_stateless(chooser)]


def _stateless(chooser: random.Random) -> Any:
    kind = chooser.choice([
        "$match", "$match", "$addFields", "$addFields", "$project", "$unset", "$replaceRoot", "$redact", "$unwind", "inside", "inside",
    ])  # fmt: skip
    match kind:
        case "inside":
            return _inside(chooser)
        case "$match":
            return {
                "$match": chooser.choice(
                    [{"$expr": drawn(chooser, "bool", 1)[0]}, {"n": {"$gte": 0}}, {"place.room": {"$ne": 3}}]
                )
            }
        case "$addFields":
            return {"$addFields": {f"x{i}": drawn(chooser, "any", 2)[0] for i in range(chooser.randint(1, 3))}}
        case "$project":
            names = chooser.sample(["sensor", "unit", "n", "value", "text", "tags", "place", "ok"], 4)
            return {"$project": {**dict.fromkeys(names, 1), "at": 1, "y": drawn(chooser, "any", 1)[0]}}
        case "$unset":
            return {"$unset": chooser.choice(["text", "place.floor", "tags"])}
        case "$replaceRoot":
            return {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"z": drawn(chooser, "any", 1)[0]}]}}}
        case "$redact":
            return {"$redact": {"$cond": [{"$gt": ["$n", 100]}, "$$KEEP", "$$PRUNE"]}}
        case _:
            return {"$unwind": "$tags"}


def _inside(chooser: random.Random) -> Any:
    """A stage that keeps, makes or looks at fields of fields."""
    expr = drawn(chooser, "any", 1)[0]
    return chooser.choice([
        {"$addFields": {"place.zone": expr}},
        {"$addFields": {"made": {"at": "$at", "deep": {"value": expr}}}},
        {"$addFields": {"tags.seen": expr}},
        {"$project": {"place.room": 1, "sensor": 1, "n": 1, "at": 1, "tags": 1}},
        {"$project": {"sensor": 1, "at": 1, "n": 1, "tags": 1, "place": {"room": 1, "zone": expr}}},
        {"$project": {"at": 1, "n": 1, "of": {"sensor": "$sensor", "value": expr}}},
        {"$project": {"place.floor": 0, "text": 0}},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": [{"sensor": "$sensor", "at": "$at", "n": "$n"}, "$place"]}}},
        {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$place", {"sensor": "$sensor", "at": "$at", "n": "$n"}]}}},
        {"$replaceRoot": {"newRoot": {"$ifNull": ["$more", "$$ROOT"]}}},
        {"$match": {"place.room": {"$in": [1, 2, 3]}, "tags": "a"}},
        {"$match": {"$or": [{"text": {"$regex": "^ line [0-9]"}}, {"value": {"$gt": 15}}]}},
        {"$match": {"tags": {"$elemMatch": {"$in": ["a", "x"]}}, "more.f0": {"$exists": False}}},
        {"$unwind": {"path": "$tags", "includeArrayIndex": "index", "preserveNullAndEmptyArrays": True}},
        {"$validate": {"validator": {"$jsonSchema": {"required": ["sensor", "n"], "properties": {"n": {"bsonType": "number"}}}}}},
        {"$addFields": {"n": {"$cond": [{"$isNumber": "$n"}, "$n", 0]}, "all": {"$objectToArray": "$place"}}},
        {"$addFields": {"found": {"$arrayElemAt": ["$tags", {"$mod": [{"$toInt": "$at"}, 2]}]}}},
    ])  # fmt: skip


def _computed(chooser: random.Random, names: Sequence[str]) -> Any:
    return {"$addFields": {"w": {"$multiply": [chooser.choice(names), 2]}}}


def _window(chooser: random.Random) -> Any:
    kind = chooser.choice(_WINDOWS)
    fields = {"c": {"$sum": 1}, "s": {"$sum": "$n"}}
    for i in range(chooser.randint(0, 2)):
        op = chooser.choice(_ACCUMULATORS)
        fields[f"a{i}"] = {op: {}} if op == "$count" else {op: drawn(chooser, chooser.choice(["number", "text"]), 1)[0]}
    key = chooser.choice(_KEYS) if chooser.random() < 0.7 else {"s": "$sensor", "r": chooser.choice(_KEYS)}
    inner: list[Any] = [_stateless(chooser)] if chooser.random() < 0.3 else []
    if chooser.random() < 0.2:
        inner.append({"$sort": {"n": -1}})
    inner.append({"$group": {"_id": key, **fields}})
    if chooser.random() < 0.3:
        inner.append(
            chooser.choice(
                [{"$sort": {"s": -1}}, {"$group": {"_id": "$c", "m": {"$max": "$s"}}}, {"$match": {"c": {"$gt": 1}}}]
            )
        )
    timing: dict[str, Any] = {"interval": {"size": 10, "unit": "second"}}
    if kind == "$hoppingWindow":
        timing["hopSize"] = {"size": 5, "unit": "second"}
    if kind == "$sessionWindow":
        timing = {"partitionBy": "$sensor", "gap": {"size": 2, "unit": "second"}}
    return {kind: {**timing, "allowedLateness": {"size": 0, "unit": "second"}, "pipeline": inner}}


def _join(chooser: random.Random) -> Any:
    within = {"before": {"size": 100, "unit": "ms"}}
    from_ = [source(declared=chooser.random() < 0.5)]
    return {"$join": {"from": from_, "leftKey": "$sensor", "rightKey": "$sensor", "within": within, "as": "right"}}


def _lookup(chooser: random.Random) -> Any:
    table = {"documents": [{"_id": f"s{i:03d}", "name": f"sensor {i}"} for i in range(100)]}
    return {"$lookup": {"from": table, "localField": "sensor", "foreignField": "_id", "as": "found"}}


# --- what it costs ----------------------------------------------------------------------------------------------------


class _Cost(NamedTuple):
    """Of a pipeline's beginning, for all records."""

    ns: float
    rows: int
    """That come out."""
    letters: int


class _Step(NamedTuple):
    """Of a stage, what a pipeline costs with it beyond what it costs without it and what follows."""

    kind: str
    ns: float
    entering: int
    """Rows, of both sides of a join."""


def _kind(stage: Any, letters: int, entering: int) -> str:
    (name,) = stage
    return f"{name}, refusing" if letters * 2 > entering else str(name)


def _cost(pipeline: Sequence[Any], raw: RawBatch, rounds: int) -> _Cost:
    best, rows, letters = float("inf"), 0, 0
    for _ in range(rounds):
        line = Line(document(pipeline))
        rows = sum(batch.num_rows for batch in line.run(raw))
        best, letters = min(best, float(sum(line.spent.values()))), line.letters
    return _Cost(best, rows, letters)


def cliffs(seed: int, count: int, rows: int = ROWS, rounds: int = 2) -> list[Cliff]:
    """The steepest first."""
    chooser = random.Random(seed)
    measured: list[tuple[list[Any], list[_Cost]]] = []
    for _ in range(count):
        raw = records(chooser, rows)
        pipeline = [source(declared=chooser.random() < 0.5), *stages(chooser)]
        costs = [_cost(pipeline[:length], raw, rounds) for length in range(1, len(pipeline) + 1)]
        measured.append((pipeline, costs))
    least: dict[str, float] = {}
    for pipeline, costs in measured:
        befores = [0.0, *(cost.ns for cost in costs)]
        for (kind, ns, entering), before in zip(_steps(pipeline, costs, rows), befores, strict=False):
            if entering * _FEW >= rows and ns * _NOISE >= before:
                least[kind] = min(least.get(kind, float("inf")), ns / entering)
    return sorted((_cliff(*each, rows, least) for each in measured), key=lambda cliff: cliff.steepness, reverse=True)


def _steps(pipeline: list[Any], costs: list[_Cost], rows: int) -> list[_Step]:
    found = []
    for stage, cost, before in zip(pipeline, costs, [_Cost(0.0, rows, 0), *costs[:-1]], strict=True):
        entering = max(1, before.rows) + (rows if "$join" in stage else 0)
        kind = _kind(stage, cost.letters - before.letters, entering)
        found.append(_Step(kind, max(0.0, cost.ns - before.ns), entering))
    return found


def _cliff(pipeline: list[Any], costs: list[_Cost], rows: int, least: dict[str, float]) -> Cliff:
    steps = _steps(pipeline, costs, rows)
    bests = [(least.get(kind, 0.0) + FLOOR_NS) * entering for kind, _, entering in steps]
    beyond = [ns - best for (_, ns, _), best in zip(steps, bests, strict=True)]
    worst = max(range(len(steps)), key=beyond.__getitem__)
    kind, ns, entering = steps[worst]
    said = json.dumps(pipeline[worst])
    return Cliff(
        tuple(pipeline), costs[-1].ns / rows, sum(bests) / rows, f"{kind} {ns / entering:,.0f} ns a row: {said[:300]}"
    )


def table(found: Sequence[Cliff], most: int) -> str:
    """The steepest for people."""
    lines = [f"{'times':>6} {'ns':>8} {'best ns':>8} {'1000/s':>7}  limited by"]
    lines += [
        f"{c.steepness:>6.1f} {c.ns:>8,.0f} {c.best_ns:>8,.0f} {c.thousands_per_s:>7,.0f}  {c.limits}"
        for c in found[:most]
    ]
    below = sum(cliff.steepness > _FIFTH for cliff in found)
    return "\n".join([*lines, f"{below} of {len(found)} pipelines below a fifth of their stages' best"])


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    seed, count = [*numbers, *(1, 200)[len(numbers) :]]
    gc.freeze()  # as a service does when it has loaded its modules
    sys.stdout.write(table(cliffs(seed, count), 40) + "\n")
