# ruff: noqa: N802 -- a test carries its rule's name
"""Changes of PostgreSQL by real processes: each comes out once, in the order of commits, over kills of source and sink."""

import asyncio
import json
import random
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.faults import kill
from tests.harness.installation import released
from tests.harness.postgres import postgres
from tests.harness.share import CI
from tidemark.services.audit.check import audit_local
from tidemark.services.audit.history import NotAuditable
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.cli.installation import installation
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import KeepCheckpoint, StartProcessor, StopProcessor

pytestmark = [pytest.mark.e2e, pytest.mark.postgres]
NAME = ProcessorName("changes")
WORKERS = {"coordinator": 1, "source": 1, "operator": 0, "sink": 1, "spark": 0, "control": 0}
ROUNDS, TRANSACTIONS = (2, 30) if CI else (4, 60)


def document(url: str, folder: Path, **more: Any) -> str:
    """All changes as they are, into files."""
    return json.dumps({
        "connections": {"shop": {"type": "sql", "url": url}},
        "pipeline": [
            {"$source": {"connectionName": "shop", "publication": "p", "slot": "s", **more}},
            {"$emit": {"path": str(folder), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    })  # fmt: skip


def publish(url: str) -> None:
    """There is a table, and a publication of it."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
        connection.execute("CREATE PUBLICATION p FOR TABLE t")


def make_slot(url: str) -> None:
    """There is a slot."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")


def write(url: str, chooser: random.Random, begin: int) -> list[tuple[str, int]]:
    """Transactions of one to many statements; returns what they did, in order."""
    done: list[tuple[str, int]] = []
    with psycopg.connect(url, autocommit=True) as connection:
        for number in range(begin, begin + TRANSACTIONS):
            many = chooser.choice((1, 3, 400))
            with connection.transaction():
                connection.execute(
                    "INSERT INTO t SELECT g FROM generate_series(%s::int, %s::int) g",
                    (1000 * number, 1000 * number + many - 1),
                )
                connection.execute("UPDATE t SET n = 1 WHERE id = %s", (1000 * number,))
                connection.execute("DELETE FROM t WHERE id = %s", (1000 * number,))
            done += [("insert", 1000 * number + i) for i in range(many)]
            done += [("update", 1000 * number), ("delete", 1000 * number)]
    return done


def confirmed(url: str) -> int:
    """Where the slot stands."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots").fetchone()
        assert row is not None
        return int(row[0])


def until_behind(url: str, place: int) -> None:
    """Until the slot has followed a checkpoint."""
    with psycopg.connect(url, autocommit=True) as connection:
        while confirmed(url) <= place:
            connection.execute("SELECT pg_sleep(0.1)")


async def test_changes_come_out_once_over_kills(tmp_path: Path) -> None:
    """Source and sink are killed while transactions are written; the slot follows; an audit says that it cannot judge."""
    out, chooser = tmp_path / "out", random.Random(1)
    with postgres(logical=True) as url:
        publish(url)
        text = document(url, out)
        said = await refused_by_what_is_there(parse(text))
        assert "expected a replication slot s, found none" in said[0].message
        make_slot(url)
        assert await refused_by_what_is_there(parse(text)) == []
        begin, expected = confirmed(url), []
        async with installation(tmp_path / "data", {}, WORKERS) as installed:
            await installed.ensure_started(NAME, text, {})
            for part in range(ROUNDS):
                await installed.until_running(NAME)
                expected += await asyncio.to_thread(write, url, chooser, part * TRANSACTIONS)
                await kill(installed, "source-0" if part % 2 == 0 else "sink-0")
            await installed.until_running(NAME)
            await asyncio.to_thread(until_behind, url, begin)
            await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
            async for status in installed.client.watch(NAME):
                assert status.state != "FAILED", status.reason
                if status.state == "FINISHED":
                    break
        rows: list[dict[str, Any]] = released(out)
        assert [(row["operationType"], row["documentKey"]["id"]) for row in rows] == expected
        with pytest.raises(NotAuditable, match="only topics, files, tables and samples"):
            await audit_local(NAME, tmp_path / "data")


async def test_E2_a_slot_does_not_go_back_and_the_state_of_now_is_still_there(tmp_path: Path) -> None:
    """What a kept checkpoint needs is gone at the server: FAILED, in words; from the one of now each change comes once."""
    out, chooser = tmp_path / "out", random.Random(3)
    with postgres(logical=True) as url:
        publish(url)
        make_slot(url)
        async with installation(tmp_path / "data", {}, WORKERS) as installed:
            client = installed.client
            await installed.ensure_started(NAME, document(url, out), {})
            await installed.until_running(NAME)
            begin = confirmed(url)
            expected = await asyncio.to_thread(write, url, chooser, 0)
            await asyncio.to_thread(until_behind, url, begin)
            await client.request(KeepCheckpoint(client.unique(), NAME, "then"))
            then = confirmed(url)
            expected += await asyncio.to_thread(write, url, chooser, TRANSACTIONS)
            await asyncio.to_thread(until_behind, url, then)
            await client.request(StopProcessor(client.unique(), NAME))
            await client.request(KeepCheckpoint(client.unique(), NAME, "now"))
            await client.request(StartProcessor(client.unique(), NAME, checkpoint="then"))
            async for status in client.watch(NAME):
                if status.state == "FAILED":
                    assert "slot" in status.reason, status.reason
                    break
            await client.request(StartProcessor(client.unique(), NAME, checkpoint="now"))
            await installed.until_running(NAME)
            expected += await asyncio.to_thread(write, url, chooser, 2 * TRANSACTIONS)
            await client.request(StopProcessor(client.unique(), NAME, drain=True))
            async for status in client.watch(NAME):
                assert status.state != "FAILED", status.reason
                if status.state == "FINISHED":
                    break
        rows: list[dict[str, Any]] = released(out)
        assert [(row["operationType"], row["documentKey"]["id"]) for row in rows] == expected


ROWS, KILLS = (50_000, 2) if CI else (100_000, 3)


def churn(url: str, stop: threading.Event) -> None:
    """Changes, moves and removes rows, in transactions of one to many, until told to stop."""
    chooser = random.Random(2)
    with psycopg.connect(url, autocommit=True) as connection:
        while not stop.wait(0.002):
            begin, many = chooser.randrange(ROWS), chooser.choice((1, 5, 50))
            with connection.transaction():
                connection.execute("UPDATE t SET n = n + 1 WHERE id BETWEEN %s AND %s", (begin, begin + many))
                connection.execute("DELETE FROM t WHERE id = %s", (chooser.randrange(ROWS),))
                connection.execute(
                    "UPDATE t SET id = (SELECT max(id) + 1 FROM t) WHERE id = %s", (chooser.randrange(ROWS),)
                )
                connection.execute("INSERT INTO t SELECT min(id) - 1, 0 FROM t")


def applied(events: list[dict[str, Any]]) -> dict[int, int]:
    """The table that events make, each of which fits what is there."""
    rows: dict[int, int] = {}
    for event in events:
        key, kind = event["documentKey"]["id"], event["operationType"]
        if kind == "insert":
            assert key not in rows, event
        else:
            del rows[event.get("documentKeyBeforeChange", event["documentKey"])["id"]]
        if kind != "delete":
            rows[key] = event["fullDocument"]["n"]
    return rows


async def test_rows_then_changes_come_out_once_over_kills_in_the_middle(tmp_path: Path) -> None:
    """The source is killed while it reads rows and the table changes; a drain takes the rest, and the events make the table."""
    out = tmp_path / "out"
    with postgres(logical=True) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
            connection.execute("INSERT INTO t SELECT g, 0 FROM generate_series(1, %s) g", (ROWS,))
            connection.execute("CREATE PUBLICATION p FOR TABLE t")
            connection.execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        stop = threading.Event()
        writing = asyncio.create_task(asyncio.to_thread(churn, url, stop))
        counts: list[int] = []
        async with installation(tmp_path / "data", {}, WORKERS) as installed:
            await installed.ensure_started(NAME, document(url, out, initialSync={"enable": True}), {})
            for _ in range(KILLS):
                await installed.until_running(NAME)
                async for status in installed.client.watch(NAME):
                    assert status.state != "FAILED", status.reason
                    rows = released(out) if out.exists() else []
                    if len(rows) > sum(counts[-1:]) and "source-0" in installed.cluster.pids():
                        counts.append(len(rows))
                        installed.cluster.kill("source-0", signal.SIGKILL)
                        break
            await installed.until_running(NAME)
            stop.set()
            await writing
            await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
            async for status in installed.client.watch(NAME):
                assert status.state != "FAILED", status.reason
                if status.state == "FINISHED":
                    break
        assert 0 < counts[0] < ROWS, "the first kill lay among the rows"
        with psycopg.connect(url) as connection:
            there: dict[int, int] = dict(connection.execute("SELECT id, n FROM t").fetchall())
        assert applied(released(out)) == there
