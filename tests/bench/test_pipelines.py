"""What the shipped examples carry over a hundred thousand events and more, by real processes. Results are checked, no time asserted."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.harness.bench.machine import described
from tests.harness.bench.pipelines import PIPELINES, Carried, carried, table
from tests.harness.share import CI
from tidemark.services.cli.installation import installation

OUT = Path(__file__).resolve().parents[2] / "out" / "bench"


async def measured(folder: Path, names: set[str], share: float) -> list[Carried]:
    """These examples, one after the other, in one installation."""
    found = []
    async with installation(folder / "data", {"TIDEMARK_LOG": "json"}) as installed:
        for pipeline in PIPELINES:
            if pipeline.name in names:
                found.append(await carried(installed, pipeline, folder, share))
                print(table(found[-1:]), flush=True)
    return found


@pytest.mark.bench
async def test_pipelines(tmp_path: Path) -> None:
    """Departures from a topic; weather joined, sessions, two windows in a chain, validation and a web log from files."""
    found = await measured(tmp_path, {p.name for p in PIPELINES}, 1.0)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "pipelines.json").write_text(json.dumps({**described(), "pipelines": [asdict(f) for f in found]}, indent=2))
    print(*(f"{name}: {value}" for name, value in described().items()), table(found), sep="\n")


@pytest.mark.e2e
async def test_a_short_run_of_two_pipelines_is_right(tmp_path: Path) -> None:
    """The measurement itself works: a topic (not in CI, where other tests run it) and files, windows, every result checked."""
    names = ["counts"] if CI else ["departures", "counts"]
    found = await measured(tmp_path, {*names}, 0.01)
    assert [(f.name, f.rows > 0) for f in found] == [(name, True) for name in names]
