# ruff: noqa: N802 -- a test carries its rule's name
"""Checkpoints that users name, and starts from them: rules C11, E2 and what they touch."""

from itertools import pairwise

import pytest

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.checkpoint import CommitRow, TaskHandle
from tidemark.shared.model.ids import Epoch, TaskId, VertexId
from tidemark.shared.model.messages import (
    ForgetCheckpoint,
    KeepCheckpoint,
    ModifyProcessor,
    Request,
    StartCheckpoint,
    StartProcessor,
    StopProcessor,
    StopTasks,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import is_aligned
from tidemark.shared.protocol.coordinator.record import decode_kept
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

TWO_SINKS = "read:source count:operator emit:sink audit:sink; read>count count>emit count>audit"
COUNT, EMIT = TaskId(VertexId("count"), 0), TaskId(VertexId("emit"), 0)


def answer(world: World, request: Request) -> str:
    """What the leader answers, at once or after a while."""
    world.request(request)
    world.pass_ms(3_000)
    return world.nodes[0].answers[request.request]


def with_kept(world: World, name: str = "then") -> CommitRow:
    """The last checkpoint is kept under this name, and more follow."""
    assert answer(world, KeepCheckpoint(f"keep-{name}", NAME, name)) == ""
    kept = next(k for k in decode_kept(world.row.extra).checkpoints if k.name == name)
    return next(c for c in world.store.history[world.row.job] if c.epoch == kept.epoch)


def stop(world: World, number: int = 1) -> None:
    """It is stopped."""
    assert answer(world, StopProcessor(f"stop-{number}", NAME)) == ""
    assert world.row.state == "STOPPED"


def back(world: World, name: str = "then", number: int = 1) -> CommitRow:
    """It runs from the kept checkpoint: the commit by which it went back."""
    assert answer(world, StartProcessor(f"back-{number}", NAME, checkpoint=name)) == ""
    return went_back(world)[-1]


def went_back(world: World) -> list[CommitRow]:
    """Commits by which it went back: nobody was asked to take these checkpoints."""
    asked = {c.epoch for c in world.commands if isinstance(c, StartCheckpoint)}
    return [commit for commit in world.store.history[world.row.job] if commit.epoch not in asked]


def state_of(commit: CommitRow) -> list[tuple[VertexId, int, object]]:
    """Of all tasks that have one."""
    return [(h.vertex, h.index, (h.parts, h.blobs, h.positions)) for h in commit.tasks if h.vertex != "emit"]


def test_C11_E2_a_start_from_a_kept_checkpoint_is_a_commit_with_its_state() -> None:
    """It follows the last one, has no output, and its tasks are restored as they stood then. Nothing is released twice."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.pass_ms(1_500)
    then = with_kept(world)
    before = {b.edge: b.incarnation for b in world.assigned(1)[COUNT].plan.edges}
    stop(world)
    last = world.row.last
    commit = back(world)
    assert (commit.predecessor, commit.epoch > last) == (last, True)
    assert state_of(commit) == state_of(then)
    assert {h.vertex for h in commit.tasks} == {"read", "count"}
    assigned = world.assigned(2)
    assert assigned[COUNT].last == commit.epoch
    assert [h.blobs for h in assigned[COUNT].handles] == [h.blobs for h in then.tasks if h.vertex == "count"]
    assert not set(before.values()) & {b.incarnation for b in assigned[COUNT].plan.edges}
    assert all(not h.protocol.inputs and not h.protocol.outputs for h in assigned[COUNT].handles)
    assert world.row.state == "RUNNING"
    assert world.row.last > commit.epoch
    released = world.judge.outputs[world.row.job, VertexId("emit"), 0]
    assert released == sorted(set(released))
    assert released[-1] > commit.epoch
    assert assigned[COUNT].plan.since == commit.epoch


def test_C11_a_checkpoint_is_kept_for_as_often_as_one_goes_back_to_it() -> None:
    """Each time all that it refers to is there, through rounds of cleaning, and other starts go on from where it was."""
    world = started(CoordinatorSettings(cleanup_interval_ms=200))
    world.pass_ms(1_500)
    then = with_kept(world)
    for number in range(3):
        stop(world, number)
        assert state_of(back(world, number=number)) == state_of(then)
        world.pass_ms(5_000)
    stop(world, 9)
    assert answer(world, StartProcessor("on", NAME)) == ""
    assert len(went_back(world)) == 3
    for earlier, later in pairwise(world.store.history[world.row.job]):
        assert later.predecessor == earlier.epoch


def test_E2_S1_a_processor_goes_back_to_the_plan_that_it_had() -> None:
    """Document, numbers of tasks and interval; a sink that came since releases what it has, and is gone."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500), parallelism={"emit": 2})
    world.pass_ms(1_500)
    with_kept(world)
    assert answer(world, ModifyProcessor("more", NAME, TWO_SINKS, {"count": 3, "emit": 1})) == ""
    world.pass_ms(2_000)
    world.releasing = False
    world.pass_ms(1_000)
    world.request(StopProcessor("stop-1", NAME))
    world.pass_ms(40_000)
    assert world.row.state == "STOPPED"
    last = world.row.last
    commit = back(world)
    assert world.status[NAME].document == DOCUMENT
    assert (world.row.parallelism, world.row.plan_version) == ({"emit": 2}, 3)
    generation = world.row.generation
    assert world.assigned(generation)[TaskId(VertexId("audit"), 0)].release_only
    world.releasing = True
    world.pass_ms(5_000)
    assert world.judge.outputs[world.row.job, VertexId("audit"), 0][-1] == last
    assert world.row.last > commit.epoch
    world.fail("count")
    world.pass_ms(5_000)
    assert {t.vertex for t in world.assigned(generation + 1)} == {"read", "count", "emit"}


def test_C13_a_checkpoint_gets_a_name_when_no_channel_carries_frames_in_it() -> None:
    """The next one waits for all barriers then; a processor that stopped without one is told so."""
    world = started()
    world.behind = 3
    world.pass_ms(1_500)
    unaligned = world.row.last
    kept = with_kept(world)
    assert kept.epoch > unaligned
    assert is_aligned(kept)
    first = next(c for c in world.commands if isinstance(c, StartCheckpoint) and c.epoch == kept.epoch)
    assert first.aligned
    assert not next(c for c in world.commands if isinstance(c, StartCheckpoint) and c.epoch == kept.epoch + 1).aligned
    world.fail("count", permanent=True)
    world.pass_ms(1_000)
    assert world.row.state == "FAILED"
    assert "ask again while it is RUNNING" in answer(world, KeepCheckpoint("late", NAME, "later"))


def test_C11_E2_who_went_back_comes_again_to_what_was_kept_before_that() -> None:
    """As when the earlier one could not be read any more: the way back is open, to the state of the stop."""
    world = started(CoordinatorSettings(cleanup_interval_ms=200))
    world.pass_ms(1_500)
    with_kept(world)
    stop(world)
    now = with_kept(world, "now")
    assert now.epoch == world.row.last
    back(world)
    world.pass_ms(3_000)
    world.fail("read", permanent=True)
    world.pass_ms(3_000)
    assert world.row.state == "FAILED"
    assert state_of(back(world, "now", 2)) == state_of(now)
    assert world.row.state == "RUNNING"


def test_C11_E2_a_processor_that_finished_or_failed_goes_back() -> None:
    """Where it ended then, its input ends anew."""
    world = started()
    world.pass_ms(1_500)
    with_kept(world)
    then = decode_kept(world.row.extra)
    assert answer(world, StopProcessor("drain", NAME, drain=True)) == ""
    assert world.row.state == "FINISHED"
    assert decode_kept(world.row.extra).splits != then.splits
    assert "end of its input" in answer(world, KeepCheckpoint("end", NAME, "end"))
    back(world)
    now = decode_kept(world.row.extra)
    assert (world.row.state, now.splits, now.ended) == ("RUNNING", then.splits, then.ended)
    assert answer(world, StopProcessor("drain-2", NAME, drain=True)) == ""
    assert world.row.state == "FINISHED"
    back(world, number=2)
    world.fail("count", permanent=True)
    world.pass_ms(1_000)
    assert world.row.state == "FAILED"
    back(world, number=3)
    assert world.row.state == "RUNNING"


def test_E2_a_drain_that_is_asked_for_on_the_way_back_comes_to_its_end() -> None:
    """The input ends behind the going back."""
    world = started()
    world.pass_ms(1_500)
    with_kept(world)
    stop(world)
    world.fate = lambda c: "away" if isinstance(c, do.StoreCommit) else "done"
    assert answer(world, StartProcessor("back", NAME, checkpoint="then")) == ""
    assert answer(world, StopProcessor("drain", NAME, drain=True)) == ""
    world.fate = lambda _: "done"
    world.pass_ms(10_000)
    assert len(went_back(world)) == 1
    assert world.row.state == "FINISHED"


@pytest.mark.parametrize("lost", [do.StoreCommit, do.StoreNewGeneration])
def test_C8_a_leader_that_dies_on_the_way_back_is_followed_by_one_that_goes_on(lost: type) -> None:
    """Between the answer and the commit, or behind the commit: the processor goes back once."""
    world = started()
    world.pass_ms(1_500)
    with_kept(world)
    stop(world)
    world.fate = lambda c: None if isinstance(c, lost) else "done"
    world.request(StartProcessor("back", NAME, checkpoint="then"))
    world.pass_ms(500)
    assert world.nodes[0].answers["back"] == ""
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(20_000)
    assert len(went_back(world)) == 1
    assert world.row.state == "RUNNING"
    assert world.row.last > went_back(world)[0].epoch


def test_E2_an_order_to_go_back_stands_until_it_is_carried_out_or_another_replaces_it() -> None:
    """A stop before it has begun keeps it for the next start; a start without state, or from another checkpoint, replaces it."""
    world = started()
    world.pass_ms(1_500)
    with_kept(world, "first")
    second = with_kept(world, "second")
    stop(world)
    world.fate = lambda c: "away" if isinstance(c, do.StoreCommit) else "done"
    assert answer(world, StartProcessor("back", NAME, checkpoint="first")) == ""
    assert "about to begin" in answer(world, ForgetCheckpoint("forget", NAME, "first"))
    assert "about to begin" in answer(world, ModifyProcessor("change", NAME, TWO_SINKS))
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(500)
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    if world.row.state != "STOPPED":
        stop(world, 2)
    assert state_of(back(world, "second", 2)) == state_of(second)
    stop(world, 3)
    job = world.row.job
    assert answer(world, StartProcessor("anew", NAME, resume=False)) == ""
    assert world.row.job != job
    assert "keeps no checkpoint named second; it keeps none" in answer(world, ForgetCheckpoint("f2", NAME, "second"))


def ordered_and_stopped(world: World) -> None:
    """It is to go back, and was stopped before it could."""
    world.fate = lambda c: "away" if isinstance(c, do.StoreCommit) else "done"
    assert answer(world, StartProcessor("order", NAME, checkpoint="then")) == ""
    assert answer(world, StopProcessor("stop-order", NAME)) == ""
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    assert (world.row.state, decode_kept(world.row.extra).go_back) == ("STOPPED", "then")


def test_E2_R5_a_plain_start_carries_the_order_to_go_back_out_with_the_code_of_then() -> None:
    """Code that changed since is no change of the plan that is left."""
    world = started()
    world.code = "one"
    assert answer(world, ModifyProcessor("code", NAME, DOCUMENT)) == ""
    then = with_kept(world)
    assert answer(world, ModifyProcessor("more", NAME, TWO_SINKS)) == ""
    stop(world)
    ordered_and_stopped(world)
    world.code = "two"
    assert answer(world, StartProcessor("on", NAME)) == ""
    assert [state_of(commit) for commit in went_back(world)] == [state_of(then)]
    plan = world.assigned(world.row.generation)[COUNT].plan
    assert (plan.document, plan.code_digest) == (DOCUMENT, "one")


@pytest.mark.parametrize("lost", [do.StoreCommit, do.StoreNewGeneration])
@pytest.mark.parametrize("anew", [False, True])
def test_C8_E2_a_new_leader_adopts_no_tasks_from_before_a_start_with_another_state(lost: type, *, anew: bool) -> None:
    """They were not told to stop, by a leader that ended: what they commit would follow from what came since."""
    world = started()
    world.pass_ms(1_500)
    with_kept(world)
    world.pass_ms(1_500)
    generation, job = world.row.generation, world.row.job
    world.fate = lambda c: None if isinstance(c, do.Publish) and isinstance(c.command, StopTasks) else "done"
    stop(world)
    world.fate = lambda c: None if isinstance(c, (do.Publish, lost)) else "done"
    world.request(StartProcessor("on", NAME, not anew, "" if anew else "then"))
    world.pass_ms(500)
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(20_000)
    assert (world.row.state, world.row.generation > generation) == ("RUNNING", True)
    assert (world.row.job != job) if anew else len(went_back(world)) == 1


def test_C11_C13_a_name_that_has_to_wait_keeps_no_stop_waiting() -> None:
    """Where targets are away no checkpoint is taken; and one that is asked for before a stop is left to the stop's."""
    world = started()
    world.behind = 3
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(KeepCheckpoint("keep", NAME, "then"))
    world.pass_ms(500)
    assert "keep" not in world.nodes[0].answers
    assert answer(world, StopProcessor("stop-0", NAME)) == ""
    assert "is to be stopped or changed" in world.nodes[0].answers["keep"]
    world = started(CoordinatorSettings(unreleased_max=3))
    world.behind = 3
    world.releasing = False
    world.pass_ms(8_000)
    assert "wait for a target, and none is taken until then" in answer(world, KeepCheckpoint("held", NAME, "held"))


def test_C11_a_forgotten_checkpoint_goes_with_its_blobs() -> None:
    """And is not gone back to."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.keep_blobs = 1
    world.pass_ms(1_500)
    then = with_kept(world)
    world.pass_ms(5_000)
    names = {b.name for h in then.tasks for b in h.blobs}
    assert names <= world.blobs.keys()
    assert world.store.commits[world.row.job][0].epoch == then.epoch
    assert world.status[NAME].checkpoints == (("then", then.epoch),)
    assert answer(world, ForgetCheckpoint("forget", NAME, "then")) == ""
    world.pass_ms(5_000)
    assert not names & world.blobs.keys()
    assert world.status[NAME].checkpoints == ()
    stop(world)
    refused = answer(world, StartProcessor("back", NAME, checkpoint="then"))
    assert refused == "flights keeps no checkpoint named then; it keeps none"


def test_C12_a_kept_checkpoint_holds_no_records_of_channels() -> None:
    """Whoever begins from it has other edges: their log is as short as without it."""
    world = started(CoordinatorSettings(cleanup_interval_ms=500))
    world.pass_ms(1_500)
    then = with_kept(world)
    floors = [c for c in world.nodes[0].log if isinstance(c, do.DeleteRecords)]
    world.pass_ms(5_000)
    later = [c for c in world.nodes[0].log if isinstance(c, do.DeleteRecords)][len(floors) :]
    assert later[-1].floors[0].offset > resume_offset(next(h for h in then.tasks if h.vertex == "count"))


def test_C12_what_waits_for_its_release_holds_records_though_it_is_kept() -> None:
    """As without its name."""
    world = started(CoordinatorSettings(cleanup_interval_ms=100))
    world.pass_ms(1_500)
    world.releasing = False
    world.pass_ms(1_000)
    waiting = with_kept(world)
    assert world.row.last > waiting.epoch
    floors = [c.floors[0].offset for c in world.nodes[0].log if isinstance(c, do.DeleteRecords)]
    assert floors
    assert floors[-1] <= resume_offset(next(h for h in waiting.tasks if h.vertex == "count"))


def resume_offset(handle: TaskHandle) -> int:
    """Of its input."""
    return handle.protocol.inputs[0].resume_offset


def test_C11_requests_that_cannot_be_carried_out_are_refused_with_the_reason() -> None:
    """Names, numbers, sizes, and what the processor does at the time."""
    world = started(CoordinatorSettings(checkpoints_max=2, checkpoints_bytes_max=2_000))
    assert "no checkpoint of its present life" in answer_now(world, KeepCheckpoint("early", NAME, "early"))
    world.pass_ms(1_500)
    assert "found 'a b'" in answer(world, KeepCheckpoint("blank", NAME, "a b"))
    assert "found ''" in answer(world, KeepCheckpoint("empty", NAME, ""))
    then = with_kept(world)
    assert f"keeps checkpoint {then.epoch} as then" in answer(world, KeepCheckpoint("again", NAME, "then"))
    assert "stop it before" in answer(world, StartProcessor("back", NAME, checkpoint="then"))
    assert "it keeps then" in answer(world, StartProcessor("other", NAME, checkpoint="other"))
    assert "not both" in answer(world, StartProcessor("both", NAME, resume=False, checkpoint="then"))
    with_kept(world, "second")
    assert "(then, second), at most 2" in answer(world, KeepCheckpoint("third", NAME, "third"))
    assert answer(world, ForgetCheckpoint("forget", NAME, "second")) == ""
    assert answer(world, ModifyProcessor("long", NAME, DOCUMENT + " " * 3_000)) == ""
    assert "bytes, at most 2000" in answer(world, KeepCheckpoint("large", NAME, "large"))
    assert [k.epoch for k in decode_kept(world.row.extra).checkpoints] == [then.epoch]


def answer_now(world: World, request: Request) -> str:
    """Before anything else happens."""
    world.request(request)
    world.settle()
    return world.nodes[0].answers[request.request]


def test_C11_the_first_epoch_may_be_kept() -> None:
    """As soon as it is committed."""
    world = started()
    while world.row.last < Epoch(1):
        world.pass_ms(50)
    then = with_kept(world)
    assert then.epoch == Epoch(1)
    world.pass_ms(2_000)
    assert world.row.last > Epoch(1)
    stop(world)
    assert state_of(back(world)) == state_of(then)
