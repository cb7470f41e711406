"""Frames on channels: F1, F2, F3, F4, F7, F8."""
# ruff: noqa: N802 -- a test carries its rule's name

import pytest

from tests.harness.task_story import (
    OUT,
    Again,
    Answers,
    Barrier,
    BrokerHas,
    Durable,
    Event,
    Expect,
    Holds,
    Lie,
    MayRead,
    Produces,
    Rows,
    Story,
    committed,
    emission,
    play,
    started,
    task,
    ticked,
)
from tidemark.shared.model.checkpoint import TaskProtocolState
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.protocol.errors import PeerError
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.protocol.task.start import TaskLimits


def _snapshot_behind_a_barrier() -> tuple[Story, TaskProtocolState]:
    story = play(
        task(senders=2),
        Rows(0, "a"),
        Barrier(0, 1),
        Rows(0, "ahead"),
        Rows(1, "b"),
        Barrier(1, 1),
        Durable(1),
        BrokerHas(),
    )
    return story, story.snapshots[1]


def test_F1_a_repeat_is_dropped() -> None:
    """A frame that a sender writes again after an error takes effect once."""
    story = play(
        task(), Rows(0, "a"), Rows(0, "b"), Again(0), Again(1), Rows(0, "c"), Expect("apply a", "apply b", "apply c")
    )
    assert story.machine.drops == {"repeated": 2}


def test_F1_a_gap_fails_the_task() -> None:
    """A hole in a channel is never read over."""
    with pytest.raises(PeerError, match=r"expected seq 1; 2 frames are missing"):
        play(task(), Rows(0, "a"), Rows(0, "d", lie=Lie(seq=3)))


def test_F1_seq_in_a_snapshot_is_counted_behind_its_barrier() -> None:
    """Frames that ran ahead of the snapshot are not part of it."""
    _, state = _snapshot_behind_a_barrier()
    assert [c.next_seq for c in state.inputs[0].channels] == [2, 2]


def test_F1_a_repeat_of_before_the_restore_is_dropped() -> None:
    """What the generation that took the snapshot wrote up to its barrier is read again and dropped; what follows counts."""
    before, state = _snapshot_behind_a_barrier()
    start = task(senders=2, generation=2, lineage=[(1, 0), (2, 1)], restored={0: state})
    story = play(start, Rows(0, "again"), Expect("apply again"), log=before.log)
    assert story.machine.drops == {"repeated": 2, "discarded_by_lineage": 1}


def test_F1_a_repeat_from_a_newer_generation_is_an_error() -> None:
    """A sender that was restored from another snapshot than this receiver is found out."""
    before, state = _snapshot_behind_a_barrier()
    start = task(senders=2, generation=2, lineage=[(1, 0), (2, 1)], restored={0: state})
    with pytest.raises(PeerError, match="different checkpoints"):
        play(start, Rows(0, "x", lie=Lie(seq=1)), log=before.log)


def test_F1_seq_goes_on_over_a_restore() -> None:
    """A sender's first frame after a restore has the seq behind BARRIER n."""
    before, state = _snapshot_behind_a_barrier()
    start = task(senders=2, generation=2, lineage=[(1, 0), (2, 1)], restored={0: state})
    story = play(start, Rows(0, "x"), emits={"apply x": [emission("y")]}, log=before.log)
    assert [f.header.seq for f in story.sent] == [before.sent[-1].header.seq + 1]


def test_F2_frames_of_a_partition_leave_in_order_of_seq() -> None:
    """The commands name every seq of every partition once, in order."""
    story = play(
        task(source=True, receivers=2),
        Produces(["a", "b"]),
        Produces(["c"], watermark=3, partition=1),
        ticked(1),
        started(1),
        Produces(["d"], watermark=5),
        Produces(ended=True, watermark=7),
    )
    for partition in (0, 1):
        seqs = [seq for p, seq in story.unacked if p == partition]
        assert seqs == list(range(len(seqs)))
        assert len(seqs) > 3


def test_F3_a_frame_is_of_the_epoch_behind_its_senders_last_barrier() -> None:
    """Epochs count from the last barrier written, whichever number it has."""
    story = play(task(source=True), Produces(["a"]), started(1), Produces(["b"]), started(7), Produces(["c"]))
    assert [f.header.epoch for f in story.sent] == [1, 1, 2, 7, 8]


def test_F3_a_frame_of_another_epoch_is_refused() -> None:
    """A frame whose epoch contradicts its channel's barriers fails the task."""
    with pytest.raises(PeerError, match=r"last barrier was 1 \(F3\)"):
        play(task(), Barrier(0, 1), Rows(0, "a", lie=Lie(epoch=1)))
    with pytest.raises(PeerError, match=r"last barrier was 2 \(F3\)"):
        play(task(), Barrier(0, 2), Barrier(0, 2))


def test_F4_a_watermark_counts_behind_the_frames_own_rows() -> None:
    """While rows are being applied, the input watermark is still the one before them."""
    story = play(task(), Holds(), Rows(0, "a", watermark=5), Expect("apply a"))
    assert [c.progress.watermark_ms for c in story.machine.receiver.channels()] == [MIN_TIME]
    Answers(go_on=True).act(story)
    Expect("advance 5").act(story)


def test_F4_only_the_last_frame_of_an_output_says_its_watermark() -> None:
    """Rows that come out together are all on time by the watermark that they come out with."""
    play(
        task(source=True),
        Produces(["a", "b", "c"], watermark=9),
        Expect("a at none to 0", "b at none to 0", "c at 9 to 0"),
    )


def test_F7_no_input_while_too_much_is_unread() -> None:
    """A sender waits for the slowest reader once it is more than W ahead, and goes on when that one has read."""
    play(
        task(source=True, receivers=2, limits=TaskLimits(ahead_bytes_max=15)),
        Produces(["a"], partition=0),
        Produces(["b"], partition=1),
        MayRead(may=True),
        Produces(["c"], partition=1),
        MayRead(may=False),
        BrokerHas(),
        Event(ev.ReadUpTo(OUT, 0, Offset(3))),
        MayRead(may=False),
        Event(ev.ReadUpTo(OUT, 1, Offset(2))),
        MayRead(may=True),
    )


def test_F7_a_read_report_may_overtake_the_brokers_answer() -> None:
    """A frame counts as read once both its offset and the report are known, in either order."""
    play(
        task(source=True, limits=TaskLimits(ahead_bytes_max=5)),
        Produces(["a"]),
        Event(ev.ReadUpTo(OUT, 0, Offset(1))),
        MayRead(may=False),
        BrokerHas(),
        MayRead(may=True),
    )


def test_F7_what_is_unread_counts_on_behind_a_restore() -> None:
    """Up to the snapshot's barrier, until the receiver has read it: else each generation could be W ahead of the one before."""
    limits = TaskLimits(ahead_bytes_max=15)
    story = play(
        task(source=True, receivers=2, limits=limits),
        Produces(["a", "b"], partition=1),
        started(1),
        Durable(1),
        BrokerHas(),
        Expect(
            *("a at none to 1", "b at none to 1", "flush 1", "snapshot 1 after 0"),
            *("barrier 1 after 0 to 0", "barrier 1 after 0 to 1", "ack 1"),
        ),
    )
    state = story.snapshots[1]
    assert [o.unread for o in state.outputs] == [((0, Offset(0)), (20, Offset(1)))]
    play(
        task(source=True, receivers=2, limits=limits, generation=2, lineage=[(1, 0), (2, 1)], restored={0: state}),
        MayRead(may=False),
        Event(ev.ReadUpTo(OUT, 1, Offset(1))),
        MayRead(may=False),
        Event(ev.ReadUpTo(OUT, 1, Offset(2))),
        MayRead(may=True),
    )


def test_F7_a_snapshot_has_nothing_of_what_is_read_or_behind_its_barrier() -> None:
    """What the receiver took meanwhile is gone from it, and rows behind the barrier are written anew."""
    story = play(
        task(source=True),
        Produces(["a"]),
        started(1),
        Produces(["b"]),
        BrokerHas(),
        Event(ev.ReadUpTo(OUT, 0, Offset(1))),
        Durable(1),
    )
    assert [o.unread for o in story.snapshots[1].outputs] == [()]


def test_F7_markers_are_exempt() -> None:
    """A sender that may take no input still writes barriers, and they use none of its allowance."""
    story = play(
        task(source=True, limits=TaskLimits(ahead_bytes_max=15)),
        Produces(["a", "b"], watermark=1),
        MayRead(may=False),
        started(1),
        Expect("a at none to 0", "b at 1 to 0", "flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
    )
    assert story.machine.sender.edges[OUT].partitions[0].unread_bytes == 20


def test_F8_no_input_while_too_much_is_uncommitted() -> None:
    """A source that has sent more than V since the last commit asks, once, for a checkpoint and waits for its commit."""
    play(
        task(source=True, limits=TaskLimits(uncommitted_bytes_max=15)),
        Produces(["a"]),
        MayRead(may=True),
        Produces(["b"]),
        ticked(1),
        Expect("a at none to 0", "b at none to 0", "ask"),
        MayRead(may=False),
        started(1),
        Expect("flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
        MayRead(may=False),
        committed(1),
        MayRead(may=True),
    )


def test_F8_what_follows_the_barrier_stays_uncommitted() -> None:
    """A commit frees what lies in front of its barrier and nothing behind it; the source then asks again."""
    play(
        task(source=True, limits=TaskLimits(uncommitted_bytes_max=15)),
        Produces(["a"]),
        started(1),
        Produces(["b", "c"]),
        committed(1),
        Expect(
            *("a at none to 0", "flush 1", "snapshot 1 after 0", "barrier 1 after 0 to 0"),
            *("b at none to 0", "c at none to 0", "ask", "ask"),
        ),
        MayRead(may=False),
    )


def test_F8_no_input_while_checkpoints_are_held_back() -> None:
    """While C11 holds checkpoints back a source takes nothing in."""
    play(
        task(source=True),
        Event(ev.InputHeld(held=True)),
        MayRead(may=False),
        Event(ev.InputHeld(held=False)),
        MayRead(may=True),
    )
