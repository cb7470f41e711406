# ruff: noqa: N802 -- a test carries its rule's name
"""Generations: recovery, assignment, rescaling, release identities, a change of leaders: rules L1, R1 to R4, S1, S2."""

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.ids import Epoch, TaskId, VertexId
from tidemark.shared.model.messages import (
    Assign,
    Deregister,
    Heartbeat,
    ModifyProcessor,
    ReadSplits,
    SkipRelease,
    StartCheckpoint,
    StartProcessor,
    StartSources,
    StopProcessor,
    StopTasks,
    TaskFailed,
    TaskRestored,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

TWO_SINKS = "read:source count:operator emit:sink audit:sink; read>count count>emit count>audit"
EMIT = VertexId("emit")


def modify(world: World, *, document: str | None = None, parallelism: dict[str, int] | None = None) -> None:
    """Ask for a change and let it come about."""
    world.request(ModifyProcessor(world.fresh(), NAME, document, parallelism))
    world.pass_ms(1_500)


def test_L1_every_generation_is_in_the_lineage_before_its_tasks_are_told() -> None:
    """The row and its lineage entry are one write, and each assignment carries the whole lineage."""
    world = started()
    world.pass_ms(2_500)
    world.fail("count")
    world.fate = lambda c: None if isinstance(c, do.StoreNewGeneration) else "done"
    world.pass_ms(2_000)
    assert not world.assigned(2)
    world.fate = lambda _: "done"
    world.settle()
    lineage = world.assigned(2)[TaskId(VertexId("read"), 0)].lineage
    assert [(e.generation, e.restored_from) for e in lineage] == [(1, 0), (2, 2)]


def test_R1_sources_start_when_all_tasks_have_restored() -> None:
    """Not before the last of them has said so; the order is assign, restored, what to read, start."""
    world = started()
    kinds = [type(c) for c in world.commands]
    assert kinds == [Assign, Assign, Assign, ReadSplits, StartSources]
    world.pass_ms(1_500)
    worker, task = world.holder("count")
    world.fail("emit")
    worker.mute = True
    world.pass_ms(2_000)
    assert len(world.said(StartSources)) == 1
    worker.mute = False
    a = task.assign
    world.report(worker, TaskRestored(worker.incarnation, a.job, world.row.generation, a.vertex, a.index))
    world.settle()
    assert len(world.said(StartSources)) == 2


def test_R1_a_failed_generation_stops_everywhere() -> None:
    """StopTasks names the generation that ended, before the next is assigned."""
    world = started()
    world.pass_ms(1_500)
    world.fail("count")
    world.settle()
    assert [c.generation for c in world.said(StopTasks)] == [1]  # type: ignore[union-attr]
    world.pass_ms(1_500)
    kinds = [(type(c), c.generation) for c in world.commands if isinstance(c, (StopTasks, Assign))]
    assert kinds[3] == (StopTasks, 1)
    assert (Assign, 2) in kinds[4:]


def test_R1_a_new_incarnation_at_the_same_place_ends_the_generation() -> None:
    """A restarted process is noticed at its registration, not after the heartbeat's time-out; it counts for nothing."""
    world = started()
    world.pass_ms(1_500)
    old, _ = world.holder("count")
    new = world.worker(old.place, "operator")
    world.settle()
    assert world.row.generation == 2
    assert world.holder("count")[0] is new
    assert world.row.failures == 0


def test_R1_what_a_replaced_incarnation_still_says_does_not_count() -> None:
    """Heartbeats of a process whose place another has taken change nothing."""
    world = started()
    old, _ = world.holder("count")
    world.worker(old.place, "operator")
    world.settle()
    before = dict(world.nodes[0].machine.ctx.workers.alive)
    world.report(old, Heartbeat(old.incarnation, old.place, "operator", 4, 1, "host"))
    world.settle()
    assert world.nodes[0].machine.ctx.workers.alive == before


def test_R1_a_worker_that_goes_in_good_order_is_replaced_at_once() -> None:
    """Deregister ends the generation without waiting for heartbeats."""
    world = started()
    worker, _ = world.holder("count")
    other = world.worker("operator-1", "operator")
    world.report(worker, Deregister(worker.incarnation))
    worker.alive = False
    world.settle()
    world.beat(worker)  # sent before it went
    world.settle()
    assert world.holder("count")[0] is other
    assert world.row.generation == 2
    assert worker.incarnation not in world.nodes[0].machine.ctx.workers.alive


def test_R1_a_task_that_a_heartbeat_no_longer_lists_ends_the_generation() -> None:
    """The report of its failure may have been lost."""
    world = started()
    world.pass_ms(1_500)
    worker, _ = world.holder("count")
    worker.tasks.clear()
    world.pass_ms(2_000)
    assert world.row.generation == 2


def test_R1_a_coordinator_that_stood_still_does_not_blame_the_workers() -> None:
    """After a pause of its own, heartbeats that wait to be read count first."""
    world = started()
    world.now_ms += 60_000
    world.tick()
    world.pass_ms(500)
    assert world.row.generation == 1


def test_R2_an_assignment_names_the_incarnation() -> None:
    """Each task is told to one process by its incarnation."""
    world = started()
    for assign in world.assigned(1).values():
        assert world.workers[assign.to].service == assign.plan.services[assign.vertex]


def test_R2_a_task_is_assigned_at_most_once_a_generation() -> None:
    """A worker lost while its task restores makes a new generation, not a second assignment."""
    world = started()
    world.pass_ms(1_500)
    worker, _ = world.holder("count")
    world.fail("emit")
    worker.mute = True
    world.worker("operator-1", "operator")
    world.pass_ms(9_000)
    seen = [(c.generation, c.vertex, c.index) for c in world.said(Assign)]  # type: ignore[union-attr]
    assert len(seen) == len(set(seen))
    assert world.row.generation == 3


def test_R2_a_new_leader_does_not_assign_in_a_generation_that_it_did_not_begin() -> None:
    """If the tasks do not show themselves the next generation begins, which may start them."""
    world = started()
    world.pass_ms(1_500)
    world.fail("count")
    world.fate = lambda c: None if isinstance(c, do.Publish) else "done"
    world.pass_ms(1_000)
    assert world.row.generation == 2
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(8_000)
    assert not world.assigned(2)
    assert world.assigned(3)


def test_R2_a_new_leader_adopts_a_generation_that_runs() -> None:
    """All tasks show themselves in heartbeats: nothing restarts, checkpoints go on."""
    world = started()
    world.pass_ms(2_500)
    world.crash_node(world.nodes[0])
    world.lead()
    world.pass_ms(3_000)
    assert world.row.generation == 1
    assert world.row.last > 64


def test_R2_strays_of_earlier_generations_are_told_to_stop() -> None:
    """A worker that missed StopTasks hears it again when it beats."""
    world = started()
    world.pass_ms(1_500)
    worker, task = world.holder("count")
    world.fail("emit")
    worker.inbox.clear()
    world.pass_ms(2_000)
    worker.tasks[task.assign.job, TaskId(VertexId("count"), 7)] = task
    world.pass_ms(300)
    assert (task.assign.job, TaskId(VertexId("count"), 7)) not in worker.tasks


def test_R2_what_a_task_of_an_older_generation_says_counts_for_nothing() -> None:
    """A worker that runs both may say late that the older has failed: the younger goes on."""
    world = started()
    world.pass_ms(1_500)
    worker, task = world.holder("count")
    a = task.assign
    world.fail("emit")
    world.pass_ms(2_000)
    assert world.row.generation == 2
    assert world.holder("count")[0] is worker
    world.report(worker, TaskFailed(worker.incarnation, a.job, a.generation, a.vertex, a.index, "late", permanent=True))
    world.pass_ms(2_000)
    assert world.row.generation == 2
    assert world.row.state != "FAILED"


def test_R3_what_is_committed_is_released_after_recovery() -> None:
    """A commit whose release a failure cut short is released under the next generation."""
    world = started()
    world.releasing = False
    world.pass_ms(2_500)
    world.fail("emit")
    world.releasing = True
    world.pass_ms(3_000)
    assert world.judge.outputs[world.row.job, EMIT, 0][:2] == [1, 2]


def test_R3_what_was_committed_and_not_yet_mirrored_is_mirrored_under_the_next_generation() -> None:
    """The generation that committed it is gone; its row and handles still reach the sinks, before what follows."""
    world = started()
    world.fate = lambda c: "lost" if isinstance(c, do.AppendMirror) else "done"
    world.pass_ms(1_500)
    assert (world.row.last, world.mirror) == (1, [])
    world.fail("emit")
    world.pass_ms(1_500)
    assert world.row.generation == 2
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    assert [(m.epoch, m.generation) for m in world.mirror][:2] == [(1, 1), (65, 2)]
    assert world.judge.outputs[world.row.job, EMIT, 0][:2] == [1, 65]


def test_R3_what_is_not_committed_reaches_no_sink() -> None:
    """Handles acknowledged for a checkpoint that failed are in no mirror row."""
    world = started()
    world.acking = lambda task: task.assign.vertex != "count"
    world.pass_ms(1_500)
    world.fail("count")
    world.acking = lambda _: True
    world.pass_ms(3_000)
    staged = [h.staged for m in world.mirror for h in m.handles]
    assert b"emit/0:1" not in staged
    assert staged


def test_R4_a_rescale_takes_a_checkpoint_and_new_incarnations_where_counts_change() -> None:
    """The edges of the changed vertex are new, with as many partitions as tasks; others stay."""
    world = started(document=TWO_SINKS)
    before = {b.edge: b for b in world.assigned(1)[TaskId(VertexId("read"), 0)].plan.edges}
    world.pass_ms(1_500)
    last = world.row.last
    modify(world, parallelism={"emit": 3})
    plan = world.assigned(2)[TaskId(VertexId("read"), 0)].plan
    after = {b.edge: b for b in plan.edges}
    changed = {e for e in after if after[e].incarnation != before[e].incarnation}
    assert changed == {"count>emit"}
    assert world.topics[next(b for e, b in after.items() if e == "count>emit").topic] == 3
    assert world.store.lineages[world.row.job][1].restored_from == last + 1
    assert plan.version == world.row.plan_version == 2
    assert plan.since == 0


def test_R4_a_rescale_that_waits_for_its_checkpoint_is_told_so_that_the_next_one_keeps_it() -> None:
    """Who asks for other numbers begins with those of the status: they are what was asked for last, not what still runs."""
    world = started(parallelism={"count": 2})
    world.pass_ms(1_500)
    world.acking = lambda _: False
    modify(world, parallelism={"count": 3, "emit": 2})
    assert world.row.plan_version == 1
    assert world.status[NAME].parallelism == {"count": 3, "emit": 2}
    world.acking = lambda _: True
    modify(world, parallelism={**world.status[NAME].parallelism, "read": 1})
    world.pass_ms(600_000)  # the checkpoint that nobody acknowledged is given up
    assert world.row.parallelism == {"count": 3, "emit": 2, "read": 1}


def test_R4_an_edge_is_new_when_its_senders_or_its_partitions_change() -> None:
    """Rescaling a vertex in the middle renews the edges on both sides of it."""
    world = started()
    before = {b.edge: b.incarnation for b in world.assigned(1)[TaskId(VertexId("read"), 0)].plan.edges}
    world.pass_ms(1_500)
    modify(world, parallelism={"count": 2})
    after = {b.edge: b.incarnation for b in world.assigned(2)[TaskId(VertexId("read"), 0)].plan.edges}
    assert not set(before.values()) & set(after.values())


def test_R4_every_task_of_a_vertex_gets_all_its_handles() -> None:
    """A rescaled task may need several of them."""
    world = started(parallelism={"count": 2})
    world.pass_ms(1_500)
    modify(world, parallelism={"count": 3})
    for index in range(3):
        handles = world.assigned(2)[TaskId(VertexId("count"), index)].handles
        assert [h.index for h in handles] == [0, 1]


def test_R4_the_old_topic_goes_when_the_new_generation_has_committed() -> None:
    """Not before, and not while the commit is unanswered."""
    world = started(CoordinatorSettings(cleanup_interval_ms=100))
    world.pass_ms(1_500)
    old = {b.topic for b in world.assigned(1)[TaskId(VertexId("read"), 0)].plan.edges if b.edge == "count>emit"}
    world.acking = lambda task: task.assign.generation == 1
    modify(world, parallelism={"emit": 2})
    world.pass_ms(1_500)
    assert world.row.generation == 2
    assert old <= world.topics.keys()
    world.acking = lambda _: True
    world.pass_ms(2_000)
    world.fail("count")
    world.pass_ms(2_000)
    assert not old & world.topics.keys()


def test_R4_lost_workers_move_tasks_and_do_not_change_counts() -> None:
    """The plan stays as it is."""
    world = started(parallelism={"count": 2})
    world.worker("operator-1", "operator")
    world.pass_ms(1_500)
    worker, _ = world.holder("count")
    world.report(worker, Deregister(worker.incarnation))
    worker.alive = False
    world.pass_ms(1_000)
    assert world.row.plan_version == 1
    assert len([t for t in world.assigned(2) if t.vertex == "count"]) == 2


def test_E3_a_sink_is_added_without_replay() -> None:
    """A new plan version at a checkpoint; the new sink's identity is new, the others' are not (S2)."""
    world = started()
    world.pass_ms(1_500)
    modify(world, document=TWO_SINKS)
    assigned = world.assigned(2)
    assert assigned[TaskId(VertexId("audit"), 0)].new_identity
    assert not assigned[TaskId(EMIT, 0)].new_identity
    assert assigned[TaskId(EMIT, 0)].last == world.store.lineages[world.row.job][1].restored_from > 0
    world.pass_ms(2_000)
    assert world.judge.outputs[world.row.job, VertexId("audit"), 0]
    # The document is this one since then, through rescales too.
    modify(world, parallelism={"emit": 3})
    assert assigned[TaskId(EMIT, 0)].last == world.assigned(3)[TaskId(EMIT, 0)].plan.since


def test_S1_a_removed_sink_stays_release_only_until_it_has_released() -> None:
    """It runs by the plan that had it last, takes no part in checkpoints, and is gone in the next generation."""
    world = started(CoordinatorSettings(unreleased_max=20), document=TWO_SINKS)
    world.releasing = False
    world.pass_ms(2_500)
    modify(world, document=DOCUMENT)
    audit = world.assigned(2)[TaskId(VertexId("audit"), 0)]
    assert audit.release_only
    assert audit.plan.version == 1
    assert all(h.vertex != "audit" for h in world.store.history[world.row.job][-1].tasks if world.row.last > audit.last)
    world.releasing = True
    world.pass_ms(3_000)
    assert world.judge.outputs[world.row.job, VertexId("audit"), 0][-1] == audit.last
    world.fail("count")
    world.pass_ms(2_000)
    assert all(t.vertex != "audit" for t in world.assigned(3))


def test_S1_retired_identities_go_to_exactly_one_task() -> None:
    """After a scale-down the remaining tasks take over the others' identities, each once."""
    world = started(CoordinatorSettings(unreleased_max=20), parallelism={"emit": 4})
    world.releasing = False
    world.pass_ms(2_500)
    modify(world, parallelism={"emit": 2})
    assigned = world.assigned(2)
    assert assigned[TaskId(EMIT, 0)].retired == ((EMIT, 2),)
    assert assigned[TaskId(EMIT, 1)].retired == ((EMIT, 3),)


def test_S1_an_identity_is_retired_only_when_it_has_released() -> None:
    """Until its marker is restored_from every generation gives it to a task; after that none."""
    world = started(CoordinatorSettings(unreleased_max=20, backoff_base_ms=100), parallelism={"emit": 2})
    world.releasing = False
    world.pass_ms(2_500)
    modify(world, parallelism={"emit": 1})
    world.fail("count")
    world.pass_ms(1_000)
    assert world.assigned(3)[TaskId(EMIT, 0)].retired == ((EMIT, 1),)
    world.releasing = True
    world.pass_ms(1_500)
    world.fail("count")
    world.pass_ms(1_000)
    assert world.assigned(4)[TaskId(EMIT, 0)].retired == ()


def test_S2_an_identity_is_new_until_a_commit_names_it() -> None:
    """A generation that failed before its first commit leaves its identities new."""
    world = started()
    world.fail("count")
    world.pass_ms(1_000)
    assert world.assigned(2)[TaskId(EMIT, 0)].new_identity
    world.pass_ms(1_500)
    world.fail("count")
    world.pass_ms(1_000)
    assert not world.assigned(3)[TaskId(EMIT, 0)].new_identity


def test_S2_tasks_are_assigned_only_when_the_mirror_has_the_last_commit() -> None:
    """A sink learns from the mirror what to release: it must find it there."""
    world = started()
    world.fate = lambda c: None if isinstance(c, do.AppendMirror) else "done"
    world.pass_ms(1_500)
    world.fail("count")
    world.pass_ms(2_000)
    assert not world.assigned(2)
    world.fate = lambda _: "done"
    world.settle()
    assert world.assigned(2)


def test_S6_a_permanent_refusal_makes_the_processor_failed() -> None:
    """At once, with the task's reason; a start goes on from the last commit."""
    world = started()
    world.pass_ms(1_500)
    world.fail("emit", permanent=True)
    world.settle()
    assert world.row.state == "FAILED"
    assert "it broke" in world.row.reason
    world.request(StartProcessor("again", NAME))
    world.pass_ms(1_000)
    assert world.store.lineages[world.row.job][1].restored_from == Epoch(1)


def test_S6_only_a_users_order_passes_over_what_is_refused() -> None:
    """It is refused for a commit that no sink waits for; it stands in the next assignments of the sink, until the marker is there."""
    world = started(parallelism={"sink": 2})
    world.pass_ms(1_500)
    world.releasing = False
    world.pass_ms(1_500)
    waiting = [c.epoch for c in world.store.history[world.row.job]][-1]
    world.request(SkipRelease("early", NAME, waiting))
    world.settle()
    assert "is running" in world.nodes[0].answers["early"]
    world.fail("emit", permanent=True)
    world.settle()
    for request, epoch, vertex in (("none", Epoch(999), None), ("other", waiting, VertexId("count"))):
        world.request(SkipRelease(request, NAME, epoch, vertex))
        world.settle()
        assert "to release; waiting for a release: " in world.nodes[0].answers[request]
    world.request(SkipRelease("skip", NAME, waiting))
    world.settle()
    assert world.nodes[0].answers["skip"] == ""
    assert world.row.state == "FAILED"
    world.request(StartProcessor("again", NAME))
    world.pass_ms(200)
    assigned = world.assigned(2)
    expected = tuple((VertexId("emit"), index, waiting) for index in range(2))
    assert {a.skips for t, a in assigned.items() if t.vertex == "emit"} == {expected}
    assert {a.skips for t, a in assigned.items() if t.vertex != "emit"} == {()}
    world.releasing = True
    world.pass_ms(3_000)
    world.fail("count")
    world.pass_ms(2_000)
    assert {a.skips for a in world.assigned(3).values()} == {()}


def test_a_stop_while_workers_are_awaited_is_obeyed() -> None:
    """A processor that waits for slots can be stopped."""
    world = started()
    worker, _ = world.holder("count")
    world.report(worker, Deregister(worker.incarnation))
    worker.alive = False
    world.settle()
    assert world.status[NAME].reason == "waits for a worker of service operator with a free slot"
    world.request(StopProcessor("stop", NAME))
    world.settle()
    assert world.row.state == "STOPPED"
    assert not world.said(StartCheckpoint)
