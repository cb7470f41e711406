"""An installation whose processes have clocks of their own, and reach the broker and the coordinator's store by ways with a weather."""

import asyncio
import os
import random
import signal
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.chaos.faults import EVERYTHING, Fault
from tests.harness.chaos.lanes import Lanes
from tests.harness.chaos.world import ChaosCluster, World
from tests.harness.worlds.acts import FLAT_BATTERY, STORE, weather
from tests.harness.worlds.clocks import Clocks
from tests.harness.worlds.ways import CLEAR, Way
from tidemark.services.cli.installation import Installation
from tidemark.services.local.broker_settings import LOOPBACK
from tidemark.services.local.supervisor import BROKER, LocalSettings, SupervisedProcess
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

_READY_MS = 300_000
_FLAP_S = 0.7
"""Between two resets of a way that flaps."""
_DRIFT = 0.1
"""A clock that drifts gains a tenth."""


class BrokersClock(SystemClock):
    """The supervisor stands on the broker's machine."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks

    def now_ms(self) -> int:
        """See `Clock`."""
        return super().now_ms() + int(1_000 * self._clocks.ahead_s(BROKER))


class WorldCluster(ChaosCluster):
    """Each process has its clock."""

    def __init__(self, settings: LocalSettings, lanes: Lanes, clocks: Clocks) -> None:
        self.clocks = clocks
        super().__init__(settings, lanes, BrokersClock(clocks))

    def _environment(self, child: SupervisedProcess) -> dict[str, str]:
        return {**super()._environment(child), **self.clocks.variables(child.place)}


@dataclass
class BadWorld(World):
    """What clocks and ways do there."""

    clocks: Clocks = field(kw_only=True)
    ways: Mapping[str, Way] = field(kw_only=True)
    """By place; that to the store, too."""
    seed: int = field(kw_only=True)

    def __post_init__(self) -> None:
        """Chance decides the measures."""
        self._chance = random.Random(f"{self.seed} measures")

    async def strike(self, fault: Fault, left_bytes: int) -> None:
        """See `World.strike`."""
        del left_bytes
        await (self._off(fault) if fault.what == "clock" else self._blow(fault))
        self.struck.append(fault)

    def kill(self, place: str) -> None:
        """Nobody is killed here."""

    # --- clocks -----------------------------------------------------------------------------------------------------------

    async def _off(self, fault: Fault) -> None:
        places = [place for place in (*self.cluster.pids(), BROKER) if fault.where in (place, EVERYTHING, "each")]
        places = places or [fault.where]
        loop = asyncio.get_running_loop()
        if fault.how == "sleeps":
            await self._sleep(places, fault.for_s)
            return
        for place in places:
            how = fault.how
            if how in (FLAT_BATTERY, "drifts"):
                by_s = -SystemClock().now_ms() / 1000 + 5.0 if how == FLAT_BATTERY else 0.0
            else:
                by_s = float(how) * (self._chance.uniform(-1.0, 1.0) if fault.where == "each" else 1.0)
            self.clocks.put([place], by_s)
        began = loop.time()
        try:
            while (left_s := began + fault.for_s - loop.time()) > 0:
                await asyncio.sleep(min(left_s, 0.5) if fault.how == "drifts" else left_s)
                if fault.how == "drifts":
                    for place in places:
                        self.clocks.put([place], self.clocks.ahead_s(place) + 0.5 * _DRIFT)
        finally:
            for place in places:
                self.clocks.put([place], 0.0)

    async def _sleep(self, places: list[str], for_s: float) -> None:
        """A laptop's lid is closed; when it is opened the clock is where it would be."""
        pids = [pid for place, pid in self.cluster.pids().items() if place in places]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            self.clocks.put(places, 3_600.0)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    # --- ways -------------------------------------------------------------------------------------------------------------

    async def _blow(self, fault: Fault) -> None:
        ways = [way for place, way in self.ways.items() if fault.where in (place, EVERYTHING)]
        loop = asyncio.get_running_loop()
        ends, now = loop.time() + fault.for_s, weather(fault.how, self._chance)
        try:
            while (left_s := ends - loop.time()) > 0:
                for way in ways:
                    way.become(now)
                if fault.how != "flaps":
                    await asyncio.sleep(left_s)
                else:
                    await asyncio.sleep(0)
                    for way in ways:
                        way.become(CLEAR)
                    await asyncio.sleep(min(left_s, _FLAP_S))
        finally:
            for way in ways:
                way.become(CLEAR)


@asynccontextmanager
async def bad_world(
    folder: Path, workers: Mapping[str, int], clocks: Clocks, seed: int, store: Path | None = None
) -> AsyncIterator[BadWorld]:
    """Start everything in an empty folder; stop it at the end. store: the socket of a PostgreSQL, else a file of SQLite."""
    data, out = folder / "data", folder / "out"
    for each in (data, out):
        each.mkdir(parents=True, exist_ok=True)
    lanes = Lanes([f"{service}-{number}" for service, count in workers.items() for number in range(count)], Way)
    await lanes.open()
    ways: dict[str, Way] = {place: lanes.of(place) for place in lanes.places}
    environment = {"TIDEMARK_RUNTIME": '{"keys_in_memory": 5}'}
    if store is not None:
        way = ways[STORE] = Way(store)
        await way.open()
        environment["TIDEMARK_STORE"] = f"postgresql://postgres@{LOOPBACK}:{way.port}/postgres"
    settings = LocalSettings(data_dir=data, port=lanes.main, workers=workers, niceness=0, environment=environment)
    broker = clocks.variables(BROKER)
    os.environ.update(broker)  # of this process' children, the broker among them: never of itself
    cluster = WorldCluster(settings, lanes, clocks)
    try:
        await cluster.start()
        log = cluster.open_log("worlds")
        client = Client(
            log, Topics(), SystemClock(), lambda: uuid.uuid4().hex, cluster.runtime(), waits_out_ms=_READY_MS
        )
        try:
            await client.ready(_READY_MS)
            installed = Installation(cluster, log, client)
            yield BadWorld(installed, cluster, lanes, {}, folder, clocks=clocks, ways=ways, seed=seed)
        finally:
            await log.close()
    finally:
        await cluster.stop()
        for name in broker:
            del os.environ[name]
        for way in ways.values():
            way.close()
