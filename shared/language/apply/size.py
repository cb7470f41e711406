"""A bound on what stages compute: values may share parts, so a small expression can stand for an enormous value."""

from typing import Any, Final

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.model.values import Value

DEPTH_MAX: Final = 150
"""How deep a computed value may nest."""


def evaluate_bounded(expr: Expr, env: Environment) -> Value:
    """The value of an expression, its whole size taken from the environment's budget; ExpressionError beyond it."""
    value = evaluate(expr, env)
    if type(value) is dict or type(value) is list:
        _spend(value, env)
    return value


def _spend(value: Any, env: Environment) -> None:
    """Take every character, item and field, shared parts as often as they stand in the value."""
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > DEPTH_MAX:
            raise ExpressionError(f"the result nests more than {DEPTH_MAX} deep", SIZE)
        units = len(item) + 1
        for inner in item.values() if type(item) is dict else item:
            kind = type(inner)
            if kind is dict or kind is list:
                stack.append((inner, depth + 1))
            elif kind is str:
                units += len(inner)
        env.spend(units)
