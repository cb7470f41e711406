"""The disk below a real broker is full for some seconds while a processor runs: what the registry says meanwhile, and what came out.

    python -m tests.harness.full_broker FOLDER SECONDS

The disk is a file system in memory, in a mount name space of this process' own. Where this machine lets nobody mount, the broker may
make no file larger (`RLIMIT_FSIZE`): the same writes fail, with another number of error. The result, as JSON, says which it was.
"""

import asyncio
import json
import logging
import resource
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import structlog

from tests.harness.chaos import disks
from tests.harness.chaos.world import BROKER, World, world
from tidemark.services.audit.check import audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.ports.log import LogError, NewRecord, TopicPartition
from tidemark.shared.runtime.client import RequestRefused

NAME = ProcessorName("full")
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "spark": 0, "sink": 1, "control": 0}
BEFORE, DURING = 300, 1_000
"""Records; those during it are more than fits."""
RECORD_BYTES = 1_000
COMMITS = 3
_LOOK_S = 0.1


@dataclass
class Seen:
    """What somebody beside it sees."""

    how: str
    """How the disk was full."""
    refused: int = 0
    """Records that the broker did not take until there was room again."""
    brokers: int = 0
    """Processes of the broker until all was well."""
    states: list[str] = field(default_factory=list)
    """Of the registry, each with its reason, in the order in which they came."""
    lost: int = 0
    """Records of the source's topic that did not come out."""
    twice: int = 0
    acknowledged: int = 0
    """Records that the broker has acknowledged; each of them is in the topic."""
    missing: int = 0
    """Of them."""
    audited: int = 0
    """Records that an audit has computed again."""


def document() -> str:
    """Each record, numbered among those of its key."""
    source = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "schema": {"n": "int", "meter": "string", "junk": "string"},
    }
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [
            {"$source": source},
            {"$compute": {"class": "tests.harness.computations:Skewed", "key": "$meter"}},
            {"$project": {"n": 1, "meter": 1, "seen": 1}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 300, "unit": "ms"}}},
    })  # fmt: skip


class Feeder:
    """Sends records until the broker has acknowledged each; one that fails is sent anew, and may then be there twice."""

    def __init__(self, of: World) -> None:
        self._log = of.installed.log
        self._next = 0
        self.acknowledged: set[int] = set()

    async def feed(self, count: int) -> None:
        """So many more."""
        wanted = range(self._next, self._next + count)
        self._next += count
        while left := [n for n in wanted if n not in self.acknowledged]:
            with suppress(LogError):
                await self._send(left)

    async def _send(self, numbers: list[int]) -> None:
        writer = await self._log.writer("feeder")
        try:
            for n in numbers:
                value = json.dumps({"n": n, "meter": f"m{1 + n % 7}", "junk": "x" * RECORD_BYTES}).encode()
                await (await writer.send(TopicPartition("in", n % 2), NewRecord(value)))
                self.acknowledged.add(n)
        finally:
            await writer.close()


class Full:
    """The broker's disk takes nothing more, until it is let."""

    def __init__(self, of: World) -> None:
        self._of = of
        self._disk = of.disks.get("kafka")
        self._limiting: asyncio.Task[None] | None = None

    @property
    def how(self) -> str:
        """By which means."""
        return "RLIMIT_FSIZE" if self._disk is None else "tmpfs"

    def fill(self) -> None:
        """From now on."""
        if self._disk is not None:
            self._disk.fill(0)
        else:
            self._limiting = asyncio.ensure_future(self._limit())

    async def free(self) -> None:
        """There is room again."""
        if self._disk is not None:
            self._disk.free()
        if self._limiting is not None:
            self._limiting.cancel()
            await asyncio.wait([self._limiting])
            self._set(resource.RLIM_INFINITY)

    async def _limit(self) -> None:
        while True:  # the broker ends, and the supervisor starts another
            self._set(0)
            await asyncio.sleep(_LOOK_S)

    def _set(self, bytes_max: int) -> None:
        if (pid := self._of.cluster.pids().get(BROKER)) is not None:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (bytes_max, resource.RLIM_INFINITY))


async def story(folder: Path, seconds: float) -> Seen:
    """Feed, fill the disk, feed more, free the disk, drain; then compare."""
    async with world(folder, WORKERS, disks=disks.can_mount()) as of:
        there, feeder, full = of.installed, Feeder(of), Full(of)
        seen, brokers = Seen(full.how), set[int]()
        await there.log.create_topic("in", 2, {"retention.ms": "-1"})
        await there.log.create_topic("out", 1, {"retention.ms": "-1"})
        await there.ensure_started(NAME, document(), {})
        await there.until_running(NAME)
        await feeder.feed(BEFORE)
        async for status in there.client.watch(NAME):
            if status.commits >= COMMITS:
                break
        states, looking = asyncio.ensure_future(_states(of, seen)), asyncio.ensure_future(_brokers(of, brokers))
        full.fill()
        feeding = asyncio.ensure_future(feeder.feed(DURING))
        await asyncio.sleep(seconds)
        seen.refused = BEFORE + DURING - len(feeder.acknowledged)
        await full.free()
        await feeding
        with suppress(RequestRefused):  # one that has FAILED has no input to drain; the states tell why
            await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True))
        await there.until_ended(NAME)
        looking.cancel()
        await asyncio.wait([states, looking])
        await _compare(of, feeder, seen)
        seen.brokers = len(brokers)
        seen.audited = (await audit_local(NAME, folder / "data")).records
        return seen


async def _states(of: World, seen: Seen) -> None:
    async for status in of.installed.client.watch(NAME):
        said = f"{status.state}: {status.reason}"
        if said not in seen.states:
            seen.states.append(said)
        if status.state in ("FINISHED", "STOPPED", "FAILED"):
            return


async def _brokers(of: World, pids: set[int]) -> None:
    while True:
        pids |= {pid for place, pid in of.cluster.pids().items() if place == BROKER}
        await asyncio.sleep(_LOOK_S)


async def _compare(of: World, feeder: Feeder, seen: Seen) -> None:
    given, found = await _numbers(of, "in"), await _numbers(of, "out")
    seen.lost, seen.twice = (given - found).total(), (found - given).total()
    seen.acknowledged, seen.missing = len(feeder.acknowledged), len(feeder.acknowledged - given.keys())


async def _numbers(of: World, topic: str) -> Counter[int]:
    return Counter([json.loads(r.value or b"")["n"] async for r in committed_records(of.installed.log, topic)])


def main() -> None:
    """Print what was seen."""
    disks.enter("tests.harness.full_broker", sys.argv[1:])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    seen = asyncio.run(story(Path(sys.argv[1]), float(sys.argv[2])))
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")


if __name__ == "__main__":
    main()
