# ruff: noqa: N802 -- a test carries its rule's name
"""Code of computations as a part of the plan: rule R5 as the coordinator keeps it."""

import pytest

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME
from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.messages import (
    CreateProcessor,
    ModifyProcessor,
    RunningPlan,
    StartProcessor,
    StartSources,
    StopProcessor,
)
from tidemark.shared.protocol.coordinator.record import decode_plan


def running(code: str = "one") -> World:
    """A world in which a processor with this code has run for a while."""
    world = World()
    world.code = code
    world.lead()
    world.standard_workers()
    world.request(CreateProcessor("create", NAME, DOCUMENT, {}))
    world.settle()
    world.request(StartProcessor("start", NAME))
    world.settle()
    assert world.said(StartSources), world.status
    world.pass_ms(1_500)
    return world


def stopped(world: World) -> RunningPlan:
    """Stop it; the plan that it had."""
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(3_000)
    assert world.row.state == "STOPPED"
    return decode_plan(world.row.plan)


def runs(world: World, generation: int) -> set[tuple[int, str, bytes]]:
    """Version, digest and code that the tasks of a generation were given."""
    return {(a.plan.version, a.plan.code_digest, a.plan.code) for a in world.assigned(generation).values()}


@pytest.mark.parametrize("resume", [True, False])
def test_R5_a_start_takes_other_code_as_a_change_of_plan(resume: bool) -> None:
    """Its version goes up, all tasks have it, and what was before followed from another one."""
    world = running()
    plan = stopped(world)
    assert runs(world, 1) == {(1, "one", b"one")}
    world.code = "two"
    world.request(StartProcessor("again", NAME, resume))
    world.pass_ms(3_000)
    assert world.row.state == "RUNNING"
    assert runs(world, world.row.generation) == {(2, "two", b"two")}
    since = decode_plan(world.row.plan).since
    assert (since > plan.since) == resume


def test_R5_a_start_with_the_same_code_changes_nothing() -> None:
    """The plan is the one that it was."""
    world = running()
    plan = stopped(world)
    world.request(StartProcessor("again", NAME))
    world.pass_ms(3_000)
    assert world.row.state == "RUNNING"
    assert decode_plan(world.row.plan) == plan


def test_R5_a_recovery_goes_on_with_the_code_of_the_plan() -> None:
    """Whatever lies on the disk by then: a generation that follows a failure runs what the one before ran."""
    world = running()
    world.code = "two"
    world.fail("count")
    world.pass_ms(3_000)
    assert world.row.generation == 2
    assert runs(world, 2) == {(1, "one", b"one")}


def test_R5_a_modify_brings_the_code_of_its_moment() -> None:
    """With the same document, too; and a start behind it does not ask for less."""
    world = running()
    world.code = "two"
    world.request(ModifyProcessor("modify", NAME))
    world.pass_ms(3_000)
    assert runs(world, world.row.generation) == {(2, "two", b"two")}


def test_R5_a_change_that_waits_for_a_start_is_looked_at_again() -> None:
    """Modified while stopped, edited again, started: the code of the start runs."""
    world = running()
    stopped(world)
    world.code = "two"
    world.request(ModifyProcessor("modify", NAME))
    world.settle()
    world.code = "three"
    world.request(StartProcessor("again", NAME))
    world.pass_ms(3_000)
    assert runs(world, world.row.generation) == {(2, "three", b"three")}
