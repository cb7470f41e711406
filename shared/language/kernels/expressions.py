"""Which expressions have kernels, and how they are put together."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.expressions.ast import Call, Expr, FieldPath, Literal, Switch, Variable, walk
from shared.language.kernels import arithmetic, date_texts, dates, patterns, texts
from shared.language.kernels.base import (
    ARROW,
    NUMERIC,
    RANKS,
    WHOLE,
    Column,
    Fallback,
    Path,
    Rows,
    Unvectorised,
    booleans,
    constant,
    truth_of,
)
from shared.language.kernels.compare import HOLDS, compare_columns
from shared.language.values.order import rank

_OPTIONS: Final = {"$and": np.logical_and, "$or": np.logical_or}


def column_of(expr: Expr, rows: Rows) -> Column:
    """The values of an expression; Unvectorised or Fallback where the interpreter has to give them."""
    match expr:
        case Literal(value):
            return constant(value, rows.size)
        case FieldPath(names) | Variable("ROOT", names) if names:
            return rows.at(names)
        case Call():
            return _call(expr, rows)
        case Switch():
            return _switch(expr, rows)
        case _:
            raise Unvectorised


def expression_paths(expr: Expr) -> set[Path] | None:
    """The paths that an expression reads; None where some part of it has a kernel for no types at all."""
    found: set[Path] = set()
    for node in walk(expr):
        match node:
            case FieldPath(names) | Variable("ROOT", names) if names:
                found.add(names)
            case Call(op) if op in KERNELS or op in dates.PARTS or op in _NAMED:
                pass
            case Literal() | Switch():
                pass
            case _:
                return None
    return found


def _call(expr: Call, rows: Rows) -> Column:
    op = expr.op
    if op in _BY_EXPRESSIONS:
        return _BY_EXPRESSIONS[op](expr, rows)
    if op == "$dateTrunc" and expr.args[0] is not None:
        return dates.truncate(column_of(expr.args[0], rows), expr.args)
    if op in dates.PARTS and expr.args[0] is not None:
        return dates.PARTS[op](column_of(expr.args[0], rows), expr.args[1])
    args = [None if arg is None else column_of(arg, rows) for arg in expr.args]
    given = [arg for arg in args if arg is not None]
    if len(given) != len(args):
        raise Unvectorised
    kernel = KERNELS.get(op)
    if kernel is None:
        raise Unvectorised
    return kernel(given)


def _comparison(op: str) -> Callable[[Sequence[Column]], Column]:
    return lambda args: booleans(HOLDS[op](compare_columns(args[0], args[1])))


def _cmp(args: Sequence[Column]) -> Column:
    return Column("int", pa.array(compare_columns(args[0], args[1]).astype(np.int32), pa.int32()))


def _logic(op: str) -> Callable[[Sequence[Column]], Column]:
    def apply(args: Sequence[Column]) -> Column:
        if not args:
            raise Unvectorised
        return booleans(_OPTIONS[op].reduce([truth_of(arg) for arg in args]))

    return apply


def _not(args: Sequence[Column]) -> Column:
    return booleans(~truth_of(args[0]))


def choose(condition: Any, yes: Column, no: Column) -> Column:
    """Of two columns of one type (or nulls) that which a condition says."""
    kind = no.type if yes.type == "null" else yes.type
    if no.type not in (kind, "null") or kind == "object":
        raise Unvectorised
    mask = pa.array(condition, pa.bool_())
    values = pc.if_else(mask, yes.values.cast(ARROW[kind]), no.values.cast(ARROW[kind]))
    return Column(kind, values, missing=yes.missing or no.missing)


def _cond(args: Sequence[Column]) -> Column:
    return choose(truth_of(args[0]), args[1], args[2])


def _switch(expr: Switch, rows: Rows) -> Column:
    if expr.default is None:
        raise Unvectorised
    result = column_of(expr.default, rows)
    for case, then in reversed(expr.branches):
        result = choose(truth_of(column_of(case, rows)), column_of(then, rows), result)
    return result


def _if_null(args: Sequence[Column]) -> Column:
    result = args[-1]
    for arg in reversed(args[:-1]):
        result = choose(arg.values.is_valid(), arg, result)
    return Column(result.type, result.values, missing=args[-1].missing)


def _in(expr: Call, rows: Rows) -> Column:
    value, items = expr.args
    if value is None or not isinstance(items, Literal) or type(items.value) is not list:
        raise Unvectorised
    return booleans(is_in(column_of(value, rows), items.value))


def is_in(column: Column, items: Sequence[Any]) -> Any:
    """Which cells equal one of some constants; nulls do only where they are surely null."""
    if column.type == "null" or (column.has_nulls and any(item is None for item in items)):
        raise Fallback if column.type != "null" else Unvectorised
    same = [item for item in items if item is not None and rank(item) == RANKS[column.type]]
    if column.type in WHOLE and all(type(item) is not float for item in same):
        values = column.values.cast(pa.int64())
    elif column.type == "string" or (column.type in NUMERIC and not same):
        values = column.values
    else:
        raise Unvectorised
    wanted = [int(item) if column.type in WHOLE else item for item in same if _simple(item)]
    if len(wanted) < len(same):
        raise Unvectorised
    found = pc.is_in(values, value_set=pa.array(wanted, values.type))
    return found.to_numpy(zero_copy_only=False)


def _simple(item: Any) -> bool:
    return isinstance(item, int | str) and type(item) is not bool


def _array_elem_at(expr: Call, rows: Rows) -> Column:
    """An item of an array whose items are columns, or of a string's parts."""
    match expr.args:
        case (FieldPath(names), Literal(index)) if type(index) is int and (names, index) in rows.items:
            return replace(rows.items[names, index], missing=False)
        case (Call("$split", (text, Literal(delimiter))), Literal(index)) if text is not None and type(index) is int:
            return texts.nth_part(column_of(text, rows), delimiter, index)
        case _:
            raise Unvectorised


def _regex_match(expr: Call, rows: Rows) -> Column:
    if expr.args[0] is None:
        raise Unvectorised
    return patterns.matched(expr, column_of(expr.args[0], rows))


_BY_EXPRESSIONS: Final[dict[str, Callable[[Call, Rows], Column]]] = {
    "$in": _in,
    "$arrayElemAt": _array_elem_at,
    "$regexMatch": _regex_match,
    "$dateFromString": lambda expr, rows: date_texts.from_string(expr, lambda text: column_of(text, rows)),
}
_NAMED: Final = frozenset({*_BY_EXPRESSIONS, "$dateTrunc", "$split"})
"""Operators with kernels that are not in KERNELS."""

KERNELS: Final[dict[str, Callable[[Sequence[Column]], Column]]] = {
    **{op: _comparison(op) for op in HOLDS},
    "$cmp": _cmp,
    "$and": _logic("$and"),
    "$or": _logic("$or"),
    "$not": _not,
    "$cond": _cond,
    "$ifNull": _if_null,
    "$add": lambda args: arithmetic.combine("$add", args),
    "$subtract": lambda args: arithmetic.combine("$subtract", args),
    "$multiply": lambda args: arithmetic.combine("$multiply", args),
    "$divide": arithmetic.divide,
    "$mod": arithmetic.modulo,
    "$abs": arithmetic.absolute,
    "$floor": arithmetic.rounder(pc.floor),
    "$ceil": arithmetic.rounder(pc.ceil),
    "$concat": texts.concat,
    "$toUpper": texts.letters(pc.ascii_upper),
    "$toLower": texts.letters(pc.ascii_lower),
    "$strLenCP": texts.length,
    "$toDate": texts.to_date,
    "$toInt": texts.to_int,
    "$toLong": texts.to_long,
    "$toDouble": texts.to_double,
    "$toString": texts.to_string,
}
"""Operators with kernels, besides `$in`, `$dateTrunc` and the parts of dates."""
