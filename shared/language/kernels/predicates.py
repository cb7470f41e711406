"""Queries on columns: which rows `$match` lets through. To a query null and missing are the same, so most of it has a kernel."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.language.kernels.base import (
    HOLDS,
    NUMERIC,
    RANKS,
    WHOLE,
    Bools,
    Column,
    Path,
    Rows,
    Unvectorised,
    as_doubles,
    constant,
    either,
    filled,
    inexact,
    nulls_of,
    truth_of,
)
from tidemark.shared.language.kernels.calls import is_few
from tidemark.shared.language.kernels.cells import different, items_of, taken, values_of
from tidemark.shared.language.kernels.expressions import column_of, is_in, may_be_called, may_have_kernel
from tidemark.shared.language.kernels.schemas import conforming, has_kernel, is_by_fields
from tidemark.shared.language.query.ast import (
    All,
    Always,
    AnyOf,
    Compare,
    ElemMatch,
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
from tidemark.shared.language.query.match import reaches
from tidemark.shared.language.values.order import rank
from tidemark.shared.language.values.types import is_finite, is_number
from tidemark.shared.model.values import EndKey

Verdict: TypeAlias = tuple[Bools, Bools | None]
"""Which rows meet a predicate, and of which only the interpreter can tell."""


def verdict_of(predicate: Predicate, rows: Rows) -> Verdict:
    """Which rows meet a predicate, and where there is doubt; Unvectorised where the interpreter has to say."""
    match predicate:
        case Always(answer):
            return np.full(rows.size, answer, dtype=np.bool_), None
        case All(parts):
            return _joined([verdict_of(part, rows) for part in parts], rows.size, decisive=False)
        case AnyOf(parts):
            return _joined([verdict_of(part, rows) for part in parts], rows.size, decisive=True)
        case Not(part):
            found, doubt = verdict_of(part, rows)
            return ~found, doubt
        case ExprTrue(expr):
            return truth_of(column_of(expr, rows))
        case OnField(names, test):
            return _on_field(names, test, rows)
        case MatchesSchema(schema):
            return conforming(schema, rows)
        case _:
            raise Unvectorised


def predicate_may_have_kernel(predicate: Predicate) -> bool:
    """Whether a predicate has a kernel for values of some types: as far as can be told without their types."""
    match predicate:
        case All(parts) | AnyOf(parts):
            return all(map(predicate_may_have_kernel, parts))
        case Not(part):
            return predicate_may_have_kernel(part)
        case ExprTrue(expr):
            return may_have_kernel(expr)
        case OnField(_, test):
            return type(test) in _TESTS
        case MatchesSchema(schema):
            return has_kernel(schema)
        case Always():
            return True


def predicate_may_be_called(predicate: Predicate) -> bool:
    """Whether a predicate stays on columns, its tests put to the values at their paths where they have no kernel."""
    match predicate:
        case All(parts) | AnyOf(parts):
            return all(map(predicate_may_be_called, parts))
        case Not(part):
            return predicate_may_be_called(part)
        case ExprTrue(expr):
            return may_be_called(expr)
        case OnField(_, test):
            return not _asks_document(test)
        case MatchesSchema(schema):
            return is_by_fields(schema)
        case _:
            return predicate_may_have_kernel(predicate)


def _joined(parts: Sequence[Verdict], size: int, *, decisive: bool) -> Verdict:
    """In the order in which they are asked: what one decides, no later one puts into doubt."""
    found, doubt = np.full(size, not decisive, dtype=np.bool_), np.zeros(size, dtype=np.bool_)
    for truth, unsure in parts:
        if unsure is not None:
            doubt |= unsure & ~((found == decisive) & ~doubt)
        found = found | truth if decisive else found & truth
    return found, either(doubt)


def _on_field(names: Path, test: object, rows: Rows) -> Verdict:
    column = rows.picked(names)
    kernel = _TESTS.get(type(test))
    try:
        if kernel is None:
            raise Unvectorised
        found, doubt = kernel(test, column)
        doubt = either(doubt, column.doubt)
    except Unvectorised:
        if rows.before_row is None or not rows.size:
            raise
        found, doubt = _none(column), np.ones(rows.size, np.bool_)
    if doubt is not None and column.cells is not None and not _asks_document(test):
        found, doubt = _through_arrays(names, test, rows, column.cells, (found, doubt))
    return _reached(test, column, rows, found, doubt)


def _through_arrays(names: Path, test: Any, rows: Rows, cells: Tagged, before: Verdict) -> Verdict:
    """Where an array is on the way, or items are asked for, one object of it is enough (Q1). A number may be an index: no column tells."""
    if isinstance(test, ElemMatch) and test.predicate is not None:
        before = _of_items(rows, names, cells.tags == tags.ARRAY, test.predicate, before, lists=True)
    spread = cells.tags == tags.SPREAD
    if not spread.any() or any(map(str.isdecimal, names)):
        return before
    for length in range(1, len(names)):
        above = rows.at(names[:length]).cells
        if above is not None:
            arrays = spread & (above.tags == tags.ARRAY)
            before = _of_items(rows, names[:length], arrays, OnField(names[length:], test), before)
    return before


def _of_items(
    rows: Rows, names: Path, arrays: Bools, predicate: Predicate, before: Verdict, *, lists: bool = False
) -> Verdict:
    """For some rows, whether an object in the array at a path meets a predicate; one that is not known leaves what was told before.

    lists: arrays in it are objects, too, and in doubt.
    """
    if not arrays.any():
        return before
    arrays, counts, items = items_of(rows.at(names), arrays)
    base, objects = values.objects_of(items)
    every = values.rows_of(counts)
    of_objects = every[objects.to_numpy(zero_copy_only=False)]
    held, odd = np.zeros(len(of_objects), np.bool_), None
    if len(of_objects):
        held, odd = verdict_of(predicate, rows.of_documents(base.filter(objects)))
    found, doubt = before[0].copy(), np.zeros(rows.size, np.bool_) if before[1] is None else before[1].copy()
    found[arrays] = doubt[arrays] = False
    if odd is not None:
        doubt[of_objects[odd]] = True
        held = held & ~odd
    if lists:
        doubt[every[values.read(items).tags == tags.ARRAY]] = True
    found[of_objects[held]], doubt[of_objects[held]] = True, False
    return found, either(doubt)


def _reached(test: Any, column: Column, rows: Rows, found: Bools, doubt: Bools | None) -> Verdict:
    """The same, with the test put to the value of each row in doubt: the document itself is not needed."""
    if doubt is None or is_few(int(np.count_nonzero(doubt)), rows) or rows.before_row is None or _asks_document(test):
        return found, doubt
    places = np.flatnonzero(doubt)
    some = column if len(places) == rows.size else taken(column, places)
    groups = different([some], len(places))
    firsts, codes = groups if groups is not None else (np.arange(len(places)), np.arange(len(places)))
    ends, unknown = values_of(some if groups is None else taken(some, firsts))
    before_row, holds = rows.before_row, np.zeros(len(firsts), np.bool_)
    for at, value in enumerate(ends):
        before_row()
        holds[at] = reaches(test, value)
    found, doubt = found.copy(), np.zeros(rows.size, np.bool_)
    found[places] = holds[codes]
    doubt[places] = False if unknown is None else unknown[codes]
    return found, either(doubt)


def _asks_document(node: object) -> bool:
    """Whether there is an `$expr` in a test, as within `$elemMatch`."""
    match node:
        case ExprTrue():
            return True
        case All(parts) | AnyOf(parts):
            return any(map(_asks_document, parts))
        case Not(part):
            return _asks_document(part)
        case OnField(_, test):
            return _asks_document(test)
        case ElemMatch():
            return _asks_document(node.predicate) or any(map(_asks_document, node.tests))
        case _:
            return False


def _none(column: Column) -> Bools:
    return np.zeros(len(column.values), dtype=np.bool_)


_ARROW_HOLDS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "$eq": pc.equal,
    "$gt": pc.greater,
    "$gte": pc.greater_equal,
    "$lt": pc.less,
    "$lte": pc.less_equal,
}


def _compare(test: Compare, column: Column) -> Verdict:
    value = test.value
    if value is None:
        return nulls_of(column) if test.op in ("$eq", "$gte", "$lte") else _none(column), None
    if type(value) is EndKey or (is_number(value) and not is_finite(value)):
        raise Unvectorised
    if rank(value) != RANKS[column.type]:
        return _none(column), None
    wanted = constant(value, 1)
    left, right = column.values, wanted.values
    doubt = None
    if column.type == "bool":
        left, right = left.cast(pa.uint8()), right.cast(pa.uint8())
    elif column.type in WHOLE and wanted.type in WHOLE:
        left, right = left.cast(pa.int64()), right.cast(pa.int64())
    elif column.type in NUMERIC:
        if inexact(wanted) is not None:
            raise Unvectorised
        left, right, doubt = as_doubles(column), as_doubles(wanted), inexact(column)
    assert test.op in HOLDS
    return filled(_ARROW_HOLDS[test.op](left, right[0])), doubt


def _one_of(test: OneOf, column: Column) -> Verdict:
    items = [item for item in test.values if item is not None]
    found = is_in(column, items) if items else _none(column)
    if len(items) < len(test.values):
        found = found | nulls_of(column)
    for pattern in test.patterns:
        found = found | _regex(pattern, column)[0]
    return found, None


def _regex(test: RegexTest, column: Column) -> Verdict:
    if column.type != "string":
        return _none(column), None
    return filled(pc.match_substring_regex(column.values, test.compiled.pattern)), None


def _exists(_: Exists, column: Column) -> Verdict:
    nulls = nulls_of(column)
    if column.absent:
        return ~nulls, None
    return np.ones(len(nulls), dtype=np.bool_), either(nulls) if column.missing else None


def _type_is(test: TypeIs, column: Column) -> Verdict:
    right = column.type in test.aliases or (column.type in NUMERIC and "number" in test.aliases)
    nulls = nulls_of(column)
    found = ~nulls if right else _none(column)
    if "null" not in test.aliases or column.absent:
        return found, None
    return found | nulls, either(nulls) if column.missing else None


def _mod(test: ModTest, column: Column) -> Verdict:
    if column.type not in WHOLE or test.divisor == -1 or not -(2**63) <= test.divisor < 2**63:
        raise Unvectorised
    values = pc.fill_null(column.values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return (np.fmod(values, np.int64(test.divisor)) == test.remainder) & ~nulls_of(column), None


_TESTS: Final[dict[type, Callable[[Any, Column], Verdict]]] = {
    Compare: _compare,
    OneOf: _one_of,
    RegexTest: _regex,
    Exists: _exists,
    TypeIs: _type_is,
    ModTest: _mod,
}
