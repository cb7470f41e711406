"""Expressions over long arrays: worked out in columns as over short ones, and within the same units as the interpreter's."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.share import CI
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.values import encode_value
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import batch_of, values_of
from tidemark.shared.operators.frame import Frame


def over(body: Any, source: Any = "$a") -> Any:
    """A `$map`."""
    return {"$map": {"input": source, "in": body}}


def both(tree: Any, documents: list[dict[str, Any]]) -> tuple[list[Any], list[Any], int]:
    """What columns and the interpreter give, errors as such; and how many values columns have left to the interpreter."""
    expr = parse_expression(tree, "e", Scope(Problems()))
    found = Frame(batch_of(documents, {TS: pa.array([0] * len(documents))})).computed(expr)
    cells = values_of(found.array, found.field)
    ours = [found.errors[row].code if row in found.errors else encode_value(cell) for row, cell in enumerate(cells)]
    wanted: list[Any] = []
    for document in documents:
        try:
            wanted.append(encode_value(evaluate_bounded(expr, Environment(document))))
        except ExpressionError as error:
            wanted.append(error.code)
    return ours, wanted, found.interpreted_rows


@pytest.mark.parametrize(
    "tree",
    [
        over({"$add": ["$$this", 1]}),
        {"$filter": {"input": "$a", "cond": {"$gt": ["$$this", 5]}}},
        {"$filter": {"input": "$a", "cond": {"$in": ["$$this", [1, 2, 3]]}}},
        {"$sortArray": {"input": "$a", "sortBy": -1}},
        over({"$cond": [{"$lt": ["$$this", 9]}, {"$multiply": ["$$this", 2]}, 0]}),
    ],
)
def test_arrays_of_thousands_of_items_need_no_interpreter(tree: Any) -> None:
    """It takes thirty times as long."""
    ours, wanted, interpreted = both(tree, [{"a": list(range(8_000))}, {"a": [3, 1]}])
    assert (ours == wanted, interpreted) == (True, 0)


@pytest.mark.parametrize(
    ("lengths", "left"),
    [
        ([200], 1),  # a pass over one row costs as much as a hundred items
        ([200] * 3 + [10] * 50, 3),
        ([200] * 150, 0),
        ([200] * 150 + [250] * 2 + [3] * 20, 2),
        ([10, 3, 0], 0),
        (list(range(300, 450)), 150),
    ],
)
def test_long_arrays_of_few_rows_are_reduced_by_the_interpreter(lengths: list[int], left: int) -> None:
    """Each pass takes the next item of all rows that have one: with a few of them it would cost a hundred times as much as their items."""
    tree = {"$reduce": {"input": "$a", "initialValue": 0, "in": {"$max": ["$$value", "$$this"]}}}
    ours, wanted, interpreted = both({"$add": [tree, 1]}, [{"a": list(range(length))} for length in lengths])
    assert (ours == wanted, interpreted) == (True, left)


SIZES = [(1_000, 100, 100), (20_000, 30, 30), (4_000, 300, 900), (40_000, 3, 3)]
"""Items of the array, items of another in each document, characters of a text."""
GROWING = [
    over({"$concat": [{"$toString": "$$this"}, "x" * 400]}),
    over({"$concat": ["$t", "$t", "$t"]}),
    over({"$strLenCP": {"$concat": ["$t", "$t"]}}),
    over({"$strLenCP": {"$replaceAll": {"input": "$t", "find": "a", "replacement": "b" * 50}}}),
    over({"$size": {"$split": ["$t", "a"]}}),
    over(["$$this", "$$this", "$t"]),
    over({"k": "$t", "n": "$$this"}),
    over(over({"$add": ["$$this", 1]}, "$b")),
    over({"$sum": {"$filter": {"input": "$b", "cond": {"$gt": ["$$this", 1]}}}}),
    over({"$in": ["$$this", "$b"]}),
    {"$size": {"$concatArrays": [over({"$toString": "$$this"}), over({"$add": ["$$this", 1]}), over("$t")]}},
]


@pytest.mark.parametrize(
    ("tree", "size"),
    [(tree, SIZES[n % len(SIZES)]) for n, tree in enumerate(GROWING)]
    if CI
    else list(itertools.product(GROWING, SIZES)),
)
def test_what_the_interpreter_has_no_units_for_columns_have_none_for(tree: Any, size: tuple[int, int, int]) -> None:
    """Results do not depend on who works them out."""
    items, inner, text = size
    document = {"a": list(range(items)), "b": list(range(inner)), "t": "ab" * (text // 2)}
    ours, wanted, _ = both(tree, [document])
    assert ours == wanted
