# ruff: noqa: N802 -- a test carries its rule's name
"""What the coordinator does with checkpoints whose channels have state: rules C12, C13, R4."""

import pytest

from tests.unit.protocol_coordinator_support import NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.checkpoint import ChannelState, CommitRow, InputState, TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, Seq, VertexId
from tidemark.shared.model.messages import Assign, ModifyProcessor, StartCheckpoint, StartProcessor, StopProcessor
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import is_aligned, taken_up_to
from tidemark.shared.protocol.coordinator.generation import _may_change
from tidemark.shared.protocol.coordinator.record import PendingPlan
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings


def unaligned() -> World:
    """A processor whose last commit has frames in flight."""
    world = started()
    world.behind = 3
    world.pass_ms(1_500)
    assert not is_aligned(world.store.commits[world.row.job][-1])
    return world


def starts(world: World) -> list[StartCheckpoint]:
    """All words to take a checkpoint."""
    return [c for c in world.commands if isinstance(c, StartCheckpoint)]


def restored_from(world: World) -> CommitRow:
    """The commit that the present generation began from."""
    job = world.row.job
    epoch = world.store.lineages[job][-1].restored_from
    return next(c for c in world.store.history[job] if c.epoch == epoch)


@pytest.mark.parametrize("stops", [True, False])
def test_C13_R4_who_leaves_asks_for_an_aligned_checkpoint(stops: bool) -> None:
    """A stop, for whoever starts it may want other tasks; and a change, which begins from there."""
    world = unaligned()
    assert not any(c.aligned for c in starts(world))
    world.request(StopProcessor("s", NAME) if stops else ModifyProcessor("m", NAME, None, {"count": 2}))
    world.pass_ms(2_500)
    first = next(c for c in starts(world) if c.aligned)
    if stops:
        assert world.row.state == "STOPPED"
        assert world.row.last == first.epoch
    else:
        assert world.row.generation == 2
        assert restored_from(world).epoch == first.epoch
        assert starts(world)[-1].aligned is False
    assert is_aligned(world.store.history[world.row.job][first.epoch - 1])


def test_C13_R4_a_checkpoint_in_flight_is_not_enough_to_leave() -> None:
    """It was started before the request, and need not be aligned: the generation goes on to one that is."""
    world = unaligned()
    world.fate = lambda c: None if isinstance(c, do.StoreCommit) else "done"
    world.pass_ms(1_500)
    flying = starts(world)[-1]
    assert not flying.aligned
    world.request(ModifyProcessor("m", NAME, None, {"count": 2}))
    world.settle()
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    assert (world.row.generation, world.row.plan_version) == (2, 2), "no generation begins for nothing"
    assert flying.epoch < restored_from(world).epoch
    assert is_aligned(restored_from(world))


def test_C13_R4_what_channels_carry_is_worked_off_by_the_plan_that_made_it() -> None:
    """After a failure between the request and its checkpoint the plan that ran goes on until one is aligned."""
    world = unaligned()
    world.acking = lambda _: False
    world.request(ModifyProcessor("m", NAME, None, {"count": 2}))
    world.pass_ms(500)
    world.fail("count")
    world.pass_ms(2_500)
    assert world.row.generation == 2
    assert world.row.plan_version == 1
    assert not is_aligned(restored_from(world))
    world.acking = lambda _: True
    world.pass_ms(70_000, 500)
    assert world.row.plan_version == 2


def test_C13_a_change_that_cannot_begin_is_told_with_the_failure() -> None:
    """The plan that made what is in flight fails again: else its user would look for the reason in what was ordered."""
    world = unaligned()
    world.fail("count", permanent=True)
    world.settle()
    assert world.row.state == "FAILED"
    assert "have not begun" not in world.row.reason
    world.request(ModifyProcessor("m", NAME, None, {"count": 2}))
    world.acking = lambda _: False
    world.request(StartProcessor("s", NAME))
    world.pass_ms(500)
    assert world.row.plan_version == 1
    world.fail("count", permanent=True)
    world.settle()
    assert "have not begun" in world.row.reason
    world.acking = lambda _: True
    world.request(StartProcessor("t", NAME, resume=False))
    world.pass_ms(2_000)
    assert (world.row.state, world.row.plan_version) == ("RUNNING", 2)


def test_C13_generations_whose_frames_channels_carry_are_named() -> None:
    """However many committed since the last checkpoint that had taken them: without its entry a generation's frames would be discarded."""
    world = started(CoordinatorSettings(lineage_max=2))
    for _ in range(4):
        world.behind += 100
        world.pass_ms(1_500)
        world.fail("count")
        world.pass_ms(3_000)
    assigned = [c for c in world.commands if isinstance(c, Assign)][-1]
    assert [e.generation for e in assigned.lineage] == [1, 2, 3, 4, 5]
    assert [e.generation for e in world.store.lineages[world.row.job]] == [1, 2, 3, 4, 5]
    world.behind = 0
    world.pass_ms(1_500)
    world.fail("count")
    world.pass_ms(3_000)
    assigned = [c for c in world.commands if isinstance(c, Assign)][-1]
    assert [e.generation for e in assigned.lineage] == [5, 6]


def test_C13_blobs_of_an_epoch_that_a_channel_carries_stay() -> None:
    """The order to delete goes no further than the last barrier of the channel that is behind the most."""
    world = unaligned()
    world.pass_ms(20_000)
    deletions = [c for c in world.nodes[0].log if isinstance(c, do.DeleteBlobs)]
    ends = [c.up_to for c in deletions if c.up_to is not None]
    assert ends
    assert max(ends) <= world.row.last - world.behind


def test_C13_R5_other_code_may_take_what_channels_carry() -> None:
    """It is another matter with stages and tasks: rows in flight were made by those that ran."""
    world = unaligned()
    p = world.nodes[0].machine.processors[NAME].state
    tasks, services = dict(p.plan.tasks), dict(p.plan.services)

    def plan(document: str, tasks: dict[VertexId, int]) -> PendingPlan:
        return PendingPlan(document, tasks, services, (), p.plan.key_groups, {}, code=b"new", code_digest="new")

    assert _may_change(p, plan(p.plan.document, tasks))
    assert not _may_change(p, plan(p.plan.document, {**tasks, VertexId("count"): 2}))
    assert not _may_change(p, plan("another", tasks))


def commit(epoch: int, *barriers: int, ended: bool = False) -> CommitRow:
    """A commit with a channel for each barrier."""
    channels = tuple(
        ChannelState(VertexId("up"), n, Seq(0), Epoch(b), 0, idle=False, ended=ended) for n, b in enumerate(barriers)
    )
    protocol = TaskProtocolState(inputs=(InputState("e", "i", Offset(0), channels),))
    return CommitRow(
        JobId("j"), Epoch(epoch), Epoch(epoch - 1), Generation(1), (TaskHandle(VertexId("me"), 0, protocol),)
    )


def test_C12_C13_segments_that_frames_in_flight_name_are_kept() -> None:
    """They lie under epochs behind the last barrier that the receiver has taken in any commit that is kept."""
    last = Epoch(9)
    assert taken_up_to([commit(8, 8, 8), commit(9, 9, 9)], last) == 9
    assert taken_up_to([commit(9, 9, 6)], last) == 6
    assert taken_up_to([commit(7, 5, 7), commit(9, 9, 6)], last) == 5
    assert taken_up_to([], last) == 9
    assert is_aligned(commit(9, 9, 9))
    assert not is_aligned(commit(9, 9, 8))
    assert is_aligned(commit(9, 9, 8, ended=True)), "behind END there are barriers alone"
