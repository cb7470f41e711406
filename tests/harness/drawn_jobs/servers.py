"""Servers outside of an installation that fail as servers do: told by chance, by a seed.

A request may fail before it has an effect and behind it: with a status, half an answer, an answer that comes too late, a closed
connection, or a proxy's page. No request fails for ever: each comes through at one of its first tries.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from tests.harness.mongodb.servers import Passage

_FAILURES_MAX: Final = 2
"""Of one request: a server that answers 500 three times has failed for good."""
_FAULTS: Final = ("500", "429", "503", "half", "closed", "late")
_SLOW_S: Final = 1.3
"""Longer than drawn jobs wait for an answer."""
TWICE: Final = 5
"""A number that this divides is not found."""


@dataclass
class Weather:
    """Which requests fail, and how: none more than some times in a row."""

    seed: int
    rate: float = 0.0
    faults: tuple[str, ...] = _FAULTS
    counts: Counter[str] = field(default_factory=Counter)
    """Faults that were given, by kind."""
    _failed: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chooser = random.Random(self.seed)

    def fault(self, request: str) -> str:
        """Of this try of a request; "" for none."""
        if self._failed[request] >= _FAILURES_MAX or self._chooser.random() >= self.rate:
            self._failed.pop(request, None)
            return ""
        self._failed[request] += 1
        found = self._chooser.choice(self.faults)
        self.counts[found] += 1
        return found

    @property
    def behind(self) -> bool:
        """Whether the effect is there before the failure."""
        return self._chooser.random() < 0.5


async def failed(request: web.Request, fault: str) -> web.StreamResponse:
    """The answer of a fault, if there is one."""
    match fault:
        case "half":
            answer = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
            await answer.prepare(request)
            await answer.write(b'{"id": 1')
            _cut(request)
            return answer
        case "closed":
            _cut(request)
            return web.Response()
        case "late":
            await asyncio.sleep(_SLOW_S)
            return web.Response(status=503, text="late")
        case "page":
            return web.Response(status=200, text="<html>back soon", content_type="text/html")
        case "missing":
            return web.Response(status=404, text="<html>no such page", content_type="text/html")
        case _:
            return web.Response(status=int(fault), text="later")


def _cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


class Told:
    """A server of rows that keeps idempotency keys, and tells twice the number that it is asked about."""

    def __init__(self, weather: Weather) -> None:
        self.weather = weather
        self.rows: dict[str, dict[str, bytes]] = {}
        """By job and key, what was told."""
        self.wrong: list[str] = []
        self.url = ""
        self.requests = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> "Told":
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/told/{job}", self._tell)
        app.router.add_get("/twice", self._twice)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        job, key, body = request.match_info["job"], request.headers["Idempotency-Key"], await request.read()
        fault, rows = self.weather.fault(f"{job} {key}"), self.rows.setdefault(job, {})
        # A server that has begun to answer 200 has the effect.
        if (fault in ("", "half") or self.weather.behind) and rows.setdefault(key, body) != body:
            self.wrong.append(f"{job}: key {key} came with {rows[key]!r:.200} and with {body!r:.200}")
        return await failed(request, fault) if fault else web.Response(text="", status=204)

    async def _twice(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        number = int(request.query["n"])
        if fault := self.weather.fault(request.headers["Idempotency-Key"]):
            return await failed(request, fault)
        return web.json_response({"n": 2 * number}) if number % TWICE else web.Response(status=404, text="no")

    def told(self, job: str) -> list[bytes]:
        """The rows of a job, once for each key."""
        return list(self.rows.get(job, {}).values())


class Breaking:
    """A way to a MongoDB server that breaks again and again, until it is closed; some answers to what writes are lost."""

    def __init__(self, url: str, seed: int, rate: float) -> None:
        self.passage = Passage(url)
        self.broken = 0
        self._rate = rate
        self._chooser = random.Random(seed)
        self._ended = threading.Event()
        if rate:
            threading.Thread(target=self._break, daemon=True).start()

    def _break(self) -> None:
        while not self._ended.wait(self._chooser.random() / self._rate):
            self.broken += 1
            if self._chooser.random() < 0.5:
                self.passage.lose_answer(self._chooser.choice([b"update", b"commitTransaction", b"tidemark_released"]))
            else:
                with suppress(RuntimeError):  # its list of connections changes meanwhile
                    self.passage.break_off()

    @contextmanager
    def held(self) -> Iterator[None]:
        """It takes nothing meanwhile."""
        self.passage.refuses = True
        self.passage.break_off()
        try:
            yield
        finally:
            self.passage.refuses = False

    def close(self) -> None:
        self._ended.set()
        self.passage.close()
