"""Dates out of text without a format: ISO 8601, and the commonest English forms."""

import re
from datetime import UTC, tzinfo
from typing import Final

from shared.language.expressions.errors import CONVERSION, fail
from shared.language.expressions.library.calendar import checked
from shared.language.expressions.library.date_format import MONTH_NAMES
from shared.language.expressions.library.zones import to_utc, zone_named
from shared.language.values.instants import DAY_MS, days_in_month, days_of, parse_iso
from shared.model.values import Date

_CLOCK: Final = r"(?:[T ,]+(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?)?"
_ZONE: Final = r"\s*(Z|z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?"
_MONTH: Final = "(" + "|".join(name[:3] for name in MONTH_NAMES) + ")[a-z]*\\.?"
_FORMS: Final = tuple(
    (order, re.compile(form + _CLOCK + _ZONE, re.IGNORECASE))
    for order, form in (
        ("ymd", r"(\d{4})-(\d\d)-(\d\d)"),
        ("ymd", r"(\d{4})(\d\d)(\d\d)"),
        ("ymd", r"(\d{4})/(\d{1,2})/(\d{1,2})"),
        ("mdy", r"(\d{1,2})/(\d{1,2})/(\d{4})"),
        ("mdy", _MONTH + r"\s+(\d{1,2})(?:st|nd|rd|th)?,?\s+(\d{4})"),
        ("dmy", r"(?:[A-Za-z]{3,9},?\s+)?(\d{1,2})(?:st|nd|rd|th)?[\s-]+" + _MONTH + r"[\s-]+(\d{4})"),
    )
)


def _month(text: str) -> int:
    if text.isdigit():
        return int(text)
    return next(i + 1 for i, name in enumerate(MONTH_NAMES) if name[:3].lower() == text[:3].lower())


def parse_date(text: str, zone: tzinfo = UTC) -> Date:
    """The instant of a text; `zone` where the text says none. Beside a zone other than UTC the text must not say one."""
    if zone is UTC and (iso := parse_iso(text)) is not None:
        return Date(iso)
    for order, form in _FORMS:
        found = form.fullmatch(text.strip())
        if found is None:
            continue
        by = dict(zip(order, found.groups()[:3], strict=True))
        year, month, day = int(by["y"]), _month(by["m"]), int(by["d"])
        hour, minute, second, fraction, where = found.groups()[3:]
        h, m, s = int(hour or 0), int(minute or 0), int(second or 0)
        if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month) or h > 23 or m > 59 or s > 59:  # noqa: PLR2004
            break
        ms = days_of(year, month, day) * DAY_MS + ((h * 60 + m) * 60 + s) * 1000 + int(((fraction or "") + "000")[:3])
        if where is None:
            return checked(to_utc(zone, ms))
        if zone is not UTC:
            raise fail("a date that says its own zone takes no timezone", CONVERSION)
        return checked(to_utc(zone_named(where.upper()), ms))
    raise fail(f"{text[:60]!r} is no date, such as 2024-03-05T12:00:00Z", CONVERSION)
