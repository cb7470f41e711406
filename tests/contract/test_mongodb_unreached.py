"""A MongoDB server that is not reached: what the driver says of it, for people, and whether waiting may help."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.harness.certificates import made_certificate
from tidemark.shared.adapters.mongodb import client_at, is_denied, is_passing, words_of


def _error(port: int, more: str = "") -> Exception:
    client = client_at(f"mongodb://127.0.0.1:{port}/?directConnection=true{more}", 1_000)
    try:
        client.admin.command("ping")
    except Exception as error:  # noqa: BLE001 - any of the driver's
        return error
    finally:
        client.close()
    raise AssertionError("there is no server")


async def test_a_certificate_that_nobody_signs_is_a_refusal(tmp_path: Path) -> None:
    """The driver tells it as it tells an outage."""
    made_certificate(tmp_path, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    error: Any = await asyncio.to_thread(_error, server.sockets[0].getsockname()[1], "&tls=true")
    server.close()
    assert is_denied(error), error
    assert "certificate verify failed" in words_of(error)


def test_a_port_that_nobody_listens_on_is_an_outage_without_the_drivers_state() -> None:
    """The sentence ends where the driver's times and topology begin."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listened on
        port = taken.getsockname()[1]
        error = _error(port)
    assert is_passing(error)
    assert not is_denied(error)
    assert words_of(error) == f"127.0.0.1:{port}: [Errno 111] Connection refused"


@pytest.mark.parametrize("said", ["E11000 duplicate key", "a: b (see c), Timeout of d"])
def test_other_sentences_stay_whole(said: str) -> None:
    """Only the driver's own end is cut."""
    assert words_of(ValueError(said)) == said
