# ruff: noqa: N802 -- a test carries its rule's name
"""Commands and events on topics of a real broker: what comes by topic is what comes by REST, and nothing that fails is lost."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.topical import DOCUMENT, TOKEN, Topical, soon, topical
from tidemark.services.control.agents import signature
from tidemark.shared.adapters.kafka_settings import KafkaSettings

FULL = "namespace small has 1 of at most 1 processors: drop one first, or raise its quota"
pytestmark = pytest.mark.kafka


@pytest.fixture
def bootstrap(kafka_broker: str) -> str:
    """Not async: the session's broker starts in a loop of its own."""
    return kafka_broker


@pytest.fixture
async def there(bootstrap: str, tmp_path: Path) -> AsyncIterator[Topical]:
    async with topical(KafkaSettings(bootstrap=bootstrap), tmp_path) as found:
        yield found


async def test_commands_by_topic_are_carried_out_once_and_answered(there: Topical) -> None:
    """A command is answered on the events topic, beside the state that it led to; a repeat is answered and not carried out again.

    What does not decode, is refused or is wrong goes to the dead letters with its reason, and the next command is taken.
    """
    create = {"command": "create", "name": "p", "request": "r1", "document": DOCUMENT, "expires": soon()}
    bad = json.dumps(
        {
            "command": "create",
            "name": "q",
            "request": "r2",
            "document": {"pipeline": [{"$sauce": {}}]},
            "expires": soon(),
        }
    ).encode()
    for value in (json.dumps(create).encode(), b"\xffno json", bad, json.dumps(create).encode()):
        await there.command(value)
    await there.command(json.dumps({"command": "start", "name": "nobody", "request": "r3", "expires": soon()}).encode())
    await there.command(json.dumps({"command": "drop", "name": "p", "request": "r4", "expires": soon()}).encode())
    answers = await there.events("answer", 6)
    place = f"{there.topics.control_commands}-0-1"
    assert [(a["id"], a["done"]) for a in answers] == [
        ("r1", True),
        (place, False),
        ("r2", False),
        ("r1", True),
        ("r3", False),
        ("r4", True),
    ]
    dead = await there.until(there.topics.control_dead_letters, 3)
    reasons = [dict(record.headers)["reason"].decode() for record in dead]
    assert [record.value for record in dead][:2] == [b"***", bad]
    assert [
        "malformed" in reasons[0].lower() or "utf-8" in reasons[0].lower(),
        "$sauce" in reasons[1],
        "no processor" in reasons[2],
    ] == [True] * 3
    states = await there.events("state", 1)
    assert (states[0]["processor"], states[0]["state"]) == ("p", "CREATED")
    assert there.store.rows == {}


async def test_E4_a_quota_binds_rest_and_topic_alike(there: Topical) -> None:
    """One coordinator counts what came by either way; each is told the figures."""
    create = {"name": "small.a", "document": DOCUMENT}
    async with there.session.post(f"{there.url}/v1/processors", json=create) as answer:
        assert answer.status == 201
    await there.create("small.b", "r1")
    async with there.session.post(f"{there.url}/v1/processors", json={**create, "name": "small.c"}) as answer:
        assert (answer.status, (await answer.json())["error"]["finding"]) == (409, FULL)
    async with there.session.post(f"{there.url}/v1/processors/small.a/start", json={}) as answer:
        counted = "small.a would run with 2 tasks, others of namespace small run with 0, and at most 0 may"
        assert (answer.status, counted in (await answer.json())["error"]["finding"]) == (409, True)
    [dead] = await there.until(there.topics.control_dead_letters, 1)
    assert FULL in dict(dead.headers)["reason"].decode()
    await there.create("large.b", "r2")
    assert [(a["id"], a["done"]) for a in await there.events("answer", 2)] == [("r1", False), ("r2", True)]


async def test_rest_goes_on_when_the_agents_crash(there: Topical) -> None:
    """Meanwhile /readyz says what they died of, and every other route answers; the app is started anew and takes what came meanwhile."""
    there.crash_agents()
    assert "made by the test" in await there.until_agents(lambda state: state != "running")
    await there.create("p", "r1")
    async with there.session.get(f"{there.url}/v1/processors") as answer:
        assert answer.status == 200
    assert [(a["id"], a["done"]) for a in await there.events("answer", 1)] == [("r1", True)]
    assert await there.until_agents(lambda state: state == "running")


async def test_a_command_counts_by_signature_id_and_time(there: Topical) -> None:
    """Without the right signature, id or end it is a dead letter that says so.

    A copy of a command that was undone is answered, and not carried out.
    """
    topic = there.topics.control_commands
    whole = {"command": "create", "name": "p", "request": "r1", "document": DOCUMENT, "expires": soon()}
    value = json.dumps(whole).encode()
    right = signature(TOKEN, topic, value)
    for signed in (
        None,
        "",
        right[:-1],
        signature("another", topic, value),
        signature(TOKEN, "x", value),
        signature(TOKEN, topic, b"{}"),
    ):
        await there.put(value, signed)
    for changed in (
        {"request": ""}, {"expires": ""}, {"expires": "2020-01-01T00:00:00Z"}, {"expires": "2100-01-01T00:00:00Z"},
        {"expires": soon()[:19]}, {"expires": "soon"},
    ):  # fmt: skip
        await there.command(json.dumps({**whole, **changed}).encode())
    dead = await there.until(there.topics.control_dead_letters, 12)
    reasons = [dict(record.headers)["reason"].decode() for record in dead]
    assert [reason.partition(":")[0] for reason in reasons] == ["header tidemark-signature"] * 6 + ["request"] + [
        "expires"
    ] * 5
    assert there.store.rows == {}
    await there.command(value)
    await there.command(json.dumps({"command": "drop", "name": "p", "request": "r2", "expires": soon()}).encode())
    await there.command(value)
    await there.command(json.dumps({"command": "drop", "name": "nobody", "request": "r3", "expires": soon()}).encode())
    answers = [a for a in await there.events("answer", 16) if a["id"] in ("r1", "r2", "r3")][-4:]
    assert [(a["id"], a["done"]) for a in answers] == [("r1", True), ("r2", True), ("r1", True), ("r3", False)]
    assert there.store.rows == {}


async def test_no_command_holds_up_those_behind_it(there: Topical) -> None:
    """Brackets without end, a name or an id of half a megabyte, a value that fits no other record: dead letters, and on it goes."""
    long, quoted = "n" * 500_000, "\u0001" * 160_000
    await there.put(b"[" * 25_000, None)
    await there.put(b'{"connection":' * 900 + b"1" + b"}" * 900, None)
    for fields in (
        {"name": long},
        {"name": "p", "request": long},
        {"name": "p", "request": "r", "token": "t", "x": quoted},
    ):
        await there.command(json.dumps({"command": "drop", "expires": soon(), **fields}).encode())
    await there.create("p", "last")
    answers = await there.events("answer", 6)
    assert [a["done"] for a in answers] == [False] * 5 + [True]
    assert len(await there.until(there.topics.control_dead_letters, 5)) == 5
    assert await there.agents() == "running"
