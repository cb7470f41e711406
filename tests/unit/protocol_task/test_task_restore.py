"""Task counts that change, what a restored task begins with, and releases in the order of commits: R4, S2, C9, C11."""
# ruff: noqa: N802 -- a test carries its rule's name

import pytest

from tests.harness.task_story import (
    JOB,
    OUT,
    Barrier,
    BrokerHas,
    Durable,
    Expect,
    MayRead,
    Produces,
    Rows,
    play,
    started,
    task,
)
from tidemark.shared.model.checkpoint import MirrorRow, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, JobId
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.protocol.errors import LocalError, PeerError
from tidemark.shared.protocol.release import ReleaseMachine, ReleaseNow

SECOND = [(1, 0), (2, 1)]


def _state(watermark_ms: int, *, idle: bool = False, ended: bool = False) -> TaskProtocolState:
    return TaskProtocolState(
        input_watermark_ms=watermark_ms,
        output_watermark_ms=watermark_ms,
        idle=idle,
        ended=ended,
        processing_time_ms=watermark_ms,
    )


def test_R4_a_new_incarnation_begins_with_the_senders_watermark() -> None:
    """On every partition, from seq 0, before anything else: the lowest of its predecessors', whose holds it takes over (W1)."""
    start = task(
        receivers=2, tasks=1, generation=2, lineage=SECOND, restored={0: _state(5), 1: _state(9)}, incarnation="i2"
    )
    story = play(start, Expect("watermark 5 to 0", "watermark 5 to 1", "advance 9"))
    assert [f.header.seq for f in story.sent] == [0, 0]
    assert {f.header.edge for f in story.sent} == {"i2"}
    assert {f.header.epoch for f in story.sent} == {2}


def test_R4_a_new_incarnation_is_told_of_idleness_and_of_the_end() -> None:
    """A sender that is idle says so; one that had ended sends END again, for its receivers are new."""
    idle = {0: _state(5, idle=True), 1: _state(7, ended=True)}
    play(task(generation=2, lineage=SECOND, restored=idle, incarnation="i2"), Expect("idle 5 to 0", "advance 7"))
    ended = {0: _state(7, ended=True), 1: _state(7, ended=True)}
    play(task(generation=2, lineage=SECOND, restored=ended, incarnation="i2"), Expect("watermark 7 to 0", "end to 0"))


def test_R4_an_edge_that_stays_is_not_introduced() -> None:
    """Its receivers know what they were told."""
    first = play(task(source=True), Produces(watermark=5), started(1), Durable(1), BrokerHas())
    play(task(source=True, generation=2, lineage=SECOND, restored={0: first.snapshots[1]}), Expect())


@pytest.mark.parametrize(
    ("tasks", "index", "lowest", "highest"),
    [(2, 0, 2, 4), (2, 1, 6, 8), (3, 0, 2, 4), (3, 1, 4, 6), (3, 2, 6, 8), (8, 5, 6, 6), (1, 0, 2, 8)],
)
def test_R4_a_task_takes_the_highest_watermark_of_those_whose_key_groups_it_takes(
    tasks: int, index: int, lowest: int, highest: int
) -> None:
    """Of four old tasks with watermarks 2, 4, 6, 8: of every range that reaches into its own.

    A lower input watermark would open closed windows again. A higher output watermark would make late what a predecessor still held it
    back for: rows that may come out unmatched, timers that are set (W1).
    """
    old = {0: _state(2), 1: _state(4), 2: _state(6), 3: _state(8)}
    start = task(tasks=tasks, index=index, generation=2, lineage=SECOND, restored=old, incarnation="i2")
    story = play(start)
    assert (story.machine.input_watermark_ms, story.sent[0].header.watermark_ms) == (highest, lowest)


def test_R4_a_source_derives_its_watermark_from_the_splits_it_now_has() -> None:
    """Splits go anywhere, on edges that begin anew; only the end and processing time are taken over."""
    old = {0: _state(5), 1: _state(9, idle=True)}
    machine = play(task(source=True, generation=2, lineage=SECOND, restored=old, incarnation="i2")).machine
    assert (machine.sender.watermark_ms, machine.ended, machine.processing_time_ms) == (MIN_TIME, False, 9)
    ended = {0: _state(5, ended=True), 1: _state(9, ended=True)}
    play(task(source=True, generation=2, lineage=SECOND, restored=ended, incarnation="i2"), MayRead(may=False))


def test_R4_an_input_that_begins_anew_is_read_from_its_first_frame() -> None:
    """No channel state of the old incarnation is carried over."""
    first = play(task(), Rows(0, "a"), Barrier(0, 1), Durable(1), BrokerHas())
    state = first.snapshots[1]
    old_input = TaskProtocolState(
        inputs=tuple(type(i)(i.edge, "i0", i.resume_offset, i.channels) for i in state.inputs), outputs=state.outputs
    )
    story = play(task(senders=2, generation=2, lineage=SECOND, restored={0: old_input}), Rows(1, "b"), Rows(0, "a"),
                 Expect("apply b", "apply a"))  # fmt: skip
    assert [c.next_seq for c in story.machine.receiver.channels()] == [1, 1]


def test_R4_a_restored_sender_knows_what_its_receivers_were_told() -> None:
    """One that was idle at the checkpoint says when it is active again, though its watermark has not moved."""
    first = play(task(source=True, receivers=2), Produces(idle=True), started(1), Durable(1), BrokerHas())
    start = task(source=True, receivers=2, generation=2, lineage=SECOND, restored={0: first.snapshots[1]})
    story = play(start, Expect(), Produces(["a"]), Expect("a at none to 0", "watermark none to 1"))
    assert story.machine.sender.edges[OUT].partitions[1].idle is False


# --- releases ------------------------------------------------------------------------------------------------------------


def _row(epoch: int, predecessor: int) -> MirrorRow:
    return MirrorRow(JOB, Epoch(epoch), Epoch(predecessor), Generation(1), ())


def test_S2_a_commit_is_released_when_the_marker_is_its_predecessor() -> None:
    """One after the other, in the order of commits, empty ones too."""
    machine = ReleaseMachine(JOB, Epoch(0))
    assert machine.mirrored(_row(3, 0)) == ReleaseNow(_row(3, 0))
    assert machine.mirrored(_row(5, 3)) is None
    assert machine.mirrored(_row(9, 5)) is None
    assert machine.released(Epoch(3)) == ReleaseNow(_row(5, 3))
    assert machine.released(Epoch(5)) == ReleaseNow(_row(9, 5))
    assert machine.released(Epoch(9)) is None
    assert machine.marker == 9


def test_S2_a_missing_commit_stops_the_release() -> None:
    """A row whose predecessor is not the marker is never released, nor passed over."""
    with pytest.raises(PeerError, match="commit 5 follows 3, but the marker of this output stands at 0"):
        ReleaseMachine(JOB, Epoch(0)).mirrored(_row(5, 3))
    machine = ReleaseMachine(JOB, Epoch(0))
    machine.mirrored(_row(3, 0))
    machine.mirrored(_row(9, 5))
    with pytest.raises(PeerError, match="commit 9 follows 5"):
        machine.released(Epoch(3))


def test_S2_a_release_that_nobody_ordered_is_a_mistake() -> None:
    """The driver answers what it was told, and nothing else."""
    with pytest.raises(LocalError, match="release of 3 reported"):
        ReleaseMachine(JOB, Epoch(0)).released(Epoch(3))


def test_C9_repeats_in_the_mirror_are_harmless() -> None:
    """Rows that are released, under way or waiting are not released again; the mirror may be read from anywhere."""
    machine = ReleaseMachine(JOB, Epoch(3))
    assert machine.mirrored(_row(1, 0)) is None
    assert machine.mirrored(_row(3, 1)) is None
    assert machine.mirrored(_row(5, 3)) == ReleaseNow(_row(5, 3))
    assert machine.mirrored(_row(5, 3)) is None
    assert machine.mirrored(_row(6, 5)) is None
    assert machine.mirrored(_row(3, 1)) is None
    assert machine.mirrored(_row(6, 5)) is None
    assert machine.released(Epoch(5)) == ReleaseNow(_row(6, 5))
    assert machine.released(Epoch(6)) is None
    assert machine.mirrored(_row(6, 5)) is None


def test_C9_a_row_of_another_job_is_nothing_to_this_output() -> None:
    """Its numbers are of another history: it is neither released nor waited for, and hides no row that follows."""
    machine = ReleaseMachine(JOB, Epoch(3))
    other = MirrorRow(JobId("f" * 32), Epoch(90), Epoch(3), Generation(1), ())
    assert machine.mirrored(other) is None
    assert machine.mirrored(_row(5, 3)) == ReleaseNow(_row(5, 3))
    assert machine.mirrored(other) is None
    assert machine.released(Epoch(5)) is None


def test_C11_commits_that_wait_for_their_release_are_bounded() -> None:
    """More than the bound means that the coordinator did not hold checkpoints back."""
    machine = ReleaseMachine(JOB, Epoch(0), waiting_max=2)
    for epoch in (1, 2, 3):
        machine.mirrored(_row(epoch, epoch - 1))
    with pytest.raises(LocalError, match="2 commits wait"):
        machine.mirrored(_row(4, 3))
