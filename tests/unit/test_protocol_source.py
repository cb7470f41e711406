# ruff: noqa: N802 -- a test carries its rule's name
"""The input machine of a source's task: which splits it reads, what is idle, how it ends, whom it waits for."""

from collections.abc import Mapping
from typing import Any

import pytest

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import EdgeId, Epoch, Offset, SplitId
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.source_front import SplitState
from tidemark.shared.operators.watermarks import SplitClock
from tidemark.shared.protocol.source.machine import (
    Ask,
    EndAt,
    FindEnds,
    Input,
    ReadOn,
    ReportEnds,
    Tell,
)
from tidemark.shared.protocol.source.split import Split

A, B = SplitId("t-0"), SplitId("t-1")
TO, DLQ = EdgeId("a>b"), EdgeId("a:dlq>dlq")
PLACES = frozenset({(TO, 0), (TO, 1), (DLQ, 0)})
IDLE_MS = 5_000


def known(ordinal: int, begin: int = 0, end: int | None = None) -> KnownSplit:
    return KnownSplit(ordinal, "o", Offset(begin), None if end is None else Offset(end))


def machine(*names: SplitId, end: int | None = None, **settings: Any) -> Input:
    """An input whose splits are being read."""
    made = Input(idle_timeout_ms=IDLE_MS, places=PLACES, listed_once=False, **settings)
    made.listed({name: known(number, end=end) for number, name in enumerate(names)})
    made.opened(names)
    return made


def gave(given: Input, split: SplitId, watermark_ms: int, at: int = 1) -> frozenset[SplitId]:
    """Rows of a split were worked on."""
    away = given.rows({split})
    given.judged({split: watermark_ms}, 0)
    given.stood([stands(split, at)], {split}, 0)
    return away


def stands(split: SplitId, at: int, *, at_end: bool = False, more: bool = False, finished: bool = False) -> SplitStatus:
    return SplitStatus(split, Offset(at), at_end, finished, more)


def ends_of(commands: list[Any]) -> Mapping[SplitId, int | None]:
    (told,) = commands
    assert isinstance(told, ReportEnds)
    return {name: each.end for name, each in told.splits.items()}


# --- which splits there are ---------------------------------------------------------------------------------------------


def test_I1_what_is_found_is_told_once_and_again_to_another_leader() -> None:
    """It is read when the row lists it, and not before; then there is nothing to tell any more."""
    given = Input(tasks=2, index=1, listed_once=False)
    assert given.unlisted({A: 0, B: 1}) == [B]
    given.looked({B: known(1, begin=7)}, 0)
    assert given.tell() == [Tell({B: known(1, begin=7)}, ())]
    assert given.tell() == []
    assert given.tell(again=True) == [Tell({B: known(1, begin=7)}, ())]
    assert not given.unopened()
    assert not given.is_idle()
    given.listed({B: known(1, begin=7)})
    assert given.unopened() == {B: 7}
    given.opened([B])
    assert not given.unopened()
    assert given.tell(again=True) == []


def test_I1_the_first_task_lists_what_is_decided_once() -> None:
    """The splits of all tasks, until the row has them: what the thing has become since is no part of it."""
    first, other = (Input(tasks=2, index=index, listed_once=False, one_lists=True) for index in (0, 1))
    assert first.unlisted({A: 0, B: 1}) == [A, B]
    assert other.unlisted({A: 0, B: 1}) == []
    first.looked({A: known(0), B: known(1)}, 0)
    other.looked({}, 0)
    assert first.tell() == [Tell({A: known(0), B: known(1)}, ())]
    assert other.tell() == [Tell({}, ())]
    first.listed({A: known(0)})
    other.listed({B: known(1)})
    for given, split in ((first, A), (other, B)):
        assert [*given.unopened()] == [split]
        assert [*given.read()] == [split]
        assert not given.looks(10**9)
        assert given.unlisted({SplitId("t-2"): 0, SplitId("t-3"): 1}) == []
        assert given.tell(again=True) == []


def test_I1_what_is_gone_is_told_with_each_look() -> None:
    """The row lists it, and it is there no more."""
    given = machine(A)
    given.gone = (B,)
    given.looked({}, 0)
    assert given.tell() == [Tell({}, (B,))]


def test_I1_nothing_ends_without_a_split_that_was_listed() -> None:
    """From when the task was told of it, opened or not: it holds the watermark, too."""
    given = machine(A)
    gave(given, A, 50)
    given.end({A: known(0, end=1), B: known(1, end=1)})
    given.stood([stands(A, 1, at_end=True)], (), 0)
    assert not given.has_ended()
    assert given.watermark_ms == 50
    given.opened([B])
    gave(given, B, 60)
    assert given.has_ended()


def test_E1_what_comes_later_has_no_part_in_a_bounded_input() -> None:
    """Nobody looks for it, and nobody reads it."""
    given = machine(A, bounded=True)
    assert not given.looks(10**9)
    assert given.unlisted({A: 0, B: 1}) == []
    assert machine(A).looks(10**9)


def test_I2_origins_are_compared_now_and_then_and_behind_an_outage() -> None:
    """Behind one at once: what is there may be another topic, though no time has passed."""
    given = machine(A, compare_interval_ms=1_000)
    given.compared(5_000)
    assert not given.compares(5_999)
    assert given.compares(6_000)
    given.away()
    assert given.compares(5_001)


def test_I2_what_was_taken_is_compared_once_before_a_checkpoint_has_it() -> None:
    """And that is a look like any other, unless there was an outage meanwhile."""
    given = machine(A, compare_interval_ms=1_000)
    assert not given.compares_taken()
    given.rows({A})
    assert given.compares_taken()
    assert not given.compares_taken()
    given.compared(5_000, reads=False)
    assert not given.compares(5_500)
    given.away()
    given.compared(6_000, reads=False)
    assert given.compares(6_001)


# --- how the input ends -------------------------------------------------------------------------------------------------


def test_I3_nothing_is_taken_from_when_the_ends_are_asked_for_until_the_row_has_them() -> None:
    """They are looked for behind what is worked on, once, and said again as they were."""
    given = machine(A)
    given.taking(0)
    assert given.ask_ends({}) == []
    assert not given.may_take(MIN_TIME)
    assert given.taken(Epoch(1), rows=True) == [FindEnds()]
    assert given.ask_ends({}) == []
    assert given.read() == {A: 0}
    assert ends_of(given.ends_found({A: Offset(9)})) == {A: 9}
    assert ends_of(given.ask_ends({A: 3})) == {A: 9}
    assert not given.may_take(MIN_TIME)
    assert given.end({A: known(0, end=9)}) == [EndAt({A: Offset(9)})]
    assert given.may_take(MIN_TIME)
    assert given.ask_ends({}) == []


@pytest.mark.parametrize(
    ("named", "bounded", "there", "expected"),
    [(None, None, 9, 9), (None, None, 3, 5), (None, None, None, None), (8, None, 9, 8), (2, 7, 9, 5), (None, 7, 9, 7)],
)
def test_I3_a_split_ends_where_users_say_else_where_it_is_bounded_else_with_what_is_there(
    named: int | None, bounded: int | None, there: int | None, expected: int | None
) -> None:
    """And never in front of what was read, here 5 records."""
    given = machine(A, end=bounded)
    gave(given, A, 50, at=5)
    given.ask_ends({} if named is None else {A: named})
    assert ends_of(given.ends_found({A: None if there is None else Offset(there)})) == {A: expected}


def test_I3_what_was_found_and_is_not_listed_ends_too() -> None:
    """The row gets it with its end; what is found afterwards has no part."""
    given = machine(A)
    given.looked({B: known(1, begin=4)}, 0)
    given.ask_ends({})
    assert given.read() == {A: 0, B: 4}
    assert ends_of(given.ends_found({A: Offset(1), B: Offset(6)})) == {A: 1, B: 6}
    given.end({A: known(0, end=1), B: known(1, begin=4, end=6)})
    assert given.unopened() == {B: 4}
    assert not given.looks(10**9)


def test_I3_what_comes_while_the_ends_are_looked_for_has_none() -> None:
    """The source was asked about what was there; the rest is nobody's any more, or is told where it ends by the row."""
    given = machine(A)
    given.ask_ends({})
    given.read()
    given.listed({B: known(1)})
    given.looked({SplitId("t-2"): known(2)}, 0)
    assert ends_of(given.ends_found({A: Offset(9)})) == {A: 9}


def test_E1_all_splits_have_ended_or_there_is_none() -> None:
    """A task without splits ends at once where the source is bounded, else when it is drained; then a checkpoint is asked for."""
    given = machine(A, B, end=2)
    given.stood([stands(A, 2), stands(B, 1)], (), 0)
    assert not given.has_ended()
    given.stood([stands(B, 1, finished=True)], (), 0)
    assert given.has_ended()
    assert not given.is_idle()
    assert given.watermark_ms == MAX_TIME
    given.taking(0)
    assert given.taken(Epoch(1), rows=False) == [Ask()]
    assert machine(bounded=True).has_ended()
    without = machine()
    assert not without.has_ended()
    assert without.is_idle()
    without.end({})
    assert without.has_ended()


# --- time -----------------------------------------------------------------------------------------------------------------


def test_W2_the_slowest_split_holds_the_watermark_and_a_new_one_does_not_lower_it() -> None:
    """Until each has had data it does not move."""
    given = machine(A, B)
    gave(given, A, 50)
    assert given.watermark_ms == MIN_TIME
    gave(given, B, 20)
    assert given.watermark_ms == 20
    given.listed({SplitId("t-2"): known(2)})
    gave(given, B, 40)
    assert given.watermark_ms == 20
    gave(given, SplitId("t-2"), 10)
    assert given.watermark_ms == 20
    gave(given, SplitId("t-2"), 70)
    assert given.watermark_ms == 40


def test_W3_idle_splits_are_left_out_and_of_those_alone_the_highest_counts() -> None:
    """A return lowers nothing."""
    given = machine(A, B)
    gave(given, A, 50)
    gave(given, B, 20)
    given.become([B], "idle")
    assert given.watermark_ms == 50
    gave(given, B, 30)
    assert given.watermark_ms == 50
    given.become([A, B], "idle")
    assert given.is_idle()
    gave(given, A, 60)
    assert not given.is_idle()


def test_W4_a_split_is_idle_after_the_time_out_at_its_end() -> None:
    """Rows, or an answer that is missing, begin it anew."""
    given = machine(A)
    given.stood([stands(A, 1, at_end=True)], (), 100)
    given.stood([stands(A, 1, at_end=True)], (), 99 + IDLE_MS)
    assert not given.is_idle()
    given.stood([stands(A, 1)], (), 99 + IDLE_MS)
    given.stood([stands(A, 1, at_end=True)], (), 100 + IDLE_MS)
    given.stood([stands(A, 2, at_end=True)], {A}, 200 + IDLE_MS)
    given.stood([stands(A, 2, at_end=True)], (), 300 + IDLE_MS)
    given.stood([stands(A, 2, at_end=True)], (), 299 + 2 * IDLE_MS)
    assert not given.is_idle()
    given.stood([stands(A, 2, at_end=True)], (), 300 + 2 * IDLE_MS)
    assert given.is_idle()


def test_W4_what_is_on_its_way_ends_idleness() -> None:
    """The broker says that more is there, though nothing can be read yet."""
    given = machine(A)
    given.become([A], "idle")
    given.stood([stands(A, 1, more=True)], (), 0)
    assert not given.is_idle()


def test_W4_time_held_back_does_not_count() -> None:
    """From when the task may not take until it takes again."""
    given = machine(A)
    given.stood([stands(A, 1, at_end=True)], (), 0)
    given.held_back(1_000)
    given.held_back(9_000)
    given.taking(10_000)
    given.stood([stands(A, 1, at_end=True)], (), 9_000 + IDLE_MS - 1)
    assert not given.is_idle()
    given.stood([stands(A, 1, at_end=True)], (), 9_000 + IDLE_MS)
    assert given.is_idle()


# --- receivers ------------------------------------------------------------------------------------------------------------


def returned(epoch: int = 7) -> Input:
    """A split is back from idleness, behind the other, and frames of this epoch tell of it."""
    given = machine(A, B)
    gave(given, A, 50)
    given.become([B], "idle")
    given.taking(0)
    assert gave(given, B, 20) == {B}
    given.taken(Epoch(epoch), rows=True)
    return given


def test_W4_every_receiver_has_to_have_taken_the_epoch_of_the_return() -> None:
    """Reports of earlier epochs, and of some receivers only, say nothing yet; then the highest watermark of all counts."""
    given = returned()
    given.heard(TO, 0, Epoch(7), 1_000, full=False)
    given.heard(TO, 1, Epoch(6), 5_000, full=False)
    given.heard(DLQ, 0, Epoch(8), 10, full=False)
    assert given.splits[B].catch_up_ms is None
    given.heard(TO, 1, Epoch(7), 5_500, full=False)
    assert given.splits[B].catch_up_ms == 5_500
    assert gave(given, B, 5_499) == {B}
    assert gave(given, B, 5_500) == {B}
    assert gave(given, B, 5_600) == frozenset()


def test_W4_a_second_return_waits_anew() -> None:
    """A split that was idle again meanwhile waits for the epoch of its last return."""
    given = returned(3)
    given.become([B], "idle")
    given.taking(0)
    gave(given, B, 30)
    given.taken(Epoch(5), rows=True)
    for edge, partition in PLACES:
        given.heard(edge, partition, Epoch(4), 100, full=False)
    assert given.splits[B].catch_up_ms is None
    for edge, partition in PLACES:
        given.heard(edge, partition, Epoch(5), 200, full=False)
    assert given.splits[B].catch_up_ms == 200


def test_W4_a_split_that_comes_while_the_job_runs_is_away() -> None:
    """Receivers may be ahead of it; those of the first list, and of a job without a snapshot, begin together with their receivers."""
    given = machine(A)
    given.listed({B: known(1)})
    assert gave(given, A, 20) == frozenset()
    assert gave(given, B, 5) == {B}
    given.taken(Epoch(3), rows=True)
    for edge, partition in PLACES:
        given.heard(edge, partition, Epoch(3), 20, full=False)
    assert gave(given, B, 20) == {B}
    assert gave(given, B, 25) == frozenset()


@pytest.mark.parametrize("step_ms", [1, 7, 100, 5_000])
def test_W4_a_split_that_comes_while_the_job_runs_is_not_away_for_ever(step_ms: int) -> None:
    """However far and fast the others go: it holds the task's watermark, so what it has to reach does not move away from it."""
    given = machine(A)
    gave(given, A, 1_000)
    given.listed({B: known(1)})
    gave(given, B, 0)
    given.taken(Epoch(3), rows=True)
    for edge, partition in PLACES:
        given.heard(edge, partition, Epoch(3), 1_000, full=False)
    rounds = 0
    while given.splits[B].away:
        rounds += 1
        gave(given, A, 1_000 + rounds * 100_000)
        gave(given, B, rounds * step_ms)
        assert rounds <= 1_000 // step_ms + 1
    assert given.watermark_ms >= 1_000


@pytest.mark.parametrize(("noted", "first", "away"), [(None, False, True), (None, True, False), (3, False, False)])
def test_W4_a_split_that_the_snapshot_does_not_know_is_away(noted: int | None, first: bool, away: bool) -> None:
    """It was listed behind the checkpoint; receivers begin with that one."""
    position = None if noted is None else Offset(noted)
    split = Split.restored(known(0), position, MIN_TIME, SplitState(0, SplitClock()), 0, first=first)
    assert split.away == away


def test_W4_a_late_report_takes_nothing_back() -> None:
    """Reports may repeat and come out of order."""
    given = returned(3)
    for edge, partition in sorted(PLACES):
        given.heard(edge, partition, Epoch(4), 100, full=False)
        given.heard(edge, partition, Epoch(2), 90, full=False)
    assert given.splits[B].catch_up_ms == 100


def test_F7_only_who_is_ahead_of_a_full_receiver_waits() -> None:
    """The one for whom it waits is never stopped; all go on once it is full no more."""
    given = machine(A)
    assert given.may_take(10**15)
    assert given.heard(TO, 0, Epoch(0), 100, full=True)
    assert not given.heard(TO, 0, Epoch(0), 100, full=True)
    assert not given.may_take(101)
    assert given.may_take(100)
    given.heard(TO, 1, Epoch(0), 500, full=True)
    given.heard(TO, 0, Epoch(0), 100, full=False)
    assert given.may_take(500)
    assert not given.may_take(501)


# --- steps and snapshots --------------------------------------------------------------------------------------------------


def test_a_step_that_moved_time_is_covered_before_the_next_is_read() -> None:
    """One that moved none is not waited for, unless rows alone count; a clock that is set takes its time either way."""

    def taken(watermark_ms: int, **settings: Any) -> tuple[Input, list[Any]]:
        given = machine(A, **settings)
        given.taking(0, one_by_one=True)
        given.rows({A})
        given.judged({A: watermark_ms}, 0)
        return given, given.taken(Epoch(3), rows=True)

    assert taken(MIN_TIME)[1] == [ReadOn()]
    assert taken(MIN_TIME, rows_covered=True)[1] == [Ask(covers=True)]
    assert taken(MIN_TIME, settle_ms=40)[1] == [Ask(40, covers=True)]
    given, asked = taken(50)
    assert asked == [Ask(covers=True)]
    given.asked(Epoch(3))
    assert given.committed(Epoch(2)) == []
    assert given.committed(Epoch(3)) == [ReadOn()]
    assert given.committed(Epoch(4)) == []


def test_C6_a_snapshot_has_the_splits_that_changed_since_the_last() -> None:
    """Where all of them stand is said with each (C2)."""
    given = machine(A, B)
    assert set(given.copied(Epoch(1))) == {A, B}
    gave(given, B, 20, at=4)
    assert set(given.copied(Epoch(2))) == {B}
    given.become([A], "idle")
    assert set(given.copied(Epoch(3))) == {A}
    stood = [split.stand(name) for name, split in given.splits.items()]
    assert [(stand.split, stand.next, stand.status) for stand in stood] == [(A, 0, "idle"), (B, 4, "active")]


def test_a_restored_watermark_stands_since_the_restore_at_the_latest() -> None:
    """No snapshot has the time; one that never moved stands since no time."""
    noted = SplitState(0, SplitClock())
    moved, fresh = (Split.restored(known(0), Offset(3), ms, noted, 70, first=False) for ms in (20, MIN_TIME))
    assert (moved.held(None, 0).since, fresh.held(None, 0).since) == (70, 0)
    moved.raise_to(30, 90)
    assert moved.held(None, 0).since == 90


def test_positions_of_a_committed_checkpoint_are_noted_while_they_are_known() -> None:
    """Those of older ones are forgotten with them."""
    given = machine(A, noted_checkpoints_max=2)
    for epoch in (1, 2, 3):
        gave(given, A, 50, at=epoch)
        given.copied(Epoch(epoch))
    assert given.noted(Epoch(1)) == {}
    assert given.noted(Epoch(3)) == {A: 3}
    assert given.splits[A].checkpoint == 3
    assert given.noted(Epoch(2)) == {}
