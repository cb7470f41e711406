"""What windows carry: `make bench` prints events/s, and compares every result with what was computed apart. No time is asserted."""

from pathlib import Path

import pytest

from tests.harness.bench.events import Load
from tests.harness.bench.machine import described
from tests.harness.bench.rig import Case, Figures, as_json, rig, table

EVENTS = 12_000_000
LONG_EVENTS = 24_000_000
"""Enough for one checkpoint or two of 10 s."""
OUT = Path(__file__).resolve().parents[2] / "out" / "bench"


def _load(keys: int, events: int) -> Load:
    return Load(f"events-{keys}-{events}", events, keys)


async def _measured(folder: Path, cases: list[Case]) -> list[Figures]:
    """All cases in one installation, behind a first one that warms it up and is not counted."""
    found = []
    async with rig(folder) as bench:
        await bench.windows(Case(_load(cases[0].load.keys, 1_000_000)))
        for case in cases:
            found.append(await bench.windows(case))
            print(table(found[-1:]), flush=True)
    return found


@pytest.mark.bench
@pytest.mark.parametrize("keys", [1_000, 100_000])
async def test_windows(keys: int, tmp_path: Path) -> None:
    """Counts and sums by key and minute are exact on one core and two, at every epoch length, with record ids and without."""
    load = _load(keys, EVENTS)
    cases = [
        Case(load),
        Case(load, 1_000),
        Case(load, 10_000),
        Case(load, pinned=True),
        Case(load, ids="split"),
        Case(load, ids="source"),
    ]
    cases += [Case(load, 1_000, pinned=True), Case(load, profile_s=4)]
    found = await _measured(tmp_path, cases)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"windows-{keys}.json").write_text(as_json(found))
    print(*(f"{name}: {value}" for name, value in described().items()), table(found), sep="\n")
    for place, lines in found[-1].profile.items():
        print(f"--- {place}", *lines, sep="\n")


@pytest.mark.bench
async def test_epochs(tmp_path: Path) -> None:
    """What epochs of 100 ms cost beside those of 10 s, in turn, over so many events that windows close on Spark at either."""
    load = _load(1_000, LONG_EVENTS)
    found = await _measured(tmp_path, [Case(load, epoch_ms) for epoch_ms in (100, 10_000, 100, 10_000)])
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "epochs.json").write_text(as_json(found))
    short, long = (sum(f.events_per_s for f in found[at::2]) / 2 for at in (0, 1))
    cost = f"{short:,.0f} events/s at 100 ms are {short / long:.0%} of {long:,.0f} at 10 s"
    print(*(f"{name}: {value}" for name, value in described().items()), table(found), cost, sep="\n")


@pytest.mark.e2e
async def test_a_short_bench_is_exact(tmp_path: Path) -> None:
    """The measurement itself works: a few events through real processes, and every result compared."""
    async with rig(tmp_path) as bench:
        figures = await bench.windows(Case(_load(1_000, 300_000)))
    assert figures.rows == 2_000
    assert figures.spark_jobs >= 1
