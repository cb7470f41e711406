"""Vectorised kernels over declared fields: they agree with the interpreter value for value, or leave it to it.

`is_vectorised` says from the types alone whether an expression or a predicate has a kernel, for `explain`. `evaluate_batch` and
`match_batch` give None where this batch needs the interpreter: no kernel, or data on which the kernel could not agree.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.language.expressions.ast import Expr
from shared.language.kernels.base import Column, Fallback, Path, Rows, Unvectorised, no_rows, rows_of
from shared.language.kernels.expressions import column_of, expression_paths
from shared.language.kernels.predicates import mask_of, predicate_paths
from shared.language.query.ast import Predicate
from shared.language.schema import Schema

__all__ = [
    "Column",
    "evaluate_batch",
    "expression_paths",
    "is_vectorised",
    "match_batch",
    "predicate_is_vectorised",
    "predicate_paths",
    "type_of",
    "values_of",
]


def type_of(expr: Expr, schema: Schema) -> str | None:
    """The type that an expression's kernel gives (`null`: nothing but nulls); None if it has no kernel."""
    try:
        return column_of(expr, no_rows(schema)).type
    except Unvectorised:
        return None


def is_vectorised(expr: Expr, schema: Schema) -> bool:
    """Whether an expression has a kernel over these declared fields."""
    return type_of(expr, schema) is not None


def predicate_is_vectorised(predicate: Predicate, schema: Schema) -> bool:
    """Whether a predicate has a kernel over these declared fields."""
    try:
        mask_of(predicate, no_rows(schema))
    except Unvectorised:
        return False
    return True


def evaluate_batch(
    expr: Expr, batch: pa.RecordBatch, schema: Schema, paths: Mapping[Path, Column] | None = None
) -> pa.Array | None:
    """The values of an expression, a row each, in the Arrow type of their type; a null is a null, never a missing value.

    None where the interpreter has to give them. `batch` has the declared fields as columns of their types, a null cell for null or missing;
    `paths` has columns of what is not declared.
    """
    try:
        return values_of(expr, rows_of(batch, schema, paths))
    except Fallback:
        return None


def values_of(expr: Expr, rows: Rows) -> pa.Array | None:
    """As `evaluate_batch`, over such rows; Fallback, or Doubtful, says why the kernel cannot tell."""
    try:
        column = column_of(expr, rows)
    except Unvectorised:
        return None
    return None if column.type == "object" or (column.missing and column.has_nulls) else column.values


def match_batch(
    predicate: Predicate, batch: pa.RecordBatch, schema: Schema, paths: Mapping[Path, Column] | None = None
) -> npt.NDArray[np.bool_] | None:
    """Which rows meet a predicate; None where the interpreter has to say. Arguments as in `evaluate_batch`."""
    try:
        return mask_of(predicate, rows_of(batch, schema, paths))
    except (Unvectorised, Fallback):
        return None
