"""A document at each instant of a schedule; its position is the instant, ms (`ScheduleSource.positions_are_times`)."""

from collections.abc import Iterator
from typing import Final

from tidemark.shared.language.schedule import Schedule
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.values import Date, Document

FIELD: Final = "scheduledAt"
"""The one field of a document: the instant, a date."""


class ScheduleTimetable:
    """`Timetable` of a schedule."""

    split = SplitId("schedule-0")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule

    def positions(self, begin: int) -> Iterator[int]:
        """The instants from this one on."""
        return self._schedule.due_from(begin)

    def time_ms(self, position: int) -> int:
        """The instant."""
        return position

    def due_ms(self, position: int) -> int:
        """The instant."""
        return position

    def due(self, now_ms: int) -> int:
        """Behind this instant."""
        return now_ms + 1

    def record(self, position: int) -> Document:
        """It tells the instant."""
        return {FIELD: Date(position)}
