"""Stand-ins for the public base images, where no image registry can be reached: Debian with the programs that the images build on.

They are made by debootstrap from Debian's packages and keep the interface that the shipped files rely on: `python3` of version 3.11 with
venv; Java 17 in /opt/java/openjdk and on the path; PostgreSQL that takes POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB and
POSTGRES_INITDB_ARGS and keeps its data in /var/lib/postgresql/data; Prometheus that is started with its options. Debian has no Grafana.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidemark.deploy.verification.shell import Shell

_SUITE: Final = "bookworm"
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POSTGRES_BIN: Final = "/usr/lib/postgresql/15/bin"
_START_POSTGRES: Final = """#!/bin/sh
set -eu
data=/var/lib/postgresql/data
if [ ! -s "$data/PG_VERSION" ]; then
  printf '%s' "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --pgdata="$data" $POSTGRES_INITDB_ARGS
  echo 'host all all all scram-sha-256' >> "$data/pg_hba.conf"
  echo "CREATE DATABASE $POSTGRES_DB" | postgres --single -D "$data" postgres
fi
exec postgres -D "$data" -c listen_addresses='*'
"""


@dataclass(frozen=True, slots=True)
class Standin:
    """An image: its packages, and the changes to the root folder before it is imported."""

    variable: str
    """Which setting of the compose file names the image."""
    name: str
    packages: tuple[str, ...]
    prepare: str = "true"
    """A shell command, run inside the root folder."""
    changes: tuple[str, ...] = (f"ENV PATH={_PATH}",)


STANDINS: Final = (
    Standin("TIDEMARK_PYTHON_IMAGE", "standin/python:3.11", ("python3", "python3-venv")),
    Standin(
        "TIDEMARK_JAVA_IMAGE",
        "standin/java:17",
        ("openjdk-17-jre-headless",),
        "mkdir -p opt/java && cp -rL usr/lib/jvm/java-17-openjdk-amd64 opt/java/openjdk",
        (f"ENV PATH=/opt/java/openjdk/bin:{_PATH}",),
    ),
    Standin(
        "TIDEMARK_POSTGRES_IMAGE",
        "standin/postgres:15",
        ("postgresql-15",),
        "rm -rf var/lib/postgresql/15 etc/postgresql/15 && chroot . install -d -m 0700 -o postgres -g postgres"
        " /var/lib/postgresql/data && chroot . install -d -m 3777 -o postgres -g postgres /var/run/postgresql && chmod 0755 start-postgres",
        (f"ENV PATH={_POSTGRES_BIN}:{_PATH}", 'ENTRYPOINT ["/start-postgres"]'),
    ),
    Standin(
        "TIDEMARK_PROMETHEUS_IMAGE",
        "standin/prometheus:2.42",
        ("prometheus",),
        "install -d -m 0755 -o 65534 -g 65534 prometheus",
        (f"ENV PATH={_PATH}", 'ENTRYPOINT ["/usr/bin/prometheus"]'),
    ),
)


def make_standins(shell: Shell, folder: Path) -> dict[str, str]:
    """Import all of them; the compose file's variables. folder: keeps the roots for the next time."""
    made = {}
    for standin in STANDINS:
        made[standin.variable] = standin.name
        root = folder / standin.name.replace("/", "-").replace(":", "-")
        there = shell.run("docker", "images", "--quiet", "--no-trunc", standin.name, told=False).strip()
        # Made again it would be another image, and so would every image built on it.
        complete = root / "complete"
        as_wished = complete.exists() and complete.read_text() == _wish(standin)
        if there and as_wished:
            shell.record.say(f"stand-in {standin.name} ({standin.variable}): {there}")
            continue
        if not as_wished:
            shutil.rmtree(root, ignore_errors=True)
            _make_root(shell, standin, root)
        with subprocess.Popen(
            ["tar", "--create", "--exclude=./complete", "."], cwd=root, stdout=subprocess.PIPE
        ) as tar:
            changes = [word for change in standin.changes for word in ("--change", change)]
            command = ["docker", "--host", shell.environment["DOCKER_HOST"], "import", *changes, "-", standin.name]
            digest = subprocess.run(command, stdin=tar.stdout, capture_output=True, text=True, check=True).stdout
        shell.record.say(f"stand-in {standin.name} ({standin.variable}): {digest.strip()}")
    return made


def _wish(standin: Standin) -> str:
    return f"{standin}\n{_START_POSTGRES}"


def _make_root(shell: Shell, standin: Standin, root: Path) -> None:
    cached = root.parent / "packages"
    cached.mkdir(parents=True, exist_ok=True)
    include = ",".join(("ca-certificates", *standin.packages))
    shell.run("debootstrap", "--variant=minbase", f"--include={include}", f"--cache-dir={cached}", _SUITE, root)
    (root / "start-postgres").write_text(_START_POSTGRES)
    shell.run("sh", "-c", f"cd '{root}' && {standin.prepare} && rm -rf var/cache/apt var/lib/apt/lists")
    (root / "complete").write_text(_wish(standin))
