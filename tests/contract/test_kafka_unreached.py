"""Brokers that are not reached: each error names the address that was tried, and why there is no connection."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import settings_from
from tidemark.shared.ports.log import LogUnavailable

_QUICK = {"request_timeout_ms": 300, "delivery_timeout_ms": 1_000, "transaction_timeout_ms": 1_000}


def _ends(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


def _is_silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Takes the connection, and that is all."""


@asynccontextmanager
async def _listening(does: Any) -> AsyncIterator[str]:
    server = await asyncio.start_server(does, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def _said(bootstrap: str, **config: Any) -> list[str]:
    """By each kind of client."""
    log = KafkaLog(settings_from({**_QUICK, **config}, "test", bootstrap=bootstrap, client="test"))
    told: list[str] = []
    for attempt in (log.list_topics, log.reader, lambda: log.transactional_writer("i")):
        with pytest.raises(LogUnavailable) as raised:
            await attempt()
        told.append(str(raised.value))
    await log.close()
    return told


async def test_a_port_that_nobody_listens_on() -> None:
    """By the system's own words."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listened on
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for said in await _said(address):
            assert f"no broker is reached ({address}: Connection refused)" in said


async def test_a_name_that_nobody_knows() -> None:
    """It may be known tomorrow."""
    for said in await _said("nowhere.invalid:9092"):
        assert "no broker is reached (nowhere.invalid:9092: " in said


async def test_a_server_that_never_answers() -> None:
    """After the time of a request."""
    async with _listening(_is_silent) as address:
        for said in await _said(address):
            assert f"{address}: no answer within 300 ms" in said


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_a_server_that_ends_the_connection(protocol: str) -> None:
    """As a listener of another protocol does, so the setting is named."""
    async with _listening(_ends) as address:
        for said in await _said(address, security_protocol=protocol):
            assert f"{address}: it ends the connection: it may be none for security_protocol {protocol}" in said
