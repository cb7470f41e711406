"""Functions of numbers that the interpreter defines by Python's own, and operators on bits.

A function of doubles is called on the doubles of a column, and nothing else is done for a row: its last bits are those of the library that
Python stands on, and no other need give them. Where it fails, or does not take a number, there is doubt.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.library.arithmetic import REALS
from tidemark.shared.language.kernels.arithmetic import nulls, whole
from tidemark.shared.language.kernels.base import (
    NUMERIC,
    WHOLE,
    Bools,
    Column,
    ColumnType,
    Unvectorised,
    as_doubles,
    either,
)
from tidemark.shared.model.values import INT64_MAX, INT64_MIN

_POWER_MAX: Final = 64
"""As the interpreter has it: beyond, no base above 1 fits 64 bits."""


def _real(name: str, args: Sequence[Column]) -> Column:
    """A function of one number."""
    function, good = REALS[name]
    return _doubles(args, lambda number: function(number) if good(number) else None)


def _doubles(args: Sequence[Column], function: Callable[..., float | None]) -> Column:
    """A function of doubles; doubt where it gives None or fails."""
    if any(arg.type not in (*NUMERIC, "null") for arg in args):
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    gone = _nulls(args)
    found, doubt = _called(function, [as_doubles(arg).to_pylist() for arg in args], gone)
    return Column("double", pa.array(found, pa.float64()), doubt=doubt)


def _nulls(args: Sequence[Column]) -> Bools | None:
    return either(*(arg.values.is_null().to_numpy(zero_copy_only=False) for arg in args if arg.has_nulls))


def _called(
    function: Callable[..., object], columns: Sequence[list[Any]], gone: Bools | None
) -> tuple[list[Any], Bools | None]:
    """(results, None where there is none; the rows in doubt: those without one that are not `gone`)."""
    rows: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
    if gone is None:
        try:
            found = [function(*row) for row in rows]
        except (ArithmeticError, ValueError):
            found = [_or_none(function, row) for row in zip(*columns, strict=True)]
    else:
        found = [None if none else _or_none(function, row) for none, row in zip(gone.tolist(), rows, strict=True)]
    if None not in found:
        return found, None
    without = np.array([each is None for each in found], np.bool_)
    return found, either(without if gone is None else without & ~gone)


def _or_none(function: Callable[..., object], row: tuple[object, ...]) -> Any:
    try:
        return function(*row)
    except (ArithmeticError, ValueError):
        return None


def _log(value: float, base: float) -> float | None:
    return math.log(value) / math.log(base) if value > 0 and base > 0 and base != 1 else None


def _power(args: Sequence[Column]) -> Column:
    """`$pow`: of whole numbers whole as far as 64 bits go."""
    kinds = [arg.type for arg in args]
    if any(kind not in WHOLE for kind in kinds):
        return _doubles(args, _power_of_doubles)
    found, doubt = _called(_whole_power, [arg.values.to_pylist() for arg in args], _nulls(args))
    return whole(pa.array(found, pa.int64()), "long" if "long" in kinds else "int", doubt)


def _power_of_doubles(base: float, exponent: float) -> float | None:
    return math.pow(base, exponent) if base or exponent > 0 else None


def _whole_power(base: int, exponent: int) -> int | None:
    if not 0 <= exponent <= _POWER_MAX:
        return None
    found = base**exponent
    return found if INT64_MIN <= found <= INT64_MAX else None


def _bits(function: Any, args: Sequence[Column]) -> Column:
    """An operator on the bits of whole numbers; null where one is null."""
    if not args or any(arg.type not in (*WHOLE, "null") for arg in args):
        raise Unvectorised
    if any(arg.type == "null" for arg in args):
        return nulls(len(args[0].values))
    found = args[0].values.cast(pa.int64())
    for arg in args[1:]:
        found = function(found, arg.values.cast(pa.int64()))
    kind: ColumnType = "long" if any(arg.type == "long" for arg in args) else "int"
    return whole(pc.bit_wise_not(found) if function is pc.bit_wise_not else found, kind)


KERNELS: Final[dict[str, Callable[[Sequence[Column]], Column]]] = {
    **{name: partial(_real, name) for name in REALS if name != "$sqrt"},
    "$atan2": lambda args: _doubles(args, math.atan2),
    "$log": lambda args: _doubles(args, _log),
    "$pow": _power,
    "$bitAnd": partial(_bits, pc.bit_wise_and),
    "$bitOr": partial(_bits, pc.bit_wise_or),
    "$bitXor": partial(_bits, pc.bit_wise_xor),
    "$bitNot": partial(_bits, pc.bit_wise_not),
}
"""Operators of numbers that take columns alone."""
