"""The control service over sockets, in front of the real coordinator and workers in memory."""

import asyncio
import base64
import json
import logging
import pkgutil
import random
import re
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import pytest
from aiohttp import ClientSession, web
from structlog.testing import capture_logs
from typer.testing import CliRunner

from tests.harness.installation import Installed, installed, released
from tests.harness.sealing import sealed
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.process import quiet
from tidemark.services.control.audit import Audit
from tidemark.services.control.events import Events
from tidemark.services.control.openapi import describe
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.routes import ROUTES
from tidemark.services.control.server import application
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.process.users import ROLES, Users, read_token

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SECRET = "s3cr3t"


@dataclass
class Asked:
    """A session with the service's address."""

    session: ClientSession
    url: str
    there: Installed
    model: ReadModel

    async def ask(self, method: str, path: str, body: Any = None, **more: Any) -> tuple[int, Any]:
        """Status and decoded answer."""
        headers = {**BEARER, **more.pop("headers", {})}
        async with self.session.request(method, self.url + path, json=body, headers=headers, **more) as answer:
            if answer.content_type == "application/json":
                return answer.status, json.loads(await answer.read())
            # Events do not end: one of them is enough.
            events = answer.content_type == "text/event-stream"
            return answer.status, (await answer.content.readline() if events else await answer.read()).decode()

    async def until(self, name: str, state: str) -> dict[str, Any]:
        """Wait for a state, as the service shows it."""
        await self.there.when(lambda status: status.state == state, name)  # type: ignore[arg-type]
        while True:
            _, shown = await self.ask("GET", f"/v1/processors/{name}")
            if shown["state"] == state:
                return dict(shown)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    """What the services log would be among what commands print."""
    quiet(logging.CRITICAL)


def raise_(error: BaseException) -> None:
    """What runs beside is to fail the test."""
    raise error


def secret_of(user: str) -> bytes:
    """The token of a user of the tests."""
    return f"a-token-of-{user}".encode()


def bearing(user: str) -> dict[str, str]:
    """The header of a request of theirs."""
    return {"Authorization": f"Bearer {secret_of(user).decode()}"}


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    """A control service beside an installation that has read all there is."""
    clock, executor = SystemClock(), AsyncExecutor()
    async with installed(clock, executor) as there:
        users = tmp_path / "users"
        users.write_text("".join(f"{role}-1 {role} {sha256(secret_of(role)).hexdigest()}\n" for role in ROLES))
        settings = ControlSettings(
            port=0, engine="local", body_bytes_max=20_000, logs=str(tmp_path), agents=False, users_file=str(users)
        )
        topics = there.outside.topics
        service = ControlService(sealed(MemoryLog(there.broker)), topics, clock, executor, settings, TOKEN)
        running = executor.spawn(service.run(), "control", raise_)
        await service.serving.wait()
        async with ClientSession() as session:
            asked = Asked(session, service.url, there, service.model)
            while (await asked.ask("GET", "/readyz"))[0] != 200:
                pass
            yield asked
        service.stop()
        await running.join()


def document(folder: Path) -> dict[str, Any]:
    (folder / "in.json").write_text("".join(f'{{"n": {n}}}\n' for n in range(20)))
    return {
        "connections": {"out": {"type": "files", "path": str(folder), "config": {"secret": SECRET}}},
        "pipeline": [
            {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}},
            {"$emit": {"connectionName": "out", "path": "out", "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 50, "unit": "ms"}}},
    }


@pytest.mark.parametrize(
    ("read", "method", "path", "against"),
    [
        ("commands.parse", "POST", "/v1/validate", None),
        ("api.load", "POST", "/v1/validate", "p"),
        ("api.load", "GET", "/v1/processors/p", None),
        ("plan.parse", "GET", "/v1/processors/p/plan", None),
    ],
)
async def test_others_are_answered_while_a_document_is_read(
    asked: Asked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: str,
    method: str,
    path: str,
    against: str | None,
) -> None:
    """To read a large one takes seconds: here as long as it takes to answer another request."""
    made = json.dumps(document(tmp_path))
    assert (await asked.ask("POST", "/v1/processors", {"name": "p", "document": made}))[0] == 201
    where = f"tidemark.services.control.{read}"
    reader, begun, answered = pkgutil.resolve_name(where), threading.Event(), threading.Event()

    def slowly(*given: Any, **named: Any) -> Any:
        begun.set()
        assert answered.wait(20)
        return reader(*given, **named)

    monkeypatch.setattr(where, slowly)
    body = {"document": made, **({"against": against} if against else {})} if method == "POST" else None
    slow = asyncio.create_task(asked.ask(method, path, body))
    assert await asyncio.to_thread(begun.wait, 20)
    assert (await asked.ask("GET", "/v1/processors"))[0] == 200
    answered.set()
    assert (await slow)[0] == 200


async def test_a_processor_lives_by_rest(asked: Asked, tmp_path: Path) -> None:
    """Created, started, sampled, counted, stopped, modified, drained and dropped by requests; the registry shows each step."""
    made = document(tmp_path)
    assert (await asked.ask("POST", "/v1/validate", {"document": made}))[0] == 200
    assert (await asked.ask("POST", "/v1/processors", {"name": "p", "document": made, "start": True}))[0] == 201
    await asked.until("p", "RUNNING")
    sample: list[Any] = []
    while sample[-1:] != [{"n": 19}]:  # until the sink has all rows
        sample = (await asked.ask("GET", "/v1/processors/p/sample?limit=2"))[1]["documents"]
    assert sample == [{"n": 18}, {"n": 19}]
    found = await asked.ask("GET", "/v1/processors/p/sample?limit=2&edge=source-1%3Eemit-1")
    assert [row["document"] for row in found[1]["rows"]] in ([], [{"n": 18}, {"n": 19}])
    stats: dict[str, Any] = {}
    # Each service tells of its own.
    while min(stats.get("inputMessageCount", 0), stats.get("outputMessageCount", 0)) < 20:
        stats = (await asked.ask("GET", "/v1/processors/p/stats?verbose=true"))[1]["stats"]
    assert (stats["name"], stats["status"], stats["inputMessageCount"], stats["dlqMessageCount"]) == (
        "p",
        "RUNNING",
        20,
        0,
    )
    assert [operator["name"] for operator in stats["operatorStats"]] == ["emit-1", "source-1"]
    assert (await asked.ask("POST", "/v1/processors/p/checkpoints", {"name": "noon"}))[0] == 200
    assert (await asked.ask("POST", "/v1/processors/p/stop", {}))[0] == 200
    await asked.until("p", "STOPPED")
    made["pipeline"].insert(1, {"$match": {"n": {"$lt": 0}}})
    digest = (await asked.ask("GET", "/v1/processors/p"))[1]["documentDigest"]
    assert (await asked.ask("PATCH", "/v1/processors/p", {"document": made, "replaces": digest}))[0] == 200
    late = await asked.ask("PATCH", "/v1/processors/p", {"document": document(tmp_path), "replaces": digest})
    assert late[0] == 409
    assert "the document was changed by somebody else" in str(late[1])
    assert (await asked.ask("POST", "/v1/processors/p/start", {}))[0] == 200
    await asked.until("p", "RUNNING")
    assert (await asked.ask("DELETE", "/v1/processors/p"))[0] == 409
    assert (await asked.ask("POST", "/v1/processors/p/stop", {"drain": True}))[0] == 200
    await asked.until("p", "FINISHED")
    assert len(released(tmp_path / "out")) == 20
    assert (await asked.ask("POST", "/v1/processors/p/start", {"checkpoint": "noon"}))[0] == 200
    shown = await asked.until("p", "RUNNING")
    assert shown["document"]["pipeline"] == document(tmp_path)["pipeline"]
    kept = (await asked.ask("GET", "/v1/processors/p/checkpoints"))[1]["kept"]
    assert [each["name"] for each in kept] == [each["name"] for each in shown["kept"]] == ["noon"]
    assert [(await asked.ask("DELETE", "/v1/processors/p/checkpoints/noon"))[0] for _ in range(2)] == [200, 409]
    assert (await asked.ask("POST", "/v1/processors/p/stop", {}))[0] == 200
    await asked.until("p", "STOPPED")
    assert (await asked.ask("DELETE", "/v1/processors/p"))[0] == 200
    while (await asked.ask("GET", "/v1/processors/p"))[0] != 404:
        pass


async def test_secrets_are_not_shown(asked: Asked, tmp_path: Path) -> None:
    """Neither a document's connections nor the registry's show a secret, on any route that tells of them, nor do log lines."""
    made = document(tmp_path)
    assert (await asked.ask("POST", "/v1/processors", {"name": "p", "document": made}))[0] == 201
    connection = {"type": "kafka", "bootstrapServers": "b:1", "config": {"sasl_password": SECRET}}
    assert (await asked.ask("PUT", "/v1/connections/k", connection))[0] == 200
    line = {"event": "x", "processor": "p", "url": f"postgresql://u:{SECRET}@h/db", "timestamp": "1"}
    (tmp_path / "sink-0.log").write_text("java talks\n" + json.dumps(line) + "\n")
    await asked.until("p", "CREATED")
    while not (await asked.ask("GET", "/v1/connections"))[1]["connections"]:
        pass
    paths = ["/v1/processors", "/v1/processors/p", "/v1/connections", "/v1/processors/p/logs", "/v1/processors/p/stats"]
    told = [json.dumps((await asked.ask("GET", path))[1]) for path in paths]
    assert [path for path, text in zip(paths, told, strict=True) if SECRET in text] == []
    assert "sasl_password" in told[2]
    assert "***" in told[1]
    assert "u:***@h" in told[3]


def misplaced() -> list[dict[str, Any]]:
    """Connections that are wrong, with a secret where it does not belong."""
    address = f"postgresql://u:{SECRET}@h/d"
    return [
        {"type": "sql", "url": [address]},
        {"type": "sql", "url": {"password": SECRET}},
        {"type": "kafka", "bootstrapServers": "b:1", "sasl_password": SECRET},
        {"type": "kafka", "bootstrapServers": "b:1", "config": f"sasl_password={SECRET}"},
        {"type": "kafka", "bootstrapServers": {"password": SECRET}, "config": [SECRET]},
        {"config": {"sasl_password": SECRET}},
    ]


async def test_no_output_shows_a_secret(asked: Asked, tmp_path: Path) -> None:
    """No answer of a route, no event, no log line, no error of a wrong document has it, of what runs, waits for a target or is refused."""
    there, made = asked.there, document(tmp_path)
    topics = there.outside.topics
    events = Events(sealed(MemoryLog(there.broker)), topics, there.clock, ControlSettings())
    model = ReadModel(sealed(MemoryLog(there.broker)), topics, there.clock, on_status=events.status)
    away = {"type": "sql", "url": f"postgresql://u:{SECRET}@127.0.0.1:1/d"}
    merge = {"into": {"connectionName": "s", "table": "t"}, "on": ["n"], "whenMatched": "replace"}
    waits = {"connections": {"s": away}, "pipeline": [made["pipeline"][0], {"$merge": merge}]}
    told: list[str] = []
    quiet(logging.DEBUG)
    with capture_logs() as logged:
        handles = [*model.start(there.outside.executor, raise_), *events.start(there.outside.executor, model, raise_)]
        for name, tree in (("p", made), ("q", waits)):
            body = {"name": name, "document": tree, "start": True}
            assert (await asked.ask("POST", "/v1/processors", body))[0] == 201
        assert (await asked.ask("PUT", "/v1/connections/k", away))[0] == 200
        await asked.until("p", "RUNNING")
        await there.committed(2, "p")  # type: ignore[arg-type]
        while not any(line["event"] == "sink.target_away" for line in logged):
            await there.clock.sleep_ms(10)
        for wrong in misplaced():
            body = {"document": {"connections": {"k": wrong}, "pipeline": made["pipeline"][:1]}}
            for method, path, given in (
                ("POST", "/v1/validate", body),
                ("POST", "/v1/processors", {"name": "r", **body}),
                ("PUT", "/v1/connections/k", wrong),
            ):
                status, answer = await asked.ask(method, path, given)
                assert status == 422
                told.append(json.dumps(answer))
        for route in ROUTES:
            for name in ("p", "q") if route.method == "GET" else ():
                url = route.path.replace("{name}", name)
                told.append(f"{route.path}: {(await asked.ask('GET', url))[1]}")
        stored = there.broker._topics[topics.events][0].stored
        told += [str(entry.record.value) for entry in stored if entry.record is not None]
        for handle in handles:
            handle.cancel()
            await handle.join()
    told += map(repr, logged)
    assert len(stored) > 2
    assert [text for text in told if SECRET in text] == []


async def test_errors_say_place_expectation_and_finding(asked: Asked) -> None:
    """Whatever is wrong with a request is said in JSON, with what was expected where."""
    bad = {"pipeline": [{"$source": {"documents": []}}, {"$macth": {}}, {"$limit": 1}]}
    internal = {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "b:1"}},
        "pipeline": [{"$source": {"documents": []}}, {"$emit": {"connectionName": "k", "topic": "tidemark.commands"}}],
    }
    cases: list[tuple[str, str, Any, int, str]] = [
        ("GET", "/v1/processors/none", None, 404, "name"),
        ("GET", "/v2", None, 404, "/v2"),
        ("PUT", "/v1/processors", {}, 405, "/v1/processors"),
        ("POST", "/v1/processors", {"name": "p"}, 400, "body"),
        ("POST", "/v1/processors", {"name": "p/q", "document": {}}, 400, "name"),
        ("POST", "/v1/processors/p/stop", {"darin": True}, 400, "body"),
        ("POST", "/v1/processors/none/start", {}, 404, "none"),
        ("POST", "/v1/validate", {"document": bad}, 422, "document"),
        ("POST", "/v1/validate", {"document": internal}, 422, "document"),
        ("POST", "/v1/validate", {"document": "x" * 20_001}, 413, "body"),
        ("PUT", "/v1/connections/k", {"type": "kafka"}, 422, "document"),
        ("GET", "/v1/processors/none/stats?verbose=1", None, 404, "name"),
    ]
    for method, path, body, status, place in cases:
        found = await asked.ask(method, path, body)
        assert (found[0], found[1]["error"]["place"]) == (status, place), (method, path, found)
        assert set(found[1]["error"]) >= {"place", "expectation", "finding"}
    errors = (await asked.ask("POST", "/v1/validate", {"document": bad}))[1]["error"]["errors"]
    assert [error["place"] for error in errors] == ["pipeline[1].$macth", "pipeline[2].$limit"]
    errors = (await asked.ask("POST", "/v1/validate", {"document": internal}))[1]["error"]["errors"]
    assert [error["place"] for error in errors] == ["pipeline[1].$emit.topic"]


async def test_odd_bytes_are_the_askers_fault(asked: Asked) -> None:
    """Headers and bodies that are no text, no gzip, or numbers that no message holds are told so: none is a fault of the service."""
    kind = {"Content-Type": "application/json"}
    cases: list[tuple[str, str, dict[str, str], bytes, int]] = [
        ("GET", "/v1/processors", {"Authorization": "Bearer \udcff"}, b"", 401),
        ("GET", "/v1/processors", {"Authorization": "Basic é"}, b"", 401),
        ("DELETE", "/v1/processors/p", {**BEARER, "Idempotency-Key": "\udcff"}, b"", 400),
        ("POST", "/v1/validate", {**BEARER, **kind}, b'{"document": "\xff"}', 400),
        ("POST", "/v1/validate", {**BEARER, **kind, "Content-Encoding": "gzip"}, b"no gzip", 400),
        ("POST", "/v1/processors/p/stop", {**BEARER, **kind}, b'{"until": {"a": 99999999999999999999}}', 400),
        ("POST", "/v1/processors/p/skip", {**BEARER, **kind}, b'{"epoch": -1}', 400),
        ("PATCH", "/v1/processors/p", {**BEARER, **kind}, b'{"parallelism": {"source": 99999999999999999999}}', 400),
    ]
    host, port = asked.url.removeprefix("http://").split(":")
    for method, path, headers, body, status in cases:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode(errors="surrogateescape") + body)
        found = await reader.read()
        writer.close()
        assert found.startswith(f"HTTP/1.1 {status} ".encode()), (path, headers, found)
        assert b'"finding"' in found


async def test_what_a_request_leaves_out_is_told(asked: Asked) -> None:
    """An end of the input without a drain, and a body's type, are not passed over, nor told as something that was not there."""
    status, found = await asked.ask("POST", "/v1/processors/p/stop", {"until": {"in-0": 5}})
    assert (status, found["error"]["place"], found["error"]["finding"]) == (400, "until", "no drain")
    url, left_out = asked.url + "/v1/processors/p/start", ["Content-Type"]
    async with asked.session.post(url, headers=BEARER, skip_auto_headers=left_out) as answer:
        found = await answer.json()
    assert (found["error"]["place"], found["error"]["finding"]) == ("header Content-Type", "none")


async def test_no_route_answers_without_the_token(asked: Asked) -> None:
    """Every route but liveness asks for the token; a browser's prompt may read and may not change."""
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    for route in ROUTES:
        url = asked.url + re.sub(r"{\w+}", "p", route.path)
        for given in ({}, {"Authorization": "Bearer other"}, {"Authorization": f"Digest {TOKEN}"}):
            async with asked.session.request(route.method, url, json={}, headers=given) as answer:
                assert answer.status == (200 if route.open else 401), route.path
        async with asked.session.request(
            route.method, url, json={}, headers={"Authorization": f"Basic {basic}"}
        ) as answer:
            assert answer.status != 401
            assert (answer.status == 403) == (route.method != "GET"), route.path
    async with asked.session.get(asked.url, headers={"Authorization": f"Basic {basic}"}) as answer:
        assert answer.content_type == "text/html"
        assert "/console/console.js" in await answer.text()


async def test_each_role_may_do_what_is_its_own_and_no_more(asked: Asked) -> None:
    """Of every route: who is below its role is told so, and who is not gets past the guard."""
    for route in ROUTES:
        for place, role in enumerate(ROLES):
            path = re.sub(r"{\w+}", "none", route.path)
            async with asked.session.request(route.method, asked.url + path, json={}, headers=bearing(role)) as answer:
                refused = not route.open and place < ROLES.index(route.role)
                assert (answer.status == 403) == refused, (route.path, role, answer.status)
    assert {route.path for route in ROUTES if route.role == "admin"} == {
        "/v1/processors/{name}",
        "/v1/audit",
        "/v1/connections/{name}",
        "/console/audit",
    }  # fmt: skip


async def test_the_audit_log_says_who_did_what_and_who_was_turned_away(asked: Asked, tmp_path: Path) -> None:
    """In the order of the deeds, the latest first: user, role, what was asked for, of which processor, and how it ended."""
    made = {"name": "p", "document": document(tmp_path)}
    await asked.ask("POST", "/v1/processors", made, headers={**bearing("operator"), "Idempotency-Key": "one"})
    await asked.ask("DELETE", "/v1/processors/p", headers=bearing("viewer"))
    await asked.ask("DELETE", "/v1/processors/p", headers={"Authorization": "Bearer wrong"})
    await asked.ask("DELETE", "/v1/processors/p", headers=bearing("admin"))
    await asked.ask("GET", "/v1/processors", headers=bearing("viewer"))
    _, told = await asked.ask("GET", "/v1/audit")
    shown = [(d["user"], d["role"], d["what"], d["processor"], d["status"]) for d in told["deeds"]]
    assert shown == [
        ("admin-1", "admin", "DELETE /v1/processors/p", "p", 200),
        ("", "", "DELETE /v1/processors/p", "p", 401),
        ("viewer-1", "viewer", "DELETE /v1/processors/p", "p", 403),
        ("operator-1", "operator", "POST /v1/processors", "p", 201),
    ]
    assert told["deeds"][-1]["request"] == "one"


async def test_users_come_and_go_while_the_service_runs(asked: Asked, tmp_path: Path) -> None:
    """A line more is a user more, a line less one less; a file that cannot be read changes nobody's right."""
    users = tmp_path / "users"
    assert (await asked.ask("GET", "/v1/processors", headers=bearing("ada")))[0] == 401
    line = f"ada viewer {sha256(secret_of('ada')).hexdigest()}\n"
    for text, expected in ((line, 200), ("no such line\n", 200), (None, 200), ("# nobody\n", 401)):
        if text is None:
            users.unlink()
        else:
            (tmp_path / "new").write_text(text)
            (tmp_path / "new").replace(users)
        assert (await asked.ask("GET", "/v1/processors", headers=bearing("ada")))[0] == expected, text
    assert (await asked.ask("GET", "/v1/processors"))[0] == 200


async def test_who_may_ask_no_more_is_told_no_more(asked: Asked, tmp_path: Path) -> None:
    """Live events of a user end when the line is gone or says something else, not only the next request."""
    users = tmp_path / "users"
    kept, digest = users.read_text(), sha256(secret_of("ada")).hexdigest()
    for then in ("", f"ada operator {digest}\n"):
        users.write_text(f"{kept}ada viewer {digest}\n")
        async with asked.session.get(f"{asked.url}/v1/live", headers=bearing("ada")) as live:
            await live.content.readuntil(b"\n\n")
            users.write_text(kept + then)
            async with asyncio.timeout(30):
                await live.content.read()


async def test_a_repeated_request_is_carried_out_once(asked: Asked, tmp_path: Path) -> None:
    """Under the same id a creation is answered as before; under another it is refused, for the name is taken."""
    body = {"name": "p", "document": document(tmp_path)}
    for _ in range(2):
        assert (await asked.ask("POST", "/v1/processors", body, headers={"Idempotency-Key": "one"}))[0] == 201
    assert (await asked.ask("POST", "/v1/processors", body, headers={"Idempotency-Key": "two"}))[0] == 409


async def test_the_description_is_of_what_is_served(asked: Asked) -> None:
    """/openapi.json names every route and method of the server and no other, each with what it takes and answers."""
    status, told = await asked.ask("GET", "/openapi.json")
    assert status == 200
    assert told == json.loads(json.dumps(describe(ROUTES)))
    described = {(method.upper(), path) for path, item in told["paths"].items() for method in item}
    service_api = application(_Any(), Users(TOKEN))  # type: ignore[arg-type]
    served = {
        (route.method, route.resource.canonical)
        for route in service_api.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    assert described == served
    for path, item in told["paths"].items():
        for operation in item.values():
            assert operation["responses"].keys() >= ({"401", "429", "503"} if operation["security"] else {"200"})
            names = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
            assert names == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    for name in ("CreateBody", "StopBody", "ModifyBody"):
        assert told["components"]["schemas"][name]["additionalProperties"] is False


def _made_up(schema: Any, parts: Any, draw: random.Random) -> Any:
    """A body as the schema says, or nearly."""
    if draw.random() < 0.1:
        return draw.choice([None, True, -1, 2**70, 1.5, "", "💩", [], {}, ["p"], {"a": {"b": [None]}}])
    if "$ref" in schema:
        return _made_up(parts[schema["$ref"].split("/")[-1]], parts, draw)
    if "anyOf" in schema:
        return _made_up(draw.choice(schema["anyOf"]), parts, draw)
    if schema.get("type") == "object":
        named = {k: _made_up(v, parts, draw) for k, v in schema.get("properties", {}).items() if draw.random() < 0.7}
        return named or {draw.choice(["source", "sink", "k"]): draw.choice([1, 2, "x"])}
    return {"string": "p", "integer": draw.choice([0, 1, 2**40]), "boolean": draw.random() < 0.5}.get(
        schema.get("type")
    )


async def test_whatever_is_asked_is_answered_as_described(asked: Asked, tmp_path: Path) -> None:
    """Bodies, names and parameters that are nearly right: each status is among those of the description, each error in its form."""
    assert (await asked.ask("POST", "/v1/processors", {"name": "p", "document": document(tmp_path)}))[0] == 201
    _, told = await asked.ask("GET", "/openapi.json")
    draw, statuses = random.Random(11), set[int]()
    routes = [(method, path) for path, item in told["paths"].items() for method in item if path != "/"]
    for _ in range(300):
        method, path = draw.choice(routes)
        operation = told["paths"][path][method]
        name = draw.choice(["p", "p", "none", "%20", "a%2Fb", "%F0%9F%92%A9", "x" * 200])
        wanted = [p["name"] for p in operation["parameters"] if p["in"] == "query" and draw.random() < 0.7]
        query = "&".join(f"{each}={draw.choice(['1', '0', '-1', 'true', 'x', '9' * 30, '%D9%A3'])}" for each in wanted)
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        body = None if content is None else _made_up(content["schema"], told["components"]["schemas"], draw)
        status, answer = await asked.ask(method.upper(), f"{path.replace('{name}', name)}?{query}", body)
        assert str(status) in operation["responses"], (method, path, name, query, body, status, answer)
        assert status < 400 or "trouble" in answer or answer["error"].keys() >= {"place", "expectation", "finding"}
        statuses.add(status)
    assert statuses >= {200, 400, 404, 422}


class _Any:
    """Stands for handlers that are not called."""

    settings = ControlSettings()
    audit_log = Audit(SystemClock())

    @property
    def works(self) -> Self:
        """Its handlers of audits."""
        return self

    def __getattr__(self, name: str) -> Any:
        async def handler(request: web.Request, body: Any) -> web.Response:
            raise AssertionError(name)

        return handler


def test_a_token_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """The file that is made is nobody else's to read; one that is there is taken as it is; a short token is refused."""
    path = tmp_path / "token"
    token = read_token(str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(str(path)) == token
    path.write_text("short")
    with pytest.raises(ProcessSettingsError, match="at least 16 characters, found 5"):
        read_token(str(path))


@pytest.mark.kafka
async def test_what_can_never_run_is_refused_when_it_is_created(
    asked: Asked, kafka_broker: str, unique_name: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unset variable and a topic that is not there are errors of the document at once, as `tidemark run` says; no processor is made."""
    monkeypatch.setenv("TIDEMARK_ALLOW", '{"loopback": true}')
    broker = {"type": "kafka", "bootstrapServers": "${NOBODY_SET_THIS}"}
    source = {"connectionName": "b", "topic": unique_name("absent")}
    stages = [{"$source": source}, {"$emit": {"path": "out", "format": "json"}}]
    body = {"name": "p", "document": {"connections": {"b": broker}, "pipeline": stages}}
    status, said = await asked.ask("POST", "/v1/processors", body)
    assert (status, said["error"]["errors"][0]["place"]) == (422, "connections.b.bootstrapServers")
    broker["bootstrapServers"] = kafka_broker
    status, said = await asked.ask("POST", "/v1/processors", body)
    assert (status, said["error"]["errors"][0]["place"]) == (422, "pipeline[0].$source.topic")
    assert (await asked.ask("GET", "/v1/processors/p"))[0] == 404
    status, _ = await asked.ask("POST", "/v1/validate", {"document": body["document"]})
    assert status == 200, "validate connects to nothing"


async def test_the_command_line_asks_the_service(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidemark create`, `processors`, `status`, `stats`, `logs`, `drop` do as they say; a refusal is a sentence and status 1."""
    monkeypatch.setenv("TIDEMARK_CONTROL", asked.url)
    monkeypatch.setenv("TIDEMARK_TOKEN", TOKEN)
    file = tmp_path / "p.json"
    file.write_text(json.dumps(document(tmp_path)))

    async def tidemark(*args: str) -> tuple[int, str]:
        result = await AsyncExecutor().blocking(lambda: CliRunner().invoke(app, list(args)))
        return result.exit_code, result.stdout + result.stderr

    assert await tidemark("create", str(file)) == (0, "p: created\n")
    await asked.until("p", "CREATED")
    assert "p " in (await tidemark("processors"))[1]
    assert "CREATED" in (await tidemark("status", "p"))[1]
    assert json.loads((await tidemark("stats", "p", "--json"))[1])["stats"]["status"] == "CREATED"
    assert (await tidemark("logs", "p"))[0] == 0
    status, said = await tidemark("sample", "p")
    assert (status, "only a running processor" in said) == (1, True)
    assert (await tidemark("sample", "p", "a>b", "--limit", "1"))[0] == 1
    status, said = await tidemark("keep", "p", "noon")
    assert (status, "has no checkpoint of its present life" in said) == (1, True)
    status, said = await tidemark("start", "p", "--from", "noon")
    assert (status, "keeps no checkpoint named noon" in said) == (1, True)
    assert (await tidemark("forget", "p", "a/b"))[0] == 1
    assert (await tidemark("drop", "p"))[0] == 0
    file.write_text('{"pipeline": [{"$sauce": {}}]}')
    status, said = await tidemark("create", str(file))
    assert (status, "pipeline[0]" in said and "$source" in said) == (1, True)
    monkeypatch.setenv("TIDEMARK_TOKEN", "another")
    assert (await tidemark("processors"))[0] == 1
