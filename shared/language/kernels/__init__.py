"""Vectorised kernels: they agree with the interpreter value for value, and say of which rows they cannot tell.

`is_vectorised` says from the types alone whether an expression or a predicate has a kernel, for `explain`. Kernels read columns of `Rows`.
"""

from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.kernels.base import Bools, Column, Path, Rows, Untyped, Unvectorised, no_rows
from tidemark.shared.language.kernels.expressions import column_of, may_have_kernel
from tidemark.shared.language.kernels.predicates import verdict_of
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.schema import Schema

__all__ = [
    "Bools",
    "Column",
    "Path",
    "Rows",
    "Unvectorised",
    "column_of",
    "is_vectorised",
    "predicate_is_vectorised",
    "verdict_of",
]


def is_vectorised(expr: Expr, schema: Schema) -> bool:
    """Whether an expression has a kernel over these declared fields."""
    try:
        column_of(expr, no_rows(schema))
    except Untyped:
        return may_have_kernel(expr)
    except Unvectorised:
        return False
    return True


def predicate_is_vectorised(predicate: Predicate, schema: Schema) -> bool:
    """Whether a predicate has a kernel over these declared fields."""
    try:
        verdict_of(predicate, no_rows(schema))
    except Unvectorised:
        return False
    return True
