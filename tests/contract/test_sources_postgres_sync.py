# ruff: noqa: N802 -- a test carries its rule's name
"""`initialSync` of PostgreSQL against a real server: rows, then changes, each key exact over breaks and whatever is written meanwhile."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.harness.shop import Shop, drain, ids, piece, stands
from tidemark.services.source.connectors.pgsync import SyncRefused, TableReader
from tidemark.services.source.connectors.postgres import SPLIT, PostgresConnector
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import SourceMissing, SourceReplaced

pytestmark = [pytest.mark.asyncio, pytest.mark.postgres]


SYNC: dict[str, Any] = {"initial_sync": True}


def kinds(events: list[Document]) -> list[tuple[str, Any]]:
    return [(event["operationType"], event.get("documentKey", {}).get("id")) for event in events]


async def synced(shop: Shop, source: PostgresConnector, rows: int) -> list[Document]:
    """The first rows, one piece each: not all of them."""
    events: list[Document] = []
    while len(events) < rows:
        events += await piece(source, 1)
    return events


async def test_rows_come_first_as_inserts_and_then_changes(shop: Shop) -> None:
    """Rows of all tables in the order of names and keys have the form of inserts, and one time, behind which are all changes."""
    shop.do("CREATE TABLE a (body text, id int PRIMARY KEY)")
    shop.do("ALTER PUBLICATION p ADD TABLE a")
    shop.do("INSERT INTO t VALUES (3, 30, 'c'), (1, 10, NULL), (2, 20, 'b')")
    shop.do("INSERT INTO a VALUES ('x', 5)")
    source = await shop.begun(**SYNC)
    rows = await drain(source)
    assert kinds(rows) == [("insert", 5), ("insert", 1), ("insert", 2), ("insert", 3)]
    assert [row["fullDocument"] for row in rows[:2]] == [{"body": "x", "id": 5}, {"id": 1, "n": 10, "body": None}]
    assert [row["ns"]["coll"] for row in rows[:2]] == ["public.a", "public.t"]
    assert [row["_id"]["index"] for row in rows] == [0, 1, 2, 3]
    assert all(row["_id"]["snapshot"] is True for row in rows)
    shop.do("UPDATE t SET n = 11 WHERE id = 1")
    shop.do("INSERT INTO t VALUES (4)")
    changes = await drain(source)
    assert kinds(changes) == [("update", 1), ("insert", 4)]
    assert "snapshot" not in changes[0]["_id"]
    assert {row["wallTime"] for row in rows} == {min(row["wallTime"] for row in [*rows, *changes])}
    await source.note("g", {SPLIT: stands(source)[0]})
    await piece(source)
    again = await shop.resumed(*stands(source), **SYNC)
    assert set(again._known) == set(stands(source)[1])
    assert await drain(again) == []


async def test_without_rows_and_without_state_there_is_nothing_to_wait_for(shop: Shop) -> None:
    """Empty tables, then changes; a state without a sync begins none."""
    source = await shop.begun(**SYNC)
    assert await drain(source) == []
    shop.do("INSERT INTO t VALUES (1)")
    assert kinds(await drain(source)) == [("insert", 1)]
    plain = await shop.begun()
    assert kinds(await drain(plain)) == [("insert", 1)]
    assert await drain(await shop.resumed(*stands(plain), **SYNC)) == []


async def test_what_was_committed_between_the_slot_and_the_rows_comes_once(shop: Shop) -> None:
    """The slot has it as changes, and the tables as rows: rows alone are given, also if their key was changed or removed."""
    shop.do("INSERT INTO t SELECT g, g FROM generate_series(1, 4) g")
    shop.do("UPDATE t SET id = 9 WHERE id = 1")
    shop.do("DELETE FROM t WHERE id = 2")
    shop.do("TRUNCATE t")
    shop.do("INSERT INTO t VALUES (7), (8)")
    source = await shop.begun(**SYNC)
    assert kinds(await drain(source)) == [("insert", 7), ("insert", 8)]


async def test_transactions_that_are_open_as_rows_are_read_come_as_changes(shop: Shop) -> None:
    """One that was open before the sync is waited for, by its number; one that is open behind the snapshot comes behind the rows."""
    shop.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    with psycopg.connect(shop.url) as early, psycopg.connect(shop.url) as late:
        early.execute("UPDATE t SET n = 10 WHERE id = 1")
        source = await shop.begun(**SYNC)
        with pytest.raises(
            LogUnavailable, match=r"waits for transactions that were open as it began: the oldest is \d+"
        ):
            await piece(source)
        late.execute("UPDATE t SET n = 20 WHERE id = 2")
        early.commit()
        rows = await synced(shop, source, 2)
        late.commit()
        assert [row["fullDocument"]["n"] for row in rows] == [10, 2]
        changes = await drain(source)
        assert [(each["documentKey"], each["fullDocument"]["n"]) for each in changes] == [({"id": 2}, 20)]


async def test_a_transaction_that_is_older_than_what_the_snapshot_saw_comes_as_changes(shop: Shop) -> None:
    """Its number is below that of others that the rows have."""
    shop.do("INSERT INTO t VALUES (1, 1), (2, 2)")
    with psycopg.connect(shop.url) as early, psycopg.connect(shop.url) as late:
        early.execute("UPDATE t SET n = 10 WHERE id = 1")
        source = await shop.begun(**SYNC)
        with pytest.raises(LogUnavailable):
            await piece(source)
        late.execute("UPDATE t SET n = 20 WHERE id = 2")
        shop.do("INSERT INTO t VALUES (3, 3)")
        early.commit()
        assert ids(await synced(shop, source, 3)) == [1, 2, 3]
        late.commit()
        assert kinds(await drain(source)) == [("update", 2)]


async def test_a_table_that_others_have_locked_is_waited_for_with_a_word(shop: Shop) -> None:
    """A transaction that has altered one is open: at the start, behind the slot, and as rows are to be read."""
    shop.do("INSERT INTO t VALUES (1, 1)")
    source = await shop.begun(lock_wait_ms=20, **SYNC)
    sentence = r"waits for a lock on tables of publication p: a transaction that has altered or truncated one is open"
    with psycopg.connect(shop.url) as other:
        other.execute("ALTER TABLE t ADD more int")
        with pytest.raises(LogUnavailable, match=sentence):
            await shop.source(lock_wait_ms=20, **SYNC).state()
        with pytest.raises(LogUnavailable, match=f"{sentence}|waits for transactions"):
            await piece(source)
    assert ids(await drain(source)) == [1]


async def broken(shop: Shop, **changed: Any) -> tuple[PostgresConnector, list[Document], Offset, dict[str, str]]:
    """A source that has read the rows 1 to 3 of 1 to 6, and is given up there."""
    shop.do("INSERT INTO t SELECT g, g, 'x' FROM generate_series(1, 6) g")
    source = await shop.begun(fetch_messages=3, **SYNC, **changed)
    rows = await synced(shop, source, 3)
    assert ids(rows) == [1, 2, 3]
    position, origins = stands(source)
    await source.close()
    return source, rows, position, origins


async def test_C6_rows_go_on_behind_the_last_key_in_another_snapshot(shop: Shop) -> None:
    """Between the snapshots: keys on both sides are changed, removed and moved to the other side. Each is exact by itself."""
    _, _, position, origins = await broken(shop)
    shop.do("UPDATE t SET n = 10 WHERE id IN (1, 4)")
    shop.do("DELETE FROM t WHERE id IN (2, 5)")
    shop.do("UPDATE t SET id = 13 WHERE id = 3")
    shop.do("UPDATE t SET n = 130 WHERE id = 13")
    shop.do("UPDATE t SET id = 0 WHERE id = 6")
    shop.do("INSERT INTO t VALUES (-1), (20)")
    again = await shop.resumed(position, origins, **SYNC)
    rest = await drain(again)
    assert kinds(rest) == [
        ("insert", 4), ("insert", 13), ("insert", 20),
        ("update", 1), ("delete", 2), ("delete", 3), ("insert", 0), ("insert", -1),
    ]  # fmt: skip
    assert [row["fullDocument"]["n"] for row in rest[:2]] == [10, 130]
    assert rest[5].keys() == {"_id", "operationType", "clusterTime", "wallTime", "ns", "documentKey"}
    shop.do("UPDATE t SET n = 1 WHERE id = 13")
    assert kinds(await drain(await shop.resumed(*stands(again), **SYNC))) == [("update", 13)]


async def test_C6_a_checkpoint_while_a_thread_finds_that_all_rows_were_read_goes_on_behind_them(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading goes ahead of checkpoints, on a thread of its own: its last piece has no row."""
    shop.do("INSERT INTO t VALUES (1), (2)")
    source = await shop.begun(**SYNC)
    assert ids(await synced(shop, source, 2)) == [1, 2]
    position, at = source.status()[0].next_position, TableReader.at

    def behind(tables: TableReader, position: int) -> Any:
        monkeypatch.undo()
        assert source._reader is not None
        assert source._read(source._reader, 1)[0] == []
        return at(tables, position)

    monkeypatch.setattr(TableReader, "at", behind)
    again = await shop.resumed(position, dict(source.origins(SPLIT, position)), **SYNC)
    shop.do("INSERT INTO t VALUES (3)")
    assert ids(await drain(again)) == [3]


async def test_C6_a_truncation_between_snapshots_is_an_error(shop: Shop) -> None:
    """Its event would remove the rows that came behind it, and leaving it out would keep those in front of it."""
    _, _, position, origins = await broken(shop)
    shop.do("TRUNCATE t")
    again = await shop.resumed(position, origins, **SYNC)
    with pytest.raises(SyncRefused, match=r"public\.t was truncated while its initial sync was interrupted.*new slot"):
        await drain(again)


async def test_C6_a_row_whose_values_nothing_has_read_is_an_error(shop: Shop) -> None:
    """Its key came to where keys had been read, and its long value was not sent; with the full old row it is an insert."""
    shop.do("ALTER TABLE t ALTER body SET STORAGE EXTERNAL")
    _, _, position, origins = await broken(shop)
    shop.do("UPDATE t SET body = repeat('y', 10000) WHERE id = 6")
    shop.do("UPDATE t SET id = 0 WHERE id = 6")
    with pytest.raises(SyncRefused, match=r"did not send its columns body.*REPLICA IDENTITY FULL"):
        await drain(await shop.resumed(position, origins, **SYNC))


async def test_C6_changes_without_the_key_of_the_rows_are_an_error(shop: Shop) -> None:
    """The identity became another index while the sync was interrupted; with it, changes do not tell where their rows were read."""
    shop.do("ALTER TABLE t ADD other serial")
    shop.do("CREATE UNIQUE INDEX only_other ON t (other)")
    _, _, position, origins = await broken(shop)
    shop.do("ALTER TABLE t REPLICA IDENTITY USING INDEX only_other")
    shop.do("DELETE FROM t WHERE id = 2")
    shop.do("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    with pytest.raises(
        SyncRefused, match=r"expected each change to tell the key id, found one without id: its replica identity"
    ):
        await drain(await shop.resumed(position, origins, **SYNC))


async def test_a_table_that_had_another_name_in_its_changes_comes_once(shop: Shop) -> None:
    """Between the slot and the rows; a table that was dropped, whose name another one has now, does not come at all."""
    shop.do("CREATE TABLE gone (id int PRIMARY KEY)")
    shop.do("ALTER PUBLICATION p ADD TABLE gone")
    shop.do("INSERT INTO t VALUES (1), (2)")
    shop.do("INSERT INTO gone VALUES (3)")
    shop.do("DROP TABLE gone")
    shop.do("ALTER TABLE t RENAME TO gone")
    shop.do("CREATE TABLE t (id int PRIMARY KEY)")
    source = await shop.begun(**SYNC)
    rows = await drain(source)
    assert [(row["ns"]["coll"], row["documentKey"]["id"]) for row in rows] == [("public.gone", 1), ("public.gone", 2)]
    shop.do("DELETE FROM gone WHERE id = 1")
    assert kinds(await drain(source)) == [("delete", 1)]


async def test_a_piece_is_bounded_by_what_rows_become(shop: Shop) -> None:
    """Numbers of one digit are long documents of many columns."""
    names = ", ".join(f"a_column_with_a_long_name_{n}" for n in range(50))
    shop.do(f"CREATE TABLE wide (id int PRIMARY KEY, {names.replace(',', ' int,')} int)")
    shop.do("ALTER PUBLICATION p ADD TABLE wide")
    shop.do("INSERT INTO wide SELECT g FROM generate_series(1, 200) g")
    source = await shop.begun(fetch_messages=1, **SYNC)
    assert 0 < len(await piece(source, 10_000)) < 10


async def test_C6_with_full_old_rows_keys_move_as_well(shop: Shop) -> None:
    """The identity is all columns, and the order is the primary key's."""
    shop.do("ALTER TABLE t REPLICA IDENTITY FULL")
    _, rows, position, origins = await broken(shop)
    assert rows[0]["documentKey"] == {"id": 1, "n": 1, "body": "x"}
    shop.do("UPDATE t SET id = 13 WHERE id = 3")
    shop.do("UPDATE t SET id = 0 WHERE id = 6")
    shop.do("UPDATE t SET n = 0 WHERE id = 1")
    rest = await drain(await shop.resumed(position, origins, **SYNC))
    assert kinds(rest) == [
        ("insert", 4), ("insert", 5), ("insert", 13), ("delete", 3), ("insert", 0), ("update", 1),
    ]  # fmt: skip
    assert rest[3]["documentKey"] == {"id": 3, "n": 3, "body": "x"}


TABLES: dict[str, tuple[str, Callable[[int], tuple[Any, ...]]]] = {
    "public.t": ("id int PRIMARY KEY, n int", lambda n: (n,)),
    "public.w": ("k text, id int, n int, PRIMARY KEY (k, id)", lambda n: ("aÄbBz_-é"[n % 8] * (n % 3), n)),
    "public.root": ("id numeric PRIMARY KEY, n int", lambda n: (n,)),
}  # fmt: skip


class Model:
    """Tables as events make them: each must fit what was there."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Document] = {}

    def take(self, event: Document) -> None:
        kind, table = event["operationType"], event["ns"]["coll"]
        key = (table, repr(event["documentKey"]))
        before = (table, repr(event.get("documentKeyBeforeChange", event["documentKey"])))
        if kind == "insert":
            assert key not in self.rows, event
        else:
            del self.rows[before]
        if kind != "delete":
            assert key not in self.rows, event
            self.rows[key] = event["fullDocument"]


class Writers:
    """Connections whose transactions stay open over reads. Each has keys of its own, so none waits for another."""

    def __init__(self, shop: Shop, chooser: random.Random) -> None:
        self._connections = [psycopg.connect(shop.url) for _ in range(4)]
        self._chooser = chooser

    def write(self) -> None:
        """An insert, update, deletion or new key in an open transaction."""
        chooser, lane = self._chooser, self._chooser.randrange(4)
        name = chooser.choice(list(TABLES))
        columns, key = TABLES[name]
        names = ("k", "id") if columns.startswith("k") else ("id",)
        where = " AND ".join(f"{each} = %s" for each in names)
        places = ", ".join(["%s"] * len(names))
        old, new = (key(chooser.randrange(15) * 4 + lane) for _ in range(2))
        statement, values = chooser.choice((
            (f"INSERT INTO {name} VALUES ({places}, 0)", old),
            (f"UPDATE {name} SET n = n + 1 WHERE {where}", old),
            (f"DELETE FROM {name} WHERE {where}", old),
            (f"UPDATE {name} SET ({', '.join(names)}, n) = ROW({places}, n + 1) WHERE {where}", (*new, *old)),
        ))  # fmt: skip
        with suppress(psycopg.errors.UniqueViolation), self._connections[lane].transaction():
            self._connections[lane].execute(sql.SQL(statement), values)

    def settle(self) -> None:
        """One transaction ends, most by a commit."""
        connection = self._chooser.choice(self._connections)
        if self._chooser.randrange(4):
            connection.commit()
        else:
            connection.rollback()

    def end(self) -> None:
        """All end."""
        for each in self._connections:
            each.commit()
            each.close()


class Reading:
    """A source that is read in pieces, and given up and resumed at any position that a checkpoint may have."""

    def __init__(self, shop: Shop, source: PostgresConnector, chooser: random.Random) -> None:
        self._shop, self._source, self._chooser = shop, source, chooser
        self.events: list[tuple[int, Document]] = []
        self._before = [stands(source)[0]] * 2

    async def read(self) -> bool:
        """A piece; returns whether it is the last one."""
        with suppress(LogUnavailable):  # a connection was broken, or transactions are waited for
            batches = await self._source.fetch(self._chooser.choice((1, 300, 2000)), 1)
            self._before = [self._before[-1], stands(self._source)[0]]
            for batch in batches:
                found = map(parse_json, batch.values.to_pylist())
                self.events += zip(batch.positions.tolist(), found, strict=True)
            return self._source.status()[0].at_end
        return False

    async def resume(self) -> None:
        """Somewhere in the last piece, with the slot advanced so far."""
        place = Offset(self._chooser.randint(self._before[0], stands(self._source)[0]))
        origins = dict(self._source.origins(SPLIT, place))
        await self._source.note("g", {SPLIT: place})
        with suppress(LogUnavailable):
            await self._source.fetch(100, 1)
        await self._source.close()
        self.events = [each for each in self.events if each[0] < place]
        self._source = await self._shop.resumed(place, origins, **SYNC)
        self._before = [place] * 2

    def cut(self) -> None:
        """The connection is broken."""
        self._shop.do(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = %s",
            f"tidemark {self._shop.slot}",
        )


@pytest.mark.parametrize("seed", range(8))
async def test_C6_tables_are_what_the_events_make_them(shop: Shop, seed: int) -> None:
    """Writers with open transactions, moved keys, breaks of connections, and restarts from any position: events fit one after another."""
    chooser = random.Random(seed)
    shop.do("DROP TABLE t")
    for name, (columns, key) in TABLES.items():
        shop.do(f"CREATE TABLE {name} ({columns})")
        shop.do(f"ALTER PUBLICATION p ADD TABLE {name}")
        for n in range(0, 60, 2):
            shop.do(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(key(n)))}, 0)", *key(n))
    reading = Reading(shop, await shop.begun(**SYNC), chooser)
    writers = Writers(shop, chooser)
    for _ in range(300):
        turn = chooser.randrange(24)
        if turn < 12:
            writers.write()
        elif turn < 16:
            writers.settle()
        elif turn < 22:
            await reading.read()
        elif turn == 22:
            await reading.resume()
        else:
            reading.cut()
    writers.end()
    for _ in range(2):  # the first end may be as of a look that was taken before
        while not await reading.read():
            pass
    model = Model()
    for _, event in reading.events:
        model.take(event)
    there = {
        (name, row["id"]): row["n"]
        for name in TABLES
        for row in shop.connection.cursor(row_factory=psycopg.rows.dict_row).execute(f"SELECT * FROM {name}")
    }
    assert {(table, row["id"]): row["n"] for (table, _), row in model.rows.items()} == there
    assert len(there) > 20


async def test_I3_a_drain_while_rows_are_read_ends_behind_them_and_the_changes(shop: Shop) -> None:
    """Later changes are not part of it, also behind a restart that reads other rows than were there."""
    _, _, position, origins = await broken(shop)
    source = await shop.resumed(position, origins, **SYNC)
    shop.do("UPDATE t SET n = 0 WHERE id = 1")
    end = (await source.ends({SPLIT: position}))[SPLIT]
    assert end is not None
    shop.do("UPDATE t SET n = 5 WHERE id = 1")
    shop.do("DELETE FROM t WHERE id = 4")
    for again in (source, await shop.resumed(position, origins, **SYNC)):
        again.end_at({SPLIT: end})
        found: list[Document] = []
        while not again.status()[0].finished:
            found += await piece(again)
        assert kinds(found) == [("insert", 5), ("insert", 6), ("update", 1)]
        assert found[-1]["fullDocument"]["n"] == 0
        assert again.status()[0].next_position == end
        position, origins = stands(again)
        await again.close()
    later = await shop.resumed(position, origins, **SYNC)
    end = (await later.ends({SPLIT: position}))[SPLIT]
    assert end is not None
    shop.do("UPDATE t SET n = 6 WHERE id = 6")
    later.end_at({SPLIT: end})
    assert kinds(await drain(later)) == [("update", 1)]
    assert (later.status()[0].next_position, later.status()[0].finished) == (end, True)


async def test_rows_are_those_that_are_published(shop: Shop) -> None:
    """Columns and rows that the publication leaves out, partitions, tables that inherit, generated columns."""
    shop.do("CREATE TABLE parent (id int PRIMARY KEY, n int, g int GENERATED ALWAYS AS (n + 1) STORED)")
    shop.do("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    shop.do("CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    shop.do("CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    shop.do("INSERT INTO parent VALUES (1, 1)")
    shop.do("INSERT INTO child VALUES (2, 2)")
    shop.do("INSERT INTO parts VALUES (3, 3)")
    shop.do("INSERT INTO t VALUES (4, 4, 'x'), (5, -5, 'y')")
    shop.do("DROP PUBLICATION p")
    shop.do(
        "CREATE PUBLICATION p FOR TABLE t (id, n) WHERE (id < 5), TABLE parent, TABLE parts"
        " WITH (publish_via_partition_root)"
    )
    shop.drop_slot()
    shop.make_slot()
    source = await shop.begun(**SYNC)
    rows = await drain(source)
    shop.do("UPDATE parent SET n = 0")
    shop.do("UPDATE parts SET n = 0")
    shop.do("UPDATE t SET n = 0")
    changes = await drain(source)
    assert [row["fullDocument"] for row in rows] == [
        {"id": 2, "n": 2}, {"id": 1, "n": 1}, {"id": 3, "n": 3}, {"id": 4, "n": 4},
    ]  # fmt: skip
    assert {row["ns"]["coll"]: row["fullDocument"].keys() for row in rows} == {
        row["ns"]["coll"]: row["fullDocument"].keys() for row in changes
    }


async def test_tables_that_cannot_be_read_are_named(shop: Shop) -> None:
    """No key, no right to read, rows that a policy hides, a slot that is gone, a table that left the publication."""
    source, _, position, origins = await broken(shop)
    shop.do("ALTER PUBLICATION p DROP TABLE t")
    with pytest.raises(SourceReplaced, match=r"expected table public\.t.*found none"):
        await piece(await shop.resumed(position, origins, **SYNC))
    shop.do("ALTER TABLE t RENAME TO old")
    shop.do("CREATE TABLE t (id int PRIMARY KEY)")
    shop.do("ALTER PUBLICATION p ADD TABLE t")
    with pytest.raises(SourceReplaced, match=r"expected table public\.t.*found none, or another one of that name"):
        await piece(await shop.resumed(position, origins, **SYNC))
    shop.do("DROP TABLE t")
    shop.do("ALTER TABLE old RENAME TO t")
    shop.do("ALTER PUBLICATION p ADD TABLE t")
    shop.do("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD CONSTRAINT k PRIMARY KEY (id, n)")
    with pytest.raises(SyncRefused, match=r"public\.t: its initial sync is ordered by id, and now its key is id, n"):
        await piece(await shop.resumed(position, origins, **SYNC))
    shop.do("ALTER TABLE t DROP CONSTRAINT k")
    with pytest.raises(
        SyncRefused, match=r"public\.t of publication p: initialSync expected a primary key .*, found none"
    ):
        await shop.source(**SYNC).state()
    shop.do("ALTER TABLE t ADD g int GENERATED ALWAYS AS (id + 1) STORED, ADD PRIMARY KEY (g)")
    with pytest.raises(SyncRefused, match=r"published, found that g is not\. The database computes it: choose another"):
        await shop.source(**SYNC).state()
    shop.do("ALTER TABLE t DROP COLUMN g, ADD PRIMARY KEY (id)")
    role = f"{shop.database}_r"
    shop.do(sql.SQL("CREATE ROLE {} LOGIN REPLICATION").format(sql.Identifier(role)))
    url = shop.url.replace("//postgres:", f"//{role}:")
    assert url != shop.url
    with pytest.raises(SyncRefused, match="expected the connection's user to have SELECT on it, found that it has not"):
        await shop.source(url=url, **SYNC).state()
    shop.do(sql.SQL("GRANT SELECT ON t TO {}").format(sql.Identifier(role)))
    assert (await shop.source(url=url, **SYNC).state()).database == shop.database
    shop.do("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    with pytest.raises(Exception, match="row-level security"):
        await piece(await shop.begun(url=url, **SYNC))
    shop.drop_slot()
    with pytest.raises(SourceMissing, match="expected a replication slot"):
        await piece(await shop.resumed(position, origins, **SYNC))
    shop.make_slot()
    with pytest.raises(SourceReplaced, match="was dropped and made anew"):
        await piece(await shop.resumed(position, origins, **SYNC))
    shop.do(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(role)))
    del source
