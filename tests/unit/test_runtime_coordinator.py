"""Who leads: a coordinator that is started again at its place, and two that were given the same one."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from shared.adapters.blobs import MemoryBlobs
from shared.adapters.memory_broker import MemoryBroker
from shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from shared.adapters.memory_log import MemoryLog
from shared.adapters.virtual import VirtualWorld, run_virtual
from shared.model.ids import LeaderToken
from shared.protocol.coordinator.events import PlannedPipeline
from shared.protocol.coordinator.machine import CoordinatorMachine
from shared.protocol.coordinator.settings import CoordinatorSettings
from shared.runtime.context import Outside
from shared.runtime.coordinator import CoordinatorDriver
from shared.runtime.settings import RuntimeSettings
from shared.runtime.topics import Topics

LEASE_MS = 5_000


class NotedStore(MemoryCommitStore):
    """Notes who took leadership, and when."""

    def __init__(self, state: MemoryCommitState, taken: list[tuple[str, int]]) -> None:
        super().__init__(state)
        self._taken = taken

    async def lead(self, holder: str, lease_ms: int, now_ms: int) -> LeaderToken | None:
        token = await super().lead(holder, lease_ms, now_ms)
        if token is not None:
            self._taken.append((holder, now_ms))
        return token


def _no_plan(*_: Any) -> PlannedPipeline:
    raise AssertionError("nothing is planned here")


class Stand:
    """Coordinators on one store and one broker; `taken`: who led, and since when, ms of the clock."""

    def __init__(self, world: VirtualWorld) -> None:
        self.clock = world.clock
        self.taken: list[tuple[str, int]] = []
        self._world = world
        self._broker = MemoryBroker(world.clock)
        self._state = MemoryCommitState()
        self._numbers = iter(range(1, 10_000))

    def start(self, place: str) -> "asyncio.Task[None]":
        """One that runs."""
        world = self._world
        outside = Outside(
            MemoryLog(self._broker),
            MemoryBlobs(world.executor),
            world.clock,
            world.executor,
            Topics(),
            RuntimeSettings(engine="local"),
            lambda: f"{next(self._numbers):032x}",
        )
        machine = CoordinatorMachine(CoordinatorSettings(), outside.unique)
        store = NotedStore(self._state, self.taken)
        driver = CoordinatorDriver(place, outside, store, _no_plan, machine, lease_ms=LEASE_MS)
        return asyncio.ensure_future(driver.run())


def on_virtual_time(story: Callable[[Stand], Any]) -> list[tuple[str, int]]:
    """What a story leaves in `taken`, with times from its beginning."""

    async def main(world: VirtualWorld) -> list[tuple[str, int]]:
        stand = Stand(world)
        began_ms = world.clock.now_ms()
        tasks: Mapping[str, asyncio.Task[None]] = await story(stand)
        for task in tasks.values():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return [(holder, at_ms - began_ms) for holder, at_ms in stand.taken]

    return run_virtual(main)


def test_a_coordinator_leads_again_at_once_at_its_place() -> None:
    """C8: a process that was killed left a lease that runs on; the one that follows it at its place does not wait for it, another does."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        killed = stand.start("coordinator-0")
        await stand.clock.sleep_ms(1_000)
        killed.cancel()
        tasks = {"standby": stand.start("coordinator-1"), "again": stand.start("coordinator-0")}
        await stand.clock.sleep_ms(1_000)
        return tasks

    taken = on_virtual_time(story)
    assert [holder for holder, _ in taken] == ["coordinator-0", "coordinator-0"]
    assert taken[1][1] < LEASE_MS


def test_two_at_one_place_do_not_take_it_from_each_other_for_ever() -> None:
    """The one that has lost the lease stands by under a name of its own."""

    async def story(stand: Stand) -> dict[str, "asyncio.Task[None]"]:
        tasks = {"first": stand.start("coordinator-0")}
        await stand.clock.sleep_ms(100)
        tasks["second"] = stand.start("coordinator-0")
        await stand.clock.sleep_ms(10 * LEASE_MS)
        return tasks

    assert [holder for holder, _ in on_virtual_time(story)] == ["coordinator-0", "coordinator-0"]
