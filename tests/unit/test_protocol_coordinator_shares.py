# ruff: noqa: N802 -- a test carries its rule's name
"""Quotas of bytes: rule E4, as the leader keeps it."""

import random
from collections.abc import Callable

import pytest

from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, ModifyProcessor, ShareBytes, StartProcessor, StopProcessor
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings, Quota
from tidemark.shared.protocol.coordinator.state import Phase

DOCUMENT = "read:source emit:sink; read>emit"
A, B, C, X = (ProcessorName(name) for name in ("a.one", "a.two", "a.three", "b.one"))
MOST = 100_000
STEP_MS = 100


class Flowing(World):
    """Sources take what they are let of what they have: `rates`, bytes a second by name of the processor."""

    def __init__(self, *quotas: Quota) -> None:
        """A leader with these quotas, and workers with room for many."""
        super().__init__(CoordinatorSettings(quotas=quotas))
        self.rates: dict[ProcessorName, int] = {}
        self.lead()
        for n in range(3):
            for service in ("source", "sink"):
                self.worker(f"{service}-{n}", service, slots=8)

    def runs(self, *names: ProcessorName) -> None:
        """They are created and started."""
        for name in names:
            self.request(CreateProcessor(f"create {name}", name, DOCUMENT))
            self.settle()
            self.request(StartProcessor(f"start {name}", name))
        self.settle()

    def shares(self, *names: ProcessorName) -> list[int]:
        """What sources of these processors have now, of all where none is named."""
        tasks = [t for w in self.workers.values() if w.alive for t in w.tasks.values() if t.is_source and t.restored]
        return [t.share for t in tasks if (not names or t.assign.name in names) and t.assign.name != X]

    def flow(self, seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Time passes, and records come."""
        for _ in range(int(seconds * 1_000 / STEP_MS)):
            for worker in self.workers.values():
                for task in worker.tasks.values():
                    if task.is_source and task.restored:
                        rate = self.rates.get(task.assign.name, 0)
                        task.taken += (min(rate, task.share) if task.share else rate) * STEP_MS // 1_000
            self.pass_ms(STEP_MS, STEP_MS)
            check()

    def bounded(self) -> None:
        """All together never have more than the quota, beside a byte each."""
        shares = self.shares()
        assert sum(shares) <= MOST + len(shares), shares
        for name in (A, B, C):
            phase = (
                self.nodes[0].machine.processors[name].state.phase if name in self.nodes[0].machine.processors else None
            )
            assert phase is not Phase.RUNNING or all(self.shares(name)), f"{name} reads without a share"


def test_E4_shares_follow_what_is_taken_and_nobody_starves() -> None:
    """The busy ones have nearly all of the quota, an idle one what it needs to begin; whoever becomes busy gets as much as the others."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = {A: 10**6, B: 0, X: 10**6}
    world.runs(A, B, X)
    world.flow(10, world.bounded)
    assert world.shares(A)[0] > 0.8 * MOST
    assert world.shares(B)[0] >= MOST // 8
    world.rates[B] = 10**6
    world.flow(10, world.bounded)
    assert min(world.shares(A, B)) > 0.45 * MOST
    world.runs(C)
    world.rates[C] = 10**6
    world.flow(10, world.bounded)
    assert min(world.shares()) > 0.3 * MOST
    jobs = {world.nodes[0].machine.processors[name].state.row.job for name in (A, B, C)}
    assert {c.job for c in world.said(ShareBytes) if isinstance(c, ShareBytes)} == jobs


def test_E4_what_ends_leaves_its_share_and_a_rescale_divides_anew() -> None:
    """A stop, more tasks, a task that dies: those that read have shares of the quota before they begin, and soon all of it."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = dict.fromkeys((A, B), 10**6)
    world.runs(A, B)
    world.flow(8, world.bounded)
    world.request(StopProcessor("stop", B))
    world.flow(8, world.bounded)
    assert world.shares(A)[0] > 0.9 * MOST
    world.request(ModifyProcessor("grow", A, parallelism={"source": 3}))
    world.flow(12, world.bounded)
    assert len(world.shares(A)) == 3
    assert min(world.shares(A)) > 0.28 * MOST
    world.fail("read", 1)
    world.flow(12, world.bounded)
    assert min(world.shares(A)) > 0.28 * MOST


def test_E4_a_new_leader_raises_no_share_before_it_knows_all() -> None:
    """Where one worker's beats come late, nobody gets what that one's sources have. A smaller quota counts at once."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = {A: 10**6, B: 0}
    world.runs(A, B)
    world.flow(8, world.bounded)
    assert world.shares(A)[0] > 0.8 * MOST
    holder = next(
        w for w in world.workers.values() if any(t.is_source and t.assign.name == A for t in w.tasks.values())
    )
    world.rates[B] = 10**6
    world.lead()
    holder.mute = True
    world.flow(2, world.bounded)
    holder.mute = False
    world.flow(8, world.bounded)
    assert min(world.shares(A, B)) > 0.45 * MOST
    node = world.nodes[0]
    node.machine.settings = node.machine.ctx.settings = CoordinatorSettings(
        quotas=(Quota("a", bytes_per_s=MOST // 10),)
    )
    world.lead()
    world.flow(5)
    assert sum(world.shares()) <= MOST // 10 + 2
    node.machine.settings = node.machine.ctx.settings = CoordinatorSettings()
    world.lead()
    world.flow(5)
    assert world.shares() == [0, 0]


def test_E4_a_share_that_rises_waits_for_the_one_that_falls() -> None:
    """A command that is late takes nothing from the quota: what a source says that it has counts until it says otherwise."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = {A: 10**6, B: 0}
    world.runs(A, B)
    world.flow(8, world.bounded)
    world.rates[B] = 10**6
    job = world.nodes[0].machine.processors[A].state.row.job
    world.fate = lambda c: (
        None if isinstance(c, do.Publish) and isinstance(c.command, ShareBytes) and c.command.job == job else "done"
    )
    world.flow(5, world.bounded)
    world.fate = lambda _: "done"
    world.flow(8, world.bounded)
    assert min(world.shares(A, B)) > 0.4 * MOST


def test_E4_one_more_beside_many_gets_its_part() -> None:
    """Though each of the many gives up so little that nobody would tell it for its own sake."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = dict.fromkeys((A, B), 10**6)
    world.request(CreateProcessor("many", A, DOCUMENT, {"source": 23}))
    world.runs(A)
    world.flow(6, world.bounded)
    assert min(world.shares(A)) > 0.9 * MOST / 23
    world.runs(B)
    world.flow(6, world.bounded)
    assert world.shares(B)[0] > 0.8 * MOST / 24


def test_E4_a_quota_that_is_a_little_less_counts() -> None:
    """By less than what is worth telling otherwise."""
    world = Flowing(Quota("a", bytes_per_s=MOST))
    world.rates = {A: 10**6}
    world.runs(A)
    world.flow(3)
    assert world.shares() == [MOST]
    node = world.nodes[0]
    less = CoordinatorSettings(quotas=(Quota("a", bytes_per_s=MOST * 98 // 100),))
    node.machine.settings = node.machine.ctx.settings = less
    world.lead()
    world.flow(3)
    assert world.shares() == [MOST * 98 // 100]


@pytest.mark.parametrize("seed", range(3))
def test_E4_whatever_happens_no_quota_of_bytes_is_exceeded(seed: int) -> None:
    """Rates, stops, starts, rescales, failures and leaders are drawn: the sum holds at each moment; who is busy has a fair part."""
    rng = random.Random(seed)
    world = Flowing(Quota("a", bytes_per_s=MOST))
    names = (A, B, C)
    world.runs(*names)
    for i in range(12):
        world.rates = {name: rng.choice((0, 1_000, 10**6)) for name in names}
        name = rng.choice(names)
        match rng.randrange(5):
            case 0:
                world.request(StopProcessor(f"stop {i}", name))
            case 1:
                world.request(ModifyProcessor(f"scale {i}", name, parallelism={"source": rng.randint(1, 4)}))
            case 2 if world.shares():
                world.fail("read")
            case 3:
                world.lead()
            case _:
                world.request(StartProcessor(f"start {i}", name))
        world.flow(rng.choice((0.5, 3)), world.bounded)
    world.rates = dict.fromkeys(names, 10**6)
    for name in names:
        world.request(StartProcessor(f"last {name}", name))
    world.flow(20, world.bounded)
    shares = world.shares()
    assert len(shares) >= len(names)
    assert min(shares) > 0.8 * MOST / len(shares)
