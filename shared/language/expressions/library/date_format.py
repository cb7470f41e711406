"""Dates to text and back by a format of `%` specifiers, as `$dateToString` and `$dateFromString` define them."""

import re
from collections.abc import Callable
from datetime import UTC, tzinfo
from typing import Final

from tidemark.shared.language.expressions.errors import CONVERSION, VALUE, fail
from tidemark.shared.language.expressions.library.calendar import Parts, checked
from tidemark.shared.language.expressions.library.zones import to_utc, zone_named
from tidemark.shared.language.values.instants import DAY_MS, days_in_month, days_of
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


def _offset(parts: Parts) -> str:
    minutes = abs(parts.offset) // 60_000
    return f"{'-' if parts.offset < 0 else '+'}{minutes // 60:02d}{minutes % 60:02d}"


WRITE: Final[dict[str, Callable[[Parts], str]]] = {
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


def write_date(parts: Parts, form: str) -> str:
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
    """The pattern that reads dates of a format; ExpressionError for what is none."""
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
    if hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004 - the clock
        raise fail(f"{text[:60]!r} has no valid time of day", CONVERSION)
    ms = days * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1000 + int(fields.get("L", "0").ljust(3, "0"))
    if "z" in fields or "Z" in fields:
        if zone is not UTC:
            raise fail("a date that says its offset takes no timezone", CONVERSION)
        if "Z" in fields:
            return checked(ms - int(fields["Z"]) * 60_000)
        return checked(to_utc(UTC if fields["z"] in "Zz" else zone_named(fields["z"]), ms))
    return checked(to_utc(zone, ms))


def _days(fields: dict[str, str]) -> int:
    if "G" in fields:
        first = days_of(int(fields["G"]), 1, 4)
        return first - (first + 3) % 7 + (int(fields.get("V", "1")) - 1) * 7 + int(fields.get("u", "1")) - 1
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
    if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month):  # noqa: PLR2004
        raise fail(f"there is no day {year}-{month}-{day}", CONVERSION)
    return days_of(year, month, day)
