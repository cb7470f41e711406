# ruff: noqa: N802 -- a test carries its rule's name
"""Checkpoints, commits, the mirror and retention: rules C1 to C12 as the coordinator keeps them."""

from hashlib import sha256

from msgspec import structs

from shared.model.checkpoint import MirrorRow
from shared.model.ids import Epoch, TaskId, VertexId
from shared.model.messages import (
    AbortCheckpoint,
    Ack,
    CheckpointWanted,
    CommitHint,
    HoldInput,
    StartCheckpoint,
    StopTasks,
)
from shared.protocol.coordinator import commands as do
from shared.protocol.coordinator import events as ev
from shared.protocol.coordinator.machine import Role
from shared.protocol.coordinator.record import decode_kept
from shared.protocol.coordinator.retention import blob_may_go
from shared.protocol.coordinator.settings import CoordinatorSettings
from tests.unit.protocol_coordinator_support import NAME, Fate, World, started


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
    world.fate = lambda c: None if isinstance(c, do.StoreCommit) else "done"
    world.pass_ms(1_500)
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
    world.fate = lambda c: None if isinstance(c, do.StoreCommit) else "done"
    world.pass_ms(1_500)
    assert not world.mirror
    assert not world.said(CommitHint)
    world.fate = lambda _: "done"
    world.settle()
    assert [m.epoch for m in world.mirror] == [1]
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


def test_C9_a_mirror_above_the_store_stops_the_processor_naming_both() -> None:
    """SQL has lost a commit: FAILED with both numbers, and no start before that is mended."""
    world = started()
    world.pass_ms(2_500)
    world.mirror.append(MirrorRow(world.row.job, Epoch(7), Epoch(2), world.row.generation, ()))
    world.lead()
    world.pass_ms(300)
    assert world.row.state == "FAILED"
    assert "checkpoint 7" in world.row.reason
    assert "store's last is 2" in world.row.reason
    assert world.said(StopTasks)


def test_C9_a_marker_above_the_store_stops_the_processor() -> None:
    """A sink that has released more than SQL has committed means the same."""
    world = started()
    world.pass_ms(1_500)
    world.releasing = False
    world.markers[world.row.job, VertexId("emit"), 0] = Epoch(9)
    world.pass_ms(300)
    assert world.row.state == "FAILED"
    assert "9" in world.row.reason


def test_C10_a_checkpoint_that_times_out_is_aborted_everywhere() -> None:
    """By the monotonic clock; the next one gets another number."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=2_000))
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(3_500)
    assert [c.epoch for c in world.said(AbortCheckpoint)] == [1]  # type: ignore[union-attr]
    assert [c.epoch for c in world.said(StartCheckpoint)] == [1, 2]  # type: ignore[union-attr]


def test_C10_after_k_timeouts_the_generation_fails_and_after_k_generations_the_processor() -> None:
    """Failures are counted in the row; the reason says what was waited for."""
    settings = CoordinatorSettings(
        checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=2, failures_max=2, backoff_base_ms=100
    )
    world = started(settings)
    world.acking = lambda task: task.assign.vertex != "emit"
    world.pass_ms(6_000)
    assert (world.row.generation, world.row.failures) == (2, 1)
    world.pass_ms(6_000)
    assert world.row.state == "FAILED"
    assert "emit/0" in world.row.reason
    assert world.status[NAME].state == "FAILED"


def test_C10_failures_outlive_the_leader() -> None:
    """The count lies in SQL: a new leader goes on counting."""
    world = started(CoordinatorSettings(failures_max=2, backoff_base_ms=100))
    world.fail("count")
    world.pass_ms(500)
    assert world.row.failures == 1
    world.crash_node(world.nodes[0])
    world.lead()
    world.pass_ms(300)
    world.fail("count")
    world.pass_ms(300)
    assert world.row.state == "FAILED"


def test_C10_back_off_grows() -> None:
    """The second failure waits longer than the first."""
    world = started(CoordinatorSettings(backoff_base_ms=1_000, failures_max=9))
    world.fail("count")
    world.pass_ms(900)
    assert world.row.generation == 1
    world.pass_ms(300)
    assert world.row.generation == 2
    world.fail("count")
    world.pass_ms(1_800)
    assert world.row.generation == 2
    world.pass_ms(400)
    assert world.row.generation == 3


def test_C10_a_commit_ends_the_count() -> None:
    """Generations in a row without a commit, not failures in a life."""
    world = started(CoordinatorSettings(backoff_base_ms=100, failures_max=2))
    for _ in range(4):
        world.pass_ms(2_000)
        world.fail("count")
        world.pass_ms(500)
    assert world.row.state != "FAILED"
    assert world.row.generation == 5


def test_C10_outages_and_lost_workers_do_not_count() -> None:
    """Neither a task that says outage nor a lost worker brings FAILED nearer."""
    world = started(CoordinatorSettings(backoff_base_ms=100, failures_max=2, backoff_max_ms=200))
    for _ in range(4):
        world.fail("count", outage=True)
        world.pass_ms(600)
    worker, _ = world.holder("count")
    world.worker(worker.place, worker.service)
    world.pass_ms(600)
    assert (world.row.failures, world.row.generation) == (0, 6)


def test_C10_a_timeout_during_an_outage_does_not_count() -> None:
    """The checkpoint is aborted, but the generation goes on."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=1))
    world.acking = lambda _: False
    world.pass_ms(2_000)
    world.give(world.nodes[0], ev.OutageSeen(world.now_ms))
    world.pass_ms(1_500)
    assert world.said(AbortCheckpoint)
    assert (world.row.generation, world.row.failures) == (1, 0)


def test_C11_when_too_many_wait_for_release_no_checkpoint_starts() -> None:
    """Sources are held, and go on when sinks have released."""
    world = started(CoordinatorSettings(unreleased_max=2))
    world.releasing = False
    world.pass_ms(8_000)
    assert len(epochs_of(world)) == 3
    assert [c.held for c in world.said(HoldInput)] == [True]  # type: ignore[union-attr]
    world.releasing = True
    world.pass_ms(2_000)
    assert len(epochs_of(world)) > 3
    assert [c.held for c in world.said(HoldInput)][:2] == [True, False]  # type: ignore[union-attr]


def test_C11_unreleased_checkpoints_are_retained() -> None:
    """Commit rows go only when they are neither the last nor waiting."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.pass_ms(2_500)
    world.releasing = False
    world.pass_ms(2_000)
    assert [c.epoch for c in world.store.commits[world.row.job]][-2:] == [3, 4]
    world.releasing = True
    world.pass_ms(3_000)
    assert world.store.commits[world.row.job][0].epoch >= 6


def test_C11_named_checkpoints_are_retained() -> None:
    """A checkpoint that a user named stays, and so do its blobs."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.pass_ms(1_500)
    state = world.nodes[0].machine.processors[NAME].state
    state.kept = structs.replace(state.kept, named=(Epoch(1),))
    named = world.store.history[world.row.job][0]
    world.pass_ms(6_000)
    assert world.store.commits[world.row.job][0].epoch == 1
    assert all(b.name in world.blobs for h in named.tasks for b in h.blobs)


def test_C12_blobs_go_by_reachability() -> None:
    """What no retained checkpoint lists goes, what one lists stays, what is newer stays."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    job = world.row.job
    world.blobs[f"{job}/count/1/1/left-over"] = b""
    world.blobs[f"{job}/count/1/900/upload"] = b""
    world.pass_ms(8_000)
    assert f"{job}/count/1/1/left-over" not in world.blobs
    assert f"{job}/count/1/900/upload" in world.blobs
    last = world.store.history[job][-1]
    assert {b.name for h in last.tasks for b in h.blobs} <= world.blobs.keys()
    assert len(world.blobs) < 30


def test_C12_only_names_that_say_their_epoch_are_deleted() -> None:
    """Another job's names, names of another form, listed ones and newer ones are not meant."""
    keep = frozenset({"j/v/1/1/kept"})
    names = ["j/v/1/1/a", "j/v/1/1/kept", "j/v/1/5/b", "k/v/1/1/a", "j/readme", "j/v/1/x/a"]
    assert [n for n in names if blob_may_go(n, "j", Epoch(4), keep)] == ["j/v/1/1/a"]  # type: ignore[arg-type]


def test_C12_log_records_go_below_the_lowest_offset_to_resume_from() -> None:
    """The floor is that of the oldest retained checkpoint, not of the last one."""
    world = started(CoordinatorSettings(cleanup_interval_ms=100))
    world.releasing = False
    world.pass_ms(3_500)
    floors = {f.offset for c in world.nodes[0].log if isinstance(c, do.DeleteRecords) for f in c.floors}
    assert floors == {10}
    world.releasing = True
    world.pass_ms(3_000)
    assert max(world.floors.values()) >= 40


def test_F8_a_task_may_ask_for_a_checkpoint() -> None:
    """It starts before the interval is over."""
    world = started(CoordinatorSettings(checkpoint_interval_ms=50_000))
    worker, task = world.holder("read")
    world.report(worker, CheckpointWanted(worker.incarnation, task.assign.job, task.assign.generation))
    world.settle()
    assert len(epochs_of(world)) == 1


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
