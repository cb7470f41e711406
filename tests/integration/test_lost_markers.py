# ruff: noqa: N802 -- a test carries its rule's name
"""Release markers that somebody has deleted: the processor is FAILED, and what the reason tells a user to do helps (S2). On memory."""

import json

import pytest

from tests.harness.installation import NAME, Installed, installed
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import ProcessorStatus, StartProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.topics import MARKERS_PREFIX

RECORDS = 10


def document() -> dict[str, object]:
    """From a topic into another."""
    start = {"auto_offset_reset": "earliest"}
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            {"$source": {"connectionName": "broker", "topic": "in", "config": start}},
            {"$emit": {"connectionName": "broker", "topic": "out"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 100, "unit": "ms"}}},
    }


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("drops", [True, False])
def test_S2_what_the_reason_says_helps_where_markers_are_lost(whole: bool, drops: bool) -> None:
    """Whether their topic was deleted or emptied: the processor begins anew, in its place or as another one."""

    async def story(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await _ran(there)
            await _lose(there, whole=whole)
            failed = await _started(there, resume=True)
            assert "Start without state; if that fails" in failed.reason
            if drops:
                await there.drop()
                await there.create(document())
            await _started(there, resume=False)
            await there.committed(3)
            await there.stop(drain=True)
            rows = [json.loads(record.value or b"")["n"] for record in there.broker.dump("out")[0]]
            assert rows == [*range(RECORDS)] * 2

    run_virtual(story)


async def _ran(there: Installed) -> None:
    for topic in ("in", "out"):
        await there.outside.log.create_topic(topic, 1, {})
    writer = await there.outside.log.writer("test")
    for number in range(RECORDS):
        await (await writer.send(TopicPartition("in", 0), NewRecord(b'{"n": %d}' % number)))
    await writer.close()
    await there.create(document())
    await there.start()
    await there.committed(3)
    await there.stop()


async def _lose(there: Installed, *, whole: bool) -> None:
    log = there.outside.log
    for topic in [topic for topic in await log.list_topics() if topic.startswith(MARKERS_PREFIX)]:
        if whole:
            await log.delete_topics([topic])
        else:
            await log.delete_records(await log.end_offsets([TopicPartition(topic, 0)]))


async def _started(there: Installed, *, resume: bool) -> ProcessorStatus:
    request = there.client.unique()
    await there.client.request(StartProcessor(request, NAME, resume))
    async for status in there.client.watch(NAME):
        if request in dict(status.answers) and status.state in ("RUNNING", "FAILED"):
            return status
    raise AssertionError("the registry ended")
