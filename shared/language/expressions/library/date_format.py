"""Dates to text and back by a format of `%` specifiers; and out of text without one: ISO 8601, and the commonest English forms."""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, tzinfo
from typing import Final

from tidemark.shared.language.expressions.errors import CONVERSION, VALUE, fail
from tidemark.shared.language.expressions.library.calendar import DateParts, Offset, checked, to_utc, zone_named
from tidemark.shared.language.values.instants import (
    DAY_MS,
    days_of,
    days_of_week_date,
    is_date,
    is_time,
    ms_of_time,
    parse_iso,
)
from tidemark.shared.model.values import Date

MONTH_NAMES: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
)  # fmt: skip
_YEAR_MAX: Final = 9999
"""Years that ISO 8601 writes with four digits."""


def _year(year: int) -> str:
    if not 0 <= year <= _YEAR_MAX:
        raise fail(f"the year {year} does not fit %Y: it has four digits", VALUE)
    return f"{year:04d}"


def _offset(parts: DateParts) -> str:
    minutes = abs(parts.offset) // 60_000
    return f"{'-' if parts.offset < 0 else '+'}{minutes // 60:02d}{minutes % 60:02d}"


WRITE: Final[dict[str, Callable[[DateParts], str]]] = {
    "b": lambda p: MONTH_NAMES[p.month - 1][:3],
    "B": lambda p: MONTH_NAMES[p.month - 1],
    "d": lambda p: f"{p.day:02d}",
    "G": lambda p: _year(p.iso[0]),
    "H": lambda p: f"{p.hour:02d}",
    "j": lambda p: f"{p.day_of_year:03d}",
    "L": lambda p: f"{p.millisecond:03d}",
    "m": lambda p: f"{p.month:02d}",
    "M": lambda p: f"{p.minute:02d}",
    "S": lambda p: f"{p.second:02d}",
    "u": lambda p: str(p.iso[2]),
    "U": lambda p: f"{p.week:02d}",
    "V": lambda p: f"{p.iso[1]:02d}",
    "w": lambda p: str(p.weekday + 1),
    "Y": lambda p: _year(p.year),
    "z": _offset,
    "Z": lambda p: str(p.offset // 60_000),
    "%": lambda _: "%",
}
"""The text of each specifier."""


def write_date(parts: DateParts, form: str) -> str:
    """The text of an instant's parts; ExpressionError for an unknown specifier."""
    out: list[str] = []
    i = 0
    while i < len(form):
        if form[i] != "%":
            out.append(form[i])
            i += 1
            continue
        writer = WRITE.get(form[i + 1 : i + 2])
        if writer is None:
            raise fail(
                f"unknown specifier %{form[i + 1 : i + 2]} in a date format; known are %{' %'.join(WRITE)}", VALUE
            )
        out.append(writer(parts))
        i += 2
    return "".join(out)


_READ: Final = {
    "b": "(?P<b>[A-Za-z]{3})",
    "B": "(?P<B>[A-Za-z]{3,9})",
    "d": r"(?P<d>\d{1,2})",
    "G": r"(?P<G>\d{4})",
    "H": r"(?P<H>\d{1,2})",
    "j": r"(?P<j>\d{1,3})",
    "L": r"(?P<L>\d{1,3})",
    "m": r"(?P<m>\d{1,2})",
    "M": r"(?P<M>\d{1,2})",
    "S": r"(?P<S>\d{1,2})",
    "u": r"(?P<u>[1-7])",
    "V": r"(?P<V>\d{1,2})",
    "Y": r"(?P<Y>\d{4})",
    "z": r"(?P<z>Z|[+-]\d\d:?\d\d|[+-]\d\d)",
    "Z": r"(?P<Z>[+-]?\d{1,4})",
    "%": "%",
}


def reader_of(form: str) -> re.Pattern[str]:
    """The pattern that reads dates of a format; ExpressionError if it is no format."""
    pieces: list[str] = []
    seen: set[str] = set()
    i = 0
    while i < len(form):
        if form[i] != "%":
            pieces.append(re.escape(form[i]))
            i += 1
            continue
        letter = form[i + 1 : i + 2]
        if letter not in _READ or (letter in seen and letter != "%"):
            raise fail(
                f"%{letter} in the format of $dateFromString is unknown or stands twice; known are %{' %'.join(_READ)}",
                VALUE,
            )
        seen.add(letter)
        pieces.append(_READ[letter])
        i += 2
    return re.compile("".join(pieces), re.IGNORECASE)


def _month(name: str) -> int:
    for i, month in enumerate(MONTH_NAMES):
        if name.lower() in (month.lower(), month[:3].lower()):
            return i + 1
    raise fail(f"unknown month {name!r}", CONVERSION)


def read_date(text: str, form: str, zone: tzinfo) -> Date:
    """The instant of a text in a format; `zone` where the text has none. Beside a zone other than UTC it must not say one."""
    found = reader_of(form).fullmatch(text)
    if found is None:
        raise fail(f"{text[:60]!r} does not match the date format {form!r}", CONVERSION)
    fields = {key: value for key, value in found.groupdict().items() if value is not None}
    days = _days(fields)
    hour, minute, second = (int(fields.get(key, "0")) for key in "HMS")
    if not is_time(hour, minute, second):
        raise fail(f"{text[:60]!r} has no valid time of day", CONVERSION)
    ms = days * DAY_MS + ms_of_time(hour, minute, second) + int(fields.get("L", "0").ljust(3, "0"))
    if "z" in fields or "Z" in fields:
        if zone is not UTC:
            raise fail("a date that says its offset takes no timezone", CONVERSION)
        if "Z" in fields:
            return checked(ms - int(fields["Z"]) * 60_000)
        return checked(to_utc(UTC if fields["z"] in "Zz" else zone_named(fields["z"]), ms))
    return checked(to_utc(zone, ms))


def _days(fields: dict[str, str]) -> int:
    if "G" in fields:
        return days_of_week_date(int(fields["G"]), int(fields.get("V", "1")), int(fields.get("u", "1")))
    named_month = fields.get("b") or fields.get("B")
    if "Y" not in fields or not ("j" in fields or ("d" in fields and ("m" in fields or named_month))):
        raise fail(
            "the date is incomplete: a format needs year, month and day, or year and day of the year", CONVERSION
        )
    year = int(fields["Y"])
    if "j" in fields:
        return days_of(year, 1, 1) + int(
            fields["j"]
        )  # MongoDB counts from 0 here, though `$dateToString` counts from 1
    month = _month(named_month) if named_month else int(fields["m"])
    day = int(fields["d"])
    if not is_date(year, month, day):
        raise fail(f"there is no day {year}-{month}-{day}", CONVERSION)
    return days_of(year, month, day)


_ABBREVIATIONS: Final = {
    "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "WET": 0, "WEST": 1, "BST": 1, "CET": 1,
    "CEST": 2, "EET": 2, "EEST": 3, "MSK": 3, "JST": 9,
}  # fmt: skip
"""Hours ahead of UTC; those that mean one zone alone."""
_MONTH: Final = "(?P<m>" + "|".join(name[:3] for name in MONTH_NAMES) + ")[a-z]*\\.?"
_DATES: Final = (
    r"(?P<y>\d{4})-(?P<m>\d{1,2})-(?P<d>\d{1,2})",
    r"(?P<y>\d{4})(?P<m>\d\d)(?P<d>\d\d)",
    r"(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})",
    r"(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})",
    _MONTH + r"\s+(?P<d>\d{1,2})(?:st|nd|rd|th)?,?\s+(?P<y>\d{4})",
    r"(?:[A-Za-z]{3,9},?\s+)?(?P<d>\d{1,2})(?:st|nd|rd|th)?[\s-]+" + _MONTH + r"[\s-]+(?P<y>\d{4})",
)
_HALF: Final = r"\s*(?P<half>[ap])\.?m\.?"
_CLOCKS: Final = (
    rf"(?:[T\s,]+(?P<H>\d{{1,2}}):(?P<M>\d\d)(?::(?P<S>\d\d)(?:[.,](?P<L>\d{{1,9}}))?)?(?:{_HALF})?)?",
    rf"[ ,]+(?P<H>\d{{1,2}}){_HALF}",
    r"T(?P<H>\d\d)(?P<M>\d\d)(?P<S>\d\d)(?:[.,](?P<L>\d{1,9}))?",
)
_ZONE: Final = rf"\s*(?P<zone>Z|UTC|GMT|[+-]\d\d(?::?\d\d)?|{'|'.join(_ABBREVIATIONS)})?"
_FORMS: Final = tuple(re.compile(date + clock + _ZONE, re.IGNORECASE) for date in _DATES for clock in _CLOCKS)
_NOON: Final = 12
_BLANKS: Final = " \t\n\v\f\r\0\u00a0"
"""The characters that may stand around a date."""


def _read(text: str) -> Iterator[Mapping[str, str]]:
    """The fields of a text by the form that it has, if any."""
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is not None:
            yield {name: value for name, value in found.groupdict().items() if value is not None}
            return


def _month_of_name(text: str) -> int:
    if text.isdigit():
        return int(text)
    return next(i + 1 for i, name in enumerate(MONTH_NAMES) if name[:3].lower() == text[:3].lower())


def _local_ms(by: Mapping[str, str]) -> int | None:
    """The reading of a clock and a calendar, taken for UTC, ms; None where there is no such day or time."""
    year, month, day = int(by["y"]), _month_of_name(by["m"]), int(by["d"])
    hour, minute, second = (int(by.get(name, "0")) for name in "HMS")
    if "half" in by:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if by["half"] in "pP" else 0)
    if not is_date(year, month, day) or not is_time(hour, minute, second):
        return None
    ms = ms_of_time(hour, minute, second) + int((by.get("L", "") + "000")[:3])
    return days_of(year, month, day) * DAY_MS + ms


def parse_date(text: str, zone: tzinfo = UTC) -> Date:
    """The instant of a text; `zone` where the text says none. Beside a zone other than UTC the text must not say one."""
    if zone is UTC and (iso := parse_iso(text)) is not None:
        return Date(iso)
    for by in _read(text.strip(_BLANKS)):
        ms = _local_ms(by)
        if ms is None:
            break
        where = by.get("zone", "").upper()
        if not where:
            return checked(to_utc(zone, ms))
        if zone is not UTC:
            raise fail("a date that says its own zone takes no timezone", CONVERSION)
        hours = _ABBREVIATIONS.get(where)
        if hours is not None:
            return checked(to_utc(Offset(hours * 3_600_000), ms))
        return checked(to_utc(zone_named("UTC" if where in ("GMT", "Z") else where), ms))
    raise fail(f"{text[:60]!r} is no date, such as 2024-03-05T12:00:00Z", CONVERSION)
