"""A way to a server that can be shut, silent or cut."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final, Literal

Mode = Literal["open", "refused", "silent", "cut"]
_PIECE_BYTES: Final = 1 << 16


class Way:
    """Listens on a port of its own. refused: nobody listens there; silent: it is taken and never answered; cut: it ends at once."""

    def __init__(self, to: tuple[str, int] | Path) -> None:
        self._to = to
        self._mode: Mode = "open"
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()
        self.port = 0

    async def start(self, port: int = 0) -> "Way":
        """Any port, if none is given."""
        self._server = await asyncio.start_server(self._take, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def become(self, mode: Mode) -> None:
        """Connections that are open end, but in silence stay."""
        if mode == self._mode:
            return
        self._mode = mode
        if mode == "silent":
            for task in self._passing:
                task.cancel()
        else:
            self._end()
        if mode == "refused":
            await self._close()
        elif self._server is None:
            await self.start(self.port)

    async def close(self) -> None:
        """The end."""
        self._mode = "refused"
        self._end()
        await self._close()

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _end(self) -> None:
        for task in self._passing:
            task.cancel()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        if self._mode == "cut":
            writer.transport.abort()
        if self._mode != "open":
            return
        try:
            if isinstance(self._to, Path):
                far_reader, far = await asyncio.open_unix_connection(self._to)
            else:
                far_reader, far = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        self._open.add(far)
        for source, target in ((reader, far), (far_reader, writer)):
            task = asyncio.create_task(self._pass(source, target))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_PIECE_BYTES):
                target.write(data)
                await target.drain()
        target.close()
