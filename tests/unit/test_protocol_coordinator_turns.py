# ruff: noqa: N802 -- a test carries its rule's name
"""What happens at an unlucky moment: a creation whose write fails, a start while it stops, an end between two writes, a second failure."""

import pytest

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME, WRITES, Fate
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.ids import Generation, JobId, Place, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import (
    CreateProcessor,
    Heartbeat,
    ModifyProcessor,
    StartProcessor,
    StopProcessor,
    StopTasks,
    TaskBeat,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.plans import fault_of


def fate_once(world: World, kind: type[do.CoordinatorCommand], fate: Fate) -> None:
    """The next command of a kind has this fate, all others are done."""
    left = [fate]
    world.fate = lambda command: left.pop() if left and isinstance(command, kind) else "done"


@pytest.mark.parametrize("fate", ["away", "ambiguous-lost", "ambiguous-done"])
def test_C8_a_creation_whose_write_was_not_answered_is_carried_out_once(fate: Fate) -> None:
    """The store away, the answer lost before or behind the write: it is tried again or found, and answered; others go on meanwhile."""
    world = World()
    world.lead()
    fate_once(world, do.StoreCreate, fate)
    world.request(CreateProcessor("create", NAME, DOCUMENT))
    world.settle()
    assert world.nodes[0].answers == ({} if fate == "away" else {"create": ""})
    world.pass_ms(world.settings.retry_ms)
    assert world.nodes[0].answers == {"create": ""}
    assert list(world.store.rows) == [NAME]


def test_a_creation_that_is_being_written_does_not_disturb_the_others() -> None:
    """While the store has not answered, time goes on."""
    world = World()
    world.lead()
    world.fate = lambda command: None if isinstance(command, do.StoreCreate) else "done"
    world.request(CreateProcessor("create", NAME, DOCUMENT))
    world.pass_ms(1_000)
    world.fate = lambda _: "done"
    world.settle()
    assert world.nodes[0].answers == {"create": ""}


def test_a_start_while_it_stops_takes_the_stop_back() -> None:
    """The same generation goes on, and both are answered."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(StopProcessor("stop", NAME))
    world.settle()
    assert world.status[NAME].state == "STOPPING"
    world.request(StartProcessor("go-on", NAME))
    world.settle()
    world.acking = lambda _: True
    world.pass_ms(3_000)
    assert (world.status[NAME].state, world.row.generation) == ("RUNNING", 1)
    assert (world.nodes[0].answers["stop"], world.nodes[0].answers["go-on"]) == ("", "")


def test_R1_a_start_that_was_written_is_carried_out_by_the_next_leader() -> None:
    """A coordinator that ends between the answer and the first generation leaves a processor that is to run."""
    world = World()
    world.lead()
    world.standard_workers()
    world.request(CreateProcessor("create", NAME, DOCUMENT))
    world.settle()
    world.fate = lambda command: None if isinstance(command, do.StoreNewGeneration) else "done"
    world.request(StartProcessor("start", NAME))
    world.settle()
    assert (world.row.state, world.row.generation) == ("STARTING", 0)
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(2_000)
    assert (world.status[NAME].state, world.row.generation) == ("RUNNING", 1)


def test_a_change_is_planned_once() -> None:
    """However much happens until the planner answers."""
    world = started()
    world.fate = lambda command: None if isinstance(command, do.MakePlan) else "done"
    world.request(ModifyProcessor("change", NAME, DOCUMENT))
    world.pass_ms(1_000)
    asked = [c for c in world.nodes[0].log if isinstance(c, do.MakePlan) and c.previous is not None]
    assert len(asked) == 1
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    assert world.nodes[0].answers["change"] == ""
    assert world.row.plan_version == 2


def _strange(world: World, place: str) -> Heartbeat:
    """What a worker of an installation that was restored, or of a processor that was dropped, says."""
    task = TaskBeat(NAME, JobId("gone"), Generation(7), VertexId("read"), 0, "running", world.row.last, 0, 0)
    return Heartbeat(WorkerIncarnation("other"), Place(place), "source", 4, 1, "host", (task,))


def test_R2_tasks_of_a_life_that_nobody_knows_are_stopped() -> None:
    """A processor that was dropped, or an earlier job of one, may still have tasks on a worker that was silent."""
    world = started()
    world.give(world.nodes[0], ev.ReportReceived(world.now_ms, _strange(world, "source-9")))
    world.settle()
    assert StopTasks(JobId("gone"), Generation(7)) in world.said(StopTasks)


def test_R1_an_unknown_incarnation_at_a_place_that_is_held_is_not_heard() -> None:
    """Only `Register` says which of two is newer: a beat of the one that was not seen yet changes nothing."""
    world = started()
    world.give(world.nodes[0], ev.ReportReceived(world.now_ms, _strange(world, "source-0")))
    world.settle()
    assert StopTasks(JobId("gone"), Generation(7)) not in world.said(StopTasks)
    assert WorkerIncarnation("other") not in world.nodes[0].machine.ctx.workers.alive


def test_the_first_failure_is_the_reason_that_is_told() -> None:
    """Also where both come while a write is under way: what fails in the wake of another says less."""
    world = started()
    world.pass_ms(1_500)
    world.fate = lambda command: None if isinstance(command, do.StoreCommit) else "done"
    world.pass_ms(1_500)
    world.fail("count")
    world.fail("emit")
    world.settle()
    world.fate = lambda _: "done"
    world.settle()
    assert world.status[NAME].reason == "begins again: task count/0: it broke"


def test_C10_a_commit_ends_the_row_of_outages() -> None:
    """The wait after the next one is the shortest again."""
    world = started()
    began: list[int] = []
    for _ in range(3):
        world.pass_ms(2_500)
        failed_ms, generation = world.now_ms, world.row.generation
        world.fail("count", outage=True)
        world.settle()
        while world.row.generation == generation:
            world.pass_ms(100)
        began.append(world.now_ms - failed_ms)
    assert began == [world.settings.backoff_base_ms] * 3


def test_who_waits_for_the_store_says_so() -> None:
    """A checkpoint, or a start, that cannot be written is seen in the status until it is."""
    world = started()
    world.pass_ms(2_500)
    world.fate = lambda command: "away" if isinstance(command, WRITES) else "done"
    world.pass_ms(2_000)
    assert world.status[NAME].reason == "waits for the coordinator's store, which does not answer"
    world.fate = lambda _: "done"
    world.pass_ms(1_500)
    assert world.status[NAME].reason == ""


def test_it_is_told_how_long_a_checkpoint_took() -> None:
    """From its start to its commit, the store's part with it."""
    world = started()
    world.pass_ms(2_500)
    world.fate = lambda command: None if isinstance(command, do.StoreCommit) else "done"
    world.pass_ms(4_000)
    world.fate = lambda _: "done"
    world.pass_ms(200)
    assert 3_000 <= world.status[NAME].epoch_ms <= 4_200


def test_a_plan_whose_edges_lead_nowhere_is_refused() -> None:
    """At either end."""
    vertices = (ev.PlannedVertex(VertexId("a"), "source", 1),)
    for sender, receiver in (("a", "b"), ("b", "a")):
        edge = ev.PlannedEdge("e", VertexId(sender), VertexId(receiver))  # type: ignore[arg-type]
        assert "is not a vertex" in fault_of(ev.PlannedPipeline("", vertices, (edge,)), frozenset())
