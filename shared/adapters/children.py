"""Child processes for users' code: forked from a server that has loaded the needed modules, so that one more starts in milliseconds.

- A child leads a session of its own: processes that it starts end with it.
- It dies with the server, and the server with this process, however it ends.
- Its resources are bounded: memory by the kernel (RLIMIT_DATA), the number of its processes by a look every second.
"""

import ctypes
import gc
import multiprocessing
import os
import resource
import signal
import threading
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Final

from tidemark.shared.ports.children import ChildEnded

Work = Callable[[Connection], None]
"""A child's work with its end of the connection, until that is closed."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
# How often a computation that works is looked at for time and processes, which `call_ms_max` and `processes_max`
# bound.
_LOOK_S: Final = 1.0
_STATUS_S: Final = 5.0
"""How long the end of a process may take until its status is known."""


class ForkedChild:
    """`Child` of a server's."""

    def __init__(self, process: ForkServerProcess, ours: Connection, processes_max: int) -> None:
        self._process = process
        self._connection = ours
        self._processes_max = processes_max
        self._ended_by = ""
        self._ending = threading.Lock()

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid or 0

    def send(self, message: bytes | memoryview) -> None:
        """See `Child.send`."""
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise self._ended() from error

    def receive(self, wait_ms: int) -> bytes:
        """See `Child.receive`."""
        waited_for: list[Connection | int] = [self._connection, self._process.sentinel]
        looks = 0
        while not self._connection.poll():
            ready = connection.wait(waited_for, _LOOK_S)
            if not ready:
                looks += 1
                self._look(looks * _LOOK_S * 1000, wait_ms)
            elif self._connection not in ready and not self._connection.poll():
                raise self._ended()
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def _look(self, waited_ms: float, wait_ms: int) -> None:
        processes = session_size(self.pid, self._processes_max)
        if processes > self._processes_max:
            self._stop(f"was ended: it had more than {self._processes_max} processes")
        if waited_ms >= wait_ms:
            self._stop(f"was ended: it did not answer within {wait_ms} ms")

    def end(self) -> None:
        """See `Child.end`."""
        self._stop("was ended with its task")
        connection.wait([self._process.sentinel], _STATUS_S)  # not a join: a caller in `receive` may read the status

    def _stop(self, why: str) -> None:
        with self._ending:
            if self._ended_by:
                return
            self._ended_by = "" if self._process.exitcode is not None else why
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()  # it has not come so far as to lead a session, or nothing of it is left

    def _ended(self) -> ChildEnded:
        self._process.join(_STATUS_S)
        status = self._process.exitcode
        self._stop("closed its connection")  # processes that it started may be there still
        return ChildEnded(self._ended_by or _said(status))


class ForkedChildren:
    """`Children` that all do one work. `preload`: modules that the server loads before it forks."""

    def __init__(self, work: Work, preload: list[str], *, memory_bytes_max: int, processes_max: int) -> None:
        self._work = work
        self._memory_bytes_max = memory_bytes_max
        self._processes_max = processes_max
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def start(self) -> ForkedChild:
        """See `Children.start`; the first one starts the server, too."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_begin, args=(self._work, theirs, self._memory_bytes_max), daemon=True)
        process.start()
        theirs.close()
        return ForkedChild(process, ours, self._processes_max)


def _begin(work: Work, theirs: Connection, memory_bytes_max: int) -> None:
    os.setsid()
    gc.freeze()  # memory loaded before is shared with the server as long as nobody writes to it, and the collector would
    server = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # it died before the tie was made
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    work(theirs)


def session_size(leader: int, most: int) -> int:
    """How many processes the session has that this one leads; no further than one above `most`."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended meanwhile
            found += int(fields[3]) == leader
            if found > most:
                break
    return found


def _said(status: int | None) -> str:
    if status is None:
        return "answers no more"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"
