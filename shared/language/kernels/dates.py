"""Parts of dates on columns, in UTC or a constant zone; `$dateTrunc` in UTC."""

from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.expressions.ast import Expr, Literal
from shared.language.expressions.errors import ExpressionError
from shared.language.expressions.library.calendar import FIXED_UNITS_MS
from shared.language.expressions.library.zones import zone_named
from shared.language.kernels.base import TIMESTAMP, Bools, Column, ColumnType, Unvectorised, filled, without
from shared.language.kernels.zones import offsets
from shared.language.values.instants import DAY_MS, days_of
from shared.language.values.types import is_integral

_FIRST: Final = days_of(100, 1, 1) * DAY_MS
_LAST: Final = days_of(9900, 12, 31) * DAY_MS
_REFERENCE_MS: Final = days_of(2000, 1, 1) * DAY_MS
_STEPS: Final = {**FIXED_UNITS_MS, "day": DAY_MS}
_SIZE_MAX: Final = 10_000_000
"""Beyond it a kernel leaves the work to the interpreter, with the same result."""


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
    "$hour": part(pc.hour),
    "$minute": part(pc.minute),
    "$second": part(pc.second),
    "$millisecond": part(pc.millisecond),
}
"""Parts by operator."""


def truncate(date: Column, args: tuple[Expr | None, ...]) -> Column:
    """`$dateTrunc` to a constant number of days or shorter units; `args` are those of the call."""
    _, unit, size, zone, _ = args
    step = _STEPS.get(unit.value) if isinstance(unit, Literal) and type(unit.value) is str else None
    wide: Any = size.value if isinstance(size, Literal) else 1 if size is None else None
    if step is None or zone is not None or not is_integral(wide) or not 1 <= wide <= _SIZE_MAX:
        raise Unvectorised
    values, far = _dates(date)
    width = int(wide) * step
    ms = pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    mask = values.is_null().to_numpy(zero_copy_only=False)
    cut = ms - np.mod(ms - _REFERENCE_MS, width)
    return Column("date", pa.array(cut, pa.int64(), mask=mask).cast(TIMESTAMP), doubt=far)
