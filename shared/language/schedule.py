"""Schedules as cron knows them, with a zone: the instants at which they are due.

The rules are those of Debian's cron, which CronSim keeps: a time of day that a change of clocks leaves out comes at once behind it, and one
that comes twice counts once. Where minutes or hours begin with `*`, or seconds are given, time that passes counts. Where clocks change by
half an hour (Lord Howe Island), instants within the hour of the change follow from where one begins to look.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

from tidemark.shared.language.expressions.library.calendar import Offset, zone_named

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _Sim(CronSim):
    """A day whose midnight the clocks leave out begins behind it: else hours would be counted from a time that is none."""

    def advance_month(self) -> None:
        super().advance_month()
        self._let_be()

    def advance_day(self) -> bool:
        moved = super().advance_day()
        self._let_be()
        return moved

    def _let_be(self) -> None:
        if self.dt.tzinfo is not None:
            self.dt = self.dt.astimezone(UTC).astimezone(self.dt.tzinfo)


@dataclass(frozen=True, slots=True)
class Schedule:
    """An expression of five fields, or of six with seconds in front. ValueError if it is none, or due on no day."""

    text: str
    zone: tzinfo = UTC

    def __post_init__(self) -> None:
        try:
            due = next(_Sim(self.text, _EPOCH), None)
        except CronSimError as error:
            raise ValueError(
                "expected five fields (minute, hour, day of the month, month, day of the week), or six with seconds in front;"
                f" found {self.text!r}: {str(error).lower()}"
            ) from error
        if due is None:
            raise ValueError(f"{self.text!r} is due on no day")

    def due_from(self, ms: int) -> Iterator[int]:
        """The instants from this one on, ms, in order, up to the end of the calendar: the year 9999."""
        last = ms - 1
        try:
            for found in _Sim(self.text, _at(ms - 1, self.zone)):
                # A time of day that comes twice is found again within the second hour; two that clocks leave out are one instant.
                if (instant := _ms(found)) > last:
                    last = instant
                    yield instant
        except OverflowError:
            return


def zone_of_schedule(name: str) -> tzinfo:
    """The zone of a name or an offset. ExpressionError for an unknown one, ValueError for an offset of a day and more."""
    zone = zone_named(name)
    return timezone(timedelta(milliseconds=zone.ahead_ms)) if isinstance(zone, Offset) else zone


def _at(ms: int, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=ms)).astimezone(zone)


def _ms(found: datetime) -> int:
    return (found - _EPOCH) // timedelta(milliseconds=1)
