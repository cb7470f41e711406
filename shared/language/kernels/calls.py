"""Operators called row by row, on the values of their arguments' columns: where a kernel cannot tell, or where there is none.

The function is called as the interpreter calls it (`interpreter.applied`), so it gives the interpreter's values (V1). A row on which it
fails, or of which an argument is not known, is in doubt. An operator that is lazy takes expressions, and cannot be called on values.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.expressions.ast import Call, Expr, Literal
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Budget, Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import applied
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.registry import ABSENT, ExpressionOperator, Named
from tidemark.shared.language.kernels.arrays import Bound
from tidemark.shared.language.kernels.base import ARROW, Bools, Column, Rows, Unvectorised, doubted, either
from tidemark.shared.language.kernels.cells import (
    column_of_values,
    different,
    encoded,
    tagged,
    tagged_column,
    taken,
    unknown_of,
    values_of,
)
from tidemark.shared.model.values import MISSING, Value

Int64s: TypeAlias = npt.NDArray[np.int64]
Of: TypeAlias = Callable[[Expr, Rows], Column]
FEW_PART: Final = 64
"""Where at most one row in so many is in doubt it is left so: to put its value into the column costs a pass over all."""
FEW_ROWS: Final = 128
"""Up to so many rows in doubt are left so, too: what is done for all of them together takes as long as to interpret these."""
ITEMS_MAX: Final = 1 << 20
"""Items of arrays that calls give a batch, some 60 bytes each: rows behind them are left to the interpreter, which has one in memory."""
FAILING_MAX: Final = 64
"""Where so many rows in a row fail, the others are in doubt without a look: each would be looked at twice."""


def completed(expr: Call, found: Column | None, rows: Rows, of: Of) -> Column:
    """A kernel's result, or None, with the operator called for the rows in doubt; Unvectorised where there is no kernel and no call."""
    doubt = open_rows(found, rows)
    if doubt is None:
        return found  # type: ignore[return-value]  # without a result all rows are open
    operator = OPERATORS[expr.op]
    try:
        if operator.lazy or rows.before_row is None or not rows.size or is_few(rows.size, rows):
            raise Unvectorised
        places = np.flatnonzero(doubt)
        arguments = _Arguments.of(operator, expr, rows, of, places)
        known = arguments.known(len(places))
        if not len(known):
            raise Unvectorised
        if found is not None and len(known) < len(places):
            arguments, places = arguments.at(known), places[known]
        called = _called(operator, arguments, rows, places)
        return called if found is None else joined(found, [(called, places)])
    except Unvectorised:
        if found is None:
            raise
        return found


def open_rows(found: Column | None, rows: Rows) -> Bools | None:
    """The rows without a result, shape (n,); None where they are few."""
    if found is None:
        return np.ones(rows.size, np.bool_)
    unknown = unknown_of(found)
    return None if unknown is None or is_few(int(np.count_nonzero(unknown)), rows) else unknown


def is_few(count: int, rows: Rows) -> bool:
    """Whether so many of the rows are left to the interpreter. Within an array nobody interprets."""
    return count * FEW_PART <= rows.size or (count <= FEW_ROWS and not isinstance(rows, Bound))


@dataclass(frozen=True)
class _Arguments:
    """The arguments of the rows at some places."""

    constants: dict[int, Any]
    """Those that are the same for all, by their number."""
    columns: dict[int, Column]
    """The others, each of shape (k,)."""
    deferred: frozenset[int]
    """Those that are handed on as functions."""

    @staticmethod
    def of(operator: ExpressionOperator, expr: Call, rows: Rows, of: Of, places: Int64s) -> "_Arguments":
        constants: dict[int, Any] = {}
        columns: dict[int, Column] = {}
        for at, arg in enumerate(expr.args):
            if arg is None or isinstance(arg, Literal):
                constants[at] = ABSENT if arg is None else arg.value
            else:
                column = of(arg, rows)
                columns[at] = column if len(places) == rows.size else taken(column, places)
        signature = operator.signature
        late = set()
        if isinstance(signature, Named):
            late = {at for at, name in enumerate(signature.names) if name in signature.deferred}
        return _Arguments(
            constants, columns, frozenset(late.difference(at for at in constants if expr.args[at] is None))
        )

    def known(self, count: int) -> Int64s:
        """The places, of so many, at which no argument is in doubt."""
        doubts = [unknown for column in self.columns.values() if (unknown := unknown_of(column)) is not None]
        return np.flatnonzero(~np.any(doubts, axis=0)) if doubts else np.arange(count)

    def at(self, places: Int64s) -> "_Arguments":
        """Those of some of the rows."""
        return replace(self, columns={at: taken(column, places) for at, column in self.columns.items()})

    def rows(self, count: int) -> tuple[Iterable[tuple[Any, ...]], Bools]:
        """(the arguments of each row; the rows of which one is not known, shape (k,))."""
        unknown = np.zeros(count, np.bool_)
        found: list[Iterable[Any]] = []
        for at in range(len(self.constants) + len(self.columns)):
            cells: Iterable[Any] = repeat(self.constants.get(at))
            if at in self.columns:
                cells, unsure = values_of(self.columns[at])
                unknown |= False if unsure is None else unsure
            found.append(map(_deferred, cells) if at in self.deferred else cells)
        return zip(*found, strict=False) if found else repeat(()), unknown


def _deferred(value: Value) -> Callable[[], Value]:
    return partial(_itself, value)


def _itself(value: Value) -> Value:
    return value


def _called(operator: ExpressionOperator, arguments: _Arguments, rows: Rows, places: Int64s) -> Column:
    """The operator's results for the rows at these places."""
    left = rows.left[places]
    found = different(arguments.columns.values(), len(places))
    if found is None:
        column, spent = _one_by_one(operator, arguments, rows, left)
    else:
        firsts, codes = found
        most = np.full(len(firsts), left.min(initial=RESULT_UNITS_MAX))
        column, spent = _one_by_one(operator, arguments.at(firsts), rows, most)
        column, spent = taken(column, codes), spent[codes]
    if spent.any():
        units = np.zeros(rows.size, np.int64)
        units[places] = np.minimum(spent, left)
        rows.spend(units)
    return column


def _one_by_one(operator: ExpressionOperator, arguments: _Arguments, rows: Rows, left: Int64s) -> tuple[Column, Int64s]:
    """(the results, doubt where there is none; the units that each took) of rows with so many units left."""
    count = len(left)
    if count > FAILING_MAX:
        first = np.arange(FAILING_MAX)
        unknown_first = unknown_of(_one_by_one(operator, arguments.at(first), rows, left[first])[0])
        if unknown_first is not None and bool(unknown_first.all()):  # before the values of all rows are made
            return _column_of([_FAILED] * count), np.zeros(count, np.int64)
    budget = Budget()
    env = Environment({}, variables={"": None} if isinstance(rows, Bound) else {}, budget=budget)
    until_null, before_row = operator.until_null, rows.before_row
    assert before_row is not None
    each, unknown = arguments.rows(count)
    found: list[Any] = []
    spent, failing, items = np.zeros(count, np.int64), 0, 0
    for args, most, skipped in zip(each, left.tolist(), unknown.tolist(), strict=False):
        before_row()
        budget.left = most
        try:
            value = _FAILED if skipped else applied(operator, _to_null(args) if until_null else args, env)
            failing = 0
        except ExpressionError:
            value = _FAILED
            failing += 1
        if budget.left != most:
            spent[len(found)] = most - budget.left
        found.append(value)
        items += len(value) if type(value) is list else 0
        if failing == FAILING_MAX or items > ITEMS_MAX:
            break
    found += [_FAILED] * (count - len(found))
    return _column_of(found), spent


def _to_null(args: tuple[object, ...]) -> tuple[Any, ...]:
    for at, arg in enumerate(args):
        if arg is None or arg is MISSING:
            return args[: at + 1]
    return args


class _NoResult:
    """The mark of a row without a result: of a type that no column has."""


_FAILED: Final = _NoResult()


def _column_of(found: list[Any]) -> Column:
    """Results as a column, of one type where they have one; doubt where there is none."""
    failed = np.array([value is _FAILED for value in found], np.bool_) if _FAILED in found else None
    if failed is not None:
        empty = MISSING if MISSING in found else None
        found = [empty if value is _FAILED else value for value in found]
    column = column_of_values(found)
    if column.doubt is None and column.type in ARROW and column.missing == column.absent:
        return doubted(column, failed)
    return tagged_column(values.read(tagged(found)), failed)


def joined(found: Column, parts: Sequence[tuple[Column, Int64s]]) -> Column:
    """A column with the cells of some rows from columns of their own."""
    every = [found, *(column for column, _ in parts)]
    typed = found.type in ARROW and all(
        column.type == found.type and column.cells is None and not column.missing for column in every
    )
    (cells, unsure), *others = [(column.values, column.doubt) if typed else encoded(column) for column in every]
    places = np.concatenate([rows for _, rows in parts])
    doubt = np.zeros(len(cells), np.bool_) if unsure is None else unsure.copy()
    doubt[places] = np.concatenate([np.zeros(len(some), np.bool_) if odd is None else odd for some, odd in others])
    cells = with_rows(cells, places, pa.concat_arrays([some for some, _ in others]))
    return Column(found.type, cells, doubt=either(doubt)) if typed else tagged_column(values.read(cells), either(doubt))


def unknown(like: Column, size: int) -> Column:
    """A column of so many rows without a result, of the type of another."""
    kind = like.type if like.type in ARROW and like.cells is None else "null"
    return Column(kind, pa.nulls(size, ARROW[kind]), doubt=np.ones(size, np.bool_))
