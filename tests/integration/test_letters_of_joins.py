"""What came too late for a join is a record of one of its sources, and its letter says of which."""

import json
from typing import Any

import pytest

from tests.harness.installation import installed
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import NewRecord, TopicPartition

TOPICS = ("first", "second", "third")
HOUR = {"size": 1, "unit": "hour"}


def source(topic: str) -> dict[str, Any]:
    return {
        "$source": {
            "connectionName": "broker",
            "topic": topic,
            "timeField": {"$toDate": "$at"},
            "schema": {"at": "long", "k": "string"},
            "config": {"auto_offset_reset": "earliest"},
        }
    }


def join(topic: str) -> dict[str, Any]:
    return {
        "$join": {
            "from": [source(topic)], "leftKey": "$k", "rightKey": "$k", "within": {"before": HOUR, "after": HOUR},
            "type": "inner", "as": topic,
        }
    }  # fmt: skip


async def letters_of(world: VirtualWorld, late: str) -> list[dict[str, Any]]:
    """Of two joins, one behind the other, where this topic's last record is late."""
    document = {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            source("first"),
            join("second"),
            join("third"),
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {"lateness": "split", "dlq": {"connectionName": "broker", "topic": "letters"}},
    }
    async with installed(world.clock, world.executor) as there:
        log = MemoryLog(there.broker)
        for topic in (*TOPICS, "out", "letters"):
            await log.create_topic(topic, 1)
        await there.create(document)
        await there.start()
        writer = await log.writer("feeder")
        for at in (10**9, 2 * 10**9):
            for topic in TOPICS:
                record = NewRecord(json.dumps({"at": at, "k": "a"}).encode())
                await (await writer.send(TopicPartition(topic, 0), record))
        await there.committed()
        await (await writer.send(TopicPartition(late, 0), NewRecord(json.dumps({"at": 1, "k": "a"}).encode())))
        await there.committed()
        await there.stop()
        stored = there.broker._topics["letters"][0].stored
        return [json.loads(each.record.value or b"") for each in stored if each.record is not None]


@pytest.mark.parametrize("late", TOPICS)
def test_a_record_that_is_late_for_a_join_is_told_with_topic_partition_and_offset(late: str) -> None:
    """Also where the other side is itself joined."""
    (letter,) = run_virtual(lambda world: letters_of(world, late))
    assert letter["_stream_meta"]["source"] == {"topic": late, "partition": 0, "offset": Offset(2)}
