"""Liveness, readiness and metrics, over a socket, of the real parts in memory."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.cli.process import quiet
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.services.gateway.service import GatewayService
from tidemark.services.gateway.settings import GatewaySettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.health import HealthServer
from tidemark.shared.process.host import hide_secrets
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError, read_settings

TOKEN = "a-token-of-the-tests"
SETTINGS = ProcessSettings(kafka="k:1", blobs="", store="", place="p", health_port=0)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


async def scraped(server: HealthServer) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    """Every figure by name and labels, as a scraper parses it."""
    async with ClientSession() as session, session.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


async def running(there: Installed, folder: Path) -> None:
    """A processor that has read ten records and committed."""
    (folder / "in.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(10)))
    source = {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}}
    emit = {"$emit": {"path": str(folder / "out"), "format": "json"}}
    options = {"checkpoint": {"interval": {"size": 50, "unit": "ms"}}}
    await there.create({"pipeline": [source, emit], "options": options})
    await there.start()
    await there.committed(4)


async def test_what_is_counted_is_told(tmp_path: Path) -> None:
    """A worker tells rows in and out, state and watermark of its tasks; the coordinator tells checkpoints and what waits for release."""
    async with installed(SystemClock(), AsyncExecutor()) as there:
        await running(there, tmp_path)
        found: dict[str, Any] = {}
        for service in ("source", "coordinator"):
            server = HealthServer(there.parts[service], SETTINGS)
            await server.start()
            found |= await scraped(server)
            async with ClientSession() as session:
                for path in ("/healthz", "/readyz"):
                    async with session.get(server.url + path) as answer:
                        assert answer.status == 200, await answer.text()
            await server.stop()
    task = frozenset({"processor": NAME, "vertex": "source-1", "task": "0"}.items())
    processor = frozenset({"processor": NAME}.items())
    assert found["tidemark_task_events_in_total"][task] == 10
    assert found["tidemark_task_bytes_in_total"][task] > 0
    assert found["tidemark_task_state_bytes"][task] > 0
    assert found["tidemark_tasks"][frozenset()] == 1
    assert found["tidemark_checkpoints_total"][processor] >= 4
    for name in ("checkpoint", "release", "end_to_end"):
        counted = found[f"tidemark_{name}_seconds_count"][processor]
        waiting = found["tidemark_release_lag_checkpoints"][processor] if name != "checkpoint" else 0
        assert counted == found["tidemark_checkpoints_total"][processor] - waiting, name
        buckets = {
            labels: value for labels, value in found[f"tidemark_{name}_seconds_bucket"].items() if processor <= labels
        }
        assert max(buckets.values()) == buckets[processor | {("le", "+Inf")}] == counted
        assert 0 <= found[f"tidemark_{name}_seconds_sum"][processor] < 60 * counted
    for name in ("step", "snapshot"):
        assert found[f"tidemark_task_{name}_seconds_count"][task] > 0
    assert found["tidemark_processor_state"][processor | {("state", "RUNNING")}] == 1
    assert found["tidemark_leads"][frozenset()] == 1
    assert "process_resident_memory_bytes" in found


async def test_control_and_gateway_tell_how_they_are_too(tmp_path: Path) -> None:
    """Both are alive and ready on the port of health, and count what they do: processors known, records taken in, batches refused."""
    clock, executor = SystemClock(), AsyncExecutor()
    async with installed(clock, executor) as there:
        await running(there, tmp_path)
        await there.outside.log.create_topic("t", 1)
        log = sealed(MemoryLog(there.broker))
        control = ControlService(
            log,
            there.outside.topics,
            clock,
            executor,
            ControlSettings(port=0, agents=False),
            TOKEN,
        )
        ingest = GatewaySettings(port=0, batch_bytes_max=100, record_bytes_max=100)
        gateway = GatewayService(sealed(MemoryLog(there.broker)), clock, executor, "g", "tidemark", ingest, TOKEN)
        services: list[ControlService | GatewayService] = [control, gateway]
        handles = [executor.spawn(service.run(), "service", _raise) for service in services]
        servers = [HealthServer(service, SETTINGS) for service in services]
        async with ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            for service, server in zip(services, servers, strict=True):
                await service.serving.wait()
                await server.start()
                while (await answered(session, server, "/readyz"))[0] != 200:
                    pass
                assert await answered(session, server, "/healthz") == (200, "alive\n")
            url, lines = f"{gateway.url}/v1/topics/t/records", {"Content-Type": "application/x-ndjson"}
            for body, status in ((b'{"a": 1}\n{"a": 2}\n', 200), (b'{"a": "' + bytes(100) + b'"}\n', 413)):
                async with session.post(url, data=body, headers=lines) as answer:
                    assert answer.status == status, await answer.text()
        found = {name: figures for server in servers for name, figures in (await scraped(server)).items()}
        for service, server in zip(services, servers, strict=True):
            service.stop()
            await server.stop()
        for handle in handles:
            await handle.join()
    none = frozenset[tuple[str, str]]()
    assert found["tidemark_processors_known"][none] == 1
    assert found["tidemark_commands_waiting"][none] == 0
    assert found["tidemark_gateway_records_total"][none] == 2
    assert found["tidemark_gateway_refused_total"][none] == 0
    assert found["tidemark_gateway_in_flight_bytes"][none] == 0


def _raise(error: BaseException) -> None:
    raise error


async def answered(session: ClientSession, server: HealthServer, path: str) -> tuple[int, str]:
    """Status and text of a route of health."""
    async with session.get(server.url + path) as answer:
        return answer.status, await answer.text()


class _Waits:
    """A service that is not ready."""

    def unready(self) -> str:
        return "waits for the brokers"

    def measures(self) -> list[Any]:
        return []


async def test_what_is_not_ready_says_why() -> None:
    """Readiness is 503 with the reason while the process lives on; a taken port is an error that names the setting."""
    server = HealthServer(_Waits(), SETTINGS)
    await server.start()
    async with ClientSession() as session:
        async with session.get(f"{server.url}/readyz") as answer:
            assert (answer.status, await answer.text()) == (503, "waits for the brokers\n")
        async with session.get(f"{server.url}/healthz") as answer:
            assert answer.status == 200
    port = int(server.url.rpartition(":")[2])
    taken = ProcessSettings(kafka="k:1", blobs="", store="", place="p", health_port=port)
    with pytest.raises(ProcessSettingsError, match="TIDEMARK_HEALTH_PORT: cannot listen"):
        await HealthServer(_Waits(), taken).start()
    await server.stop()


def test_a_port_that_is_none_is_refused() -> None:
    """The error names variable, expectation and finding."""
    with pytest.raises(ProcessSettingsError, match=re.escape("TIDEMARK_HEALTH_PORT: expected a port from 0 to 65535")):
        read_settings({"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "p", "TIDEMARK_HEALTH_PORT": "70000"})


def test_no_line_of_the_log_has_a_secret() -> None:
    """What is logged goes through the same veil as what is shown."""
    line = {
        "event": "x",
        "url": "postgresql://u:pw@h",
        "settings": {"sasl_password": "pw"},
        "error": "at redis://u:pw@h",
    }
    assert "pw" not in str(hide_secrets(None, "info", line)).replace("sasl_password", "")
