"""The steps that are taken with the installation, and the conditions that must hold after each."""

import json
import shutil
import sys
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tidemark.deploy.verification.context import ROOT
from tidemark.deploy.verification.installation import JOB, SERVICES, STORES, ComposeProject, Wrong, ensure
from tidemark.deploy.verification.shell import CommandFailed, Shell

_SCALE: Final = {"source": 2, "operator": 3, "sink": 2}
ONE_BY_ONE: Final = ("source", "operator", "spark", "sink", "coordinator", "control", "gateway", *STORES)
"""The order in which containers are killed, or replaced by those of another version."""
_REST_S: Final = 120
"""How long the whole year would take when its rest is fed after the last step: until then it must not run dry."""
_LATE_S: Final = 900.0
"""How much later than it was told the feed may end: on a machine that does other work it waits for the broker."""
_ASK: Final = """
import os, urllib.request
said = {}
for path in ("healthz", "readyz", "metrics"):
    with urllib.request.urlopen(f"http://127.0.0.1:{os.environ['TIDEMARK_HEALTH_PORT']}/{path}") as answer:
        said[path] = answer.read().decode()
        assert answer.status == 200, path
figures = [line for line in said["metrics"].splitlines() if line.startswith("tidemark_")]
assert figures, said["metrics"]
print(f"alive, ready, {len(figures)} figures of its own, such as {figures[0]}")
"""
"""Run inside a container: ends with another status than 0 if the service does not tell how it is."""


def tell(installation: ComposeProject, result: Path) -> None:
    """All of it. Wrong, CommandFailed."""
    build(installation)
    with taken_down(installation, result):
        begin(installation)
        ensure_as_promised(installation)
        scale(installation)
        monitor(installation)
        kill(installation)
        stop(installation)
        take_down_and_up(installation)
        finish(installation)
        compare(installation, result)


@contextmanager
def taken_down(installation: ComposeProject, result: Path) -> Iterator[None]:
    """Whatever happens inside, nothing of the installation is left; what its containers said is, where something was wrong."""
    try:
        yield
    except (Wrong, CommandFailed):
        logs = installation.shell.run(*installation.compose, "logs", "--no-color", "--tail", "200", told=False)
        (result.parent / "containers.txt").write_text(logs)
        installation.shell.record.say(f"what the containers said: {result.parent / 'containers.txt'}")
        raise
    finally:
        installation.shell.run(*installation.compose, "down", "--volumes", "--remove-orphans")


def build(installation: ComposeProject) -> None:
    """Every image, from the shipped Dockerfiles; their digests."""
    shell = installation.shell
    shell.record.say(shell.run(*installation.compose, "version", told=False).splitlines()[0])
    shell.run(*installation.compose, "build", timeout_s=3600)
    for name in ("kafka", *SERVICES):
        image = installation.image(name)
        told = shell.run(
            "docker", "image", "inspect", "--format", "{{.Id}} {{.Size}} {{.Config.User}}", image, told=False
        )
        digest, size, user = told.split()
        ensure(user not in ("", "0", "root"), f"{image}: expected a user that is not root, found {user!r}")
        shell.record.say(f"image {image}: {digest}, {int(size) / 2**20:.0f} MiB, user {user}")


def begin(installation: ComposeProject) -> None:
    """`up` alone runs the job."""
    installation.up()
    installation.until_healthy((*STORES, *SERVICES))
    installation.until("the job commits", lambda s: s["state"] == "RUNNING" and s["commits"] > 1)


def ensure_as_promised(installation: ComposeProject) -> None:
    """Containers have no needless capabilities; each service tells how it is."""
    for service in (*STORES, *SERVICES):
        found = installation.inspect(installation.containers(service)[0])
        _ensure_confined(service, found["HostConfig"])
        pid = found["State"]["Pid"]
        user = _user_of(pid)
        ensure(user != 0, f"{service}: its process {pid} runs as root")
        ensure(not _writable(installation, service), f"{service}: its root file system can be written")
        installation.shell.record.say(f"{service}: user {user}, read-only root, no capabilities")
    for service in SERVICES:
        told = installation.shell.run(*installation.compose, "exec", "-T", service, "python3", "-c", _ASK, told=False)
        installation.shell.record.say(f"{service}: {told.strip()}")


def monitor(installation: ComposeProject) -> None:
    """The profile `monitoring`: Prometheus reads every container's figures, takes the rules, and has what the dashboard asks for."""
    prometheus = ("--profile", "monitoring", "up", "--detach", "--no-build", "--no-deps", "prometheus")
    installation.shell.run(*installation.compose, *prometheus)
    containers = sum(len(installation.containers(service)) for service in SERVICES)
    installation.until("Prometheus reads them all", lambda _: _up(installation) == containers)
    groups = _asked(installation, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    ensure(rules and all(rule["health"] == "ok" for rule in rules), f"rules that do not hold: {rules}")
    told = f"{containers} containers are read, {len(rules)} alert rules are evaluated"
    firing = sorted({rule["name"] for rule in rules if rule["state"] == "firing"})
    installation.shell.record.say(f"Prometheus: {told}, firing: {', '.join(firing) or 'none'}")
    board = json.loads((ROOT / "deploy" / "monitoring" / "dashboard.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]

    def unanswered() -> list[str]:
        asked = {query: query.replace("$__rate_interval", "1m") for query in queries}
        return [query for query, at in asked.items() if not _asked(installation, "query", query=at)["result"]]

    installation.until("the dashboard's queries have values", lambda _: not unanswered())
    installation.shell.record.say(f"dashboard: {len(queries)} queries have values")


def _asked(installation: ComposeProject, path: str, **parameters: str) -> Any:
    """What Prometheus answers, asked from a container beside it."""
    asked = f"http://prometheus:9090/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    script = f"import urllib.request; print(urllib.request.urlopen({asked!r}).read().decode())"
    command = ("exec", "-T", "control", "python3", "-c", script)
    return json.loads(installation.shell.run(*installation.compose, *command, told=False))["data"]


def _up(installation: ComposeProject) -> int:
    """How many containers Prometheus reads; none while it starts and does not answer."""
    try:
        targets = _asked(installation, "targets", state="active")["activeTargets"]
    except CommandFailed:
        return 0
    return sum(target["health"] == "up" for target in targets)


def _ensure_confined(service: str, host: dict[str, Any]) -> None:
    ensure(host["ReadonlyRootfs"], f"{service}: its root is not read-only")
    ensure(host["CapDrop"] == ["ALL"], f"{service}: capabilities dropped are {host['CapDrop']}, expected ALL")
    ensure(not host["Privileged"], f"{service}: is privileged")


def _user_of(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Uid:")))


def _writable(installation: ComposeProject, service: str) -> bool:
    attempt = ("exec", "-T", service, "touch", "/opt/written", "/usr/written")
    try:
        installation.shell.run(*installation.compose, *attempt, told=False)
    except CommandFailed as refused:
        ensure("Read-only file system" in str(refused), f"{service}: writing failed otherwise than expected: {refused}")
        return False
    return True


def scale(installation: ComposeProject) -> None:
    """More containers of a service take tasks of the job, once it has tasks for them."""
    installation.scale = dict(_SCALE)
    installation.up()
    installation.until_healthy(tuple(_SCALE))
    installation.cli("rescale", JOB, *(f"{name}={count}" for name, count in _SCALE.items()), told=True)

    def spread(status: dict[str, Any]) -> bool:
        hosts = {task["worker"] for task in status["tasks"]}
        return status["state"] == "RUNNING" and all(
            sum(1 for host in hosts if host.startswith(f"{name}-")) == count for name, count in _SCALE.items()
        )

    status = installation.until("the job is spread", spread)
    installation.shell.record.say(f"on {', '.join(sorted({task['worker'] for task in status['tasks']}))}")
    installation.until_goes_on("the job goes on after it was scaled")


def kill(installation: ComposeProject) -> None:
    """The job goes on whichever service is killed while events flow; the end of the verification shows whether its result is exact."""
    shell = installation.shell
    for service in ONE_BY_ONE:
        installation.ensure_fed()
        shell.run("docker", "kill", installation.containers(service)[0])
        installation.up()  # The engine does not restart a container that was killed by hand.
        installation.until_healthy((service,))
        installation.until_goes_on(f"the job goes on after {service} was killed")
    for service in ("operator", "kafka"):
        installation.ensure_fed()
        container = installation.containers(service)[0]
        shell.run("kill", "-KILL", str(installation.inspect(container)["State"]["Pid"]))
        installation.until_healthy((service,))
        ensure(installation.inspect(container)["RestartCount"] > 0, f"{service}: the engine did not start it again")
        installation.until_goes_on(f"the job goes on after {service}'s process was killed from outside")


def stop(installation: ComposeProject) -> None:
    """SIGTERM ends every service in good order, well within its grace period."""
    installation.ensure_fed()
    for service in SERVICES:
        container = installation.containers(service)[0]
        grace_s = installation.inspect(container)["Config"]["StopTimeout"]
        began = time.monotonic()
        installation.shell.run("docker", "stop", "--time", str(grace_s), container, told=False)
        took_s = time.monotonic() - began
        status = installation.inspect(container)["State"]["ExitCode"]
        installation.shell.record.say(
            f"{service}: ended with status {status}, {took_s:.1f} s after SIGTERM (grace {grace_s} s)"
        )
        ensure(status == 0, f"{service}: expected status 0 after SIGTERM, found {status}")
        ensure(took_s < grace_s, f"{service}: took {took_s:.1f} s to end, its grace is {grace_s} s")
    installation.up()
    installation.until_healthy(SERVICES)
    installation.until_goes_on("the job goes on after every service was stopped")


def take_down_and_up(installation: ComposeProject) -> None:
    """Containers and network go, volumes stay; the job goes on from its last commit."""
    before = installation.until("before it is taken down", lambda s: s["state"] == "RUNNING")
    installation.ensure_fed()
    installation.down()
    installation.up()
    installation.until_healthy((*STORES, *SERVICES))
    after = installation.until("the job is up again", lambda s: s["state"] == "RUNNING")
    ensure(after["job"] == before["job"], f"it is another job: {after['job']}, before {before['job']}")
    ensure(after["epoch"] >= before["epoch"], f"it fell back from epoch {before['epoch']} to {after['epoch']}")
    installation.until_goes_on("the job goes on after down and up")


def finish(installation: ComposeProject) -> None:
    """The rest of the year is fed faster; then the input ends, windows close, everything is released."""
    installation.ensure_fed()
    installation.set("TIDEMARK_FEED_SECONDS", str(_REST_S))
    installation.up()
    (feeder,) = installation.containers("feed")
    began = time.monotonic()
    while (state := installation.inspect(feeder)["State"])["Status"] != "exited" or state["ExitCode"] != 0:
        told = f"the feed has not ended: {state['Status']} {state['ExitCode']}"
        ensure(time.monotonic() < began + _REST_S + _LATE_S, told)
        time.sleep(1)
    installation.shell.record.say(f"feed: {installation.shell.run('docker', 'logs', feeder, told=False).strip()}")
    cli = (*installation.compose, "run", "--rm", "-T", "cli", JOB)
    drained = installation.shell.run(*cli, "drain", timeout_s=600)
    collected = installation.shell.run(*cli, "collect", timeout_s=600)
    installation.shell.record.say(f"{drained.strip()}; {' '.join(collected.split())}")


def compare(installation: ComposeProject, result: Path) -> None:
    """The files in the volume are those that the oracle derives from the raw data."""
    shutil.rmtree(result, ignore_errors=True)
    sink = installation.containers("sink")[0]
    installation.shell.run("docker", "cp", f"{sink}:/var/lib/tidemark/out", result)
    checked = Shell(installation.shell.record, ROOT).run(sys.executable, "-m", "tests.oracle.check_demo", result)
    for line in checked.splitlines():
        installation.shell.record.say(line)
