# ruff: noqa: N802 -- a test carries its rule's name
"""`$https` inside and at the end, by real processes on a real broker: over outages and a restart each record counts once, under one key."""

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import Installation, installation
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StartProcessor, StopProcessor
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.reading import followed

pytestmark = pytest.mark.e2e
NAME = ProcessorName("asks")
WORKERS = {"coordinator": 1, "source": 1, "operator": 1, "sink": 1, "spark": 0, "control": 0}


def document(url: str, *, last: bool = False) -> str:
    """last: the requests are the output; else a topic tells their answers."""
    broker = {"connectionName": "broker"}
    asks = {
        "connectionName": "api",
        "path": {"$concat": ["double/", {"$toString": "$n"}]},
        "method": "POST",
        "as": "answer",
        "payload": [{"$project": {"n": 1}}],
        **({"onError": "ignore"} if last else {}),
    }
    return json.dumps({
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"},
            "api": {"type": "https", "url": url},
        },
        "pipeline": [
            {"$source": {**broker, "topic": "in", "config": {"auto_offset_reset": "earliest"}}},
            {"$https": asks},
            *([] if last else [{"$emit": {**broker, "topic": "out"}}]),
        ],
        "options": {
            "checkpoint": {"interval": {"size": 200, "unit": "ms"}},
            "dlq": {**broker, "topic": "letters"},
        },
    })  # fmt: skip


class Api:
    """Doubles a number; each answer is another one, so that a row with two answers would show. Some requests fail at first."""

    def __init__(self) -> None:
        self.keys: dict[int, list[str]] = defaultdict(list)
        self.settled: set[int] = set()
        """Numbers with an answer that is not 503."""
        self.more = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        number = json.loads(await request.read())["n"]
        self.keys[number].append(request.headers["Idempotency-Key"])
        later = number % 10 == 3 and len(self.keys[number]) < 3
        if not later:
            self.settled.add(number)
            self.more.set()
        if number % 50 == 7:
            return web.json_response({"why": "seven"}, status=404)
        if later:
            return web.json_response({}, status=503)
        return web.json_response({"double": 2 * number, "attempt": len(self.keys[number])})

    async def until(self, count: int) -> None:
        """So many numbers have had their answer."""
        while len(self.settled) < count:
            self.more.clear()
            await self.more.wait()


async def _send(installed: Installation, first: int, count: int) -> None:
    records = [(0, b"k", json.dumps({"n": n}).encode()) for n in range(first, first + count)]
    await feed(installed.log, "in", records, count, 0.0, Fed())


async def _stop(client: Client) -> None:
    await client.request(StopProcessor(client.unique(), NAME, drain=False))
    async for status in client.watch(NAME):
        if status.state == "STOPPED":
            break


async def _last(folder: Path, api: Api, url: str) -> None:
    async with installation(folder, {}, WORKERS) as installed:
        for topic in ("in", "letters"):
            await installed.log.create_topic(topic, 1, {"retention.ms": "-1"})
        client = installed.client
        await _send(installed, 0, 200)
        await installed.ensure_started(NAME, document(url, last=True), {})
        await api.until(100)
        await _stop(client)
        await _send(installed, 200, 200)
        await client.request(StartProcessor(client.unique(), NAME))
        await api.until(400)
    assert set(api.keys) == set(range(400))
    assert {len(set(keys)) for keys in api.keys.values()} == {1}
    assert len({keys[0] for keys in api.keys.values()}) == 400


async def _story(folder: Path, api: Api, url: str) -> None:
    async with installation(folder, {}, WORKERS) as installed:
        for topic in ("in", "out", "letters"):
            await installed.log.create_topic(topic, 1, {"retention.ms": "-1"})

        async def until_out(topic: str, count: int) -> list[Any]:
            seen = 0
            async for _ in followed(installed.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
                seen += 1
                if seen == count:
                    break
            return [json.loads(r.value or b"") async for r in committed_records(installed.log, topic)]

        await _send(installed, 0, 200)
        await installed.ensure_started(NAME, document(url), {})
        await until_out("out", 196)
        client = installed.client
        await _stop(client)
        await _send(installed, 200, 200)
        await client.request(StartProcessor(client.unique(), NAME))
        rows, letters = await until_out("out", 392), await until_out("letters", 8)
    assert Counter(row["n"] for row in rows) == Counter(n for n in range(400) if n % 50 != 7)
    assert all(row["answer"]["double"] == 2 * row["n"] for row in rows)
    assert sorted(letter["doc"]["n"] for letter in letters) == [n for n in range(400) if n % 50 == 7]
    assert {len(set(keys)) for keys in api.keys.values()} == {1}
    assert len({keys[0] for keys in api.keys.values()}) == 400


def _with_api(story: Callable[[Path, Api, str], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        api, app = Api(), web.Application()
        app.router.add_post("/double/{n}", api.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await story(folder, api, f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    asyncio.run(run())


def test_each_record_comes_out_once_with_one_answer(tmp_path: Path) -> None:
    """Over errors of the server and a restart: one answer a record, one key for all its attempts, refusals as dead letters."""
    _with_api(_story, tmp_path)


def test_S8_the_last_stage_tells_of_each_record_under_one_key(tmp_path: Path) -> None:
    """Stopped while requests go out and started again: each record's request comes, whatever its attempts, under one key."""
    _with_api(_last, tmp_path)
