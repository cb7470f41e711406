"""The console's pages, and the routes that they show, of a real control service in front of a processor that runs."""

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession

from tests.harness.console import DOCUMENT, NAME, Shown, console, token_of
from tidemark.services.cli.process import quiet
from tidemark.services.control import api, drawing, html
from tidemark.services.control.routes import ROUTES
from tidemark.shared.process.users import ROLES

P = f"/v1/processors/{NAME}"
PAGES = [route.path.replace("{name}", NAME) for route in ROUTES if route.content == "text/html"]
VOID = {"meta", "link", "input"}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with console(tmp_path) as shown:
        yield shown


class Read(HTMLParser):
    """The elements of a page, in order, each with its attributes; `wrong` has what is not well formed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def of(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.found if tag in tags]


def faults(text: str, role: str) -> list[str]:
    """What keeps a page from keyboards, readers of screens and a strict policy."""
    page = Read(text)
    found = [*page.wrong, *page.open]
    ids = [a["id"] for _, a in page.found if a.get("id")]
    labels = {a.get("for") for a in page.of("label")}
    found += [f"{tag} {name}" for tag, a in page.found for name in a if name == "style" or name.startswith("on")]
    found += [f"id {each} twice" for each in set(ids) if ids.count(each) > 1]
    found += [f"{len(page.of(tag))} {tag}" for tag in ("h1", "main") if len(page.of(tag)) != 1]
    found += ["th without scope" for a in page.of("th") if a.get("scope") not in ("row", "col")]
    found += [f"{tag} without a name" for tag in ("nav", "svg") for a in page.of(tag) if not a.get("aria-label")]
    found += ["field without a label" for a in page.of("textarea") if a.get("id") not in labels]
    found += [f"{len(page.of('table'))} tables, captions {len(page.of('caption'))}"] * (
        len(page.of("table")) != len(page.of("caption"))
    )
    found += [f"{a} leads elsewhere" for a in page.of("a", "link", "script") for v in a.values() if v and "//" in v]
    found += ["a viewer's button" for a in page.of("button") if role == "viewer" and "data-path" in a]
    return found


async def test_each_page_is_whole_for_each_role(shown: Shown) -> None:
    """Landmarks, names, scopes, labels; no inline style or script, nothing from elsewhere; viewers see no button, operators no audit."""
    for role in ROLES:
        for path in PAGES:
            headers = {"Authorization": f"Bearer {token_of(role)}"}
            async with shown.session.get(shown.url + path, headers=headers) as answer:
                refused = path == "/console/audit" and role != "admin"
                assert answer.status == (403 if refused else 200), path
                if refused:
                    continue
                text, policy = await answer.text(), answer.headers["Content-Security-Policy"]
            assert faults(text, role) == [], (path, role)
            assert "unsafe" not in policy
            assert "default-src 'none'" in policy


async def test_pages_show_what_runs(shown: Shown) -> None:
    """Each view of a processor has its facts, from the answers of REST."""
    told = {path: (await shown.ask("GET", path))[1] for path in PAGES}
    own = f"/console/processors/{NAME}"
    for path, facts in {
        "/": [f'href="{own}"', "RUNNING"],
        own: [
            "source-1 × 1",
            "window-1",
            "emit-1",
            "µs a row",
            "pipeline[1].$redact: expression",
            "Start without state",
        ],
        f"{own}/checkpoints": ["aligned", "source-1/0", "How long the last"],
        f"{own}/time": ["watermark at the sinks", "What holds the watermark", "the clock"],
        f"{own}/dead-letters": ["DocumentLate", "DecodeFailure", "Redrive"],
        f"{own}/verdict": ["None has ended yet", "computes the outputs again"],
        f"{own}/logs": ["sink.slow", "took_ms=812"],
        f"{own}/sample": ["window-1 to emit-1", "source-1 to dlq", "does not disturb"],
        f"{own}/document": ["$tumblingWindow", "Validate and compare"],
        "/console/connections": ["sasl_password", "Test broker"],
        "/console/workers": ["source-0", "clicks: source-1/0"],
        "/console/audit": ["PUT /v1/connections/broker"],
    }.items():
        assert [fact for fact in facts if fact not in told[path]] == [], path
    assert told["/console/connections"].count("***") == 0
    status, text = await shown.ask("GET", "/console/processors/none")
    assert (status, faults(text, "admin")) == (404, [])


async def test_rest_has_what_the_console_has(shown: Shown) -> None:
    """Plan with figures, checkpoints by task, history, dead letters by code, a comparison, a test of a connection; and live."""
    plan = json.loads((await shown.ask("GET", f"{P}/plan"))[1])
    names = [vertex["name"] for vertex in plan["vertices"]]
    assert names == ["source-1", "window-1", "emit-1", "dlq"]
    assert {(e["from"], e["to"]) for e in plan["edges"]} >= {("source-1", "window-1"), ("window-1", "emit-1")}
    assert plan["vertices"][0]["inputPerSecond"] > 0
    assert sum(vertex["lateMessageCount"] for vertex in plan["vertices"]) > 0
    found = json.loads((await shown.ask("GET", f"{P}/checkpoints?limit=3"))[1])["checkpoints"]
    assert len(found) == 3
    done = [
        each
        for each in json.loads((await shown.ask("GET", f"{P}/checkpoints"))[1])["checkpoints"]
        if each["state"] == "released"
    ]
    assert {task["task"] for task in done[-1]["tasks"]} == {f"{name}/0" for name in names}
    assert done[-1]["aligned"]
    assert done[-1]["stateBytes"] > 0
    assert done[-1]["durationMillis"] >= max(task["durationMillis"] for task in done[-1]["tasks"])
    points = json.loads((await shown.ask("GET", f"{P}/history"))[1])["points"]
    known = [point for point in points if point["watermark"]]
    assert known == sorted(known, key=lambda point: str(point["watermark"]))
    assert all(point["watermark"] <= point["time"] for point in known)
    letters = json.loads((await shown.ask("GET", f"{P}/dead-letters?code=DocumentLate&limit=2"))[1])
    assert [letter["errInfo"]["code"] for letter in letters["letters"]] == ["DocumentLate"] * 2
    assert set(letters["codes"]) == {"DocumentLate", "DecodeFailure"}
    async with shown.session.get(
        f"{shown.url}{P}/live", headers={"Authorization": f"Bearer {token_of('viewer')}"}
    ) as live:
        events = [json.loads((await live.content.readuntil(b"\n\n")).removeprefix(b"data: ")) for _ in range(2)]
    assert [vertex["name"] for vertex in events[1]["vertices"]] == names


async def test_any_edge_of_the_plan_is_sampled(shown: Shown) -> None:
    """By its id in the plan, by any user; rows of partial aggregates, of windows and of dead letters, with what their frames say."""
    plan = json.loads((await shown.ask("GET", f"{P}/plan"))[1])
    found = {}
    for edge in plan["edges"]:
        status, text = await shown.ask(
            "GET", f"{P}/sample?{urlencode({'edge': edge['id'], 'limit': 2})}", user="viewer"
        )
        assert (status, json.loads(text)["edge"]) == (200, edge["id"])
        found[edge["id"]] = json.loads(text)
    assert set(found) >= {"source-1>window-1", "window-1>emit-1", "source-1:dlq>dlq"}
    for edge, sample in found.items():
        assert 0 < len(sample["rows"]) <= 2 or sample["troubles"], (edge, sample)
        for row in sample["rows"]:
            assert row["sender"] == f"{re.split('[:>]', edge)[0]}/0"
            assert row["partial"] == (edge == "source-1>window-1")
    (row, *_) = found["window-1>emit-1"]["rows"]
    assert row["document"]["_id"].startswith("user-")
    assert row["eventTime"].endswith("Z")
    assert all("errInfo" in row["document"] for row in found["source-1:dlq>dlq"]["rows"])
    status, text = await shown.ask("GET", f"{P}/sample?edge=a")
    assert (status, "it has source-1>window-1" in text) == (409, True)
    for query, fact in (("edge=window-1%3Eemit-1", "user-"), ("edge=", "user-"), ("edge=a", "no edge a")):
        status, page = await shown.ask("GET", f"/console/processors/{NAME}/sample?{query}")
        assert (status, fact in page) == (409 if query == "edge=a" else 200, True), query
        assert faults(page, "admin") == [], query


async def test_a_document_is_completed_for_who_may_read(shown: Shown) -> None:
    """With the connections of the registry; a text beyond the bound is refused; the audit log is not filled with letters."""
    asked = {"before": '{"pipeline": [{"$source": {"connectionName": "', "after": '"}}]}'}
    status, text = await shown.ask("POST", "/v1/complete", asked, "viewer")
    found = json.loads(text)
    assert (status, found["before"], found["after"]) == (200, "", "")
    assert [(each["label"], each["detail"]) for each in found["proposals"]] == [("broker", "connection, kafka")]
    status, text = await shown.ask("POST", "/v1/complete", {"before": "x" * 200_001})
    assert (status, "at most 200000 characters" in text) == (400, True)
    deeds = json.loads((await shown.ask("GET", "/v1/audit"))[1])["deeds"]
    assert [deed["status"] for deed in deeds if deed["what"] == "POST /v1/complete"] == [400]


async def test_a_document_is_compared_with_the_running_one(shown: Shown) -> None:
    """Validation with `against` gives the lines that differ; the same document differs in none."""
    document = json.loads((await shown.ask("GET", P))[1])["document"]
    for change, expected in ((None, []), ("counted", ['-"topic":"counts"', '+"topic":"counted"'])):
        if change:
            document["pipeline"][-1]["$emit"]["topic"] = change
        status, text = await shown.ask("POST", "/v1/validate", {"document": document, "against": NAME})
        assert status == 200
        changes: list[str] = json.loads(text)["changes"]
        assert [line.replace(" ", "") for line in changes[2:] if line[0] in "+-"] == expected
    assert (await shown.ask("POST", "/v1/validate", {"document": document, "against": "none"}))[0] == 404


async def test_a_checkpoint_is_kept_and_shown_to_who_may_begin_from_it(shown: Shown) -> None:
    """Its row has buttons for operators, and none for viewers."""
    path = f"/console/processors/{NAME}/checkpoints"
    assert "None is kept under a name." in (await shown.ask("GET", path))[1]
    assert (await shown.ask("POST", f"{P}/checkpoints", {"name": "noon"}))[0] == 200
    for role in ROLES:
        async with shown.session.get(shown.url + path, headers={"Authorization": f"Bearer {token_of(role)}"}) as answer:
            text = await answer.text()
        assert faults(text, role) == []
        asked = {button.get("data-path") for button in Read(text).of("button")} - {None}
        begins = {f"{P}/start", f"{P}/checkpoints/noon", f"{P}/checkpoints"}
        assert ("noon" in text, asked) == (True, set() if role == "viewer" else begins)


async def test_a_connection_is_tested(shown: Shown, tmp_path: Path) -> None:
    """The other side answers, or the answer says which connection failed and how; secrets that the registry hides cannot be tried."""
    there = {
        "files": {"type": "files", "path": str(tmp_path)},
        "base": {"type": "sql", "url": f"sqlite:///{tmp_path}/base.db"},
        "away": {"type": "sql", "url": "postgresql://127.0.0.1:1/d"},
        "hidden": {"type": "kafka", "bootstrapServers": "b:1", "config": {"sasl_password": "s3cr3t"}},
        "plain": {"type": "kafka", "bootstrapServers": "memory"},
    }
    for name, value in there.items():
        assert (await shown.ask("PUT", f"/v1/connections/{name}", value))[0] == 200
    while set(json.loads((await shown.ask("GET", "/v1/connections"))[1])["connections"]) < there.keys():
        pass

    async def asked(name: str) -> tuple[int, str]:
        return await shown.ask("POST", f"/v1/connections/{name}/test", {})

    for name, expected in {
        "files": (200, "the folder is there"),
        "base": (200, "the database answers"),
        "plain": (200, "the brokers answer"),
        "away": (409, "connections.away"),
        "hidden": (409, "connections.hidden"),
        "broker": (409, "KAFKA_PASSWORD"),
        "none": (404, "there is no connection"),
    }.items():
        status, text = await asked(name)
        assert status == expected[0], (name, text)
        assert expected[1] in text, name


async def test_a_page_changes_things_by_its_own_header_alone(shown: Shown) -> None:
    """A password as browsers send it for any site's form changes nothing; with the header, which no other site can send, it does."""
    secret = base64.b64encode(f"me:{token_of('operator')}".encode()).decode()
    given = {"Authorization": f"Basic {secret}"}
    for headers, status in ((given, 403), ({**given, "Tidemark-Console": "1"}, 200)):
        async with shown.session.post(f"{shown.url}{P}/stop", json={}, headers=headers) as answer:
            assert answer.status == status
            assert "Access-Control-Allow-Headers" not in answer.headers
    preflight = {
        "Origin": "null",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "tidemark-console",
    }
    async with shown.session.options(f"{shown.url}{P}/stop", headers=preflight) as answer:
        assert answer.status == 401
        assert not any(name.startswith("Access-Control") for name in answer.headers)


def test_whatever_is_no_markup_is_escaped() -> None:
    """Texts and attributes of records, logs and names stay texts."""
    bad = '<script x="1">&'
    shown = html.tag("a", bad, [bad, html.tag("b", bad)], None, 3, title=bad, hidden=True, id=None)
    page = Read(shown)
    assert [tag for tag, _ in page.found] == ["a", "b"]
    assert page.found[0][1] == {"title": bad, "hidden": None}
    assert "<script" not in html.table(bad, [bad], [[bad, bad]])


def test_a_graph_keeps_its_vertices_apart() -> None:
    """Of chains, joins and unions no two boxes lie over each other, and each edge goes down or to dead letters."""
    for edges in ([(0, 1), (1, 2), (2, 3)], [(0, 2), (1, 2), (2, 3), (0, 4), (3, 4)], [(0, 3), (1, 3), (2, 3), (3, 4)]):
        vertices: list[dict[str, Any]] = [_vertex(f"v{n}", queue=n == 4) for n in range(5)]
        drawn = drawing.graph(vertices, [{"from": f"v{a}", "to": f"v{b}"} for a, b in edges])
        boxes = [(float(str(a["x"])), float(str(a["y"]))) for a in Read(drawn).of("rect")]
        assert len(boxes) == 5
        for i, (x, y) in enumerate(boxes):
            assert all(abs(x - u) >= drawing.WIDTH or abs(y - v) >= drawing.HEIGHT for u, v in boxes[i + 1 :])
        assert all(boxes[a][1] < boxes[b][1] or b == 4 for a, b in edges)


def _vertex(name: str, *, queue: bool) -> dict[str, Any]:
    figures = dict.fromkeys(
        ("inputPerSecond", "outputPerSecond", "busyFraction", "heldBackFraction", "heldByQuotaFraction")
    )
    assert drawing.held_of({"heldBackFraction": 0.9, "heldByQuotaFraction": 0.85}) == "90 % (quota)"
    facts = {"waits": [], "lagMillis": 0, "label": "", "tasks": 1, "lateMessageCount": 0}
    return {"name": name, "isDeadLetterQueue": queue, **figures, **facts}


def test_figures_read_well() -> None:
    """Units fit the size, and what is not known is a dash."""
    assert [html.span(ms) for ms in (None, 0, 999, 1_500, 90_000, 7_200_000, 172_800_000)] == [
        "–", "0 ms", "999 ms", "1.5 s", "1.5 min", "2.0 h", "2.0 d",
    ]  # fmt: skip
    assert [html.size(b) for b in (None, 10, 2_048, 3 << 20, 5 << 40)] == [
        "–",
        "10 B",
        "2.0 KiB",
        "3.0 MiB",
        "5,120.0 GiB",
    ]
    assert [html.number(v) for v in (None, 0, 2.25, 12_345.6)] == ["–", "0", "2.2", "12,346"]


async def test_a_document_is_tried_out_in_a_process_of_its_own(shown: Shown) -> None:
    """On rows, or on the newest of its topic; nothing is written; what reaches outside, breaks a bound or is no document is said."""
    source = DOCUMENT["pipeline"][0]
    stages = [{"$match": {"user": "a"}}, DOCUMENT["pipeline"][-1]]
    rows = [{"user": user, "at": 1_700_000_000_000} for user in "aba"]

    async def asked(pipeline: list[Any], *, rows: Any = rows, user: str = "operator") -> tuple[int, Any]:
        document = {"connections": DOCUMENT["connections"], "pipeline": pipeline}
        status, text = await shown.ask("POST", "/v1/try", {"document": document, "rows": rows}, user)
        return status, json.loads(text)

    status, found = await asked([source, *stages])
    assert (status, found["answers"]) == (200, "3 records; 2 out, 0 dead letters")
    assert [document["user"] for document in found["documents"]] == ["a", "a"]
    status, found = await asked([source, *stages[1:]], rows=None)
    assert status == 200, found
    taken = re.fullmatch(r"(\d+) records(?:, (\d+) more were no documents)?; \1 out, 0 dead letters", found["answers"])
    assert taken is not None, found["answers"]
    assert 0 < int(taken[1]) <= 100 - int(taken[2] or 0)
    elsewhere = {"$source": {**source["$source"], "topic": "nowhere"}}
    status, found = await asked([elsewhere, stages[-1]], rows=None)
    assert (status, found["error"]["place"]) == (409, "pipeline[0].$source.topic"), found
    assert found["error"]["finding"] == "no topic nowhere"
    table = {
        "$lookup": {
            "from": {"connectionName": "base", "table": "t"},
            "localField": "user",
            "foreignField": "u",
            "as": "x",
        }
    }
    base = {"base": {"type": "sql", "url": "sqlite:///nowhere.db"}}
    document = {"connections": {**DOCUMENT["connections"], **base}, "pipeline": [source, table, stages[-1]]}
    status, text = await shown.ask("POST", "/v1/try", {"document": document, "rows": rows}, "operator")
    assert (status, "pipeline[1].$lookup: reaches outside" in text) == (409, True), text
    code = {"$compute": {"class": "os:system"}}
    assert (await asked([source, code, stages[-1]]))[0] in (409, 422)
    assert (await asked([{"$sauce": {}}]))[0] == 422
    assert (await asked([source, *stages], user="viewer"))[0] == 403


async def test_a_try_out_ends_with_its_client(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two run at a time, and one more is told when to come back; those that nobody waits for make room."""
    document = {"connections": DOCUMENT["connections"], "pipeline": [DOCUMENT["pipeline"][0], DOCUMENT["pipeline"][-1]]}
    body = {"document": document, "rows": [{"user": "a", "at": 1_700_000_000_000}]}
    headers, url = {"Authorization": f"Bearer {token_of('operator')}"}, shown.url + "/v1/try"

    async def asked(session: ClientSession) -> tuple[int, str, str]:
        async with session.post(url, json=body, headers=headers) as answer:
            return answer.status, answer.headers.get("Retry-After", ""), await answer.text()

    with monkeypatch.context() as endless:
        endless.setattr(api, "TRY", ("http.server", "0"))
        endless.setattr(api, "TRY_S", 3_600)
        async with ClientSession() as session:
            waiting = {asyncio.ensure_future(asked(session)) for _ in range(3)}
            ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            ((status, wait_s, text),) = (each.result() for each in ended)
            assert (status, wait_s) == (429, "5")
            assert "at most 2 programs" in text
            for each in waiting:
                each.cancel()
    found: tuple[int, str, str] = (429, "", "")
    while found[0] == 429:
        found = await asked(shown.session)
    assert (found[0], json.loads(found[2])["answers"]) == (200, "1 records; 1 out, 0 dead letters")


@pytest.mark.parametrize("work", ["redrive", "audit"])
async def test_audits_and_redrives_need_the_store(work: str, shown: Shown) -> None:
    """Where the service has no settings of it the answer says which; a viewer is refused, and sees that there was none."""
    status, text = await shown.ask("POST", f"{P}/{work}", {}, "operator")
    assert (status, "TIDEMARK_STORE and TIDEMARK_BLOBS not set" in text) == (404, True)
    assert (await shown.ask("POST", f"{P}/{work}", {}, "viewer"))[0] == 403
    assert (await shown.ask("POST", f"/v1/processors/none/{work}", {}, "operator"))[0] == 404
    status, text = await shown.ask("GET", f"{P}/{work}", user="viewer")
    assert (status, json.loads(text)) == (200, {"running": False, "verdict": None})
