"""Attacks that comparable systems were open to, by class: each test names one, with a CVE of another system as an example."""

import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from tests.harness import raw_http, rest
from tests.harness.console import NAME, token_of
from tidemark.services.control import html
from tidemark.shared.adapters.http import AioHttpClient
from tidemark.shared.adapters.registry import RegistrySettings, RestRegistry
from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.language.documents.load import load
from tidemark.shared.language.stages import Connection
from tidemark.shared.ports.http import AnswerTooLong, HttpRequest
from tidemark.shared.ports.registry import RegistryDenied
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.connections import Connections

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with rest.served() as (url, _):
        yield url


def _get(url: str, path: str, role: str) -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {token_of(role)}\r\n\r\n"
    return raw_http.asked(url, head.encode())


def test_a_path_leads_to_no_file(control: str) -> None:
    """Traversal in a REST path, once and twice encoded (Flink, CVE-2020-17519): no file of the machine, whoever asks."""
    for up in ("../", "..%2f", "..%252f", "%2e%2e/", "..%5c", "....//", "%c0%ae%c0%ae/", "/etc/../"):
        for before in (
            "/console/",
            "/v1/processors/",
            f"/v1/processors/{NAME}/logs/",
            "/",
            f"/console/processors/{NAME}/logs?code=",
        ):
            answer = _get(control, f"{before}{up * 12}etc/passwd", "admin")
            assert b"root:" not in answer, (before, up)
            assert b" 200 " not in answer[:14] or b"code=" in before.encode(), (before, up, answer[:200])


def test_markup_of_others_is_shown_as_text(control: str) -> None:
    """Markup in a name or a parameter (Spark, CVE-2022-31777): the page has it as text alone."""
    for path in (
        "/console/processors/%3Cscript%3Ealert(1)%3C%2Fscript%3E",
        f"/console/processors/{NAME}/dead-letters?code=%22%3E%3Cscript%3E",
    ):
        assert b"<script>" not in _get(control, path, "viewer")
    assert "<script" not in html.tag("p", "<script>", title='"><script>')


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!javax.script.ScriptEngineManager", "!x", "!!python/name:os.system"]
)
def test_a_document_makes_no_objects(tag: str) -> None:
    """Tags of YAML that construct objects (SnakeYAML, CVE-2022-1471) are refused by name."""
    with pytest.raises(InvalidDocument, match=r"tag .* is not allowed"):
        load(f'pipeline: {tag} ["true"]')


@pytest.mark.parametrize(
    "config",
    [
        {"sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;"},
        {"sasl_oauthbearer_token_endpoint_url": "file:///etc/passwd"},
        {"sasl.oauthbearer.jwks.endpoint.url": "http://169.254.169.254/"},
        {"interceptor.classes": "x.Y"},
    ],
)
def test_a_connection_loads_no_class_and_reads_no_address_of_its_own(config: dict[str, Any]) -> None:
    """Properties of a Kafka client that load classes or read URLs (Kafka Connect, CVE-2023-25194, CVE-2025-27817): unknown here."""
    connection = Connection("k", "kafka", {"bootstrapServers": "b:1", "config": config})
    with pytest.raises(ValueError, match="no such setting"):
        Connections("x", allowed=Allowed(), values={}).kafka_settings(connection)


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "localhost\u3002", "0x7f.1"]
)
def test_a_document_asks_no_address_of_the_machine(host: str) -> None:
    """Requests to a cloud's metadata or to the machine itself (server-side request forgery), in whatever form."""
    with pytest.raises(NotAllowed):
        Allowed().check_place(f"http://{host}/latest/meta-data", "connections.api.url")


async def test_an_answer_does_not_unpack_without_end() -> None:
    """Compressed answers that unpack to a gigabyte (aiohttp, CVE-2025-69223): refused where the bound is reached."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = b"".join(stream.compress(b"[" * (1 << 20)) for _ in range(64)) + stream.flush()

    async def answered(_: web.Request) -> web.Response:
        return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    app = web.Application()
    app.router.add_get("/{path:.*}", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    client, registry = AioHttpClient(), RestRegistry(RegistrySettings((url,)))
    try:
        with pytest.raises(AnswerTooLong):
            await client.ask(HttpRequest("GET", url, (), None, 5.0, 20.0, 1 << 20))
        with pytest.raises(RegistryDenied, match="more than 16777216 bytes"):
            await registry.schema(1)
    finally:
        await client.close()
        await registry.close()
        await runner.cleanup()


def test_two_requests_in_one_are_not_two_answers_of_one(control: str) -> None:
    """Lengths that disagree (request smuggling, CVE-2025-53643): the request is refused, and what stands behind it is not carried out."""
    token = token_of("admin")
    head = (
        f"POST /v1/validate HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    )
    inner = f"DELETE /v1/processors/{NAME} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n"
    for lengths in (
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: +4\r\n",
    ):
        answer = raw_http.asked(control, f"{head}{lengths}\r\n0\r\n\r\n{inner}".encode())
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), (lengths, answer[:200])
        assert answer.count(b"HTTP/1.") == 1, answer
