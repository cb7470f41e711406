# ruff: noqa: N802 -- a test carries its rule's name
"""Checkpoints, commits and the mirror: rules C1 to C9 as the coordinator keeps them."""

from hashlib import sha256

import pytest
from msgspec import structs

from tests.unit.protocol_coordinator_support import NAME, Fate
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.ids import Epoch, Generation, TaskId, VertexId
from tidemark.shared.model.messages import (
    AbortCheckpoint,
    Ack,
    CheckpointWanted,
    CommitHint,
    StartCheckpoint,
    StartSources,
    StopProcessor,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.machine import Role
from tidemark.shared.protocol.coordinator.record import decode_kept
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings


def epochs_of(world: World) -> list[int]:
    """What has been committed."""
    return [c.epoch for c in world.store.history[world.row.job]]


def fate_of(kind: type[do.CoordinatorCommand], fate: Fate | None, times: int = 1) -> object:
    """This happens to the next so many commands of a kind, all else is done."""
    left = [times]

    def decide(command: do.CoordinatorCommand) -> Fate | None:
        if isinstance(command, kind) and left[0]:
            left[0] -= 1
            return fate
        return "done"

    return decide


def test_C1_one_in_flight() -> None:
    """No checkpoint starts while one waits for an acknowledgement, however long the interval is over."""
    world = started()
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(10_000)
    assert len(world.said(StartCheckpoint)) == 1


def test_C1_numbers_come_from_reserved_blocks() -> None:
    """A block is reserved in the row with the generation, and the next before its first number is used."""
    world = started(CoordinatorSettings(numbers_block=3))
    assert world.row.reserved == 3
    world.pass_ms(4_500)
    assert epochs_of(world) == [1, 2, 3, 4]
    assert world.row.reserved == 6


def test_C1_a_new_leader_takes_a_new_block_and_aborts() -> None:
    """A new leader goes on with the running generation, aborts what was in flight and gives out none of the old numbers."""
    world = started()
    world.acking = lambda _: False
    world.pass_ms(1_500)
    world.acking = lambda _: True
    world.crash_node(world.nodes[0])
    world.lead()
    world.pass_ms(3_000)
    assert world.row.generation == 1
    assert [c.epoch for c in world.said(AbortCheckpoint)] == [64]  # type: ignore[union-attr]
    assert epochs_of(world)[0] == 65


def test_C1_a_new_generation_takes_a_new_block() -> None:
    """Numbers that a failed generation had reserved are never given out."""
    world = started()
    world.pass_ms(2_500)
    world.fail("count")
    world.pass_ms(3_000)
    assert epochs_of(world)[:3] == [1, 2, 65]


def test_C5_the_barrier_names_the_last_commit_and_the_commit_requires_it() -> None:
    """StartCheckpoint carries p, the write expects last = p, and the row's predecessor is p."""
    world = started()
    world.pass_ms(3_500)
    assert [(c.epoch, c.committed) for c in world.said(StartCheckpoint)] == [(1, 0), (2, 1), (3, 2)]  # type: ignore[union-attr]
    commits = [c for c in world.nodes[0].log if isinstance(c, do.StoreCommit)]
    assert [(c.expected.last, c.commit.predecessor, c.commit.epoch) for c in commits] == [
        (0, 0, 1),
        (1, 1, 2),
        (2, 2, 3),
    ]


def test_C5_acks_of_an_ended_checkpoint_are_ignored() -> None:
    """Acknowledgements of an aborted checkpoint neither commit it nor count for the next one."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=1_500))
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(1_100)
    worker, task = world.holder("emit")
    late = StartCheckpoint(task.assign.job, task.assign.generation, Epoch(1), Epoch(0))
    world.pass_ms(1_700)
    assert world.said(AbortCheckpoint)
    task.ended = Epoch(0)
    world._snapshot(worker, task, late)
    world.settle()
    assert epochs_of_or_none(world) == []


def epochs_of_or_none(world: World) -> list[int]:
    """What has been committed, perhaps nothing."""
    return [c.epoch for c in world.store.history.get(world.row.job, [])]


def test_C7_every_task_must_acknowledge() -> None:
    """Nothing is committed while one task's acknowledgement is missing."""
    world = started(parallelism={"sink": 2})
    world.acking = lambda task: task.id != TaskId(VertexId("emit"), 1)
    world.pass_ms(3_000)
    assert epochs_of_or_none(world) == []


def test_C7_acks_of_another_worker_do_not_count() -> None:
    """An acknowledgement by a worker that does not hold the task in this generation changes nothing (R2)."""
    world = started()
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(1_500)
    _, task = world.holder("emit")
    stranger = world.worker("sink-9", "sink")
    world._snapshot(stranger, task, StartCheckpoint(task.assign.job, task.assign.generation, Epoch(1), Epoch(0)))
    world.settle()
    assert epochs_of_or_none(world) == []


def test_C7_much_inline_state_moves_into_blobs_before_the_commit() -> None:
    """Beyond the limit the largest states go into one blob a task, and the row refers to ranges of it."""
    world = started(CoordinatorSettings(inline_bytes_max=25))
    world.inline = b"0123456789"
    world.pass_ms(1_500)
    commit = world.store.history[world.row.job][0]
    moved = [p for h in commit.tasks for p in h.parts if p.blob is not None]
    assert [p.inline for h in commit.tasks for p in h.parts].count(b"0123456789") == 2
    assert len(moved) == 1
    assert moved[0].blob is not None
    data = world.blobs[moved[0].blob.name]
    assert data[moved[0].offset : moved[0].offset + moved[0].length] == b"0123456789"
    assert moved[0].blob.digest == sha256(data).hexdigest()


def test_C7_little_inline_state_stays_in_the_row() -> None:
    """Up to the limit nothing is moved."""
    world = started(CoordinatorSettings(inline_bytes_max=30))
    world.inline = b"0123456789"
    world.pass_ms(1_500)
    assert not [c for c in world.nodes[0].log if isinstance(c, do.WriteBlobs)]


def test_C8_after_an_ambiguous_answer_leadership_is_taken_and_nothing_else_is_done() -> None:
    """Until the store has been read again nothing is aborted, deleted, published or written."""
    world = started()
    world.pass_ms(1_500)
    world.fate = lambda c: None if isinstance(c, do.StoreCommit) else "done"
    world.pass_ms(1_000)
    node = world.nodes[0]
    commit = next(c for c in node.todo if isinstance(c, do.StoreCommit))
    assert world.give(node, ev.StoreAmbiguous(world.now_ms, commit.op)) == [
        do.TakeLeadership(f"the answer to write {commit.op} was lost")
    ]
    world.now_ms += 600_000
    assert world.give(node, ev.Tick(world.now_ms)) == []
    assert node.machine.role is Role.RETAKES


def test_C8_an_ambiguous_commit_that_happened_is_mirrored_and_not_aborted() -> None:
    """What the store turns out to have is released; the generation goes on from it."""
    world = started()
    world.fate = fate_of(do.StoreCommit, "ambiguous-done")  # type: ignore[assignment]
    world.pass_ms(4_000)
    assert epochs_of(world)[0] == 1
    assert world.mirror[0].epoch == 1
    assert world.row.generation == 1


def test_C8_an_ambiguous_commit_that_did_not_happen_is_given_up() -> None:
    """Its number is not used again, and its handles reach nobody."""
    world = started()
    world.fate = fate_of(do.StoreCommit, "ambiguous-lost")  # type: ignore[assignment]
    world.pass_ms(4_000)
    assert epochs_of(world)[0] == 65
    assert 1 not in [m.epoch for m in world.mirror]


def test_C8_a_new_leader_does_not_abort_what_is_committed() -> None:
    """If all that was reserved is committed there is nothing to abort."""
    world = started(CoordinatorSettings(numbers_block=1))
    world.pass_ms(1_500)
    assert world.row.reserved == world.row.last
    world.crash_node(world.nodes[0])
    world.lead()
    world.pass_ms(500)
    assert not world.said(AbortCheckpoint)


def test_C8_a_stale_write_is_not_repeated() -> None:
    """Another has changed the row: read it again, as a leader of a new term."""
    world = started()
    world.store.lead()
    world.pass_ms(1_200)
    assert [c for c in world.nodes[0].log if isinstance(c, do.TakeLeadership)]


def test_C8_an_outage_of_the_store_is_waited_out() -> None:
    """A write that did not happen is decided again; the checkpoint is committed in the end."""
    world = started()
    world.fate = fate_of(do.StoreCommit, "away", 3)  # type: ignore[assignment]
    world.pass_ms(4_000)
    assert epochs_of(world)[0] == 1
    assert world.row.generation == 1


def test_C9_hint_and_mirror_only_after_the_commit() -> None:
    """While the write is unanswered nobody hears of the commit."""
    world = started()
    worker, task = world.holder("read")
    world.report(worker, CheckpointWanted(worker.incarnation, task.assign.job, task.assign.generation))
    world.fate = lambda c: None if isinstance(c, do.StoreCommit) else "done"
    world.pass_ms(1_500)
    assert not world.mirror
    assert not world.said(CommitHint)
    world.fate = lambda _: "done"
    world.settle()
    assert world.mirror[0].epoch == 1
    assert world.said(CommitHint)


def test_C9_the_mirror_row_has_handles_and_digests_without_state() -> None:
    """Sinks' staged handles, their SHA-256, predecessor; nothing of other tasks."""
    world = started()
    world.pass_ms(1_500)
    (handle,) = world.mirror[0].handles
    assert (handle.vertex, handle.staged) == ("emit", b"emit/0:1")
    assert handle.digest == sha256(b"emit/0:1").hexdigest()


def test_C9_each_row_only_after_the_previous_append() -> None:
    """Commits go on while the mirror does not answer, but the next row waits for it."""
    world = started()
    world.fate = lambda c: None if isinstance(c, do.AppendMirror) else "done"
    world.pass_ms(3_500)
    assert len(epochs_of(world)) == 3
    assert [c.row.epoch for c in world.nodes[0].log if isinstance(c, do.AppendMirror)] == [1]
    world.fate = lambda _: "done"
    world.settle()
    assert [m.epoch for m in world.mirror] == [1, 2, 3]


def test_C9_a_failed_append_is_repeated_before_the_next() -> None:
    """It is not known whether it is there: it comes again, first."""
    world = started()
    world.fate = fate_of(do.AppendMirror, "ambiguous-done")  # type: ignore[assignment]
    world.pass_ms(3_500)
    assert [m.epoch for m in world.mirror][:3] == [1, 1, 2]


def test_C9_at_its_start_a_leader_appends_what_the_mirror_lacks() -> None:
    """Commits whose rows the last leader did not append are appended, in order."""
    world = started()
    world.fate = lambda c: None if isinstance(c, do.AppendMirror) else "done"
    world.pass_ms(3_500)
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.settle()
    assert [m.epoch for m in world.mirror] == [1, 2, 3]


@pytest.mark.parametrize("seen", ["a marker", "a generation"])
def test_C8_a_leader_decides_nothing_once_others_have_seen_more_than_its_store_has(seen: str) -> None:
    """Another leads, or the store has lost it: the row of an older copy stays as it is, so that the newest may come back."""
    world = started()
    world.pass_ms(1_500)
    world.releasing = False
    if seen == "a marker":
        world.markers[world.row.job, VertexId("emit"), 0] = Epoch(9)
    else:
        world.store.rows[NAME] = structs.replace(world.row, generation=Generation(0))
        world.nodes[0].machine.processors[NAME].state.row = world.row
    before, decided = world.row, len(world.nodes[0].log)
    world.pass_ms(3_000)
    assert world.row == before
    found = [c for c in world.nodes[0].log[decided:] if not isinstance(c, do.PublishStatus)]
    assert [type(c) for c in found] == [do.ProveLeadership]
    said = found[0].contradiction  # type: ignore[union-attr]
    assert said.startswith(f"has 1 of job {before.job}" if seen == "a marker" else f"has 0 of job {before.job}")


def test_F8_a_task_may_ask_for_a_checkpoint() -> None:
    """It starts before the interval is over."""
    world = started(CoordinatorSettings(checkpoint_interval_ms=50_000))
    worker, task = world.holder("read")
    world.report(worker, CheckpointWanted(worker.incarnation, task.assign.job, task.assign.generation))
    world.settle()
    assert len(epochs_of(world)) == 1


def test_C9_a_commit_that_nobody_asked_for_is_told_by_the_next_start() -> None:
    """A message less wakes every worker once less; the last one before a stop is told, and one with the next start far off."""
    far = started(CoordinatorSettings(checkpoint_interval_ms=5_000))
    far.pass_ms(6_000)
    assert [c.epoch for c in far.said(CommitHint)] == [1]  # type: ignore[union-attr]
    world = started()
    world.pass_ms(2_500)
    starts = [(c.epoch, c.committed) for c in world.said(StartCheckpoint) if isinstance(c, StartCheckpoint)]
    assert starts == [(1, 0), (2, 1)]
    assert not world.said(CommitHint)
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(1_500)
    assert [c.epoch for c in world.said(CommitHint)] == [3]  # type: ignore[union-attr]


def _told(world: World) -> list[tuple[int, int]]:
    return [(c.ended, c.took_ms) for c in world.said(StartCheckpoint) if isinstance(c, StartCheckpoint)]


def _late(world: World) -> list[tuple[int, int]]:
    return [(c.late, c.late_ms) for c in world.said(StartCheckpoint) if isinstance(c, StartCheckpoint)]


def test_F9_each_start_tells_how_long_an_epoch_took() -> None:
    """It is the last one that was released everywhere, from its start to its release."""
    world = started()
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(1_500)
    world.releasing = False
    world.acking = lambda _: True
    worker, task = world.holder("emit")
    world._snapshot(worker, task, StartCheckpoint(task.assign.job, task.assign.generation, Epoch(1), Epoch(0)))
    world.pass_ms(300)
    world.releasing = True
    world.pass_ms(1_500)
    (ended, took_ms), *_ = [told for told in _told(world) if told != (0, 0)]
    assert ended == 1
    assert 600 <= took_ms <= 1_000


def test_F9_a_release_that_goes_on_for_too_long_is_told() -> None:
    """Beyond the target a start tells how long it has been until now, and the next one more."""
    world = started(CoordinatorSettings(epoch_target_ms=2_000))
    world.releasing = False
    world.pass_ms(6_500)
    told = _late(world)
    assert told[:3] == [(0, 0)] * 3
    assert set(_told(world)) == {(0, 0)}
    assert [ended for ended, _ in told[3:]] == [1] * len(told[3:])
    assert [ms for _, ms in told[3:]] == sorted({ms for _, ms in told[3:]})
    assert told[3][1] > 2_000


def test_F9_sources_hear_of_target_and_first_epoch() -> None:
    """The interval counts where it is longer, at most a third of the time-out; before operators and after failures epochs begin small."""
    for interval_ms, target_ms in ((1_000, 5_000), (9_000, 9_000), (50_000, 20_000)):
        world = started(CoordinatorSettings(checkpoint_interval_ms=interval_ms))
        (start,) = world.said(StartSources)
        assert isinstance(start, StartSources)
        assert (start.target_ms, start.first_rows) == (target_ms, 1_000)
    world = started()
    for _ in range(3):
        world.fail("count")
        world.pass_ms(5_000)
        if world.row.failures:
            break
    starts = [c for c in world.said(StartSources) if isinstance(c, StartSources)]
    assert starts[1].first_rows == 100
    world = started(document="read:source emit:sink; read>emit")
    (start,) = world.said(StartSources)
    assert isinstance(start, StartSources)
    assert start.first_rows == 10_000


def test_kept_survives_its_bytes() -> None:
    """What a leader keeps beside the row is read back by the next one."""
    world = started(parallelism={"sink": 2})
    world.pass_ms(2_500)
    kept = decode_kept(world.row.extra)
    assert kept.identities == (("emit", 0), ("emit", 1))
    assert kept.commits == 2


def test_repeated_acks_change_nothing() -> None:
    """The first acknowledgement of a task stands."""
    world = started()
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(1_500)
    worker, task = world.holder("count")
    flight = world.nodes[0].machine.processors[NAME].state.flight
    assert flight is not None
    first = flight.acks[task.id]
    other = structs.replace(first, staged=b"other")
    ack = Ack(worker.incarnation, task.assign.job, task.assign.generation, flight.epoch, other)
    world.report(worker, ack)
    world.settle()
    assert flight.acks[task.id] is first


def test_the_driver_can_ask_when_time_makes_the_next_decision() -> None:
    """The start of the next checkpoint, also while one is in flight: short epochs do not wait for a coarse tick; then nothing."""
    world = started(CoordinatorSettings(checkpoint_interval_ms=700))
    machine = world.nodes[0].machine
    assert machine.due_ms() == world.now_ms + 700
    world.acking = lambda _: False
    world.pass_ms(800)
    flight = machine.processors[NAME].state.flight
    assert flight is not None
    assert machine.due_ms() == flight.started_ms + 700
    world.pass_ms(700)
    assert machine.due_ms() is None
