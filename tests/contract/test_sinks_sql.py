# ruff: noqa: N802 -- a test carries its rule's name
"""The SQL sink's own promises, on SQLite and PostgreSQL: `$merge`, one transaction with its marker, refusals (protocol, S5, S6)."""

import asyncio
import contextlib
import itertools
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from tests.contract.sinks_targets import SqlWorld
from tidemark.services.library.release_world import IDENTITY, InlineSpawner, Task, World, crash_after, haunt, row_of
from tidemark.services.sink.connectors.sql import MARKERS_TABLE, SqlSink, engine_of
from tidemark.services.sink.connectors.staging import Part, PartStore
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.model.values import Binary, Date, Document, ObjectId
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.ports.sink import Identity, TargetRefused, TargetUnavailable


@contextlib.contextmanager
def sql_world(url: str, **options: Any) -> Iterator[SqlWorld]:
    world = SqlWorld(url, **options)
    try:
        yield world
    finally:
        world.engine.dispose()


async def merged(target: SqlWorld, *documents: Document, epoch: int = 1) -> None:
    """Release these documents as one epoch."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(epoch - 1))
    assert not await sink.accept(documents_batch(list(documents)))
    staged = await sink.stage(Epoch(epoch), Epoch(epoch - 1))
    await sink.release(row_of(epoch, epoch - 1, staged), staged)


OLD: Document = {"id": 1, "name": "old", "even": True, "note": "kept"}
NEW: Document = {"id": 1, "name": "new"}
OTHER: Document = {"id": 2, "name": "other"}
KEPT = (1, "old", True, "kept")


@pytest.mark.parametrize(
    ("when_matched", "when_not_matched", "expected"),
    [
        ("replace", "insert", [(1, "new", None, "none"), (2, "other", None, "none")]),
        ("merge", "insert", [(1, "new", True, "kept"), (2, "other", None, "none")]),
        ("keepExisting", "insert", [KEPT, (2, "other", None, "none")]),
        ("delete", "insert", [(2, "other", None, "none")]),
        ("replace", "discard", [(1, "new", None, None)]),
        ("merge", "discard", [(1, "new", True, "kept")]),
        ("keepExisting", "discard", [KEPT]),
        ("delete", "discard", []),
    ],
)
async def test_merge_does_what_its_options_say(
    url: str, when_matched: str, when_not_matched: str, expected: list[Any]
) -> None:
    """Each pair of whenMatched and whenNotMatched gives the rows that MongoDB's `$merge` would."""
    with sql_world(url, when_matched=when_matched, when_not_matched=when_not_matched) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO rows VALUES (1, 'old', TRUE, 'kept')")
        await merged(target, NEW, OTHER)
        assert [(i, n, None if e is None else bool(e), t) for i, n, e, t in target.table()] == expected


@pytest.mark.parametrize(
    ("when_matched", "when_not_matched", "finding"),
    [
        ("fail", "insert", "record 1: the row is there, and whenMatched is fail"),
        ("fail", "discard", "record 1: the row is there"),
        ("merge", "fail", "record 0: the row is not there, and whenNotMatched is fail"),
        ("replace", "fail", "record 0: the row is not there"),
        ("delete", "fail", "record 0: the row is not there"),
        ("keepExisting", "fail", "record 0: the row is not there"),
    ],
)
async def test_S6_fail_refuses_for_good_and_writes_nothing(
    url: str, when_matched: str, when_not_matched: str, finding: str
) -> None:
    """`fail` is a permanent refusal that names commit and record; the epoch's other rows are not written either."""
    with sql_world(url, when_matched=when_matched, when_not_matched=when_not_matched) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO rows VALUES (1, 'old', TRUE, 'kept')")
        with pytest.raises(TargetRefused, match=f"commit 1, {finding}"):
            await merged(target, OTHER, NEW)
        assert await target.visible() == [1]


async def test_rows_of_one_key_in_one_epoch_apply_in_order(url: str) -> None:
    """The last document of a key wins; fields that it does not name stay from the earlier one under `merge`."""
    with sql_world(url, part_bytes=1 << 20) as target:
        await merged(
            target, {"id": 1, "name": "a", "note": "x"}, {"id": 1, "name": "b", "note": "y"}, {"id": 1, "name": "c"}
        )
        assert target.table() == [(1, "c", None, "y")]


@pytest.mark.parametrize(
    ("first", "second"), list(itertools.product(("stage", "commit"), ("accept", "commit", "release")))
)
async def test_exactly_once_with_zombies(url: str, first: str, second: str) -> None:
    """Crashes between the phases, with zombies going on: a row written twice would fail here, as whenMatched is fail."""
    with sql_world(url, when_matched="fail") as target:
        identity = Identity(JobId(uuid.uuid4().hex), VertexId("merge"), 0)
        world = World(target, identity=identity)
        old = Task(world)
        await old.start()
        await old.epoch()
        await crash_after(old, first)
        middle = Task(world)
        await middle.start()
        await haunt(old)
        await crash_after(middle, second)
        new = Task(world)
        await new.start()
        await haunt(middle)
        await new.epoch()
        await world.complete()


async def test_S5_a_lost_answer_to_the_commit_is_not_repeated(url: str) -> None:
    """When the commit happened, but its answer was lost, the next release finds the marker moved and writes nothing."""
    with sql_world(url, when_matched="fail") as target:
        world = World(target)
        task = Task(world)
        await task.start()
        await task.accept()
        await task.stage()
        await task.commit()
        sink = task.sink
        assert isinstance(sink, SqlSink)
        original = sink._commit

        def lost(connection: sa.Connection) -> None:
            original(connection)
            raise TargetUnavailable("the connection broke")

        sink._commit = lost  # type: ignore[method-assign]
        with pytest.raises(TargetUnavailable):
            await task.release()
        await task.release()
        await world.complete()


async def test_S5_a_cancelled_release_ends_before_its_connection_is_another_ones(url: str) -> None:
    """What has begun goes on upon its thread; the next holder of the connection finds neither its rows nor its transaction."""
    executor = AsyncExecutor()
    with sql_world(url) as target:
        target.executor = executor
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        await sink.accept(documents_batch([NEW, OTHER]))
        staged = await sink.stage(Epoch(1), Epoch(0))
        writing, go_on = threading.Event(), threading.Event()

        def wait(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("INSERT INTO rows"):
                writing.set()
                go_on.wait()

        sa.event.listen(target.engine, "before_cursor_execute", wait)
        release = asyncio.create_task(sink.release(row_of(1, 0, staged), staged))
        await executor.blocking(writing.wait)
        release.cancel()
        await asyncio.wait({release}, timeout=0.3)
        go_on.set()
        await asyncio.wait({release})
        await executor.close()
        target.executor = InlineSpawner()
        await target.sink().open(IDENTITY, Epoch(0))
        assert target.table() == []
        await merged(target, NEW, OTHER)
        assert [row[0] for row in target.table()] == [1, 2]


async def test_S5_a_break_before_the_commit_leaves_nothing(url: str) -> None:
    """Rows and marker are one transaction: a break between parts leaves nothing visible, and the next try writes all."""
    with sql_world(url, part_bytes=150) as target:
        world = World(target)
        task = Task(world)
        await task.start()
        for _ in range(4):
            await task.accept()
        await task.stage()
        await task.commit()
        assert len(target.blobs.objects) > 1
        target.blobs.gets_left = 1
        with pytest.raises(TargetUnavailable):
            await task.release()
        assert await target.visible() == []
        target.blobs.gets_left = None
        await task.release()
        await world.complete()


@pytest.mark.postgres
async def test_S5_a_database_that_dies_within_a_release_is_waited_for(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its connection can be rolled back: an outage like any other, and the connection is nobody's afterwards."""
    with sql_world(postgres) as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        await sink.accept(documents_batch([{"id": 1}]))
        staged = await sink.stage(Epoch(1), Epoch(0))
        loaded = PartStore.load

        async def dying(parts: PartStore, part: Part) -> bytes:
            with psycopg.connect(postgres.replace("+psycopg", ""), autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
                )
            await loaded(parts, part)
            raise TargetUnavailable("the blob store is away, too")

        monkeypatch.setattr(PartStore, "load", dying)
        with pytest.raises(TargetUnavailable, match="blob store"):
            await sink.release(row_of(1, 0, staged), staged)
        monkeypatch.undo()
        assert "Current Checked out connections: 0" in target.engine.pool.status()
        await sink.release(row_of(1, 0, staged), staged)
        assert await target.visible() == [1]


async def test_S5_a_lock_that_another_holds_is_waited_for_as_an_outage(url: str) -> None:
    """A zombie in the middle of its transaction makes the target unavailable for a while; then the release goes through."""
    with sql_world(url) as target:
        world = World(target)
        task = Task(world)
        await task.start()
        await task.accept()
        await task.stage()
        await task.commit()
        with target.engine.connect() as zombie:
            zombie.exec_driver_sql(f"UPDATE {MARKERS_TABLE} SET released = released")
            with pytest.raises(TargetUnavailable, match="lock"):
                await task.release()
            zombie.rollback()
        await task.release()
        await world.complete()


async def test_S5_a_commit_that_the_database_refuses_leaves_no_open_transaction(tmp_path: Path) -> None:
    """A reader keeps SQLite from committing: the next try must not take its own marker, which nobody else sees, for a release."""
    file = tmp_path / "target.db"
    with sql_world(f"sqlite:///{file}") as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        await sink.accept(documents_batch([{"id": 1}]))
        staged = await sink.stage(Epoch(1), Epoch(0))
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT id FROM rows").fetchall() == []
            for _ in range(3):
                with pytest.raises(TargetUnavailable, match="locked"):
                    await sink.release(row_of(1, 0, staged), staged)
            reader.execute("COMMIT")
            await sink.release(row_of(1, 0, staged), staged)
            assert reader.execute("SELECT id FROM rows").fetchall() == [(1,)]


async def test_S5_a_transaction_that_the_database_ends_is_an_outage(tmp_path: Path) -> None:
    """On a full disk SQLite rolls the whole transaction back, savepoints too: nothing is refused for that, and nothing of it stays."""
    file = tmp_path / "target.db"
    with sql_world(f"sqlite:///{file}") as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        await sink.accept(documents_batch([{"id": 1}, {"id": 2}]))
        staged = await sink.stage(Epoch(1), Epoch(0))
        with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
            said = "SELECT RAISE(ROLLBACK, 'database or disk is full')"
            other.execute(f"CREATE TRIGGER full BEFORE INSERT ON rows WHEN NEW.id = 2 BEGIN {said}; END")
            with pytest.raises(TargetUnavailable, match="disk is full"):
                await sink.release(row_of(1, 0, staged), staged)
            assert other.execute("SELECT id FROM rows").fetchall() == []
            other.execute("DROP TRIGGER full")
            await sink.release(row_of(1, 0, staged), staged)
            assert other.execute("SELECT id FROM rows").fetchall() == [(1,), (2,)]


async def test_S6_what_the_table_would_refuse_is_found_before_staging(url: str) -> None:
    """Wrong types, unknown fields, too long texts, missing keys: refused row by row with the field's name."""
    with sql_world(url) as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        documents: list[Document] = [
            {"id": 1, "name": "ok"},
            {"id": "x"},
            {"name": "no id"},
            {"id": None},
            {"id": 2, "color": "red"},
            {"id": 3, "name": "x" * 21},
            {"id": 4, "name": "a\x00b"},
            {"id": 5, "even": 1},
            {"id": 6, "name": 7},
        ]
        rejected = await sink.accept(documents_batch(documents))
        assert [(r.row, r.reason.split(": ", 1)[1]) for r in rejected] == [
            (1, "id: expected a whole number, found type string"),
            (2, "id: the column takes no null, and the document has no value for it"),
            (3, "id: the column takes no null, and the document has no value for it"),
            (4, "color: the table has no such column; project the field away, or add the column"),
            (5, "name: expected at most 20 characters, found 21"),
            (6, "name: expected text without the character 0 and halves of characters"),
            (7, "even: expected true or false, found type int"),
            (8, "name: expected text, found type int"),
        ]
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged), staged)
        assert await target.visible() == [1]


async def test_S6_a_constraint_that_only_the_database_knows_refuses_with_the_record(url: str) -> None:
    """What passed the checks, but not the database, is permanent, and the record is named though rows are written many at a time."""
    with sql_world(url, part_bytes=1 << 20) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE rows")
            connection.exec_driver_sql(
                "CREATE TABLE rows (id BIGINT PRIMARY KEY, name VARCHAR(20) CHECK (name <> 'bad'))"
            )
        with pytest.raises(TargetRefused, match="commit 1, record 2"):
            await merged(target, *({"id": n, "name": "bad" if n == 2 else "good"} for n in range(5)))
        assert await target.visible() == []


async def test_S6_by_order_the_refused_record_is_passed_over_and_the_rest_released(url: str) -> None:
    """`skip` writes every row but those that the table refuses, with the marker, in one transaction."""
    with sql_world(url, part_bytes=30) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE rows")
            connection.exec_driver_sql(
                "CREATE TABLE rows (id BIGINT PRIMARY KEY, name VARCHAR(20) CHECK (name <> 'bad'))"
            )
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        documents: list[Document] = [{"id": n, "name": "bad" if n in (2, 3) else "good"} for n in range(5)]
        assert not await sink.accept(documents_batch(documents))
        staged = await sink.stage(Epoch(1), Epoch(0))
        with pytest.raises(TargetRefused):
            await sink.release(row_of(1, 0, staged), staged)
        assert await sink.skip(row_of(1, 0, staged), staged) == 2
        assert await target.visible() == [0, 1, 4]
        assert await target.sink().open(IDENTITY, Epoch(1)) == 1


async def test_a_table_that_is_missing_or_has_no_such_key_is_refused_at_open(url: str) -> None:
    """The error names table and key, and says what the table has."""
    with sql_world(url) as target:
        target.stage = target.stage.__class__(path="$merge", connection_name="c", table="rows", on=("name",))
        with pytest.raises(
            TargetRefused, match=r"`on` is \(name\), which is no unique key of the table; the table has id"
        ):
            await target.sink().open(IDENTITY, Epoch(0))
        target.stage = target.stage.__class__(path="$merge", connection_name="c", table="nowhere", on=("id",))
        with pytest.raises(TargetRefused, match="nowhere: no such table"):
            await target.sink().open(IDENTITY, Epoch(0))


@pytest.mark.postgres
async def test_a_database_that_is_away_is_waited_for(postgres: str) -> None:
    """No connection is an outage, not a refusal."""
    with sql_world(postgres) as target:
        target.engine.dispose()
        target.engine = engine_of("postgresql+psycopg://nobody@127.0.0.1:1/none")
        with pytest.raises(TargetUnavailable):
            await target.sink().open(IDENTITY, Epoch(0))


@pytest.mark.postgres
async def test_values_of_all_kinds_come_back_as_they_went(postgres: str) -> None:
    """Dates, decimals, binary, JSON and object ids are in PostgreSQL what they were in the document."""
    with sql_world(postgres) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE rows")
            connection.exec_driver_sql(
                "CREATE TABLE rows (id BIGINT PRIMARY KEY, t TIMESTAMPTZ, n NUMERIC, b BYTEA, j JSONB, o TEXT, d DOUBLE PRECISION)"
            )
        await merged(
            target,
            {
                "id": 1,
                "t": Date(1500),
                "n": 0.1,
                "b": Binary(b"\x00\xff"),
                "j": {"x": [1, Date(0)]},
                "o": ObjectId(b"a" * 12),
                "d": 3,
            },
        )
        with target.engine.connect() as connection:
            moment, number, data, tree, oid, double = connection.exec_driver_sql(
                "SELECT t, n::text, b, j, o, d FROM rows"
            ).one()
        assert moment.timestamp() == 1.5
        assert number == "0.1"
        assert bytes(data) == b"\x00\xff"
        assert tree == {"x": [1, {"$date": "1970-01-01T00:00:00Z"}]}
        assert oid == "61" * 12
        assert double == 3.0
