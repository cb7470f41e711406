"""The process from which a machine's services are forked: it loads their modules once, and they share the memory.

``python -m tidemark.services.local.fork_server SERVICE…`` loads the modules of these, and forks a process for each `Order` that comes as a
line of its input. What it knows of them goes to its output, a line of JSON each: ``{"order", "pid"}``, or ``{"order", "error"}``, and
``{"pid", "status"}`` of one that has ended. Rules kept here:

1. It makes no thread, connection, event loop or column of Arrow's before it forks, so that a process has only what it made itself.
2. Its processes die with it, as it does with the supervisor (``tether``).
3. A process runs the program that ``python -m tidemark.services.SERVICE`` runs, with the environment of its order.
"""

import gc
import json
import os
import runpy
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tidemark.services.local.tether import die_with
from tidemark.shared.computation.folder import look_here

_IN: Final = 0
_OUT: Final = 1
_READ_BYTES: Final = 1 << 16
"""Of orders at a time."""
_LOADS_ITS_OWN: Final = frozenset({"spark"})
"""Services with libraries that no other may load: their processes load them after the fork."""


def load(services: Sequence[str]) -> None:
    """Load what their processes need."""
    gc.disable()
    for service in services:
        if service not in _LOADS_ITS_OWN:
            import_module(f"tidemark.services.{service}.service")
    gc.freeze()  # the collector writes to each object that it looks at, and a page that is written to is shared no more
    gc.enable()


class ForkServer:
    """Forks processes as it is told, and reaps them."""

    def __init__(self) -> None:
        self._ended, self._wakes = os.pipe()
        for end in (self._ended, self._wakes):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler has to be there, that the pipe is written to
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)

    def until_forked(self) -> Mapping[str, Any] | None:
        """Serve. It returns in each process that was forked, with its order; and here, with nothing, at the end of the input."""
        rest = b""
        while True:
            ready, _, _ = select.select([_IN, self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, _READ_BYTES)
                self._reap()
            if _IN in ready:
                if not (read := os.read(_IN, _READ_BYTES)):
                    return None
                *lines, rest = (rest + read).split(b"\n")
                for line in lines:
                    if (order := self._forked(json.loads(line))) is not None:
                        return order

    def _forked(self, order: Mapping[str, Any]) -> Mapping[str, Any] | None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(order=order["order"], error=error.strerror)
            return None
        if pid:
            _tell(order=order["order"], pid=pid)
            return None
        signal.set_wakeup_fd(-1)
        os.close(self._ended)
        os.close(self._wakes)
        _begin(order, server)
        return order

    @staticmethod
    def _reap() -> None:
        for pid, status in _ended_children():
            _tell(pid=pid, status=os.waitstatus_to_exitcode(status))


def _ended_children() -> Iterator[tuple[int, int]]:
    with suppress(ChildProcessError):  # none is left
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _tell(**said: object) -> None:
    os.write(_OUT, json.dumps(said).encode() + b"\n")


def _begin(order: Mapping[str, Any], server: int) -> None:
    """Make a forked process what an own start would have made it."""
    die_with(server)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, path, flags in (
        (_IN, os.devnull, os.O_RDONLY),
        (_OUT, order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(_OUT, sys.stderr.fileno())
    os.nice(order["niceness"])
    Path("/proc/self/comm").write_text(order["service"])  # `top` shows it, and would show the server's
    os.environ.clear()
    os.environ.update(order["environment"])


def main(services: Sequence[str]) -> None:
    """Serve until the supervisor closes the input; in a forked process, be that service."""
    # An interrupt at the terminal is for the supervisor and the services, and for none where the supervisor has it ignored.
    interrupted = signal.signal(signal.SIGINT, signal.SIG_IGN)
    load(services)
    if (order := ForkServer().until_forked()) is not None:
        signal.signal(signal.SIGINT, interrupted)
        look_here()
        program = f"tidemark.services.{order['service']}"
        sys.argv[:] = [program]
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
