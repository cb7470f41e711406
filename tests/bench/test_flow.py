"""How long an event takes, how long a start takes, and how long a kill is felt. Every event is looked for; no time is asserted."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from tests.harness.bench.machine import described
from tests.harness.bench.rig import Flow, rig

OUT = Path(__file__).resolve().parents[2] / "out" / "bench"
KILLS = ("source-0", "sink-0", "coordinator-0", "spark-0")


def _told(name: str, figures: dict[str, object]) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps({**described(), **figures}, indent=2))
    print(*(f"{key}: {value}" for key, value in {**described(), **figures}.items()), sep="\n")


@pytest.mark.bench
@pytest.mark.parametrize("epoch_ms", [100, 50])
async def test_latency(epoch_ms: int, tmp_path: Path) -> None:
    """10,000 events a second from topic to topic, beside the same without a pipeline: all come out, once."""
    async with rig(tmp_path) as bench:
        stream, floor, _ = await bench.flowing(Flow(epoch_ms=epoch_ms, floor_s=5))
    figures: dict[str, object] = {"epoch_ms": epoch_ms, "rate": 10_000}
    for name, delays in (("pipeline", stream.delays_ms(30_000)), ("floor", floor.delays_ms(10_000))):
        p50, p99 = np.percentile(delays, [50, 99])
        figures[name] = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms"
    _told(f"latency-{epoch_ms}", figures)


@pytest.mark.bench
async def test_start_and_recovery(tmp_path: Path) -> None:
    """From nothing to the first event out; from SIGKILL until an event that was sent after it is out: all come out, once."""
    began = time.monotonic()
    async with rig(tmp_path) as bench:
        ready = time.monotonic() - began
        stream, _, outages = await bench.flowing(Flow(rate=2_000, seconds=52, kills=KILLS, between_s=10))
    stream.delays_ms()
    recovery = {place: f"{seconds:.2f} s" for place, seconds in outages}
    first = min(stream.seen_s.values()) - began
    _told("recovery", {"workers ready": f"{ready:.1f} s", "first event out": f"{first:.1f} s", "recovery": recovery})
