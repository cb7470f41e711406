"""Passes of a kernel over some rows each: where the types of arguments differ, and where arguments are constants in many rows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from tidemark.shared.compiled import tags
from tidemark.shared.language.expressions.ast import Call, Expr, Literal
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.kernels import calls, cells
from tidemark.shared.language.kernels.arrays import Bound, Int64s, Of
from tidemark.shared.language.kernels.base import Column, Rows, Unvectorised

Kernel: TypeAlias = Callable[[Call, Rows, Of], Column]


class Arguments:
    """The columns of an operator's arguments, each computed once."""

    def __init__(self, rows: Rows, column_of: Of) -> None:
        self._rows, self._column_of = rows, column_of
        self._known: dict[int, Column] = {}

    def __call__(self, expr: Expr, rows: Rows) -> Column:
        """The column of an expression over some rows, these or others."""
        if rows is not self._rows:
            return self._column_of(expr, rows)
        found = self._known.get(id(expr))
        if found is None:
            found = self._known[id(expr)] = self._column_of(expr, rows)
        return found

    def at(self, places: Int64s, inner: Rows) -> "Arguments":
        """Those of some rows, which are rows of their own; each column of the type that it has there."""
        found = Arguments(inner, self._column_of)
        for key, column in self._known.items():
            some = cells.taken(column, places)
            found._known[key] = some if some.cells is None else cells.tagged_column(some.cells)
        return found


@dataclass(frozen=True)
class _Bounds:
    """Of passes for the commonest combinations, each by itself."""

    most: int
    rows_min: int
    """Of a pass."""


_TYPES: Final = _Bounds(4, 1)
_CONSTANTS: Final = _Bounds(64, 192)
"""Of values: below so many rows a call for each costs less: at 125 up to twice less, at 250 up to twice more."""


def by_types(kernel: Kernel, expr: Call, found: Column | None, rows: Rows, of: Arguments) -> Column | None:
    """The result of a kernel, with that of the rows whose arguments have other types than most: each combination by itself."""
    unknown = None if OPERATORS[expr.op].lazy else calls.open_rows(found, rows)
    if unknown is None:
        return found
    mixed = {id(arg): of(arg, rows) for arg in expr.args if arg is not None and not isinstance(arg, Literal)}
    mixed = {key: column for key, column in mixed.items() if cells.is_mixed(column)}
    if not mixed:
        return found
    pattern = np.zeros(rows.size, np.int64)
    for column in mixed.values():
        assert column.cells is not None
        pattern = pattern * tags.COUNT + column.cells.tags
        unknown = unknown & (column.cells.tags != tags.SPREAD)
    if bool(unknown.all()) and pattern.min() == pattern.max():  # a pass would be what has been tried
        return found
    return _by_pattern(kernel, found, pattern, np.flatnonzero(unknown), _TYPES, rows, of, lambda _: expr)


def by_constants(kernel: Kernel, expr: Call, rows: Rows, of: Arguments) -> Column | None:
    """The result where arguments have few values, as texts that say what to look for, and zones: these are constants of a pass each."""
    if calls.is_few(rows.size, rows):
        return None
    told: dict[int, tuple[Column, Int64s, Int64s]] = {}
    given = [at for at, arg in enumerate(expr.args) if arg is not None and not isinstance(arg, Literal)]
    for at in given:
        column = of(expr.args[at], rows)  # type: ignore[arg-type]  # it is there
        few = cells.different([column], rows.size)
        if few is not None and len(few[0]) <= _CONSTANTS.most:
            told[at] = (column, *few)
    if not told or len(told) == len(given):  # if all have few values, the operator is called for each combination
        return None
    pattern: Int64s = np.zeros(rows.size, np.int64)
    for _, firsts, codes in told.values():
        pattern = pattern * len(firsts) + codes

    def constant_of(row: int) -> Call:
        args = list(expr.args)
        for at, (column, firsts, codes) in told.items():
            args[at] = Literal(cells.values_of(cells.taken(column, firsts[codes[row : row + 1]]))[0][0])
        return replace(expr, args=tuple(args))

    return _by_pattern(kernel, None, pattern, np.arange(rows.size), _CONSTANTS, rows, of, constant_of)


def _by_pattern(
    kernel: Kernel,
    found: Column | None,
    pattern: Int64s,
    open_rows: Int64s,
    bounds: _Bounds,
    rows: Rows,
    of: Arguments,
    call_of: Callable[[int], Call],
) -> Column | None:
    """A result with that of some rows from a pass for those of each of the commonest patterns that has as many. call_of: of a row."""
    kinds, counts = np.unique(pattern[open_rows], return_counts=True)
    parts: list[tuple[Column, Int64s]] = []
    for kind in kinds[np.argsort(-counts)][: bounds.most]:
        places = open_rows[pattern[open_rows] == kind]
        if len(places) < bounds.rows_min or calls.is_few(len(places), rows):
            continue
        inner = Bound(rows, places, {})
        try:
            parts.append((kernel(call_of(int(places[0])), inner, of.at(places, inner)), places))
        except Unvectorised:
            continue
    if not parts:
        return found
    return calls.joined(calls.unknown(parts[0][0], rows.size) if found is None else found, parts)
