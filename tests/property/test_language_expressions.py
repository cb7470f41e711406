"""Promises of expressions for all values: they give a value of the language or an ExpressionError, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, NUMBERS, TEXTS, VALUES
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.ast import Call, Literal
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import Named, Positional
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.query.parse import parse_predicate
from tidemark.shared.language.stages.base import Passed
from tidemark.shared.language.values import decode_value, encode_value, to_json
from tidemark.shared.model.values import MISSING, Date

_SPECIAL = st.sampled_from(
    [
        "day",
        "month",
        "week",
        "hour",
        "Europe/Berlin",
        "+05:30",
        "approximate",
        "double",
        "2024-03-05",
        "%Y-%m-%d",
        0,
        1,
        2,
        -1,
    ]
)
_ARGUMENT = st.one_of(
    NUMBERS, TEXTS, VALUES, _SPECIAL, st.just(MISSING), st.lists(NUMBERS, max_size=3), st.integers(0, 2**42).map(Date)
)


def _arities(signature: Positional | Named) -> tuple[int, int]:
    if isinstance(signature, Named):
        return len(signature.names), len(signature.names)
    return signature.least, signature.least + 2 if signature.most is None else signature.most


@pytest.mark.parametrize("name", sorted(OPERATORS))
@settings(max_examples=40)
@given(data=st.data())
def test_operators_give_values_or_expression_errors(name: str, data: st.DataObject) -> None:
    """Whatever the operands, an operator gives what the codec takes, or an error with its place."""
    least, most = _arities(OPERATORS[name].signature)
    args = data.draw(st.lists(_ARGUMENT.map(Literal), min_size=least, max_size=most))
    failed: ExpressionError | None = None
    value = None
    try:
        value = evaluate(Call(name, tuple(args), "here"), Environment({"a": 1}))
    except ExpressionError as e:
        failed = e
    if failed is not None:
        assert failed.path == "here"
        assert failed.code
    elif value is not MISSING:
        assert encode_value(decode_value(encode_value(value))) == encode_value(value)


@given(st.lists(VALUES, max_size=3))
@example([{"a": {"b": 1}}])
def test_root_is_the_document(values: list[Any]) -> None:
    """`$$ROOT` is the document, and evaluation leaves it as it was."""
    document = {"v": values}
    before = encode_value(document)
    call = Call("$reverseArray", (Literal(values),), "p")
    evaluate(call, Environment(document))
    assert encode_value(document) == before


_OPERANDS = {
    "$eq": VALUES, "$ne": VALUES, "$gt": VALUES, "$gte": VALUES, "$lt": VALUES, "$lte": VALUES,
    "$in": st.lists(VALUES, max_size=3), "$nin": st.lists(VALUES, max_size=3), "$all": st.lists(VALUES, max_size=2),
    "$mod": st.tuples(st.integers(1, 5), st.integers(-3, 3)).map(list), "$size": st.integers(0, 2), "$exists": st.booleans(),
    "$type": st.sampled_from(["number", "array", "null", "long"]), "$bitsAnySet": st.integers(0, 2**40),
    "$elemMatch": st.sampled_from([{"$gt": 1}, {"a": 1}, {"$not": {"$gt": 1}}]),
}  # fmt: skip
_TESTS = st.sampled_from(sorted(_OPERANDS)).flatmap(lambda op: _OPERANDS[op].map(lambda v: (op, v)))
_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "bsonType": st.sampled_from(["number", "object", ["int", "array"]]), "minimum": NUMBERS, "maximum": NUMBERS,
        "multipleOf": st.sampled_from([2, 0.5]), "uniqueItems": st.booleans(), "enum": st.lists(VALUES, min_size=1, max_size=3),
        "minLength": st.integers(0, 3), "required": st.just(["a"]), "additionalProperties": st.booleans(),
    },
)  # fmt: skip


def _predicate(tree: Any) -> Any:
    problems = Problems()
    predicate = parse_predicate(tree, "q", Scope(problems))
    return None if problems.errors else predicate


@settings(max_examples=400)
@given(st.sampled_from(["a", "a.b", "a.0", "b.a.c"]), _TESTS, DOCUMENTS)
def test_queries_answer_for_every_document(field: str, test: tuple[str, Any], document: dict[str, Any]) -> None:
    """A query is true of a document or false, whatever is in it; and `$nor` is the opposite."""
    predicate = _predicate({field: {test[0]: to_json(test[1], canonical=True)}})
    if predicate is not None:
        opposite = _predicate({"$nor": [{field: {test[0]: to_json(test[1], canonical=True)}}]})
        assert matches(predicate, Environment(document)) is not matches(opposite, Environment(document))


@settings(max_examples=300)
@given(_SCHEMAS, DOCUMENTS | st.fixed_dictionaries({"a": VALUES}))
def test_json_schemas_answer_for_every_document(tree: dict[str, Any], document: dict[str, Any]) -> None:
    """A document conforms to a schema or does not, whatever is in it; and `not` is the opposite."""
    schema = {"properties": {"a": to_json(tree, canonical=True)}}
    predicate = _predicate({"$jsonSchema": schema})
    if predicate is not None:
        opposite = _predicate({"$jsonSchema": {"not": schema}})
        assert matches(predicate, Environment(document)) is not matches(opposite, Environment(document))


_GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "language" / "cases.jsonl").read_text("utf-8").splitlines()
]
_STAGES = [
    stage
    for case in _GOLDEN
    if "stages" in case
    for stage in parse({"pipeline": [{"$source": {"documents": []}}, *case["stages"]]}).pipeline[1:]
]


@settings(max_examples=400)
@given(
    st.sampled_from(range(len(_STAGES))),
    st.dictionaries(st.sampled_from(["a", "b", "_id", "s", "d", "t"]), VALUES, max_size=5),
)
def test_stages_give_documents_or_failures(index: int, document: dict[str, Any]) -> None:
    """Every stage of the golden cases answers for documents that it was not written for; the document that came stays as it was."""
    before = encode_value(document)
    stage: Any = _STAGES[index]
    outcome = stage.apply(document, Environment({}))
    assert encode_value(document) == before
    if isinstance(outcome, Passed):
        assert all(decode_value(encode_value(item)) is not None for item in outcome.documents)
    else:
        assert getattr(outcome, "path", "").startswith(stage.path)
