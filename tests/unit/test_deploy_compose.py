"""What docker-compose.yml promises: every service, confined, watched, kept, and with settings that the services take."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from tidemark.services.audit.settings import audit_settings
from tidemark.services.control.settings import control_settings
from tidemark.services.gateway.settings import gateway_settings
from tidemark.shared.process.allowed import read_allowed
from tidemark.shared.process.settings import ProcessSettings, read_settings
from tidemark.shared.process.signing import FILE_VARIABLE
from tidemark.shared.process.signing import VARIABLE as VARIABLE_OF_KEYS
from tidemark.shared.process.values import FOLDER_VARIABLE, SecretValues
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

ROOT: Final = Path(__file__).resolve().parents[2]
TEXT: Final = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: Final[dict[str, Any]] = yaml.safe_load(TEXT)
README: Final = (ROOT / "deploy" / "README.md").read_text(encoding="utf-8")

ON_A_MACHINE: Final = {"cli", "local"}
"""Packages of services that are no containers: they start the others."""
OURS: Final = sorted(path.parent.name for path in (ROOT / "services").glob("*/__main__.py"))
SERVICES: Final = [name for name in OURS if name not in ON_A_MACHINE]
STORES: Final = ["kafka", "postgres"]

# What docker-compose 1.29 takes; `docker compose` 2 takes all of it, too.
KEYS: Final = {
    "build", "cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "init", "logging", "ports",
    "profiles", "read_only", "restart", "security_opt", "stop_grace_period", "stop_signal", "tmpfs", "user", "volumes",
}  # fmt: skip
CONDITIONS: Final = {"service_started", "service_healthy", "service_completed_successfully"}
HEALTH_KEYS: Final = {"test", "interval", "timeout", "retries", "start_period"}
VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def resolved(value: Any, given: Mapping[str, str]) -> Any:
    """As compose puts variables in."""
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: given.get(found[1]) or found[2] or "", value)
    return value


def environment_of(service: str, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a container of this service has in its environment, with `given` on the host. The place is made by start.sh."""
    given = given or {}
    written = COMPOSE["services"][service]["environment"]
    values = {name: given.get(name) if value is None else resolved(value, given) for name, value in written.items()}
    return {"TIDEMARK_PLACE": f"{service}-x", **{name: value for name, value in values.items() if value is not None}}


def test_every_service_has_a_container_and_its_image_a_dockerfile() -> None:
    """No service is forgotten; each is built from a shipped file, by its name."""
    assert set(SERVICES) <= set(COMPOSE["services"])
    for name in [*SERVICES, "kafka"]:
        service = COMPOSE["services"][name]
        assert service["image"].startswith(f"tidemark/{name}:")
        dockerfile = ROOT / service["build"]["context"] / service["build"]["dockerfile"]
        assert dockerfile.is_file()
        assert service["build"]["args"].get("SERVICE", name) == name


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_a_container_is_confined(name: str) -> None:
    """Not root, a read-only root, no capability, no way to more rights; logs have a bound."""
    service = COMPOSE["services"][name]
    assert service["user"] not in ("root", "0", "0:0", "")
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
    assert not service.keys() & {"privileged", "cap_add", "network_mode", "pid", "devices"}


@pytest.mark.parametrize("name", [*SERVICES, *STORES])
def test_a_container_that_stays_is_watched_and_ends_in_good_order(name: str) -> None:
    """It has a health check, comes back after a crash, and has time to end before it is killed."""
    service = COMPOSE["services"][name]
    assert service["healthcheck"].keys() == HEALTH_KEYS
    assert service["restart"] == "unless-stopped"
    assert int(service["stop_grace_period"].removesuffix("s")) >= 30


@pytest.mark.parametrize("name", [*SERVICES, *STORES])
def test_whoever_waits_for_a_container_waits_through_a_slow_start(name: str) -> None:
    """On a machine that is busy a broker takes minutes; `up` gives up on all that depend on what is called unhealthy meanwhile."""
    assert int(COMPOSE["services"][name]["healthcheck"]["start_period"].removesuffix("s")) >= 600


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_that_misses_the_broker_is_not_given_up_at_once(name: str) -> None:
    """A broker that was killed is back after a minute or two on a busy machine: until then an `up` that starts it has to go on."""
    check = COMPOSE["services"][name]["healthcheck"]
    assert int(check["retries"]) * int(check["interval"].removesuffix("s")) >= 300


@pytest.mark.parametrize("name", [*SERVICES, *STORES])
def test_a_health_check_starts_no_interpreter(name: str) -> None:
    """It runs every few seconds in every container: Python takes 40 ms of a processor to start, bash 3."""
    words = COMPOSE["services"][name]["healthcheck"]["test"]
    assert not [word for word in words if "python" in word or word.endswith(".py")]


def test_nothing_is_written_that_either_compose_lacks() -> None:
    """docker-compose 1.29 and `docker compose` 2 both take every key, condition and variable."""
    assert {key for key in COMPOSE if not key.startswith("x-")} == {"services", "volumes"}
    for service in COMPOSE["services"].values():
        assert service.keys() <= KEYS
        assert {need["condition"] for need in service.get("depends_on", {}).values()} <= CONDITIONS
        assert service.get("healthcheck", {}).keys() <= HEALTH_KEYS
    assert re.search(r"\$\{[^}]*\$\{", TEXT) is None, "a variable within a variable's default"
    assert len(VARIABLE.findall(TEXT)) == TEXT.count("${"), "a variable in a form that is not checked here"


def test_data_survive_in_named_volumes() -> None:
    """Every volume is a declared one, and what must last lies on one: records, commits, state, output, the token."""
    written = [volume for service in COMPOSE["services"].values() for volume in service.get("volumes", [])]
    ours = [volume for volume in written if volume.startswith("./")]
    assert all(volume.endswith(":ro") and (ROOT / volume.split(":")[0]).is_dir() for volume in ours)
    mounts = {volume.split(":")[1]: volume.split(":")[0] for volume in written if volume not in ours}
    assert set(mounts.values()) == COMPOSE["volumes"].keys()
    assert mounts == {
        "/var/lib/kafka": "kafka",
        "/var/lib/postgresql/data": "postgres",
        "/var/lib/tidemark/blobs": "blobs",
        "/var/lib/tidemark/out": "out",
        "/var/lib/tidemark/tokens": "tokens",
        "/var/lib/tidemark/keys": "keys",
        "/var/lib/tidemark/gateway": "gateway",
        "/var/lib/tidemark/scratch": "scratch",
        "/prometheus": "prometheus",
        "/var/lib/grafana": "grafana",
    }
    for name in SERVICES:
        environment = environment_of(name)
        assert environment["TIDEMARK_BLOBS"] in mounts
        assert environment["OUT"] in mounts


def test_images_and_files_name_no_registry() -> None:
    """Where images and packages come from is the engine's and the installer's business."""
    for service in COMPOSE["services"].values():
        first, slash, _ = resolved(service["image"], {}).partition("/")
        assert not (slash and re.search(r"[.:]", first)), service["image"]
    defaults = {default for _, default in VARIABLE.findall(TEXT) if re.fullmatch(r"[a-z][\w./-]*:[\w.-]+", default)}
    monitoring = {"prom/prometheus:v2.53.3", "grafana/grafana:11.4.0"}
    assert {"python:3.11-slim-bookworm", "eclipse-temurin:17-jre", "postgres:16", "kafka:9092"} | monitoring == defaults


def test_monitoring_is_a_profile_that_asks_every_service() -> None:
    """Prometheus and Grafana start where they are asked for; each service's figures are read, at the port where it serves them."""
    assert {n for n, s in COMPOSE["services"].items() if "monitoring" in s.get("profiles", [])} == {
        "prometheus",
        "grafana",
    }
    folder = ROOT / "deploy" / "monitoring"
    (scraped,) = yaml.safe_load((folder / "prometheus.yaml").read_text())["scrape_configs"]
    (found,) = scraped["dns_sd_configs"]
    assert sorted(found["names"]) == SERVICES
    assert {str(found["port"])} == {environment_of(name)["TIDEMARK_HEALTH_PORT"] for name in SERVICES}
    assert re.fullmatch("tidemark.*", scraped["job_name"])  # by which the dashboard finds the processes
    (source,) = yaml.safe_load((folder / "grafana" / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "grafana" / "dashboards" / "tidemark.yaml").read_text())["providers"]
    assert f"./deploy/monitoring:{provider['options']['path']}:ro" in COMPOSE["services"]["grafana"]["volumes"]


def test_ports_are_open_on_the_loopback_address_alone() -> None:
    """What is published is reached from this machine, unless somebody says otherwise."""
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


class _Asked(dict[str, str]):
    """An environment that notes what was asked for."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return super().get(key, default)


def settings_of(service: str, given: Mapping[str, str] | None = None) -> tuple[ProcessSettings, set[str]]:
    environment = _Asked(environment_of(service, given))
    settings = read_settings(environment)
    assert "KAFKA" in SecretValues.of(environment, read_allowed(environment))
    assert environment.get(FILE_VARIABLE) is not None
    assert audit_settings(environment).held_bytes_max > 0  # of the programs that control starts
    return settings, environment.names | {VARIABLE_OF_KEYS, FOLDER_VARIABLE}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_takes_its_environment(name: str) -> None:
    """Every TIDEMARK_ variable is one that somebody reads, and the values are what the service accepts."""
    settings, asked = settings_of(name)
    by_clients = re.findall(r"TIDEMARK_\w+", (ROOT / "services" / "cli" / "remote.py").read_text())
    written = {variable for variable in COMPOSE["services"][name]["environment"] if variable.startswith("TIDEMARK_")}
    assert written <= asked | set(by_clients)
    assert settings.health_port
    if name == "control":
        assert control_settings(settings).host == "0.0.0.0"
        assert COMPOSE["services"][name]["ports"][0].endswith(f":{control_settings(settings).port}")
    elif name == "gateway":
        assert gateway_settings(settings).host == "0.0.0.0"
        assert COMPOSE["services"][name]["ports"][0].endswith(f":{gateway_settings(settings).port}")
    elif name == "coordinator":
        assert settings.store.startswith("postgresql://")
        assert msgspec.convert(dict(settings.extra), CoordinatorSettings) == CoordinatorSettings()
    elif name == "operator":
        assert f"scratch:{settings.extra['scratch']}" in COMPOSE["services"][name]["volumes"]
    elif name == "spark":
        assert settings.extra == {"master": "local[2]"}


def test_what_the_host_sets_reaches_the_services() -> None:
    """A cluster with SASL, other intervals, a blob store in S3: by variables, without a change of the file."""
    given = {
        "TIDEMARK_KAFKA": "one:9093,two:9093",
        "TIDEMARK_KAFKA_CONFIG": '{"security_protocol": "SASL_SSL", "sasl_username": "u", "sasl_password": "p"}',
        "TIDEMARK_RUNTIME": '{"slots": 2}',
        "TIDEMARK_BLOBS": "s3://bucket/prefix",
    }
    settings, _ = settings_of("operator", given)
    assert (settings.kafka, settings.blobs, settings.runtime.slots) == ("one:9093,two:9093", "s3://bucket/prefix", 2)
    assert settings.kafka_config["security_protocol"] == "SASL_SSL"


def test_every_variable_is_explained() -> None:
    """deploy/README.md has a row for each variable of the compose file."""
    variables = {name for name, _ in VARIABLE.findall(TEXT)}
    variables |= {name for name, value in COMPOSE["services"]["source"]["environment"].items() if value is None}
    assert [name for name in sorted(variables) if f"`{name}`" not in README] == []
