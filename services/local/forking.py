"""The supervisor's end of the fork server (``fork_server.py``): processes that it forks, as objects to wait for and to end."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from tidemark.services.local.tether import tethered

_NO_THREADS: Final = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""The server's alone: numpy and Arrow make no threads when they are loaded. A process with threads may not be forked safely."""

_ENCODER: Final = json.JSONEncoder()
"""Gives a line, whatever the program around `tidemark.run` has made of the encoder that `json.dumps` uses."""


class ForkedProcess:
    """A process that the server has forked: what a supervisor asks of `asyncio.subprocess.Process`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Negative: the signal that ended it."""
        self._ended = asyncio.Event()

    def has_ended(self, status: int) -> None:
        """Keep the status that it has ended with."""
        self.returncode = status
        self._ended.set()

    async def wait(self) -> int:
        """Its status, once it has ended."""
        await self._ended.wait()
        return self.returncode or 0

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):  # its status is on its way
                os.kill(self.pid, number)


class Forking:
    """Processes of services, forked from one server: it starts with the first of them, and again after its end."""

    def __init__(self, services: Sequence[str]) -> None:
        """services: those whose processes will come; their modules are loaded once."""
        self._services = services
        self._server: _Server | None = None
        self._starting = asyncio.Lock()

    async def fork(self, service: str, environment: Mapping[str, str], log: Path, niceness: int) -> ForkedProcess:
        """One more process, with this environment alone. log: has what it says. niceness: added to this one's, see nice(1).

        Of a server that does not come up it has the pid and the end. OSError where the system has no room for a process.
        """
        order = {"service": service, "environment": dict(environment), "log": str(log), "niceness": niceness}
        async with self._starting:
            if self._server is None or self._server.ended:
                self._server = await self._start(environment, log)
        return await self._server.ask(order)

    async def _start(self, environment: Mapping[str, str], log: Path) -> "_Server":
        with log.open("ab") as said:
            _, server = await asyncio.get_running_loop().subprocess_exec(
                _Server,
                *tethered([sys.executable, "-P", "-m", "tidemark.services.local.fork_server", *self._services]),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=said,
                env={**environment, **_NO_THREADS},
            )
        return server

    async def stop(self) -> None:
        """End the server, and with it whatever of its processes is left."""
        if self._server is not None:
            await self._server.end()


class _Server(asyncio.SubprocessProtocol):
    """One that runs, what it was asked for and what it has forked.

    The loop calls it, and no task of its own hears the server: who ends cancels all tasks, and still waits for processes.
    """

    def __init__(self) -> None:
        self._orders: dict[int, asyncio.Future[ForkedProcess]] = {}
        self._forked: dict[int, ForkedProcess] = {}
        self._numbers = count()
        self._rest = b""
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server has started."""
        self._process = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, _pipe: int, data: bytes) -> None:
        """What it says of its processes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def connection_lost(self, _error: Exception | None) -> None:
        """It has ended, and all of its processes with it."""
        for process in self._forked.values():
            process.has_ended(-signal.SIGKILL)
        for asked in self._orders.values():
            failed = ForkedProcess(self._process.get_pid())
            failed.has_ended(self._process.get_returncode() or 0)
            _answer(asked, failed)
        self._process.close()
        self._gone.set()

    @property
    def ended(self) -> bool:
        """Whether it takes no more orders."""
        return self._gone.is_set()

    async def ask(self, order: Mapping[str, Any]) -> ForkedProcess:
        """Carry an order out."""
        number = next(self._numbers)
        forked: asyncio.Future[ForkedProcess] = asyncio.get_running_loop().create_future()
        self._orders[number] = forked
        pipe = cast("asyncio.WriteTransport", self._process.get_pipe_transport(0))
        pipe.write(_ENCODER.encode({**order, "order": number}).encode() + b"\n")
        return await forked

    async def end(self) -> None:
        """Kill it; all of its processes have ended after that."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._gone.wait()

    def _take(self, said: Mapping[str, Any]) -> None:
        if "status" in said:
            self._forked.pop(said["pid"]).has_ended(said["status"])
        elif "error" in said:
            asked = self._orders.pop(said["order"])
            if not asked.done():
                asked.set_exception(OSError(f"no process could be started: {said['error']}"))
        else:
            process = self._forked[said["pid"]] = ForkedProcess(said["pid"])
            _answer(self._orders.pop(said["order"]), process)


def _answer(asked: "asyncio.Future[ForkedProcess]", process: ForkedProcess) -> None:
    """Hand it over; one that nobody waits for any more is ended."""
    if asked.done():
        process.kill()
    else:
        asked.set_result(process)
