"""Whatever listens does so with TLS where a certificate is set."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientConnectionError, ClientConnectorCertificateError, ClientSession

from tests.harness.certificates import made_certificate
from tests.harness.sealing import sealed
from tidemark.deploy.images.healthy import ready
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.services.gateway.service import GatewayService
from tidemark.services.gateway.settings import GatewaySettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.health import HealthServer
from tidemark.shared.process.listening import tls_of
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.runtime.topics import Topics

TOKEN = "a-token-of-the-tests"
PLAIN = ProcessSettings(kafka="k:1", blobs="", store="", place="p", health_port=0)


def raise_(error: BaseException) -> None:
    """What runs beside is to fail the test."""
    raise error


@pytest.fixture
def settings(tmp_path: Path) -> ProcessSettings:
    made_certificate(tmp_path, "ours")
    return replace(PLAIN, tls_certificate=str(tmp_path / "ours.pem"), tls_key=str(tmp_path / "ours.key"))


@pytest.fixture
async def listeners(settings: ProcessSettings) -> AsyncIterator[list[str]]:
    """Where control, gateway and health are."""
    clock, executor = SystemClock(), AsyncExecutor()
    log = sealed(MemoryLog(MemoryBroker(clock)))
    control = ControlService(log, Topics("t"), clock, executor, ControlSettings(port=0, agents=False), TOKEN)
    gateway = GatewayService(log, clock, executor, "g", "t", GatewaySettings(port=0), TOKEN)
    handles = []
    services: tuple[ControlService | GatewayService, ...] = (control, gateway)
    for service in services:
        service.tls = tls_of(settings)
        handles.append(executor.spawn(service.run(), "service", raise_))
        await service.serving.wait()
    health = HealthServer(object(), settings)
    await health.start()
    yield [control.url, gateway.url, health.url]
    await health.stop()
    for service in services:
        service.stop()
    for handle in handles:
        await handle.join()
    await executor.close()


async def test_every_listener_speaks_tls_and_nothing_else(listeners: list[str], tmp_path: Path) -> None:
    """Who trusts the certificate is answered; who does not goes away; who speaks in the clear gets no answer."""
    trusting = ssl.create_default_context(cafile=str(tmp_path / "ours.pem"))
    async with ClientSession() as session:
        for url in listeners:
            assert url.startswith("https://")
            async with session.get(f"{url}/healthz", ssl=trusting) as answer:
                assert answer.status == 200
            with pytest.raises(ClientConnectorCertificateError):
                await session.get(f"{url}/healthz")
            with pytest.raises(ClientConnectionError):
                await session.get(f"{url.replace('https', 'http')}/healthz")


async def test_the_check_of_an_image_speaks_it_too(
    listeners: list[str], settings: ProcessSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same variable as the service."""
    monkeypatch.setenv("TIDEMARK_TLS_CERTIFICATE", settings.tls_certificate)
    assert await asyncio.to_thread(ready, int(listeners[-1].rpartition(":")[2])) == (True, "ready")


def test_a_certificate_that_cannot_be_used_ends_the_start(settings: ProcessSettings, tmp_path: Path) -> None:
    """A missing file, another's key, a key behind a password: the variable is named, and nobody is asked for the password."""
    made_certificate(tmp_path, "other", "a-password")
    for wrong in (
        replace(settings, tls_certificate=str(tmp_path / "none.pem")),
        replace(settings, tls_key=str(tmp_path / "other.key")),
        replace(settings, tls_key=""),
    ):
        with pytest.raises(ProcessSettingsError, match="TIDEMARK_TLS_CERTIFICATE: expected a certificate and its key"):
            tls_of(wrong)
    assert tls_of(PLAIN) is None
