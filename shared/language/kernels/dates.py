"""Dates on columns, in UTC or a constant zone. What days and zones decide is asked of the interpreter's calendar, once for each day."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import Expr, Literal
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.library.calendar import (
    FIXED_UNITS_MS,
    REFERENCE_DAYS,
    UNITS,
    add_units,
    parts_of,
    unit_index,
    weekday_of,
)
from tidemark.shared.language.expressions.library.calendar import truncate as truncate_one
from tidemark.shared.language.expressions.library.date_format import WRITE, write_date
from tidemark.shared.language.expressions.library.zones import to_utc, zone_named
from tidemark.shared.language.kernels.base import (
    TIMESTAMP,
    WHOLE,
    Bools,
    Column,
    ColumnType,
    Unvectorised,
    as_doubles,
    either,
    filled,
    without,
)
from tidemark.shared.language.kernels.zones import offsets
from tidemark.shared.language.values.instants import DAY_MS, days_of
from tidemark.shared.language.values.types import is_integral

Int64s = npt.NDArray[np.int64]
_FIRST: Final = days_of(100, 1, 1) * DAY_MS
_LAST: Final = days_of(9900, 12, 31) * DAY_MS
_SIZE_MAX: Final = 10_000_000
"""Beyond it a kernel leaves the work to the interpreter, with the same result."""
_AMOUNT_MAX: Final = 1e12
"""So many hours are far beyond the years that kernels take, and far within 64 bits."""


def _dates(column: Column) -> tuple[pa.Array, Bools | None]:
    """The cells, and the rows, null here, outside of the years 100 to 9900, where Python and Arrow have zones and parts."""
    if column.type != "date":
        raise Unvectorised
    ms = column.values.cast(pa.int64())
    bounds = pc.min_max(ms).as_py()
    if bounds["min"] is None or (bounds["min"] >= _FIRST and bounds["max"] <= _LAST):
        return column.values, None
    far = filled(pc.or_(pc.less(ms, _FIRST), pc.greater(ms, _LAST)))
    return without(column.values, far), far


def zone_of_constant(zone: Expr | None) -> tzinfo:
    """The zone of a constant argument, UTC if it was not written."""
    if zone is None:
        return UTC
    if not isinstance(zone, Literal) or type(zone.value) is not str:
        raise Unvectorised
    try:
        return zone_named(zone.value)
    except ExpressionError:
        raise Unvectorised from None


def _local(values: pa.Array, zone: tzinfo) -> pa.Array:
    """Instants as what a clock in the zone shows, taken for UTC."""
    if zone is UTC:
        return values
    ms = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    mask = values.is_null().to_numpy(zero_copy_only=False)
    return pa.array(ms + offsets(ms, zone), pa.int64(), mask=mask).cast(TIMESTAMP)


def part(function: Callable[[pa.Array], pa.Array], kind: ColumnType = "int") -> Callable[[Column, Expr | None], Column]:
    """One part of a date, in a constant zone."""
    target = pa.int64() if kind == "long" else pa.int32()

    def apply(date: Column, zone: Expr | None) -> Column:
        cells, far = _dates(date)
        return Column(kind, function(_local(cells, zone_of_constant(zone))).cast(target), doubt=far)

    return apply


def _weekday(start: int) -> Callable[[pa.Array], pa.Array]:
    return lambda values: pc.day_of_week(values, count_from_zero=False, week_start=start)


PARTS: Final[dict[str, Callable[[Column, Expr | None], Column]]] = {
    "$year": part(pc.year),
    "$month": part(pc.month),
    "$dayOfMonth": part(pc.day),
    "$dayOfYear": part(pc.day_of_year),
    "$dayOfWeek": part(_weekday(7)),
    "$isoDayOfWeek": part(_weekday(1)),
    "$isoWeek": part(pc.iso_week),
    "$isoWeekYear": part(pc.iso_year, "long"),
    "$week": part(
        lambda values: pc.divide(
            pc.subtract(pc.add(pc.day_of_year(values), 6), pc.day_of_week(values, week_start=7)), 7
        )
    ),
    "$hour": part(pc.hour),
    "$minute": part(pc.minute),
    "$second": part(pc.second),
    "$millisecond": part(pc.millisecond),
}
"""Parts by operator."""


def _word(expr: Expr | None, default: str | None = None) -> str:
    """A constant text."""
    if expr is None and default is not None:
        return default
    if not isinstance(expr, Literal) or type(expr.value) is not str:
        raise Unvectorised
    return expr.value


def _unit(expr: Expr | None) -> str:
    name = _word(expr)
    if name not in UNITS:
        raise Unvectorised
    return name


def _week_start(unit: str, expr: Expr | None) -> int:
    if unit != "week" or expr is None:
        return 0
    try:
        return weekday_of("", _word(expr))
    except ExpressionError:
        raise Unvectorised from None


@dataclass(frozen=True, slots=True)
class _Instants:
    """Dates as numbers, shape (n,) each; 0 where a cell is null or in doubt."""

    ms: Int64s
    null: Bools
    doubt: Bools | None

    def column(self, found: Int64s) -> Column:
        """Dates where these are."""
        return Column("date", pa.array(found, pa.int64(), mask=self.null).cast(TIMESTAMP), doubt=self.doubt)


def _instants(column: Column) -> _Instants:
    values, far = _dates(column)
    ms = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    return _Instants(ms, values.is_null().to_numpy(zero_copy_only=False), far)


def _by_value(keys: Int64s, value_of: Callable[[int], int]) -> Int64s:
    """What a function gives of each number, asked once for each different one."""
    different, inverse = np.unique(keys, return_inverse=True)
    try:
        found: Int64s = np.array([value_of(key) for key in different.tolist()], dtype=np.int64)[inverse]
    except (ExpressionError, OverflowError):
        raise Unvectorised from None
    return found


def truncate(date: Column, args: tuple[Expr | None, ...]) -> Column:
    """`$dateTrunc` to constant units, in a constant zone; `args` are those of the call."""
    _, unit, size, zone_expr, start = args
    name, zone = _unit(unit), zone_of_constant(zone_expr)
    wide: Any = size.value if isinstance(size, Literal) else 1 if size is None else None
    if not is_integral(wide) or not 1 <= wide <= _SIZE_MAX:
        raise Unvectorised
    found, first = _instants(date), _week_start(name, start)
    if name in FIXED_UNITS_MS:
        width, reference = int(wide) * FIXED_UNITS_MS[name], to_utc(zone, REFERENCE_DAYS * DAY_MS)
        return found.column(found.ms - np.mod(found.ms - reference, width))
    days = (found.ms + offsets(found.ms, zone)) // DAY_MS
    return found.column(_by_value(days, lambda day: to_utc(zone, _day_truncated(day, name, int(wide), first))))


def _day_truncated(day: int, unit: str, size: int, first: int) -> int:
    """The local beginning of the bin that a local day is in, ms."""
    return truncate_one(day * DAY_MS, unit, size, UTC, first)


def moved(date: Column, amount: Column, args: tuple[Expr | None, ...], sign: int) -> Column:
    """`$dateAdd` and `$dateSubtract` of constant units: of days and longer in UTC, of shorter ones in any constant zone."""
    name, zone = _unit(args[1]), zone_of_constant(args[3])
    if amount.type not in WHOLE or (name not in FIXED_UNITS_MS and zone is not UTC):
        raise Unvectorised
    found = _instants(date)
    many = filled(pc.greater(pc.abs(as_doubles(amount)), _AMOUNT_MAX))
    steps = sign * pc.fill_null(without(amount.values, either(many)), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if name in FIXED_UNITS_MS:
        ms = found.ms + steps * FIXED_UNITS_MS[name]
    else:
        days, rest = np.divmod(found.ms, DAY_MS)
        ms = rest.copy()
        for step in np.unique(steps).tolist():
            these = steps == step
            ms[these] += _by_value(days[these], lambda day, step=step: add_units(day * DAY_MS, name, step, UTC))  # type: ignore[misc]
    null = found.null | amount.values.is_null().to_numpy(zero_copy_only=False)
    return _Instants(found.ms, null, either(found.doubt, many)).column(ms)


def between(start: Column, end: Column, args: tuple[Expr | None, ...]) -> Column:
    """`$dateDiff` in constant units and a constant zone."""
    name, zone = _unit(args[2]), zone_of_constant(args[3])
    first = _week_start(name, args[4])
    one, other = _instants(start), _instants(end)
    if name == "hour":
        hour = FIXED_UNITS_MS["hour"]
        before, after = offsets(one.ms, zone), offsets(other.ms, zone)
        shift = np.abs(before - after) // hour
        found = (other.ms + after) // hour - (one.ms + before) // hour + np.where(before > after, shift, -shift)
    else:
        found = _index(other.ms, name, zone, first) - _index(one.ms, name, zone, first)
    return Column("long", pa.array(found, pa.int64(), mask=one.null | other.null), doubt=either(one.doubt, other.doubt))


def _index(ms: Int64s, unit: str, zone: tzinfo, first: int) -> Int64s:
    """`unit_index` of each instant."""
    if unit in FIXED_UNITS_MS:
        return ms // FIXED_UNITS_MS[unit]
    days = (ms + offsets(ms, zone)) // DAY_MS
    return days if unit == "day" else _by_value(days, lambda day: unit_index(day * DAY_MS, unit, UTC, first))


# --- texts ------------------------------------------------------------------------------------------------------------

_OF_THE_CLOCK: Final = {"H": (3_600_000, 24, 2), "M": (60_000, 60, 2), "S": (1000, 60, 2), "L": (1, 1000, 3)}
"""Specifiers of the clock: ms of one, how many there are, and with how many digits they are written."""


def written(date: Column, args: tuple[Expr | None, ...]) -> Column:
    """`$dateToString` in a constant format and zone."""
    _, form, zone_expr, on_null = args
    zone = zone_of_constant(zone_expr)
    pattern = _word(form, "%Y-%m-%dT%H:%M:%S.%LZ" if zone is UTC else "%Y-%m-%dT%H:%M:%S.%L")
    if on_null is not None:
        raise Unvectorised
    found = _instants(date)
    ahead = offsets(found.ms, zone)
    days, rest = np.divmod(found.ms + ahead, DAY_MS)
    pieces = [_piece(piece, days, rest, ahead) for piece in _pieces(pattern)]
    texts = pc.binary_join_element_wise(*pieces, "")
    return Column("string", without(texts, either(found.null)), doubt=found.doubt)


def _pieces(pattern: str) -> list[str]:
    """A format in runs: a specifier of the clock or the zone alone, and all between as far as a day decides it."""
    runs, i = [""], 0
    while i < len(pattern):
        piece = pattern[i : i + 2] if pattern[i] == "%" else pattern[i]
        if len(piece) == 1 and piece == "%":
            raise Unvectorised
        if len(piece) > 1 and piece[1] not in WRITE:
            raise Unvectorised
        if len(piece) > 1 and piece[1] in (*_OF_THE_CLOCK, "z", "Z"):
            runs += [piece, ""]
        else:
            runs[-1] += piece
        i += len(piece)
    return [run for run in runs if run] or [""]


def _piece(piece: str, days: Int64s, rest: Int64s, ahead: Int64s) -> pa.Array:
    letter = piece[1:] if len(piece) == 2 and piece[0] == "%" else ""  # noqa: PLR2004 - a specifier
    if letter in _OF_THE_CLOCK:
        width, many, digits = _OF_THE_CLOCK[letter]
        return pa.array([f"{number:0{digits}d}" for number in range(many)]).take(pa.array(rest // width % many))
    keys = ahead if letter in ("z", "Z") else days
    different, inverse = np.unique(keys, return_inverse=True)
    try:
        if keys is ahead:
            texts = [write_date(replace(parts_of(0, UTC), offset=key), piece) for key in different.tolist()]
        else:
            texts = [write_date(parts_of(key * DAY_MS, UTC), piece) for key in different.tolist()]
    except (ExpressionError, OverflowError):
        raise Unvectorised from None
    return pa.array(texts, pa.string()).take(pa.array(inverse))
