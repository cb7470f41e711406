"""Coordinators beside the one of an installation, whose ways to broker and store can be cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from tests.harness.installation import Installed
from tests.harness.sealing import sealed
from tidemark.services.coordinator.planning import plan_for_coordinator
from tidemark.shared.adapters.faults import Faults
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.coordinator import CoordinatorDriver
from tidemark.shared.runtime.sealed_log import SealedLog


@dataclass
class Leader:
    """A coordinator, and its ways out."""

    driver: CoordinatorDriver
    log: Faults
    store: Faults

    def cut(self, *, away: bool) -> None:
        """Neither broker nor store can be reached, or both again."""
        self.log.away = self.store.away = away

    async def leads(self) -> None:
        """Wait until it does."""
        while self.driver._token is None:
            await self.driver._outside.clock.sleep_ms(100)


def of_installation(there: Installed) -> Leader:
    """The coordinator that the installation began with."""
    driver = there.parts["coordinator"]
    assert isinstance(driver, CoordinatorDriver)
    log, store = driver._outside.log, driver._store
    assert isinstance(log, SealedLog)
    assert isinstance(log.inner, MemoryLog)
    assert isinstance(store, MemoryCommitStore)
    return Leader(driver, log.inner._faults, store._faults)


@asynccontextmanager
async def another(there: Installed, place: str = "d") -> AsyncIterator[Leader]:
    """A second one, which stands by."""
    log, store = Faults(), Faults()
    outside = replace(there.outside, log=sealed(MemoryLog(there.broker, log)))
    machine = CoordinatorMachine(CoordinatorSettings(adopt_wait_ms=100), there.outside.unique)
    planner = partial(plan_for_coordinator, "local", allowed=OWNER)
    driver = CoordinatorDriver(place, outside, MemoryCommitStore(there.store, store), planner, machine)
    running = asyncio.ensure_future(driver.run())
    try:
        yield Leader(driver, log, store)
    finally:
        driver.stop()
        await running
