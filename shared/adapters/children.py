"""Child processes for users' code: forked from a server that has loaded the needed modules, so that one more starts in milliseconds.

- A child dies with the server, and the server with this process, however it ends.
- The kernel bounds it: its memory (RLIMIT_DATA), and it starts no other process (`noprocesses`).
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
from typing import Final

from tidemark.shared.adapters.noprocesses import forbid_processes
from tidemark.shared.ports.children import ChildEnded

Work = Callable[[Connection], None]
"""A child's work with its end of the connection, until that is closed."""
_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
_STATUS_S: Final = 5.0
"""How long the end of a process may take until its status is known."""


class ForkedChild:
    """`Child` of a server's."""

    def __init__(self, process: ForkServerProcess, ours: Connection) -> None:
        self._process = process
        self._connection = ours
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
        while not self._connection.poll():
            ready = connection.wait(waited_for, wait_ms / 1000)
            if not ready:
                self._stop(f"was ended: it did not answer within {wait_ms} ms")
            elif self._connection not in ready and not self._connection.poll():
                raise self._ended()
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._ended() from error

    def end(self) -> None:
        """See `Child.end`."""
        self._stop("was ended with its task")
        connection.wait([self._process.sentinel], _STATUS_S)  # not a join: a caller in `receive` may read the status

    def _stop(self, why: str) -> None:
        with self._ending:
            if self._ended_by:
                return
            self._ended_by = "" if self._process.exitcode is not None else why
            self._process.kill()

    def _ended(self) -> ChildEnded:
        self._process.join(_STATUS_S)
        status = self._process.exitcode
        self._stop("closed its connection")
        return ChildEnded(self._ended_by or _said(status))


class ForkedChildren:
    """`Children` that all do one work. `preload`: modules that the server loads before it forks."""

    def __init__(self, work: Work, preload: list[str], *, memory_bytes_max: int) -> None:
        self._work = work
        self._memory_bytes_max = memory_bytes_max
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(preload)

    def start(self) -> ForkedChild:
        """See `Children.start`; the first one starts the server, too."""
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_begin, args=(self._work, theirs, self._memory_bytes_max), daemon=True)
        process.start()
        theirs.close()
        return ForkedChild(process, ours)


def _begin(work: Work, theirs: Connection, memory_bytes_max: int) -> None:
    os.setsid()  # an interrupt at the terminal is the worker's affair
    gc.freeze()  # memory loaded before is shared with the server as long as nobody writes to it, and the collector would
    server = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)  # it died before the tie was made
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    most = memory_bytes_max if hard == resource.RLIM_INFINITY else min(memory_bytes_max, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    forbid_processes()
    work(theirs)


def _said(status: int | None) -> str:
    if status is None:
        return "answers no more"
    if status < 0:
        return f"was killed by signal {-status} ({signal.Signals(-status).name})"
    return f"ended with status {status}"
