# ruff: noqa: N802 -- a test carries its rule's name
"""Time-outs, failures, back-off, retention and deletion: rules C10 to C12 as the coordinator keeps them."""

import pytest
from msgspec import structs

from tests.unit.protocol_coordinator_support import NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.checkpoint import BlobRef, CommitRow, MirrorRow, PartHandle, TaskHandle, TaskProtocolState
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import TASK_PART, Epoch, Generation, JobId, Offset, VertexId
from tidemark.shared.model.messages import (
    AbortCheckpoint,
    HoldInput,
    StartCheckpoint,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.mirror import Mirror
from tidemark.shared.protocol.coordinator.record import KeptCheckpoint
from tidemark.shared.protocol.coordinator.retention import Retained, audits_kept, blob_may_go, blobs_kept
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.coordinator.state import ProcessorState


def epochs_of(world: World) -> list[int]:
    """What has been committed."""
    return [c.epoch for c in world.store.history[world.row.job]]


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
    """Generations in a row that have not read on, not failures in a life."""
    world = started(CoordinatorSettings(backoff_base_ms=100, failures_max=1))
    for _ in range(4):
        world.pass_ms(2_000)
        world.fail("count")
        world.pass_ms(500)
    assert world.row.state != "FAILED"
    assert world.row.generation == 5


def test_C10_a_commit_that_has_read_nothing_does_not_end_the_count() -> None:
    """An empty checkpoint comes before the record that fails each time; a new leader counts on. One that lived for long is none of them."""
    settings = CoordinatorSettings(backoff_base_ms=100, failures_max=4, steady_ms=20_000)
    world = started(settings)
    world.pass_ms(2_000)
    world.reads = False
    world.fail("count")
    world.pass_ms(2_000)
    assert (world.row.generation, world.row.failures) == (2, 0), "the first one had read"
    last = world.row.last
    for failures in (1, 2):
        world.fail("count")
        world.pass_ms(3_000)
        assert (world.row.failures, world.row.state) == (failures, "RUNNING")
    assert world.row.last > last
    world.pass_ms(20_000)
    world.fail("count")
    world.pass_ms(3_000)
    assert (world.row.failures, world.row.state) == (2, "RUNNING")
    world.crash_node(world.nodes[0])
    world.lead()
    for _ in range(2):
        world.pass_ms(3_000)
        world.fail("count")
    world.pass_ms(500)
    assert world.row.state == "FAILED"
    assert "4 generations in a row ended before a checkpoint had read on" in world.row.reason


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


def test_what_an_outage_says_is_shown_until_a_commit() -> None:
    """While a processor waits an outage out, its status tells of what; no longer when it has committed again."""
    world = started()
    world.pass_ms(1_500)
    world.fail("count", outage=True)
    world.settle()
    assert world.status[NAME].state == "STARTING"
    assert "waits until an outage is over" in world.status[NAME].reason
    assert "it broke" in world.status[NAME].reason
    world.pass_ms(30_000)
    assert (world.status[NAME].state, world.status[NAME].reason) == ("RUNNING", "")


def test_C10_a_timeout_during_an_outage_does_not_count() -> None:
    """The checkpoint is aborted, but the generation goes on."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=1))
    world.acking = lambda _: False
    world.pass_ms(2_000)
    world.give(world.nodes[0], ev.OutageSeen(world.now_ms))
    world.pass_ms(1_500)
    assert world.said(AbortCheckpoint)
    assert (world.row.generation, world.row.failures) == (1, 0)


WAITS = (Wait("target", "staging 3", "kafka", 0, "nobody answers"),)


def test_C10_a_timeout_of_a_task_that_waits_does_not_count() -> None:
    """It told that its target does not answer: the checkpoint is aborted, the generation goes on, until it waits no more."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=1))
    world.acking = lambda task: task.assign.vertex != "emit"
    world.waiting = {"emit": WAITS}
    world.pass_ms(20_000)
    assert world.said(AbortCheckpoint)
    assert (world.row.generation, world.row.failures) == (1, 0)
    world.waiting = {}
    world.pass_ms(10_000)
    assert world.row.generation > 1


def test_C10_a_timeout_of_another_task_counts() -> None:
    """That a sink waits excuses nobody who was late with something else."""
    world = started(CoordinatorSettings(checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=1))
    world.acking = lambda task: task.assign.vertex == "emit"
    world.waiting = {"emit": WAITS}
    world.pass_ms(10_000)
    assert world.row.generation > 1


def test_C10_a_restore_that_a_task_waits_in_does_not_count() -> None:
    """A target that is away when a processor starts: it is tried again for as long as that lasts."""
    world = started(
        CoordinatorSettings(restore_timeout_ms=3_000, backoff_base_ms=100, backoff_max_ms=200, failures_max=2)
    )
    world.pass_ms(1_500)
    world.waiting = {"emit": WAITS}
    world.restoring = lambda task: task.assign.vertex != "emit"
    world.fail("emit", outage=True)
    world.pass_ms(30_000)
    assert world.row.generation > 3
    assert (world.row.failures, world.row.state == "FAILED") == (0, False)


def test_C10_a_restore_that_an_outage_delays_does_not_count() -> None:
    """The generation fails, but not towards FAILED."""
    world = started(CoordinatorSettings(restore_timeout_ms=1_000, backoff_base_ms=100))
    world.pass_ms(1_500)
    worker, _ = world.holder("count")
    world.fail("emit")
    world.pass_ms(100)
    worker.inbox.clear()
    world.fate = lambda c: None if isinstance(c, do.Publish) else "done"
    world.pass_ms(500)
    world.give(world.nodes[0], ev.OutageSeen(world.now_ms))
    world.pass_ms(1_000)
    assert world.row.generation == 3
    assert world.row.failures == 0


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


def test_C11_what_waited_for_its_release_goes_behind_it_though_nothing_is_committed_any_more() -> None:
    """The last commits of a processor came faster than rounds, and were released behind the last one: rows and blobs go all the same."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    job = world.row.job
    world.releasing = False
    world.pass_ms(2_500)
    assert len(world.store.commits[job]) > 1
    world.acking = lambda _task: False  # nothing more is committed
    world.releasing = True
    world.pass_ms(3_000)
    assert [c.epoch for c in world.store.commits[job]] == [world.row.last]
    rounds = [c for c in world.nodes[0].log if isinstance(c, do.StoreForget | do.DeleteBlobs)]
    assert isinstance(rounds[-2], do.StoreForget)
    assert isinstance(rounds[-1], do.DeleteBlobs)


def test_C11_checkpoints_that_follow_each_other_faster_than_rounds_keep_few_rows() -> None:
    """A leader reads all rows: a round comes early where many may be forgotten, and not where they must stay."""
    world = started(CoordinatorSettings(cleanup_interval_ms=3_600_000))
    job = world.row.job
    world.pass_ms(200_000, step_ms=500)
    assert world.row.last > 150
    assert len(world.store.commits[job]) < 70
    state = world.nodes[0].machine.processors[NAME].state
    keep(state, *(c.epoch for c in state.commits))
    forgotten = len([c for c in world.nodes[0].log if isinstance(c, do.StoreForget)])
    world.pass_ms(20_000, step_ms=500)
    assert len([c for c in world.nodes[0].log if isinstance(c, do.StoreForget)]) == forgotten


def keep(state: ProcessorState, *epochs: Epoch) -> None:
    """Users gave these a name."""
    named = (KeptCheckpoint(f"at-{e}", e, state.plan, {}, None, state.kept.splits, ended=False) for e in epochs)
    state.kept = structs.replace(state.kept, checkpoints=tuple(named))
    state.watch()


def test_C11_named_checkpoints_are_retained() -> None:
    """A checkpoint that a user named stays, and so do its blobs."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.pass_ms(1_500)
    state = world.nodes[0].machine.processors[NAME].state
    keep(state, Epoch(1))
    named = world.store.history[world.row.job][0]
    world.pass_ms(6_000)
    assert world.store.commits[world.row.job][0].epoch == 1
    assert all(b.name in world.blobs for h in named.tasks for b in h.blobs)


def test_C12_nothing_is_deleted_for_a_commit_that_the_mirror_has_not_got() -> None:
    """The store may fall back behind it, and nobody would know: the commit before it is read again, with all that it reads."""
    world = started(CoordinatorSettings(cleanup_interval_ms=100))
    world.fate = lambda c: None if isinstance(c, do.AppendMirror) else "done"
    world.pass_ms(3_500)
    assert len(epochs_of(world)) > 1
    assert not [c for c in world.nodes[0].log if isinstance(c, do.DeleteBlobs | do.DeleteRecords | do.StoreForget)]
    world.fate = lambda _: "done"
    world.pass_ms(2_000)
    assert [c for c in world.nodes[0].log if isinstance(c, do.DeleteBlobs)]


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


def test_C12_blobs_that_state_was_moved_into_are_listed_by_its_parts() -> None:
    """What the coordinator moved out of a row stands in the parts alone; it stays like everything that a task lists."""
    moved, own = BlobRef("j/v/1/1/inline-0", 1, ""), BlobRef("j/v/1/1/segment", 1, "")
    part = PartHandle(TASK_PART, blob=moved, length=1)
    handle = TaskHandle(VertexId("v"), 0, TaskProtocolState(), (part,), (own,))
    row = CommitRow(JobId("j"), Epoch(1), Epoch(0), Generation(1), (handle,))
    assert blobs_kept([row]) == {moved.name, own.name}


def test_C12_only_names_that_say_their_epoch_are_deleted() -> None:
    """Another job's names, names of another form, listed ones and newer ones are not meant."""
    keep = frozenset({"j/v/1/1/kept"})
    names = ["j/v/1/1/a", "j/v/1/1/kept", "j/v/1/5/b", "k/v/1/1/a", "j/readme", "j/v/1/x/a"]
    assert [n for n in names if blob_may_go(n, "j", Epoch(4), keep)] == ["j/v/1/1/a"]  # type: ignore[arg-type]


def test_C12_the_last_checkpoint_of_audits_stays() -> None:
    """Those before it go with other blobs of their epoch; where no audit was, nothing is kept for them."""
    job = JobId("j")
    audits = [f"j/audit/0/{epoch}/{epoch}-x" for epoch in (3, 12, 9)]
    names = ["j/v/1/1/a", "j/v/1/99/b", *audits]
    assert audits_kept(names, job) == {"j/audit/0/12/12-x"}
    assert audits_kept(names[:2], job) == frozenset()
    kept = audits_kept(names, job)
    assert [n for n in names if blob_may_go(n, job, Epoch(20), kept)] == ["j/v/1/1/a", audits[0], audits[2]]


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


@pytest.mark.parametrize("rows_kept", [1, 5])
def test_C9_a_mirror_has_its_newest_rows_and_those_that_somebody_must_read(rows_kept: int) -> None:
    """Audits go on from the newest rows; sinks and leaders begin where something waits for its release."""
    job, mirror = JobId("j"), Mirror()
    for number in range(1, 12):
        mirror.add(MirrorRow(job, Epoch(number), Epoch(number - 1), Generation(1), ()))
        assert mirror.next(0) is not None
        mirror.acknowledged(Epoch(number), Offset(number - 1))
        begin = mirror.begin(Epoch(max(1, number - 2)), Offset(0))
        assert begin == max(0, number - 3), "the third from the end waits for its release"
        stay = max(2, rows_kept)
        found = mirror.to_trim(begin, rows_kept)
        assert found == (number - 1 - stay if number - 1 > stay else None)
        mirror.trimmed = mirror.trimmed if found is None else found
        assert mirror.to_trim(begin, rows_kept) is None


def test_C11_rows_that_no_sink_waits_for_may_be_forgotten() -> None:
    """Also where no vertex is watched, from the first question on: all but the last one."""
    world = started(CoordinatorSettings())
    world.pass_ms(3_500)
    rows = world.store.history[world.row.job]
    kept = Retained(rows)
    kept.watch(frozenset(), frozenset())
    assert kept.unreleased({}) == []
    assert kept.superfluous(rows[-1].epoch, 10) == tuple(row.epoch for row in rows[:-1]) != ()
