"""Dates out of text without a format: ISO 8601, and the commonest English forms."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, tzinfo
from typing import Final

from tidemark.shared.language.expressions.errors import CONVERSION, fail
from tidemark.shared.language.expressions.library.calendar import checked
from tidemark.shared.language.expressions.library.date_format import MONTH_NAMES
from tidemark.shared.language.expressions.library.zones import Offset, to_utc, zone_named
from tidemark.shared.language.values.instants import DAY_MS, days_in_month, days_of, parse_iso
from tidemark.shared.model.values import Date

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
"""What may stand around a date."""


def _read(text: str) -> Iterator[Mapping[str, str]]:
    """The fields of a text by the form that it has, if any."""
    for form in _FORMS:
        found = form.fullmatch(text)
        if found is not None:
            yield {name: value for name, value in found.groupdict().items() if value is not None}
            return


def _month(text: str) -> int:
    if text.isdigit():
        return int(text)
    return next(i + 1 for i, name in enumerate(MONTH_NAMES) if name[:3].lower() == text[:3].lower())


def _local_ms(by: Mapping[str, str]) -> int | None:
    """What a clock and a calendar show, taken for UTC, ms; None where there is no such day or time."""
    year, month, day = int(by["y"]), _month(by["m"]), int(by["d"])
    hour, minute, second = (int(by.get(name, "0")) for name in "HMS")
    if "half" in by:
        if not 1 <= hour <= _NOON:
            return None
        hour = hour % _NOON + (_NOON if by["half"] in "pP" else 0)
    if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month) or hour > 23 or minute > 59 or second > 59:  # noqa: PLR2004
        return None
    ms = ((hour * 60 + minute) * 60 + second) * 1000 + int((by.get("L", "") + "000")[:3])
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
