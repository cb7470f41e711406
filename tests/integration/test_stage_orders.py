"""Stages in every order, with ids or without: several tasks of each service give what one task gives. Memory, virtual time."""

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, installed
from tests.harness.outages import OutageSpark, spark_in_process
from tests.harness.share import share
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.planning import Engine
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.settings import RuntimeSettings

PARTITIONS = 3
RECORDS = 60
SECOND = {"size": 1, "unit": "second"}
SPREAD = {"size": 1, "unit": "hour"}
"""Nothing is late, in whatever order partitions are read."""


def source(topic: str, **more: Any) -> dict[str, Any]:
    return {
        "$source": {
            "connectionName": "k",
            "topic": topic,
            "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": {"$toLong": "$at"}},
            "watermark": {"strategy": "boundedDisorder", "maxDelay": SPREAD},
            **more,
        }
    }


GROUP = {"$group": {"_id": "$k", "k": {"$min": "$k"}, "n": {"$sum": "$n"}}}
STAGES: dict[str, dict[str, Any]] = {
    "match": {"$match": {"n": {"$gte": 5}}},
    "lookup": {
        "$lookup": {"from": {"documents": [{"_id": "a", "v": 1}]}, "localField": "k", "foreignField": "_id", "as": "l"}
    },
    "union": {"$union": {"pipelines": [[source("others")]]}},
    "join": {
        "$join": {
            "from": [source("others")],
            "leftKey": "$k",
            "rightKey": "$k",
            "within": {"before": SECOND, "after": SECOND},
            "type": "left",
            "as": "other",
        }
    },
    "compute": {"$compute": {"class": "tests.harness.computations:Totals", "key": "$k"}},
    "window": {"$tumblingWindow": {"interval": SECOND, "allowedLateness": 0, "pipeline": [GROUP]}},
    "session": {
        "$sessionWindow": {"partitionBy": "$k", "gap": SECOND, "allowedLateness": 0, "pipeline": [GROUP]},
    },
}
ORDERS = [names for count in (1, 2) for names in itertools.product(STAGES, repeat=count) if names.count("session") < 2]
KEYED = {"key": "$k"}
ENGINES: list[tuple[Engine, tuple[str, ...]]] = [
    *(("local", names) for names in ORDERS),
    *(("spark", names) for names in ORDERS if {"window", "session"} & {*names}),
]
SHUFFLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "key": (KEYED, {}),
    "key and ids": (KEYED, {"recordId": "$id"}),
    "ids": ({}, {"recordId": "$id"}),
}
"""What divides the rows for the sink's tasks, and for those that drop repeats."""
CASES = share([(by, *each) for by in SHUFFLES for each in ENGINES], 6)
"""In CI a share in which each stage stands first and last, on each engine that it is run by."""


class Story:
    """The same records through the same stages, by numbers of tasks. What Spark would do is done in this process."""

    def __init__(self, names: tuple[str, ...], engine: Engine, folder: Path) -> None:
        self._names = names
        self._folders = (folder / str(number) for number in itertools.count())
        self._settings = RuntimeSettings(engine=engine)
        self._spark = engine == "spark"

    def came_out(self, config: dict[str, Any], ids: dict[str, Any], tasks: dict[str, int]) -> Counter[bytes | None]:
        """The records that are written, in no order."""
        document = {
            "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
            "pipeline": [
                source("t", **ids),
                *(STAGES[name] for name in self._names),
                {"$emit": {"connectionName": "k", "topic": "out", "config": config}},
            ],
            "options": {"dlq": {"connectionName": "k", "topic": "letters"}},
        }

        async def main(world: VirtualWorld) -> Counter[bytes | None]:
            async with installed(
                world.clock,
                world.executor,
                settings=self._settings,
                services=("source", "operator", *(["spark"] if self._spark else []), "sink"),
                spark=OutageSpark if self._spark else None,
                folder=next(self._folders) if self._spark else None,
            ) as it:
                log = MemoryLog(it.broker)
                for topic, count in (("t", PARTITIONS), ("others", 1), ("out", PARTITIONS), ("letters", 1)):
                    it.broker.create_topic(topic, count)
                await _sent(log)
                await it.create(document, NAME, **tasks)
                await it.start()
                await it.committed()
                await it.stop(drain=True)
                assert [json.loads(r.value or b"")["errInfo"] for r in it.broker.dump("letters")[0]] == []
                return Counter(r.value for part in it.broker.dump("out").values() for r in part)

        with spark_in_process():
            return run_virtual(main)


async def _sent(log: MemoryLog) -> None:
    writer = await log.writer("producer")
    for n in range(RECORDS):
        value = {"id": n, "at": 1_000_000 + 100 * n, "n": n % 10} | ({"k": "abcde"[n * n % 5]} if n % 7 else {})
        for topic, part in (("t", n % PARTITIONS), ("others", 0)):
            record = NewRecord(json.dumps({**value, "s": topic}).encode())
            await (await writer.send(TopicPartition(topic, part), record))
    await writer.close()


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def test_each_stage_is_run_in_each_place() -> None:
    """Alone or in front of another, and behind another; also in the share that CI takes."""

    def places(cases: Iterable[tuple[Engine, tuple[str, ...]]]) -> set[tuple[Engine, str, int]]:
        return {(engine, name, place) for engine, names in cases for place, name in enumerate(names)}

    assert places(case[1:] for case in CASES) == places(ENGINES)
    assert {case[0] for case in CASES} == {*SHUFFLES}


@pytest.mark.parametrize(
    ("by", "engine", "names"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part)
)
def test_several_tasks_give_what_one_gives(by: str, engine: Engine, names: tuple[str, ...], tmp_path: Path) -> None:
    """Whatever stands in front of a shuffle, and whether rows go to the sink by a key or a source drops repeats."""
    story, shuffle = Story(names, engine, tmp_path), SHUFFLES[by]
    one = story.came_out(*shuffle, {})
    assert one
    assert story.came_out(*shuffle, {"source": 2, "operator": 3, "sink": 2}) == one
