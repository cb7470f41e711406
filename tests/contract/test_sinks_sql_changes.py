# ruff: noqa: N802 -- a test carries its rule's name
"""`$merge` whose table, actions or rows hang on the document: expressions and pipelines, on SQLite and PostgreSQL (protocol, S5, S6)."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.contract.sinks_targets import SqlWorld
from tidemark.services.library.release_world import IDENTITY, row_of
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Merge
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Document
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import Rejected, TargetRefused


@contextlib.contextmanager
def world(url: str, into: Any = "rows", **options: Any) -> Iterator[SqlWorld]:
    """The world of a `$merge` as a document has it, with two further tables `rows_a` and `rows_b`."""
    target = SqlWorld(url)
    tree = {"into": {"connectionName": "c", "table": into}, "on": "id", **options}
    pipeline = [{"$source": {"documents": []}}, {"$merge": tree}]
    (stage,) = parse({"pipeline": pipeline, "connections": {"c": {"type": "sql", "url": url}}}).sinks
    assert isinstance(stage, Merge)
    target.stage = stage
    with target.engine.begin() as connection:
        for name in ("rows_a", "rows_b"):
            connection.exec_driver_sql(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR(20))")
    try:
        yield target
    finally:
        target.engine.dispose()


async def merged(target: SqlWorld, *documents: Document, epoch: int = 1) -> list[Rejected]:
    """Release these documents as one epoch; what the sink did not take."""
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(epoch - 1))
    rejected = await sink.accept(batch_of(list(documents)))
    staged = await sink.stage(Epoch(epoch), Epoch(epoch - 1))
    await sink.release(row_of(epoch, epoch - 1, staged), staged)
    return list(rejected)


def cells(target: SqlWorld, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table in order."""
    with target.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f"SELECT id, name FROM {table} ORDER BY id"))]


async def test_an_expression_names_the_table(url: str) -> None:
    """Each document goes to the table that the expression gives for it, and what that is for one need not be there for another."""
    with world(url, into={"$concat": ["rows_", "$name"]}) as target:
        assert not await merged(
            target, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "a"}, {"id": 1, "name": "b"}
        )
        assert cells(target, "rows_a") == [(1, "a"), (3, "a")]
        assert cells(target, "rows_b") == [(1, "b"), (2, "b")]


async def test_S6_what_is_no_table_is_not_taken(url: str) -> None:
    """A document whose expression gives no table, or one that is not there, goes to the dead letters; the others are written."""
    with world(url, into={"$concat": ["rows_", "$name"]}) as target:
        rejected = await merged(
            target, {"id": 1, "name": "zz"}, {"id": 2}, {"id": 3, "name": 4}, {"id": 4, "name": "a"}
        )
        assert [each.row for each in rejected] == [0, 1, 2]
        assert "no such table" in rejected[0].reason
        assert "$merge: into: expected the name of a table, found a value of type null" in rejected[1].reason
        assert cells(target, "rows_a") == [(4, "a")]


async def test_a_word_that_an_expression_gives_decides_what_becomes_of_a_row(url: str) -> None:
    """WhenMatched and whenNotMatched hang on the document: the same batch deletes, replaces and leaves rows."""
    matched = {"$switch": {"branches": [{"case": {"$eq": ["$name", "gone"]}, "then": "delete"}], "default": "merge"}}
    absent = {"$cond": [{"$eq": ["$name", "gone"]}, "discard", "insert"]}
    with world(url, whenMatched=matched, whenNotMatched=absent) as target:
        await merged(target, {"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "gone"})
        assert await target.visible() == [1, 2]
        await merged(target, {"id": 1, "name": "gone"}, {"id": 2, "name": "c", "note": "n"}, epoch=2)
        assert target.table() == [(2, "c", None, "n")]


async def test_S6_a_word_that_means_nothing_is_not_taken(url: str) -> None:
    """An expression that gives another word is the document's fault."""
    with world(url, whenMatched={"$ifNull": ["$note", "merge"]}) as target:
        (rejected,) = await merged(target, {"id": 1, "note": "burn"}, {"id": 2})
        assert (
            "whenMatched: expected one of replace, merge, keepExisting, delete, fail, found 'burn'" in rejected.reason
        )
        assert await target.visible() == [2]


async def test_a_pipeline_makes_of_the_row_what_it_becomes(url: str) -> None:
    """It sees the row as it is, earlier documents of the epoch included, and what let binds; a new row is the document itself."""
    options = {
        "let": {"more": "$note"},
        "whenMatched": [{"$set": {"note": {"$concat": ["$note", "+", "$$more"]}}}, {"$unset": "even"}],
    }
    with world(url, **options) as target:
        await merged(target, {"id": 1, "name": "a", "even": True, "note": "x"}, {"id": 1, "note": "y"})
        assert target.table() == [(1, "a", None, "x+y")]
        await merged(target, {"id": 1, "note": "z"}, {"id": 2, "note": "w"}, epoch=2)
        assert target.table() == [(1, "a", None, "x+y+z"), (2, None, None, "w")]


async def test_without_let_a_pipeline_sees_the_document_as_new(url: str) -> None:
    """As in MongoDB `$$new` is the document that came; with let there is only what it binds."""
    keeps_greater = [{"$replaceWith": {"$cond": [{"$gt": ["$$new.name", "$name"]}, "$$new", "$$ROOT"]}}]
    with world(url, whenMatched=keeps_greater) as target:
        await merged(target, {"id": 1, "name": "b", "note": "old"}, {"id": 1, "name": "a", "note": "less"})
        assert target.table() == [(1, "b", None, "old")]
        await merged(target, {"id": 1, "name": "c"}, epoch=2)
        assert target.table() == [(1, "c", None, None)]


async def test_S5_a_release_that_is_repeated_runs_no_pipeline_twice(url: str) -> None:
    """Rows are counted up once, though the commit is released again by the task and by one that took over."""
    with world(url, whenMatched=[{"$set": {"note": {"$concat": ["$note", "$$new.note"]}}}]) as target:
        first = target.sink()
        await first.open(IDENTITY, Epoch(0))
        await first.accept(batch_of([{"id": 1, "note": "a"}, {"id": 1, "note": "b"}]))
        staged = await first.stage(Epoch(1), Epoch(0))
        await first.release(row_of(1, 0, staged), staged)
        await first.release(row_of(1, 0, staged), staged)
        second = target.sink()
        await second.open(IDENTITY, Epoch(1))
        await second.release(row_of(1, 0, staged), staged)
        assert target.table() == [(1, None, None, "ab")]


@pytest.mark.parametrize(
    ("pipeline", "finding"),
    [
        ([{"$set": {"id": 2}}], "the pipeline changes id, which finds the row"),
        ([{"$set": {"other": 1}}], "other: the table has no such column"),
        ([{"$set": {"name": {"$add": ["$name", 1]}}}], r"whenMatched\[0\]"),
    ],
)
async def test_S6_a_pipeline_that_fails_on_a_row_is_a_refusal_that_can_be_skipped(
    url: str, pipeline: list[Any], finding: str
) -> None:
    """It names commit and record and writes nothing; skipped, the others are written."""
    with world(url, whenMatched=pipeline) as target:
        await merged(target, {"id": 1, "name": "a"})
        sink = target.sink()
        await sink.open(IDENTITY, Epoch(1))
        await sink.accept(batch_of([{"id": 2, "name": "b"}, {"id": 1, "name": "c"}]))
        staged = await sink.stage(Epoch(2), Epoch(1))
        with pytest.raises(TargetRefused, match=f"commit 2, record 1: .*{finding}"):
            await sink.release(row_of(2, 1, staged), staged)
        assert await target.visible() == [1]
        assert await sink.skip(row_of(2, 1, staged), staged) == 1
        assert [row[:2] for row in target.table()] == [(1, "a"), (2, "b")]


@pytest.mark.postgres
async def test_a_pipeline_leaves_cells_that_python_has_no_value_for(postgres: str) -> None:
    """A row that has `infinity` is changed like any other."""
    with world(postgres, whenMatched=[{"$set": {"name": "$$new.name"}}]) as target:
        with target.engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE rows ADD till TIMESTAMPTZ DEFAULT 'infinity'")
        await merged(target, {"id": 1, "name": "a"})
        await merged(target, {"id": 1, "name": "b"}, epoch=2)
        with target.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT name, till::text FROM rows").all() == [("b", "infinity")]
