"""A change stream of MongoDB by real processes: each event once, in order, over kills of source and sink, and breaks of the server."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.faults import kill
from tests.harness.installation import released
from tests.harness.mongodb.streaming import StreamingServer
from tests.harness.share import CI
from tidemark.services.audit.check import audit_local
from tidemark.services.audit.history import NotAuditable
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

pytestmark = pytest.mark.e2e
NAME = ProcessorName("events")
WORKERS = {"coordinator": 1, "source": 1, "operator": 0, "sink": 1, "spark": 0, "control": 0}
ROUNDS, TRANSACTIONS, DOCUMENTS = (2, 30, 1000) if CI else (3, 40, 3000)


def document(url: str, folder: Path, *, synced: bool = False, **config: Any) -> str:
    """All events as they are, into files."""
    source: dict[str, Any] = {"connectionName": "shop", "db": "d", "coll": ["c", "e"], "config": config}
    source |= {"initialSync": {"enable": True}} if synced else {}
    return json.dumps({
        "connections": {"shop": {"type": "mongodb", "url": url}},
        "pipeline": [{"$source": source}, {"$emit": {"path": str(folder), "format": "json"}}],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    })  # fmt: skip


async def write(server: StreamingServer, chooser: random.Random, begin: int) -> list[tuple[str, int]]:
    """Transactions of one event to many, in collections that are read and others; breaks and elections. What is to come, in order."""
    done: list[tuple[str, int]] = []
    for number in range(begin, begin + TRANSACTIONS):
        coll, count = chooser.choice(("c", "e", "other")), chooser.choice((1, 3, 200))
        changes: list[tuple[str, int]] = [("insert", 1000 * number + i) for i in range(count)]
        changes += [("update", 1000 * number), ("delete", 1000 * number)]
        server.transaction("d", coll, *((kind, key, {"n": 1}) for kind, key in changes))
        done += changes if coll != "other" else []
        await asyncio.sleep(0)
        if chooser.random() < 0.1:
            chooser.choice((server.cut, server.elect, lambda: server.cut_after(2)))()
    return done


async def finish(installed: Installation) -> None:
    """A drain."""
    await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
    async for status in installed.client.watch(NAME):
        assert status.state != "FAILED", status.reason
        if status.state == "FINISHED":
            break


@pytest.mark.parametrize("synced", [False, True])
async def test_events_come_out_once_over_kills(tmp_path: Path, synced: bool) -> None:
    """From now on; what was there before comes once and first, or not at all. An audit says that it cannot judge."""
    out, chooser, server = tmp_path / "out", random.Random(1), await StreamingServer(batch=100).start()
    there = [(coll, number) for coll in ("c", "e") for number in range(-DOCUMENTS, 0)]
    for coll, number in there:
        server.insert("d", coll, number, pad="x" * 1000)
    text, expected = document(server.url, out, synced=synced), []
    assert await refused_by_what_is_there(parse(text)) == []
    async with installation(tmp_path / "data", {}, WORKERS) as installed:
        await installed.ensure_started(NAME, text, {})
        for part in range(ROUNDS):
            await installed.until_running(NAME)
            expected += await write(server, chooser, part * TRANSACTIONS)
            await kill(installed, "source-0" if part % 2 == 0 else "sink-0")
        await installed.until_running(NAME)
        await finish(installed)
    await server.stop()
    rows: list[dict[str, Any]] = released(out)
    copies = [(row["ns"]["coll"], row["documentKey"]["_id"]) for row in rows if "snapshot" in row["_id"]]
    assert [(row["operationType"], row["documentKey"]["_id"]) for row in rows[len(copies) :]] == expected
    assert copies == sorted(set(copies)), "written meanwhile, some may be among them"
    assert [each for each in copies if each[1] < 0] == (there if synced else [])
    with pytest.raises(NotAuditable, match="only topics, files, tables and samples"):
        await audit_local(NAME, tmp_path / "data")


async def test_a_database_that_is_dropped_fails_the_processor_behind_its_last_event(tmp_path: Path) -> None:
    """All that came before is released; the reason says how to go on."""
    out, server = tmp_path / "out", await StreamingServer().start()
    text = document(server.url, out, startAtOperationTime={"$timestamp": {"t": 0, "i": 1}})
    server.insert("d", "c", 1)
    async with installation(tmp_path / "data", {}, WORKERS) as installed:
        await installed.ensure_started(NAME, text, {})
        await installed.until_running(NAME)
        server.insert("d", "c", 2)
        server.drop_database("d")
        async for status in installed.client.watch(NAME):
            if status.state == "FAILED":
                break
        assert "startAfter: {" in status.reason
        kinds = [row["operationType"] for row in released(out)]
    await server.stop()
    assert kinds == ["insert", "insert", "drop", "dropDatabase", "invalidate"]
