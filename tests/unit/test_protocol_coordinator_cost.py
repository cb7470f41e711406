# ruff: noqa: N802 -- a test carries its rule's name
"""What an event costs a leader, in instructions: it goes by what waits and runs, not by what is kept or has ended."""

import random
import sys
from types import FrameType
from typing import Any

import pytest
from msgspec import structs

from tests.harness.share import share
from tests.unit.protocol_coordinator_support import DOCUMENT, NAME, Fate, Node
from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName
from tidemark.shared.model.messages import CreateProcessor, StartProcessor
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

FEW, MANY = 10, 100_000
ENDED_FEW, ENDED_MANY = 5, 500
OF_PROTOCOL = "shared/protocol/"
BEYOND_MAX = 1_000
"""Instructions of an event beyond those of another with less that is kept. To look at each of what is kept would take ten times as many."""


class Blind:
    """A judge that sees nothing: a real one looks at all that is kept."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


class Counting(World):
    """Counts the instructions of the protocol's code, by event, once it is asked to."""

    costs: list[int]
    counts = False

    def give(self, node: Node, event: ev.CoordinatorEvent) -> list[do.CoordinatorCommand]:
        """See `World.give`."""
        if node.deaf:
            return []
        cost = 0

        def traced(frame: FrameType, kind: str, _: Any) -> Any:
            nonlocal cost
            if OF_PROTOCOL not in frame.f_code.co_filename:
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            cost += kind == "opcode"
            return traced

        before = sys.gettrace()
        sys.settrace(traced if self.counts else before)
        try:
            out = node.machine.handle(event)
        finally:
            sys.settrace(before)
        if self.counts:
            self.costs.append(cost)
        node.todo.extend(out)
        node.log.extend(out)
        return out


def running(settings: CoordinatorSettings) -> Counting:
    """A processor runs, and has committed."""
    world = Counting(settings)
    world.judge = Blind()  # type: ignore[assignment]
    world.lead()
    world.standard_workers()
    world.request(CreateProcessor("create", NAME, DOCUMENT, {}))
    world.settle()
    world.request(StartProcessor("start", NAME))
    world.pass_ms(2_500)
    assert world.row.last
    return world


def costliest(world: Counting, seed: int) -> int:
    """Of a new term's events, over a drawn order of commits, releases, and times at which neither comes; once all that can rest does."""
    world.lead()
    world.pass_ms(4_000)
    world.counts, world.costs = True, []
    draw, last = random.Random(seed), world.row.last
    for _ in range(8):
        world.releasing = draw.random() < 0.6
        world.acking = (lambda _: True) if draw.random() < 0.8 else (lambda _: False)
        world.pass_ms(draw.choice((200, 700, 1_500)))
    world.releasing, world.acking = True, lambda _: True
    world.pass_ms(3_000)
    assert world.row.last > last
    return max(world.costs)


def test_C11_commits_that_nobody_waits_for_cost_an_event_nothing() -> None:
    """As many instructions for ten as for a hundred thousand rows, though the store does not answer."""

    def kept(number: int) -> int:
        world = running(
            CoordinatorSettings(cleanup_interval_ms=3_600_000, checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=100)
        )
        row, (newest, *_) = world.row, world.store.commits[world.row.job][::-1]
        old = [structs.replace(newest, epoch=Epoch(n - number)) for n in range(number)]
        world.store.commits[row.job] = [*old, newest]
        world.fate = unless_forgetting
        return costliest(world, 1)

    assert kept(MANY) <= kept(FEW) + BEYOND_MAX


def unless_forgetting(command: do.CoordinatorCommand) -> Fate | None:
    """The store says nothing of what it forgets."""
    return None if isinstance(command, do.StoreForget) else "done"


@pytest.mark.parametrize("seed", share(range(2), 2))
def test_C12_processors_that_have_ended_cost_an_event_nothing(seed: int) -> None:
    """As many instructions beside five as beside five hundred that have finished, once what they left is deleted."""

    def beside(number: int) -> int:
        world = running(
            CoordinatorSettings(cleanup_interval_ms=1_000, checkpoint_timeout_ms=1_500, checkpoint_timeouts_max=100)
        )
        row, newest = world.row, world.store.commits[world.row.job][-1]
        for n in range(number):
            name, job = ProcessorName(f"ended-{n}"), JobId(f"{n:032x}")
            commit = structs.replace(newest, job=job, epoch=Epoch(1), predecessor=Epoch(0), final=True)
            world.store.rows[name] = structs.replace(
                row, name=name, job=job, last=Epoch(1), generation=Generation(1), desired="running", state="FINISHED"
            )
            world.store.commits[job] = [commit]
        world.mirror += [
            structs.replace(world.mirror[0], job=JobId(f"{n:032x}"), epoch=Epoch(1)) for n in range(number)
        ]
        return costliest(world, seed)

    assert beside(ENDED_MANY) <= beside(ENDED_FEW) + BEYOND_MAX
