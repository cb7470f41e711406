"""Promises of expressions for all values: they give a value of the language or an ExpressionError, and nothing else."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.language.expressions.ast import Call, Literal
from shared.language.expressions.environment import Environment
from shared.language.expressions.errors import ExpressionError
from shared.language.expressions.interpreter import evaluate
from shared.language.expressions.library import OPERATORS
from shared.language.expressions.registry import Named, Positional
from shared.language.values import decode_value, encode_value
from shared.model.values import MISSING, Date
from tests.property.language_strategies import NUMBERS, TEXTS, VALUES

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
