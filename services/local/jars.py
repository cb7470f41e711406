"""The jars of the local broker: fetched by Maven coordinates with jgo, each verified against a digest.

Rules kept here:

1. Nothing is run unless its SHA-256 is in ``deploy/broker/jars.lock``. A file that differs is thrown away and fetched
   once more; if it still differs, that is an error.
2. The lock names coordinates and digests, no address: where packages come from is the machine's business
   (jgo's own settings).
3. All fetched files lie below one folder, by default inside the project, so that removing it undoes the set-up.

``python -m tidemark.services.local.jars`` fetches the missing jars; with ``--relock`` it resolves ``ENDPOINT`` anew and writes the
lock, which is how the broker's version is raised; with ``--into DIR`` it puts the verified jars, and no others, into a
folder.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NewType

KAFKA_VERSION: Final = "4.1.0"
LOG4J_VERSION: Final = "2.24.3"
# Kafka logs through slf4j; without the second coordinate it would log nowhere, and a failed start would have no reason.
# The exclamation mark: the versions that log4j's parent recommends do not overrule those that Kafka asks for.
ENDPOINT: Final = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}+org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}!"
)

PROJECT_ROOT: Final = Path(__file__).resolve().parents[2]
LOCK_PATH: Final = PROJECT_ROOT / "deploy" / "broker" / "jars.lock"
CACHE_VARIABLE: Final = "TIDEMARK_CACHE"

_HTTP_TIMEOUT_S: Final = 30
"""Of a fetch at the set-up."""
_FETCH_ATTEMPTS: Final = 3
"""Of a fetch at the set-up."""
_COORDINATE_PARTS: Final = 3

Sha256 = NewType("Sha256", str)


class JarsError(Exception):
    """The broker's jars cannot be had; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class LockedJar:
    """One jar of the lock: its Maven coordinate and the digest it must have."""

    group: str
    artifact: str
    version: str
    sha256: Sha256

    @property
    def coordinate(self) -> str:
        """As Maven writes it: ``group:artifact:version``."""
        return f"{self.group}:{self.artifact}:{self.version}"


def default_cache() -> Path:
    """Where fetched jars are kept: ``$TIDEMARK_CACHE``, else inside the project, else in the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named).resolve() / "kafka"
    if (PROJECT_ROOT / "pyproject.toml").exists():
        return PROJECT_ROOT / ".tidemark" / "kafka"
    return Path.home() / ".cache" / "tidemark" / "kafka"


def read_lock(path: Path = LOCK_PATH) -> tuple[LockedJar, ...]:
    """The jars that the lock names, in its order.

    Raises:
        JarsError: the file is missing, or a line is not ``group:artifact:version sha256:HEX``.
    """
    if not path.exists():
        msg = f"{path}: the list of the broker's jars is missing; restore it from version control"
        raise JarsError(msg)
    return tuple(
        _parse_line(line, f"{path}:{number}")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    )


def _parse_line(line: str, place: str) -> LockedJar:
    coordinate, _, digest = line.partition(" ")
    parts = coordinate.split(":")
    algorithm, _, value = digest.strip().partition(":")
    if len(parts) != _COORDINATE_PARTS or algorithm != "sha256" or len(value) != hashlib.sha256().digest_size * 2:
        raise JarsError(
            f"{place}: expected 'group:artifact:version sha256:HEX', found {line!r}; "
            "write the file anew with: python -m tidemark.services.local.jars --relock"
        )
    return LockedJar(parts[0], parts[1], parts[2], Sha256(value))


def ensure_jars(cache: Path | None = None, lock: Path = LOCK_PATH) -> tuple[Path, ...]:
    """Paths of all locked jars, fetched where they are missing, each verified.

    Raises:
        JarsError: no network, no disk, or a file with another digest than the locked one.
    """
    repository = (cache or default_cache()) / "repository"
    with _alone_in(repository):
        return tuple(_verified(repository, jar) for jar in read_lock(lock))


@contextmanager
def _alone_in(repository: Path) -> Iterator[None]:
    """No other process fetches there meanwhile: it would take a half-written file for an altered one, and delete it."""
    with ExitStack() as held:
        with suppress(OSError):  # where nothing can be written, nothing is fetched; the fetch tells of a full disk
            repository.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((repository / ".lock").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _verified(repository: Path, jar: LockedJar) -> Path:
    path = repository.joinpath(*jar.group.split("."), jar.artifact, jar.version, f"{jar.artifact}-{jar.version}.jar")
    found: str | None = None
    for _ in range(_FETCH_ATTEMPTS):
        if not path.exists():
            _fetch(repository, jar)
        found = _sha256(path)
        if found == jar.sha256:
            return path
        path.unlink()  # Cut off by a kill, or altered on the way.
    raise JarsError(
        f"{jar.coordinate}: expected SHA-256 {jar.sha256}, fetched a file with {found}; it was thrown away. "
        "Check where this machine gets Maven packages from"
    )


def _fetch(repository: Path, jar: LockedJar) -> None:
    import jgo.maven  # noqa: PLC0415 - a quarter of a second of each start, and only the first fetches
    import requests  # noqa: PLC0415 - as above

    try:
        context = jgo.maven.MavenContext(repo_cache=repository, timeout=_HTTP_TIMEOUT_S)
        context.project(jar.group, jar.artifact).at_version(jar.version).artifact().resolve()
    except (requests.RequestException, RuntimeError) as error:
        raise JarsError(
            f"{jar.coordinate} could not be fetched ({type(error).__name__}). "
            "The first set-up needs a network with access to Maven Central or a mirror that jgo's settings name; "
            "connect, then run 'make setup' again"
        ) from error
    except OSError as error:
        raise JarsError(
            f"{jar.coordinate} could not be written below {repository}: {error.strerror or error}. "
            f"Free some disk space, or name another folder in {CACHE_VARIABLE}"
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def relock(endpoint: str = ENDPOINT, path: Path = LOCK_PATH) -> int:
    """Resolve an endpoint with all it needs and write its lock. Returns the number of jars."""
    import jgo  # noqa: PLC0415 - as above

    with tempfile.TemporaryDirectory() as scratch:
        resolved = jgo.build(endpoint, update=True, cache_dir=Path(scratch)).lockfile
    if resolved is None:
        raise JarsError(f"jgo resolved {endpoint} but wrote no lock file; its version may have changed")
    rows = sorted(f"{jar.groupId}:{jar.artifactId}:{jar.version} sha256:{jar.sha256}" for jar in resolved.dependencies)
    head = (
        "# The jars of the local Kafka broker and their digests. Written by: python -m tidemark.services.local.jars --relock\n"
        f"# From: {endpoint}\n"
    )
    path.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return len(rows)


def copy_jars(jars: Sequence[Path], folder: Path) -> None:
    """Put jars into a folder, which is made. JarsError where it holds others: a class path of all in it would run them."""
    folder.mkdir(parents=True, exist_ok=True)
    if foreign := {path.name for path in folder.iterdir()} - {jar.name for jar in jars}:
        raise JarsError(f"{folder}: expected a folder of its own for the broker's jars, found {min(foreign)} in it")
    for jar in jars:
        shutil.copyfile(jar, folder / jar.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch and verify; the exit status is 0 when all jars are there."""
    parser = argparse.ArgumentParser(
        prog="python -m tidemark.services.local.jars", description="Fetch the broker's jars."
    )
    parser.add_argument("--cache", type=Path, default=default_cache(), help="folder to keep them in")
    parser.add_argument("--into", type=Path, help="folder to copy them into, for an image")
    parser.add_argument("--relock", action="store_true", help="resolve anew and write the lock first")
    options = parser.parse_args(arguments)
    try:
        if options.relock:
            relock()
        jars = ensure_jars(options.cache)
        if options.into is not None:
            copy_jars(jars, options.into)
    except JarsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    size_mib = sum(jar.stat().st_size for jar in jars) / 2**20
    sys.stdout.write(f"{len(jars)} jars of Kafka {KAFKA_VERSION}, {size_mib:.0f} MiB, verified\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
