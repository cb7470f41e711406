"""An installation of real processes that faults can reach: its ways to the broker, its disks, and what strikes."""

import asyncio
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tests.harness.chaos.disks import Disk
from tests.harness.chaos.faults import EVERYTHING, FORK_SERVER, Fault
from tests.harness.chaos.lanes import Lane, Lanes
from tidemark.services.cli.installation import Installation
from tidemark.services.local.broker_settings import LOOPBACK
from tidemark.services.local.folders import BROKER_VARIABLE
from tidemark.services.local.supervisor import BROKER, LocalCluster, LocalSettings, SupervisedProcess
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.ports.clock import Clock
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

_READY_MS = 300_000
_LOOK_S = 0.1


class ChaosCluster(LocalCluster):
    """A local installation whose processes reach the broker by lanes, and die at phases that are named while they run."""

    def __init__(self, settings: LocalSettings, lanes: Lanes, clock: Clock | None = None) -> None:
        super().__init__(settings, clock=clock)
        self._lanes = lanes
        self._broker_settings = replace(
            self._broker_settings, controller_port=lanes.controller, overrides=lanes.properties()
        )
        self.orders: dict[str, str] = {}
        """TIDEMARK_KILL_AT of the process that is started next at a place."""

    def environment(self, place: str, service: str) -> dict[str, str]:
        """Of a process beside those of the installation."""
        return self._environment(SupervisedProcess(place, service))

    def _environment(self, child: SupervisedProcess) -> dict[str, str]:
        way = f"{LOOPBACK}:{self._lanes.of(child.place).port}"
        orders = {"TIDEMARK_KILL_AT": self.orders.pop(child.place)} if child.place in self.orders else {}
        return {**super()._environment(child), "TIDEMARK_KAFKA": way, BROKER_VARIABLE: way, **orders}


@dataclass
class World:
    """What a round strikes."""

    installed: Installation
    cluster: ChaosCluster
    lanes: Lanes
    disks: Mapping[str, Disk]
    folder: Path
    struck: list[Fault] = field(default_factory=list)
    _orders: list[tuple[Fault, Path]] = field(default_factory=list)

    async def strike(self, fault: Fault, left_bytes: int) -> None:
        """Carry a fault out, and undo it when its time is over, or this is cancelled."""
        match fault.what:
            case "kill" if fault.where == EVERYTHING:
                for place in self.cluster.pids():
                    self._signal(place, signal.SIGKILL)
            case "kill" if fault.where == FORK_SERVER:
                for each in _fork_servers():
                    each.kill()
            case "kill" | "pause":
                await self._signalled(fault)
            case "phase":
                await self._phase(fault)
                return
            case "cut":
                await self._cut(fault)
            case "full":
                disk = self.disks[fault.where]
                disk.fill(left_bytes)
                try:
                    await asyncio.sleep(fault.for_s)
                finally:
                    disk.free()
            case what:
                raise AssertionError(what)
        self.struck.append(fault)

    async def _present(self, place: str) -> str:
        """The place once somebody sits there, or another of its service."""
        service = place.rpartition("-")[0] or place
        while True:
            seats = sorted(seat for seat in self.cluster.pids() if seat.startswith(service))
            if seats:
                return place if place in seats else seats[0]
            await asyncio.sleep(_LOOK_S)

    async def _signalled(self, fault: Fault) -> None:
        place = await self._present(fault.where)
        pid = self.cluster.pids().get(place)
        if fault.how == "child":
            pid = await self._child(place)
        if pid is None:
            return
        process = psutil.Process(pid)
        with suppress(psutil.NoSuchProcess):
            if fault.what == "kill":
                process.kill()
                return
            process.suspend()
            try:
                await asyncio.sleep(fault.for_s)
            finally:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    async def _child(self, place: str) -> int | None:
        """A process that a worker has started: Spark's JVM, or one that runs users' code; the youngest there is, if there is one."""
        pid = self.cluster.pids().get(place)
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(pid).children(recursive=True)
            found = [child for child in children if child.name() == "java"] or children
            return found[-1].pid if found else None
        return None

    async def _phase(self, fault: Fault) -> None:
        """Kill a process, and let its successor kill itself at a phase."""
        place = await self._present(fault.where)
        record = self.folder / f"phase-{len(self._orders)}.json"
        self.cluster.orders[place] = f"{place}={fault.how}:1:{record}"
        self._orders.append((fault, record))
        self._signal(place, signal.SIGKILL)

    async def _cut(self, fault: Fault) -> None:
        how = fault.how
        lanes: list[Lane] = [
            self.lanes.of(place) for place in self.lanes.places if fault.where in (place, EVERYTHING)
        ] or [self.lanes.of(fault.where)]
        for lane in lanes:
            lane.cut(how)  # type: ignore[arg-type]
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            for lane in lanes:
                lane.heal(how)  # type: ignore[arg-type]

    def kill(self, place: str) -> None:
        """At once."""
        self._signal(place, signal.SIGKILL)
        self.struck.append(Fault("kill", place, "drain", 0.0))

    def _signal(self, place: str, number: int) -> None:
        with suppress(ProcessLookupError, KeyError):
            os.kill(self.cluster.pids()[place], number)

    def disarm(self) -> None:
        """Phases that have not been reached kill nobody from now on: a process lives on where it finds the record of its death."""
        for _, record in self._orders:
            record.touch()

    def shares(self) -> str:
        """How much of a core each process has had in its life: tells one that starves from one that waits."""
        found = []
        for place, pid in self.cluster.pids().items():
            with suppress(psutil.NoSuchProcess):
                for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
                    spent_s, age_s = sum(each.cpu_times()[:2]), time.time() - each.create_time()
                    found.append(f"{place} {each.name()} {spent_s:.0f} of {age_s:.0f} s")
        return "processor time: " + ", ".join(found)

    def all_struck(self) -> list[Fault]:
        """With those phases that were reached."""
        dead = [fault for fault, record in self._orders if record.exists() and record.stat().st_size]
        return [*self.struck, *dead]


def _fork_servers() -> list[psutil.Process]:
    """The one of this process' cluster, if it is there now."""
    children = psutil.Process().children()
    return [each for each in children if "tidemark.services.local.fork_server" in each.cmdline()]


@asynccontextmanager
async def world(folder: Path, workers: Mapping[str, int], *, disks: bool) -> AsyncIterator[World]:
    """Start everything in an empty folder; stop it at the end. `disks`: whether each of them can be full."""
    data, out = folder / "data", folder / "out"
    places = {"store": data, "kafka": data / "kafka", "blobs": data / "blobs", "out": out}
    for each in places.values():
        each.mkdir(parents=True, exist_ok=True)
    mounted = {name: Disk(each) for name, each in places.items()} if disks else {}
    lanes = Lanes([f"{service}-{number}" for service, count in workers.items() for number in range(count)])
    await lanes.open()
    settings = LocalSettings(
        data_dir=data,
        port=lanes.main,
        workers=workers,
        niceness=0,
        environment={"TIDEMARK_RUNTIME": '{"keys_in_memory": 5}'},
    )
    cluster = ChaosCluster(settings, lanes)
    try:
        await cluster.start()
        log = cluster.open_log("chaos")
        client = Client(
            log, Topics(), SystemClock(), lambda: uuid.uuid4().hex, cluster.runtime(), waits_out_ms=_READY_MS
        )
        try:
            await client.ready(_READY_MS)
            yield World(Installation(cluster, log, client), cluster, lanes, mounted, folder)
        finally:
            await log.close()
    finally:
        await cluster.stop()
        lanes.close()
        for disk in reversed(mounted.values()):
            disk.close()


__all__ = ["BROKER", "ChaosCluster", "World", "world"]
