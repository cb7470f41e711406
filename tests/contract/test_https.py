"""`$https`: requests for rows against a real server: answers, refusals, outages, many at a time, keys that stay the same."""

import asyncio
import json
import socket
import ssl
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

from tests.harness.certificates import made_certificate
from tidemark.services.operator.requests import Requests
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.http import AioHttpClient
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.stages import Connection, Https
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.planning import plan_processor
from tidemark.shared.ports.http import HttpRequest, ServerAway, ServerDenied, ServerRefused
from tidemark.shared.process.allowed import Allowed, NotAllowed
from tidemark.shared.process.connections import Connections
from tidemark.shared.runtime.requests import Asking
from tidemark.shared.runtime.settings import LookupSettings

TIMES = LookupSettings(retry_ms=1, retry_ms_max=2, wait_ms_max=30_000)
SHORT = LookupSettings(retry_ms=1, retry_ms_max=2, wait_ms_max=20)


class Server:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.statuses: defaultdict[str, list[int]] = defaultdict(list)
        """Of the next answers to a path; then 200."""
        self.body = b'{"city": "Utrecht", "temp": 21.5}'
        self.content_type: str | None = "application/json"
        self.now = self.most = 0
        self.together = 0
        """So many requests must be there before one is answered."""
        self.enough = asyncio.Event()
        self.url = ""

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        app.on_response_prepare.append(self._without_type)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
        return runner

    async def _answer(self, request: web.Request) -> web.Response:
        asked = {"method": request.method, "path": request.path, "query": dict(request.query)}
        self.asked.append({**asked, "headers": dict(request.headers), "body": (await request.read()).decode()})
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self.together:
            self.enough.set()
        await self.enough.wait()
        self.now -= 1
        status = self.statuses[request.path].pop(0) if self.statuses[request.path] else 200
        headers = {} if self.content_type is None else {"Content-Type": self.content_type}
        return web.Response(status=status, body=self.body, headers=headers)

    async def _without_type(self, request: web.Request, answer: web.StreamResponse) -> None:
        """The library would name one."""
        if self.content_type is None:
            answer.headers.popall("Content-Type")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner = await made.start()
    yield made
    await runner.cleanup()


def stage_of(**options: Any) -> Https:
    tree = {"connectionName": "api", "as": options.pop("as_", "found"), **options}
    connections = {"api": {"type": "https", "url": "http://api"}, "k": {"type": "kafka", "bootstrapServers": "b:1"}}
    source, sink = {"connectionName": "k", "topic": "in"}, {"connectionName": "k", "topic": "out"}
    pipeline = [{"$source": source}, {"$https": tree}, {"$emit": sink}]
    (stage,) = (s for s in parse({"connections": connections, "pipeline": pipeline}).pipeline if isinstance(s, Https))
    return stage


def rows_of(documents: list[Document]) -> pa.RecordBatch:
    numbers = pa.array(range(len(documents)), pa.int64())
    return batch_of(documents, {TS: numbers, PART: numbers.cast(pa.int32()), POS: numbers, ARRIVAL: numbers})


async def through(
    server: Server, documents: list[Document], times: LookupSettings = TIMES, **options: Any
) -> tuple[list[Document], list[Document]]:
    """The documents that come out, and the dead letters."""
    client, executor = AioHttpClient(), AsyncExecutor()
    connection = Connection("api", "https", {"url": server.url, "headers": {"X-Key": "secret"}})
    stage = stage_of(**options)
    asking = Asking(stage, connection, client, SystemClock(), executor, times)
    requests = Requests(stage, asking, TaskContext(topic="in"), "job-1")
    try:
        outs = await requests.enrich(rows_of(documents))
    finally:
        await client.close()
        await executor.close()
    found = [document for out in outs if out.port == OUT for document in documents_of(out.batch)]
    return found, [letter for out in outs if out.port != OUT for letter in documents_of(out.batch)]


async def test_a_request_for_each_row_and_its_answer_in_a_field(server: Server) -> None:
    """Path, query, headers and body are of the row; the answer becomes the field, and rows keep their order."""
    found, letters = await through(
        server,
        [{"user": "a b", "n": 1}, {"user": "c/../", "n": 2}],
        path={"$concat": ["users/", {"$replaceAll": {"input": "$user", "find": "..", "replacement": "_"}}]},
        parameters={"n": "$n", "all": True},
        headers={"X-User": {"$toString": "$n"}, "Bad Name": "x"},
        method="POST",
        payload=[{"$project": {"_id": 0, "twice": {"$multiply": ["$n", 2]}}}],
        as_="weather.now",
    )
    assert letters == []
    assert [d["weather"]["now"]["city"] for d in found] == ["Utrecht", "Utrecht"]
    first = next(asked for asked in server.asked if asked["query"]["n"] == "1")
    assert (first["method"], first["path"]) == ("POST", "/v1/users/a b")
    assert first["query"] == {"n": "1", "all": "true"}
    assert json.loads(first["body"]) == {"twice": 2}
    assert (first["headers"]["X-User"], first["headers"]["X-Key"]) == ("1", "secret")
    assert "Bad Name" not in first["headers"]


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["::1", "127.0.0.1"]])
async def test_a_name_that_leads_to_this_machine_leads_nowhere(
    server: Server, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is connected to is judged, not the name alone; where the installation allows it, the request is sent."""

    def looked_up(_host: object, port: object, *_: object, **__: object) -> list[tuple[Any, ...]]:
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        rest = [(0, 0) if ":" in address else () for address in addresses]
        return [
            (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port, *more))
            for family, address, more in zip(families, addresses, rest, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    url = server.url.replace("127.0.0.1", "localhost")
    request = HttpRequest("GET", url, (), None, 5.0, 5.0, 1_000)
    for allowed in (Allowed(), Allowed(loopback=True), Allowed(hosts=("localhost",))):
        client = Connections("x", allowed=allowed, values={}).http()
        try:
            if allowed.loopback or allowed.hosts:
                assert (await client.ask(request)).status == 200
            else:
                with pytest.raises(NotAllowed, match=r"the host leads to: .*this machine itself"):
                    await client.ask(request)
        finally:
            await client.close()
    assert len(server.asked) == 2


async def test_many_requests_are_under_way_at_a_time(server: Server) -> None:
    """As many as the document says, and no more: the server answers none before all of them are there."""
    server.together = 8
    found, _ = await through(server, [{"n": n} for n in range(40)], config={"parallelism": 8})
    assert [document["n"] for document in found] == list(range(40))
    assert server.most == 8


async def test_every_attempt_has_the_same_key_and_every_row_its_own(server: Server) -> None:
    """Requests that are sent again, by this attempt of the task or another, carry the key of the first."""
    server.statuses["/v1/x"] = [503, 429, 500]
    documents: list[Document] = [{"n": n} for n in range(3)]
    await through(server, documents, path="x", method="POST")
    await through(server, documents, path="x", method="POST")
    keys: dict[str, set[str]] = defaultdict(set)
    for asked in server.asked:
        keys[asked["body"]].add(asked["headers"]["Idempotency-Key"])
    assert len(server.asked) == 9
    assert [len(each) for each in keys.values()] == [1, 1, 1]
    assert len(set.union(*keys.values())) == 3


@pytest.mark.parametrize("status", [400, 404, 410, 413, 414, 431])
async def test_a_refused_request_is_what_the_document_says(server: Server, status: int) -> None:
    """dlq: a letter with the reason; ignore: the document as it was; fail: the processor fails. Other rows come out."""
    server.statuses["/v1/1"] = [status] * 3
    documents: list[Document] = [{"n": 0}, {"n": 1}, {"n": 2}]
    by_number: dict[str, Any] = {"path": {"$toString": "$n"}}
    found, (letter,) = await through(server, documents, **by_number)
    assert [d["n"] for d in found] == [0, 2]
    assert str(status) in letter["errInfo"]["reason"]
    assert letter["doc"]["n"] == 1
    found, letters = await through(server, documents, onError="Ignore", **by_number)
    assert ["found" in d for d in found] == [True, False, True]
    assert letters == []
    with pytest.raises(ServerRefused, match=str(status)):
        await through(server, documents, onError="fail", **by_number)


@pytest.mark.parametrize(("status", "attempts"), [(401, 1), (302, 1), (500, 3)])
async def test_a_status_that_speaks_of_all_rows_fails_the_stage(server: Server, status: int, attempts: int) -> None:
    """A wrong password, a redirect, a server that fails again and again: the reason is told, whatever onError says."""
    server.statuses["/v1/"] = [status] * 9
    with pytest.raises(ServerRefused, match=f"status {status}"):
        await through(server, [{"n": 0}], onError="ignore", path="")
    assert len(server.asked) == attempts


async def test_an_outage_is_waited_out_and_then_told(server: Server) -> None:
    """A server that is away is asked again; away for too long, the task fails with an outage, which does not count."""
    server.statuses["/v1"] = [503] * 4
    found, _ = await through(server, [{"n": 0}])
    assert found[0]["found"]["city"] == "Utrecht"
    server.statuses["/v1"] = [503] * 1000
    with pytest.raises(ServerAway, match="away for"):
        await through(server, [{"n": 0}], SHORT)
    server.url = "http://127.0.0.1:9"
    with pytest.raises(ServerAway, match="away for"):
        await through(server, [{"n": 0}], SHORT)


@pytest.mark.parametrize("listens", ["tls", "plain"])
async def test_tls_that_does_not_fit_is_no_outage(server: Server, tmp_path: Path, listens: str) -> None:
    """A certificate that nobody signs, or a server without any: it is named, with what to correct, and not waited out."""
    made_certificate(tmp_path, "server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    other = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    port = other.sockets[0].getsockname()[1]
    server.url = server.url.replace("http:", "https:") if listens == "plain" else f"https://127.0.0.1:{port}"
    with pytest.raises(ServerDenied, match=r"connection api: .*correct the url, or the certificates") as raised:
        await through(server, [{"n": 0}])
    other.close()
    assert (is_lasting(raised.value), is_outage(raised.value)) == (False, False)


@pytest.mark.parametrize(
    ("kind", "body", "answer"),
    [
        ("text/plain; charset=utf-8", b"sunny", "sunny"),
        (None, b"[1, 2]", [1, 2]),
        ("application/problem+json", b'{"a": {"$numberLong": "5"}}', {"a": 5}),
        ("application/json", b"", None),
        ("application/json", b'{"a": "{\\"b\\": [1]}"}', {"a": '{"b": [1]}'}),
    ],
)
async def test_answers_are_json_or_text(server: Server, kind: str | None, body: bytes, answer: Any) -> None:
    """By the type that the server names; without one JSON. An empty answer sets no field."""
    server.content_type, server.body = kind, body
    (found,), letters = await through(server, [{"n": 0}])
    assert (found.get("found"), letters) == (answer, [])


async def test_texts_in_answers_may_be_read(server: Server) -> None:
    """`parseJsonStrings`: texts that are JSON become what they say, at any depth."""
    server.body = json.dumps({"a": json.dumps({"b": [json.dumps([1])]}), "c": "{no", "d": "5"}).encode()
    (found,), _ = await through(server, [{"n": 0}], config={"parseJsonStrings": True})
    assert found["found"] == {"a": {"b": [[1]]}, "c": "{no", "d": "5"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("text/html", b"<p>"),
        ("application/json", b"{"),
        ("text/plain", b"x" * 5_000_000),
        ("application/json", b"[" * 180 + b"]" * 180),
    ],
)
async def test_answers_that_are_none_are_refused(server: Server, kind: str, body: bytes) -> None:
    """Another type, broken JSON, more bytes than an answer may have, more levels than a document (D21)."""
    server.content_type, server.body = kind, body
    found, (letter,) = await through(server, [{"n": 0}])
    assert found == []
    assert letter["errInfo"]["code"] == "RequestRefused"


async def test_a_row_that_makes_no_request_is_a_dead_letter(server: Server) -> None:
    """A path, parameter or header of another type, or an expression that fails, asks nobody."""
    for options in ({"path": "$n"}, {"parameters": {"x": "$o"}}, {"headers": {"x": "$n"}}, {"path": "a/../b"}):
        found, letters = await through(server, [{"n": 0, "o": {}}], onError="ignore", **options)
        assert (found, len(letters)) == ([], 1), options
    assert server.asked == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "TRACE"}, "unknown value"),
        ({"payload": [{"$match": {}}]}, "match"),
        ({"as_": ""}, "as"),
        ({"connectionName": "k"}, "expected https"),
    ],
)
def test_a_wrong_stage_is_an_error_of_the_document(options: dict[str, Any], said: str) -> None:
    """Before anything runs, with the place."""
    with pytest.raises(InvalidDocument, match=said):
        stage_of(**options)


def test_hosts_are_those_that_the_installation_allows() -> None:
    """A server on this machine, or on a host that is not listed, is not asked."""
    tree = {"connections": {"api": {"type": "https", "url": "http://127.0.0.1:8080"}}}
    tree["pipeline"] = [
        {"$source": {"documents": [{"n": 1}]}},
        {"$https": {"connectionName": "api", "as": "a"}},
        {"$emit": {"path": "out", "format": "json"}},
    ]  # type: ignore[assignment]
    processor = parse(tree)
    with pytest.raises(NotAllowed, match="this machine itself"):
        Connections("x", allowed=Allowed(), values={}).get(processor, "api")
    assert Counter(vertex.service for vertex in plan_processor(processor).vertices)["operator"] == 1
