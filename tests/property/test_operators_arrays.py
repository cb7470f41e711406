"""Expressions over arrays and objects on columns give what the interpreter gives of each row, its errors, too."""

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.harness.bench.cliffs import drawn
from tests.harness.bench.line import Line
from tests.harness.bench.pipeline_cliffs import records
from tests.harness.bench.readings import document, source
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.frame import Cells, evaluated
from tidemark.shared.operators.rows import environments

_ITEMS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.just(2**40), st.just(1.5), st.sampled_from(["", "a", "b c", "é"])),
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.sampled_from(["x", "y", "é"]), inner, max_size=20)),
    max_leaves=12,
)  # fmt: skip
_DOCUMENTS = st.dictionaries(st.sampled_from(["a", "o", "t"]), _ITEMS, max_size=3)
_FIELDS = ["$a", "$o", "$t", "$a.x", "$o.x.y"]


def _over(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    item = st.one_of(
        inner,
        st.sampled_from(["$$i", "$$i.x", {"$toUpper": "$$i"}, {"$add": ["$$i", 1]}, {"$gt": ["$$i", 1]}, {"v": "$$i"}]),
    )
    step = st.one_of(
        item,
        st.sampled_from(
            [{"$add": ["$$value", "$$this"]}, {"$concat": ["$$value", "$$this"]}, {"$max": ["$$value", 1]}]
        ),
    )
    return st.one_of(
        st.tuples(inner, item).map(lambda p: {"$map": {"input": p[0], "as": "i", "in": _free(p[1])}}),
        st.tuples(inner, item).map(lambda p: {"$filter": {"input": p[0], "as": "i", "cond": _free(p[1])}}),
        st.tuples(inner, st.one_of(inner, st.just(0)), step).map(
            lambda p: {"$reduce": {"input": p[0], "initialValue": p[1], "in": _this(p[2])}}
        ),
        st.tuples(inner, inner).map(lambda p: {"$let": {"vars": {"i": p[0]}, "in": {"$ifNull": ["$$i", p[1]]}}}),
        st.tuples(st.sampled_from(["$size", "$first", "$last", "$isArray", "$sqrt"]), inner).map(
            lambda p: {p[0]: [p[1]]}
        ),
        st.tuples(inner, st.integers(-3, 3)).map(lambda p: {"$arrayElemAt": list(p)}),
        st.tuples(inner, st.integers(1, 3)).map(
            lambda p: {"$filter": {"input": p[0], "as": "i", "cond": {"$gt": ["$$i", 0]}, "limit": p[1]}}
        ),
        st.tuples(
            inner, st.lists(st.integers(-3, 3), min_size=1, max_size=2).filter(lambda n: n[-1] > 0 or len(n) < 2)
        ).map(lambda p: {"$slice": [p[0], *p[1]]}),
        inner.map(lambda e: {"$reverseArray": [e]}),
        st.tuples(
            st.sampled_from(["$concatArrays", "$setUnion", "$setIntersection"]), st.lists(inner, min_size=1, max_size=3)
        ).map(lambda p: {p[0]: p[1]}),
        st.tuples(inner, inner).map(lambda p: {"$setDifference": list(p)}),
        st.tuples(inner, st.sampled_from([1, -1, {"x": 1}, {"x": -1, "y": 1}])).map(
            lambda p: {"$sortArray": {"input": p[0], "sortBy": p[1]}}
        ),
        st.tuples(st.sampled_from(["$in", "$eq", "$ifNull", "$max", "$min"]), inner, inner).map(
            lambda p: {p[0]: list(p[1:])}
        ),
        st.tuples(inner, inner, inner).map(lambda p: {"$cond": list(p)}),
        inner.map(lambda e: {"$split": [e, " "]}),
        st.lists(inner, max_size=17),
        st.tuples(inner, inner).map(lambda p: {"x": p[0], "z": p[1]}),
        st.tuples(inner, inner).map(lambda p: {"$mergeObjects": [p[0], {"x": p[1], "new": 1}]}),
        inner.map(lambda e: {"$getField": {"field": "x", "input": e}}),
    )


def _free(expr: Any) -> Any:
    return {"$let": {"vars": {"value": "$$i", "this": 1}, "in": expr}}


def _this(expr: Any) -> Any:
    return {"$let": {"vars": {"i": "$$this"}, "in": expr}}


_EXPRESSIONS = st.recursive(
    st.sampled_from([*_FIELDS, {"$literal": [1, "a"]}, {"$literal": {"x": 1}}, 1, "text"]), _over, max_leaves=5
)


def _bound(tree: Any) -> Expr:
    problems = Problems()
    whole = {"$let": {"vars": {"i": "$a", "value": 1, "this": "$t"}, "in": tree}}
    expr = parse_expression(whole, "e", Scope(problems))
    problems.check()
    return expr


def _cell(value: Value) -> bytes | None:
    return None if value is MISSING else encode_value(value)


def _agrees(expr: Expr, batch: pa.RecordBatch) -> None:
    found: Cells = evaluated(expr, batch)
    for row, (env, value) in enumerate(zip(environments(batch, documents_of(batch)), found.values(), strict=True)):
        error = found.errors.get(row)
        assert (None if error else _cell(value), error and error.reason) == _wanted(expr, env)


def _wanted(expr: Expr, env: Environment) -> tuple[bytes | None, str | None]:
    try:
        return _cell(evaluate_bounded(expr, Environment(env.root, now=env.now))), None
    except ExpressionError as error:
        return None, error.reason


@settings(max_examples=300, deadline=None)
@given(st.lists(_DOCUMENTS, max_size=5), _EXPRESSIONS)
@example([{}, {"a": 1}], {"$max": ["$a", {"x": "$a", "z": "$a"}]})
def test_arrays_and_objects_of_documents(documents: list[Any], tree: Any) -> None:
    """Of documents of any form, nested arrays and objects and missing fields among them."""
    _agrees(_bound(tree), batch_of(documents))


@pytest.mark.parametrize(
    "body",
    [
        {"$concat": ["$t", "a"]},
        {"$map": {"input": "$a", "in": {"$add": ["$$this", "$$i"]}}},
        {"$in": ["$$i", "$a"]},
        {"$size": "$a"},
    ],
)
def test_what_one_evaluation_may_produce_is_bounded_as_the_interpreter_bounds_it(body: Any) -> None:
    """Of long arrays, whose every item looks at something long: the same rows fail, and the others have the same values."""
    documents = [{"a": list(range(n)), "t": "x" * (3 * n)} for n in (3, 300, 3000)]
    _agrees(_bound({"$map": {"input": "$a", "as": "i", "in": body}}), batch_of(documents))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_drawn_expressions_over_records(seed: int) -> None:
    """Of records as they come, with fields of other types, and any expression that the bench draws."""
    chooser = random.Random(seed)
    found = Line(document([source(declared=chooser.random() < 0.5)])).run(records(chooser, 20))
    for batch in found[:1]:
        for _ in range(5):
            problems = Problems()
            expr = parse_expression(drawn(chooser, "any", 3)[0], "e", Scope(problems))
            problems.check()
            _agrees(expr, batch)
