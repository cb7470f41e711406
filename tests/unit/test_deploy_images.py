"""What the images are made with: Dockerfiles that keep the rules, and the small programs inside."""

import re
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tidemark.services.local.broker_settings import BrokerSettings, Port, server_properties
from tidemark.services.local.jars import JarsError, copy_jars

ROOT: Final = Path(__file__).resolve().parents[2]
IMAGES: Final = ROOT / "deploy" / "images"
DOCKERFILES: Final = sorted(IMAGES.glob("*.Dockerfile"))
ADDRESS: Final = re.compile(r"https?:|ftp:|[a-z0-9-]+\.(?:org|com|io|net)\b")


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of a Dockerfile, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_keeps_the_rules(path: Path) -> None:
    """Bases by argument with public defaults, plain syntax, no address, a numbered user, an entry point that gets the signals."""
    found = instructions(path)
    froms = [rest.split() for word, rest in found if word == "FROM"]
    stages = {words[2] for words in froms if len(words) > 1} | {"${SERVICE}"}
    bases = [words[0] for words in froms if words[0] not in stages]
    assert all(re.fullmatch(r"\$\{\w+_IMAGE\}", base) for base in bases)
    defaults = dict(rest.split("=", 1) for word, rest in found if word == "ARG" and "=" in rest)
    assert {base[2:-1] for base in bases} <= defaults.keys()
    assert {word for word, _ in found} <= {
        "ARG",
        "FROM",
        "ENV",
        "WORKDIR",
        "COPY",
        "RUN",
        "USER",
        "STOPSIGNAL",
        "ENTRYPOINT",
    }
    text = "\n".join(f"{word} {rest}" for word, rest in found)
    assert ADDRESS.search(text) is None
    for lacking in ("--mount", "--chmod", "--link", "<<", "sudo", "apt-get"):
        assert lacking not in text, f"{lacking}: not every engine has it, or no image needs it"
    last = [i for i, (word, _) in enumerate(found) if word == "FROM"][-1]
    assert [rest for word, rest in found[last:] if word == "USER"] == ["10001:10001"]
    assert [rest for word, rest in found[last:] if word == "STOPSIGNAL"] == ["SIGTERM"]
    entry = next(rest for word, rest in found[last:] if word == "ENTRYPOINT")
    assert entry.startswith("[")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_what_is_copied_is_in_the_context(path: Path) -> None:
    """Each file that a Dockerfile copies exists, and .dockerignore lets it through."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    for word, rest in instructions(path):
        if word != "COPY" or rest.startswith("--from="):
            continue
        for name in rest.split()[:-1]:
            assert (ROOT / name).exists(), name
            verdicts = [
                not line.startswith("!")
                for line in ignored
                if fnmatch(name, line.lstrip("!")) or name.startswith(f"{line.lstrip('!')}/")
            ]
            assert not verdicts[-1], f"{name} is left out by .dockerignore"


def test_what_is_installed_is_locked() -> None:
    """Every installation of packages asks for their digests."""
    for path in DOCKERFILES:
        for _, rest in instructions(path):
            for command in re.split(r"&&", rest):
                assert "pip install" not in command or "--require-hashes" in command or "--no-deps" in command, command


def test_the_broker_in_a_container_is_the_local_broker() -> None:
    """Both have the same properties, but for addresses and folders, and for what the container is told at its start."""
    text = (ROOT / "deploy" / "broker" / "container.properties").read_text()
    found = dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))
    local = server_properties(BrokerSettings(data_dir=Path("data")), Port(1), Port(2))
    places = {
        "log.dirs",
        "listeners",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "controller.quorum.voters",
    }
    at_start = set(re.findall(r"--override \"([\w.]+)=", (IMAGES / "kafka.sh").read_text()))
    assert at_start == {"advertised.listeners", "message.max.bytes", "replica.fetch.max.bytes"}
    assert found.keys() == local.keys() - at_start
    assert {name: found[name] for name in found.keys() - places} == {
        name: local[name] for name in local.keys() - places - at_start
    }
    assert local["message.max.bytes"] in (IMAGES / "kafka.sh").read_text()


def test_jars_go_into_a_folder_of_their_own(tmp_path: Path) -> None:
    """The class path is all of the folder: with a foreign jar in it, nothing is copied."""
    jar = tmp_path / "kafka.jar"
    jar.write_bytes(b"jar")
    copy_jars([jar], tmp_path / "jars")
    copy_jars([jar], tmp_path / "jars")
    assert (tmp_path / "jars" / "kafka.jar").read_bytes() == b"jar"
    (tmp_path / "jars" / "other.jar").write_bytes(b"")
    with pytest.raises(JarsError, match=r"other\.jar"):
        copy_jars([jar], tmp_path / "jars")


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives every connection this answer; its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked = b""
            while not asked.endswith(b"\r\n\r\n"):
                asked += self.request.recv(1000) or pytest.fail(f"the request ends with {asked!r}")
            assert asked.startswith(b"GET /readyz ")
            self.request.sendall(answer)

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


HEALTH_CHECKS: Final[tuple[list[str | Path], ...]] = (
    ["bash", IMAGES / "healthy.sh"],
    [sys.executable, "-IS", IMAGES / "healthy.py"],
)
"""The one that containers run, and the one that it leaves TLS to."""


def health(check: list[str | Path], environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        check, env={"PATH": "/usr/bin:/bin", **environment}, capture_output=True, text=True, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


@pytest.mark.parametrize("check", HEALTH_CHECKS, ids=["bash", "python"])
def test_health_is_what_the_process_says(check: list[str | Path]) -> None:
    """200 is healthy; 503 is not, with the reason; no answer is not, either."""
    with answering(b"HTTP/1.1 200 OK\r\n\r\nready\n") as port:
        assert health(check, {"TIDEMARK_HEALTH_PORT": str(port)}) == (0, "ready")
    with answering(b"HTTP/1.1 503 Service Unavailable\r\n\r\nwaits for the brokers\n") as port:
        assert health(check, {"TIDEMARK_HEALTH_PORT": str(port)}) == (1, "waits for the brokers")
    status, said = health(check, {"TIDEMARK_HEALTH_PORT": str(port)})
    assert (status, "refused" in said) == (1, True)
    status, said = health(check, {})
    assert (status, "TIDEMARK_HEALTH_PORT" in said) == (1, True)


def test_the_health_check_leaves_tls_to_python(tmp_path: Path) -> None:
    """Bash speaks no TLS: where the services listen with it, the other check is run in its place."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho $@\n")
    python.chmod(0o700)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TIDEMARK_TLS_CERTIFICATE": "/etc/tidemark/tls.pem"}
    assert health(HEALTH_CHECKS[0], environment) == (0, f"-IS {IMAGES / 'healthy.py'}")


def start(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", IMAGES / "start.sh", *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "service", sorted({p.parent.name for p in (ROOT / "services").glob("*/__main__.py")} - {"cli"})
)
def test_an_image_starts_its_service_by_the_installed_name(service: str, tmp_path: Path) -> None:
    """Whatever is started is in the one package that an image has; a worker's by the program that vouches for it."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho $@\n")
    python.chmod(0o700)
    words = start([], {"TIDEMARK_SERVICE": service, "PATH": f"{tmp_path}:/usr/bin:/bin"}).stdout.split()
    modules = [after for word, after in pairwise(words) if word == "-m"]
    assert modules[-1] == f"tidemark.services.{service}"
    vouched = ["tidemark.services.local.watched"] if service in ("source", "operator", "spark", "sink") else []
    assert modules[:-1] == vouched
    assert all(find_spec(module) for module in modules)


def test_a_worker_has_a_place_of_its_own() -> None:
    """Service and host name, which no replica shares; one that is given stands."""
    place = ["printenv", "TIDEMARK_PLACE"]
    assert start(place, {"TIDEMARK_SERVICE": "sink"}).stdout == f"sink-{socket.gethostname()}\n"
    assert start(place, {"TIDEMARK_SERVICE": "sink", "TIDEMARK_PLACE": "sink-7"}).stdout == "sink-7\n"
    refused = start(place, {})
    assert refused.returncode != 0
    assert "SERVICE" in refused.stderr
