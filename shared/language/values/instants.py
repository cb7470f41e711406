"""Instants as ISO 8601 text and back: UTC milliseconds, the proleptic Gregorian calendar, any year that 64 bits of ms reach."""

import datetime as dt
import re
from typing import Final

DAY_MS: Final = 86_400_000
"""A day."""
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MS: Final = dt.timedelta(milliseconds=1)
_DAYS_400: Final = 146_097
_EPOCH_DAYS: Final = 719_468  # days from 0000-03-01 to 1970-01-01
_ISO: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s?(Z|z|[+-]\d\d(?::?\d\d)?)?)?"
)
MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
FEBRUARY: Final = 2


def days_of(year: int, month: int, day: int) -> int:
    """Days from 1970-01-01 to a date of the proleptic Gregorian calendar (Howard Hinnant, days_from_civil)."""
    y = year - (month <= FEBRUARY)
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month + (-3 if month > FEBRUARY else 9)) + 2) // 5 + day - 1
    return era * _DAYS_400 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - _EPOCH_DAYS


def date_of(days: int) -> tuple[int, int, int]:
    """(year, month, day) of a count of days from 1970-01-01; the inverse of `days_of`."""
    z = days + _EPOCH_DAYS
    era = z // _DAYS_400
    of_era = z - era * _DAYS_400
    y = (of_era - of_era // 1460 + of_era // 36524 - of_era // 146096) // 365
    of_year = of_era - (365 * y + y // 4 - y // 100)
    mp = (5 * of_year + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9  # noqa: PLR2004 - March is month 0
    return y + era * 400 + (month <= FEBRUARY), month, of_year - (153 * mp + 2) // 5 + 1


def is_leap(year: int) -> bool:
    """Whether February of a year has 29 days."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def days_in_month(year: int, month: int) -> int:
    """How many days a month has, 28 to 31."""
    return 29 if month == FEBRUARY and is_leap(year) else MONTH_DAYS[month - 1]


def ms_of(moment: dt.date) -> int:
    """Python's instant, or date at its beginning, as ms; one without a zone is UTC."""
    if not isinstance(moment, dt.datetime):
        return (moment - _EPOCH.date()).days * DAY_MS
    return ((moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.UTC)) - _EPOCH) // _MS


def moment_of(ms: int) -> dt.datetime:
    """The instant as Python has it, in UTC. OverflowError outside the years 1 to 9999."""
    return _EPOCH + int(ms) * _MS


def is_date(year: int, month: int, day: int) -> bool:
    """Whether the calendar has this date."""
    return 1 <= month <= len(MONTH_DAYS) and 1 <= day <= days_in_month(year, month)


def days_of_week_date(year: int, week: int, day: int) -> int:
    """Days from 1970-01-01 to a date of ISO 8601's weeks: the first one has January 4, and days go from Monday, 1."""
    fourth = days_of(year, 1, 4)
    return fourth - (fourth + 3) % 7 + (week - 1) * 7 + day - 1


def is_time(hour: int, minute: int, second: int) -> bool:
    """Whether a clock shows this time; none has leap seconds here."""
    return hour < 24 and minute < 60 and second < 60  # noqa: PLR2004 - the clock


def ms_of_time(hour: int, minute: int, second: int) -> int:
    """From midnight to a time of day."""
    return ((hour * 60 + minute) * 60 + second) * 1000


def parse_iso(text: str) -> int | None:
    """UTC ms of an ISO 8601 date or instant; without an offset it is UTC. None if it is none. Fractions beyond ms are cut."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    hour, minute, second = int(found[4] or 0), int(found[5] or 0), int(found[6] or 0)
    if not is_date(year, month, day) or not is_time(hour, minute, second):
        return None
    ms = days_of(year, month, day) * DAY_MS + ms_of_time(hour, minute, second)
    ms += int(((found[7] or "") + "000")[:3])
    offset = found[8]
    if offset and offset not in "Zz":
        digits = offset[1:].replace(":", "") + "00"
        shift = (int(digits[:2]) * 60 + int(digits[2:4])) * 60_000
        ms += -shift if offset[0] == "+" else shift
    return ms


def format_iso(ms: int, *, always_ms: bool = False) -> str | None:
    """`2024-03-05T12:00:00Z`, with `.123` where there are milliseconds, or always; None outside the years 0 to 9999."""
    days, rest = divmod(ms, DAY_MS)
    year, month, day = date_of(days)
    if not 0 <= year <= 9999:  # noqa: PLR2004 - four digits
        return None
    seconds, milli = divmod(rest, 1000)
    fraction = f".{milli:03d}" if milli or always_ms else ""
    return (
        f"{year:04d}-{month:02d}-{day:02d}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{fraction}Z"
    )
