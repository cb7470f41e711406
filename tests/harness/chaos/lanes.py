"""Ways to the broker that can be cut, each in one direction or both: a listener of the broker's own behind a small TCP proxy.

The broker tells the clients of a listener to come back to its proxy, so all that a process says goes by its lane. What is held up in a
cut is delivered when it heals, as a network's retries would: also what its sender has given up by then.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tidemark.services.local.broker import free_port
from tidemark.services.local.broker_settings import LOOPBACK, Port

Cut = Literal["both", "up", "down", "refused"]
"""up: what processes say does not reach the broker; down: its answers do not reach them; refused: connections end, and new ones do."""
_CHUNK_BYTES = 65_536
_TRIES_MAX = 100


class Lane:
    """One way. `port`: where processes knock."""

    def __init__(self, broker: Port, host: str = LOOPBACK) -> None:
        self._broker = broker
        self._host = host
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._refused = 0
        self._cuts: list[Cut] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = Port(0)
        self._let()

    async def open(self) -> None:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._came, self._host, 0)
        self.port = Port(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """End."""
        if self._server is not None:
            self._server.close()
        self._end_all()

    def cut(self, how: Cut) -> None:
        """From now on; cuts add up."""
        self._cuts.append(how)
        self._let()
        if how == "refused":
            self._end_all()

    def heal(self, how: Cut) -> None:
        """Undo one cut."""
        self._cuts.remove(how)
        self._let()

    def _let(self) -> None:
        for gate, blocking in ((self._up, ("both", "up")), (self._down, ("both", "down"))):
            if any(cut in blocking for cut in self._cuts):
                gate.clear()
            else:
                gate.set()

    def _end_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            if "refused" in self._cuts:
                return
            await self._up.wait()
            there, back = await asyncio.open_connection(self._host, self._broker)
            self._open.add(back)
            try:
                await asyncio.gather(_pump(reader, back, self._up), _pump(there, writer, self._down))
            finally:
                self._open.discard(back)
                back.transport.abort()
        except OSError:
            return  # the broker is away, or one of the two has ended: the other is told below
        finally:
            self._open.discard(writer)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gate: asyncio.Event) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await gate.wait()
        writer.write(data)
        await writer.drain()
    await gate.wait()
    writer.write_eof()


class Lanes:
    """As many ways as an installation has places, by place. kind: of a way to a port of the broker, such as `Lane`."""

    def __init__(self, places: Sequence[str], kind: Callable[[Port], Any] = Lane) -> None:
        self.main, self._controller, *inner = _free_ports(2 + len(places))
        self.controller = self._controller
        self._inner = dict(zip(places, inner, strict=True))
        self._lanes = {place: kind(port) for place, port in self._inner.items()}
        self._first = next(iter(self._lanes))

    async def open(self) -> None:
        """Begin to listen."""
        for lane in self._lanes.values():
            await lane.open()

    def close(self) -> None:
        """End."""
        for lane in self._lanes.values():
            lane.close()

    @property
    def places(self) -> list[str]:
        """Whose ways there are."""
        return list(self._lanes)

    def of(self, place: str) -> Any:
        """The way of a place; workers beyond the first have that of the first place."""
        return self._lanes.get(place, self._lanes[self._first])

    def properties(self) -> dict[str, str]:
        """What the broker is told."""
        names = {place: f"LANE{number}" for number, place in enumerate(self._lanes)}
        main = f"PLAINTEXT://{LOOPBACK}:{self.main}"
        inner = [f"{names[place]}://{LOOPBACK}:{port}" for place, port in self._inner.items()]
        outer = [f"{names[place]}://{LOOPBACK}:{lane.port}" for place, lane in self._lanes.items()]
        controller = f"CONTROLLER://{LOOPBACK}:{self._controller}"
        return {
            "listeners": ",".join([main, *inner, controller]),
            "advertised.listeners": ",".join([main, *outer]),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", *names.values(), "CONTROLLER")
            ),
        }


def _free_ports(count: int) -> list[Port]:
    ports: list[Port] = []
    for _ in range(count):
        ports.append(free_port(None, ports, _TRIES_MAX))
    return ports
