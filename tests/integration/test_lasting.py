# ruff: noqa: N802 -- a test carries its rule's name
"""What time does not mend ends a processor at the first try, with the reason: rule C10. By the real services, on virtual time."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.harness.installation import NAME, Installed, installed
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import ProcessorStatus, StartProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition

TOPIC, VARIABLE = "t", "KAFKA"
Story = Callable[[Installed], Awaitable[None]]


def document(folder: Path) -> dict[str, Any]:
    """A computation with state, from a topic into files."""
    return {
        "connections": {
            "k": {"type": "kafka", "bootstrapServers": f"${{{VARIABLE}}}"},
            "f": {"type": "files", "path": str(folder)},
        },
        "pipeline": [
            {"$source": {"connectionName": "k", "topic": TOPIC, "config": {"auto_offset_reset": "earliest"}}},
            {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}},
            {"$emit": {"connectionName": "f", "path": "out", "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 100, "unit": "ms"}}},
    }


async def _ran(there: Installed, folder: Path) -> None:
    """It has run, committed what it read, and was stopped."""
    await there.outside.log.create_topic(TOPIC, 1, {})
    writer = await there.outside.log.writer("test")
    for number in range(5):
        await (await writer.send(TopicPartition(TOPIC, 0), NewRecord(b'{"k": %d}' % number)))
    await writer.close()
    await there.create(document(folder))
    await there.start()
    await there.committed(3)
    await there.stop()


async def _failed(there: Installed) -> ProcessorStatus:
    """It was started again, and has failed."""
    await there.client.request(StartProcessor(there.client.unique(), NAME))
    async for status in there.client.watch(NAME):
        if status.state == "FAILED":
            return status
        assert status.state != "RUNNING", "nothing was wrong"
    raise AssertionError("the registry ended")


async def _unset(there: Installed, patch: pytest.MonkeyPatch) -> None:
    patch.delenv(VARIABLE)


async def _topic_gone(there: Installed, patch: pytest.MonkeyPatch) -> None:
    await there.outside.log.delete_topics([TOPIC])


async def _of_a_later_release(there: Installed, patch: pytest.MonkeyPatch) -> None:
    (job,) = there.store.commits
    last = max(there.store.commits[job])
    commit = there.store.commits[job][last]
    tasks = []
    for task in commit.tasks:
        parts = tuple(
            structs.replace(part, inline=b"\xff" + part.inline[1:]) if part.inline else part for part in task.parts
        )
        tasks.append(structs.replace(task, parts=parts) if task.vertex.startswith("compute") else task)
    there.store.commits[job][last] = structs.replace(commit, tasks=tuple(tasks))


@pytest.mark.parametrize(
    ("goes_wrong", "says"),
    [(_unset, VARIABLE), (_topic_gone, "not found"), (_of_a_later_release, "expected")],
)
def test_C10_what_time_does_not_mend_fails_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    goes_wrong: Callable[[Installed, pytest.MonkeyPatch], Awaitable[None]],
    says: str,
) -> None:
    """One generation, and its reason; not as many as failures are allowed, each with the same."""
    monkeypatch.setenv(VARIABLE, "nowhere:9092")

    async def story(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor, folder=tmp_path / "blobs") as there:
            await _ran(there, tmp_path / "out")
            await goes_wrong(there, monkeypatch)
        async with installed(
            world.clock,
            world.executor,
            folder=tmp_path / "blobs",
            broker=there.broker,
            store=there.store,
            numbers_from=1_000,
        ) as again:
            status = await _failed(again)
            assert says in status.reason
            assert "in a row" not in status.reason
            assert status.generation == 2

    run_virtual(story)
