"""Cliffs of cost, looked for: expressions drawn at random, each beside its own parts.

An expression should cost what its parts cost, and a little more. One that costs many times as much stands on a cliff: it has no kernel
where its parts have one, or data on which its kernel gives way. Half of the expressions are calls of any operator of the language.

`python -m tests.harness.bench.cliffs [SEED] [EXPRESSIONS]` prints the steepest.
"""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa

from tests.harness.bench.costs import timed
from tests.harness.bench.line import Line
from tests.harness.bench.readings import document, records, source
from tests.harness.every_operator import call
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import OPERATORS
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.operators.frame import evaluated

ROWS: Final = 10_000
FLOOR_NS: Final = 50.0
"""What any expression may cost a record, beside its parts."""
_FIELDS: Final[dict[str, list[Any]]] = {
    "number": ["$n", "$value", "$at"], "text": ["$sensor", "$unit", "$text", "$when"], "bool": ["$ok"],
    "date": [{"$toDate": "$at"}, "$$NOW"], "array": ["$tags", {"$split": ["$text", " "]}], "object": ["$place"],
}  # fmt: skip
_ANY: Final = "any"
_TRIED: Final = 20
_UNITS: Final = ("year", "month", "week", "day", "hour", "minute", "second")
_ZONES: Final = ("UTC", "Europe/Berlin", "America/New_York", "+05:30")
_MADE: Final[dict[str, list[tuple[Any, tuple[str, ...]]]]] = {
    "number": [
        (lambda a, b: {"$add": [a, b]}, ("number", "number")),
        (lambda a, b: {"$subtract": [a, b]}, ("number", "number")),
        (lambda a, b: {"$multiply": [a, b]}, ("number", "number")),
        (lambda a: {"$divide": [a, 7]}, ("number",)),
        (lambda a: {"$mod": [a, 10]}, ("number",)),
        (lambda a: {"$round": [a, 1]}, ("number",)),
        (lambda a: {"$trunc": a}, ("number",)),
        (lambda a: {"$floor": a}, ("number",)),
        (lambda a: {"$abs": a}, ("number",)),
        (lambda a: {"$sqrt": {"$abs": a}}, ("number",)),
        (lambda a, b: {"$max": [a, b]}, ("number", "number")),
        (lambda a, b, c: {"$cond": [a, b, c]}, ("bool", "number", "number")),
        (lambda a: {"$ifNull": [a, 0]}, ("number",)),
        (lambda a: {"$strLenCP": a}, ("text",)),
        (lambda a: {"$indexOfCP": [a, "o"]}, ("text",)),
        (lambda a: {"$size": [a]}, ("array",)),
        (lambda a: {"$hour": {"date": a, "timezone": "Europe/Berlin"}}, ("date",)),
        (lambda a, b, u: {"$dateDiff": {"startDate": a, "endDate": b, "unit": u}}, ("date", "date", "unit")),
        (lambda a: {"$toLong": a}, ("number",)),
        (lambda a: {"$toDouble": a}, ("number",)),
        (lambda a: {"$getField": {"field": "room", "input": a}}, ("object",)),
        (lambda a: {"$reduce": {"input": a, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}, ("array",)),
    ],
    "text": [
        (lambda a, b: {"$concat": [a, "-", b]}, ("text", "text")),
        (lambda a: {"$toUpper": a}, ("text",)),
        (lambda a: {"$substrCP": [a, 1, 3]}, ("text",)),
        (lambda a: {"$trim": {"input": a}}, ("text",)),
        (lambda a: {"$replaceAll": {"input": a, "find": "o", "replacement": "0"}}, ("text",)),
        (lambda a: {"$toString": a}, ("number",)),
        (lambda a, z: {"$dateToString": {"date": a, "format": "%Y-%m-%d %H:%M", "timezone": z}}, ("date", "zone")),
        (lambda a: {"$arrayElemAt": [a, 0]}, ("array",)),
        (lambda a, b, c: {"$cond": [a, b, c]}, ("bool", "text", "text")),
        (lambda a, b: {"$switch": {"branches": [{"case": a, "then": b}], "default": "other"}}, ("bool", "text")),
    ],
    "bool": [
        (lambda a, b: {"$gt": [a, b]}, ("number", "number")),
        (lambda a: {"$eq": [a, "C"]}, ("text",)),
        (lambda a, b: {"$and": [a, b]}, ("bool", "bool")),
        (lambda a: {"$not": [a]}, ("bool",)),
        (lambda a: {"$in": [a, ["C", "K"]]}, ("text",)),
        (lambda a: {"$in": ["a", a]}, ("array",)),
        (lambda a: {"$regexMatch": {"input": a, "regex": "[0-9]+"}}, ("text",)),
    ],
    "date": [
        (lambda a, u, z: {"$dateTrunc": {"date": a, "unit": u, "timezone": z}}, ("date", "unit", "zone")),
        (lambda a, u: {"$dateAdd": {"startDate": a, "unit": u, "amount": 3}}, ("date", "unit")),
        (lambda a: {"$toDate": {"$toLong": {"$abs": a}}}, ("number",)),
    ],
    "array": [
        (lambda a: {"$map": {"input": a, "as": "x", "in": {"$toUpper": "$$x"}}}, ("array",)),
        (lambda a: {"$filter": {"input": a, "as": "x", "cond": {"$ne": ["$$x", "a"]}}}, ("array",)),
        (lambda a, b: [a, b], (_ANY, _ANY)),
    ],
    "object": [
        (lambda a, b: {"x": a, "room": b}, (_ANY, "number")),
        (lambda a, b: {"$mergeObjects": [a, {"room": b}]}, ("object", "number")),
    ],
}
_KINDS: Final = tuple(_MADE)


@dataclass(frozen=True)
class Cliff:
    """An expression beside its parts, ns a record each."""

    tree: Any
    own_ns: float
    parts_ns: float
    interpreted: bool

    @property
    def steepness(self) -> float:
        """How many times the parts it costs."""
        return self.own_ns / (self.parts_ns + FLOOR_NS)


def drawn(chooser: random.Random, kind: str, depth: int) -> tuple[Any, list[Any]]:
    """An expression of a kind, and the parts that it is made of."""
    if kind == "unit":
        return chooser.choice(_UNITS), []
    if kind == "zone":
        return chooser.choice(_ZONES), []
    kind = chooser.choice(_KINDS) if kind == _ANY else kind
    if depth <= 0 or chooser.random() < 0.2:
        return chooser.choice(_FIELDS[kind]), []
    make, needs = chooser.choice(_MADE[kind])
    made = [drawn(chooser, need, depth - 1)[0] for need in needs]
    parts = [part for part, need in zip(made, needs, strict=True) if need not in ("unit", "zone")]
    return make(*made), parts


def cliffs(seed: int, count: int, rows: int = ROWS, rounds: int = 3) -> list[Cliff]:
    """The steepest first, of readings with a schema for all but `tags` and `place`."""
    chooser = random.Random(seed)
    batch = Line(document([source(declared=True)])).run(records(rows))[0]
    found = []
    for _ in range(count):
        tree, parts = drawn(chooser, _ANY, 2) if chooser.random() < 0.5 else _call(chooser, batch)
        own_ns, interpreted = _cost(tree, batch, rounds)
        found.append(Cliff(tree, own_ns, sum(_cost(part, batch, rounds)[0] for part in parts), interpreted))
    return sorted(found, key=lambda cliff: cliff.steepness, reverse=True)


def _call(chooser: random.Random, batch: pa.RecordBatch) -> tuple[Any, list[Any]]:
    """A call of any operator that fails on no row that is tried, and its parts."""
    leaves = [leaf for kind in _FIELDS.values() for leaf in kind]
    while True:
        name = chooser.choice(sorted(OPERATORS))
        tree = call(chooser, name, [*chooser.sample(leaves, 3), chooser.choice((2, 0.5, "o"))])
        expr = _parsed(tree)
        if expr is not None and not evaluated(expr, batch.slice(0, _TRIED)).errors:
            args = tree[name].values() if isinstance(tree[name], dict) else tree[name]
            return tree, [arg for arg in args if arg in leaves]


def _parsed(tree: Any) -> Expr | None:
    problems = Problems()
    expr = parse_expression(tree, "cliff", Scope(problems))
    return None if problems.errors else expr


def _cost(tree: Any, batch: pa.RecordBatch, rounds: int) -> tuple[float, bool]:
    expr = _parsed(tree)
    assert expr is not None
    own_ns, cells = timed(partial(evaluated, expr, batch), batch.num_rows, rounds)
    return own_ns, cells.interpreted_rows > 0


def table(found: Sequence[Cliff], most: int) -> str:
    """The steepest for people."""
    lines = [f"{'times':>6} {'own ns':>8} {'parts ns':>8}"]
    for cliff in found[:most]:
        how = "  interpreted" if cliff.interpreted else ""
        lines.append(f"{cliff.steepness:>6.1f} {cliff.own_ns:>8,.0f} {cliff.parts_ns:>8,.0f}  {cliff.tree}{how}")
    return "\n".join(lines)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    seed, count = [*numbers, *(1, 200)[len(numbers) :]]
    sys.stdout.write(table(cliffs(seed, count), 25) + "\n")
