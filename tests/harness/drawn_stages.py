"""Queries, expressions and stages drawn over the fields of `drawn_records`: every operator of the language, nested, over dotted paths."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.harness.drawn_records import NAMES, Records
from tests.harness.every_operator import expression
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.values import ExtendedJsonError, parse_json, to_json

_CONSTANTS: Final[tuple[Any, ...]] = (
    0, 1, -1, 2.5, -0.0, "", "a", "b", "é", "17", True, False, None, [], [1], [None], ["a", "b"], [[1]], {}, {"a": 1}, {"b": None},
    {"a": 1, "b": 2},
    {"$numberDecimal": "1.50"}, {"$numberDecimal": "NaN"}, {"$numberDouble": "NaN"}, {"$numberDouble": "Infinity"}, {"$numberLong": "5"},
    {"$numberLong": "9223372036854775807"}, {"$numberDouble": "-0"}, {"$date": "2020-02-29T12:00:00.123Z"},
    {"$oid": "0123456789abcdef01234567"}, {"$minKey": 1}, {"$maxKey": 1},
    {"$timestamp": {"t": 1, "i": 2}}, {"$binary": {"base64": "AQID", "subType": "00"}},
    2**53 + 1, 1e308, "a\0",
)  # fmt: skip
_TYPES: Final = ("double", "string", "object", "array", "binData", "objectId", "bool", "date", "null", "regex", "int", "timestamp", "long",
                 "decimal",
                 "minKey", "maxKey", "number")  # fmt: skip
_OPERATORS: Final = sorted(OPERATORS)
_PATTERNS: Final = ("^a", "[0-9]", "", "B$", ".", "^$", "é")


class Queries:
    """MongoDB's queries, all operators. within: whether an `$expr` may stand there."""

    def __init__(self, chooser: random.Random) -> None:
        self._chooser = chooser
        self.metas = ["stream.source", *(f"stream.source.{name}" for name in ("partition", "offset", "ts", "topic"))]
        """What `$meta` may be asked for."""

    def query(self, depth: int = 3, *, within: bool = False) -> dict[str, Any]:
        """A query document."""
        chooser = self._chooser
        drawn = chooser.random()
        if depth > 0 and drawn < 0.25:
            parts = [self.query(depth - 1, within=within) for _ in range(chooser.randint(1, 3))]
            return {chooser.choice(("$and", "$or", "$nor")): parts}
        if drawn < 0.32 and not within:
            return {"$expr": self.expression()}
        if drawn < 0.4:
            return {"$jsonSchema": self.schema(depth)}
        return {self.path(): self.asked(depth) for _ in range(chooser.choice((1, 1, 2)))}

    def expression(self) -> Any:
        """Any expression over the fields."""
        chooser = self._chooser
        leaves = [f"${self.path()}" for _ in range(3)] + [self.leaf()]
        return expression(chooser, chooser.choice(_OPERATORS), leaves)

    def leaf(self) -> Any:
        """A constant, a variable, or what is told beside the document."""
        if self._chooser.random() < 0.2:
            return {"$meta": self._chooser.choice(self.metas)}
        return self._chooser.choice(EXPRESSION_LEAVES)

    def path(self) -> str:
        """A dotted path; parts may be numbers."""
        chooser = self._chooser
        names = [chooser.choice(NAMES)]
        while len(names) < 4 and chooser.random() < 0.45:
            names.append(chooser.choice(NAMES) if chooser.random() < 0.7 else chooser.choice(("0", "1", "00", "é")))
        return ".".join(names)

    def constant(self) -> Any:
        """One that JSON can write."""
        return self._chooser.choice(_CONSTANTS)

    def regex(self) -> dict[str, Any]:
        """As a value."""
        return {
            "$regularExpression": {
                "pattern": self._chooser.choice(_PATTERNS),
                "options": self._chooser.choice(("", "i")),
            }
        }

    def asked(self, depth: int) -> Any:
        """What is asked of a field."""
        chooser = self._chooser
        if chooser.random() < 0.1:
            return self.constant() if chooser.random() < 0.8 else self.regex()
        found: dict[str, Any] = {}
        for _ in range(chooser.choice((1, 1, 1, 2))):
            found |= self._test(depth)
        return found

    def _test(self, depth: int) -> dict[str, Any]:
        chooser = self._chooser
        if depth > 0 and chooser.random() < 0.3:
            inner = self.asked(depth - 1)
            match chooser.randrange(4):
                case 0:
                    return {"$not": inner if _asks(inner) else self.regex()}
                case 1:
                    return {"$elemMatch": inner if _asks(inner) else {"$eq": inner}}
                case 2:
                    return {"$elemMatch": self.query(depth - 1, within=True)}
                case _:
                    parts = [{"$elemMatch": self.query(depth - 1, within=True)} for _ in range(chooser.randint(1, 2))]
                    return {"$all": parts}
        several = [self.constant() for _ in range(chooser.choice((0, 1, 2, 3, 20)))]
        name, value = chooser.choice((
            *((each, self.constant()) for each in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte")),
            *((each, several + ([self.regex()] if chooser.random() < 0.2 else [])) for each in ("$in", "$nin", "$all")),
            ("$exists", chooser.choice((True, False, 0, None, "a"))), ("$size", chooser.randint(0, 3)),
            ("$type", chooser.choice((chooser.choice(_TYPES), [chooser.choice(_TYPES) for _ in range(2)], chooser.choice((1, 2, 16, 18))))),
            ("$mod", [chooser.choice((1, 2, 3, -2, -1, 2.5, {"$numberLong": "9223372036854775807"})), chooser.choice((0, 1, -1, 1.9))]),
            ("$regex", chooser.choice(_PATTERNS)),
            (chooser.choice(("$bitsAllSet", "$bitsAllClear", "$bitsAnySet", "$bitsAnyClear")),
             chooser.choice((0, 1, 5, [0, 2], [], [63], [200], {"$binary": {"base64": "AQ==", "subType": "00"}}))),
        ))  # fmt: skip
        return {
            name: value,
            **(
                {"$options": chooser.choice(("", "i", "m", "s"))} if name == "$regex" and chooser.random() < 0.5 else {}
            ),
        }

    def schema(self, depth: int) -> dict[str, Any]:
        """A `$jsonSchema`."""
        chooser = self._chooser
        found: dict[str, Any] = {}
        for _ in range(chooser.choice((0, 1, 1, 2))):
            found |= self._keyword(depth)
        return found

    def _keyword(self, depth: int) -> dict[str, Any]:
        chooser = self._chooser
        number = chooser.choice((0, 1, -1, 2.5, {"$numberDecimal": "1.5"}, {"$numberLong": "5"}))
        simple: tuple[dict[str, Any], ...] = (
            {"bsonType": chooser.choice((chooser.choice(_TYPES), [chooser.choice(_TYPES), "null"]))}, {"minimum": number},
            {"maximum": number, "exclusiveMaximum": chooser.random() < 0.5}, {"minimum": number, "exclusiveMinimum": True},
            {"multipleOf": chooser.choice((2, 0.5, {"$numberDecimal": "0.1"}))}, {"minLength": chooser.randint(0, 2)},
            {"maxLength": chooser.randint(0, 2)}, {"pattern": chooser.choice(_PATTERNS)},
            {"enum": [self.constant() for _ in range(chooser.choice((1, 3)))]}, {"minItems": 1}, {"maxItems": 1}, {"uniqueItems": True},
            {"required": [chooser.choice(NAMES)]}, {"minProperties": 1}, {"maxProperties": 1}, {"additionalProperties": False},
            {"dependencies": {"a": ["b"]}},
        )  # fmt: skip
        if depth <= 0 or chooser.random() < 0.4:
            return chooser.choice(simple)
        inner, other = self.schema(depth - 1), self.schema(depth - 1)
        nested: tuple[dict[str, Any], ...] = (
            {"properties": {chooser.choice(NAMES): inner, chooser.choice(NAMES): other}}, {"properties": {chooser.choice(NAMES): inner}},
            {"items": inner},
            {"items": [inner, other], "additionalItems": chooser.choice((True, False, inner))}, {"additionalProperties": inner},
            {"patternProperties": {chooser.choice(_PATTERNS): inner}}, {"dependencies": {chooser.choice(NAMES): inner}}, {"not": inner},
            {chooser.choice(("allOf", "anyOf", "oneOf")): [inner, other]},
        )  # fmt: skip
        return chooser.choice(nested)


def _asks(inner: Any) -> bool:
    return (
        type(inner) is dict
        and bool(inner)
        and not {"$regularExpression"} & set(inner)
        and all(name.startswith("$") for name in inner)
    )


EXPRESSION_LEAVES: Final[tuple[Any, ...]] = (
    "$$ROOT", "$$CURRENT.a", "$$NOW", "$$REMOVE", 0, 1, 2.5, "a", None, True, {"$literal": {"$numberDecimal": "1.50"}},
    {"$literal": [1, "a", None]},
    {"$literal": {"a": 1}},
)  # fmt: skip


class Stages(Queries):
    """Stages that work on one document at a time."""

    def stages(self, most: int = 6) -> list[dict[str, Any]]:
        """A pipeline."""
        return [self.stage() for _ in range(self._chooser.randint(1, most))]

    def stage(self) -> dict[str, Any]:
        """One stage."""
        chooser = self._chooser
        makers: tuple[Callable[[], dict[str, Any]], ...] = (
            self._match, self._validate, self._add_fields, self._add_fields, self._project, self._project, self._unset,
            self._unwind, self._unwind,
            self._replace_root, self._redact, self._set_stream_meta,
        )  # fmt: skip
        return chooser.choice(makers)()

    def lookup(self) -> dict[str, Any]:
        """A `$lookup` in documents of the text, with a pipeline of its own."""
        chooser = self._chooser
        records = Records(chooser, 0.05)
        table = []
        for _ in range(chooser.choice((0, 1, 3, 8))):
            with suppress(ExtendedJsonError):
                table.append(to_json(parse_json(records.text()), canonical=True))
        inner: list[dict[str, Any]] = []
        if chooser.random() < 0.5:
            inner.append({"$match": {"$expr": {chooser.choice(("$eq", "$eq", "$gt")): [f"${self.path()}", "$$v"]}}})
        inner += [self.stage() for _ in range(chooser.choice((0, 0, 1, 2)))]
        ends: tuple[list[dict[str, Any]], ...] = (
            [], [], [{"$sort": {self.path(): 1}}], [{"$limit": 2}], [{"$sort": {"a": -1}}, {"$skip": 1}], [{"$count": "n"}],
        )  # fmt: skip
        inner += chooser.choice(ends)
        fields = {"localField": self.path(), "foreignField": self.path()}
        more = {"let": {"v": self._value_of(self._simple())}, "pipeline": inner}
        options = {"from": {"documents": table}, "as": chooser.choice(("found", "a", "k.n"))}
        return {"$lookup": options | chooser.choice((fields, more, fields | more))}

    def _match(self) -> dict[str, Any]:
        return {"$match": self.query()}

    def _validate(self) -> dict[str, Any]:
        return {"$validate": {"validator": self.query(), "validationAction": self._chooser.choice(("dlq", "discard"))}}

    def _simple(self) -> Any:
        """An expression that mostly gives something."""
        chooser = self._chooser
        match chooser.randrange(8):
            case 0 | 1 | 2:
                return f"${self.path()}"
            case 3:
                return self.leaf()
            case 4:
                return {chooser.choice(NAMES): self._simple(), chooser.choice((*NAMES, "é")): self._simple()}
            case 5:
                return [self._simple() for _ in range(chooser.randint(0, 2))]
            case _:
                return self.expression()

    def _paths(self) -> list[str]:
        """Paths of which none is inside of another."""
        found: list[str] = []
        for _ in range(self._chooser.choice((1, 1, 2, 3))):
            path = self.path()
            if not any(f"{path}.".startswith(f"{each}.") or f"{each}.".startswith(f"{path}.") for each in found):
                found.append(path)
        return found

    def _add_fields(self) -> dict[str, Any]:
        return {self._chooser.choice(("$addFields", "$set")): {path: self._simple() for path in self._paths()}}

    def _project(self) -> dict[str, Any]:
        chooser = self._chooser
        if chooser.random() < 0.4:
            return {"$project": self._nested(dict.fromkeys(self._paths(), 0))}
        return {
            "$project": self._nested({
                path: chooser.choice((1, True)) if chooser.random() < 0.6 else self._value_of(self._simple())
                for path in self._paths()
            }) | ({"_id": chooser.choice((0, 1))} if chooser.random() < 0.2 else {})
        }  # fmt: skip

    def _set_stream_meta(self) -> dict[str, Any]:
        found = {}
        for name in self._chooser.sample(("m", "m.a", "o", "o.k.n"), self._chooser.choice((1, 1, 2))):
            found[f"stream.{name}"] = self._value_of(self._simple())
            self.metas += ["stream", *(f"stream.{part}" for part in (name, name[0], "m.b"))]
        return {"$setStreamMeta": found}

    def _value_of(self, tree: Any) -> Any:
        return tree if type(tree) not in (int, float, bool) else {"$literal": tree}

    def _nested(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Here and there a path as objects in each other."""
        if self._chooser.random() < 0.7:
            return fields
        found: dict[str, Any] = {}
        for path, leaf in fields.items():
            first, _, rest = path.partition(".")
            if (
                rest
                and first not in found
                and not any(name != path and name.partition(".")[0] == first for name in fields)
            ):
                found[first] = {rest: leaf}
            else:
                found[path] = leaf
        return found

    def _unset(self) -> dict[str, Any]:
        paths = self._paths()
        return {"$unset": paths if len(paths) > 1 else paths[0]}

    def _unwind(self) -> dict[str, Any]:
        chooser = self._chooser
        path = f"${chooser.choice(NAMES) if chooser.random() < 0.6 else self.path()}"
        if chooser.random() < 0.4:
            return {"$unwind": path}
        index = {"includeArrayIndex": chooser.choice(("i", "n", "k", "a.b"))} if chooser.random() < 0.5 else {}
        return {"$unwind": {"path": path, "preserveNullAndEmptyArrays": chooser.random() < 0.6, **index}}

    def _replace_root(self) -> dict[str, Any]:
        chooser = self._chooser
        match chooser.randrange(4):
            case 0:
                root: Any = f"${self.path()}"
            case 1:
                root = {
                    "$mergeObjects": [
                        chooser.choice(("$$ROOT", f"${self.path()}")),
                        {name: self._simple() for name in NAMES[:2]},
                    ]
                }
            case 2:
                root = {"$ifNull": [f"${self.path()}", "$$ROOT"]}
            case _:
                root = {name: self._simple() for name in chooser.sample(NAMES, 2)}
        return {"$replaceRoot": {"newRoot": root}} if chooser.random() < 0.5 else {"$replaceWith": root}

    def _redact(self) -> dict[str, Any]:
        chooser = self._chooser

        def verdict() -> Any:
            return chooser.choice(("$$DESCEND", "$$DESCEND", "$$KEEP", "$$PRUNE"))

        condition = chooser.choice((
            {"$eq": [f"${chooser.choice(NAMES)}", chooser.choice((1, "a", None, 0))]},
            {"$eq": [{"$type": f"${chooser.choice(NAMES)}"}, chooser.choice(_TYPES)]},
            {"$gt": [f"${chooser.choice(NAMES)}", 0]}, self.expression(),
        ))  # fmt: skip
        return {"$redact": {"$cond": [condition, verdict(), verdict()]}}


_KEPT: Final = ("$push", "$addToSet", "$mergeObjects", "$concatArrays", "$setUnion")
_FOLDED: Final = (
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$first",
    "$last",
    "$stdDevPop",
    "$stdDevSamp",
    "$approxCountDistinct",
)


class Groups(Stages):
    """`$group` of all accumulators."""

    def order(self) -> list[dict[str, Any]]:
        """Nothing, or a `$sort` that leaves no two rows alike, with or without what takes some of them."""
        chooser = self._chooser
        if chooser.random() < 0.6:
            return []
        keys = {self.path(): chooser.choice((1, -1)) for _ in range(chooser.choice((1, 2)))}
        some = chooser.choice(([], [], [{"$limit": chooser.randint(1, 4)}], [{"$skip": 1}]))
        return [{"$sort": {**keys, "ts": 1, "i": 1}}, *some]

    def group(self, *, of_items: bool = False) -> dict[str, Any]:
        """A `$group`; its outputs are no fields of records. of_items: rows may be of one record, and have no order among themselves."""
        names = self._chooser.sample(("s", "t", "u", "v"), self._chooser.randint(0, 3))
        if of_items:
            key = self._chooser.choice((None, {"$mod": ["$i", 2]}, "$i", {"$type": f"${self.path()}"}))
            summed = ("$sum", "$avg", "$stdDevPop", "$stdDevSamp")
            fields = {name: {self._chooser.choice(summed): self._value_of(self._simple())} for name in names}
            return {"$group": {"_id": key, **fields, "w": {"$count": {}}}}
        return {"$group": {"_id": self.key(), **{name: self.accumulator() for name in names}}}

    def key(self) -> Any:
        """A key of few values, mostly."""
        chooser = self._chooser
        return chooser.choice((
            None, f"${chooser.choice(NAMES)}", f"${self.path()}", {"p": f"${chooser.choice(NAMES)}", "q": f"${self.path()}"},
            self._value_of(self._simple()),
            {"$type": f"${chooser.choice(NAMES)}"}, {"$mod": ["$i", 2]},
        ))  # fmt: skip

    def accumulator(self) -> dict[str, Any]:
        """One accumulator."""
        chooser = self._chooser
        source = chooser.choice(
            (f"${chooser.choice(NAMES)}", f"${chooser.choice(NAMES)}", self._value_of(self._simple()))
        )
        n = chooser.choice((1, 2, 3, 3, {"$add": [1, 1]}, {"$cond": [{"$isArray": "$p"}, 1, 2]}))
        order = {
            chooser.choice((*NAMES, self.path())): chooser.choice((1, -1)) for _ in range(chooser.choice((1, 1, 2)))
        }
        name = chooser.choice((
            *_FOLDED, *_FOLDED, *_KEPT, "$count", "$top", "$bottom", "$topN", "$bottomN", "$firstN", "$lastN", "$minN", "$maxN",
            "$percentile", "$median",
        ))  # fmt: skip
        match name:
            case "$count":
                return {name: {}}
            case "$top" | "$bottom":
                return {name: {"output": source, "sortBy": order}}
            case "$topN" | "$bottomN":
                return {name: {"output": source, "sortBy": order, "n": n}}
            case "$firstN" | "$lastN" | "$minN" | "$maxN":
                return {name: {"input": source, "n": n}}
            case "$percentile":
                return {name: {"input": source, "p": chooser.choice(([0.5], [0, 0.3, 1])), "method": "approximate"}}
            case "$median":
                return {name: {"input": source, "method": "approximate"}}
            case "$mergeObjects" if chooser.random() < 0.6:
                return {name: {"$cond": [{"$eq": [{"$type": source}, "object"]}, source, None]}}
            case "$concatArrays" | "$setUnion" if chooser.random() < 0.6:
                return {name: {"$cond": [{"$isArray": source}, source, []]}}
            case _:
                return {name: source}
