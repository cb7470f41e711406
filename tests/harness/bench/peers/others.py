"""The peers' side: Flink, Kafka Streams and Spark, each a program of its own, fetched and compiled once."""

import asyncio
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tidemark.services.local.jars import PROJECT_ROOT, ensure_jars
from tidemark.services.local.java import find_java

_HERE: Final = Path(__file__).parent
CACHE: Final = PROJECT_ROOT / ".tidemark" / "peers"
_HEAP: Final = "-Xmx2g"
_PARALLEL: Final = 2
"""Threads that work on the events, as many as Tidemark's processes."""
NAMES: Final = ("flink", "streams", "spark")
_OF_SPARK: Final = ("spark-", "commons-pool2-")
_LACKS: Final = {"spark": frozenset({"map-1k", "window-1k", "join"}), "streams": frozenset({"join"})}
"""Spark reads JSON by a schema, so documents of which no field is declared are not its shape. The join was written for Flink alone."""


def takes(name: str, shape: str) -> bool:
    """Whether a peer has a program for a shape."""
    return shape not in _LACKS.get(name, ())


def _flink() -> list[Path]:
    """Flink's jars, out of its package."""
    folder = CACHE / "flink"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        options = ["download", "-q", "--no-deps", "--no-build-isolation", "--require-hashes"]
        command = [sys.executable, "-m", "pip", *options, "-r", str(_HERE / "packages.lock"), "-d", str(CACHE)]
        subprocess.run(command, check=True)
        (package,) = CACHE.glob("apache_flink_libraries-*.tar.gz")
        with tarfile.open(package) as packed:
            packed.extractall(CACHE / "unpacked", filter="data")
        (lib,) = (CACHE / "unpacked").glob("*/deps/lib")
        lib.rename(folder)
        package.unlink()
    return sorted(folder.glob("*.jar"))


def class_path(name: str) -> list[Path]:
    """The jars of a peer."""
    own = ensure_jars(CACHE, _HERE / "jars.lock")
    brokers = ensure_jars()
    if name == "flink":
        json = [jar for jar in brokers if jar.name.startswith("jackson-")]
        return [*_flink(), *json, *(jar for jar in own if "flink" in jar.name)]
    if name == "spark":
        clients = [jar for jar in brokers if jar.name.startswith("kafka-clients-")]
        return [*clients, *(jar for jar in own if jar.name.startswith(_OF_SPARK))]
    return [*brokers, *(jar for jar in own if jar.name.startswith(("kafka-streams", "rocksdbjni")))]


def compiled(name: str, folder: Path) -> str:
    """Compile a peer's program into a folder; its class path."""
    paths = ":".join(map(str, class_path(name)))
    compiler = find_java().executable.with_name("javac")
    source = _HERE / f"{name.capitalize()}Peer.java"
    subprocess.run([compiler, "-d", folder, "-cp", paths, source], check=True)
    return f"{folder}:{paths}"


@asynccontextmanager
async def running(name: str, folder: Path, given: Sequence[object]) -> AsyncIterator[int]:
    """A peer at work, until it is left; its process id. given: bootstrap, source, target, shape, interval of commits in ms."""
    bootstrap, source, target, shape, interval_ms = map(str, given)
    words = [bootstrap, source, target, shape, str(_PARALLEL), interval_ms, str(folder / f"state-{target}")]
    if name == "spark":
        command = [sys.executable, str(_HERE / "spark_peer.py"), *words, ":".join(map(str, class_path(name)))]
    else:
        opened = "--add-opens=java.base/java.util=ALL-UNNAMED"
        java = [str(find_java().executable), _HEAP, opened, "-cp", compiled(name, folder)]
        command = [*java, f"{name.capitalize()}Peer", *words]
    with (folder / f"{target}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield process.pid
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()
