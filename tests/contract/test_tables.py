"""One contract for all tables that a lookup may ask: what is asked for is never missing, whatever kind of table has it.

The oracle looks at every document; a table may give more than was asked for, since the lookup checks again, and never less.
"""

import csv
import datetime as dt
import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from tidemark_shelf import ShelfLookup
from tidemark_shelf.file import Place, ShelfFile

from tests.harness.mongodb.servers import Passage, Servers
from tidemark.services.operator.tables.files import FileTable
from tidemark.services.operator.tables.held import HeldTable
from tidemark.services.operator.tables.plugin import PluggedTable
from tidemark.services.operator.tables.sql import SqlTable, engine_of
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.values import canonical_key, decode_value, encode_value, render_json, to_json
from tidemark.shared.model.values import MISSING, Binary, Date, Document, ObjectId, long
from tidemark.shared.plugins.installed import make_of
from tidemark.shared.ports.tables import Table, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

pytestmark = pytest.mark.asyncio
NOON_MS = 1_709_294_400_000
NOON = dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)
ROWS: list[dict[str, Any]] = [
    {"id": 1, "code": "a", "size": 10, "share": 0.5, "since": NOON},
    {"id": 2, "code": "b", "size": 20, "share": 2.0, "since": None},
    {"id": 3, "code": "a", "size": None, "share": -0.25, "since": NOON},
    {"id": 4, "code": None, "size": 20, "share": None, "since": NOON},
    {"id": 5, "code": "b ", "size": 2**31, "share": 1e300, "since": NOON + dt.timedelta(milliseconds=1)},
]
VALUES: list[Any] = ["a", "b", "B", "10", 10, long(20), 20.0, 0.5, Decimal("0.5"), Decimal("0.1"), 2**31, 2**62, 1e19, float("nan"),
                     True, None, Date(NOON_MS), Date(NOON_MS + 1), Date(10**17), ["a"], {"a": 1}, "a\x00", "\ud800"]  # fmt: skip
QUESTIONS: list[tuple[tuple[str, ...], ...]] = [
    (("code",),), (("size",),), (("share",),), (("since",),), (("code",), ("size",)), (("code",), ("absent",)), (("code", "deep"),), (),
]  # fmt: skip
Make = Callable[[], Table]
SETTINGS = LookupSettings(rows_max=1000, file_interval_ms=0)


def own(rows: list[dict[str, Any]], *, moments: bool) -> list[Document]:
    """The documents that the rows are; `moments`: the table keeps instants."""
    return [
        {n: Date(int(v.timestamp() * 1000)) if isinstance(v, dt.datetime) and moments else v for n, v in row.items()}
        for row in rows
    ]


@contextmanager
def database(url: str) -> Iterator[sa.Engine]:
    """A database with the table `t` of ROWS."""
    engine = engine_of(url, {}, 2_000)
    table = sa.Table(
        "t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("code", sa.String(20)),
        sa.Column("size", sa.BigInteger), sa.Column("share", sa.Double), sa.Column("since", sa.DateTime(timezone=True)),
    )  # fmt: skip
    with engine.begin() as connection:
        table.metadata.create_all(connection)
        connection.execute(sa.insert(table), ROWS)
    yield engine
    engine.dispose()


@contextmanager
def collection(url: str, settings: LookupSettings = SETTINGS) -> Iterator[Any]:
    """A collection of ROWS, in a database of its own."""
    from tidemark.services.operator.tables.mongodb import CollectionTable
    from tidemark.shared.adapters.mongodb import client_at, to_bson

    client = client_at(url, 2_000)
    database = f"t{secrets.token_hex(6)}"
    client[database]["t"].insert_many([to_bson({"_id": row["id"], **row}) for row in own(ROWS, moments=True)])
    yield CollectionTable(client, f"{database}.t", AsyncExecutor(), settings)
    client.drop_database(database)
    client.close()


def file_table(path: Path) -> FileTable:
    return FileTable(fsspec.filesystem("file"), str(path), AsyncExecutor(), SystemClock(), SETTINGS)


def written(folder: Path, kind: str) -> Path:
    """ROWS as a file."""
    path = folder / f"t.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
        return path
    plain = [{n: v.isoformat() if isinstance(v, dt.datetime) else v for n, v in row.items()} for row in ROWS]
    if kind == "csv":
        with path.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(ROWS[0]))
            writer.writeheader()
            writer.writerows(plain)
    elif kind == "json":
        path.write_text(json.dumps(plain))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in plain))
    return path


@pytest.fixture(
    params=[
        "held", "plugin", "jsonl", "json", "csv", "parquet", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres),
        pytest.param("mongodb", marks=pytest.mark.mongodb),
    ]
)  # fmt: skip
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Table]]:
    """Each kind of table, with ROWS in it."""
    kind = request.param
    if kind == "held":
        yield kind, HeldTable(own(ROWS, moments=True))
    elif kind == "plugin":
        file = {"file": str(tmp_path / "shelf.db")}
        shelf = ShelfFile(Place(file["file"]))
        with shelf.changed() as db:
            lines = [("in", json.dumps(to_json(row))) for row in own(ROWS, moments=True)]
            db.executemany("INSERT INTO documents (shelf, added_ms, document) VALUES (?, 0, ?)", lines)
        shelf.close()
        made = lambda: make_of("shelf", ShelfLookup, {"shelf": "in"}, file)  # noqa: E731 - one thing
        yield kind, PluggedTable(made, "shelf", AsyncExecutor(), SETTINGS)
    elif kind == "mongodb":
        servers: Servers = request.getfixturevalue("mongodb_servers")
        with collection(servers.replicas) as found:
            yield kind, found
    elif kind in ("sqlite", "postgresql"):
        url = f"sqlite:///{tmp_path}/t.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
        with database(url) as engine:
            yield kind, SqlTable(engine, "t", AsyncExecutor(), SETTINGS)
    else:
        yield kind, file_table(written(tmp_path, kind))


def reached(document: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        document = document.get(name, MISSING) if isinstance(document, dict) else MISSING
    return document


async def test_nothing_that_is_asked_for_is_missing(table: tuple[str, Table]) -> None:
    """For any columns and any values, of any type: all documents that the language would call equal are found, in the table's order."""
    kind, asked = table
    everything = [one.document for one in await asked.find((), [()])]
    assert [d["id"] for d in everything] == [1, 2, 3, 4, 5]
    for columns in QUESTIONS:
        for value in VALUES:
            wanted = [(value,) * len(columns), ("b", 20)[: len(columns)]] if columns else [()]
            found = [one.document["id"] for one in await asked.find(columns, wanted)]
            keys = [tuple(map(canonical_key, one)) for one in wanted]
            equal = [
                d["id"] for d in everything if tuple(canonical_key(reached(d, names)) for names in columns) in keys
            ]
            assert set(equal) <= set(found), (kind, columns, value)
            assert found == sorted(set(found))


async def test_documents_are_what_lies_in_the_table(table: tuple[str, Table]) -> None:
    """Types are kept where the table has them: a null is null in a database and JSON, and a missing field where cells may be empty."""
    kind, asked = table
    got = [one.document for one in await asked.find((), [()])]
    rows = own(ROWS, moments=kind not in ("jsonl", "json", "csv"))
    if kind in ("csv", "parquet"):
        rows = [{n: v for n, v in row.items() if v is not None} for row in rows]
    if kind == "mongodb":
        rows = [{"_id": row["id"], **row} for row in rows]
    wanted = [{n: v.isoformat() if isinstance(v, dt.datetime) else v for n, v in row.items()} for row in rows]
    if kind == "sqlite":  # keeps no zone; what it keeps is taken as UTC
        assert [d["since"] for d in got if d["id"] != 2] == [r["since"] for r in rows if r["id"] != 2]
    assert got == wanted
    assert {type(d["since"]) for d in got if d.get("since") is not None} == (
        {str} if kind in ("jsonl", "json", "csv") else {Date}
    )


async def test_times_of_96_bits_are_found_in_all_years(tmp_path: Path) -> None:
    """As Spark writes them by default: a last day of the calendar is no day of another century."""
    days = pa.array([dt.datetime(9999, 12, 31), dt.datetime(1, 1, 1)], pa.timestamp("us"))  # noqa: DTZ001
    pq.write_table(pa.table({"v": days}), tmp_path / "t.parquet", use_deprecated_int96_timestamps=True)
    got = [one.document for one in await file_table(tmp_path / "t.parquet").find((), [()])]
    assert got == [{"v": Date(253402214400000)}, {"v": Date(-62135596800000)}]


async def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    """What is asked next is answered by what the file holds now."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"a": 1}\n')
    asked = file_table(path)
    assert len(await asked.find((), [()])) == 1
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert len(await asked.find((), [()])) == 2
    assert len(await asked.find((("a",),), [(2,)])) == 1


async def test_codes_of_a_csv_are_no_numbers(tmp_path: Path) -> None:
    """A column with leading zeros holds texts; numbers, truth values and texts are told apart by all of a column's cells."""
    path = tmp_path / "t.csv"
    path.write_text("zip,n,x,flag,mixed,none\n07030,7,1.5,true,1,\n10001,-8,2,false,a,\n")
    found = [one.document for one in await file_table(path).find((), [()])]
    assert found == [
        {"zip": "07030", "n": 7, "x": 1.5, "flag": True, "mixed": "1"},
        {"zip": "10001", "n": -8, "x": 2.0, "flag": False, "mixed": "a"},
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("t.jsonl", '{"a": 1}\n{"a"', "not JSON"), ("t.json", "[1]", "expected an object"), ("t.csv", "a\n1,2\n", "header names 1"),
        ("t.parquet", "none", "t.parquet"), ("t.xls", "", "jsonl"),
    ],
)  # fmt: skip
async def test_a_file_that_is_no_table_is_refused_with_its_name(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    """The message has the file, and what was expected."""
    (tmp_path / name).write_text(text)
    with pytest.raises(TableRefused, match=says) as refused:
        await file_table(tmp_path / name).find((), [()])
    assert name in str(refused.value)


async def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    """No such file, no such table, another kind of database."""
    with pytest.raises(TableRefused, match="no such file"):
        await file_table(tmp_path / "absent.csv").find((), [()])
    with (
        database(f"sqlite:///{tmp_path}/t.db") as engine,
        pytest.raises(TableRefused, match="absent: no such table or view"),
    ):
        await SqlTable(engine, "absent", AsyncExecutor(), SETTINGS).find((), [()])
    with pytest.raises(TableRefused, match="expected postgresql"):
        engine_of("mysql://x/y", {}, 1_000)


async def test_more_rows_than_may_be_found_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """The bound has a name, in a database and in a file."""
    few = LookupSettings(rows_max=3)
    with database(f"sqlite:///{tmp_path}/t.db") as engine, pytest.raises(TableRefused, match=r"lookup\.rows_max.*\$eq"):
        await SqlTable(engine, "t", AsyncExecutor(), few).find((), [()])
    path = written(tmp_path, "csv")
    with pytest.raises(TableRefused, match=r"5 documents, and lookup\.rows_max is 3"):
        await FileTable(fsspec.filesystem("file"), str(path), AsyncExecutor(), SystemClock(), few).find((), [()])


@pytest.mark.postgres
async def test_a_connection_that_is_lost_is_an_outage_and_comes_back(postgres_url: str) -> None:
    """What was asked over a connection that the server has ended may be asked again; a server that is not there is away."""
    with database(postgres_url) as engine:
        asked = SqlTable(engine, "t", AsyncExecutor(), SETTINGS)
        assert len(await asked.find((), [()])) == 5
        other = engine_of(postgres_url, {}, 2_000)
        with other.begin() as connection:
            connection.execute(
                sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
            )
        other.dispose()
        assert len(await asked.find((), [()])) == 5
    away = engine_of("postgresql://nobody@127.0.0.1:1/none", {}, 2_000)
    with pytest.raises(TableUnavailable, match="table t"):
        await SqlTable(away, "t", AsyncExecutor(), SETTINGS).find((), [()])


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        *(("timestamptz", text, text) for text in ("infinity", "-infinity", "0044-03-15 12:00:00+00 BC")),
        *(("timestamp", text, text) for text in ("infinity", "10000-01-01 00:00:00")),
        *(("date", text, text) for text in ("infinity", "5874897-12-31", "0044-03-15 BC")),
        ("time", "24:00:00", "24:00:00"),
        ("timetz", "24:00:00+00", "24:00:00+00"),
        *(("interval", text, text) for text in ("3000000 years", "1 mon 2 days")),
        ("timestamptz[]", "{infinity,2024-03-01 12:00:00+00}", ["infinity", Date(NOON_MS)]),
        ("numeric", "1" * 34, Decimal("1" * 34)),
        ("numeric", "1" * 35, "1" * 35),
        ("numeric[]", "{NaN,1.50}", [Decimal("NaN"), Decimal("1.50")]),
        ("bit(3)", "101", "101"),
        ("varbit[]", "{{101},{1}}", [["101"], ["1"]]),
        ("bytea[]", r'{"\\x00"}', [Binary(b"\0")]),
        ("jsonb", "18446744073709551615", 2.0**64),
        ("json", '[{"$numberLong": "x", "ü": 1}, {"$numberLong": "x"}]', [{"$numberLong": "x", "ü": 1}, '{"$numberLong": "x"}']),
        ("json", "1" * 400, "1" * 400),
        ("json", "1" * 5000, "1" * 5000),
        ("json", "[" * 2000 + "]" * 2000, "[" * 2000 + "]" * 2000),
        ("json", "[" * 178 + "]" * 178, "[" * 178 + "]" * 178),
        ("json", '{"a": ' * 300 + "1" + "}" * 300, '{"a": ' * 300 + "1" + "}" * 300),
        ("json", "[" * 100 + "]" * 100, json.loads("[" * 100 + "]" * 100)),
        ("json", r'"\ud800"', r'"\ud800"'),
        ("json", r'{"a": ["\ud800"]}', r'{"a": ["\ud800"]}'),
        ("json[]", r'{"{\"\\ud83e\\udd8a\": 1}"}', [{"🦊": 1}]),
    ],
)  # fmt: skip
async def test_a_cell_is_a_value_of_the_language(postgres_url: str, kind: str, text: str, value: Any) -> None:
    """Cells that Python has no value for once failed the query, and values that the language lacks the task."""
    with database(postgres_url) as engine:
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"SET timezone = 'UTC'; DROP TABLE t; CREATE TABLE t (id INT PRIMARY KEY, c {kind})"
            )
            connection.exec_driver_sql("INSERT INTO t VALUES (1, %s)", (text,))
        (found,) = await SqlTable(engine, "t", AsyncExecutor(), SETTINGS).find((("id",),), [(1,)])
        assert canonical_key(found.document["c"]) == canonical_key(value)
        assert decode_value(encode_value(found.document["c"])) is not None
        assert render_json(found.document)


@pytest.mark.mongodb
async def test_documents_of_a_collection_are_found_by_the_items_of_arrays_once(mongodb_servers: Servers) -> None:
    """Whole numbers of any type, items of arrays, paths into objects; and a document has one place, however it is found."""
    import bson

    from tidemark.shared.adapters.mongodb import client_at

    with collection(mongodb_servers.replicas) as asked:
        client = client_at(mongodb_servers.replicas, 2_000)
        client[asked.name.partition(".")[0]]["t"].insert_many(
            [
                {"_id": "x", "tags": ["a", "b"], "in": {"n": 1.0}},
                {"_id": bson.ObjectId(), "tags": "b"},
                {"_id": 1.5, "tags": ["b"]},
            ]
        )
        client.close()
        found = await asked.find((("tags",),), [("b",)])
        assert [type(one.document["_id"]) for one in found] == [str, ObjectId, float]
        assert [one.place for one in found] == sorted({one.place for one in found})
        (again,) = await asked.find((("tags",),), [("a",)])
        assert again == next(one for one in found if one.document["_id"] == "x")
        (inner,) = await asked.find((("in", "n"),), [(long(1),)])
        assert inner == again
        assert await asked.find((("tags",),), [("\ud800",)]) == []


@pytest.mark.mongodb
async def test_a_server_that_is_away_and_a_collection_too_large_are_told_apart(mongodb_servers: Servers) -> None:
    """An outage may be waited for, and the same question is answered behind it; more than the bound is refused with its name."""
    from tidemark.services.operator.tables.mongodb import CollectionTable

    with closing(Passage(mongodb_servers.alone)) as passage, collection(passage.url) as asked:
        assert len(await asked.find((), [()])) == 5
        passage.closed = True
        passage.break_off()
        with pytest.raises(TableUnavailable, match="collection"):
            await asked.find((), [()])
        passage.closed = False
        assert len(await asked.find((), [()])) == 5
    with (
        collection(mongodb_servers.alone, LookupSettings(rows_max=3)) as asked,
        pytest.raises(TableRefused, match=r"lookup\.rows_max.*\$eq"),
    ):
        await asked.find((), [()])
    for url, name, why in (
        ("http://x", "d.t", "expected mongodb"),
        ("mongodb://x/", "t", "a database and a collection"),
    ):
        with pytest.raises(TableRefused, match=why):
            CollectionTable.at(url, name, AsyncExecutor(), SETTINGS)


@pytest.mark.mongodb
async def test_a_key_at_which_the_server_ends_the_connection_is_no_outage(mongodb_servers: Servers) -> None:
    """As of a server that does not know the key's type: it would be waited for without end."""
    with closing(Passage(mongodb_servers.alone)) as passage, collection(passage.url) as asked:
        passage.ends_at = b"unknown"
        with pytest.raises(TableRefused, match="the server ends the connection at a key"):
            await asked.find((("tags",),), [("a",), ("unknown",)])
        assert await asked.find((("tags",),), [("other",)]) == []
