"""What a record costs in each stage: over declared fields, and over the same records without a schema. Both give the same documents."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.harness.bench.costs import Cost
from tests.harness.bench.line import FRONT, Line, documents
from tests.harness.bench.readings import SENSORS, document, records, source
from tidemark.shared.language.values import to_json
from tidemark.shared.model.records import RawBatch

_SECOND: Final = {"size": 1, "unit": "second"}
_NO_LATENESS: Final = {"allowedLateness": {"size": 0, "unit": "second"}}
_SENSOR_TABLE: Final = [{"id": f"s{i:03d}", "building": i % 9} for i in range(SENSORS)]
_MEASURED: Final = 3


def _grouped(**accumulators: Any) -> list[dict[str, Any]]:
    return [{"$group": {"_id": "$sensor", **accumulators}}]


def _window(pipeline: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"$tumblingWindow": {"interval": {"size": 10, "unit": "second"}, **_NO_LATENESS, "pipeline": pipeline}}]


def _hops(pipeline: Sequence[Any]) -> list[dict[str, Any]]:
    sizes = {"interval": {"size": 10, "unit": "second"}, "hopSize": {"size": 2, "unit": "second"}}
    return [{"$hoppingWindow": {**sizes, **_NO_LATENESS, "pipeline": pipeline}}]


def _sessions(pipeline: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"$sessionWindow": {"partitionBy": "$sensor", "gap": _SECOND, **_NO_LATENESS, "pipeline": pipeline}}]


def _joined(type_: str) -> list[dict[str, Any]]:
    within = {"before": {"size": 20, "unit": "ms"}}
    right = [source(declared=True), {"$match": {"unit": "C"}}, {"$project": {"sensor": 1, "value": 1}}]
    keys = {"leftKey": "$sensor", "rightKey": "$sensor"}
    return [{"$join": {"from": right, **keys, "within": within, "type": type_, "as": "right"}}]


def _computed(class_: str) -> list[dict[str, Any]]:
    return [{"$compute": {"class": f"tests.harness.bench.computed:{class_}", "key": "$sensor"}}]


def _lookup(name: str, **more: Any) -> list[dict[str, Any]]:
    equal = {"localField": "sensor", "foreignField": "id"}
    return [{name: {"from": {"documents": _SENSOR_TABLE}, **equal, "as": "known", **more}}]


_CHECKS: Final = {
    "bsonType": "object",
    "required": ["sensor", "value"],
    "properties": {"sensor": {"bsonType": "string", "pattern": "^s[0-9]{3}$"}, "value": {"bsonType": "double", "minimum": -90}},
}  # fmt: skip

STAGES: Final[Mapping[str, Mapping[str, list[dict[str, Any]]]]] = {
    "stages that take each document by itself": {
        "$match equality": [{"$match": {"unit": "C"}}],
        "$match range and $in": [{"$match": {"value": {"$gte": 10, "$lt": 25}, "unit": {"$in": ["C", "K"]}}}],
        "$match $or": [{"$match": {"$or": [{"ok": True}, {"n": {"$gt": 50_000}}]}}],
        "$match regular expression": [{"$match": {"text": {"$regex": "^ line [0-9]*5 "}}}],
        "$match $expr": [{"$match": {"$expr": {"$gt": ["$n", "$value"]}}}],
        "$match undeclared field": [{"$match": {"place.room": {"$lte": 3}}}],
        "$addFields sum of products": [{"$addFields": {"x": {"$add": [{"$multiply": ["$value", 1.8]}, 32]}}}],
        "$addFields constant": [{"$addFields": {"version": 2, "kind": "reading"}}],
        "$addFields dotted": [{"$addFields": {"in.fahrenheit": {"$multiply": ["$value", 1.8]}}}],
        "$set $cond": [{"$set": {"level": {"$cond": [{"$gte": ["$value", 20]}, "warm", "cold"]}}}],
        "$set $switch": [{"$set": {"level": {"$switch": {"branches": [{"case": {"$lt": ["$value", 10]}, "then": "cold"},
            {"case": {"$lt": ["$value", 20]}, "then": "mild"}], "default": "warm"}}}}],
        "$project fields": [{"$project": {"sensor": 1, "value": 1, "at": 1}}],
        "$project computed": [{"$project": {"sensor": 1, "hour": {"$hour": {"$toDate": "$at"}}, "twice": {"$add": ["$n", "$n"]}}}],
        "$project object": [{"$project": {"of": {"sensor": "$sensor", "unit": "$unit"}, "value": 1}}],
        "$project without": [{"$project": {"text": 0, "when": 0}}],
        "$unset": [{"$unset": ["text", "when"]}],
        "$replaceRoot": [{"$replaceRoot": {"newRoot": {"s": "$sensor", "v": "$value"}}}],
        "$unwind": [{"$unwind": "$tags"}],
        "$redact": [{"$redact": {"$cond": ["$ok", "$$KEEP", "$$PRUNE"]}}],
        "$validate query": [{"$validate": {"validator": {"value": {"$gte": -90}}, "validationAction": "dlq"}}],
        "$validate $jsonSchema": [{"$validate": {"validator": {"$jsonSchema": _CHECKS}, "validationAction": "dlq"}}],
    },
    "stages that look elsewhere": {
        "$lookup": _lookup("$lookup"),
        "$cachedLookup": _lookup("$cachedLookup", ttl={"size": 1, "unit": "hour"}),
        "$join inner": _joined("inner"),
        "$join full": _joined("full"),
    },
    "windows (both halves, on Arrow)": {
        "$tumblingWindow count and sum": _window(_grouped(n={"$sum": 1}, total={"$sum": "$n"})),
        "$tumblingWindow avg, min, max": _window(_grouped(mean={"$avg": "$value"}, low={"$min": "$value"}, high={"$max": "$value"})),
        "$tumblingWindow sum of expression": _window(_grouped(x={"$sum": {"$cond": [{"$gte": ["$value", 20]}, 1, 0]}})),
        "$tumblingWindow stdDev": _window(_grouped(spread={"$stdDevPop": "$value"})),
        "$tumblingWindow first, last": _window(_grouped(first={"$first": "$n"}, last={"$last": "$n"})),
        "$tumblingWindow push": _window(_grouped(all={"$push": "$n"})),
        "$tumblingWindow addToSet": _window(_grouped(units={"$addToSet": "$unit"})),
        "$tumblingWindow topN": _window(_grouped(top={"$topN": {"n": 3, "sortBy": {"value": -1}, "output": "$n"}})),
        "$tumblingWindow percentile": _window(_grouped(p={"$percentile": {"input": "$value", "p": [0.5, 0.95], "method": "approximate"}})),
        "$tumblingWindow approxCountDistinct": _window(_grouped(d={"$approxCountDistinct": "$n"})),
        "$tumblingWindow sort, limit": _window([{"$sort": {"value": -1}}, {"$limit": 10}]),
        "$hoppingWindow of five hops": _hops(_grouped(n={"$sum": 1})),
        "$sessionWindow": _sessions(_grouped(n={"$sum": 1})),
    },
    "computations": {
        "$compute process": _computed("Counts"),
        "$compute process_batch": _computed("CountsOfBatch"),
    },
}  # fmt: skip
"""By kind and name: the stages behind a source of readings."""


class Differs(AssertionError):
    """The two forms of a stage, or of an expression, do not give the same."""


def same(name: str, columns: Sequence[Any], plain: Sequence[Any]) -> None:
    """Differs, with the first difference, unless both are the same multiset of values; the order of a document's fields is left open."""
    found = [
        Counter(json.dumps(to_json(each, canonical=True), sort_keys=True) for each in form) for form in (columns, plain)
    ]
    if found[0] != found[1]:
        raise Differs(
            f"{name}: over declared fields {(found[0] - found[1]).most_common(1)}, without a schema {(found[1] - found[0]).most_common(1)}"
        )


def _once(stages: Sequence[Any], raw: RawBatch, *, declared: bool) -> tuple[dict[str, int], list[Any], int]:
    """(ns by operator, the documents, dead letters) of one run."""
    line = Line(document([source(declared=declared), *stages]))
    found = line.run(raw)
    return dict(line.spent), documents(found), line.letters


def stage_cost(kind: str, name: str, raw: RawBatch, rounds: int = _MEASURED) -> Cost:
    """Of one stage, in both forms; Differs if they are not the same."""
    count = len(raw.positions)
    figures: list[float] = []
    outputs: list[list[Any]] = []
    for declared in (True, False):
        best, found, letters = float("inf"), list[Any](), 0
        for _ in range(rounds):
            spent, found, letters = _once(STAGES[kind][name], raw, declared=declared)
            best = min(best, sum(ns for operator, ns in spent.items() if operator != FRONT) / count)
        figures.append(best)
        outputs.append([*found, {"letters": letters}])
    same(name, *outputs)
    return Cost(kind, name, *figures)


def front_cost(raw: RawBatch, rounds: int = _MEASURED) -> Cost:
    """Of decoding, event time and watermark."""
    spent = [
        min(_once([], raw, declared=d)[0][FRONT] for _ in range(rounds)) / len(raw.positions) for d in (True, False)
    ]
    return Cost("source", "$source: decode, event time, watermark", *spent)


def stage_costs(count: int, rounds: int = _MEASURED) -> list[Cost]:
    """All of them, the front first."""
    raw = records(count)
    found = [front_cost(raw, rounds)]
    return [*found, *(stage_cost(kind, name, raw, rounds) for kind, stages in STAGES.items() for name in stages)]
