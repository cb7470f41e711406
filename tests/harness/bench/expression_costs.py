"""What the commonest expressions cost a record: by their kernel over declared fields, and by the interpreter. Both give the same values."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tests.harness.bench.costs import Cost, timed
from tests.harness.bench.line import Line
from tests.harness.bench.readings import document, records, source
from tests.harness.bench.stage_costs import same
from tests.harness.interpreted import evaluate_rows
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.rows import environments

_WHEN: Final = {"$toDate": "$at"}
EXPRESSIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "numbers": {
        "field": "$n",
        "$add": {"$add": ["$n", 1]},
        "$subtract": {"$subtract": ["$value", 32]},
        "$multiply, doubles": {"$multiply": ["$value", 1.8]},
        "$divide": {"$divide": ["$n", 60]},
        "$mod": {"$mod": ["$n", 10]},
        "$abs": {"$abs": "$n"},
        "$floor": {"$floor": "$value"},
        "$round": {"$round": ["$value", 1]},
        "$max of two": {"$max": ["$n", 0]},
    },
    "conditions": {
        "$eq": {"$eq": ["$unit", "C"]},
        "$gte": {"$gte": ["$value", 20]},
        "$and": {"$and": [{"$gte": ["$value", 10]}, {"$lt": ["$value", 30]}]},
        "$not": {"$not": ["$ok"]},
        "$in": {"$in": ["$unit", ["C", "K"]]},
        "$cond": {"$cond": ["$ok", "$n", 0]},
        "$ifNull": {"$ifNull": ["$unit", "C"]},
        "$switch": {"$switch": {"branches": [{"case": {"$lt": ["$value", 10]}, "then": "cold"}], "default": "warm"}},
    },
    "texts": {
        "$concat": {"$concat": ["$sensor", "-", "$unit"]},
        "$toUpper": {"$toUpper": "$sensor"},
        "$toLower": {"$toLower": "$unit"},
        "$strLenCP": {"$strLenCP": "$text"},
        "$substrCP": {"$substrCP": ["$sensor", 1, 3]},
        "$trim": {"$trim": {"input": "$text"}},
        "$split": {"$split": ["$text", " "]},
        "$indexOfCP": {"$indexOfCP": ["$text", "of"]},
        "$regexMatch": {"$regexMatch": {"input": "$text", "regex": "^ line [0-9]+"}},
        "$regexFind": {"$regexFind": {"input": "$text", "regex": "([0-9]+) of"}},
        "$toString": {"$toString": "$n"},
        "$toInt": {"$toInt": {"$substrCP": ["$sensor", 1, 3]}},
    },
    "times": {
        "$toDate of a number": _WHEN,
        "$toDate of a text": {"$toDate": "$when"},
        "$dateFromString": {"$dateFromString": {"dateString": "$when", "format": "%Y-%m-%dT%H:%M:%S.%LZ"}},
        "$hour": {"$hour": _WHEN},
        "$hour in a zone": {"$hour": {"date": _WHEN, "timezone": "America/New_York"}},
        "$dayOfWeek": {"$dayOfWeek": _WHEN},
        "$dateTrunc": {"$dateTrunc": {"date": _WHEN, "unit": "minute"}},
        "$dateAdd": {"$dateAdd": {"startDate": _WHEN, "unit": "hour", "amount": 1}},
        "$dateDiff": {"$dateDiff": {"startDate": _WHEN, "endDate": {"$toDate": "$when"}, "unit": "second"}},
        "$dateToString": {"$dateToString": {"date": _WHEN, "format": "%Y-%m-%d"}},
    },
    "arrays and objects": {
        "object": {"sensor": "$sensor", "unit": "$unit"},
        "array": ["$n", "$value"],
        "dotted path, undeclared": "$place.room",
        "$size": {"$size": "$tags"},
        "$arrayElemAt": {"$arrayElemAt": ["$tags", 0]},
        "$map": {"$map": {"input": "$tags", "as": "t", "in": {"$toUpper": "$$t"}}},
        "$filter": {"$filter": {"input": "$tags", "as": "t", "cond": {"$eq": ["$$t", "a"]}}},
        "$mergeObjects": {"$mergeObjects": ["$place", {"unit": "$unit"}]},
    },
}  # fmt: skip
"""By kind and name: expressions over a reading."""


def _parsed(tree: Any) -> Expr:
    """The expression, as a document has it."""
    problems = Problems()
    expr = parse_expression(tree, "bench", Scope(problems))
    assert not problems.errors, problems.errors
    return expr


def expression_costs(count: int, rounds: int = 3) -> list[Cost]:
    """All of them; Differs where a kernel and the interpreter do not agree."""
    batch = Line(document([source(declared=True)])).run(records(count))[0]
    places = environments(batch, documents_of(batch))
    found = []
    for kind, expressions in EXPRESSIONS.items():
        for name, tree in expressions.items():
            expr = _parsed(tree)
            columns_ns, cells = timed(partial(evaluated, expr, batch), count, rounds)
            documents_ns, (values, failures) = timed(partial(evaluate_rows, expr, places), count, rounds)
            assert not failures, f"{name}: {failures[0]}"
            same(name, cells.values(), values)
            found.append(Cost(kind, name, columns_ns, documents_ns, interpreted=bool(cells.interpreted_rows)))
    return found
