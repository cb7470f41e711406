"""What lies between a browser and the console: a proxy that is slow, cuts, holds back, answers itself, or says nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.ports.clock import Clock

PIECE: Final = 700
"""Bytes of a body that comes in pieces."""
_PORTAL: Final = b"<!doctype html><title>Portal</title><main><p>Please accept our conditions.</p></main>"
_GATEWAY: Final = b"<html><head><title>504 Gateway Time-out</title></head><body>nginx</body></html>"
TROUBLES: Final = {
    "hole": "These figures stand still since",
    "cut answers": "does not answer",
    "cut requests": "does not answer",
    "refuses": "does not answer",
    "portal": "what answers is not the service (status 200)",
    "gateway": "what answers is not the service (status 504)",
}
"""Ways in which no figures come, and what a page says of each."""
SLOW: Final = ("late", "pieces", "late pieces")
"""Ways in which they come."""


@dataclass
class Between:
    """Listens at an address of its own. `way`: what it does from now on, also to what is under way; "": it passes all on."""

    inner: int
    """The port of the service."""
    way: str = ""
    latency_ms: int = 1_000
    lose_answer_to: str = ""
    """The beginning of a request that goes through, and whose answer does not: once."""
    clock: Clock = field(default_factory=SystemClock)
    port: int = 0
    lost: int = 0
    """How many answers were lost so."""
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Where the browser asks."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of the browser."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._serve(reader, writer)
        self._tasks.discard(task)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await _head(reader)
        if not head or self.way in ("refuses", "cut requests"):
            return
        if self.way in ("portal", "gateway"):
            await reader.readexactly(_length(head))
            await self._answer(writer)
            return
        if self.way == "hole":
            await reader.read(-1)  # until the browser gives up
            return
        body = await reader.readexactly(_length(head))
        # A connection for each: nothing of one is kept for the next.
        inner_reader, inner = await asyncio.open_connection("127.0.0.1", self.inner)
        try:
            inner.write(_closing(head) + body)
            await self._pass_on(inner_reader, writer, head)
        finally:
            inner.close()

    async def _pass_on(self, inner: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> None:
        """The service's answer."""
        loses = bool(self.lose_answer_to) and head.startswith(self.lose_answer_to.encode())
        if "late" in self.way:
            await self.clock.sleep_ms(self.latency_ms)
        answer = await inner.read(-1)
        if loses:
            self.lose_answer_to = ""
            self.lost += 1
            return
        if self.way == "cut answers":
            writer.write(answer[: max(1, len(answer) - 200)])
            await writer.drain()
            return
        step = PIECE if "pieces" in self.way else max(1, len(answer))
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            if step == PIECE:
                await self.clock.sleep_ms(10)

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        status, body = ("200 OK", _PORTAL) if self.way == "portal" else ("504 Gateway Time-out", _GATEWAY)
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()

    def end(self) -> None:
        """Whatever is under way."""
        for task in list(self._tasks):
            task.cancel()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0


def _closing(head: bytes) -> bytes:
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*lines, b"Connection: close"]) + b"\r\n\r\n"


@asynccontextmanager
async def between(port: int) -> AsyncIterator[Between]:
    """One, in front of a service at this port."""
    made = Between(port)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.end()
