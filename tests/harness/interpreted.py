"""Expressions over rows one by one, through the interpreter: what columns must agree with."""

from collections.abc import Sequence

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.dead_letters import Failure


def evaluate_rows(expr: Expr, environments: Sequence[Environment]) -> tuple[list[Value], list[Failure]]:
    """The value for each row, MISSING where it failed; and the failures."""
    values: list[Value] = []
    failures: list[Failure] = []
    for row, env in enumerate(environments):
        try:
            values.append(evaluate(expr, env))
        except ExpressionError as e:
            values.append(MISSING)
            failures.append(Failure(row, e.reason, e.code, e.path))
    return values, failures
