"""`python3 deploy/scale.py`: starts and ends workers of a compose installation as its coordinator wishes, until it is ended.

    TIDEMARK_COORDINATOR='{"retires_workers": true}' docker compose up --detach
    python3 deploy/scale.py --most operator=4 --most sink=2

It runs where compose runs, as who may run compose: no container gets the engine's socket, which is root on the machine. It needs no key and
no port of the installation: `tidemark wishes`, in the container of control, hears the coordinator and prints what it wishes. A worker is
added with `up --scale`, while the service has fewer than it may; one that hosts nothing is stopped and removed, but never the last. A stop
lets tasks go at once and loses nothing. Imports the standard library alone.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

_AGAIN_S: Final = 5
_ID_DIGITS: Final = 12
"""Of a container's id: its host name, which ends a worker's place."""


@dataclass(slots=True)
class Scaler:
    """Follows wishes. most: containers by service; services that are not named stay as they are."""

    compose: Sequence[str]
    most: dict[str, int]
    _waits: dict[str, str] = field(default_factory=dict)

    def follow(self, wish: dict[str, Any]) -> None:
        """One wish. CalledProcessError where compose or the engine fails."""
        if "wanted" in wish:
            self._add(wish["wanted"], set(wish["there"]))
        elif "unwanted" in wish:
            service, _, container = wish["unwanted"].rpartition("-")
            self._remove(service, container)

    def _add(self, service: str, there: set[str]) -> None:
        containers = self._containers(service)
        coming = {f"{service}-{each}" for each in containers} - there
        if service not in self.most or len(containers) >= self.most[service]:
            self._say(
                service,
                f"{service}: one more is wished for, and {len(containers)} of {self.most.get(service, 0)} are there (--most)",
            )
        elif coming:
            self._say(service, f"{service}: waits for {', '.join(sorted(coming))}")
        else:
            self._say(service, f"{service}: from {len(containers)} to {len(containers) + 1}")
            numbers = ("--scale", f"{service}={len(containers) + 1}")
            self._run(*self.compose, "up", "--detach", "--no-deps", "--no-recreate", "--no-build", *numbers, service)

    def _remove(self, service: str, container: str) -> None:
        containers = self._containers(service)
        if service in self.most and container in containers and len(containers) > 1:
            self._say(service, f"{service}: from {len(containers)} to {len(containers) - 1}, without {container}")
            self._run("docker", "stop", container)
            self._run("docker", "rm", container)

    def _containers(self, service: str) -> list[str]:
        """Host names of the service's containers that have not been removed."""
        return [each[:_ID_DIGITS] for each in self._run(*self.compose, "ps", "--quiet", service).split()]

    def _say(self, service: str, text: str) -> None:
        """A wish that stands is repeated, and said once."""
        if self._waits.get(service) != text:
            self._waits[service] = text
            sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
            sys.stdout.flush()

    def _run(self, *words: str) -> str:
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def heard(compose: Sequence[str]) -> Iterable[dict[str, Any]]:
    """Wishes, as they come, until the container of control ends."""
    with subprocess.Popen(
        [*compose, "exec", "-T", "control", "tidemark", "wishes"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield from map(json.loads, process.stdout)
        finally:
            process.terminate()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--most", action="append", default=[], metavar="SERVICE=N", help="at most so many containers; may be repeated"
    )
    parser.add_argument(
        "--compose", default="docker compose", help="the command, such as 'docker-compose -f other.yml'"
    )
    options = parser.parse_args()
    pairs = [each.partition("=") for each in options.most]
    if not pairs or any(not number.isdigit() or int(number) < 1 for _, _, number in pairs):
        parser.error("expected --most SERVICE=N with a number of 1 and more, at least once")
    scaler = Scaler(shlex.split(options.compose), {service: int(number) for service, _, number in pairs})
    while True:
        try:
            for wish in heard(scaler.compose):
                scaler.follow(wish)
        except subprocess.CalledProcessError as error:
            sys.stderr.write(f"{shlex.join(error.cmd)}: {error.stderr.strip()}\n")
        except FileNotFoundError as error:
            parser.exit(
                1, f"--compose {options.compose}: expected a command that is installed, found no {error.filename}\n"
            )
        time.sleep(_AGAIN_S)


if __name__ == "__main__":
    main()
