# ruff: noqa: N802 -- a test carries its rule's name
"""Quotas of namespaces: rule E4."""

import random

import pytest

from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.ids import ProcessorName, namespace_of
from tidemark.shared.model.messages import (
    CreateProcessor,
    CreateRunning,
    DropProcessor,
    KeepCheckpoint,
    ModifyProcessor,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.process.settings import ProcessSettingsError, settings_of
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings, Quota
from tidemark.shared.protocol.coordinator.state import ACTIVE

DOCUMENT = "read:source emit:sink; read>emit"
"""Two tasks."""
A, B, C, X = (ProcessorName(name) for name in ("a.one", "a.two", "a.three", "b.one"))


def leading(*quotas: Quota) -> World:
    """A leader with these quotas, and workers with room for many."""
    world = World(CoordinatorSettings(quotas=quotas))
    world.lead()
    world.standard_workers()
    return world


def asked(
    world: World,
    *requests: CreateProcessor | StartProcessor | StopProcessor | ModifyProcessor | DropProcessor | KeepCheckpoint,
) -> list[str]:
    """The answers to requests that come together."""
    for request in requests:
        world.request(request)
    world.settle()
    return [world.nodes[0].answers[request.request] for request in requests]


def create(name: ProcessorName, request: str = "") -> CreateProcessor:
    return CreateProcessor(request or f"create {name}", name, DOCUMENT)


def start(name: ProcessorName, request: str = "") -> StartProcessor:
    return StartProcessor(request or f"start {name}", name)


def test_E4_a_namespace_has_no_more_processors_than_its_quota() -> None:
    """Also where they come together; the refusal says the figures, other namespaces go on, and after a drop there is room."""
    world = leading(Quota("a", processors=2))
    done = asked(world, create(A), create(B), create(C), create(X))
    full = "namespace a has 2 of at most 2 processors: drop one first, or raise its quota"
    assert done == ["", "", full, ""]
    assert asked(world, DropProcessor("drop", A)) == [""]
    assert asked(world, create(C, "again")) == [""]


def test_E4_a_drop_that_is_answered_has_made_room() -> None:
    """Though its row goes behind the answer."""
    world = leading(Quota("a", processors=2))
    asked(world, create(A), create(B))
    world.fate = lambda c: None if isinstance(c, do.StoreDrop) else "done"
    assert asked(world, DropProcessor("drop", A)) == [""]
    assert A in world.store.rows
    assert asked(world, create(C)) == [""]


def test_E4_no_more_tasks_run_than_a_namespaces_quota() -> None:
    """Starts that come together count each other; a stop makes room; a restart of one that runs is none."""
    world = leading(Quota("a", tasks=4))
    asked(world, create(A), create(B), create(C), create(X))
    done = asked(world, start(A), start(B), start(C), start(X))
    counted = "a.three would run with 2 tasks, others of namespace a run with 4, and at most 4 may"
    assert done == ["", "", f"{counted}: stop one, give this one fewer tasks, or raise the quota", ""]
    assert asked(world, start(A, "once more")) == [""]
    assert asked(world, StopProcessor("stop", A)) == [""]
    world.pass_ms(3_000)
    assert asked(world, start(C, "now")) == [""]


def test_E4_a_processor_that_is_to_run_at_once_is_registered_only_if_it_may() -> None:
    """Those that come together count each other; what is refused is not there, and may be asked for again when there is room."""
    world = leading(Quota("a", tasks=4))
    first, second, third = (CreateRunning(f"run {name}", name, DOCUMENT) for name in (A, B, C))
    world.fate = lambda c: "away" if isinstance(c, do.StoreCreate) else "done"
    for request in (first, second, third):
        world.request(request)
    world.settle()
    world.fate = lambda _: "done"
    world.pass_ms(3_000)
    answers = [world.nodes[0].answers[request.request] for request in (first, second, third)]
    counted = "a.three would run with 2 tasks, others of namespace a run with 4, and at most 4 may"
    assert answers == ["", "", f"{counted}: stop one, give this one fewer tasks, or raise the quota"]
    assert set(world.store.rows) == {A, B}
    assert {machine.state.phase for machine in world.nodes[0].machine.processors.values()} <= ACTIVE
    assert asked(world, StopProcessor("stop", A)) == [""]
    world.pass_ms(3_000)
    assert asked(world, CreateRunning("again", C, DOCUMENT)) == [""]


@pytest.mark.parametrize("lost", [do.StoreCommit, do.StoreNewGeneration])
def test_E4_one_that_goes_back_counts_with_the_tasks_of_then(lost: type) -> None:
    """Before its row has them, while it is written, and at a plain start behind a stop."""
    world = leading(Quota("a", tasks=5))
    asked(world, create(A), create(B))
    asked(world, start(A))
    world.pass_ms(1_500)
    assert asked(world, ModifyProcessor("to 3", A, parallelism={"source": 3})) == [""]
    world.pass_ms(3_000)
    assert asked(world, KeepCheckpoint("keep", A, "then")) == [""]
    assert asked(world, ModifyProcessor("to 1", A, parallelism={"source": 1})) == [""]
    world.pass_ms(3_000)
    assert asked(world, StopProcessor("stop", A)) == [""]
    world.pass_ms(3_000)
    world.fate = lambda c: None if isinstance(c, lost) else "done"
    assert asked(world, StartProcessor("back", A, checkpoint="then")) == [""]
    assert "others of namespace a run with 4" in asked(world, start(B))[0]
    if lost is do.StoreCommit:
        world.fate = lambda c: "away" if isinstance(c, lost) else "done"
        assert "others of namespace a run with 4" in asked(world, start(B, "again"))[0]
        world.pass_ms(1_000)
        world.request(StopProcessor("stop it", A))
        world.pass_ms(3_000)
        assert asked(world, start(B, "now")) == [""]
        assert "a.one would run with 4 tasks" in asked(world, start(A, "on"))[0]


def test_E4_a_running_processor_grows_within_its_quota_alone() -> None:
    """A change to more tasks is refused, one to fewer done."""
    world = leading(Quota("*", tasks=3))
    asked(world, create(A))
    assert asked(world, start(A)) == [""]
    world.pass_ms(1_500)
    grown, refused = (ModifyProcessor(f"to {n}", A, parallelism={"source": n}) for n in (2, 3))
    assert asked(world, grown) == [""]
    world.pass_ms(3_000)
    assert "would run with 4 tasks, others of namespace a run with 0, and at most 3 may" in asked(world, refused)[0]
    assert asked(world, ModifyProcessor("back", A, parallelism={"source": 1})) == [""]


def test_E4_a_new_leader_counts_the_same_and_what_runs_goes_on() -> None:
    """A leader of a smaller quota ends nothing, refuses one more, and lets shrink."""
    world = leading()
    asked(world, create(A), create(B))
    assert asked(world, start(A)) == [""]
    asked(world, ModifyProcessor("grow", A, parallelism={"source": 3}))
    world.pass_ms(3_000)
    node = world.nodes[0]
    node.machine.settings = node.machine.ctx.settings = CoordinatorSettings(quotas=(Quota("a", processors=2, tasks=2),))
    world.lead(node)
    world.pass_ms(3_000)
    assert node.machine.processors[A].state.phase in ACTIVE
    assert "others of namespace a run with 4" in asked(world, start(B))[0]
    assert "has 2 of at most 2" in asked(world, create(C))[0]
    assert asked(world, ModifyProcessor("shrink", A, parallelism={"source": 2})) == [""]


@pytest.mark.parametrize("seed", range(30))
def test_E4_whatever_is_asked_no_quota_is_exceeded(seed: int) -> None:
    """Creates, starts, stops, changes, drops of drawn names, several at a time: bounds hold behind each round."""
    rng = random.Random(seed)
    quotas = (Quota("a", processors=rng.randint(0, 3), tasks=rng.randint(0, 7)), Quota("*", processors=2, tasks=4))
    world = leading(*quotas)
    names = [ProcessorName(f"{space}{i}") for space in ("a.", "b.", "") for i in range(4)]
    for i in range(25):
        for j in range(rng.randint(1, 4)):
            name, request = rng.choice(names), f"{i}/{j}"
            parallelism = {"source": rng.randint(1, 3)}
            world.request(
                rng.choice(
                    (
                        CreateProcessor(request, name, DOCUMENT, parallelism),
                        CreateRunning(request, name, DOCUMENT, parallelism),
                        StartProcessor(request, name, rng.random() < 0.8),
                        StopProcessor(request, name),
                        ModifyProcessor(request, name, parallelism=parallelism),
                        DropProcessor(request, name),
                    )
                )
            )
        world.settle()
        world.pass_ms(rng.choice((0, 100, 2_000)))
        states = [machine.state for machine in world.nodes[0].machine.processors.values()]
        for space, quota in (("a", quotas[0]), ("b", quotas[1]), ("", quotas[1])):
            own = [p for p in states if namespace_of(p.name) == space]
            tasks = sum(sum(p.plan.tasks.values()) for p in own if p.phase in ACTIVE and p.kept.pending is None)
            assert len(own) <= (quota.processors or 0)
            assert tasks <= (quota.tasks or 0)


def test_quotas_that_cannot_work_are_refused() -> None:
    """A namespace twice, a negative bound, an unknown word."""
    for quotas, message in (
        ([{"namespace": "a"}, {"namespace": "a"}], "quotas: expected each namespace once, found a, a"),
        ([{"namespace": "a", "tasks": -1}], r"quotas\[0\].tasks"),
        ([{"namespace": "a", "slots": 1}], "unknown field `slots`"),
    ):
        with pytest.raises(ProcessSettingsError, match=message):
            settings_of({"quotas": quotas}, CoordinatorSettings, "TIDEMARK_EXTRA")
