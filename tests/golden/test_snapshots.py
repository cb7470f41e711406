# ruff: noqa: N802 -- a test carries its rule's name
"""Snapshots of earlier versions are gone on from: store, blobs and topics as they were recorded, with these and other numbers of tasks."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.harness.share import CI
from tests.harness.snapshots import KINDS, all_recorded, finished, in_flight, read, recorded, restored, versions
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ModifyProcessor

TASKS: tuple[Mapping[str, int], ...] = ({}, {"source": 3, "operator": 2, "sink": 2}, {"operator": 5})
# Tasks take their shares of what any version has become when it is read: in CI each snapshot goes on with one of these numbers.
CONTINUED = [
    (path, tasks) for n, path in enumerate(all_recorded()) for tasks in ((TASKS[n % len(TASKS)],) if CI else TASKS)
]


def test_there_is_a_snapshot_of_the_present_versions() -> None:
    """Of each kind; `python -m tests.harness.snapshots` records them."""
    assert all((kind, versions()) in recorded() for kind in KINDS)


@pytest.mark.parametrize("path", all_recorded(), ids=lambda path: path.name)
def test_C13_what_was_recorded_in_flight_is_so(path: Path) -> None:
    """Of each processor the last commit names frames that their receivers had not taken: else they would go on from an aligned one."""
    found = read(path)
    assert all(in_flight(found["kept"]).values()) == (found.get("kind") == "in flight")


@pytest.mark.parametrize(("path", "tasks"), CONTINUED, ids=lambda each: getattr(each, "name", str(each)))
def test_R4_a_recorded_snapshot_is_gone_on_from(path: Path, tasks: Mapping[str, int]) -> None:
    """What comes out in all is what came out of one run: nothing is lost, repeated or otherwise, for whatever kept state."""
    found = read(path)

    async def story(world: VirtualWorld) -> dict[str, list[str]]:
        async with restored(world, found["kept"]) as there:
            for name in map(ProcessorName, found["kept"]["rows"]):
                if tasks:
                    await there.client.request(ModifyProcessor(there.client.unique(), name, None, dict(tasks)))
                await there.start(name)
            return await finished(there)

    came = run_virtual(story)
    assert {name: len(lines) for name, lines in came.items()} == {
        n: len(lines) for n, lines in found["expected"].items()
    }
    assert came == found["expected"]
    assert all(found["expected"].values())
