"""Barriers, alignment, abort, snapshot, acknowledgement: C2, C3, C4, C5, C6, C7, P1."""
# ruff: noqa: N802 -- a test carries its rule's name

import pytest

from tests.harness.task_story import (
    IN,
    JOB,
    Again,
    Answers,
    Barrier,
    BrokerHas,
    Durable,
    End,
    Expect,
    Holds,
    MayRead,
    Produces,
    Rows,
    Says,
    aborted,
    committed,
    emission,
    play,
    rows,
    started,
    task,
    ticked,
)
from tidemark.shared.model.frames import BarrierFrame, DataFrame, Frame, Header
from tidemark.shared.model.ids import EdgeId, Epoch, Generation, Incarnation, Offset, Seq, TaskId, VertexId
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.protocol.task import commands as do
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.start import TaskLimits, TaskStart, start_task

TAKEN_1 = ("flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0")
TAKEN_2 = ("flush 2", "snapshot 2 after 0", "barrier 2 after 0 to 0")


def _waiting(bytes_max: int) -> TaskLimits:
    return TaskLimits(waiting_bytes_max=bytes_max)


# --- C2 ------------------------------------------------------------------------------------------------------------------


def test_C2_a_source_writes_its_barrier_to_every_partition_behind_its_position() -> None:
    """The snapshot comes first, then BARRIER n everywhere; nothing is read in between."""
    play(
        task(source=True, receivers=3),
        Produces(["a"]),
        Holds(),
        started(1),
        MayRead(may=False),
        Answers(),
        MayRead(may=False),
        Expect("a at none to 0", "flush 1", "snapshot 1 after 0"),
        Answers(go_on=True),
        MayRead(may=True),
        Expect("barrier 1 after 0 to 0", "barrier 1 after 0 to 1", "barrier 1 after 0 to 2"),
    )


def test_C2_a_start_that_is_told_twice_is_taken_once() -> None:
    """The coordinator's messages may be repeated."""
    play(task(source=True), started(1), started(1), Expect(*TAKEN_1))
    play(task(source=True), Holds(), started(1), started(1), Answers(), Answers(go_on=True), Expect(*TAKEN_1))


# --- C3 ------------------------------------------------------------------------------------------------------------------


def test_C3_a_snapshot_is_between_the_epochs_on_every_channel() -> None:
    """Behind a barrier rows wait; on channels without it they are applied; the last barrier takes the snapshot."""
    play(
        task(senders=3),
        Rows(0, "a1"),
        Barrier(0, 1),
        Rows(0, "a2"),
        Rows(1, "b1"),
        Barrier(1, 1),
        Rows(2, "c1"),
        Rows(1, "b2"),
        Expect("apply a1", "apply b1", "apply c1"),
        Barrier(2, 1),
        Expect(*TAKEN_1, "apply a2", "apply b2"),
    )


def test_C3_every_input_is_aligned() -> None:
    """A task with two in edges takes n when the barrier has come on both."""
    left, right, up = EdgeId("left>me"), EdgeId("right>me"), VertexId("up")
    template = task()
    inputs = [(EdgeBinding(edge, Incarnation("i1"), "", 1, 1), up) for edge in (left, right)]
    machine = start_task(
        TaskStart(
            template.task,
            1,
            JOB,
            Generation(1),
            template.lineage,
            Epoch(0),
            inputs,
            template.outputs,
            {},
            is_source=False,
        )
    )

    def read(edge: EdgeId, offset: int, frame: Frame) -> list[do.Command]:
        return machine.handle(ev.FrameRead(edge, Offset(offset), frame, 10))

    def header(seq: int, epoch: int) -> Header:
        return Header(JOB, Incarnation("i1"), Generation(1), TaskId(up, 0), Seq(seq), Epoch(epoch), 0)

    assert read(left, 0, BarrierFrame(header(0, 1), Epoch(0))) == []
    assert read(left, 1, DataFrame(header(1, 2), (rows("x"),))) == []
    assert read(right, 0, BarrierFrame(header(0, 1), Epoch(0))) == [do.Advance(1, 0)]
    assert machine.handle(ev.Done(1, (), 0, MAX_TIME)) == [do.Flush(2, Epoch(1))]


def test_C3_a_watermark_on_the_last_barrier_is_applied_before_the_snapshot() -> None:
    """What the epoch's watermark lets fire belongs to the epoch."""
    play(
        task(senders=2),
        Says(0, 7),
        Barrier(0, 1),
        Holds(),
        Says(1, 6),
        Expect("advance 6"),
        Answers(go_on=True),
        Rows(1, "b", watermark=8),
        Barrier(1, 1),
        Expect("apply b", "advance 7", "flush 1", "watermark 7 to 0", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
    )


# --- C4 ------------------------------------------------------------------------------------------------------------------


def test_C4_what_does_not_fit_is_left_in_the_log_and_read_again() -> None:
    """From the first frame that does not fit, a partition's frames of later epochs are left, also ones that would fit."""
    story = play(
        task(senders=2, limits=_waiting(15)),
        Barrier(0, 1),
        Rows(0, "b"),
        Rows(0, "c"),
        Rows(1, "a"),
        Rows(0, "d", size_bytes=1),
        Expect("apply a"),
        Barrier(1, 1),
        Expect(*TAKEN_1, "seek 2", "apply b", "apply c", "apply d"),
    )
    assert story.machine.drops == {"repeated": 2}


def test_C4_the_bytes_that_wait_are_bounded() -> None:
    """However much runs ahead, no more than the setting is held."""
    story = play(task(senders=2, limits=_waiting(25)), Barrier(0, 1), *(Rows(0, f"r{i}") for i in range(9)))
    assert story.machine.receiver.waiting_bytes == 20


def test_C4_a_snapshot_resumes_at_the_first_frame_that_is_not_in_it() -> None:
    """What waits, and what was left, is read again after a restore."""
    for bytes_max in (0, 15, 100):
        story = play(
            task(senders=2, limits=_waiting(bytes_max)),
            Barrier(0, 1),
            Rows(0, "b"),
            Rows(1, "a"),
            Rows(0, "c"),
            Barrier(1, 1),
            Durable(1),
            BrokerHas(),
        )
        state = story.snapshots[1]
        assert state.inputs[0].resume_offset == 1
        restored = task(senders=2, generation=2, lineage=[(1, 0), (2, 1)], restored={0: state})
        lines = play(restored, Rows(0, "b again"), Expect("apply b again"), log=story.log)
        assert lines.machine.drops == {"discarded_by_lineage": 2, "repeated": 2}


def test_C4_an_abort_too_seeks_back() -> None:
    """What was left for a checkpoint that is given up goes on at once."""
    play(
        task(senders=2, limits=_waiting(0)),
        Barrier(0, 1),
        Rows(0, "b"),
        Expect(),
        aborted(1),
        Expect("seek 1", "apply b"),
    )


@pytest.mark.parametrize("bytes_max", [0, 1000])
def test_C4_a_later_barrier_ends_the_epoch_even_where_it_waits_or_is_left(bytes_max: int) -> None:
    """A sender that has gone on to m shows that n has ended; nobody waits for the rest of n."""
    seeks = ["seek 1"] if bytes_max == 0 else []
    play(
        task(senders=2, limits=_waiting(bytes_max)),
        Barrier(0, 1),
        Rows(0, "b"),
        Expect(),
        Barrier(0, 2),
        Expect(*seeks, "apply b"),
        Rows(1, "a"),
        Barrier(1, 2),
        Expect("apply a", *TAKEN_2),
    )


def test_C4_reading_goes_on_while_an_alignment_is_open() -> None:
    """A partition that several senders share is never paused: the barrier that is missing lies behind what runs ahead."""
    play(task(senders=2, limits=_waiting(0)), Barrier(0, 1), Rows(0, "b"), Rows(0, "c"), MayRead(may=True))


# --- C5 ------------------------------------------------------------------------------------------------------------------


def test_C5_barriers_of_an_ended_checkpoint_count_as_a_seq_alone() -> None:
    """After an abort the channels that still bring the barrier are not blocked by it, and the next checkpoint is complete."""
    play(
        task(senders=2),
        Barrier(0, 1),
        Rows(0, "b"),
        aborted(1),
        Expect("apply b"),
        Barrier(1, 1),
        Rows(1, "c"),
        Expect("apply c"),
        Barrier(1, 2),
        Rows(1, "d"),
        Barrier(0, 2),
        Expect(*TAKEN_2, "apply d"),
    )


def test_C5_a_later_barrier_on_another_channel_ends_the_epoch() -> None:
    """A sender may skip n; its BARRIER m frees what waits for n."""
    play(
        task(senders=3),
        Barrier(0, 1),
        Rows(0, "a"),
        Barrier(1, 2),
        Expect("apply a"),
        Barrier(2, 1),
        Barrier(2, 2),
        Barrier(0, 2),
        Expect(*TAKEN_2),
    )


def test_C5_an_aborted_checkpoint_is_not_begun() -> None:
    """A source that hears of the abort before it came to the start does nothing."""
    story = play(task(source=True), aborted(3), started(3), Expect(), Holds(), started(4), started(5), aborted(5))
    Answers().act(story)
    Answers(go_on=True).act(story)
    Expect("flush 4", "snapshot 4 after 0", "barrier 4 after 0 to 0").act(story)


@pytest.mark.parametrize("at", ["flush", "copy"])
def test_C5_an_abort_while_the_snapshot_is_taken_lets_it_go_on(at: str) -> None:
    """The task goes on from that snapshot: its barrier is written, what waited goes on, and the next checkpoint is whole."""
    story = play(task(senders=2), Barrier(0, 1), Rows(0, "a"), Holds(), Barrier(1, 1), Rows(1, "b"))
    if at == "copy":
        Answers().act(story)
    aborted(1).act(story)
    Answers(go_on=True).act(story)
    story.read()
    Expect(*TAKEN_1, "apply a", "apply b").act(story)
    assert [c.next_seq for c in story.machine.receiver.channels()] == [2, 2]


def test_C5_a_later_barrier_read_while_the_snapshot_is_taken_waits_for_it() -> None:
    """BARRIER 2 on both channels, with rows behind, while 1 is taken: 1 is taken, then 2, and no row is in the wrong one."""
    story = play(
        task(senders=2), Barrier(0, 1), Holds(), Barrier(1, 1), Rows(0, "a"), Barrier(0, 2), Rows(0, "c"), Barrier(1, 2)
    )
    Answers().act(story)
    Answers(go_on=True).act(story)
    Expect(*TAKEN_1, "apply a", *TAKEN_2, "apply c").act(story)


def test_C5_frames_put_off_are_not_lost_from_the_next_snapshot() -> None:
    """What waited for 1 and lies behind BARRIER 2 is where a restore from 2 begins to read."""
    story = play(
        task(senders=2), Barrier(0, 1), Holds(), Barrier(1, 1), Rows(0, "a"), Barrier(0, 2), Barrier(1, 2), Rows(0, "c")
    )
    Answers().act(story)
    Answers(go_on=True).act(story)
    Durable(2).act(story)
    BrokerHas().act(story)
    assert story.snapshots[2].inputs[0].resume_offset == 5


def test_C5_an_abort_while_the_last_watermark_is_applied() -> None:
    """All barriers are there but the snapshot has not begun: it does not begin."""
    story = play(
        task(senders=2), Says(0, 4), Barrier(0, 1), Rows(0, "a"), Says(1, 3), Holds(), Rows(1, "b", watermark=5)
    )
    Answers().act(story)
    Expect("advance 3", "apply b", "advance 4").act(story)
    story.handle(ev.FrameRead(IN, Offset(5), BarrierFrame(story.header(1), Epoch(1)), 10))
    aborted(1).act(story)
    Answers(go_on=True).act(story)
    Expect("apply a").act(story)


def test_C5_the_barrier_names_the_commit_from_which_the_ack_counts() -> None:
    """It is p of the start command, not the newest commit that a hint told of."""
    play(
        task(),
        committed(5),
        Barrier(0, 7, committed=3),
        Expect("flush 7", "snapshot 7 after 3", "barrier 7 after 3 to 0"),
    )
    play(
        task(source=True),
        committed(5),
        started(7, 3),
        Expect("flush 7", "snapshot 7 after 3", "barrier 7 after 3 to 0"),
    )


def test_C5_an_ended_checkpoint_is_not_acknowledged() -> None:
    """State that becomes durable after the abort is of no interest."""
    play(task(), Barrier(0, 1), BrokerHas(), aborted(1), Durable(1), Expect(*TAKEN_1))


def test_C5_an_abort_of_an_older_checkpoint_changes_nothing() -> None:
    """Late messages do not touch the alignment, nor the ack, of a later one."""
    play(
        task(senders=2),
        Barrier(0, 2),
        Rows(0, "a"),
        aborted(1),
        Expect(),
        Barrier(1, 2),
        aborted(1),
        Durable(2),
        BrokerHas(),
        Expect(*TAKEN_2, "apply a", "ack 2"),
    )


# --- C6, C7 --------------------------------------------------------------------------------------------------------------


def test_C6_a_snapshot_holds_all_that_the_machine_knows() -> None:
    """Channels with seq, watermark and flags; own seqs; both watermarks; idleness; processing time; where to read on."""
    story = play(
        task(senders=3, receivers=2),
        ticked(40),
        Rows(0, "a", watermark=3),
        Says(1, 5, idle=True),
        End(2),
        Barrier(0, 1),
        Barrier(1, 1),
        Barrier(2, 1),
        ticked(50),
        Durable(1),
        BrokerHas(),
        emits={"apply a": [emission("x", partition=1)]},
    )
    state = story.snapshots[1]
    channels = [(c.next_seq, c.watermark_ms, c.idle, c.ended) for c in state.inputs[0].channels]
    assert [channels[0], channels[1], channels[2][2:]] == [(2, 3, False, False), (2, 5, True, False), (False, True)]
    assert state.inputs[0].resume_offset == 6
    assert state.outputs[0].next_seq == (2, 3)
    assert (state.input_watermark_ms, state.output_watermark_ms) == (3, 3)
    assert (state.idle, state.ended, state.processing_time_ms) == (False, False, 40)


def test_C6_idle_and_ended_are_in_the_snapshot() -> None:
    """What the task told its receivers of itself is what a restore begins with."""
    idle = play(task(), Says(0, 5, idle=True), Barrier(0, 1), Durable(1), BrokerHas()).snapshots[1]
    ended = play(task(), End(0), Barrier(0, 1), Durable(1), BrokerHas()).snapshots[1]
    assert (idle.idle, idle.ended) == (True, False)
    assert (ended.idle, ended.ended) == (False, True)


def test_C7_the_ack_waits_for_the_state_to_be_durable() -> None:
    """The broker alone is not enough."""
    play(
        task(receivers=2),
        Barrier(0, 1),
        BrokerHas(),
        Expect(*TAKEN_1, "barrier 1 after 0 to 1"),
        Durable(1),
        Expect("ack 1"),
    )


def test_C7_the_ack_waits_for_every_frame_up_to_the_barrier() -> None:
    """The state alone is not enough: the broker has every frame of every partition; what follows the barrier does not count."""
    play(
        task(source=True, receivers=2),
        Produces(["a"], partition=1),
        started(1),
        Produces(["b"]),
        Durable(1),
        BrokerHas(2),
        Expect(
            *("a at none to 1", "flush 1", "snapshot 1 after 0"),
            *("barrier 1 after 0 to 0", "barrier 1 after 0 to 1", "b at none to 0"),
        ),
        BrokerHas(1),
        Expect("ack 1"),
    )


def test_C7_a_task_without_outputs_waits_for_its_state_alone() -> None:
    """A sink's ack is its staged output being durable."""
    play(task(receivers=0), Barrier(0, 1), Expect("flush 1", "snapshot 1 after 0"), Durable(1), Expect("ack 1"))


def test_C7_durable_before_it_was_taken_is_a_mistake() -> None:
    """The driver says first what the snapshot is."""
    with pytest.raises(LocalError, match="before SnapshotTaken"):
        play(task(), Holds(), Barrier(0, 1), Answers(), Durable(1))


# --- P1 ------------------------------------------------------------------------------------------------------------------


def test_P1_the_next_epoch_is_read_while_a_step_runs() -> None:
    """Reading goes on, within the bound of what may wait, and nothing of it is applied."""
    story = play(
        task(limits=_waiting(25)),
        Holds(),
        Barrier(0, 1),
        Rows(0, "a"),
        Rows(0, "b"),
        Rows(0, "c"),
        Again(1),
        Expect("flush 1"),
    )
    assert (story.machine.receiver.waiting_bytes, story.position) == (20, 5)
    Answers(go_on=True).act(story)
    story.read()
    Expect("snapshot 1 after 0", "barrier 1 after 0 to 0", "seek 3", "apply a", "apply b", "apply c").act(story)
