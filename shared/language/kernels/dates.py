"""Dates on columns, in UTC or a constant zone. What days and zones decide is asked of the interpreter, once for each day.

Of texts (`$dateFromString` with a constant format all of whose parts have a fixed width) those are read that are as long as the format can
be, and have in each part the characters that belong there: there is one way to read them. Of every other row there is doubt.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled.documents import instants
from tidemark.shared.language.expressions.ast import Expr, Literal
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.library.calendar import (
    FIXED_UNITS_MS,
    REFERENCE_DAYS,
    UNITS,
    add_units,
    offset_ms,
    parts_of,
    to_utc,
    unit_index,
    weekday_of,
    zone_named,
)
from tidemark.shared.language.expressions.library.calendar import truncate as truncate_one
from tidemark.shared.language.expressions.library.date_format import MONTH_NAMES, WRITE, write_date
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
from tidemark.shared.language.values.instants import DAY_MS, MONTH_DAYS, days_of
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
    """The results of a function for numbers, asked once for each different one."""
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


def written(date: Column, form: Expr | None = None, timezone: Expr | None = None) -> Column:
    """`$dateToString` in a constant format and zone."""
    zone = zone_of_constant(timezone)
    pattern = _word(form, "%Y-%m-%dT%H:%M:%S.%LZ" if zone is UTC else "%Y-%m-%dT%H:%M:%S.%L")
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


def of_texts(column: Column) -> Column:
    """The instants of ISO 8601 texts, in UTC where they say no offset; doubt for rows with any other text."""
    ms, known = instants(column.values)
    nulls = column.values.is_null().to_numpy(zero_copy_only=False)
    return Column("date", pa.array(ms, mask=nulls).cast(TIMESTAMP), doubt=either(~known & ~nulls))


_BUCKET_MS: Final = 900_000
"""Zones change their offset rarely: within a quarter of an hour that begins and ends with one offset it is that one."""


def offsets(ms: npt.NDArray[np.int64], zone: tzinfo) -> npt.NDArray[np.int64]:
    """How far local time is ahead of UTC at each instant, ms; shape (rows,)."""
    if zone is UTC or not len(ms):
        return np.zeros(len(ms), dtype=np.int64)
    buckets, inverse = np.unique(ms // _BUCKET_MS, return_inverse=True)
    first = np.array([offset_ms(zone, int(b) * _BUCKET_MS) for b in buckets], dtype=np.int64)
    last = np.array([offset_ms(zone, (int(b) + 1) * _BUCKET_MS - 1) for b in buckets], dtype=np.int64)
    found: npt.NDArray[np.int64] = first[inverse]
    for row in np.flatnonzero((first != last)[inverse]):
        found[row] = offset_ms(zone, int(ms[row]))
    return found


Bytes: TypeAlias = npt.NDArray[np.uint8]
_WIDTHS: Final = {"d": 2, "H": 2, "M": 2, "S": 2, "m": 2, "Y": 4, "L": 3, "b": 3, "z": 5}
_MONTHS: Final = np.array([int.from_bytes(name[:3].encode()) for name in MONTH_NAMES], dtype=np.int64)
_BY_MONTH: Final = np.argsort(_MONTHS)
_DAYS: Final = np.array(MONTH_DAYS, dtype=np.int64)
_TEXT_MAX: Final = 64
"""Bytes of a date that the kernel reads; longer ones are interpreted."""


def from_string(column: Column, form: Expr | None, timezone: Expr | None) -> Column:
    """`$dateFromString` in UTC, with or without a format; doubt for rows with any other text."""
    if column.type != "string" or zone_of_constant(timezone) is not UTC:
        raise Unvectorised
    if form is None:
        return of_texts(column)
    layout = _layout(_word(form))
    if layout is None:
        raise Unvectorised
    fits = filled(pc.equal(pc.binary_length(column.values), layout[1]))
    texts = column.values if bool(fits.all()) else pc.if_else(pa.array(fits), column.values, "0" * layout[1])
    ms, good = _read(_matrix(texts, layout[1]), layout[0])
    nulls = column.values.is_null().to_numpy(zero_copy_only=False)
    return Column("date", pa.array(ms, mask=nulls).cast(TIMESTAMP), doubt=either(~(fits & good) & ~nulls))


@lru_cache(maxsize=256)
def _layout(form: str) -> tuple[tuple[tuple[str, int, int], ...], int] | None:
    """(specifier or literal text, begin, end) of each part, and the whole width in bytes; None for a format without."""
    parts: list[tuple[str, int, int]] = []
    at = i = 0
    while i < len(form):
        piece = form[i : i + 2] if form[i] == "%" else form[i]
        width = _WIDTHS.get(piece[1:], 0) if len(piece) > 1 else len(piece.encode())
        if not width:
            return None
        parts.append((piece, at, at + width))
        at, i = at + width, i + len(piece)
    known = {piece for piece, _, _ in parts}
    whole = {"%Y", "%d"} <= known and len(known & {"%m", "%b"}) == 1 and at <= _TEXT_MAX
    return (tuple(parts), at) if whole else None


def _matrix(texts: pa.Array, width: int) -> Bytes:
    """The bytes of texts of one width, shape (n, width)."""
    packed = texts.cast(pa.binary()).cast(pa.binary(width))
    _, data = packed.buffers()
    flat = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return flat[packed.offset * width : (packed.offset + len(packed)) * width].reshape(len(packed), width)


def _read(data: Bytes, parts: tuple[tuple[str, int, int], ...]) -> tuple[Int64s, Bools]:
    """(instants in ms, whether each text is one); shape (n,) each."""
    good: Bools = np.ones(len(data), dtype=np.bool_)
    by: dict[str, Int64s] = {}
    for piece, begin, end in parts:
        cells = data[:, begin:end]
        if len(piece) == 1:
            good &= (cells == np.frombuffer(piece.encode(), dtype=np.uint8)).all(axis=1)
        elif piece == "%b":
            by["%m"] = _month_named(cells, good)
        elif piece == "%z":
            good &= (cells[:, 0] == ord("+")) | (cells[:, 0] == ord("-"))
            by[piece] = np.where(cells[:, 0] == ord("-"), -1, 1) * _minutes(_number(cells[:, 1:], good), good)
        else:
            by[piece] = _number(cells, good)
    return _instants_of(by, good), good


def _number(cells: Bytes, good: Bools) -> Int64s:
    digits = cells - np.uint8(ord("0"))
    good &= (digits < 10).all(axis=1)  # noqa: PLR2004 - what is below zero has wrapped around
    powers = 10 ** np.arange(cells.shape[1] - 1, -1, -1, dtype=np.int64)
    found: Int64s = digits.astype(np.int64) @ powers
    return found


def _month_named(cells: Bytes, good: Bools) -> Int64s:
    wide = cells.astype(np.int64)
    codes = wide[:, 0] << 16 | wide[:, 1] << 8 | wide[:, 2]
    places = np.minimum(np.searchsorted(_MONTHS, codes, sorter=_BY_MONTH), len(_MONTHS) - 1)
    months = _BY_MONTH[places]
    good &= _MONTHS[months] == codes
    return months.astype(np.int64) + 1


def _minutes(clock: Int64s, good: Bools) -> Int64s:
    """Hours and minutes in four digits as minutes."""
    hours, minutes = clock // 100, clock % 100
    good &= (hours < 24) & (minutes < 60)  # noqa: PLR2004 - the clock
    return hours * 60 + minutes


def _instants_of(by: dict[str, Int64s], good: Bools) -> Int64s:
    zeros = np.zeros(len(good), dtype=np.int64)
    year, month, day = by["%Y"], by["%m"], by["%d"]
    hour, minute, second, ms = (by.get(piece, zeros) for piece in ("%H", "%M", "%S", "%L"))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    good &= (year >= 1) & (month >= 1) & (month <= 12)  # noqa: PLR2004
    inside = np.clip(month, 1, 12)
    good &= (day >= 1) & (day <= _DAYS[inside - 1] + (leap & (inside == 2)))  # noqa: PLR2004 - February
    good &= (hour <= 23) & (minute <= 59) & (second <= 59)  # noqa: PLR2004 - the clock
    clock = ((hour * 60 + minute - by.get("%z", zeros)) * 60 + second) * 1000 + ms
    return _days(year, inside, day) * DAY_MS + clock


def _days(year: Int64s, month: Int64s, day: Int64s) -> Int64s:
    """Days since 1970 of the calendar, whose years are taken to begin in March (E. G. Richards)."""
    shifted = year - (month <= 2)  # noqa: PLR2004 - January and February belong to the year before
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1  # noqa: PLR2004
    found: Int64s = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return found
