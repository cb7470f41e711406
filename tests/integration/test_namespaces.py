"""Several teams on one installation: every route, by users of each role, bound to namespaces or not, against one table."""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from aiohttp import ClientSession, TCPConnector
from yarl import URL

from tests.harness.installation import Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.cli.process import quiet
from tidemark.services.control.routes import ROUTES
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.process.users import ROLES, Role

TOKEN: Final = "a-token-of-the-installation"
NAMES: Final = ("a.one", "b.two", "plain")
"""Processors, each with a job of its own; connections have the same namespaces."""
CONNECTIONS: Final = {"a.one": "a.store", "b.two": "b.store", "plain": "shared"}
BOUND: Final = ("", "@a", "@b", "@a,b")
USERS: Final = (*(f"{role}{bound}" for role in ROLES for bound in BOUND), "viewer+operator@a", "viewer@b+admin@a")

Kind = Literal["service", "seen", "audit", "document", "new", "processor", "connection"]
TABLE: Final[dict[tuple[str, str], tuple[Role, Kind]]] = {
    ("GET", "/healthz"): ("viewer", "service"),
    ("GET", "/readyz"): ("viewer", "service"),
    ("GET", "/openapi.json"): ("viewer", "service"),
    ("GET", "/console/console.css"): ("viewer", "service"),
    ("GET", "/console/console.js"): ("viewer", "service"),
    ("GET", "/console/completion.js"): ("viewer", "service"),
    ("GET", "/"): ("viewer", "seen"),
    ("GET", "/console/connections"): ("viewer", "seen"),
    ("GET", "/console/workers"): ("viewer", "seen"),
    ("GET", "/console/audit"): ("admin", "audit"),
    ("GET", "/console/processors/{name}"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/checkpoints"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/time"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/sample"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/dead-letters"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/verdict"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/logs"): ("viewer", "processor"),
    ("GET", "/console/processors/{name}/document"): ("viewer", "processor"),
    ("GET", "/v1/processors"): ("viewer", "seen"),
    ("POST", "/v1/processors"): ("operator", "new"),
    ("POST", "/v1/validate"): ("viewer", "document"),
    ("POST", "/v1/complete"): ("viewer", "document"),
    ("POST", "/v1/try"): ("operator", "document"),
    ("GET", "/v1/processors/{name}"): ("viewer", "processor"),
    ("PATCH", "/v1/processors/{name}"): ("operator", "processor"),
    ("DELETE", "/v1/processors/{name}"): ("admin", "processor"),
    ("POST", "/v1/processors/{name}/start"): ("operator", "processor"),
    ("POST", "/v1/processors/{name}/stop"): ("operator", "processor"),
    ("POST", "/v1/processors/{name}/skip"): ("operator", "processor"),
    ("GET", "/v1/processors/{name}/stats"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/watermark"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/sample"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/logs"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/plan"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/checkpoints"): ("viewer", "processor"),
    ("POST", "/v1/processors/{name}/checkpoints"): ("operator", "processor"),
    ("DELETE", "/v1/processors/{name}/checkpoints/{checkpoint}"): ("operator", "processor"),
    ("GET", "/v1/processors/{name}/history"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/dead-letters"): ("viewer", "processor"),
    ("POST", "/v1/processors/{name}/redrive"): ("operator", "processor"),
    ("GET", "/v1/processors/{name}/redrive"): ("viewer", "processor"),
    ("POST", "/v1/processors/{name}/audit"): ("operator", "processor"),
    ("GET", "/v1/processors/{name}/audit"): ("viewer", "processor"),
    ("GET", "/v1/processors/{name}/live"): ("viewer", "processor"),
    ("GET", "/v1/live"): ("viewer", "seen"),
    ("GET", "/v1/user"): ("viewer", "service"),
    ("GET", "/v1/login"): ("viewer", "service"),
    ("GET", "/v1/workers"): ("viewer", "seen"),
    ("GET", "/v1/audit"): ("admin", "audit"),
    ("GET", "/v1/connections"): ("viewer", "seen"),
    ("PUT", "/v1/connections/{name}"): ("admin", "connection"),
    ("POST", "/v1/connections/{name}/test"): ("operator", "connection"),
    ("DELETE", "/v1/connections/{name}"): ("admin", "connection"),
}  # fmt: skip
"""What each route takes, written down apart from the code: a route that is not here fails the first test."""


def role_in(user: str, namespace: str | None) -> int:
    """Place of the user's role in this namespace among ROLES, None: anywhere; -1: none."""
    best = -1
    for grant in user.split("+"):
        role, _, bound = grant.partition("@")
        if not bound or namespace is None or namespace in bound.split(","):
            best = max(best, ROLES.index(role))
    return best


def namespace(name: str) -> str:
    """As the manual says: the part before the first dot."""
    return name.split(".", maxsplit=1)[0] if "." in name else ""


def expected(user: str, method: str, path: str, name: str) -> int:
    """403, 404, or 0 where the guard lets the request pass. name: of a processor, or of a connection where the path has one."""
    least, kind = TABLE[method, path]
    place = ROLES.index(least)
    own, anywhere = role_in(user, namespace(name)), role_in(user, None)
    match kind:
        case "processor" if own < 0:
            return 404
        case "processor":
            return 0 if own >= place else 403
        case "connection" if own < 0 and namespace(name):
            return 404
        case "connection":
            reached = anywhere if not namespace(name) and least != "admin" else own
            return 0 if reached >= place else 403
        case "new":
            return 0 if own >= place else 403
        case _:
            return 0 if anywhere >= place else 403


@dataclass
class Teams:
    """The installation of two teams, and of nobody's."""

    url: str
    session: ClientSession
    there: Installed
    jobs: dict[str, str]

    async def ask(self, user: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and text; of live events the first."""
        headers = {"Authorization": f"Bearer {token_of(user)}", **headers}
        given = {"json": body} if method != "GET" else {}
        async with self.session.request(method, self.url + path, headers=headers, **given) as answer:
            if answer.content_type == "text/event-stream":
                return answer.status, (await answer.content.readuntil(b"\n\n")).decode()
            return answer.status, await answer.text()

    async def workers(self, user: str) -> list[dict[str, Any]]:
        """As the user sees them."""
        return list(json.loads((await self.ask(user, "GET", "/v1/workers"))[1])["workers"])


def token_of(user: str) -> str:
    """The token of a user; of "" the installation's own."""
    return f"a-token-of-{user}" if user else TOKEN


def document(folder: Path, name: str) -> dict[str, Any]:
    """A document that says whose it is, through the connection of its namespace."""
    return {
        "pipeline": [
            {"$source": {"path": str(folder / "in.json"), "format": "json", "follow": True}},
            {"$addFields": {f"mark_of_{CONNECTIONS[name]}": 1}},
            {"$emit": {"connectionName": CONNECTIONS[name], "path": f"out-{name}", "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 50, "unit": "ms"}}},
    }


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncIterator[Teams]:
    """Three processors that run, each with a connection and log lines."""
    quiet(logging.CRITICAL)
    clock, executor = SystemClock(), AsyncExecutor()
    (tmp_path / "in.json").write_text('{"n": 1}\n' * 20)
    lines = (f"{user} {user} {sha256(token_of(user).encode()).hexdigest()}\n" for user in USERS)
    (tmp_path / "users").write_text("".join(lines))
    said = (
        json.dumps({"timestamp": "1", "processor": name, "event": f"line of {CONNECTIONS[name]}"}) for name in NAMES
    )
    (tmp_path / "sink-0.log").write_text("\n".join(said))

    def broken(error: BaseException) -> None:
        raise error

    async with installed(clock, executor) as there:
        settings = ControlSettings(
            port=0, engine="local", logs=str(tmp_path), agents=False, users_file=str(tmp_path / "users"), look_ms=100
        )
        service = ControlService(
            sealed(MemoryLog(there.broker)), there.outside.topics, clock, executor, settings, TOKEN
        )
        running = executor.spawn(service.run(), "control", broken)
        await service.serving.wait()
        async with ClientSession(connector=TCPConnector(limit=0)) as session:
            found = Teams(service.url, session, there, {})
            while (await found.ask("", "GET", "/readyz"))[0] != 200:
                pass
            for name in NAMES:
                connection = {"type": "files", "path": str(tmp_path)}
                assert (await found.ask("", "PUT", f"/v1/connections/{CONNECTIONS[name]}", connection))[0] == 200
            while len(json.loads((await found.ask("", "GET", "/v1/connections"))[1])["connections"]) < len(NAMES):
                pass
            for name in NAMES:
                made = {"name": name, "document": document(tmp_path, name), "start": True}
                assert (await found.ask("", "POST", "/v1/processors", made))[0] == 201
                await there.committed(1, ProcessorName(name))
                while (await found.ask("", "GET", f"/v1/processors/{name}"))[0] != 200:
                    pass
                found.jobs[name] = json.loads((await found.ask("", "GET", f"/v1/processors/{name}"))[1])["job"]
            while {name for each in await found.workers("") for name in each["processors"]} < set(NAMES):
                pass
            yield found
        service.stop()
        await running.join()


def body_of(method: str, path: str, name: str) -> Any:
    """Refused for what it says, if the guard lets it pass: nothing is changed by asking."""
    if (method, path) == ("POST", "/v1/processors"):
        return {"name": f"{name}-new", "document": {}}
    if path == "/v1/complete":
        return {"before": '{"pipeline": [{"$emit": {"connectionName": "', "after": '"}}]}'}
    if path in ("/v1/validate", "/v1/try"):
        return {"document": {}}
    return {"odd": 1}


def marks(teams: Teams, user: str) -> list[str]:
    """Texts that no answer to this user may hold: they are of processors that the user does not see."""
    hidden = [name for name in NAMES if role_in(user, namespace(name)) < 0]
    found = [
        mark
        for name in hidden
        for mark in (teams.jobs[name], f"mark_of_{CONNECTIONS[name]}", f"out-{name}", f"{name}:")
    ]
    return found + [CONNECTIONS[name] for name in hidden if namespace(name)]


async def test_each_route_holds_users_to_their_roles_and_namespaces(teams: Teams) -> None:
    """Of every route, by every kind of user, for each namespace: as the table says, and no answer speaks of what the user does not see."""
    assert {(route.method, route.path) for route in ROUTES} == set(TABLE), "a route needs a line in the table"
    wrong = []
    for method, path in TABLE:
        targets = NAMES if "{name}" in path or path == "/v1/processors" else NAMES[:1]
        for user in USERS:
            for processor in targets:
                name = CONNECTIONS[processor] if path.startswith("/v1/connections/") else processor
                asked = path.replace("{name}", name).replace("{checkpoint}", "noon")
                status, text = await teams.ask(user, method, asked, body_of(method, path, name))
                due = 0 if path == "/healthz" else expected(user, method, path, name)
                hidden = status == 404 and "there is no " in text
                found = 403 if status == 403 else 404 if hidden else 0
                told = [mark for mark in marks(teams, user) if mark in text.replace(f"named {name}", "")]
                if found != due or status >= 500 or told:
                    wrong.append((user, method, asked, f"expected {due}", status, told, text[:200]))
    assert wrong == []


async def test_lists_show_what_the_user_sees(teams: Teams) -> None:
    """Processors, connections, workers' tasks, live events: of the user's namespaces; to users bound to none, all."""
    for user in USERS:
        seen = {name for name in NAMES if role_in(user, namespace(name)) >= 0}
        _, text = await teams.ask(user, "GET", "/v1/processors")
        assert {each["name"] for each in json.loads(text)["processors"]} == seen, user
        _, text = await teams.ask(user, "GET", "/v1/live")
        assert {each["name"] for each in json.loads(text.removeprefix("data: "))["processors"]} == seen, user
        workers = await teams.workers(user)
        assert {name for each in workers for name in each["processors"]} == seen, user
        assert {task.split(":")[0] for each in workers for task in each["tasks"]} == seen, user
        _, text = await teams.ask(user, "GET", "/v1/connections")
        assert set(json.loads(text)["connections"]) == {CONNECTIONS[name] for name in seen} | {"shared"}, user


async def test_a_document_names_the_connections_that_its_writer_sees(teams: Teams, tmp_path: Path) -> None:
    """Another namespace's connection is as unknown as one that is not there: created, changed, judged, tried out, or proposed."""
    user, own, other = "operator@a", document(tmp_path, "a.one"), document(tmp_path, "b.two")
    for method, path, body in (
        ("POST", "/v1/processors", {"name": "a.three"}),
        ("PATCH", "/v1/processors/a.one", {}),
        ("POST", "/v1/validate", {}),
        ("POST", "/v1/try", {"rows": []}),
    ):
        status, text = await teams.ask(user, method, path, {**body, "document": other})
        assert (status, "b.store" in text) == (422, True), (path, text)
        absent = json.loads(json.dumps(other).replace("b.store", "c.store"))
        assert (await teams.ask(user, method, path, {**body, "document": absent}))[1] == text.replace(
            "b.store", "c.store"
        )
    assert (await teams.ask(user, "POST", "/v1/validate", {"document": own}))[0] == 200
    assert (await teams.ask(user, "POST", "/v1/validate", {"document": own, "against": "a.one"}))[0] == 200
    assert (await teams.ask(user, "POST", "/v1/validate", {"document": own, "against": "b.two"}))[0] == 404
    asked = body_of("POST", "/v1/complete", "")
    _, text = await teams.ask(user, "POST", "/v1/complete", asked)
    assert {each["label"] for each in json.loads(text)["proposals"]} == {"a.store", "shared"}


async def test_a_user_works_in_a_namespace_and_its_audit_stays_there(teams: Teams, tmp_path: Path) -> None:
    """Created, stopped, dropped with a connection of its own; the audit shows an admin the deeds of their namespaces alone."""
    made = {"name": "a.more", "document": document(tmp_path, "a.one")}
    assert (await teams.ask("operator@a", "POST", "/v1/processors", made))[0] == 201
    assert (await teams.ask("operator@a", "POST", "/v1/processors", {**made, "name": "b.more"}))[0] == 403
    assert (await teams.ask("operator@a", "POST", "/v1/processors", {**made, "name": "more"}))[0] == 403
    assert (await teams.ask("admin@b", "DELETE", "/v1/processors/a.more"))[0] == 404
    assert (await teams.ask("admin@a", "DELETE", "/v1/processors/a.more"))[0] == 200
    connection = {"type": "files", "path": str(tmp_path)}
    assert (await teams.ask("admin@a", "PUT", "/v1/connections/a.own", connection))[0] == 200
    assert (await teams.ask("admin@a", "PUT", "/v1/connections/b.own", connection))[0] == 404
    assert (await teams.ask("admin@a", "PUT", "/v1/connections/own", connection))[0] == 403
    deeds: list[dict[str, Any]] = []
    for user, seen in (("admin@a", {"a"}), ("admin@b", {"b"}), ("viewer@b+admin@a", {"a"}), ("admin", {"a", "b", ""})):
        _, text = await teams.ask(user, "GET", "/v1/audit")
        deeds = json.loads(text)["deeds"]
        assert {namespace(deed["processor"]) for deed in deeds} == seen, user
        _, page = await teams.ask(user, "GET", "/console/audit")
        assert ("b.more" in page or "/connections/b." in page) == ("b" in seen)
    (created,) = [deed for deed in deeds if deed["processor"] == "a.more" and deed["what"] == "POST /v1/processors"]
    assert (created["user"], created["role"], created["status"]) == ("operator@a", "operator@a", 201)


async def test_one_user_does_not_take_the_room_of_others(teams: Teams) -> None:
    """Who holds as many live streams as one may hears 429, and everybody else is answered; a stream that ends gives its room back."""
    headers = {"Authorization": f"Bearer {token_of('viewer@a')}"}
    most, held = ControlSettings().user_requests_max, []
    for _ in range(most):
        held.append(await teams.session.get(f"{teams.url}/v1/live", headers=headers))
        assert held[-1].status == 200
    assert (await teams.ask("viewer@a", "GET", "/v1/processors"))[0] == 429
    assert (await teams.ask("viewer@b", "GET", "/v1/processors"))[0] == 200
    held[0].close()
    while (await teams.ask("viewer@a", "GET", "/v1/processors"))[0] != 200:
        pass
    for answer in held:
        answer.close()


async def test_odd_names_lead_nowhere(teams: Teams) -> None:
    """Whatever stands for a name, in one encoding or another, reaches no processor of another namespace."""
    odd = (
        "b.two", "b%2Etwo", "a.one%2F..%2Fb.two", "..%2Fb.two", "%2e%2e/b.two", "a.one/../b.two", "./b.two", "b.two%00", "b.two%20",
        "b.two;a.one", "b\uff0etwo", "b%EF%BC%8Etwo", "%62.two", "B.two", "b.two%0a", "a.one%00b.two", "a,b.two", "@b.two", "*", "a.*",
    )  # fmt: skip
    for name in odd:
        for user in ("viewer@a", "admin@a"):
            for method, path in TABLE:
                if "{name}" not in path or method == "DELETE":
                    continue
                url = URL(teams.url + path.replace("{name}", name), encoded=True)
                headers = {"Authorization": f"Bearer {token_of(user)}"}
                given: dict[str, Any] = {"json": {"odd": 1}} if method != "GET" else {}
                async with teams.session.request(method, url, headers=headers, **given) as answer:
                    assert answer.status in (400, 403, 404, 405, 422), (user, method, url, answer.status)
                    text = await answer.text()
                    assert [mark for mark in marks(teams, user) if mark in text.replace("b.two: ", "")] == []
