"""Two MongoDB servers for tests, in one process of Java: one that stands alone, and a replica set of one.

The protocol and the collections are mongo-java-server's. It has no transactions: `Servers.java` adds them, by copies of the collections
that a transaction touches: it shows that a sink begins, ends and repeats them rightly, not what MongoDB itself makes of them.
"""

import os
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.services.local.jars import default_cache, ensure_jars
from tidemark.services.local.java import find_java

_HERE: Final = Path(__file__).parent
_START_S_MAX: Final = 60


@dataclass(frozen=True)
class Servers:
    """URLs."""

    alone: str
    replicas: str


@contextmanager
def mongodb() -> Iterator[Servers]:
    """Both servers, until the end of the context."""
    jars = ensure_jars(default_cache().parent / "mongodb", _HERE / "jars.lock")
    java = find_java().executable
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    command = [str(java), *options, "-cp", os.pathsep.join(map(str, jars)), str(_HERE / "Servers.java")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            ready, _, _ = select.select([process.stdout], [], [], _START_S_MAX)
            line = process.stdout.readline().decode() if ready else ""
            if not line:
                process.kill()
                raise AssertionError(f"no server: {process.stderr.read().decode()}")
            alone, replicas = (f"mongodb://127.0.0.1:{port}/" for port in line.split())
            yield Servers(alone, replicas)
        finally:
            process.stdin.close()
            process.terminate()


class Passage:
    """A way to a server that can break: it takes no connections while it is closed, and can lose an answer."""

    def __init__(self, url: str) -> None:
        self._to = int(url.rstrip("/").rpartition(":")[2])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._asked: tuple[bytes, ...] = ()
        self.closed = False
        self.refuses = False
        """New connections end at once, for the time being."""
        self.ends_at = b""
        """A message that has this ends its connection, each time: as of a server that does not take a value in it."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """Of the passage. The server's own address is not asked for."""
        return f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true&retryWrites=false"

    def lose_answer(self, *asked: bytes) -> None:
        """The next answer to a message that has all of these is lost, and all connections with it."""
        self._asked = asked

    def break_off(self) -> None:
        """End all connections."""
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def close(self) -> None:
        """Take no more connections."""
        self.closed = True
        self._listener.close()
        self.break_off()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.closed or self.refuses:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._to))
                self._open += [near, far]
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        """Messages there and answers back; a driver asks one thing at a time on a connection."""
        with suppress(OSError, ValueError):  # ValueError: another thread has closed one of them
            while True:
                readable, _, _ = select.select([near, far], [], [])
                for source in readable:
                    data = source.recv(1 << 20)
                    if not data:
                        return
                    if source is near and self.ends_at and self.ends_at in data:
                        near.close()
                        far.close()
                        return
                    if source is near and self._asked and all(word in data for word in self._asked):
                        self._asked = ()
                        far.sendall(data)
                        far.recv(1)  # the answer has come, so the work is done
                        self.break_off()
                        return
                    (far if source is near else near).sendall(data)
