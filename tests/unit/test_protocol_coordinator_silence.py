# ruff: noqa: N802 -- a test carries its rule's name
"""Slow is not dead: whose silence loses a worker, and whose does not (R1)."""

from tests.unit.protocol_coordinator_support import FakeWorker
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.messages import Alive
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

SETTINGS = CoordinatorSettings(heartbeat_timeout_ms=6_000, work_timeout_ms=40_000)


def silent() -> tuple[World, FakeWorker]:
    """A world in which a processor runs, and a worker of it of which nothing is heard any more."""
    world = started(SETTINGS)
    world.pass_ms(1_500)
    worker, _ = world.holder("count")
    worker.mute = True
    return world, worker


def vouched(world: World, worker: FakeWorker, duration_ms: int) -> None:
    """Time passes, and who started the worker's process says that it runs."""
    for _ in range(0, duration_ms, 500):
        for node in world.nodes:
            node.inbox.append(Alive((worker.incarnation,)))
        world.pass_ms(500)


def test_R1_a_worker_whose_process_runs_is_not_lost_when_it_cannot_beat() -> None:
    """Many times the heartbeats' time-out, as long as who started it sees it run."""
    world, worker = silent()
    vouched(world, worker, 30_000)
    assert world.row.generation == 1
    world.pass_ms(7_000)
    assert world.row.generation == 2


def test_R1_a_worker_that_does_nothing_for_very_long_is_lost_although_its_process_runs() -> None:
    """Being able to work is told apart from being alive, and has a longer patience of its own."""
    world, worker = silent()
    vouched(world, worker, 39_000)
    assert world.row.generation == 1
    vouched(world, worker, 3_000)
    assert world.row.generation == 2


def test_R1_who_is_not_known_is_not_made_known_by_others() -> None:
    """Only a worker itself says what it is and where."""
    world, worker = silent()
    world.pass_ms(7_000)
    assert world.row.generation == 2
    known = set(world.nodes[0].machine.ctx.workers.alive)
    vouched(world, worker, 1_000)
    assert set(world.nodes[0].machine.ctx.workers.alive) == known


def test_R1_reports_that_have_not_been_read_are_nobodys_silence() -> None:
    """A channel that stands still loses no worker; what was read behind it does, if it was silent."""
    world, _ = silent()
    for worker in world.workers.values():
        worker.mute = True
    stood_ms = world.now_ms
    for _ in range(60):
        world.now_ms += 500
        for node in world.nodes:
            world.give(node, ev.Tick(world.now_ms, read_to_ms=stood_ms))
        world.settle()
    assert world.row.generation == 1
    world.tick()
    world.settle()
    assert world.nodes[0].machine.ctx.workers.alive == {}
