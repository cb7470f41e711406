"""The Kubernetes manifests that the chart gives: each object is whole, what refers to another finds it, pods keep what containers keep."""

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tidemark.shared.process.settings import read_settings
from tidemark.shared.runtime.measures import METRICS

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "deploy" / "kubernetes"
KUSTOMIZATION: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: Final[list[dict[str, Any]]] = [
    found for name in KUSTOMIZATION["resources"] for found in yaml.safe_load_all((FOLDER / name).read_text()) if found
]
VERSIONS: Final = {
    "Namespace": "v1", "ConfigMap": "v1", "Secret": "v1", "PersistentVolumeClaim": "v1", "Service": "v1",
    "Deployment": "apps/v1", "StatefulSet": "apps/v1", "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1", "HorizontalPodAutoscaler": "autoscaling/v2",
}  # fmt: skip
SERVICES: Final = [
    p.parent.name for p in (ROOT / "services").glob("*/__main__.py") if p.parent.name not in ("cli", "local")
]


def of_kind(*kinds: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in OBJECTS if o["kind"] in kinds}


READERS: Final = ("source", "operator", "spark", "sink", "control")
"""Those that use documents' connections: workers, and control, which audits."""
WORKLOADS: Final = of_kind("Deployment", "StatefulSet")


def container(name: str) -> dict[str, Any]:
    (found,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def test_the_manifests_are_what_the_chart_gives() -> None:
    """They name the chart that they were rendered from: with another one, `deploy/helm/render.sh` has not been run."""
    chart = ROOT / "deploy" / "helm"
    files = [chart / name for name in ("Chart.yaml", "values.yaml", "example.yaml")]
    files += sorted((chart / "templates").glob("*.yaml"))
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert (FOLDER / "tidemark.yaml").read_text().splitlines()[1] == f"# {digest}"


def test_every_object_is_of_a_known_kind_in_the_one_namespace() -> None:
    """Kinds with their versions; every file is listed; nothing lands in the default namespace."""
    assert sorted(KUSTOMIZATION["resources"]) == sorted(
        p.name for p in FOLDER.glob("*.yaml") if p.stem != "kustomization"
    )
    for found in OBJECTS:
        assert found["apiVersion"] == VERSIONS[found["kind"]]
        assert found["kind"] == "Namespace" or found["metadata"]["namespace"] == KUSTOMIZATION["namespace"]


def test_every_service_runs_and_may_be_disrupted_one_by_one() -> None:
    """No service is forgotten, nor its image, nor its budget; selectors meet the pods' labels."""
    assert WORKLOADS.keys() == set(SERVICES)
    assert {image["name"] for image in KUSTOMIZATION["images"]} == {f"tidemark/{name}" for name in SERVICES}
    for name, workload in WORKLOADS.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        budget = of_kind("PodDisruptionBudget")[name]["spec"]
        for selector in (workload["spec"]["selector"], budget["selector"]):
            assert selector["matchLabels"].items() <= labels.items()
        assert container(name)["image"] == f"tidemark/{name}:local"
    for name, service in of_kind("Service").items():
        ports = {port["name"] for port in container(name)["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
        assert service["spec"]["selector"].items() <= WORKLOADS[name]["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_pod_is_confined_watched_and_ends_in_good_order(name: str) -> None:
    """As a container of the compose file, by Kubernetes' `restricted` standard; bounded memory; probes; time to end."""
    spec = WORKLOADS[name]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 10001
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["terminationGracePeriodSeconds"] >= 30
    found = container(name)
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert found["resources"]["limits"]["memory"]
    probes = {probe: found[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    starts = found["startupProbe"]
    assert starts["periodSeconds"] * starts["failureThreshold"] >= 600, "a start on a node that is busy"
    mounted, volumes = {m["name"] for m in found["volumeMounts"]}, {v["name"]: v for v in spec["volumes"]}
    assert mounted == volumes.keys()
    claims = {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v}
    assert claims <= of_kind("PersistentVolumeClaim").keys()


NEEDS: Final = {
    "coordinator": {"TIDEMARK_STORE", "TIDEMARK_SIGNING_KEYS"},
    "control": {"TIDEMARK_STORE", "TIDEMARK_TOKEN", "TIDEMARK_SIGNING_KEYS"},
    "gateway": {"TIDEMARK_TOKEN"},
    **{name: {"TIDEMARK_SIGNING_KEYS"} for name in ("source", "operator", "spark", "sink")},
}


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_pod_has_the_secrets_that_its_service_needs(name: str) -> None:
    """And no others: the store's password is of the coordinator and of control, which audits; tokens are those of who listens."""
    secrets = of_kind("Secret")
    named = [source["secretRef"]["name"] for source in container(name)["envFrom"] if "secretRef" in source]
    given = {variable for secret in named for variable in secrets[secret]["stringData"]}
    assert given == NEEDS[name] | {"TIDEMARK_KAFKA_CONFIG"}
    assert not any("secretKeyRef" in str(variable) for variable in container(name)["env"])
    volumes = WORKLOADS[name]["spec"]["template"]["spec"]["volumes"]
    mounted = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert mounted == ({"tidemark-connections"} if name in READERS else set())
    assert mounted <= secrets.keys()


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_pod_has_the_settings_that_its_service_takes(name: str) -> None:
    """From the ConfigMap, the Secret and its own; the place is the pod's name."""
    found = container(name)
    environment: dict[str, str] = {}
    for source in found["envFrom"]:
        ((kind, reference),) = source.items()
        objects = of_kind({"configMapRef": "ConfigMap", "secretRef": "Secret"}[kind])
        environment |= objects[reference["name"]].get("data") or objects[reference["name"]]["stringData"]
    own = {variable["name"]: variable.get("value", name) for variable in found["env"]}
    place = next(variable for variable in found["env"] if variable["name"] == "TIDEMARK_PLACE")
    assert place["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    settings = read_settings({**environment, **own})
    assert settings.health_port == next(p["containerPort"] for p in found["ports"] if p["name"] == "health")
    mounted = {mount["mountPath"] for mount in found["volumeMounts"]}
    if name != "gateway":
        assert settings.blobs in mounted
    if name == "operator":
        assert settings.extra["scratch"] in mounted


def test_other_settings_make_other_pods() -> None:
    """Variables count from a pod's start: the template of each pod has a digest of the ConfigMap and of the Secrets."""
    digests = {
        w["spec"]["template"]["metadata"].get("annotations", {}).get("tidemark/settings") for w in WORKLOADS.values()
    }
    (digest,) = digests
    assert re.fullmatch("[0-9a-f]{64}", str(digest))
    chart = (ROOT / "deploy" / "helm" / "templates" / "services.yaml").read_text()
    assert '{{ include (print $.Template.BasePath "/settings.yaml") $ | sha256sum }}' in chart


def test_state_outlives_a_release() -> None:
    """`helm uninstall` takes no claim away: the store, which knows of that state, stays as well."""
    for claim in of_kind("PersistentVolumeClaim").values():
        assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_the_environment_of_a_pod_does_not_depend_on_services_beside_it() -> None:
    """No Service of the namespace sets variables there, such as TIDEMARK_…, or what a document's connection names."""
    assert all(w["spec"]["template"]["spec"].get("enableServiceLinks") is False for w in WORKLOADS.values())


def test_commands_in_the_pod_of_control_ask_that_service() -> None:
    """`kubectl exec deploy/control -- tidemark processors`."""
    found = container("control")
    (port,) = (port["containerPort"] for port in found["ports"] if port["name"] == "http")
    assert {"name": "TIDEMARK_CONTROL", "value": f"http://127.0.0.1:{port}"} in found["env"]


def test_a_drain_takes_pods_that_are_not_ready() -> None:
    """While Kafka is away none is; by default a budget then refuses to let the last one go, and the node is never free."""
    policies = {budget["spec"].get("unhealthyPodEvictionPolicy") for budget in of_kind("PodDisruptionBudget").values()}
    assert policies == {"AlwaysAllow"}


def test_pods_that_use_connections_take_further_volumes() -> None:
    """Folders of connections, and the classes of documents: each of them of workers and of control."""
    chart = (ROOT / "deploy" / "helm" / "templates" / "services.yaml").read_text()
    for name in ("volumes", "volumeMounts"):
        assert f"{{{{- range ternary $.Values.{name} (list) $reads }}}}" in chart


def policies_of(name: str, kind: str) -> Iterator[dict[str, Any]]:
    """The rules, `ingress` or `egress`, of all policies that select a service's pods and say something about that direction."""
    labels = WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]
    for policy in of_kind("NetworkPolicy").values():
        spec = policy["spec"]
        selects = spec["podSelector"].get("matchLabels", {}).items() <= labels.items()
        for each in spec["podSelector"].get("matchExpressions", []):
            assert each["operator"] == "In"
            selects = selects and labels.get(each["key"]) in each["values"]
        if selects and kind.capitalize() in spec["policyTypes"]:
            yield from spec.get(kind) or [{}]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_pod_is_reached_and_reaches_as_its_service_needs(name: str) -> None:
    """Closed both ways but for what a rule names: its own ports from without; Kafka, names, the store and targets from within."""
    takes = {each["port"] for rule in policies_of(name, "ingress") for each in rule.get("ports", [])}
    assert takes == {port["containerPort"] for port in container(name)["ports"]}
    rules = list(policies_of(name, "egress"))
    assert {} in rules, "nothing else is open"
    reaches = {each["port"] for rule in rules for each in rule.get("ports", [])}
    config = of_kind("ConfigMap")["tidemark"]["data"]
    assert {53, int(config["TIDEMARK_KAFKA"].rpartition(":")[2])} <= reaches
    assert (5432 in reaches) == (name in ("coordinator", "control"))
    to = [place for rule in rules for place in rule.get("to", [])]
    assert bool(to) == (name in READERS)
    assert all("169.254.0.0/16" in place["ipBlock"]["except"] for place in to if "ipBlock" in place)


def test_autoscaled_workers_follow_a_metric_that_there_is() -> None:
    """The chart's query names a gauge of the coordinator, by a label that it has."""
    chart = (ROOT / "deploy" / "helm" / "templates" / "services.yaml").read_text()
    (query,) = re.findall(
        r"query: max\(tidemark_(\w+)\{namespace=\S+,(\w+)=\S+\}\)", chart.replace("{{ ", "{{").replace(" }}", "}}")
    )
    metric = METRICS[query[0]]
    assert (metric.kind, metric.of, metric.labels) == ("gauge", "coordinator", (query[1],))


def test_the_gateway_grows_with_its_load() -> None:
    """By processor time; the autoscaler alone says how many there are."""
    (scaler,) = of_kind("HorizontalPodAutoscaler").values()
    target = scaler["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == (WORKLOADS["gateway"]["kind"], "gateway")
    assert "replicas" not in WORKLOADS["gateway"]["spec"]
