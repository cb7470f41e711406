"""`python -m tests.harness.bench.peers --system tidemark flink streams --shape map window`: a line a measurement, each result checked.

Each system reads a topic that ordinary producers have filled (linger, partitions), and writes to one of as many partitions, exactly once,
with a commit a second. The rate is that of the results between the first tenth and the end. JSON is read and written by each; a window is a
minute, with 5 s of disorder. Kafka Streams gives an update of each window at a commit; of these the last counts.
Spark's sink is at least once.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.harness.bench.machine import described
from tests.harness.bench.peers import others, tidemark
from tests.harness.bench.peers.clients import feed, values_of, watch
from tests.harness.bench.peers.shapes import SHAPES, Shape
from tests.harness.bench.watching import Meter, Profiler
from tidemark.services.cli.installation import Installation, installation
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings

_UPDATES_QUIET_S = 8.0


@dataclass
class Found:
    """What was measured."""

    system: str
    shape: str
    linger_ms: int
    partitions: int
    events: int
    results: int
    events_per_s: int
    first_s: float
    """From the start until the first result was released."""
    load: float
    """Of the machine, before."""
    us_by_part: dict[str, float] = field(default_factory=dict)
    """Processor time an event, start included."""
    rss_mib: int = 0
    profile: dict[str, list[str]] = field(default_factory=dict)

    def shown(self) -> str:
        """A line."""
        ordered = sorted(self.us_by_part.items(), key=lambda each: -each[1])
        parts = ", ".join(f"{name} {us:.2f}" for name, us in ordered if us >= 0.01)
        return (
            f"{self.system} {self.shape} linger {self.linger_ms} partitions {self.partitions}: {self.events_per_s:,}/s"
            f" first {self.first_s:.1f} s {self.rss_mib:,} MiB, us an event {sum(self.us_by_part.values()):.2f} ({parts}),"
            f" load {self.load:.1f}"
        )


@dataclass(frozen=True)
class Case:
    """One measurement."""

    system: str
    shape: Shape
    linger_ms: int
    partitions: int


async def measure(case: Case, asked: argparse.Namespace, folder: Path) -> Found:
    """One measurement, with a broker of its own."""
    shape, unique = case.shape, uuid.uuid4().hex[:8]
    load, target, name = shape.load(f"in-{unique}", case.partitions, asked.scale), f"out-{unique}", f"bench-{unique}"
    updates = case.system == "streams" and shape.windowed
    installed: Installation | None = None
    async with AsyncExitStack() as stack:
        if case.system == "tidemark":
            installed = await stack.enter_async_context(installation(folder / unique, {}, shape.workers))
            bootstrap, places = installed.cluster.bootstrap, installed.cluster.pids()
        else:
            broker = LocalBroker(BrokerSettings(data_dir=folder / unique))
            bootstrap = await broker.start()
            stack.push_async_callback(broker.stop)
            assert broker.pid is not None
            places = {"broker": broker.pid}
        log = KafkaLog(KafkaSettings(bootstrap=bootstrap))
        for topic in (load.topic, target):
            await log.create_topic(topic, case.partitions, {"retention.ms": "-1"})
        await feed(bootstrap, load, case.linger_ms, closing=shape.windowed)
        busy, began = os.getloadavg()[0], time.monotonic()
        quiet = {"quiet_s": _UPDATES_QUIET_S} if updates else {}
        watching = asyncio.create_task(watch(bootstrap, target, case.partitions, shape.results(load), **quiet))
        stack.callback(watching.cancel)
        async with AsyncExitStack() as run:
            if installed is not None:
                meter = await run.enter_async_context(Meter(places))
                await tidemark.started(installed, name, tidemark.document(shape, load.topic, target, asked.epoch))
            else:
                given = (bootstrap, load.topic, target, shape.name, asked.epoch)
                places[case.system] = await run.enter_async_context(others.running(case.system, folder, given))
                meter = await run.enter_async_context(Meter(places))
            profiled = (
                {p: pid for p, pid in places.items() if p not in ("broker", *others.NAMES)} if asked.profile else {}
            )
            async with Profiler(profiled, folder / f"profile-{unique}", asked.profile) as spy:
                seen = await watching
        results = shape.check(load, await values_of(bootstrap, target, case.partitions), updates=updates)
    us = {place: s * 1e6 / load.events for place, s in meter.usage.cpu_s.items()}
    return Found(
        case.system, shape.name, case.linger_ms, case.partitions, load.events, results, round(seen.steady(load.events)),
        round(seen.first_s - began, 1), busy, us, round(meter.usage.peak_rss_mib), spy.shown() if profiled else {},
    )  # fmt: skip


async def _main(asked: argparse.Namespace) -> None:
    found: list[Found] = []
    for shape in asked.shape:
        for linger in asked.linger:
            for partitions in asked.partitions:
                for system in asked.system:
                    if not others.takes(system, shape):
                        continue
                    with tempfile.TemporaryDirectory() as folder:
                        found.append(
                            await measure(Case(system, SHAPES[shape], linger, partitions), asked, Path(folder))
                        )
                    print(found[-1].shown(), flush=True)
                    for place, lines in found[-1].profile.items():
                        print(f"--- {place}", *lines, sep="\n")
                    if asked.json:
                        _keep(asked.json, found)


def _keep(path: Path, found: list[Found]) -> None:
    rows: list[Mapping[str, object]] = [asdict(each) for each in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": described(), "rows": rows}, indent=2))


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", nargs="+", default=["tidemark", *others.NAMES], choices=["tidemark", *others.NAMES])
    parser.add_argument("--shape", nargs="+", default=["map", "window", "window-100k", "hop"], choices=sorted(SHAPES))
    parser.add_argument("--linger", nargs="+", type=int, default=[0, 5])
    parser.add_argument("--partitions", nargs="+", type=int, default=[4, 64])
    parser.add_argument("--epoch", type=int, default=1000, help="between commits, ms")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of events")
    parser.add_argument("--profile", type=int, default=0, help="seconds")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    for name, value in described().items():
        print(f"{name}: {value}")
    asyncio.run(_main(asked))


if __name__ == "__main__":
    main()
