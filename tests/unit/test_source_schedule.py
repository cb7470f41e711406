"""A schedule as a source: which instants it means, and that each comes once, whatever happens in between."""

import random
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import tidemark
from tidemark.services.source.connectors.schedule import ScheduleTimetable
from tidemark.services.source.connectors.timed import TimedConnector
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.schedule import Schedule
from tidemark.shared.model.ids import Offset

BERLIN = ZoneInfo("Europe/Berlin")
SPLIT = ScheduleTimetable.split


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _texts(instants: Iterator[int], count: int) -> list[str]:
    return [datetime.fromtimestamp(next(instants) / 1000, BERLIN).isoformat(timespec="minutes") for _ in range(count)]


@pytest.mark.parametrize(
    ("cron", "begin", "wanted"),
    [
        ("30 2 * * *", "2026-03-28T03:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("0,30 2 * * *", "2026-03-28T03:00+01:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
        ("30 2 * * *", "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"]),
        ("30 2 * * *", "2026-10-25T00:10+02:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("*/30 * * * *", "2026-10-25T02:20+02:00", ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"]),
        ("0 30 2 * * *", "2026-03-28T03:00+01:00", ["2026-03-30T02:30+02:00"]),
        ("0 30 2 * * *", "2026-10-25T00:10+02:00", ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]),
        ("0 9 * * MON-FRI", "2026-11-27T09:00+01:00", ["2026-11-27T09:00+01:00", "2026-11-30T09:00+01:00"]),
    ],
)  # fmt: skip
def test_clocks_that_change(cron: str, begin: str, wanted: list[str]) -> None:
    """A time of day that is left out comes at once behind the gap, one that comes twice once; steps and seconds go by time that passes."""
    assert _texts(Schedule(cron, BERLIN).due_from(_ms(begin)), len(wanted)) == wanted


@pytest.mark.parametrize(
    "cron", ["0 0 1 * * FRI", "0 0 1 30 4 *", "0 0 1 30 * *", "*/60 1 * 4 FRI", "0 0 1-5/4 * * FRI"]
)
def test_a_day_whose_midnight_is_left_out(cron: str) -> None:
    """In Cairo 30 April 2027 begins at one: its first hour is due, wherever one begins to look."""
    schedule, first = Schedule(cron, ZoneInfo("Africa/Cairo")), _ms("2027-04-30T01:00+03:00")
    for days in (0, 1, 6, 40):
        assert first in takewhile(lambda ms: ms <= first, schedule.due_from(first - days * 86_400_000)), days


def test_a_day_that_is_left_out() -> None:
    """Samoa had no 30 December 2011, a Friday."""
    found = Schedule("*/30 0 1 * 5", ZoneInfo("Pacific/Apia")).due_from(_ms("2011-12-25T00:00+00:00"))
    assert next(found) == _ms("2012-01-01T00:00+14:00")


FOLLOWING = 300
"""Instants that are read from anywhere: some hours of each minute, years of each month."""


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_is_read_from_anywhere(seed: int) -> None:
    """From each instant on come those that came from an earlier one."""
    rng = random.Random(seed)
    minute, hour = rng.choice(["*", "*/7", "0", "15,45", "5-50/9"]), rng.choice(["*", "2", "*/5", "1-3", "23"])
    text = f"{minute} {hour} {rng.choice(['*', '1', 'L', '10-20'])} * {rng.choice(['*', '1-5', 'SUN'])}"
    schedule = Schedule(text, rng.choice([UTC, BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")]))
    begin = _ms(rng.choice(["2026-03-01T00:00+00:00", "2026-10-01T00:00+00:00", "2026-04-01T00:00+00:00"]))
    end = begin + 45 * 86_400_000
    instants = list(takewhile(lambda ms: ms <= end, schedule.due_from(begin)))
    assert instants == sorted(set(instants))
    for _ in range(30):
        at = (
            rng.randrange(begin, end)
            if rng.random() < 0.5 or not instants
            else rng.choice(instants) + rng.choice((-1, 0, 1))
        )
        following = instants[bisect_left(instants, at) :][:FOLLOWING]
        assert list(islice(schedule.due_from(at), len(following))) == following, text


async def _through_stops(world: VirtualWorld) -> list[int]:
    """Instants that readers took, each of which began where the one before had been when it was last asked; hours pass in between."""
    table = ScheduleTimetable(Schedule("*/10 * * * *"))
    first = TimedConnector(table, world.clock)
    at = (await first.found([SPLIT], first=True))[SPLIT].begin
    taken: list[int] = []
    for pause_ms in (1, 600_000, 9_000_000, 0, 86_400_000):
        reader = TimedConnector(table, world.clock)
        await reader.open({SPLIT: at})
        for _ in range(3):
            taken += [place for batch in await reader.fetch(1 << 20, 400_000) for place in batch.positions.tolist()]
        at = reader.status()[0].next_position
        await world.clock.sleep_ms(pause_ms)
    return taken


def test_each_instant_comes_once_over_stops() -> None:
    """Those that passed while nothing ran come when it runs again; none before the start (D22)."""
    start = _ms("2026-11-29T10:00:00+00:00")
    taken = run_virtual(_through_stops, start_ms=start)
    assert taken == [start + 600_000 * n for n in range(1, len(taken) + 1)]
    assert len(taken) > 15


def test_a_calendar_that_ends() -> None:
    """Behind the last instant of the year 9999 nothing comes, and nobody fails."""
    last = _ms("9999-12-31T22:59:00+00:00")
    assert list(Schedule("59 22 31 12 *").due_from(last - 60_000)) == [last]
    found = run_virtual(lambda world: _fetched(world, Schedule("59 22 31 12 *")), start_ms=last + 1)
    assert found == ([], [last + 2, last + 502])


async def _fetched(world: VirtualWorld, schedule: Schedule) -> tuple[list[int], list[int]]:
    """Instants from now on, and positions before and behind a fetch."""
    source = TimedConnector(ScheduleTimetable(schedule), world.clock)
    await source.open({SPLIT: (await source.found([SPLIT], first=True))[SPLIT].begin})
    stood = [source.status()[0].next_position]
    instants = [at for batch in await source.fetch(1 << 20, 500) for at in batch.positions.tolist()]
    return instants, [*stood, source.status()[0].next_position]


class _Stepped(SystemClock):
    """A clock that the test sets."""

    at_ms = 0

    def now_ms(self) -> int:
        return self.at_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        return


async def _over_steps(_: VirtualWorld) -> tuple[list[int], list[int]]:
    clock, begin = _Stepped(), _ms("2026-11-29T10:00:00+00:00")
    source = TimedConnector(ScheduleTimetable(Schedule("*/10 * * * *")), clock)
    await source.open({SPLIT: Offset(begin)})
    taken, stood = list[int](), list[int]()
    for minutes in (5, 35, 12, -50, 35, 41):
        clock.at_ms = begin + minutes * 60_000
        taken += [at - begin for batch in await source.fetch(1 << 20, 500) for at in batch.positions.tolist()]
        stood.append(source.status()[0].next_position - begin - 1)
    return [at // 60_000 for at in taken], [at // 60_000 for at in stood]


def test_a_clock_that_is_set() -> None:
    """Set ahead, instants come at once; set back, none comes again. The position follows it on, and never back."""
    assert run_virtual(_over_steps) == ([0, 10, 20, 30, 40], [5, 35, 35, 35, 35, 41])


async def _drained(world: VirtualWorld) -> list[Any]:
    source = TimedConnector(ScheduleTimetable(Schedule("0 * * * *")), world.clock)
    begin = Offset(world.clock.now_ms() - 10 * 3_600_000)
    await source.open({SPLIT: begin})
    source.end_at({s: end for s, end in (await source.ends({SPLIT: begin})).items() if end is not None})
    found = [len(batch.positions) for _ in range(3) for batch in await source.fetch(1 << 20, 1000)]
    return [*found, source.status()[0].finished]


def test_a_drain_ends_it_behind_what_is_due() -> None:
    """It waits for no further instant."""
    assert run_virtual(_drained, start_ms=_ms("2026-11-29T10:30:00+00:00")) == [10, True]


def test_it_can_be_tried_out() -> None:
    """The next ten instants, at once: their documents, and their event times."""
    source = {"cron": "0 6 * * *", "timezone": "Europe/Berlin", "tsFieldName": "at"}
    found = tidemark.try_out({"pipeline": [{"$source": source}]}).documents
    days = [each["scheduledAt"] for each in found]
    assert len(days) == 10
    assert [each["at"] for each in found] == days
    assert {later - sooner for sooner, later in pairwise(days)} <= {timedelta(hours=h) for h in (23, 24, 25)}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"cron": "61 * * * *"}, "$source.cron: expected five fields"),
        ({"cron": "* * *"}, "found '* * *': wrong number of fields"),
        ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
        ({"cron": 5}, "expected a non-empty string"),
        ({"cron": "* * * * *", "timezone": "Berlin"}, "unknown time zone 'Berlin'"),
        ({"cron": "* * * * *", "timezone": "+30:00"}, "$source.timezone:"),
        ({"cron": "* * * * *", "topic": "t"}, "found topic and cron"),
        ({"timezone": "UTC"}, "a source needs topic"),
    ],
)
def test_what_is_no_schedule(source: dict[str, Any], said: str) -> None:
    """One error, at its place."""
    with pytest.raises(InvalidDocument) as refused:
        parse({"pipeline": [{"$source": source}]})
    (error,) = refused.value.errors
    assert said in str(error)
