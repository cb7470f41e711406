"""Stream equals batch: every example's document gives the same rows as a stream, however it is cut, and as one batch on Spark."""

import json
import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.examples import EXAMPLES, Example, letters, rows
from tests.harness.plan_world import PlanWorld
from tidemark.services.cli.process import Runner, quiet, runner
from tidemark.shared.model.ids import ProcessorName

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark() -> Iterator[Runner]:
    quiet(logging.CRITICAL)
    with runner("spark") as found:
        yield found


def streamed(example: Example, folder: Path) -> PlanWorld:
    """The document's operators over its splits, in many epochs, with several tasks and some restarts."""
    chance = random.Random(example.name)
    splits = example.splits(folder)
    tree = example.tree()
    vertices = [f"source-{n + 1}" for n in range(len(splits))]
    world = PlanWorld(
        tree, dict(zip(vertices, splits, strict=True)), {"source-1": 2, "compute-1": 2, "compute-2": 3, "join-1": 2}
    )
    for _ in range(60):
        source = chance.randrange(len(splits))
        longest = max(len(split) for split in splits[source])
        world.feed(source, chance.randrange(4), chance.randint(1, max(2, longest // 12)))
        if chance.random() < 0.4:
            world.deliver(chance.randrange(8), chance.randint(1, 4))
        if chance.random() < 0.2:
            world.epoch()
        if chance.random() < 0.06:
            world.restart()
    world.finish()
    return world


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_the_same_as_a_stream_and_as_one_batch_on_spark(
    spark: Runner, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and dead letters; the batch has one epoch, and its windows are merged and finished by Spark."""
    example = EXAMPLES[name]
    example.write(tmp_path)
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    tree = example.tree()
    tree["options"]["checkpoint"] = {"interval": {"size": 1, "unit": "hour"}}
    batch, jobs = spark.run(json.dumps(tree), ProcessorName(name))
    assert batch.error is None
    assert jobs > 0
    assert batch.output
    world = streamed(example, tmp_path)
    sinks = [v.id for v in world.plan.vertices if v.service == "sink" and v.id != "dlq"]
    assert rows(batch.output) == rows(d for sink in sinks for d in world.documents(sink))
    assert letters(batch.letters) == letters(world.dead_letters())
