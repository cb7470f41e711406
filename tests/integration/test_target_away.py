"""A target that does not answer: who asks how the processor stands is told what it waits for, from the beginning and while it runs."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, installed, released
from tidemark.services.sink.connectors.files import FileSink
from tidemark.shared.adapters.creating import Folders
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import StartProcessor
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.ports.sink import TargetUnavailable
from tidemark.shared.runtime.reading import up_to_now


def document(source: Path, target: str) -> dict[str, Any]:
    return {
        "name": "story",
        "pipeline": [
            {"$source": {"path": str(source), "format": "json", "follow": True}},
            {"$emit": {"path": target, "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


def test_a_processor_that_cannot_begin_says_what_its_target_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only that it is starting; and when the time to restore is over, the reason says it, too."""
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    away = str(tmp_path / "share" / "out")

    def make(_: Folders, folder: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))

    monkeypatch.setattr(Folders, "make", make)
    said = f"task emit-1/0 waits, opening: {away}: No such file or directory; it is tried again"

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await there.create(document(tmp_path / "in.json", away))
            await there.client.request(StartProcessor(there.client.unique(), NAME))
            await there.when(lambda status: status.state == "STARTING" and status.reason == said)
            over = f"waits until an outage is over: tasks emit-1/0 did not restore within 60000 ms; {said}"
            await there.when(lambda status: status.reason == over)

    run_virtual(main)


def test_a_running_processor_says_that_its_target_went_away_and_no_more_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is over when the target answers: then the reason is, too, and nothing was lost."""
    source, target = tmp_path / "in.json", tmp_path / "out"
    source.write_text('{"n": 1}\n')
    stage, away = FileSink.stage, False

    async def staged(sink: FileSink, epoch: Epoch, committed: Epoch) -> bytes:
        if away:
            raise TargetUnavailable("nobody answers")
        return await stage(sink, epoch, committed)

    monkeypatch.setattr(FileSink, "stage", staged)

    async def main(world: VirtualWorld) -> None:
        nonlocal away
        async with installed(world.clock, world.executor) as there:
            await there.create(document(source, str(target)))
            await there.start()
            await there.committed()
            away = True
            with source.open("a") as more:
                more.write('{"n": 2}\n')
            waits = await there.when(lambda status: "task emit-1/0 waits" in status.reason)
            assert waits.state == "RUNNING"
            assert waits.reason.endswith(": nobody answers")
            away = False
            await there.when(lambda status: status.state == "RUNNING" and status.reason == "")
            await there.committed()
            assert released(target) == [{"n": 1}, {"n": 2}]

    run_virtual(main)


def test_what_a_target_would_refuse_stops_nothing_where_no_queue_is_named(tmp_path: Path) -> None:
    """Like a document that a stage cannot take: it is counted and told in the log, and the rest goes on."""
    source = tmp_path / "in.json"
    source.write_text('{"k": "a"}\n{"k": 5}\n{"k": "b"}\n')
    emit = {"connectionName": "broker", "topic": "out", "config": {"key": "$k", "keyFormat": "string"}}
    text = {
        "name": "story",
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory:1"}},
        "pipeline": [{"$source": {"path": str(source), "format": "json"}}, {"$emit": emit}],
    }

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor) as there:
            await there.create(text)
            await there.client.request(StartProcessor(there.client.unique(), NAME))
            await there.when(lambda status: status.state == "FINISHED")
            partition = TopicPartition("out", 0)
            keys = [record.key async for record in up_to_now(there.outside.log, partition, committed_only=True)]
            assert keys == [b"a", b"b"]

    run_virtual(main)
