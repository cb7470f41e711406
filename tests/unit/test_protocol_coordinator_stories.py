# ruff: noqa: N802 -- a test carries its rule's name
"""The coordinator from creation to the end, as stories."""

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.messages import (
    CreateProcessor,
    Drain,
    DropProcessor,
    StartProcessor,
    StartSources,
    StopProcessor,
    StopTasks,
)


def test_created_planned_started_checkpointed() -> None:
    """A processor is created, planned, assigned, started; checkpoints are committed at the interval and mirrored."""
    world = started()
    assert world.nodes[0].answers == {"create": "", "start": ""}
    assert len(world.assigned(1)) == 3
    world.pass_ms(3_500)
    assert [r.epoch for r in world.store.history[world.row.job]] == [1, 2, 3]
    assert [m.epoch for m in world.mirror] == [1, 2, 3]
    assert world.status[NAME].state == "RUNNING"
    assert world.status[NAME].released >= 2


def test_R1_recovers_after_a_failed_task() -> None:
    """A failed task ends the generation; the next is restored from the last commit and goes on (R1)."""
    world = started()
    world.pass_ms(2_500)
    world.fail("count")
    world.pass_ms(5_000)
    assert [e.generation for e in world.store.lineages[world.row.job]] == [1, 2]
    assert world.store.lineages[world.row.job][1].restored_from == 2
    assert world.row.last > 2
    assert len(world.said(StartSources)) == 2


def test_recovers_after_a_lost_worker() -> None:
    """A worker whose heartbeats stop ends the generation; its tasks move to another."""
    world = started()
    world.pass_ms(2_500)
    worker, _ = world.holder("count")
    worker.alive = False
    other = world.worker("operator-1", "operator")
    world.pass_ms(10_000)
    assert world.row.generation == 2
    assert world.holder("count")[0] is other
    assert world.row.last > 2


def test_E1_E2_drains_to_the_end() -> None:
    """Stop with drain ends the input; the processor is FINISHED when the final checkpoint is released (E1, E2)."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("drain", NAME, drain=True, until={"t-0": 100}))  # type: ignore[dict-item]
    world.settle()
    assert world.said(Drain)
    world.pass_ms(2_500)
    assert world.row.state == "FINISHED"
    assert world.store.history[world.row.job][-1].final
    assert isinstance(world.commands[-1], StopTasks)
    assert not any(w.tasks for w in world.workers.values())


def test_E2_stops_and_resumes() -> None:
    """Stop without drain takes a checkpoint; a start resumes from it (E2)."""
    world = started()
    world.pass_ms(1_500)
    last = world.row.last
    world.request(StopProcessor("stop", NAME))
    world.settle()
    assert world.row.state == "STOPPED"
    assert world.row.last == last + 1
    world.request(StartProcessor("again", NAME))
    world.pass_ms(2_000)
    assert world.status[NAME].state == "RUNNING"
    assert world.store.lineages[world.row.job][1].restored_from == last + 1


def test_refuses_a_bad_document() -> None:
    """A document that cannot be planned is answered with the planner's reason, and no row is made."""
    world = World()
    world.lead()
    world.request(CreateProcessor("create", NAME, "bad"))
    world.settle()
    assert world.nodes[0].answers == {"create": "pipeline[0]: no such stage"}
    assert not world.store.rows


def test_drops_all_that_it_stored() -> None:
    """A dropped processor leaves no row, topic or blob, and may be created again."""
    world = started()
    world.pass_ms(2_500)
    world.request(StopProcessor("stop", NAME))
    world.settle()
    world.request(DropProcessor("drop", NAME))
    world.settle()
    assert (world.store.rows, world.topics, world.blobs, world.status) == ({}, {}, {}, {})
    assert world.nodes[0].answers["drop"] == ""
    world.request(CreateProcessor("create-2", NAME, DOCUMENT))
    world.settle()
    assert world.row.state == "CREATED"
