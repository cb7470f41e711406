"""Time zones: Olson names (from the tzdata package or the system) and offsets such as +05:30."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidemark.shared.language.expressions.errors import TYPE, VALUE, fail
from tidemark.shared.language.expressions.registry import ABSENT
from tidemark.shared.language.values.instants import DAY_MS, date_of
from tidemark.shared.language.values.types import type_name
from tidemark.shared.model.values import Value

_OFFSET: Final = re.compile(r"([+-])(\d\d)(?::?(\d\d))?")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
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
    moment = _EPOCH + timedelta(milliseconds=max(_FIRST_MS, min(_LAST_MS, utc_ms)))
    offset = moment.astimezone(zone).utcoffset()
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
