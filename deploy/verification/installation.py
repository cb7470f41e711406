"""The installation as the verification handles it: how far the job is; commands of compose and running containers."""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.deploy.verification.shell import CommandFailed, Shell

SERVICES: Final = ("coordinator", "source", "operator", "spark", "sink", "control", "gateway")
STORES: Final = ("kafka", "postgres")
JOB: Final = "departures"
_POLL_S: Final = 2.0
_WAIT_S: Final = 240.0


class Wrong(AssertionError):
    """Something is not as it was promised."""


def ensure(condition: object, message: str) -> None:
    """Wrong, if it does not hold."""
    if not condition:
        raise Wrong(message)


@dataclass(slots=True)
class Installation(ABC):
    """Wherever its services run: the job, as commands of tidemark tell it."""

    shell: Shell

    @abstractmethod
    def cli(self, *words: str, told: bool = False, timeout_s: float = 300) -> str:
        """`tidemark …`, where the control service runs."""

    def status(self) -> dict[str, Any]:
        """The job's, as the control service tells it; empty while it does not answer or does not know the job."""
        try:
            found: dict[str, Any] = json.loads(self.cli("status", JOB, "--json"))
        except (CommandFailed, ValueError):
            return {}
        return found

    def until(self, what: str, reached: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Wait until the job is so. Wrong after a time, or when it has failed."""
        began = time.monotonic()
        status: dict[str, Any] = {}
        while time.monotonic() < began + _WAIT_S:
            status = self.status()
            if status and reached(status):
                self.shell.record.say(f"{what}: after {time.monotonic() - began:.1f} s {_line(status)}")
                return status
            ensure(status.get("state") != "FAILED", f"{what}: the job has failed: {status.get('reason')}")
            time.sleep(_POLL_S)
        raise Wrong(f"{what}: not so within {_WAIT_S:.0f} s; {_line(status)}")

    def until_goes_on(self, what: str) -> dict[str, Any]:
        """Wait until the job runs, has committed twice since now, and has got further in the events that flow in."""
        before = self.until("before", lambda s: s.get("watermark"))

        def further(status: dict[str, Any]) -> bool:
            on = bool((status.get("watermark") or "") > before["watermark"])
            return on and status["state"] == "RUNNING" and bool(status["commits"] >= before["commits"] + 2)

        return self.until(what, further)


@dataclass(slots=True)
class ComposeProject(Installation):
    """One compose project."""

    compose: Sequence[str]
    """The command: `docker-compose`, or `docker compose`."""
    scale: dict[str, int] = field(default_factory=dict)

    def set(self, name: str, value: str) -> None:
        """A variable of the compose file, from the next command on."""
        self.shell = replace(self.shell, environment={**self.shell.environment, name: value})

    def up(self) -> None:
        """Start the missing containers, as many of each service as `scale` says."""
        numbers = [word for name, count in self.scale.items() for word in ("--scale", f"{name}={count}")]
        self.shell.run(*self.compose, "up", "--detach", "--no-build", *numbers)

    def image(self, service: str) -> str:
        """The name of the image that is built for this service."""
        return f"tidemark/{service}:{self.shell.environment['TIDEMARK_VERSION']}"

    def replace(self, service: str) -> None:
        """Stop this service's containers and start them anew, with this installation's image and settings; no other is touched."""
        number = ["--scale", f"{service}={self.scale[service]}"] if service in self.scale else []
        words = ("--detach", "--no-build", "--no-deps", "--force-recreate", *number, service)
        self.shell.run(*self.compose, "up", *words)

    def down(self) -> None:
        """Stop and remove everything but the volumes."""
        self.shell.run(*self.compose, "down")

    def containers(self, service: str) -> list[str]:
        """Ids of a service's containers, running or not."""
        return self.shell.run(*self.compose, "ps", "--all", "--quiet", service, told=False).split()

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of a container."""
        found: dict[str, Any] = json.loads(self.shell.run("docker", "inspect", container, told=False))[0]
        return found

    def cli(self, *words: str, told: bool = False, timeout_s: float = 300) -> str:
        """`tidemark …`, in the control service's container."""
        command = ("exec", "-T", "control", "tidemark", *words)
        return self.shell.run(*self.compose, *command, told=told, timeout_s=timeout_s)

    def ensure_fed(self) -> None:
        """Wrong, if no events flow in now; while Kafka was away the feed may have failed, and be about to start again."""
        (feeder,) = self.containers("feed")
        began = time.monotonic()
        while (state := self.inspect(feeder)["State"]["Status"]) != "running":
            waits = state == "restarting" and time.monotonic() < began + _WAIT_S
            ensure(waits, f"no events flow any more, the feed is {state}: feed for longer (--seconds)")
            time.sleep(_POLL_S)

    def until_healthy(self, services: Sequence[str]) -> None:
        """Wait until the engine calls every container of these healthy."""
        began = time.monotonic()
        waiting: list[str] = []
        while time.monotonic() < began + _WAIT_S:
            states = {s: [self.inspect(c)["State"] for c in self.containers(s)] for s in services}
            waiting = [
                f"{service}: {state['Status']}, {state.get('Health', {}).get('Status')}"
                for service, found in states.items()
                for state in found or [{"Status": "not there"}]
                if state.get("Health", {}).get("Status") != "healthy"
            ]
            if not waiting:
                self.shell.record.say(f"healthy: {', '.join(f'{s} ×{len(f)}' for s, f in states.items())}")
                return
            time.sleep(_POLL_S)
        raise Wrong(f"not healthy within {_WAIT_S:.0f} s: {'; '.join(waiting)}")


def _line(status: dict[str, Any]) -> str:
    if not status:
        return "(no answer)"
    return (
        f"{status['state']}, generation {status['generation']}, {status['commits']} commits,"
        f" watermark {status.get('watermark')}"
    )
