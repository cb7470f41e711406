# ruff: noqa: N802 -- a test carries its rule's name
"""F9: how many rows a source puts into an epoch. The closed loop is in `tests/property/test_protocol_pace.py`."""

from tests.harness.task_story import (
    Event,
    Expect,
    MayRead,
    Produces,
    Room,
    aborted,
    committed,
    play,
    started,
    task,
    ticked,
    took,
)
from tidemark.shared.model.ids import Epoch
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.pace import Pace

TARGET_MS = 1_000
NAMES = tuple("abcdefghijklmnopqrstuvwxyz")


def begins(rows: int) -> Event:
    """Sources start: so many rows in the first epoch."""
    return Event(ev.SourcesStarted(TARGET_MS, rows))


def test_F9_a_full_epoch_takes_no_more_and_asks_once() -> None:
    """Behind its last row a source waits for the barrier, and has asked for it; behind the barrier there is room again."""
    play(
        task(source=True),
        begins(3),
        Room(3),
        Produces(["a", "b"]),
        MayRead(may=True),
        Room(1),
        Produces(["c"]),
        MayRead(may=False),
        ticked(1),
        Expect("a at none to 0", "b at none to 0", "c at none to 0", "ask"),
        started(1),
        MayRead(may=True),
        Room(3),
        Produces(NAMES[:3]),
        MayRead(may=False),
        Expect(
            *("flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
            *("a at none to 0", "b at none to 0", "c at none to 0", "ask"),
        ),
    )


def test_F9_without_a_word_there_is_no_bound() -> None:
    """A source that was told no target takes what there is."""
    play(task(source=True), Produces(NAMES), MayRead(may=True))


def test_F9_rows_that_are_held_for_the_barrier_count() -> None:
    """Partial results that wait inside of the task are part of the epoch."""
    play(task(source=True), begins(3), Produces(["a"], held_rows=2), MayRead(may=False), started(1), MayRead(may=True))


def test_F9_a_row_that_becomes_many_takes_their_room() -> None:
    """Where one row of the input became four, the next pieces are as much smaller."""
    play(
        task(source=True),
        begins(24),
        Produces(["a"], held_rows=3),
        Room(5),
    )


def test_F9_rows_that_become_few_let_more_in() -> None:
    """Where a hundred rows became ten partial results there is room for ten times as many; the last come in pieces that are worth it."""
    start = Event(ev.Produced((), 0, idle=False, ended=False, taken_rows=100, held_rows=10))
    play(task(source=True), begins(100), Room(100), start, Room(900))
    nearly = Event(ev.Produced((), 0, idle=False, ended=False, taken_rows=99, held_rows=99))
    play(task(source=True), begins(100), nearly, Room(12), MayRead(may=True))


def test_F9_what_took_too_long_is_made_smaller_what_was_fast_larger() -> None:
    """An epoch of four rows that took twice the target: the next has two; one that took a tenth: eight times as many."""
    play(
        task(source=True),
        begins(4),
        Produces(NAMES[:4]),
        started(1),
        committed(1),
        took(1, 2 * TARGET_MS),
        Room(2),
        Produces(NAMES[:2]),
        started(2),
        committed(2),
        took(2, TARGET_MS // 10),
        Room(16),
        took(2, TARGET_MS // 10),
        Room(16),
    )


def test_F9_what_is_under_way_for_too_long_bounds_the_next() -> None:
    """While an epoch takes five times the target, the next may have a fifth of its rows, and one at the least; its commit ends that."""
    play(
        task(source=True),
        begins(10),
        Produces(NAMES[:10]),
        ticked(1, 100),
        started(1),
        ticked(2, 100 + TARGET_MS),
        Room(10),
        ticked(3, 100 + 5 * TARGET_MS),
        Room(2),
        ticked(4, 100 + 5_000 * TARGET_MS),
        Room(1),
        committed(1),
        Room(10),
    )


def test_F9_the_rows_of_an_aborted_checkpoint_are_in_the_next() -> None:
    """They are under way still; and an epoch that was given up after so long was too large."""
    play(
        task(source=True),
        begins(20),
        Produces(NAMES[:4]),
        started(1),
        Produces(NAMES[:3]),
        aborted(1),
        Room(13),
        started(2),
        ticked(1, 2 * TARGET_MS),
        aborted(2),
        MayRead(may=False),
        started(3),
        committed(3),
        Room(3),
    )


def test_F9_a_checkpoint_whose_end_nobody_told_is_part_of_the_next() -> None:
    """A new leader starts another: both epochs' rows have taken the time that is told."""
    play(
        task(source=True),
        begins(20),
        Produces(NAMES[:4]),
        started(1),
        Produces(NAMES[:4]),
        started(2),
        committed(2),
        took(2, 2 * TARGET_MS),
        Room(4),
    )


def test_F9_what_an_epoch_costs_anyway_is_not_held_against_its_rows() -> None:
    """Two epochs of different size that take four times the target each: fewer rows would not help, so there may be more."""
    play(
        task(source=True),
        begins(20),
        Produces(NAMES[:20]),
        started(1),
        committed(1),
        took(1, 4 * TARGET_MS),
        Room(5),
        Produces(NAMES[:5]),
        started(2),
        committed(2),
        took(2, 4 * TARGET_MS),
        Room(40),
    )


def test_F9_a_new_leaders_word_changes_nothing() -> None:
    """Sources that are started again keep what they have learned."""
    play(task(source=True), begins(4), Produces(["a"]), begins(100), Room(3))


def test_F9_an_epoch_that_is_not_known_says_nothing() -> None:
    """Its time may be of another generation, or of an epoch without rows."""
    story = play(task(source=True), begins(4), started(1), committed(1), took(1, 9_000), took(7, 9_000), Room(4))
    assert story.machine.pace.window_rows == 4
    assert story.machine.last_snapshot == Epoch(1)


def _sent(pace: Pace, epoch: int, rows: int) -> None:
    pace.produced(rows, rows, 0)
    pace.barrier(Epoch(epoch))
    pace.committed(Epoch(epoch))


def test_F9_a_time_that_goes_on_bounds_the_next_and_says_nothing_of_what_an_epoch_costs_without_rows() -> None:
    """A hundred rows took 6 s; two hundred have taken 6.4 s, and will take 12: no sign that an epoch costs 5.6 s without any."""
    pace = Pace()
    pace.begin(5_000, 1_000)
    _sent(pace, 1, 100)
    _sent(pace, 2, 200)
    pace.took(Epoch(1), 6_000, Epoch(2), 6_400)
    assert pace.window_rows == 83
    pace.took(Epoch(1), 6_000, Epoch(2), 30_000)
    assert pace.window_rows == 33


def test_F9_a_time_that_is_told_again_counts_once() -> None:
    """Each start tells the last epoch that ended: what an epoch costs without rows is not forgotten for it."""
    pace = Pace()
    pace.begin(5_000, 1_000)
    _sent(pace, 1, 100)
    _sent(pace, 2, 200)
    _sent(pace, 3, 210)
    pace.took(Epoch(1), 4_500)
    for _ in range(6):
        pace.took(Epoch(2), 5_000)
    pace.took(Epoch(3), 6_000)
    assert pace.window_rows >= 210


def test_F9_fewer_rows_that_took_longer_say_that_something_became_slower() -> None:
    """Not what an epoch costs without rows: a hundred rows at 36 s let the next have less, though more of them took 12 s before."""
    pace = Pace()
    pace.begin(5_000, 1_000)
    _sent(pace, 1, 200)
    _sent(pace, 2, 100)
    pace.took(Epoch(1), 12_000)
    pace.took(Epoch(2), 36_000)
    assert pace.window_rows == 13
