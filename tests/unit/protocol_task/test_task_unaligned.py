"""Checkpoints whose barriers are not waited for: C13."""
# ruff: noqa: N802 -- a test carries its rule's name

import pytest

from tests.harness.task_story import (
    IN,
    Answers,
    Barrier,
    BrokerHas,
    Durable,
    Expect,
    Holds,
    Rows,
    Says,
    aborted,
    play,
    started,
    task,
    ticked,
)
from tidemark.shared.model.ids import EdgeId
from tidemark.shared.protocol.task.events import Ticked
from tidemark.shared.protocol.task.start import TaskLimits

TAKEN_1 = ("flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0")
TAKEN_2 = ("flush 2", "snapshot 2 after 0", "barrier 2 after 0 to 0")
SECOND = [(1, 0), (2, 1)]


def test_C13_a_snapshot_is_taken_at_the_coordinators_word() -> None:
    """Whatever lies in front of the barriers; these are numbers in their channels when they come, and nothing waits for them."""
    play(
        task(senders=2, alignment_timeout_ms=0),
        Rows(0, "a"),
        Expect("apply a"),
        started(1),
        Expect(*TAKEN_1),
        Rows(1, "b"),
        Barrier(0, 1),
        Rows(0, "c"),
        Expect("apply b", "apply c"),
        Barrier(1, 1),
        Expect(),
    )


def test_C13_an_infinite_time_out_is_an_aligned_checkpoint() -> None:
    """Then the word alone does nothing."""
    play(task(senders=2), started(1), ticked(10**9, 10**9), Barrier(0, 1), Expect(), Barrier(1, 1), Expect(*TAKEN_1))


def test_C13_barriers_are_waited_for_until_the_time_out() -> None:
    """By the monotonic clock since the word; what has come by then is in front of or behind its barrier, as aligned."""
    play(
        task(senders=2, alignment_timeout_ms=50),
        ticked(1, 100),
        started(1),
        Barrier(0, 1),
        Rows(0, "behind"),
        Rows(1, "a"),
        Expect("apply a"),
        ticked(2, 149),
        Expect(),
        ticked(3, 150),
        Expect(*TAKEN_1, "apply behind"),
        started(2),
        Barrier(0, 2),
        Barrier(1, 1),
        Barrier(1, 2),
        Expect(*TAKEN_2),
        ticked(4, 500),
        Expect(),
    )


def test_C13_a_tick_is_waited_for_when_the_time_out_is_over() -> None:
    """Ticks that change nothing are not handed to a task: this one does."""
    story = play(task(senders=2, alignment_timeout_ms=50), ticked(1, 100), started(1))
    assert [story.machine.waits_for(Ticked(2, ms)) for ms in (149, 150)] == [False, True]


def test_C13_a_word_that_is_repeated_does_not_begin_the_time_anew() -> None:
    """And one that is told late takes nothing back."""
    play(
        task(senders=2, alignment_timeout_ms=50),
        started(1),
        ticked(1, 49),
        started(1),
        ticked(2, 50),
        Expect(*TAKEN_1),
        started(2),
        started(1),
        ticked(3, 100),
        Expect(*TAKEN_2),
        started(2),
        ticked(4, 200),
        Expect(),
    )


def test_C13_what_has_ended_is_not_cut() -> None:
    """An abort, or a later checkpoint that is being aligned, ends it before its time has come (C5)."""
    play(task(senders=2, alignment_timeout_ms=50), started(1), aborted(1), ticked(1, 50), Expect())
    play(
        task(senders=2, alignment_timeout_ms=50),
        started(1),
        Barrier(0, 2),
        ticked(1, 50),
        Expect(),
        Barrier(1, 2),
        Expect(*TAKEN_2),
    )


def test_C13_a_later_word_ends_what_was_being_aligned() -> None:
    """What waited for the one goes on waiting for the other, and counts behind its own barrier."""
    story = play(
        task(senders=2, alignment_timeout_ms=50),
        Barrier(0, 1),
        Rows(0, "behind 1"),
        started(2),
        ticked(1, 50),
        Durable(2),
        BrokerHas(),
        Expect(*TAKEN_2, "apply behind 1", "ack 2"),
        Barrier(1, 1),
        Rows(1, "free"),
        Expect("apply free"),
    )
    first, second = story.snapshots[2].inputs[0].channels
    assert (first.next_seq, first.last_barrier) == (1, 1)
    assert (second.next_seq, second.last_barrier) == (0, 0)


def test_C13_nothing_is_applied_while_the_snapshot_is_taken() -> None:
    """Channels without a barrier wait, too, within the bound, or are left and read again (C4)."""
    for bytes_max, seeks in ((1000, []), (15, ["seek 2"])):
        story = play(
            task(senders=2, alignment_timeout_ms=0, limits=TaskLimits(waiting_bytes_max=bytes_max)),
            Holds(),
            started(1),
            Rows(0, "a"),
            Answers(),
            Rows(1, "b"),
            Barrier(0, 1),
            Expect("flush 1", "snapshot 1 after 0"),
            Answers(go_on=True),
        )
        said = story.said
        assert said[0] == "barrier 1 after 0 to 0"
        assert [line for line in said if line.startswith("apply")] == ["apply a", "apply b"]
        assert bool([line for line in said if line.startswith("seek")]) == bool(seeks)


def test_C13_an_aligned_one_is_waited_for_however_long_it_takes() -> None:
    """The coordinator's word says so: something changes behind this checkpoint (R4)."""
    play(
        task(senders=2, alignment_timeout_ms=0),
        started(1, aligned=True),
        ticked(1, 10**6),
        Barrier(0, 1),
        Rows(1, "a"),
        Expect("apply a"),
        Barrier(1, 1),
        Expect(*TAKEN_1),
    )


@pytest.mark.parametrize("timeout_ms", [0, None])
def test_C13_a_restore_applies_what_channels_carried_before_anything_new(timeout_ms: int | None) -> None:
    """From the log: frames in front of the barrier, once each, also those of a watermark; none that the snapshot had."""
    story = play(
        task(senders=2, alignment_timeout_ms=0),
        Rows(0, "a"),
        Rows(1, "b"),
        started(1),
        Durable(1),
        BrokerHas(),
        Rows(0, "in flight"),
        Says(0, 7),
        Says(1, 9),
        Barrier(0, 1),
        Rows(0, "not of the snapshot"),
        Rows(1, "late in flight"),
        Barrier(1, 1),
    )
    state = story.snapshots[1]
    assert [(c.next_seq, c.last_barrier) for c in state.inputs[0].channels] == [(1, 0), (1, 0)]
    assert state.inputs[0].resume_offset == 2
    again = task(senders=2, generation=2, lineage=SECOND, restored={0: state}, alignment_timeout_ms=timeout_ms)
    told = play(
        again, ticked(1), Expect("fire 1", "apply in flight", "advance 7", "apply late in flight"), log=story.log
    )
    assert told.machine.drops == {"discarded_by_lineage": 1}
    assert told.machine.receiver.passed(EdgeId(IN)) == 1


def test_C13_a_channel_may_be_behind_by_several_checkpoints() -> None:
    """Its state begins where the snapshot's rows of it end, in front of barriers of checkpoints that are long committed."""
    story = play(
        task(senders=2, alignment_timeout_ms=0),
        started(1),
        Durable(1),
        BrokerHas(),
        started(2, committed=1),
        Barrier(0, 1),
        Barrier(0, 2),
        Durable(2),
        BrokerHas(),
        started(3, committed=2),
        Durable(3),
        BrokerHas(),
    )
    first, second = story.snapshots[3].inputs[0].channels
    assert (first.next_seq, first.last_barrier) == (2, 2)
    assert (second.next_seq, second.last_barrier) == (0, 0)


def test_C13_a_snapshot_is_taken_between_two_pieces_of_a_watermarks_work() -> None:
    """Its input watermark is the whole one, so a restored task goes on with the work; the rest follows behind the barrier."""
    story = play(
        task(senders=1, alignment_timeout_ms=0),
        Holds(),
        Says(0, 7),
        Expect("advance 7"),
        Answers(unfinished=True),
        Expect("advance 7"),
        started(1),
        Rows(0, "a"),
        Expect(),
        Answers(unfinished=True),
        Expect("flush 1"),
        Answers(),
        Answers(),
        Expect("snapshot 1 after 0", "barrier 1 after 0 to 0", "advance 7"),
        Durable(1),
        BrokerHas(),
        Answers(),
        Expect("ack 1", "apply a"),
    )
    assert story.snapshots[1].input_watermark_ms == 7


def test_C3_a_watermark_is_applied_whole_before_a_snapshot_that_waits_for_barriers() -> None:
    """However many pieces it takes: what an epoch gives does not depend on how its work was cut."""
    play(
        task(senders=1),
        Holds(),
        Says(0, 7),
        Barrier(0, 1),
        started(1),
        Expect("advance 7"),
        Answers(unfinished=True),
        Answers(unfinished=True),
        Expect("advance 7", "advance 7"),
        Answers(go_on=True),
        Expect("flush 1", "watermark 7 to 0", *TAKEN_1[1:]),
    )
    play(
        task(senders=1),
        Holds(),
        Barrier(0, 1, watermark=7),
        started(1),
        Expect("advance 7"),
        Answers(unfinished=True),
        Expect("advance 7"),
        Answers(go_on=True),
        Expect("flush 1", "watermark 7 to 0", *TAKEN_1[1:]),
    )


def test_W3_a_task_is_not_idle_between_two_pieces() -> None:
    """Rows follow: it says that it is idle when its watermark's work is done."""
    play(
        task(senders=1),
        Holds(),
        Says(0, 7, idle=True),
        Expect("idle none to 0", "advance 7"),
        Answers(unfinished=True),
        Expect("watermark none to 0", "advance 7"),
        Answers(),
        Expect("idle 7 to 0"),
    )
