"""Comparison, truth and choice."""

from collections.abc import Callable
from typing import Any

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.registry import positional
from tidemark.shared.language.values.order import compare, equal
from tidemark.shared.language.values.types import truth
from tidemark.shared.model.values import MISSING, Value

Evaluate = Callable[[Any, Environment], Value]


positional("$eq", 2, doc="Whether two values are equal; missing is not null.")(equal)
positional("$ne", 2, doc="Whether two values differ.")(lambda left, right: not equal(left, right))
positional("$cmp", 2, doc="-1, 0 or 1: how two values compare.")(compare)
positional("$gt", 2, doc="Whether the first is greater, in the order over all types.")(
    lambda left, right: compare(left, right) > 0
)
positional("$gte", 2, doc="Whether the first is greater or equal, in the order over all types.")(
    lambda left, right: compare(left, right) >= 0
)
positional("$lt", 2, doc="Whether the first is less, in the order over all types.")(
    lambda left, right: compare(left, right) < 0
)
positional("$lte", 2, doc="Whether the first is less or equal, in the order over all types.")(
    lambda left, right: compare(left, right) <= 0
)


@positional("$and", 0, None, lazy=True)
def _and(args: tuple[object, ...], env: Environment, evaluate: Evaluate) -> bool:
    """Whether all are true; stops at the first that is not."""
    return all(truth(evaluate(arg, env)) for arg in args)


@positional("$or", 0, None, lazy=True)
def _or(args: tuple[object, ...], env: Environment, evaluate: Evaluate) -> bool:
    """Whether any is true; stops at the first that is."""
    return any(truth(evaluate(arg, env)) for arg in args)


@positional("$not", 1, glances=True)
def _not(value: Value) -> bool:
    """Whether a value is false."""
    return not truth(value)


@positional("$cond", 3, lazy=True)
def _cond(args: tuple[object, ...], env: Environment, evaluate: Evaluate) -> Value:
    """The second if the first is true, else the third."""
    return evaluate(args[1] if truth(evaluate(args[0], env)) else args[2], env)


@positional("$ifNull", 2, None, lazy=True)
def _if_null(args: tuple[object, ...], env: Environment, evaluate: Evaluate) -> Value:
    """The first that is neither null nor missing, else the last."""
    for arg in args[:-1]:
        value = evaluate(arg, env)
        if value is not None and value is not MISSING:
            return value
    return evaluate(args[-1], env)
