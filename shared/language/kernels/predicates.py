"""Queries on columns: which rows `$match` lets through. To a query null and missing are the same, so most of it has a kernel."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.kernels.base import (
    NUMERIC,
    RANKS,
    WHOLE,
    Column,
    Fallback,
    Path,
    Rows,
    Unvectorised,
    constant,
    exact_doubles,
    truth_of,
)
from shared.language.kernels.compare import HOLDS
from shared.language.kernels.expressions import column_of, expression_paths, is_in
from shared.language.kernels.schemas import conforming, schema_paths
from shared.language.query.ast import (
    All,
    Always,
    AnyOf,
    Compare,
    Exists,
    ExprTrue,
    MatchesSchema,
    ModTest,
    Not,
    OneOf,
    OnField,
    Predicate,
    RegexTest,
    TypeIs,
)
from shared.language.values.order import rank
from shared.language.values.types import is_finite, is_number
from shared.model.values import EndKey

Mask = npt.NDArray[np.bool_]


def mask_of(predicate: Predicate, rows: Rows) -> Mask:
    """Which rows meet a predicate; Unvectorised or Fallback where the interpreter has to say."""
    match predicate:
        case Always(answer):
            return np.full(rows.size, answer, dtype=np.bool_)
        case All(parts):
            return np.logical_and.reduce([mask_of(part, rows) for part in parts]) if parts else _all(rows)
        case AnyOf(parts):
            return np.logical_or.reduce([mask_of(part, rows) for part in parts]) if parts else ~_all(rows)
        case Not(part):
            return ~mask_of(part, rows)
        case ExprTrue(expr):
            return truth_of(column_of(expr, rows))
        case OnField(names, test):
            return _on_field(names, test, rows)
        case MatchesSchema(schema):
            return conforming(schema, rows)
        case _:
            raise Unvectorised


def predicate_paths(predicate: Predicate) -> set[Path] | None:
    """The paths that a predicate looks at; None where some part of it has a kernel for no types at all."""
    match predicate:
        case All(parts) | AnyOf(parts):
            inner = [predicate_paths(part) for part in parts]
            known = [paths for paths in inner if paths is not None]
            return set().union(*known) if len(known) == len(inner) else None
        case Always():
            return set()
        case Not(part):
            return predicate_paths(part)
        case ExprTrue(expr):
            return expression_paths(expr)
        case OnField(names, test):
            return {names} if type(test) in _TESTS else None
        case MatchesSchema(schema):
            return schema_paths(schema)


def _all(rows: Rows) -> Mask:
    return np.ones(rows.size, dtype=np.bool_)


def _on_field(names: Path, test: Any, rows: Rows) -> Mask:
    kernel = _TESTS.get(type(test))
    if kernel is None:
        raise Unvectorised
    return kernel(test, rows.picked(names))


def _filled(values: pa.Array) -> Mask:
    return np.asarray(pc.fill_null(values, False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _nulls(column: Column) -> Mask:
    return np.asarray(column.values.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


_ARROW_HOLDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$eq": pc.equal,
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}


def _compare(test: Compare, column: Column) -> Mask:
    value = test.value
    if value is None:
        return _nulls(column) if test.op in ("$eq", "$gte", "$lte") else np.zeros(len(column.values), dtype=np.bool_)
    if type(value) is EndKey or (is_number(value) and not is_finite(value)):
        raise Unvectorised
    if rank(value) != RANKS[column.type]:
        return np.zeros(len(column.values), dtype=np.bool_)
    wanted = constant(value, 1)
    left, right = column.values, wanted.values
    if column.type == "bool":
        left, right = left.cast(pa.uint8()), right.cast(pa.uint8())
    elif column.type in WHOLE and wanted.type in WHOLE:
        left, right = left.cast(pa.int64()), right.cast(pa.int64())
    elif column.type in NUMERIC:
        left, right = exact_doubles(column), exact_doubles(wanted)
    assert test.op in HOLDS
    return _filled(_ARROW_HOLDS[test.op](left, right[0]))


def _one_of(test: OneOf, column: Column) -> Mask:
    items = [item for item in test.values if item is not None]
    found: Mask = np.zeros(len(column.values), dtype=np.bool_)
    if items:
        found = np.asarray(is_in(column, items), dtype=np.bool_)
    if len(items) < len(test.values):
        found = found | _nulls(column)
    for pattern in test.patterns:
        found = found | _regex(pattern, column)
    return found


def _regex(test: RegexTest, column: Column) -> Mask:
    if column.type != "string":
        return np.zeros(len(column.values), dtype=np.bool_)
    return _filled(pc.match_substring_regex(column.values, test.compiled.pattern))


def _exists(_: Exists, column: Column) -> Mask:
    if column.absent:
        return ~_nulls(column)
    if column.missing and column.has_nulls:
        raise Fallback
    return np.ones(len(column.values), dtype=np.bool_)


def _type_is(test: TypeIs, column: Column) -> Mask:
    if "null" in test.aliases and column.has_nulls:
        raise Fallback
    right = column.type in test.aliases or (column.type in NUMERIC and "number" in test.aliases)
    return ~_nulls(column) if right else np.zeros(len(column.values), dtype=np.bool_)


def _mod(test: ModTest, column: Column) -> Mask:
    if column.type not in WHOLE or test.divisor == -1 or not -(2**63) <= test.divisor < 2**63:
        raise Unvectorised
    values = pc.fill_null(column.values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: Mask = (np.fmod(values, np.int64(test.divisor)) == test.remainder) & ~_nulls(column)
    return found


_TESTS: Final[dict[type, Callable[[Any, Column], Mask]]] = {
    Compare: _compare,
    OneOf: _one_of,
    RegexTest: _regex,
    Exists: _exists,
    TypeIs: _type_is,
    ModTest: _mod,
}
