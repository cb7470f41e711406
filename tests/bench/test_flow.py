"""How long an event takes, how long a start takes, and how long a kill is felt. Every event is looked for; no time is asserted."""

import asyncio
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from tests.harness.bench.machine import described
from tests.harness.bench.ordinary import Case, document, measure, shown
from tests.harness.bench.rig import Flow, rig
from tidemark.services.cli.installation import installation, workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.planning import plan_processor

OUT = Path(__file__).resolve().parents[2] / "out" / "bench"
KILLS = ("source-0", "sink-0", "coordinator-0", "broker")


def _told(name: str, figures: dict[str, object]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    whole = {**described(), "load before": f"{os.getloadavg()[0]:.1f}", **figures}
    (OUT / f"{name}.json").write_text(json.dumps(whole, indent=2))
    print(*(f"{key}: {value}" for key, value in whole.items()), sep="\n")


@pytest.mark.bench
async def test_latency(tmp_path: Path) -> None:
    """10,000 events a second from topic to topic, beside the same without a pipeline: all come out, once."""
    figures: dict[str, object] = {"rate": 10_000}
    async with rig(tmp_path) as bench:
        await bench.flowing(
            Flow(epoch_ms=100, seconds=5)
        )  # what has run for a while is measured, not what has just been loaded
        for epoch_ms in (100, 50, 25):
            stream, floor, _ = await bench.flowing(Flow(epoch_ms=epoch_ms, floor_s=5))
            for name, delays in (("pipeline", stream.delays_ms(30_000)), ("floor", floor.delays_ms(10_000))):
                p50, p99 = np.percentile(delays, [50, 99])
                figures[f"{name}, epochs of {epoch_ms} ms"] = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    _told("latency", figures)


@pytest.mark.bench
async def test_latency_by_rate_and_partitions(tmp_path: Path) -> None:
    """Ordinary clients, 10 to 10,000 records a second, 1 to 64 partitions, and the default epoch: each comes out once, as it must be."""
    cases = [
        Case(rate=rate, partitions=partitions, epoch_ms=epoch_ms, seconds=10)
        for partitions, epoch_ms in ((1, 100), (4, 100), (64, 100), (4, None))
        for rate in (10, 1_000, 10_000)
    ]
    plan = plan_processor(parse(document(Case(), "in", "out")))
    async with installation(tmp_path / "data", {"TIDEMARK_LOG": "json"}, workers_of(plan, {}, 1)) as installed:
        figures: dict[str, object] = {}
        for case in (Case(seconds=5, epoch_ms=100), *cases):  # the first is for what has just been loaded
            found = shown(await measure(installed, case, tmp_path))
            figures[found.partition(":")[0]] = found.partition(": ")[2]
    _told("latency_by_rate", figures)


@pytest.mark.bench
async def test_start_and_recovery(tmp_path: Path) -> None:
    """From nothing to the first event out; from SIGKILL until an event that was sent after it is out: all come out, once."""
    began = time.monotonic()
    async with rig(tmp_path) as bench:
        ready = asyncio.create_task(bench.ready())
        stream, _, outages = await bench.flowing(Flow(rate=2_000, kills=KILLS, between_s=10, at_once=True))
        stream.delays_ms()
        figures: dict[str, object] = {
            "first event out of a stateless pipeline": f"{min(stream.seen_s.values()) - began:.1f} s",
            "all workers ready, Spark's session with them": f"{await ready - began:.1f} s",
        }
        windows, _, more = await bench.flowing(Flow(rate=2_000, kills=("spark-0",), between_s=15, windowed=True))
        windows.delays_ms()
    async with rig(tmp_path / "standby", {"spark": 2}) as bench:
        kills = ("spark-0", "spark-1")  # One of them hosts the windows, and once it is killed the other.
        windows, _, moves = await bench.flowing(Flow(rate=2_000, kills=kills, between_s=15, windowed=True))
        windows.delays_ms()
    beside = max(seconds for _, seconds in moves)
    figures["recovery"] = {p: f"{s:.2f} s" for p, s in (*outages, *more, ("spark with a second worker", beside))}
    _told("recovery", figures)
