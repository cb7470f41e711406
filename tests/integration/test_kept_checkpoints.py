# ruff: noqa: N802 -- a test carries its rule's name
"""Checkpoints that users keep, by the real services: the state, the document and the input of then, for windows, keys and joins."""

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed, released
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import KeepCheckpoint, ProcessorStatus, StartProcessor

BEGIN_MS = 1_700_000_000_000
KEYS = 3
GAP = {"size": 3, "unit": "second"}
SIZE = {"size": 10, "unit": "second"}
GROUP = [{"$group": {"_id": "$k", "count": {"$sum": 1}, "sum": {"$sum": "$n"}}}]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "tumbling": [{"$tumblingWindow": {"interval": SIZE, "allowedLateness": 0, "pipeline": GROUP}}],
    "session": [{"$sessionWindow": {"gap": GAP, "partitionBy": "$k", "allowedLateness": 0, "pipeline": GROUP}}],
    "computation": [{"$compute": {"class": "tests.harness.computations:Marks", "key": "$k", "order": "arrival"}}],
    "distinct": [],
}


def tell(story: Callable[[Installed], Coroutine[Any, Any, None]]) -> None:
    """Run a story on virtual time."""

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await story(there)

    run_virtual(main)


class Feed:
    """A file that grows: each event twice, one a second for each key, with a pause of event time behind seven seconds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "in.json"
        self.path.write_text("")
        self.second = 0

    def add(self, seconds: int) -> None:
        """So many seconds with events."""
        with self.path.open("a") as out:
            for second in range(self.second, self.second + seconds):
                for key in range(KEYS):
                    event = {
                        "t": BEGIN_MS + (second + second // 7 * 5) * 1_000,
                        "k": f"k{key}",
                        "n": second * KEYS + key,
                    }
                    out.write(f"{json.dumps(event)}\n" * 2)
        self.second += seconds


def document(shape: str, feed: Feed, out: Path, *more: dict[str, Any]) -> dict[str, Any]:
    read = {"path": str(feed.path), "format": "json", "follow": True, "timeField": {"$toDate": {"$toLong": "$t"}}}
    if shape == "distinct":
        read["recordId"] = "$n"
    return {
        "name": NAME,
        "pipeline": [{"$source": read}, *SHAPES[shape], *more, {"$emit": {"path": str(out), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


async def keep(there: Installed, name: str = "then") -> None:
    """The last checkpoint gets a name."""
    await there.client.request(KeepCheckpoint(there.client.unique(), NAME, name))


async def back(there: Installed, name: str = "then") -> ProcessorStatus:
    """It runs from the kept checkpoint."""
    request = there.client.unique()
    await there.client.request(StartProcessor(request, NAME, checkpoint=name))
    return await there.when(lambda s: request in dict(s.answers) and s.state == "RUNNING")


def rows_of(folder: Path) -> Counter[str]:
    """Released rows, each as often as it is there."""
    return Counter(json.dumps(row, sort_keys=True) for row in released(folder))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("drained", [False, True])
def test_C11_E2_what_came_behind_a_kept_checkpoint_is_computed_again_from_its_state(
    tmp_path: Path, shape: str, drained: bool
) -> None:
    """All results are those of a run without it; those that had come out since then are there once more, as they were."""
    plain, kept = Feed(tmp_path), Feed(tmp_path)

    async def whole(there: Installed) -> None:
        await there.create(document(shape, plain, tmp_path / "plain"), operator=2)
        await there.start()
        plain.add(65)
        await there.committed()
        await there.stop(drain=True)

    seen: dict[str, Counter[str]] = {}

    async def going_back(there: Installed) -> None:
        kept.path.write_text("")
        await there.create(document(shape, kept, tmp_path / "out"), operator=2)
        await there.start()
        kept.add(25)
        await there.committed()
        await keep(there)
        seen["then"] = rows_of(tmp_path / "out")
        kept.add(20)
        await there.committed()
        await there.stop(drain=drained)
        seen["first"] = rows_of(tmp_path / "out")
        status = await back(there)
        assert dict(status.checkpoints).keys() == {"then"}
        kept.add(20)
        await there.committed()
        await there.stop(drain=True)

    tell(whole)
    tell(going_back)
    every, found = rows_of(tmp_path / "plain"), rows_of(tmp_path / "out")
    assert seen["first"] > seen["then"]
    cut = seen["first"] - every  # a drain closes windows at its end
    assert (not cut) or (drained and shape in ("tumbling", "session"))
    assert found == every + (seen["first"] - seen["then"])


def test_E2_the_document_is_the_one_of_then(tmp_path: Path) -> None:
    """A change of then on is taken back with what it did, and the next change begins there."""
    feed = Feed(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"

    async def story(there: Installed) -> None:
        await there.create(document("tumbling", feed, first), operator=2)
        await there.start()
        feed.add(25)
        await there.committed()
        await keep(there)
        wrong = document("tumbling", feed, second, {"$addFields": {"wrong": True}})
        await there.modify(wrong)
        feed.add(20)
        await there.committed(3)
        await there.stop()
        assert all(row["wrong"] for row in released(second))
        status = await back(there)
        assert "wrong" not in status.document
        right = document("tumbling", feed, first, {"$addFields": {"right": True}})
        await there.modify(right)
        await there.committed(3)
        await there.stop(drain=True)

    tell(story)
    assert released(second)
    counts = Counter((row["_id"], row["sum"]) for row in released(first))
    assert set(counts.values()) == {1}
    assert sum(row["count"] for row in released(first)) == 45 * KEYS * 2
    assert {"right" in row for row in released(first)} == {True, False}
