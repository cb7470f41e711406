"""Arithmetic on columns. Nulls give nulls; what would change the type of a row, or fail on it, is a Fallback."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.kernels.base import (
    NUMERIC,
    TIMESTAMP,
    WHOLE,
    Column,
    ColumnType,
    Fallback,
    Unvectorised,
    as_doubles,
)
from shared.model.values import INT32_MAX, INT32_MIN

_CHECKED: Final[dict[str, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "$add": pc.add_checked,
    "$subtract": pc.subtract_checked,
    "$multiply": pc.multiply_checked,
}
_PLAIN: Final[dict[str, Callable[[pa.Array, pa.Array], pa.Array]]] = {
    "$add": pc.add,
    "$subtract": pc.subtract,
    "$multiply": pc.multiply,
}


def nulls(size: int) -> Column:
    """Nothing but nulls."""
    return Column("null", pa.nulls(size))


def _checked(op: Callable[[pa.Array, pa.Array], pa.Array], left: pa.Array, right: pa.Array) -> pa.Array:
    try:
        return op(left, right)
    except pa.ArrowInvalid:
        raise Fallback from None


def whole(values: pa.Array, kind: ColumnType) -> Column:
    """64-bit results as a column of their type; Fallback where an int overflowed."""
    if kind == "long":
        return Column("long", values)
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and (bounds["min"] < INT32_MIN or bounds["max"] > INT32_MAX):
        raise Fallback
    return Column("int", values.cast(pa.int32()))


def combine(op: str, args: Sequence[Column]) -> Column:
    """`$add`, `$subtract`, `$multiply`."""
    if any(arg.type == "date" for arg in args):
        return _with_dates(op, args)
    if any(arg.type not in (*NUMERIC, "null") for arg in args) or not args:
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    if all(arg.type in WHOLE for arg in args):
        total = args[0].values.cast(pa.int64())
        for arg in args[1:]:
            total = _checked(_CHECKED[op], total, arg.values.cast(pa.int64()))
        return whole(total, "long" if any(arg.type == "long" for arg in args) else "int")
    if len(args) > 2:  # noqa: PLR2004 - the interpreter rounds more than two doubles once
        raise Unvectorised
    if len(args) == 1:
        return Column("double", args[0].values)
    return Column("double", _PLAIN[op](as_doubles(args[0]), as_doubles(args[1])))


def _with_dates(op: str, args: Sequence[Column]) -> Column:
    if op == "$multiply" or len(args) != 2:  # noqa: PLR2004
        raise Unvectorised
    left, right = args
    if op == "$subtract" and left.type == right.type == "date":
        return Column("long", _checked(pc.subtract_checked, _ms(left), _ms(right)))
    if op == "$add" and right.type == "date":
        left, right = right, left
    if left.type != "date" or right.type not in WHOLE:
        raise Unvectorised
    moved = _checked(_CHECKED[op], _ms(left), right.values.cast(pa.int64()))
    return Column("date", moved.cast(TIMESTAMP))


def _ms(column: Column) -> pa.Array:
    return column.values.cast(pa.int64())


def _no_zero(values: pa.Array) -> None:
    if pc.any(pc.equal(values, pa.scalar(0, values.type))).as_py():
        raise Fallback


def divide(args: Sequence[Column]) -> Column:
    """`$divide`."""
    left, right = _two_numbers(args)
    if "null" in (left.type, right.type):
        return nulls(len(left.values))
    _no_zero(right.values)
    return Column("double", pc.divide(as_doubles(left), as_doubles(right)))


def _two_numbers(args: Sequence[Column]) -> tuple[Column, Column]:
    left, right = args
    if any(arg.type not in (*NUMERIC, "null") for arg in args):
        raise Unvectorised
    return left, right


def modulo(args: Sequence[Column]) -> Column:
    """`$mod` of whole numbers."""
    left, right = _two_numbers(args)
    if left.type not in WHOLE or right.type not in WHOLE:
        raise Unvectorised
    _no_zero(right.values)
    a = pc.fill_null(left.values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    b = pc.fill_null(right.values.cast(pa.int64()), 1).to_numpy(zero_copy_only=False)
    if bool((b == -1).any()):  # the least long has no quotient by -1
        raise Fallback
    mask = pc.or_(left.values.is_null(), right.values.is_null()).to_numpy(zero_copy_only=False)
    result = pa.array(np.fmod(a, b), pa.int64(), mask=mask)
    return whole(result, "long" if "long" in (left.type, right.type) else "int")


def absolute(args: Sequence[Column]) -> Column:
    """`$abs`."""
    (arg,) = args
    if arg.type in WHOLE:
        try:
            return whole(pc.abs_checked(arg.values.cast(pa.int64())), arg.type)
        except pa.ArrowInvalid:
            raise Fallback from None
    if arg.type != "double":
        raise Unvectorised
    return Column("double", pc.abs(arg.values))


def rounder(function: Any) -> Callable[[Sequence[Column]], Column]:
    """`$floor` and `$ceil`; a zero keeps the sign of what it was made of."""

    def apply(args: Sequence[Column]) -> Column:
        (arg,) = args
        if arg.type in WHOLE:
            return Column(arg.type, arg.values)
        if arg.type != "double":
            raise Unvectorised
        return Column("double", function(arg.values))

    return apply
