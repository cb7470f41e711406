"""A control service with its console in front of a processor that runs: windows over a topic in memory, with late and broken records."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from tests.harness.installation import Installed, MemoryConnections, installed
from tests.harness.sealing import sealed
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.process.users import ROLES

TOKEN = "a-token-of-the-console"
NAME = ProcessorName("clicks")
CONNECTION = {"type": "kafka", "bootstrapServers": "memory", "config": {"sasl_password": "${KAFKA_PASSWORD}"}}
DOCUMENT: dict[str, Any] = {
    "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
    "pipeline": [
        {
            "$source": {
                "connectionName": "broker",
                "topic": "clicks",
                "config": {"auto_offset_reset": "earliest"},
                "timeField": {"$toDate": "$at"},
                "schema": {"user": "string", "at": "long"},
                "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "second"}},
            }
        },
        {"$redact": "$$KEEP"},
        {
            "$tumblingWindow": {
                "interval": {"size": 2, "unit": "second"},
                "pipeline": [{"$group": {"_id": "$user", "clicks": {"$count": {}}}}],
            }
        },
        {"$emit": {"connectionName": "broker", "topic": "counts"}},
    ],
    "options": {
        "dlq": {"connectionName": "broker", "topic": "refused"},
        "lateness": "split",
        "checkpoint": {"interval": {"size": 300, "unit": "ms"}},
    },
}


@dataclass
class Shown:
    """A console to look at."""

    url: str
    there: Installed
    session: ClientSession

    async def ask(self, method: str, path: str, body: Any = None, user: str = "") -> tuple[int, str]:
        """Status and text; `user`: one of the roles instead of the installation's own."""
        headers = {"Authorization": f"Bearer {token_of(user)}"}
        async with self.session.request(method, self.url + path, json=body, headers=headers) as answer:
            return answer.status, await answer.text()


def token_of(user: str) -> str:
    """The token of a user of this role; "": the installation's own."""
    return f"a-token-of-{user}" if user else TOKEN


@asynccontextmanager
async def console(folder: Path) -> AsyncIterator[Shown]:
    """All of it, with a processor that has committed and refused some."""
    clock, executor = SystemClock(), AsyncExecutor()
    users = folder / "users"
    users.write_text(
        "".join(f"{r} {r} {sha256(token_of(r).encode()).hexdigest()}\n" for r in (*ROLES, "admin@elsewhere"))
    )
    lines: tuple[dict[str, Any], ...] = (
        {"event": "worker.started", "level": "info"},
        {"event": "sink.slow", "level": "warning", "took_ms": 812},
    )
    (folder / "sink-0.log").write_text(
        "".join(
            json.dumps({"timestamp": f"2026-01-01T00:00:0{i}Z", "processor": NAME, **line}) + "\n"
            for i, line in enumerate(lines)
        )
    )
    async with installed(clock, executor) as there:
        for topic in ("clicks", "counts", "refused"):
            await there.outside.log.create_topic(topic, 1)
        settings = ControlSettings(
            port=0, engine="local", logs=str(folder), agents=False, users_file=str(users), look_ms=250
        )
        service = ControlService(
            sealed(MemoryLog(there.broker)), there.outside.topics, clock, executor, settings, TOKEN
        )
        service.commands.connect_briefly = lambda: MemoryConnections("control", MemoryLog(there.broker))
        running = executor.spawn(service.run(), "control", _raise)
        await service.serving.wait()
        await there.create(DOCUMENT, NAME)
        await there.start(NAME)
        feeding = executor.spawn(_feed(there), "feed", _raise)
        async with ClientSession() as session:
            shown = Shown(service.url, there, session)
            assert (await shown.ask("PUT", "/v1/connections/broker", CONNECTION))[0] == 200
            await there.committed(4, NAME)
            while not _known(await shown.ask("GET", f"/v1/processors/{NAME}/history")):
                await clock.sleep_ms(50)
            yield shown
        feeding.cancel()
        await feeding.join()
        service.stop()
        await running.join()


def _known(answer: tuple[int, str]) -> bool:
    """Some points have a watermark of the sinks."""
    points = json.loads(answer[1]).get("points", []) if answer[0] == 200 else []
    return sum(point["watermark"] is not None for point in points) > 8


async def _feed(there: Installed) -> None:
    """A hundred records a second; every fortieth comes late, every sixtieth is none."""
    writer = await there.outside.log.writer("feed")
    number = 0
    while True:
        for _ in range(10):
            number += 1
            at = there.clock.now_ms() - (20_000 if number % 40 == 0 else number * 7 % 500)
            record = (
                b"{no record" if number % 60 == 0 else json.dumps({"user": f"user-{number % 7}", "at": at}).encode()
            )
            await (await writer.send(TopicPartition("clicks", 0), NewRecord(record)))
        await there.clock.sleep_ms(100)


def _raise(error: BaseException) -> None:
    raise error
