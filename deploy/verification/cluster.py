"""The chart on a cluster that exists: installed, scaled, its pods deleted and evicted, upgraded and rolled back while events flow.

What a user does with helm and kubectl. The cluster has Kafka, PostgreSQL, the images under two tags, and volumes; the values name them all.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tidemark.deploy.verification.context import ROOT
from tidemark.deploy.verification.installation import JOB, SERVICES, Installation, Wrong, ensure
from tidemark.deploy.verification.shell import CommandFailed, Shell

_NAMESPACE: Final = "tidemark"
_RELEASE: Final = "tidemark"
_WAIT_S: Final = 600
"""How long pods may take to be ready, or a job of the cluster to end."""
_REST_S: Final = 120
"""How long the whole year would take when its rest is fed after the last step."""
_AUDIT_S: Final = 1_800.0
"""How long an audit of the year may take, on a machine that does other work."""
_POLL_S: Final = 2.0
_AWAY_S: Final = 90.0
"""Kafka stays away so long after pods are not ready: liveness probes would have restarted them, after 60 s."""
_WORKERS: Final = ("source", "operator", "spark", "sink")
_SECRETS: Final = {
    "coordinator": {"TIDEMARK_STORE", "TIDEMARK_SIGNING_KEYS"},
    "control": {"TIDEMARK_STORE", "TIDEMARK_TOKEN", "TIDEMARK_SIGNING_KEYS"},
    "gateway": {"TIDEMARK_TOKEN"},
    **{name: {"TIDEMARK_SIGNING_KEYS"} for name in _WORKERS},
}
"""What each service's process sees of these; all see TIDEMARK_KAFKA_CONFIG."""


@dataclass(slots=True)
class Release(Installation):
    """The chart's release, on the cluster that KUBECONFIG of the shell's environment names."""

    values: Path
    work: Path

    def kubectl(self, *words: str | Path, told: bool = True, timeout_s: float = 600) -> str:
        """A command of kubectl, in the release's namespace."""
        return self.shell.run("kubectl", "--namespace", _NAMESPACE, *words, told=told, timeout_s=timeout_s)

    def cli(self, *words: str, told: bool = False, timeout_s: float = 300) -> str:
        """`tidemark …`, in the control service's pod."""
        return self.kubectl("exec", "deploy/control", "--", "tidemark", *words, told=told, timeout_s=timeout_s)

    def helm(self, command: str, *words: str | Path) -> None:
        """A command of helm for the release."""
        self.shell.run("helm", command, _RELEASE, "--namespace", _NAMESPACE, *words)

    def pods(self, service: str) -> list[dict[str, Any]]:
        """A service's, those that are not about to end."""
        listed = self.kubectl(
            "get", "pods", "--output=json", f"--selector=app.kubernetes.io/name={service}", told=False
        )
        items: list[dict[str, Any]] = json.loads(listed)["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    def until_rolled_out(self, tag: str = "") -> None:
        """Wait until all pods of all services are of the newest template, and ready. tag: of their images then."""
        began = time.monotonic()
        for service in SERVICES:
            kind = "statefulset" if service in _WORKERS else "deployment"
            told = ("rollout", "status", f"{kind}/{service}", f"--timeout={_WAIT_S}s")
            self.kubectl(*told, told=False, timeout_s=_WAIT_S + 60)
            images = {pod["spec"]["containers"][0]["image"] for pod in self.pods(service)}
            ensure(all(image.endswith(f":{tag}") for image in images if tag), f"{service}: runs {images}")
        self.shell.record.say(f"all pods {tag} are ready: after {time.monotonic() - began:.1f} s")

    def states(self) -> dict[str, tuple[bool, int]]:
        """Of each pod: whether it is ready, and how often its process was started again."""
        found = {}
        for pod in (pod for service in SERVICES for pod in self.pods(service)):
            for state in pod["status"].get("containerStatuses", []):  # None yet of a pod that has no node.
                found[pod["metadata"]["name"]] = state["ready"], state["restartCount"]
        return found

    def apply(self, name: str, document: dict[str, Any]) -> None:
        """An object of the verification's own."""
        file = self.work / f"{name}.json"
        file.write_text(json.dumps(document))
        self.kubectl("apply", "--filename", file, told=False)

    def feed(self, seconds: int) -> None:
        """Feed what the topic does not hold yet of the year, by a job of the cluster."""
        # Two feeds would send the same events: its pod ends first.
        self.kubectl("delete", "job/feed", "--ignore-not-found", "--cascade=foreground", told=False)
        secrets = [{"secretRef": {"name": name}} for name in ("tidemark", "tidemark-signing")]
        container = {
            "name": "feed",
            "image": self.pods("control")[0]["spec"]["containers"][0]["image"],
            "args": ["tidemark", "departures", "feed", "--seconds", str(seconds)],
            "envFrom": [{"configMapRef": {"name": "tidemark"}}, *secrets],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        pod = {
            "restartPolicy": "OnFailure",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        }
        # The policies for every pod of Tidemark let it reach Kafka.
        template = {"metadata": {"labels": {"app.kubernetes.io/part-of": "tidemark"}}, "spec": pod}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "feed"}}
        self.apply("feed", {**job, "spec": {"backoffLimit": 100, "template": template}})

    def fed(self) -> bool:
        """Whether the feed has ended."""
        return self.kubectl("get", "job/feed", "--output=jsonpath={.status.succeeded}", told=False) == "1"

    def evict(self, pod: str) -> None:
        """As a drain of its node does. CommandFailed."""
        file = self.work / "eviction.json"
        named = {"name": pod, "namespace": _NAMESPACE}
        file.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": named}))
        path = f"/api/v1/namespaces/{_NAMESPACE}/pods/{pod}/eviction"
        self.kubectl("create", "--raw", path, "--filename", file)


def tell(release: Release, tags: tuple[str, str], result: Path, seconds: int, broker: str) -> None:
    """All of it, from the first tag to the second and back. broker: may be taken away, NAMESPACE/STATEFULSET. Wrong, CommandFailed."""
    with _taken_down(release):
        _begin(release, tags[0], seconds)
        _ensure_secrets(release)
        _scale(release)
        _delete(release)
        _drain_node(release)
        if broker:
            _lose_kafka(release, *broker.split("/"))
        # What was scaled by kubectl is what the values say after an upgrade.
        chosen = f"image.tag={tags[1]},services.operator.replicas=3"
        release.helm("upgrade", ROOT / "deploy" / "helm", "--values", release.values, "--set", chosen)
        release.until_rolled_out(tags[1])
        release.until_goes_on("the job goes on after the upgrade")
        release.helm("rollback")
        release.until_rolled_out(tags[0])
        release.until_goes_on("the job goes on after the rollback")
        _finish(release)
        _compare(release, result)


@contextmanager
def _taken_down(release: Release) -> Iterator[None]:
    """Nothing of the release is left; what pods said is, where something was wrong."""
    try:
        yield
    except (Wrong, CommandFailed):
        every = ("--selector=app.kubernetes.io/part-of=tidemark", "--prefix", "--tail=200", "--ignore-errors")
        said = release.kubectl("get", "pods,events", told=False) + release.kubectl("logs", *every, told=False)
        (release.work / "pods.txt").write_text(said)
        release.shell.record.say(f"what the pods said: {release.work / 'pods.txt'}")
        raise
    finally:
        release.kubectl("delete", "job/feed", "--ignore-not-found", "--cascade=foreground")
        release.helm("uninstall")


def _begin(release: Release, tag: str, seconds: int) -> None:
    """The job runs, on a release that was installed as the chart's page says."""
    chosen = ("--create-namespace", "--values", release.values, "--set", f"image.tag={tag}")
    release.helm("install", ROOT / "deploy" / "helm", *chosen)
    release.until_rolled_out(tag)
    release.cli("departures", "start", told=True)
    release.feed(seconds)
    release.until("the job commits", lambda s: s["state"] == "RUNNING" and s["commits"] > 1)


def _ensure_secrets(release: Release) -> None:
    """Each process has the secrets that its service needs, and no others."""
    of_all = set().union(*_SECRETS.values())
    for service in SERVICES:
        pod = release.pods(service)[0]["metadata"]["name"]
        names = release.kubectl("exec", pod, "--", "python3", "-c", "import os; print(*os.environ)", told=False).split()
        seen = of_all.intersection(names)
        ensure(seen == _SECRETS[service], f"{service}: sees {sorted(seen)}, expected {sorted(_SECRETS[service])}")
        release.shell.record.say(f"{service}: sees {', '.join(sorted(seen))}")


def _scale(release: Release) -> None:
    """Three pods of operators take tasks of the job."""
    release.kubectl("scale", "statefulset/operator", "--replicas=3")
    release.until_rolled_out()
    release.cli("rescale", JOB, "operator=3", told=True)

    def spread(status: dict[str, Any]) -> bool:
        workers = {task["worker"] for task in status["tasks"]}
        return status["state"] == "RUNNING" and {f"operator-{number}" for number in range(3)} <= workers

    release.until("the job is spread", spread)
    release.until_goes_on("the job goes on after it was scaled")


def _delete(release: Release) -> None:
    """The job goes on whichever pod is deleted while events flow: in good order, then at once."""
    gentle: list[tuple[str, tuple[str, ...]]] = [(name, ()) for name in SERVICES]
    for service, how in (*gentle, ("operator", ("--grace-period=0", "--force"))):
        ensure(not release.fed(), "no events flow any more: feed for longer (--seconds)")
        release.kubectl("delete", "pod", release.pods(service)[0]["metadata"]["name"], *how)
        release.until_rolled_out()
        release.until_goes_on(f"the job goes on after {service}'s pod was deleted {' '.join(how)}")


def _drain_node(release: Release) -> None:
    """The budget lets a drain take one operator at a time."""
    first, second, *_ = (pod["metadata"]["name"] for pod in release.pods("operator"))
    release.evict(first)
    try:
        release.evict(second)
    except CommandFailed as refused:
        ensure("disruption budget" in str(refused), f"{second}: refused otherwise than expected: {refused}")
    else:
        raise Wrong(f"{second} was evicted while {first} was away")
    release.until_rolled_out()
    release.evict(second)
    release.until_rolled_out()
    release.until_goes_on("the job goes on after operators were evicted")


def _lose_kafka(release: Release, namespace: str, name: str) -> None:
    """Without Kafka no worker is ready, none is started again for it, and a drain takes pods nonetheless; then the job goes on."""

    def scale(replicas: int) -> None:
        scaled = (f"statefulset/{name}", f"--replicas={replicas}")
        release.shell.run("kubectl", "--namespace", namespace, "scale", *scaled)

    before = release.states()
    scale(0)
    began = time.monotonic()
    while any(ready for pod, (ready, _) in release.states().items() if pod.rpartition("-")[0] in _WORKERS):
        ensure(time.monotonic() < began + _WAIT_S, f"ready without Kafka: {release.states()}")
        time.sleep(_POLL_S)
    release.shell.record.say(f"no worker is ready: after {time.monotonic() - began:.1f} s")
    release.evict("source-0")
    time.sleep(_AWAY_S)
    after = release.states()
    ensure(all(after[pod][1] == before[pod][1] for pod in before), f"started again: {after}, before {before}")
    ready = ", ".join(sorted(pod for pod, (ready, _) in after.items() if ready)) or "none"
    release.shell.record.say(f"started again: none of {len(after)} pods; ready: {ready}")
    scale(1)
    release.until_rolled_out()
    release.until_goes_on("the job goes on after Kafka was away")


def _finish(release: Release) -> None:
    """The rest of the year is fed faster; then the input ends, windows close, everything is released."""
    release.feed(_REST_S)
    began = time.monotonic()
    while not release.fed():
        ensure(time.monotonic() < began + _REST_S + _WAIT_S, "the feed has not ended")
        time.sleep(_POLL_S)
    release.cli(JOB, "drain", told=True, timeout_s=_WAIT_S)
    release.cli(JOB, "collect", told=True, timeout_s=_WAIT_S)


def _compare(release: Release, result: Path) -> None:
    """What lies in ${OUT} is what the oracle derives from the raw data, and what an audit computes again from the topic."""
    shutil.rmtree(result, ignore_errors=True)
    folder = release.kubectl("exec", "sink-0", "--", "printenv", "OUT", told=False).strip()
    release.kubectl("cp", f"sink-0:{folder}", result)
    checked = Shell(release.shell.record, ROOT).run(sys.executable, "-m", "tests.oracle.check_demo", result)
    for line in checked.splitlines():
        release.shell.record.say(line)
    audited = release.cli("audit", JOB, told=True, timeout_s=_AUDIT_S)
    release.shell.record.say(f"audit: {' '.join(audited.split())}")
