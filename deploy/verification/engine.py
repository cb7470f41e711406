"""A container engine for the time of the verification, where none runs: its own data, socket and network.

It lives in a network namespace of its own, which has no way out: containers there reach only each other, and nothing of the machine's
network is changed. Needs root, and the programs dockerd (Debian: docker.io), unshare and ip.
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tidemark.deploy.verification.shell import CommandFailed, RunLog, Shell

_READY_S: Final = 120
_STOP_S: Final = 60
_POLL_S: Final = 0.2


@contextmanager
def own_engine(record: RunLog, folder: Path | None) -> Iterator[str]:
    """The engine's address (for DOCKER_HOST). folder: where it keeps its data, kept; None: a temporary one. CommandFailed."""
    place = Path(tempfile.mkdtemp(prefix="tidemark-engine-")) if folder is None else folder.resolve()
    place.mkdir(parents=True, exist_ok=True)
    address = f"unix://{place / 'socket'}"
    daemon = [
        "dockerd",
        f"--data-root={place / 'data'}",
        f"--exec-root={place / 'exec'}",
        f"--pidfile={place / 'pid'}",
        f"--host={address}",
        "--containerd-namespace=tidemark",
        "--containerd-plugins-namespace=tidemark-plugins",
    ]
    inside = "ip link set lo up && exec " + " ".join(daemon)
    with (place / "dockerd.log").open("wb") as log:
        process = subprocess.Popen(["unshare", "--net", "sh", "-c", inside], stdout=log, stderr=log)
    shell = Shell(record, place, {"DOCKER_HOST": address})
    try:
        _until_ready(shell, process, place)
        yield address
    finally:
        _stop(shell, process)
        if folder is None:
            shutil.rmtree(place)


def _until_ready(shell: Shell, process: subprocess.Popen[bytes], place: Path) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        try:
            told = shell.run("docker", "info", "--format", _FACTS, told=False)
        except CommandFailed as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = (place / "dockerd.log").read_text(errors="replace")[-2000:]
                raise CommandFailed(f"the engine did not start: {said}") from error
            time.sleep(_POLL_S)
        else:
            shell.record.say(f"engine: {told.strip()}")
            return


_FACTS: Final = (
    "{{.ServerVersion}}, storage {{.Driver}}, kernel {{.KernelVersion}}, {{.NCPU}} cores, {{.MemTotal}} bytes"
)


def _stop(shell: Shell, process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        if left := shell.run("docker", "ps", "--all", "--quiet", told=False).split():
            shell.run("docker", "rm", "--force", *left)
        process.terminate()
    process.wait(_STOP_S)
    shell.record.say("engine: stopped")
