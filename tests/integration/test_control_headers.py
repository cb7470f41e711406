"""Headers with an id, byte by byte, on each route that changes something: an odd one is refused with a sentence, and noted."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidemark.services.control.routes import JOB_HEADER, REPLACES_HEADER, REQUEST_HEADER, ROUTES
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.runtime.topics import LATEST_CONFIG, Topics

TOKEN = "a-token-of-the-tests"
TOPICS = Topics()
CLOCK = SystemClock()
MOST = ControlSettings().request_characters_max
ODD = [b"\xff", b"a\xffb", "\u2028".encode(), b"\xed\xa0\x80", b"a" * (MOST + 1)]
"""No text, no text in the middle, a sign that nobody can print, half a character, too long."""


def _raise(error: BaseException) -> None:
    raise error


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[ControlService]:
    """A service without processors, which has read all that there is."""
    broker, executor = MemoryBroker(CLOCK), AsyncExecutor()
    for topic, config in {**TOPICS.plain(), TOPICS.works: LATEST_CONFIG}.items():
        await MemoryLog(broker).create_topic(topic, 1, config)
    settings = ControlSettings(port=0, token_file=str(tmp_path / "token"), engine="local", agents=False)
    service = ControlService(MemoryLog(broker), TOPICS, CLOCK, executor, settings, TOKEN)
    running = executor.spawn(service.run(), "control", _raise)
    await service.serving.wait()
    yield service
    service.stop()
    await running.join()


async def said(service: ControlService, method: str, path: str, header: str, value: bytes) -> tuple[int, bytes]:
    """Status and body of the answer."""
    host, port = service.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 2\r\n{header}: ".encode() + value)
    writer.write(b"\r\n\r\n{}")
    found = await reader.read()
    writer.close()
    return int(found.split()[1]), found.partition(b"\r\n\r\n")[2]


async def test_an_odd_id_in_a_header_is_refused_and_noted(served: ControlService) -> None:
    """Each route that changes something takes or passes over each header: none answers with a fault of the service."""
    count, served.audit.tell = 0, served.events.tell
    for route in (route for route in ROUTES if route.changes and route.method != "GET"):
        path = route.path.replace("{name}", "p").replace("{checkpoint}", "c")
        for header in (REQUEST_HEADER, JOB_HEADER, REPLACES_HEADER):
            for value in ODD:
                status, body = await said(served, route.method, path, header, value)
                assert status == 400, (route.method, path, header, value, body)
                error = json.loads(body)["error"]
                assert error["place"] == f"header {header}"
                assert error["expectation"] == f"an id of at most {MOST} characters that can be printed"
                count += 1
    events = [json.loads(event) for _, event in served.events._waiting]
    assert [(event["type"], event["status"]) for event in events] == [("audit", 400)] * count
    assert len(served.audit.deeds) == count
