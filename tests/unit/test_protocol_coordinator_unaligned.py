# ruff: noqa: N802 -- a test carries its rule's name
"""What the coordinator does with checkpoints whose channels have state: rules C12, C13, R4."""

import pytest

from tests.unit.protocol_coordinator_support import NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.checkpoint import ChannelState, CommitRow, InputState, TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, Seq, VertexId
from tidemark.shared.model.messages import ModifyProcessor, StartCheckpoint, StopProcessor
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import blobs_end, is_aligned
from tidemark.shared.protocol.coordinator.generation import _may_change
from tidemark.shared.protocol.coordinator.record import PendingPlan


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


def commit(epoch: int, *barriers: int) -> CommitRow:
    """A commit with a channel for each barrier."""
    channels = tuple(
        ChannelState(VertexId("up"), n, Seq(0), Epoch(b), 0, idle=False, ended=False) for n, b in enumerate(barriers)
    )
    protocol = TaskProtocolState(inputs=(InputState("e", "i", Offset(0), channels),))
    return CommitRow(
        JobId("j"), Epoch(epoch), Epoch(epoch - 1), Generation(1), (TaskHandle(VertexId("me"), 0, protocol),)
    )


def test_C12_C13_segments_that_frames_in_flight_name_are_kept() -> None:
    """They lie under epochs behind the last barrier that the receiver has taken in any commit that is kept."""
    last = Epoch(9)
    assert blobs_end([commit(8, 8, 8), commit(9, 9, 9)], last) == 9
    assert blobs_end([commit(9, 9, 6)], last) == 6
    assert blobs_end([commit(7, 5, 7), commit(9, 9, 6)], last) == 5
    assert blobs_end([], last) == 9
    assert is_aligned(commit(9, 9, 9))
    assert not is_aligned(commit(9, 9, 8))
