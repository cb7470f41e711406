"""A TCP way whose weather changes while connections are open: slow, narrow, still, deaf, mute, cut in the middle of a frame."""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.services.local.broker_settings import LOOPBACK, Port

_CHUNK_BYTES: Final = 16_384
_LOOK_S: Final = 0.05
"""Between two looks at the weather, while nothing passes."""
_QUEUED_MAX: Final = 256
"""Chunks that are on their way: a sender sees the way's end as far off as a network's buffers."""


@dataclass(frozen=True)
class Weather:
    """What a way does to what passes. The default: nothing."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """Added to the delay, drawn for each chunk; order is kept."""
    bytes_per_s: float | None = None
    still: str = ""
    """"up", "down" or "both": what goes there waits until the weather changes."""
    swallows: bool = False
    """Bytes go nowhere, and nobody is told; connections that were open then stay dead when the weather changes."""
    mute: bool = False
    """New connections are taken, and nothing comes."""
    refused: bool = False
    """Open connections are reset, and new ones as they come."""
    tears_bytes: int | None = None
    """A connection is reset after about so many more bytes, in the middle of whatever passes."""


CLEAR: Final = Weather()


@dataclass(eq=False)
class _Connection:
    """One, and what has happened to it."""

    near: asyncio.StreamWriter
    far: asyncio.StreamWriter | None = None
    dead: bool = False
    passed_bytes: int = 0

    def reset(self) -> None:
        """Both ends are told by a reset."""
        for writer in (self.near, self.far):
            if writer is not None:
                writer.transport.abort()


class Way:
    """Listens on a `port` of its own before a server. The API of `chaos.lanes.Lane`, as far as an installation uses it."""

    def __init__(self, to: Port | Path, host: str = LOOPBACK) -> None:
        """to: a port of this host, or a socket of this machine."""
        self._to, self._host = to, host
        self._chance = random.Random(0)
        self._weather = CLEAR
        self._open: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self.port = Port(0)
        self.connections = 0
        """That came, in all."""
        self.lost_bytes = 0
        """That were swallowed."""

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._came, self._host, 0)
        self.port = Port(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """End."""
        if self._server is not None:
            self._server.close()
        self._reset()

    def become(self, weather: Weather) -> None:
        """From now on, for open connections, too."""
        if self._weather.swallows:
            for each in self._open:
                each.dead = True
        self._weather = weather
        if weather.refused:
            self._reset()
        for each in self._open:
            each.passed_bytes = 0

    def _reset(self) -> None:
        for each in self._open:
            each.reset()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        connection = _Connection(writer)
        self._open.add(connection)
        try:
            if self._weather.refused:
                return
            while self._weather.mute or self._weather.still in ("up", "both"):  # noqa: ASYNC110 - weather is looked at
                await asyncio.sleep(_LOOK_S)
            connection.dead |= self._weather.swallows
            back, connection.far = await self._there()
            up = self._pass(connection, reader, connection.far, "up")
            await asyncio.gather(up, self._pass(connection, back, writer, "down"))
        except (OSError, asyncio.CancelledError):
            return  # the server is away, one of the two has ended, or all end: the other is told below
        finally:
            self._open.discard(connection)
            connection.reset()

    async def _there(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._to, Path):
            return await asyncio.open_unix_connection(self._to)
        return await asyncio.open_connection(self._host, self._to)

    async def _pass(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str
    ) -> None:
        """One direction: what is read now comes out after the delay of its time, while more is read."""
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_MAX)

        async def read() -> None:
            while True:
                data = await reader.read(_CHUNK_BYTES)
                now = self._weather
                due = loop.time() + now.delay_s + now.jitter_s * self._chance.random()
                await under_way.put((due, data))
                if not data:
                    return

        async def written() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(due - loop.time())
                while self._weather.still in (where, "both"):  # noqa: ASYNC110 - weather is looked at
                    await asyncio.sleep(_LOOK_S)
                if not data:
                    if not connection.dead and not self._weather.swallows:
                        writer.write_eof()
                        return
                    await asyncio.Event().wait()  # nobody is told
                if not await self._paid(connection, writer, data):
                    return

        both = [asyncio.ensure_future(read()), asyncio.ensure_future(written())]
        try:
            await asyncio.gather(*both)
        finally:
            for each in both:
                each.cancel()

    async def _paid(self, connection: _Connection, writer: asyncio.StreamWriter, data: bytes) -> bool:
        """Write a chunk as the weather lets it; False where the connection was torn."""
        now = self._weather
        if now.swallows or connection.dead:
            connection.dead = True
            self.lost_bytes += len(data)
            return True
        if now.bytes_per_s is not None:
            await asyncio.sleep(len(data) / now.bytes_per_s)
        if now.tears_bytes is not None:
            left = now.tears_bytes - connection.passed_bytes
            if left < len(data):
                writer.write(data[: max(0, left)])
                await writer.drain()
                connection.reset()
                return False
        connection.passed_bytes += len(data)
        writer.write(data)
        await writer.drain()
        return True
