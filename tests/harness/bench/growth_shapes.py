"""Pipelines and records with a size: what `growth` measures.

A pipeline is written once, with what depends on the size marked: `N` the size itself, `each` so many items of a list, `fields` so many
fields of an object, `nested` an expression around itself. A record is a function of its number and the size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.harness.bench.readings import source

Record = dict[str, Any]
Making = Callable[[int, int], Any]
"""Of a record's number and the size."""


@dataclass(frozen=True)
class _Each:
    make: Callable[[int], Any]
    part: int = 1
    """One of so many."""


@dataclass(frozen=True)
class _Fields:
    name: str
    make: Callable[[int], Any]
    part: int = 1


@dataclass(frozen=True)
class _Nested:
    around: Callable[[Any], Any]


class _Size:
    pass


N: Final = _Size()


def each(make: Callable[[int], Any], part: int = 1) -> _Each:
    """As many items as the size, or one of so many of them."""
    return _Each(make, part)


def fields(name: str, make: Callable[[int], Any], part: int = 1) -> _Fields:
    """As many fields with their numbers behind the name."""
    return _Fields(name, make, part)


def nested(around: Callable[[Any], Any]) -> _Nested:
    """`$n` with this around it, as often."""
    return _Nested(around)


def expanded(template: Any, n: int) -> Any:
    """A template of a size."""
    match template:
        case _Size():
            return n
        case _Fields(name, make, part):
            return {f"{name}{j}": expanded(make(j), n) for j in range(0, n, part)}
        case _Nested(around):
            found: Any = "$n"
            for _ in range(n):
                found = around(found)
            return found
        case str():
            return template.replace("..", ".a" * n)
        case dict():
            return {expanded(name, n): expanded(value, n) for name, value in template.items()}
        case list():
            made: list[Any] = []
            for item in template:
                made += map(item.make, range(0, n, item.part)) if isinstance(item, _Each) else [expanded(item, n)]
            return made
    return template


@dataclass(frozen=True)
class Shape:
    """A pipeline and records of a size."""

    size: int
    """The least that is measured."""
    template: Sequence[Any]
    record: Callable[[int, int], Record]
    most: int | None = None
    """The largest that the language allows, or that is of interest."""
    counts_rows: bool = False
    """Whether the size is the number of records."""

    def pipeline(self, n: int) -> list[Any]:
        """Its stages."""
        found: list[Any] = expanded(list(self.template), n)
        return found

    def rows(self, n: int) -> int:
        """How many records."""
        return n if self.counts_rows else 200


def _with(**makes: Making) -> Callable[[int, int], Record]:
    def record(i: int, n: int) -> Record:
        plain = {"k": f"k{i % 10}", "n": i, "x": i / 3, "t": f"text {i}"}
        return {**plain, **{name: make(i, n) for name, make in makes.items()}}

    return record


def _object(i: int, n: int) -> Record:
    return {f"f{j}": (i * j) % 97 for j in range(n)}


def _flat(i: int, n: int) -> Record:
    return {**_object(i, n), "n": i}


def _items(i: int, n: int) -> list[int]:
    return [(i * 7 + j * 13) % 1009 for j in range(n)]


def _others(i: int, n: int) -> list[int]:
    return _items(i + 3, n)


def _objects(i: int, n: int) -> list[Record]:
    return [{"a": (i + j) % 17, "b": f"b{j}"} for j in range(n)]


def _text(i: int, n: int) -> str:
    return "".join(chr(97 + (i * 7 + j * j) % 26) if j % 7 else " " for j in range(n))


def _wide_text(i: int, n: int) -> str:
    return "".join(chr(0x430 + (i + j) % 30) if j % 5 else " " for j in range(n))


def _arrays_in(i: int, n: int) -> Any:
    value: Any = i
    for _ in range(min(n, 150)):
        value = [value]
    return value


def _objects_in(i: int, n: int) -> Any:
    value: Any = i
    for _ in range(min(n, 150)):
        value = {"a": value}
    return value


def _second(of: Making) -> Callable[[int, int], Record]:
    """Records at these seconds."""
    return _with(s=of)


PLAIN: Final = _with()
_DEEP: Final = 160


def _set(expr: Any) -> list[Any]:
    return [{"$set": {"r": expr}}]


def _window(*inner: Any, seconds: int = 10, late: int = 0) -> list[Any]:
    timing = {"interval": {"size": seconds, "unit": "second"}, "allowedLateness": {"size": late, "unit": "second"}}
    return [{"$tumblingWindow": {**timing, "pipeline": list(inner)}}]


def _group(key: Any, **accumulators: Any) -> dict[str, Any]:
    return {"$group": {"_id": key, **(accumulators or {"c": {"$sum": 1}})}}


def _session(key: str, gap_s: int, late: int = 0) -> list[Any]:
    timing = {"gap": {"size": gap_s, "unit": "second"}, "allowedLateness": {"size": late, "unit": "second"}}
    return [{"$sessionWindow": {"partitionBy": key, **timing, "pipeline": [_group("$k")]}}]


def _join(key: str, ms: int) -> list[Any]:
    within = {"before": {"size": ms, "unit": "ms"}}
    return [{"$join": {"from": [source(declared=False)], "leftKey": key, "rightKey": key, "within": within, "as": "r"}}]


def _validated(properties: Any) -> list[Any]:
    return [{"$validate": {"validator": {"$jsonSchema": {"properties": properties}}}}]


_INT: Final = {"bsonType": "int"}
_EQUAL: Final = {"$match": {"$expr": {"$eq": ["$_id", "$$n"]}}}
_TABLE: Final = {"documents": [each(lambda j: {"_id": j, "v": j})]}
_MONTH_S: Final = 30 * 86_400

_PIPELINES: Final[Mapping[str, Shape]] = {
    "stages, $set": Shape(4, [each(lambda j: {"$set": {f"s{j}": {"$add": ["$n", j]}}})], PLAIN),
    "stages, $match": Shape(4, [each(lambda j: {"$match": {"n": {"$ne": -j}}})], PLAIN),
    "stages, $project": Shape(4, [each(lambda j: {"$project": {"n": 1, "k": 1, "x": {"$add": ["$n", j]}}})], PLAIN),
    "stages, $unset": Shape(4, [each(lambda j: {"$unset": f"f{j}"})], PLAIN),
    "stages, $replaceWith": Shape(4, [each(lambda j: {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"s": j}]}})], PLAIN),
    "fields, $set": Shape(16, [{"$set": fields("s", lambda j: {"$add": ["$n", j]})}], PLAIN),
    "fields, $set to constants": Shape(16, [{"$set": fields("s", lambda j: j)}], PLAIN),
    "fields, $set inside": Shape(16, [{"$set": fields("s.f", lambda j: {"$add": ["$n", j]})}], PLAIN),
    "fields, $project keeps": Shape(16, [{"$project": fields("f", lambda _: 1)}], _with(o=_object)),
    "fields, $project leaves out": Shape(16, [{"$project": fields("f", lambda _: 0)}], PLAIN),
    "fields, an object": Shape(16, _set(fields("s", lambda j: {"$add": ["$n", j]})), PLAIN),
    "conditions, $match": Shape(16, [{"$match": fields("f", lambda _: {"$ne": 5})}], PLAIN),
    "conditions, $or": Shape(16, [{"$match": {"$or": [each(lambda j: {"n": j * 1000})]}}], PLAIN),
    "conditions, $in": Shape(64, [{"$match": {"n": {"$in": [each(lambda j: 2 * j)]}}}], PLAIN),
    "conditions, $in of texts": Shape(64, [{"$match": {"k": {"$in": [each(lambda j: f"k{j}")]}}}], PLAIN),
    "conditions, $in as an expression": Shape(64, _set({"$in": ["$n", [each(lambda j: j)]]}), PLAIN),
    "branches, $switch": Shape(
        16, _set({"$switch": {"branches": [each(lambda j: {"case": {"$eq": ["$n", j]}, "then": j})], "default": 0}}), PLAIN
    ),
    "branches, $cond in $cond": Shape(8, _set(nested(lambda of: {"$cond": ["$n", of, 0]})), PLAIN, most=100),
    "operands, $add": Shape(16, _set({"$add": ["$n", each(lambda j: j)]}), PLAIN),
    "operands, $concat": Shape(16, _set({"$concat": ["$k", each(lambda _: "$t")]}), PLAIN, most=4096),
    "operands, $and": Shape(16, _set({"$and": [each(lambda j: {"$ne": ["$n", -j - 1]})]}), PLAIN),
    "operands, $mergeObjects": Shape(16, _set({"$mergeObjects": [each(lambda j: {f"a{j}": "$n"})]}), PLAIN),
    "operands, $concatArrays": Shape(16, _set({"$concatArrays": [each(lambda _: ["$n"])]}), PLAIN),
    "operands, $setUnion": Shape(16, _set({"$setUnion": [each(lambda j: ["$n", j])]}), PLAIN),
    "operands, $ifNull": Shape(16, _set({"$ifNull": [each(lambda j: f"$m{j}"), 0]}), PLAIN),
    "operands, $max": Shape(16, _set({"$max": ["$n", each(lambda j: j)]}), PLAIN),
    "nested, $add": Shape(8, _set(nested(lambda of: {"$add": [of, 1]})), PLAIN, most=100),
    "nested, $let": Shape(6, _set(nested(lambda of: {"$let": {"vars": {"v": "$x"}, "in": {"$add": [of, "$$v"]}}})), PLAIN, most=24),
    "nested, one that fails": Shape(6, _set(nested(lambda of: {"$add": [of, "$t"]})), PLAIN, most=24),
    "variables, $let": Shape(
        16,
        _set({"$let": {"vars": fields("v", lambda j: {"$add": ["$n", j]}), "in": {"$add": [each(lambda j: f"$$v{j}")]}}}),
        PLAIN,
    ),
    "names, a path that is set": Shape(12, [{"$set": {"o..": "$n"}}], PLAIN, most=199),
    "names, a path that is read": Shape(12, _set("$o.."), _with(o=_objects_in), most=150),
    "names, a path in arrays": Shape(10, [{"$set": {"o..": "$n"}}], _with(o=_arrays_in), most=150),
    "names, a path that is left out": Shape(12, [{"$unset": "o.."}], _with(o=_objects_in), most=150),
    "accumulators": Shape(
        8, _window({"$group": {"_id": "$k", "a": {"$push": {"v": fields("a", lambda j: {"$add": ["$n", j]})}}}}), PLAIN
    ),
    "key, fields": Shape(8, _window(_group(fields("k", lambda j: {"$mod": ["$n", j + 2]}))), PLAIN),
    "validator, properties": Shape(16, _validated(fields("f", lambda _: _INT)), _with(o=_object)),
    "lookup, table": Shape(
        256, [{"$lookup": {"from": _TABLE, "localField": "n", "foreignField": "_id", "as": "f"}}], PLAIN
    ),
    "lookup, table with a pipeline": Shape(
        64, [{"$lookup": {"from": _TABLE, "let": {"n": "$n"}, "pipeline": [_EQUAL], "as": "f"}}], PLAIN
    ),
}  # fmt: skip

_OVER: Final = {"input": "$a", "as": "i"}
_PRUNED: Final = {"$cond": [{"$eq": ["$a", 3]}, "$$PRUNE", "$$DESCEND"]}
_RECORDS: Final[Mapping[str, Shape]] = {
    "record's fields, one is read": Shape(64, _set({"$add": ["$n", 1]}), _flat),
    "record's fields, read by paths": Shape(64, _set({"$add": [each(lambda j: f"$f{j}", part=4)]}), _flat),
    "record's fields, kept": Shape(64, [{"$project": fields("f", lambda _: 1, part=2)}], _flat),
    "record's fields, left out": Shape(64, [{"$unset": [each(lambda j: f"f{j}", part=2)]}], _flat),
    "record's fields, set": Shape(64, [{"$set": fields("f", lambda _: "$n", part=2)}], _flat),
    "record's fields, set and left out": Shape(
        64, [{"$set": fields("g", lambda _: "$n", part=2)}, {"$unset": [each(lambda j: f"g{j}", part=2)]}], _flat
    ),
    "record's fields, validated": Shape(64, _validated(fields("f", lambda _: _INT)), _flat),
    "record's fields, others each": Shape(
        16, _set({"$add": ["$n", 1]}), lambda i, n: {**{f"f{i * n + j}": j for j in range(n)}, "n": i}
    ),
    "object's fields, $objectToArray": Shape(64, _set({"$objectToArray": "$o"}), _with(o=_object)),
    "object's fields, there and back": Shape(64, _set({"$arrayToObject": {"$objectToArray": "$o"}}), _with(o=_object)),
    "object's fields, $mergeObjects": Shape(64, _set({"$mergeObjects": ["$o", "$o", {"z": 1}]}), _with(o=_object)),
    "object's fields, $getField": Shape(64, _set({"$getField": {"field": "f3", "input": "$o"}}), _with(o=_object)),
    "object's fields, $setField": Shape(64, _set({"$setField": {"field": "f3", "input": "$o", "value": 1}}), _with(o=_object)),
    "object's fields, kept": Shape(64, [{"$project": {"o": fields("f", lambda _: 1, part=2)}}], _with(o=_object)),
    "object's fields, left out": Shape(64, [{"$project": {"o": fields("f", lambda _: 0, part=2)}}], _with(o=_object)),
    "object's fields, set": Shape(64, [{"$set": {"o": fields("f", lambda _: "$n", part=2)}}], _with(o=_object)),
    "items, $map": Shape(64, _set({"$map": {**_OVER, "in": {"$add": ["$$i", "$n"]}}}), _with(a=_items)),
    "items, $filter": Shape(64, _set({"$filter": {**_OVER, "cond": {"$gt": ["$$i", 500]}}}), _with(a=_items)),
    "items, $reduce": Shape(
        64, _set({"$reduce": {"input": "$a", "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}), _with(a=_items)
    ),
    "items, $sortArray": Shape(64, _set({"$sortArray": {"input": "$a", "sortBy": 1}}), _with(a=_items)),
    "items, $sortArray of objects": Shape(64, _set({"$sortArray": {"input": "$a", "sortBy": {"a": 1, "b": -1}}}), _with(a=_objects)),
    "items, $setUnion": Shape(64, _set({"$setUnion": ["$a", [1, 2]]}), _with(a=_items)),
    "items, $setIntersection": Shape(64, _set({"$setIntersection": ["$a", "$b"]}), _with(a=_items, b=_others)),
    "items, $setDifference": Shape(64, _set({"$setDifference": ["$a", "$b"]}), _with(a=_items, b=_others)),
    "items, $setIsSubset": Shape(64, _set({"$setIsSubset": ["$a", "$a"]}), _with(a=_items)),
    "items, $setEquals of objects": Shape(64, _set({"$setEquals": ["$a", "$a"]}), _with(a=_objects)),
    "items, $in": Shape(64, _set({"$in": ["$n", "$a"]}), _with(a=_items)),
    "items, $indexOfArray": Shape(64, _set({"$indexOfArray": ["$a", -1]}), _with(a=_items)),
    "items, $reverseArray": Shape(64, _set({"$reverseArray": "$a"}), _with(a=_items)),
    "items, $slice": Shape(64, _set({"$slice": ["$a", 3, N]}), _with(a=_items)),
    "items, $zip": Shape(64, _set({"$zip": {"inputs": ["$a", "$a"]}}), _with(a=_items)),
    "items, $range": Shape(64, _set({"$range": [0, N]}), PLAIN, most=16_384),
    "items, $concatArrays": Shape(64, _set({"$concatArrays": ["$a", "$a"]}), _with(a=_items)),
    "items, $maxN": Shape(64, _set({"$maxN": {"input": "$a", "n": N}}), _with(a=_items)),
    "items, $firstN": Shape(64, _set({"$firstN": {"input": "$a", "n": N}}), _with(a=_items)),
    "items, $percentile": Shape(
        64, _set({"$percentile": {"input": "$a", "p": [0.5], "method": "approximate"}}), _with(a=_items)
    ),
    "items, $sum": Shape(64, _set({"$sum": "$a"}), _with(a=_items)),
    "items, $stdDevPop": Shape(64, _set({"$stdDevPop": "$a"}), _with(a=_items)),
    "items, a path into objects": Shape(64, _set("$a.b"), _with(a=_objects)),
    "items, $match": Shape(64, [{"$match": {"a": 5}}], _with(a=_items)),
    "items, $elemMatch": Shape(64, [{"$match": {"a": {"$elemMatch": {"a": {"$gt": 15}, "b": "b63"}}}}], _with(a=_objects)),
    "items, $unwind": Shape(16, [{"$unwind": "$a"}, {"$set": {"z": {"$add": ["$a", 1]}}}], _with(a=_items)),
    "items, set inside": Shape(64, [{"$set": {"a.z": "$n"}}], _with(a=_objects)),
    "items, project inside": Shape(64, [{"$project": {"a.a": 1}}], _with(a=_objects)),
    "items, unset inside": Shape(64, [{"$unset": "a.a"}], _with(a=_objects)),
    "items, $redact": Shape(16, [{"$redact": _PRUNED}], _with(o=_objects)),
    "items, compared": Shape(64, _set({"$eq": ["$a", "$b"]}), _with(a=_items, b=_items)),
    "items, $group by them": Shape(64, _window(_group("$a")), _with(a=_items)),
    "items, $push": Shape(64, _window(_group("$k", p={"$push": "$a"})), _with(a=_items)),
    "depth, arrays": Shape(10, _set({"$size": "$o"}), _with(o=_arrays_in), most=_DEEP),
    "depth, objects": Shape(10, _set("$o.a"), _with(o=_objects_in), most=_DEEP),
    "depth, set inside arrays": Shape(10, [{"$set": {"o.z": 1}}], _with(o=_arrays_in), most=_DEEP),
    "depth, unset inside arrays": Shape(10, [{"$unset": "o.z"}], _with(o=_arrays_in), most=_DEEP),
    "depth, project inside arrays": Shape(10, [{"$project": {"o.z": 1}}], _with(o=_arrays_in), most=_DEEP),
    "depth, $redact": Shape(10, [{"$redact": _PRUNED}], _with(o=_objects_in), most=_DEEP),
    "depth, compared": Shape(10, _set({"$eq": ["$o", {"a": 1}]}), _with(o=_objects_in), most=_DEEP),
    "depth, $group by it": Shape(10, _window(_group("$o")), _with(o=_objects_in), most=_DEEP),
}  # fmt: skip

_LETTERS: Final = {"$map": {"input": {"$range": [0, {"$strLenCP": "$v"}]}, "in": {"$substrCP": ["$v", "$$this", 1]}}}
_TEXTS: Final[Mapping[str, Shape]] = {
    f"text{kind}, {name}": Shape(256, _set(expr), _with(v=text), most=16_384)
    for kind, text in (("", _text), (" beyond ASCII", _wide_text))
    for name, expr in {
        "$split": {"$split": ["$v", " "]},
        "$replaceAll": {"$replaceAll": {"input": "$v", "find": " ", "replacement": "--"}},
        "$regexFindAll": {"$regexFindAll": {"input": "$v", "regex": "[a-c ]"}},
        "$regexMatch": {"$regexMatch": {"input": "$v", "regex": "x[0-9]$"}},
        "$regexFind": {"$regexFind": {"input": "$v", "regex": " (.)$"}},
        "$toUpper": {"$toUpper": "$v"},
        "$trim": {"$trim": {"input": "$v", "chars": "abcdefgh"}},
        "$strLenCP": {"$strLenCP": "$v"},
        "$substrCP": {"$substrCP": ["$v", 10, N]},
        "$indexOfCP": {"$indexOfCP": ["$v", "qq"]},
        "$concat": {"$concat": ["$v", "$v"]},
        "$toInt": {"$convert": {"input": "$v", "to": "int", "onError": 0}},
        "$strcasecmp": {"$strcasecmp": ["$v", "$v"]},
        "letter by letter": _LETTERS,
        "put together again": {
            "$reduce": {"input": {"$split": ["$v", " "]}, "initialValue": "", "in": {"$concat": ["$$value", "$$this"]}}
        },
    }.items()
}


def _rows(size: int, template: Sequence[Any], record: Callable[[int, int], Record] = PLAIN) -> Shape:
    return Shape(size, template, record, counts_rows=True)


def _all(accumulator: Any) -> list[Any]:
    return _window(_group(None, p=accumulator), seconds=86_400)


def _joined(i: int, n: int) -> int:
    """The second half lies between the first."""
    return 3 * i if i < n // 2 else 3 * (i - n // 2) + 1


_ODD: Final = (1, "x", None, [1], {"a": 1}, 0.5, True)
_PATTERN: Final = {"$concat": ["t.*", {"$toString": "$n"}]}
_ROWS: Final[Mapping[str, Shape]] = {
    "rows, $set": _rows(1000, _set({"$add": ["$n", 1]})),
    "rows, keys": _rows(1000, _window(_group("$n"))),
    "rows, keys of texts": _rows(1000, _window(_group("$t"))),
    "rows, keys of objects": _rows(1000, _window(_group({"a": "$n", "b": "$t"}))),
    "rows, keys of arrays": _rows(1000, _window(_group(["$n", "$t"]))),
    "rows, a window each": _rows(500, _window(_group("$k"), seconds=1), _second(lambda i, _: i)),
    "rows, windows backwards": _rows(500, _window(_group("$k"), seconds=1, late=_MONTH_S), _second(lambda i, n: n - i)),
    "rows, $push": _rows(1000, _all({"$push": "$n"})),
    "rows, $addToSet": _rows(1000, _all({"$addToSet": "$n"})),
    "rows, $addToSet of objects": _rows(1000, _all({"$addToSet": {"a": "$n"}})),
    "rows, $topN": _rows(1000, _all({"$topN": {"n": 100, "sortBy": {"x": -1}, "output": "$n"}})),
    "rows, $percentile": _rows(1000, _all({"$percentile": {"input": "$x", "p": [0.5], "method": "approximate"}})),
    "rows, $concatArrays": _rows(1000, _all({"$concatArrays": "$a"}), _with(a=lambda i, _: [i])),
    "rows, $setUnion": _rows(1000, _all({"$setUnion": "$a"}), _with(a=lambda i, _: [i])),
    "rows, $mergeObjects": _rows(500, _all({"$mergeObjects": "$o"}), _with(o=lambda i, _: {f"f{i}": 1})),
    "rows, $sort": _rows(1000, _window({"$sort": {"x": -1}}, seconds=86_400)),
    "rows, a session each": _rows(500, _session("$n", 1)),
    "rows, one session": _rows(1000, _session("$q", 86_400)),
    "rows, sessions that are joined": _rows(500, _session("$q", 2, _MONTH_S), _second(_joined)),
    "rows, sessions backwards": _rows(500, _session("$q", 2, _MONTH_S), _second(lambda i, n: 3 * (n - i))),
    "rows, joined": _rows(500, _join("$n", 1000)),
    "rows, joined by one key": _rows(500, _join("$q", 5), _with(q=lambda *_: 1, s=lambda i, _: i)),
    "rows, refused": _rows(1000, _set(1), _with(bad=lambda *_: True)),
    "rows, that fail": _rows(1000, _set({"$divide": ["$n", 0]})),
    "rows, other fields each": _rows(500, _set({"$add": ["$n", 1]}), lambda i, _: {"n": i, f"f{i}": i}),
    "rows, of several types": _rows(1000, _set({"$type": "$v"}), _with(v=lambda i, _: _ODD[i % len(_ODD)])),
    "rows, patterns that differ": _rows(300, _set({"$regexMatch": {"input": "$t", "regex": _PATTERN}})),
}

SHAPES: Final[Mapping[str, Shape]] = {**_PIPELINES, **_RECORDS, **_TEXTS, **_ROWS}
