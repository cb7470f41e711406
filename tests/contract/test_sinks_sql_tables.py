# ruff: noqa: N802 -- a test carries its rule's name
"""What tables of other people's making do to the SQL sink: column types, generated columns, odd keys, constraints (protocol, S6)."""

import asyncio
import logging
import threading
import uuid
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tests.contract.sinks_targets import SqlWorld, expression
from tests.contract.test_sinks_sql import merged, sql_world
from tidemark.services.library.release_world import IDENTITY, InlineSpawner, row_of
from tidemark.services.operator.tables.sql import SqlTable, engine_of
from tidemark.services.sink.connectors.sqlrows import RowMaker
from tidemark.services.sink.connectors.sqltable import target_table
from tidemark.services.sink.connectors.sqlvalues import Misfit
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.sql_cells import read_all
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values.cells import JSON_DEPTH_MAX
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Date, Document, Long
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.ports.sink import TargetRefused, TargetUnavailable
from tidemark.shared.ports.tables import TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

POSTGRES: sa.Dialect = sa.make_url("postgresql+psycopg://").get_dialect()()
END_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, which stands for "never" in many tables."""
COLUMNS = [
    (sa.SmallInteger(), 2**15, "of 16 bits"),
    (sa.Integer(), 2**31, "of 32 bits"),
    (sa.BigInteger(), 0.5, "a whole number"),
    (sa.Numeric(), float("nan"), "a finite number, found nan"),
    (sa.Numeric(), "1", "a finite number, found type string"),
    (sa.Numeric(5, -2), 12345, "multiple of 100, found 12345"),
    (sa.Numeric(5, -2), Decimal(12345), "multiple of 100, found 12345"),
    (sa.Float(), "x", "a double"),
    (sa.Boolean(), 0, "true or false"),
    (sa.DateTime(timezone=True), Date(2**60), "of the years 1 to 9999"),
    (sa.Date(), "2013-01-01", "a date"),
    (sa.Date(), Date(1), "without a time of day"),
    (sa.DateTime(timezone=True), Date(END_MS + 1), "of the years 1 to 9999"),
    (sa.Time(), "25:00", "a time of day"),
    (sa.Time(), "10:00+02:00", "a time of day without a zone, found 10:00"),
    (sa.Time(), "10:00:00.1234567", "at most 6 digits behind the point, found 10:00:00.1234567"),
    (postgresql.TIME(precision=0), "10:00:00.6", "at most 0 digits behind the point, found 10:00:00.6"),
    (postgresql.TIMESTAMP(precision=1), Date(1_250), "without parts of 100 ms"),
    (sa.Numeric(5, 2), 0.125, "2 digits behind the point"),
    (sa.Numeric(5, 2), 1000, r"below 10\^3"),
    (sa.Float(), Long(2**53 + 1), "that a double holds"),
    (sa.REAL(), 1e300, "of single precision"),
    (sa.REAL(), 1e-300, "of single precision"),
    (sa.Enum("red", "green"), "blue", "one of red, green"),
    (sa.ARRAY(sa.Integer()), ["x"], "a whole number"),
    (sa.ARRAY(sa.Integer()), 1, "an array"),
    (postgresql.JSONB(), {"a": [{"b": "\x00"}]}, "without the character 0"),
    (postgresql.JSONB(), {"\x00": 1}, "without the character 0"),
    (postgresql.BIT(3), "1011", "3 bits"),
    (postgresql.INET(), 1, "text"),
    (sa.LargeBinary(), "x", "binary data"),
    (sa.Uuid(), "x", "a UUID"),
]


@pytest.mark.parametrize(
    ("kind", "value", "finding"), COLUMNS, ids=[f"{type(kind).__name__}-{n}" for n, (kind, _, _) in enumerate(COLUMNS)]
)
def test_S6_each_column_type_refuses_what_it_cannot_hold(
    kind: sa.types.TypeEngine[Any], value: Any, finding: str
) -> None:
    """A value that would be cut, rounded or misread is refused, with what the column expects."""
    table = sa.Table("t", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("c", kind))
    with pytest.raises(Misfit, match=f"c: expected .*{finding}"):
        RowMaker(table, ("id",), POSTGRES, inserts=True).parameters({"id": 1, "c": value})


async def test_the_last_day_that_a_date_has_is_taken(url: str) -> None:
    """Its last millisecond, in columns with and without a zone; SQLite keeps both as text."""
    with sql_world(url) as target:
        kind = "DATETIME" if url.startswith("sqlite") else "TIMESTAMPTZ"
        remake(target, f"CREATE TABLE rows (id BIGINT PRIMARY KEY, a {kind}, b TIMESTAMP, c TIME)")
        await merged(target, {"id": 1, "a": Date(END_MS), "b": Date(END_MS), "c": "10:00:00.250"})
        with target.engine.connect() as connection:
            (found,) = connection.exec_driver_sql("SELECT a, b, c FROM rows").all()
        assert all(str(cell).startswith("9999-12-31 23:59:59.999") for cell in found[:2])
        assert str(found[2]).startswith("10:00:00.250")


@pytest.mark.postgres
async def test_S6_of_many_whole_numbers_those_that_would_be_rounded_are_refused(postgres: str) -> None:
    """A negative scale counts digits in front of the point."""
    with sql_world(postgres) as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, c NUMERIC(5, -2))")
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        rejected = await sink.accept(
            documents_batch([{"id": 1, "c": 12345}, {"id": 2, "c": 12300}, {"id": 3, "c": 10**7}])
        )
        assert [each.reason.rpartition("c: ")[2] for each in rejected] == [
            "expected a multiple of 100, found 12345", "expected a number below 10^7, found 10000000",
        ]  # fmt: skip


SQLITE_CELLS = [
    ("NUMERIC", 2**53 + 1, "a number that a double holds"),
    ("NUMERIC", Decimal("0.12345678901234567890"), "a number that a double holds"),
    ("REAL", float("nan"), "found NaN"),
    ("", [1], "text, a number or binary data"),
    ("", Date(5), "text, a number or binary data"),
]


@pytest.mark.parametrize(("kind", "value", "finding"), SQLITE_CELLS)
async def test_S6_what_sqlite_would_change_is_refused(tmp_path: Path, kind: str, value: Any, finding: str) -> None:
    """SQLite rounds decimals to doubles and makes NaN null, without a word: two keys could become one row."""
    with sql_world(f"sqlite:///{tmp_path}/t.db") as target:
        remake(target, f"CREATE TABLE rows (id BIGINT PRIMARY KEY, c {kind})")
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        (rejected,) = await sink.accept(documents_batch([{"id": 1, "c": value}]))
        assert finding in rejected.reason


def remake(target: SqlWorld, *statements: str) -> None:
    """Another table in the place of the world's."""
    with target.engine.begin() as connection:
        for statement in ("DROP TABLE rows", *statements):
            connection.exec_driver_sql(statement)


async def test_S6_a_column_that_the_database_computes_is_refused_before_staging(url: str) -> None:
    """A document that names it would be refused at the release."""
    with sql_world(url) as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, c INT GENERATED ALWAYS AS (1 + 1) STORED)")
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        (rejected,) = await sink.accept(documents_batch([{"id": 1, "c": 2}]))
        assert "c: the database gives this column its value" in rejected.reason
        await merged(target, {"id": 1}, {"id": 1})
        assert await target.visible() == [1]


@pytest.mark.postgres
async def test_an_identity_that_is_always_the_databases_is_not_replaced(postgres: str) -> None:
    """`replace` leaves such a column alone: PostgreSQL takes no value for it."""
    with sql_world(postgres) as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, n INT GENERATED ALWAYS AS IDENTITY, name TEXT)")
        await merged(target, {"id": 1, "name": "a"}, {"id": 1, "name": "b"})
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT id, n, name FROM rows").all() == [(1, 1, "b")]


async def test_a_column_may_have_any_name(url: str) -> None:
    """The key is looked for by a parameter that no column's value takes the place of."""
    with sql_world(url, when_matched="merge", when_not_matched="discard") as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, key__id INT)", "INSERT INTO rows VALUES (7, 0)")
        await merged(target, {"id": 7, "key__id": 99})
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT id, key__id FROM rows").all() == [(7, 99)]


async def test_an_index_of_some_rows_is_no_unique_key(url: str) -> None:
    """The database would refuse the first release: `open` does."""
    with sql_world(url) as target:
        index = "CREATE UNIQUE INDEX few ON rows (id) WHERE name IS NOT NULL"
        remake(target, "CREATE TABLE rows (id BIGINT, name TEXT)", index)
        with pytest.raises(TargetRefused, match="no unique key of the table; the table has none"):
            await target.sink().open(IDENTITY, Epoch(0))


@pytest.mark.postgres
async def test_an_index_of_expressions_is_no_unique_key(postgres: str) -> None:
    """What is unique is not the column that the index names beside the expression."""
    with sql_world(postgres) as target:
        index = "CREATE UNIQUE INDEX few ON rows (id, lower(name))"
        remake(target, "CREATE TABLE rows (id BIGINT, name TEXT)", index)
        with pytest.raises(TargetRefused, match="no unique key of the table; the table has none"):
            await target.sink().open(IDENTITY, Epoch(0))


@pytest.mark.postgres
async def test_S6_what_no_waiting_mends_is_a_refusal_whatever_the_driver_calls_it(postgres: str) -> None:
    """A key too large for its index is operational to the driver; waiting for it would be for ever."""
    with sql_world(postgres, part_bytes=1 << 20) as target:
        remake(target, "CREATE TABLE rows (id TEXT PRIMARY KEY)")
        large = "".join(uuid.uuid4().hex for _ in range(500))
        with pytest.raises(TargetRefused, match="commit 1, record 1: index row"):
            await merged(target, {"id": "a"}, {"id": large})


@pytest.mark.postgres
async def test_S6_by_order_a_record_that_only_the_commit_refuses_is_passed_over(postgres: str) -> None:
    """A deferred constraint is looked at record by record then: else the commit would be refused again and again."""
    with sql_world(postgres) as target:
        remake(
            target,
            "CREATE TABLE rows (id BIGINT PRIMARY KEY, up BIGINT REFERENCES rows (id) DEFERRABLE INITIALLY DEFERRED)",
        )
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        assert not await sink.accept(documents_batch([{"id": 1}, {"id": 2, "up": 1}, {"id": 3, "up": 77}]))
        staged = await sink.stage(Epoch(1), Epoch(0))
        with pytest.raises(TargetRefused, match="committing"):
            await sink.release(row_of(1, 0, staged), staged)
        assert await sink.skip(row_of(1, 0, staged), staged) == 1
        assert await target.visible() == [1, 2]


@pytest.mark.parametrize(
    "whens", [("merge", "insert"), ("replace", "discard"), ("delete", "insert"), ("fail", "insert")]
)
async def test_names_with_percent_signs_are_names(url: str, whens: tuple[str, str]) -> None:
    """A driver takes the sign for a parameter where it stands alone; the table's, the key's and another column's have it."""
    matched, unmatched = whens
    with sql_world(url, when_matched=matched, when_not_matched=unmatched) as target:
        table, key, share = (sa.quoted_name(name, quote=True) for name in ("rows %s", "id %", "100 %% %(a)s"))
        made = sa.Table(
            table, sa.MetaData(), sa.Column(key, sa.BigInteger, primary_key=True), sa.Column(share, sa.Integer)
        )
        made.create(target.engine)
        target.stage = replace(target.stage, table="rows %s", on=("id %",))
        await merged(target, {"id %": 1, "100 %% %(a)s": 5})
        with target.engine.connect() as connection:
            assert connection.execute(sa.select(made)).all() == ([] if unmatched == "discard" else [(1, 5)])


@pytest.mark.postgres
def test_each_connection_reads_json_without_a_class_of_its_own(postgres: str, caplog: pytest.LogCaptureFixture) -> None:
    """The driver warns of readers for which it makes a class a connection, none of which is ever let go."""
    engine = sa.create_engine(postgres, poolclass=sa.NullPool)
    read_all(engine, JSON_DEPTH_MAX)
    with caplog.at_level(logging.WARNING, "psycopg"):
        for _ in range(2):
            with engine.connect() as connection:
                found = connection.execute(sa.text("""SELECT '{"a": [1]}'::jsonb""")).scalar_one()
            assert found == {"a": [1]}
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["odd.rows", "a.b.c", "main.odd rows"])
async def test_a_name_may_have_dots(url: str, name: str) -> None:
    """Where there is no schema of the words in front, they are the table's."""
    with sql_world(url) as target:
        remake(target, f'CREATE TABLE "{name}" (id BIGINT PRIMARY KEY, name TEXT)')
        target.stage = replace(target.stage, table=name)
        await merged(target, {"id": 1, "name": "a"})
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql(f'SELECT id, name FROM "{name}"').all() == [(1, "a")]
        found = SqlTable(target.engine, name, InlineSpawner(), LookupSettings())
        assert set(await found.columns()) == {"id", "name"}


@pytest.mark.postgres
async def test_a_table_that_others_alter_is_waited_for_with_a_word(postgres: str) -> None:
    """As a sink opens, and as a lookup looks: their transaction is open, and may be for ever."""
    with sql_world(postgres) as target:
        reading = engine_of(postgres, {}, 0)
        with target.engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE rows ADD more INT")
            with pytest.raises(TargetUnavailable, match="lock timeout"):
                await target.sink().open(IDENTITY, Epoch(0))
            with pytest.raises(TableUnavailable, match="lock timeout"):
                await SqlTable(reading, "rows", InlineSpawner(), LookupSettings()).find((), [()])
        reading.dispose()
        await merged(target, {"id": 1, "more": 2})
        assert await target.visible() == [1]


@pytest.mark.parametrize("way", ["constant", "expression"])
async def test_a_column_that_is_added_is_taken_from_the_next_epoch_on(url: str, way: str) -> None:
    """A reason says to add it. Within an epoch the table is looked at again once."""
    options: dict[str, Any] = {} if way == "constant" else {"when_matched": expression({"$literal": "merge"})}
    with sql_world(url, **options) as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        for _ in range(2):
            (rejected,) = await sink.accept(documents_batch([{"id": 1, "more": 2}]))
            assert "more: the table has no such column; project the field away, or add the column" in rejected.reason
        with target.engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE rows ADD more INT")
        (rejected,) = await sink.accept(documents_batch([{"id": 1, "more": 2}]))
        await sink.stage(Epoch(1), Epoch(0))
        assert not await sink.accept(documents_batch([{"id": 1, "more": 2}]))
        staged = await sink.stage(Epoch(2), Epoch(1))
        await sink.release(row_of(2, 0, staged), staged)
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT id, more FROM rows").all() == [(1, 2)]


async def test_S6_a_row_cannot_be_replaced_by_one_without_a_value_that_it_needs(url: str) -> None:
    """Without `insert` a missing column becomes null; what the database numbers stays."""
    with sql_world(url, when_matched="replace", when_not_matched="discard") as target:
        number = "" if url.startswith("sqlite") else ", n INT GENERATED BY DEFAULT AS IDENTITY"
        remake(
            target,
            f"CREATE TABLE rows (id BIGINT PRIMARY KEY, a INT NOT NULL DEFAULT 5, b INT DEFAULT 6{number})",
            "INSERT INTO rows (id) VALUES (1), (2)",
        )
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        (rejected,) = await sink.accept(documents_batch([{"id": 1, "b": 1}, {"id": 2, "a": 7}]))
        assert (rejected.row, rejected.reason.partition(": ")[2]) == (
            0, "a: the column takes no null, and the document has no value for it"
        )  # fmt: skip
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged), staged)
        with target.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT * FROM rows ORDER BY id").all()
        assert [tuple(row) for row in rows] == [
            (1, 5, 6, *([1] if number else [])),
            (2, 7, None, *([2] if number else [])),
        ]


async def test_null_is_null_in_a_column_of_json(url: str) -> None:
    """And in an array of such: JSON has a null of its own, which `IS NULL` does not find."""
    postgres = not url.startswith("sqlite")
    with sql_world(url) as target:
        more = ", bs JSONB[], b JSONB" if postgres else ""
        remake(target, f"CREATE TABLE rows (id BIGINT PRIMARY KEY, j JSON{more})")
        await merged(target, {"id": 1, "j": None, **({"bs": [None, {}], "b": None} if postgres else {})})
        with target.engine.connect() as connection:
            words = "j IS NULL AND b IS NULL AND bs[1] IS NULL AND bs[2] IS NOT NULL" if postgres else "j IS NULL"
            assert connection.exec_driver_sql(f"SELECT id FROM rows WHERE {words}").all() == [(1,)]


DOMAINS = (
    "CREATE DOMAIN above_0 AS int CHECK (VALUE > 0)", "CREATE TYPE pair AS (a int, b text)", "CREATE DOMAIN short AS varchar(3)",
    "CREATE DOMAIN of_short AS short", "CREATE DOMAIN tenths AS timestamp(1)", "CREATE DOMAIN cents AS numeric(6, 2)",
    'CREATE DOMAIN "odd %%s" AS bigint CHECK (VALUE > 0)', "CREATE DOMAIN four AS bit(4)", "CREATE DOMAIN to_four AS varbit(4)",
)  # fmt: skip
OPEN = [
    ("inet", "10.0.0.1", "10.0.0.256", 'inet: invalid input syntax for type inet: "10.0.0.256"'),
    ("interval", "PT5M", "five", 'interval: invalid input syntax for type interval: "five"'),
    ("int4range", "[1,5)", "[5,1)", "int4range: range lower bound must be less than or equal to range upper bound"),
    ("int4range", "[1,5)", [1, 5], "a range as text, found type array"),
    ("above_0", 5, -5, "above_0: value for domain above_0 violates check constraint"),
    ("above_0[]", [5, None], [5, -5], "value for domain above_0 violates check constraint"),
    ("pair", "(1,a)", "(x,a)", 'pair: invalid input syntax for type integer: "x"'),
    ("short", "abc", "abcd", "short: it would cut or round 'abcd'"),
    ("of_short", "abc", "abcd", "of_short: it would cut or round 'abcd'"),
    ("short[]", ["abc", None], ["abcd"], "short[]: it would cut or round"),
    ("tenths", Date(1500), Date(1250), "tenths: it would cut or round"),
    ("cents", Decimal("1.5"), Decimal("1.239"), "cents: it would cut or round '1.239'"),
    ("name", "a", "a" * 64, "name: it would cut or round"),
    ('"char"', "x", "xy", "it would cut or round 'xy'"),
    ("interval(0)", "1 s", "1.5 s", "interval(0): it would cut or round '1.5 s'"),
    ("four", "1010", "101", "four: it would cut or round '101'"),
    ("to_four", "101", "10101", "to_four: it would cut or round '10101'"),
    ("four", "1010", "x", "bits as text, found 'x'"),
    ('"odd %s"', 5, -5, 'value for domain "odd %s" violates check constraint'),
]  # fmt: skip


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore:Did not recognize type")
@pytest.mark.parametrize(("kind", "fits", "unfit", "finding"), OPEN)
@pytest.mark.parametrize("way", ["merge", "expression"])
async def test_S6_what_the_database_alone_knows_is_asked_before_staging(
    postgres: str, kind: str, fits: Any, unfit: Any, finding: str, way: str
) -> None:
    """Of many rows, and beside a column that fits: the reason names the column and what the database says of the value."""
    options: dict[str, Any] = {} if way == "merge" else {"when_matched": expression({"$literal": "merge"})}
    with sql_world(postgres, **options) as target:
        named = f"CREATE TABLE rows (id BIGINT PRIMARY KEY, other inet, c {kind})"
        remake(target, *DOMAINS, named.replace("%", "%%"))
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        documents = [{"id": n, "other": "::1", "c": unfit if n in (3, 4, 9) else fits} for n in range(10)]
        rejected = await sink.accept(documents_batch(documents))
        assert [each.row for each in rejected] == [3, 4, 9]
        assert all(each.reason.startswith("$merge: c: expected ") and finding in each.reason for each in rejected)
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged), staged)
        with target.engine.connect() as connection:
            ids = connection.exec_driver_sql("SELECT id FROM rows ORDER BY id").scalars().all()
        assert ids == [0, 1, 2, 5, 6, 7, 8]


@pytest.mark.postgres
async def test_arrays_have_as_many_dimensions_as_documents(postgres: str) -> None:
    """Those of text and JSON have one: an array in them is a value. Other lengths are refused."""
    with sql_world(postgres) as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, n int[], d timestamptz[], t text[])")
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        documents: list[Any] = [
            {"id": 1, "n": [[1, 2], [3, None]], "d": [[Date(0)]], "t": [["a"]]},
            {"id": 2, "n": [[1], [2, 3]]},
            {"id": 3, "n": [[1], None]},
            {"id": 4, "n": [[[1]], [[2]]]},
        ]
        rejected = await sink.accept(documents_batch(documents))
        assert [each.row for each in rejected] == [1, 2]
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged), staged)
        with target.engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT n, d::text, t FROM rows ORDER BY id").all()
        assert rows[0][0] == [[1, 2], [3, None]]
        assert rows[0][2] == ['["a"]']
        assert rows[1][0] == [[[1]], [[2]]]


@pytest.mark.postgres
async def test_a_domain_is_not_asked_for_columns_that_a_document_does_not_name(postgres: str) -> None:
    """They get their defaults, though other documents name them and the domain takes no null."""
    with sql_world(postgres) as target:
        remake(
            target,
            "CREATE DOMAIN there AS int NOT NULL",
            "CREATE DOMAIN checked AS int CHECK (VALUE IS NOT NULL)",
            "CREATE TABLE rows (id BIGINT PRIMARY KEY, a there DEFAULT 5, b checked DEFAULT 6, c inet)",
        )
        await merged(target, {"id": 1}, {"id": 2, "a": 7}, {"id": 3, "b": 8, "c": None}, {"id": 4, "c": "::1"})
        assert target.table() == [(1, 5, 6, None), (2, 7, 6, None), (3, 5, 8, None), (4, 5, 6, ANY)]


@pytest.mark.postgres
async def test_documents_of_an_expression_are_asked_for_together(postgres: str) -> None:
    """A question for each would take a hundred times as long."""
    with sql_world(postgres, when_matched=expression({"$literal": "merge"})) as target:
        remake(target, "CREATE TABLE rows (id BIGINT PRIMARY KEY, c inet)")
        sink, asked = target.sink(), list[str]()
        await sink.open(IDENTITY, Epoch(0))
        sa.event.listen(
            target.engine,
            "before_cursor_execute",
            lambda _c, _u, words, *_: asked.append(words) if "unnest" in words else None,
        )
        assert not await sink.accept(documents_batch([{"id": n, "c": "::1"} for n in range(100)]))
        assert len(asked) == 1


async def test_each_table_of_an_expression_is_looked_at_again_by_itself(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table whose documents never fit takes no look from another, and no other is read again for it."""
    with sql_world(url, when_matched="merge") as target:
        target.stage = replace(target.stage, table=expression("$to"))
        remake(target, *(f'CREATE TABLE {name} (id BIGINT PRIMARY KEY, "to" TEXT)' for name in ("odd", "other")))
        sink, looked = target.sink(), list[str]()
        await sink.open(IDENTITY, Epoch(0))
        assert not await sink.accept(documents_batch([{"id": 1, "to": "odd"}, {"id": 1, "to": "other"}]))
        with target.engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE other ADD more INT")

        def seen(engine: sa.Engine, stage: Merge) -> sa.Table:
            looked.append(str(stage.table))
            return target_table(engine, stage)

        monkeypatch.setattr("tidemark.services.sink.connectors.sql.target_table", seen)
        batch = documents_batch([{"id": 2, "to": "odd", "more": 2}, {"id": 2, "to": "other", "more": 2}])
        assert [each.row for each in await sink.accept(batch)] == [0]
        looked.clear()
        await sink.stage(Epoch(1), Epoch(0))
        assert [each.row for each in await sink.accept(batch)] == [0]
        assert set(looked) == {"odd"}


@pytest.mark.postgres
async def test_a_release_that_looks_for_long_takes_no_newer_look_away(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new holder releases what its predecessor staged, into a table that documents come for meanwhile, and that gets a column."""
    executor, looks, goes_on = AsyncExecutor(), threading.Event(), threading.Event()
    with sql_world(postgres, when_matched="merge") as target:
        target.stage = replace(target.stage, table=expression("$to"))
        remake(target, 'CREATE TABLE other (id BIGINT PRIMARY KEY, "to" TEXT)')
        first = target.sink()
        await first.open(IDENTITY, Epoch(0))
        assert not await first.accept(documents_batch([{"id": 1, "to": "other"}]))
        staged = await first.stage(Epoch(1), Epoch(0))

        def slow(engine: sa.Engine, stage: Merge) -> sa.Table:
            found, is_first = target_table(engine, stage), not looks.is_set()
            looks.set()
            if is_first:
                goes_on.wait()
            return found

        monkeypatch.setattr("tidemark.services.sink.connectors.sql.target_table", slow)
        target.executor = executor
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        releasing = asyncio.ensure_future(sink.release(row_of(1, 0, staged), staged))
        await executor.blocking(looks.wait)
        try:
            assert not await sink.accept(documents_batch([{"id": 2, "to": "other"}]))
            with target.engine.begin() as other:
                other.exec_driver_sql("ALTER TABLE other ADD more INT")
            batch = documents_batch([{"id": 3, "to": "other", "more": 3}])
            assert not await sink.accept(batch)
        finally:
            goes_on.set()
            await releasing
        assert not await sink.accept(batch)
    await executor.close()


@pytest.mark.postgres
async def test_a_look_that_fails_takes_nothing_from_documents_that_fit(postgres: str) -> None:
    """Others alter the table for long, or have taken its key: what is known of it stays, for these and for releases beside them."""
    with sql_world(postgres) as target:
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        with target.engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE rows ADD more INT")
            with pytest.raises(TargetUnavailable, match="lock timeout"):
                await sink.accept(documents_batch([{"id": 1, "more": 2}]))
            assert not await sink.accept(documents_batch([{"id": 2}]))
        assert not await sink.accept(documents_batch([{"id": 1, "more": 2}]))
        with target.engine.begin() as other:
            other.exec_driver_sql("ALTER TABLE rows DROP CONSTRAINT rows_pkey")
        await sink.stage(Epoch(1), Epoch(0))
        (rejected,) = await sink.accept(documents_batch([{"id": 1, "else": 2}, {"id": 3}]))
        assert "else: the table has no such column" in rejected.reason


@pytest.mark.postgres
@pytest.mark.parametrize("document", [{"id": 1}, {"id": 1, "c": None}])
@pytest.mark.parametrize("nulls", ["CHECK (VALUE IS NOT NULL)", "NOT NULL"])
async def test_S6_a_domain_that_takes_no_null_needs_a_value(postgres: str, document: Document, nulls: str) -> None:
    """Its column takes null as far as the table says; another document may name it, or none does."""
    with sql_world(postgres) as target:
        remake(
            target,
            f"CREATE DOMAIN within AS int {nulls}",
            "CREATE DOMAIN there AS within",
            "CREATE TABLE rows (id BIGINT PRIMARY KEY, c there)",
        )
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(0))
        for documents in ([document, {"id": 2, "c": 5}], [document]):
            (rejected,) = await sink.accept(documents_batch(documents))
            assert "c: expected there: " in rejected.reason
        staged = await sink.stage(Epoch(1), Epoch(0))
        await sink.release(row_of(1, 0, staged), staged)
        assert target.table() == [(2, 5)]
