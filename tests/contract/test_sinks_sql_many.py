# ruff: noqa: N802 -- a test carries its rule's name
"""Many rows at once are what they are one by one, on SQLite and PostgreSQL: `$merge` by sets of rows, conversion by columns (S5, S6)."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from tests.contract.sinks_targets import SqlWorld
from tests.contract.test_sinks_sql import sql_world
from tests.contract.test_sinks_sql_tables import remake
from tests.harness.share import share
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.services.sink.connectors import sqlrows, sqlwrites
from tidemark.services.sink.connectors.sqlrows import RowMaker, documents_array
from tidemark.services.sink.connectors.sqltable import target_table
from tidemark.services.sink.connectors.sqlvalues import Misfit
from tidemark.shared.language.values import decode_doc, encode_docs
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Binary, Date, Document, Long, ObjectId
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import TargetRefused

MATCHED = ("replace", "merge", "keepExisting", "delete", "fail")
NOT_MATCHED = ("insert", "discard", "fail")
KEYED = (
    "CREATE TABLE rows (id VARCHAR(9), part BIGINT, name TEXT CHECK (name <> 'bad'), note TEXT DEFAULT 'none', n BIGINT,"
    " UNIQUE (id, part))"
)
THERE = (
    "INSERT INTO rows (id, part, name, note, n)"
    " VALUES ('a', 1, 'old', 'kept', 7), ('b', 1, 'old', NULL, 8), ('quote\"', 2, 'old', 'x', 9)"
)


def drawn(chance: random.Random, count: int, *, bad: float) -> list[Document]:
    """Documents of few keys, with some fields or others."""
    found = []
    for number in range(count):
        document: Document = {"id": chance.choice(["a", "b", "c", 'quote"', "\\"]), "part": chance.randint(1, 2)}
        fields: Document = {"name": "bad" if chance.random() < bad else f"n{number}", "note": None, "n": Long(number)}
        document |= {name: value for name, value in fields.items() if chance.random() < 0.6}
        found.append(document)
    return found


def keyed(target: SqlWorld) -> None:
    target.stage = replace(target.stage, on=("id", "part"))


async def released(target: SqlWorld, documents: Sequence[Document], *, skips: bool = False) -> str:
    """Release an epoch; the refusal, or how many were skipped."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    assert not await sink.accept(batch_of(documents))
    staged = await sink.stage(Epoch(1), Epoch(0))
    row = row_of(1, 0, staged)
    try:
        if skips:
            return f"{await sink.skip(row, staged)} skipped"
        await sink.release(row, staged)
    except TargetRefused as refused:
        return str(refused)
    return "0 skipped"


def held(target: SqlWorld) -> list[tuple[Any, ...]]:
    with target.engine.connect() as connection:
        return sorted(map(tuple, connection.exec_driver_sql("SELECT * FROM rows")), key=repr)


@pytest.mark.parametrize(("matched", "not_matched"), share(list(itertools.product(MATCHED, NOT_MATCHED)), 4))
async def test_S5_an_epoch_of_many_rows_leaves_what_they_leave_one_by_one(
    url: str, matched: str, not_matched: str
) -> None:
    """Of keys that come often, with any fields, the table is as after statements of one row each; `fail` refuses the same record."""
    with sql_world(url, part_bytes=1 << 20, when_matched=matched, when_not_matched=not_matched) as target:
        keyed(target)
        for seed in range(5):
            documents = drawn(random.Random(seed), 1 + 7 * seed, bad=0)
            found = []
            for part_bytes, skips in ((1 << 20, True), (1, True), (1 << 20, False)):
                target.settings = replace(target.settings, part_bytes_max=part_bytes)
                remake(target, "DROP TABLE IF EXISTS tidemark_released", KEYED, THERE)
                said = await released(target, documents, skips=skips)
                found.append((said, held(target)))
            assert found[0] == found[1]
            refused = next(iter(refusals(documents, matched, not_matched)), None)
            assert (refused is None) == (found[2][0] == "0 skipped")
            if refused is None:
                assert found[2][1] == found[0][1]
            else:
                assert f"commit 1, record {refused}: the row is" in found[2][0]


def refusals(documents: Sequence[Document], matched: str, not_matched: str) -> list[int]:
    """The records that `fail` refuses, one by one, those behind others that were passed over."""
    there = {("a", 1), ("b", 1), ('quote"', 2)}
    found = []
    for number, document in enumerate(documents):
        key = (document["id"], document["part"])
        if (matched if key in there else not_matched) == "fail":
            found.append(number)
        elif key in there and matched == "delete":
            there.remove(key)
        elif key not in there and not_matched == "insert":
            there.add(key)
    return found


@pytest.mark.parametrize("matched", ["replace", "merge", "keepExisting"])
async def test_S6_of_many_rows_those_that_the_table_refuses_are_named_and_passed_over(url: str, matched: str) -> None:
    """Refused is the first row that the table refuses behind those before it; by order the others are released."""
    with sql_world(url, part_bytes=1 << 20, when_matched=matched) as target:
        keyed(target)
        for seed in range(4):
            documents = [
                {"id": str(n), "part": 1, "name": d.get("name")}
                for n, d in enumerate(drawn(random.Random(seed), 40, bad=0.1))
            ]
            bad = [n for n, d in enumerate(documents) if d["name"] == "bad"]
            remake(target, "DROP TABLE IF EXISTS tidemark_released", KEYED)
            said = await released(target, documents)
            assert (f"commit 1, record {bad[0]}:" in said and not held(target)) if bad else said == "0 skipped"
            remake(target, "DROP TABLE tidemark_released", KEYED)
            assert await released(target, documents, skips=True) == f"{len(bad)} skipped"
            assert {int(row[0]) for row in held(target)} == set(range(len(documents))) - set(bad)


@pytest.mark.postgres
async def test_keys_that_the_database_alone_finds_equal_are_rows_of_one_key(postgres: str) -> None:
    """1 and 1.0 are one key of a numeric column, `a` and `a ` one of a padded: the last document of each wins."""
    with sql_world(postgres, part_bytes=1 << 20) as target:
        keyed(target)
        remake(target, "CREATE TABLE rows (id NUMERIC, part CHAR(3), name TEXT, PRIMARY KEY (id, part))")
        documents: list[Document] = [
            {"id": Decimal(text), "part": part, "name": f"{text}{part}"}
            for text, part in (("1", "a"), ("1.0", "a "), ("2", "a"), ("1.00", "a"))
        ]
        assert await released(target, documents) == "0 skipped"
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT name FROM rows ORDER BY id").scalars().all() == ["1.00a", "2a"]


TYPED = {
    "postgresql": (
        "b BOOLEAN, i2 SMALLINT, i4 INTEGER, i8 BIGINT, r REAL, d DOUBLE PRECISION, n NUMERIC, n5 NUMERIC(5, 2), t TEXT,"
        " v VARCHAR(5), c CHAR(3), at TIMESTAMPTZ, plain TIMESTAMP, whole TIMESTAMP(0), day DATE, clock TIME, u UUID, raw BYTEA,"
        " j JSON, jb JSONB, ints INTEGER[], texts TEXT[], bits BIT(3), varying BIT VARYING(4), kept TEXT NOT NULL DEFAULT ''"
    ),
    "sqlite": (
        "b BOOLEAN, i2 SMALLINT, i4 INTEGER, i8 BIGINT, r REAL, d DOUBLE PRECISION, n NUMERIC, t TEXT, v VARCHAR(5),"
        " at TIMESTAMP, day DATE, clock TIME, raw BLOB, j JSON, free, kept TEXT NOT NULL DEFAULT ''"
    ),
}
VALUES: list[Any] = [
    None, True, False, 0, 1, -7, 999, 1000, 40_000, 2**31, -(2**31), Long(5), Long(2**53 + 1), Long(-(2**63)), 0.0, -0.0, 0.5, 0.125, 1e300,
    1e-300, 1.0000000000000002, float("nan"), float("inf"), "", "ab", "abcdef", "NULL", 'q"\\', "{x,y}", "\x00", "\ud800", "ü", "101",
    "127.0.0.1",     "12:30:00", "00000000-0000-0000-0000-000000000001", Date(0), Date(1_500), Date(86_400_000),
    Date(-62_135_596_800_000), Date(2**60),
    Binary(b"\x00\xff"),  ObjectId(b"a" * 12), Decimal("1.25"), Decimal("NaN"), [1, None], ["a", 'b"', None, "NULL"], [], {"x": [Date(0)]},
    {}, {"x\x00": 1}, ["\ud800"],
]  # fmt: skip


async def test_S6_columns_are_converted_as_values_are(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in a field of any type, a kernel and the converter of values refuse the same, and write the same."""
    with sql_world(url, part_bytes=1 << 20) as target:
        columns = TYPED[target.engine.dialect.name]
        remake(target, f"CREATE TABLE rows (id BIGINT PRIMARY KEY, {columns})")
        table = target_table(target.engine, target.stage)
        maker = RowMaker(table, ("id",), target.engine.dialect, inserts=True)
        chance, names = random.Random(1), [str(column.name) for column in table.columns if column.name != "id"]
        odd: list[Document] = [{"id": n, chance.choice(names): chance.choice(VALUES)} for n in range(4_000)]
        encoded = encode_docs(odd)
        expected = {}
        for row, data in enumerate(encoded):
            try:
                maker.parameters(decode_doc(data))
            except Misfit as misfit:
                expected[row] = str(misfit)
        refused = maker.misfits(documents_array(encoded))
        assert {row: str(misfit) for row, misfit in refused.items()} == expected
        assert 100 < len(expected) < 3_900
        fitting = [document for row, document in enumerate(odd) if row not in expected]
        by_columns = await told(target, fitting)
        remake(target, "DROP TABLE tidemark_released", f"CREATE TABLE rows (id BIGINT PRIMARY KEY, {columns})")
        monkeypatch.setattr(sqlrows, "_surely", lambda *_, **__: None)
        assert await told(target, fitting) == by_columns


async def test_a_key_is_written_alike_whichever_way_its_row_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one key are folded by what is handed over. Of two, one may be read by a kernel, and one by the converter of values."""
    with sql_world(url, part_bytes=1 << 20) as target:
        remake(target, f"CREATE TABLE rows (id BIGINT PRIMARY KEY, {TYPED[target.engine.dialect.name]})")
        table = target_table(target.engine, target.stage)
        maker = RowMaker(table, ("id",), target.engine.dialect, inserts=True)
        exact = [str(column.name) for column in table.columns if column.name != "id" and sqlwrites._is_exact(column)]
        encoded = encode_docs([{"id": 1, name: value} for name in exact for value in VALUES])
        misfits = maker.misfits(documents_array(encoded))
        encoded = [data for row, data in enumerate(encoded) if row not in misfits]
        by_kernels, _ = maker.rows(documents_array(encoded))
        monkeypatch.setattr(sqlrows, "_surely", lambda *_, **__: None)
        by_values, _ = maker.rows(documents_array(encoded))
        assert {name: by_kernels.values[name].tolist() for name in exact} == {
            name: by_values.values[name].tolist() for name in exact
        }


async def told(target: SqlWorld, documents: Sequence[Document]) -> list[tuple[Any, ...]]:
    """What the table has of released documents, as text that keeps types."""
    assert await released(target, documents) == "0 skipped"
    texts = (
        "SELECT rows::text FROM rows ORDER BY id"
        if target.engine.dialect.name == "postgresql"
        else "SELECT * FROM rows"
    )
    with target.engine.connect() as connection:
        return [tuple(map(repr, row)) for row in connection.exec_driver_sql(texts)]
