"""A standalone Spark cluster on this machine, of the PySpark wheel: master, workers and their executors, each to be killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
import pyspark

HOME: Final = Path(pyspark.__file__).parent
_UP_S: Final = 120
CONF: Final = ("spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1", "spark.executor.memory=512m")
"""Settings of an application that is to run on it."""


@dataclass
class SparkCluster:
    """Its processes; what it says lies in `folder`."""

    folder: Path
    port: int
    environment: dict[str, str]
    master: subprocess.Popen[bytes] | None = None
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the master."""
        return f"spark://127.0.0.1:{self.port}"

    def start_master(self) -> None:
        """Start it, on the same port each time; returns when it listens."""
        self.master = self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port))
        deadline = time.monotonic() + _UP_S
        while not _listens(self.port):
            if time.monotonic() > deadline or self.master.poll() is not None:
                raise RuntimeError(f"the master does not listen on {self.port}; what it said is in {self.folder}")

    def start_worker(self, memory: str) -> None:
        """One with one core."""
        work = self.folder / f"work-{len(self.workers)}"
        size = ("--cores", "1", "--memory", memory, "--work-dir", str(work))
        self.workers.append(self._start("worker.Worker", "--host", "127.0.0.1", *size, self.url))

    def executors(self) -> list[psutil.Process]:
        """JVMs that run tasks."""
        below = [child for worker in self.workers for child in psutil.Process(worker.pid).children(recursive=True)]
        return [child for child in below if "CoarseGrainedExecutorBackend" in _command(child)]

    def kill_executor(self) -> None:
        """SIGKILL to the first one."""
        self.executors()[0].kill()

    def kill_master(self) -> None:
        """SIGKILL."""
        assert self.master is not None
        os.killpg(self.master.pid, signal.SIGKILL)
        self.master.wait()

    def stop(self) -> None:
        """End all of it."""
        for process in filter(None, [*self.workers, self.master]):
            for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
                child.kill()
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [
            str(HOME / "bin" / "spark-class"),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
            "--webui-port",
            "0",
        ]
        if kind.startswith("worker"):  # the master's address stands last
            command = [*command[:-3], *command[-2:], command[-3]]
        with (self.folder / f"{kind}-{time.monotonic_ns()}.log").open("wb") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log, start_new_session=True)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def spark_cluster(
    folder: Path, workers: int = 2, memory: str = "1g", environment: dict[str, str] | None = None
) -> Iterator[SparkCluster]:
    """A master and so many workers of one core. environment: of executors, too."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    cluster = SparkCluster(folder, port, {**os.environ, **own, **(environment or {})})
    try:
        cluster.start_master()
        for _ in range(workers):
            cluster.start_worker(memory)
        yield cluster
    finally:
        cluster.stop()
