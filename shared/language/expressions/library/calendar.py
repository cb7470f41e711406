"""The calendar: the parts of an instant in a zone, and steps over it. Zones are Olson names or offsets such as +05:30."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemark.shared.language.expressions.errors import OVERFLOW, TYPE, VALUE, UnknownName, fail
from tidemark.shared.language.expressions.registry import ABSENT
from tidemark.shared.language.values.instants import (
    DAY_MS,
    date_of,
    days_in_month,
    days_of,
    days_of_week_date,
    moment_of,
)
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import INT64_MAX, INT64_MIN, Date, ObjectId, Timestamp, Value

_OFFSET: Final = re.compile(r"([+-])(\d\d)(?::?(\d\d))?")
_FIRST_MS: Final = -62_000_000_000_000
"""The first instant of which the library knows a zone's offset."""
_LAST_MS: Final = 253_000_000_000_000
"""Zones are asked within the years that Python's dates have; beyond, the offset of the last such year holds."""


@dataclass(frozen=True)
class Offset(tzinfo):
    """A fixed offset; other than Python's own it may be beyond a day, as MongoDB takes it."""

    ahead_ms: int

    def utcoffset(self, _: datetime | None) -> timedelta:
        """The same at any time."""
        return timedelta(milliseconds=self.ahead_ms)

    def dst(self, _: datetime | None) -> None:
        """No summer time is known of."""

    def tzname(self, _: datetime | None) -> str:
        """How it is written."""
        hours, minutes = divmod(abs(self.ahead_ms) // 60_000, 60)
        return f"{'-' if self.ahead_ms < 0 else '+'}{hours:02d}:{minutes:02d}"


@lru_cache(maxsize=1024)
def zone_named(name: str) -> tzinfo:
    """The zone of a name; ExpressionError for an unknown one."""
    if name == "UTC":
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        minutes = int(offset[2]) * 60 + int(offset[3] or 0)
        return Offset((-minutes if offset[1] == "-" else minutes) * 60_000)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise fail(
            f"unknown time zone {name!r}: an Olson name such as Europe/Berlin, or an offset such as +02:00", VALUE
        ) from None


def zone_of(value: Value) -> tzinfo:
    """The zone of a `timezone` argument that is not null; UTC if it was not written."""
    if value is ABSENT:
        return UTC
    if type(value) is not str:
        raise fail(f"timezone is a string, found {type_name(value)}", TYPE)
    return zone_named(value)


def offset_ms(zone: tzinfo, utc_ms: int) -> int:
    """How far local time is ahead of UTC at an instant, ms."""
    if zone is UTC:
        return 0
    if isinstance(zone, Offset):
        return zone.ahead_ms
    offset = moment_of(max(_FIRST_MS, min(_LAST_MS, utc_ms))).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // timedelta(milliseconds=1)


def to_utc(zone: tzinfo, local_ms: int) -> int:
    """The instant of a local time; one that a change of clocks skips is moved forward, one that comes twice is the first."""
    if zone is UTC:
        return local_ms
    if isinstance(zone, Offset):
        return local_ms - zone.ahead_ms
    bounded = max(_FIRST_MS, min(_LAST_MS, local_ms))
    days, rest = divmod(bounded, DAY_MS)
    year, month, day = date_of(days)
    moment = datetime(year, month, day, tzinfo=zone) + timedelta(milliseconds=rest)  # local arithmetic: the wall clock
    offset = moment.utcoffset()
    assert offset is not None
    return local_ms - offset // timedelta(milliseconds=1)


FIXED_UNITS_MS: Final = {"millisecond": 1, "second": 1000, "minute": 60_000, "hour": 3_600_000}
MONTHS: Final = {"month": 1, "quarter": 3, "year": 12}
UNITS: Final = ("year", "quarter", "week", "month", "day", "hour", "minute", "second", "millisecond")
WEEKDAYS: Final = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
THURSDAY: Final = 4
"""The weekday of 1970-01-01."""


def instant(name: str, value: Value) -> int:
    """UTC ms of a date, timestamp or ObjectId, or a failure that names the operator."""
    if type(value) is Date:
        return int(value)
    if type(value) is Timestamp:
        return value.seconds * 1000
    if type(value) is ObjectId:
        return int.from_bytes(value.data[:4], "big", signed=True) * 1000
    raise fail(f"{name} takes a date, found {type_name(value)}", TYPE)


def checked(ms: int) -> Date:
    """A date within 64 bits."""
    if not INT64_MIN <= ms <= INT64_MAX:
        raise fail("the date is out of range", OVERFLOW)
    return Date(ms)


def unit_of(name: str, value: Value, what: str = "unit") -> str:
    """One of UNITS, or a failure that names the operator."""
    if type(value) is not str or value not in UNITS:
        raise UnknownName(f"{what} of {name}", value, UNITS)
    return value


def weekday_of(name: str, value: Value) -> int:
    """0 (Sunday) to 6 of a `startOfWeek`: full names and three letters, any case."""
    text = value.lower() if type(value) is str else ""
    for i, day in enumerate(WEEKDAYS):
        if text in (day, day[:3]):
            return i
    raise UnknownName(f"day of {name}", value, WEEKDAYS)


@dataclass(frozen=True, slots=True)
class DateParts:
    """An instant as a wall clock shows it; `days` from 1970-01-01, local; `offset` ms ahead of UTC."""

    days: int
    year: int
    month: int
    day: int
    hour: int
    minute: int
    second: int
    millisecond: int
    offset: int

    @property
    def weekday(self) -> int:
        """0 (Sunday) to 6."""
        return (self.days + THURSDAY) % 7

    @property
    def day_of_year(self) -> int:
        """The day of the year, 1 to 366."""
        return self.days - days_of(self.year, 1, 1) + 1

    @property
    def week(self) -> int:
        """0 to 53: weeks begin on Sundays, and days before the first Sunday are week 0."""
        return (self.day_of_year + 6 - self.weekday) // 7

    @property
    def iso(self) -> tuple[int, int, int]:
        """ISO 8601's (year, week, weekday 1 Monday to 7)."""
        weekday = (self.weekday + 6) % 7 + 1
        year, _, _ = date_of(self.days + THURSDAY - weekday)
        return year, (self.days - days_of_week_date(year, 1, 1)) // 7 + 1, weekday


def parts_of(ms: int, zone: tzinfo) -> DateParts:
    """The parts of an instant in a zone."""
    offset = offset_ms(zone, ms)
    days, rest = divmod(ms + offset, DAY_MS)
    year, month, day = date_of(days)
    seconds, milli = divmod(rest, 1000)
    return DateParts(days, year, month, day, seconds // 3600, seconds // 60 % 60, seconds % 60, milli, offset)


def add_units(ms: int, unit: str, amount: int, zone: tzinfo) -> int:
    """An instant some units later: days and longer on the wall clock, shorter ones in elapsed time."""
    if unit in FIXED_UNITS_MS:
        return ms + amount * FIXED_UNITS_MS[unit]
    local = ms + offset_ms(zone, ms)
    days, rest = divmod(local, DAY_MS)
    if unit in ("day", "week"):
        days += amount * (7 if unit == "week" else 1)
    else:
        year, month, day = date_of(days)
        months = year * 12 + month - 1 + amount * MONTHS[unit]
        year, month = months // 12, months % 12 + 1
        days = days_of(year, month, min(day, days_in_month(year, month)))
    return to_utc(zone, days * DAY_MS + rest)


def unit_index(ms: int, unit: str, zone: tzinfo, start_of_week: int) -> int:
    """The number of a unit, not the hour, on the zone's calendar, counted from some fixed one: differences are `$dateDiff`."""
    if unit in ("millisecond", "second", "minute"):
        return ms // FIXED_UNITS_MS[unit]
    days = (ms + offset_ms(zone, ms)) // DAY_MS
    if unit == "day":
        return days
    if unit == "week":
        return (days + THURSDAY - start_of_week) // 7
    year, month, _ = date_of(days)
    return (year * 12 + month - 1) // MONTHS[unit]


def hours_between(start_ms: int, end_ms: int, zone: tzinfo) -> int:
    """How many hours of the zone's clock begin between two instants; one that a change of clocks repeats begins twice."""
    hour = FIXED_UNITS_MS["hour"]
    before, after = offset_ms(zone, start_ms), offset_ms(zone, end_ms)
    shown = (end_ms + after) // hour - (start_ms + before) // hour
    whole_hours = abs(before - after) // hour
    return shown + (whole_hours if before > after else -whole_hours)


REFERENCE_DAYS: Final = days_of(2000, 1, 1)
"""From which bins are counted, 2000-01-01, as days since 1970."""
_REFERENCE_WEEKDAY: Final = 6


def truncate(ms: int, unit: str, size: int, zone: tzinfo, start_of_week: int) -> int:
    """The beginning of the bin, of `size` units counted from 2000-01-01 in the zone, that an instant is in."""
    if unit in FIXED_UNITS_MS:
        width = size * FIXED_UNITS_MS[unit]
        reference = to_utc(zone, REFERENCE_DAYS * DAY_MS)
        return ms - (ms - reference) % width
    days = (ms + offset_ms(zone, ms)) // DAY_MS
    if unit in ("day", "week"):
        first = REFERENCE_DAYS
        if unit == "week":
            first += (start_of_week - _REFERENCE_WEEKDAY) % 7
            size *= 7
        return to_utc(zone, (days - (days - first) % size) * DAY_MS)
    year, month, _ = date_of(days)
    size *= MONTHS[unit]
    months = year * 12 + month - 1
    months -= (months - 2000 * 12) % size
    return to_utc(zone, days_of(months // 12, months % 12 + 1, 1) * DAY_MS)
