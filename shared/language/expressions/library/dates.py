"""Dates: parts, arithmetic, text. Null or missing operands give null."""

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Final

from tidemark.shared.language.expressions.errors import CONVERSION, OVERFLOW, TYPE, VALUE, ExpressionError, fail
from tidemark.shared.language.expressions.library.arithmetic import is_null
from tidemark.shared.language.expressions.library.calendar import (
    DateParts,
    add_units,
    checked,
    hours_between,
    instant,
    parts_of,
    to_utc,
    truncate,
    unit_index,
    unit_of,
    weekday_of,
    zone_of,
)
from tidemark.shared.language.expressions.library.date_format import parse_date, read_date, write_date
from tidemark.shared.language.expressions.registry import ABSENT, Absent, Deferred, named, positional
from tidemark.shared.language.values.instants import DAY_MS, days_of, days_of_week_date, ms_of_time
from tidemark.shared.language.values.types import is_integral, type_name
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Timestamp, Value, long


def _part(name: str, doc: str, read: Callable[[DateParts], object]) -> None:
    def apply(date: Value, timezone: Value) -> Value:
        return read(parts_of(instant(name, date), zone_of(timezone)))

    named(name, "date", "timezone", alone=True, null=2, doc=doc)(apply)


_part("$year", "The year.", lambda p: p.year)
_part("$month", "The month, 1 to 12.", lambda p: p.month)
_part("$dayOfMonth", "The day of the month, 1 to 31.", lambda p: p.day)
_part("$dayOfYear", "The day of the year, 1 to 366.", lambda p: p.day_of_year)
_part("$dayOfWeek", "The day of the week, 1 (Sunday) to 7.", lambda p: p.weekday + 1)
_part("$week", "The week of the year, 0 to 53; weeks begin on Sundays.", lambda p: p.week)
_part("$isoWeek", "The week of ISO 8601, 1 to 53.", lambda p: p.iso[1])
_part("$isoWeekYear", "The year that the week of ISO 8601 belongs to.", lambda p: long(p.iso[0]))
_part("$isoDayOfWeek", "The day of the week, 1 (Monday) to 7.", lambda p: p.iso[2])
_part("$hour", "The hour, 0 to 23.", lambda p: p.hour)
_part("$minute", "The minute, 0 to 59.", lambda p: p.minute)
_part("$second", "The second, 0 to 59.", lambda p: p.second)
_part("$millisecond", "The millisecond, 0 to 999.", lambda p: p.millisecond)


@named("$dateToString", "date", "format timezone onNull", deferred="onNull")
def _date_to_string(date: Value, form: Value, timezone: Value, on_null: Deferred | Absent) -> Value:
    """A date as text; without a format as ISO 8601 with milliseconds."""
    if form is not ABSENT and not is_null(form) and type(form) is not str:
        raise fail(f"the format of $dateToString is a string, found {type_name(form)}", TYPE)
    if is_null(date):
        return None if isinstance(on_null, Absent) else on_null()
    if is_null(form) or is_null(timezone):
        return None
    zone = zone_of(timezone)
    pattern = form if form is not ABSENT else "%Y-%m-%dT%H:%M:%S.%LZ" if zone is UTC else "%Y-%m-%dT%H:%M:%S.%L"
    return write_date(parts_of(instant("$dateToString", date), zone), pattern)


@named("$dateFromString", "dateString", "format timezone onError onNull", deferred="onError onNull")
def _date_from_string(
    text: Value, form: Value, timezone: Value, on_error: Deferred | Absent, on_null: Deferred | Absent
) -> Value:
    """A date out of text; onError if it is none, onNull for null and missing."""
    if is_null(text):
        return None if isinstance(on_null, Absent) else on_null()
    try:
        if type(text) is not str:
            raise fail(f"$dateFromString takes a string, found {type_name(text)}", CONVERSION)
        if is_null(form) or is_null(timezone):
            return None
        zone = zone_of(timezone)
        if form is ABSENT:
            return parse_date(text, zone)
        if type(form) is not str:
            raise fail(f"the format of $dateFromString is a string, found {type_name(form)}", TYPE)
        return read_date(text, form, zone)
    except ExpressionError as e:
        if isinstance(on_error, Absent) or e.code != CONVERSION:
            raise
        return on_error()


_PART_MAX: Final = 32_767
"""Parts of a date, as the manual has them."""
_FINE: Final = frozenset({"second", "millisecond"})


def _parts(name: str, given: tuple[tuple[str, Value, int], ...]) -> list[int] | None:
    """Whole numbers of 16 bits (seconds and shorter of 64), defaults for those not written; None if one is null."""
    result = []
    for what, value, default in given:
        if value is ABSENT:
            result.append(default)
            continue
        if is_null(value):
            return None
        most = INT64_MAX if what in _FINE else _PART_MAX
        if not is_integral(value) or not -most - 1 <= value <= most:
            raise fail(f"{what} of {name} is a whole number from {-most - 1} to {most}, found {value!r}", VALUE)
        result.append(int(value))
    return result


def calendar_of(given: Sequence[str]) -> None:
    """Whether the parts that were written are those of one calendar; ExpressionError if not."""
    iso = "isoWeekYear" in given
    foreign = ("month", "day") if iso else ("isoWeek", "isoDayOfWeek")
    if iso == ("year" in given) or any(name in given for name in foreign):
        raise fail("$dateFromParts takes either year, month, day or isoWeekYear, isoWeek, isoDayOfWeek", VALUE)


@named(
    "$dateFromParts",
    "",
    "year month day hour minute second millisecond isoWeekYear isoWeek isoDayOfWeek timezone",
)
def _date_from_parts(  # noqa: PLR0913, PLR0917 - the reference's arguments
    year: Value, month: Value, day: Value, hour: Value, minute: Value, second: Value, millisecond: Value,
    iso_year: Value, iso_week: Value, iso_day: Value, timezone: Value,
) -> Value:  # fmt: skip
    """A date of its parts, of the calendar or of ISO 8601's weeks; parts beyond their range carry over."""
    iso = iso_year is not ABSENT
    clock = (("hour", hour, 0), ("minute", minute, 0), ("second", second, 0), ("millisecond", millisecond, 0))
    date = (
        (("isoWeekYear", iso_year, 1), ("isoWeek", iso_week, 1), ("isoDayOfWeek", iso_day, 1))
        if iso
        else (("year", year, 1), ("month", month, 1), ("day", day, 1))
    )
    found = _parts("$dateFromParts", (*date, *clock))
    if found is None or is_null(timezone):
        return None
    y, middle, last, h, m, s, ms = found
    if not 1 <= y <= 9999:  # noqa: PLR2004 - MongoDB's range
        raise fail(f"the year of $dateFromParts is from 1 to 9999, found {y}", VALUE)
    if iso:
        days = days_of_week_date(y, middle, last)
    else:
        months = y * 12 + middle - 1
        days = days_of(months // 12, months % 12 + 1, 1) + last - 1
    return checked(to_utc(zone_of(timezone), days * DAY_MS + ms_of_time(h, m, s) + ms))


@named("$dateToParts", "date", "timezone iso8601", null=3)
def _date_to_parts(date: Value, timezone: Value, iso8601: Value) -> Value:
    """A date's parts as a document, of the calendar or of ISO 8601's weeks."""
    if iso8601 is not ABSENT and type(iso8601) is not bool:
        raise fail("iso8601 of $dateToParts is true or false", TYPE)
    p = parts_of(instant("$dateToParts", date), zone_of(timezone))
    clock = {"hour": p.hour, "minute": p.minute, "second": p.second, "millisecond": p.millisecond}
    if iso8601 is True:
        return {"isoWeekYear": p.iso[0], "isoWeek": p.iso[1], "isoDayOfWeek": p.iso[2], **clock}
    return {"year": p.year, "month": p.month, "day": p.day, **clock}


def _moved(name: str, date: Value, unit: Value, amount: Value, timezone: Value, sign: int) -> Value:
    if not is_integral(amount):
        raise fail(f"the amount of {name} is a whole number, found {type_name(amount)}", TYPE)
    if abs(amount) > _AMOUNT_MAX:
        raise fail(f"the amount of {name} is out of range", VALUE)
    start = instant(name, date)
    return checked(add_units(start, unit_of(name, unit), sign * int(amount), zone_of(timezone)))


_AMOUNT_MAX: Final = 2**53
"""Amounts that a double holds exactly."""


@named("$dateAdd", "startDate unit amount", "timezone", null=4)
def _date_add(date: Value, unit: Value, amount: Value, timezone: Value) -> Value:
    """A date some units later; months clamp at their last day."""
    return _moved("$dateAdd", date, unit, amount, timezone, 1)


@named("$dateSubtract", "startDate unit amount", "timezone", null=4)
def _date_subtract(date: Value, unit: Value, amount: Value, timezone: Value) -> Value:
    """A date some units earlier; months clamp at their last day."""
    return _moved("$dateSubtract", date, unit, amount, timezone, -1)


def _week_start(name: str, unit: str, start: Value) -> int:
    return weekday_of(name, start) if unit == "week" and start is not ABSENT else 0


@named("$dateDiff", "startDate endDate unit", "timezone startOfWeek", null=4)
def _date_diff(start: Value, end: Value, unit: Value, timezone: Value, start_of_week: Value) -> Value:
    """How many boundaries of a unit lie between two dates."""
    if unit == "week" and is_null(start_of_week):
        return None
    name = unit_of("$dateDiff", unit)
    zone, first = zone_of(timezone), _week_start("$dateDiff", name, start_of_week)
    from_ms, to_ms = instant("$dateDiff", start), instant("$dateDiff", end)
    if name == "hour":
        return long(hours_between(from_ms, to_ms, zone))
    found = unit_index(to_ms, name, zone, first) - unit_index(from_ms, name, zone, first)
    if not INT64_MIN <= found <= INT64_MAX:
        raise fail("the number of milliseconds is out of range", OVERFLOW)
    return long(found)


@named("$dateTrunc", "date unit", "binSize timezone startOfWeek", null=4)
def _date_trunc(date: Value, unit: Value, size: Value, timezone: Value, start_of_week: Value) -> Value:
    """The beginning of the unit, or of the bin of several, that a date is in."""
    if unit == "week" and is_null(start_of_week):
        return None
    name = unit_of("$dateTrunc", unit)
    if size is not ABSENT and (not is_integral(size) or not 1 <= size <= _AMOUNT_MAX):
        raise fail("binSize of $dateTrunc is a whole number above 0", VALUE)
    first = _week_start("$dateTrunc", name, start_of_week)
    wide = 1 if size is ABSENT else int(size)
    return checked(truncate(instant("$dateTrunc", date), name, wide, zone_of(timezone), first))


def _timestamp(name: str, doc: str, read: Callable[[Timestamp], int]) -> None:
    def apply(value: Value) -> Value:
        if type(value) is not Timestamp:
            raise fail(f"{name} takes a timestamp, found {type_name(value)}", TYPE)
        return long(read(value))

    positional(name, 1, null=1, doc=doc)(apply)


_timestamp("$tsSecond", "The seconds of a timestamp.", lambda t: t.seconds)
_timestamp("$tsIncrement", "The counter of a timestamp.", lambda t: t.increment)
