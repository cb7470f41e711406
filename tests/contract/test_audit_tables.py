"""What an audit says of a table that the SQL sink wrote: on SQLite and PostgreSQL, for each way to merge."""

import json
import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import INET

from tests.harness.share import share
from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable
from tidemark.services.audit.merged import Unread, compare, merged_output
from tidemark.services.audit.outputs import NO_OUTPUT, VertexReleases
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.recompute import EpochDone, SplitRecords, Stand, recompute
from tidemark.services.audit.tables import JobTables, TableRead, no_writers, read_table, stages_into
from tidemark.services.library.release_world import IDENTITY, JOB, InlineSpawner, row_of
from tidemark.services.sink.connectors.sql import MARKERS_TABLE, SqlSink, engine_of
from tidemark.services.sink.connectors.staging import PartStore, StagingSettings
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Merge
from tidemark.shared.model.ids import Epoch, JobId, SplitId, VertexId
from tidemark.shared.model.values import Binary, Date, Document, Long
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.ports.sink import Rejected

TYPES = {
    "id": "BIGINT PRIMARY KEY",
    "name": "VARCHAR(20)",
    "ratio": "DOUBLE PRECISION",
    "price": "NUMERIC(12, 2)",
    "at": "TIMESTAMP",
    "raw": "{bytes}",
    "more": "{json}",
    "note": "TEXT DEFAULT 'none'",
}
FULL: Document = {
    "id": Long(1), "name": "a", "ratio": 0.1, "price": Decimal("2.50"), "at": Date(86_400_123), "raw": Binary(b"\x00\xff"),
    "more": {"list": [1, "x", None]},
}  # fmt: skip


class Target:
    """A table, what was released into it, and what an audit has computed again."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.engine = engine_of(url)
        sqlite = self.engine.dialect.name == "sqlite"
        kinds = {"bytes": "BLOB", "json": "JSON"} if sqlite else {"bytes": "BYTEA", "json": "JSONB"}
        columns = ", ".join(f'"{name}" {kind.format(**kinds)}' for name, kind in TYPES.items())
        self.execute(f'CREATE TABLE "Rows" ({columns})')
        self.blobs = MemoryBlobs(InlineSpawner())
        self.stage = Merge(path="$merge", connection_name="c", table="Rows", on=("id",), **options)
        self.commits: list[Commit] = []
        self.done: list[EpochDone] = []
        self.since, self.kept = 0, NO_OUTPUT
        self.inline_bytes_max = 100_000
        self.handle_bytes_max = StagingSettings().handle_bytes_max

    def execute(self, statement: str, *values: Any) -> None:
        with self.engine.begin() as connection:
            connection.exec_driver_sql(statement, values)

    async def release(self, *documents: Document, again: Sequence[Document] | None = None) -> None:
        """An epoch. again: what the audit computes, if not the same."""
        epoch, before = Epoch(len(self.commits) + 1), Epoch(len(self.commits))
        parts = PartStore(self.blobs, lambda e: f"part-{e}", self.inline_bytes_max, self.handle_bytes_max)
        sink = SqlSink(self.stage, self.engine, parts, InlineSpawner())
        await sink.open(IDENTITY, before)
        assert not await sink.accept(batch_of(list(documents)))
        staged = await sink.stage(epoch, before)
        row = row_of(epoch, before, staged)
        await sink.release(row, staged)
        self.commits.append(Commit(row, {}, "here"))
        done = EpochDone(epoch)
        done.outputs[IDENTITY.vertex] = list(documents if again is None else again)
        self.done.append(done)

    async def audit(self, *, by_epoch: bool = True, goes_on: bool = False) -> TableRead:
        """goes_on: from where the last one ended."""
        since, before = (self.since, self.kept) if goes_on else (0, NO_OUTPUT)
        read = read_table(IDENTITY.vertex, self.stage, self.url, frozenset([JOB]))
        assert isinstance(read, TableRead)
        last = Epoch(len(self.commits))
        commits = self.commits[max(0, since - 1) :]
        what = VertexReleases(JOB, IDENTITY.vertex, commits, ended=True, before=before, since=Epoch(since))
        try:
            output = await merged_output(read, what, self.blobs)
            compare(read, self.done[since:], output, self.commits[since:], by_epoch=by_epoch, keep=last)
        finally:
            read.engine.dispose()
        if output.table is not None:
            self.since, self.kept = last, output.keep(last, before)
        return read


@pytest.fixture
def made(url: str) -> Iterator[Any]:
    targets: list[Target] = []

    def make(**options: Any) -> Target:
        targets.append(Target(url, **options))
        return targets[-1]

    yield make
    for target in targets:
        target.engine.dispose()


MODES = ["replace", "merge", "keepExisting", "delete"]


@pytest.mark.parametrize("mode", MODES)
async def test_what_the_sink_wrote_is_what_follows(made: Any, mode: str) -> None:
    """Documents with all and with few columns, rows met again in one epoch and in the next: no difference, in each mode."""
    target = made(when_matched=mode)
    await target.release(FULL, {"id": 2, "name": "b"}, {"id": 1, "ratio": 2.5}, {"id": 3})
    await target.release()
    await target.release({"id": 2, "price": 7}, {**FULL, "name": None}, {"id": 4, "at": Date(5)})
    read = await target.audit()
    assert read.unchecked == []
    assert read.notes == ["emit: table Rows: columns that the database fills: note"]


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [
        ("name", "'A'", "column name"),
        ("ratio", "0.1000000000000001", "column ratio"),
        ("price", "2.51", "column price"),
        ("at", "'1970-01-02 00:00:00.124'", "column at"),
        ("more", """'{"list": [1, "y", null]}'""", "column more"),
        ("raw", "NULL", "column raw: expected .*, found null"),
    ],
)
async def test_a_value_of_any_type_that_was_changed_is_named(made: Any, column: str, value: str, says: str) -> None:
    """By row and column, with both values."""
    target = made(when_matched="replace")
    await target.release(FULL, {"id": 2})
    target.execute(f'UPDATE "Rows" SET "{column}" = {value} WHERE id = 1')
    with pytest.raises(AuditFailed, match=rf"^emit: table Rows, row id=1: {says}"):
        await target.audit()


@pytest.mark.parametrize("mode", MODES)
async def test_a_row_that_was_dropped_or_added_is_named(made: Any, mode: str) -> None:
    """By its key, with how many there are."""
    target = made(when_matched=mode)
    await target.release(FULL, {"id": 2})
    target.execute('DELETE FROM "Rows" WHERE id = 2')
    with pytest.raises(AuditFailed, match=r"row id=2: is missing; expected 2 rows, found 1"):
        await target.audit()
    target.execute('INSERT INTO "Rows" (id) VALUES (2), (7)')
    with pytest.raises(AuditFailed, match=r"row id=7: follows from no record of the source; expected 2 rows, found 3"):
        await target.audit()


async def test_a_column_that_the_database_fills_is_compared_where_every_document_names_it(made: Any) -> None:
    """A default stands for nothing then."""
    target = made(when_matched="replace")
    await target.release({"id": 1, "note": "x"}, {"id": 2, "note": "y"})
    assert (await target.audit()).notes == []
    target.execute("UPDATE \"Rows\" SET note = 'z' WHERE id = 2")
    with pytest.raises(AuditFailed, match=r"row id=2: column note: expected '?y'?, found '?z'?$"):
        await target.audit()


def _drawn(chance: random.Random) -> Document:
    values: Document = {
        "name": chance.choice(["a", "\u00e9'\"", "", None]),
        "ratio": chance.choice([0.1, -0.0, 1e300, 5e-324, float("inf"), 3]),
        "price": chance.choice([Decimal("2.50"), Decimal("-0.01"), 7]),
        "at": chance.choice([Date(86_400_123), Date(-1), None]),
        "raw": Binary(chance.randbytes(chance.choice([0, 3]))),
        "more": chance.choice([{"list": [1, "x", None]}, [], "text", None]),
        "note": chance.choice(["n", "m"]),
    }
    named = chance.sample(sorted(values), chance.randrange(len(values) + 1))
    return {"id": chance.randrange(1, 7), **{name: values[name] for name in named}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", share(range(12), 6))
async def test_an_audit_goes_on_from_the_table_that_the_last_one_expected(made: Any, mode: str, seed: int) -> None:
    """Each value comes back as it was; it finds what an audit from the begin finds, and a change to a row of before."""
    chance = random.Random(seed)
    target = made(when_matched=mode)
    for _ in range(6):
        await target.release(*(_drawn(chance) for _ in range(chance.randrange(4))))
        if chance.random() < 0.5:
            assert (await target.audit(goes_on=True)).unchecked == []
    kept = target.since, target.kept
    went_on = await target.audit(goes_on=True)
    whole = await target.audit()
    assert (went_on.unchecked, went_on.notes) == (whole.unchecked, whole.notes)
    target.since, target.kept = kept
    target.execute('INSERT INTO "Rows" (id) VALUES (9)')
    with pytest.raises(AuditFailed, match=r"row id=9: follows from no record of the source"):
        await target.audit(goes_on=True)


@pytest.mark.parametrize("change", ['ADD COLUMN "extra" TEXT', 'DROP COLUMN "ratio"'])
async def test_a_table_with_other_columns_than_at_the_last_audit_is_no_discrepancy(made: Any, change: str) -> None:
    """Values go by the names of their columns, not by places."""
    target = made(when_matched="merge")
    await target.release(FULL, {"id": 2, "name": "b"})
    await target.audit(goes_on=True)
    target.execute(f'ALTER TABLE "Rows" {change}')
    assert (await target.audit(goes_on=True)).unchecked == []


async def test_the_order_of_an_epoch_s_rows_is_that_of_their_release(made: Any) -> None:
    """Whatever they are computed in; where what was staged is kept no more, such rows are unchecked, and others judged."""
    target = made(when_matched="replace")
    first, last, other = {"id": 1, "name": "first"}, {"id": 1, "name": "last"}, {"id": 2, "name": "other"}
    await target.release(first, last, other, again=[last, other, first])
    assert (await target.audit()).unchecked == []

    target.inline_bytes_max = 0
    await target.release(first, last, other, again=[last, other, first])
    assert (await target.audit()).unchecked == []
    await target.blobs.delete(["part-2"])
    unchecked = ["emit: table Rows: 1 rows: in which order an epoch wrote them several times is kept no more"]
    assert (await target.audit()).unchecked == unchecked
    (why,) = (await target.audit(by_epoch=False)).unchecked
    assert "what was staged up to commit 2 is kept no more" in why
    target.execute("UPDATE \"Rows\" SET name = 'otter' WHERE id = 2")
    with pytest.raises(AuditFailed, match="row id=2: column name"):
        await target.audit()
    target.execute("UPDATE \"Rows\" SET name = 'other' WHERE id = 2")
    await target.release(first)
    assert (await target.audit()).unchecked == [], "a later row replaced it"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"when_matched": "fail"}, "whenMatched is fail"),
        ({"when_not_matched": "fail"}, "whenNotMatched is fail"),
        ({"when_matched": "merge", "when_not_matched": "discard"}, "whenNotMatched is discard"),
    ],
)
def test_a_table_that_is_no_function_of_the_records_is_said(url: str, options: dict[str, Any], says: str) -> None:
    """Where what was there before decides, there is no statement, and the reason is told."""
    stage = Merge(path="$merge", connection_name="c", table="Rows", on=("id",), **options)
    read = read_table(IDENTITY.vertex, stage, url, frozenset())
    assert isinstance(read, Unread)
    assert says in read.why


async def test_a_table_or_marker_that_is_gone_is_a_discrepancy(made: Any) -> None:
    """Both are kept for ever."""
    target = made(when_matched="replace")
    await target.release({"id": 1})
    target.execute(f"DELETE FROM {MARKERS_TABLE}")
    with pytest.raises(
        AuditFailed, match=f"{MARKERS_TABLE} has none for .*; expected one of the job's commits, up to 1"
    ):
        await target.audit()
    target.execute('DROP TABLE "Rows"')
    with pytest.raises(AuditFailed, match="into Rows: no such table"):
        await target.audit()


async def test_a_task_that_began_while_the_audit_read_is_no_discrepancy(made: Any) -> None:
    """Its commit is read after the table, which had no marker of it yet: that is no marker that was lost."""
    target = made(when_matched="replace")
    read = read_table(IDENTITY.vertex, target.stage, target.url, frozenset([JOB]))
    assert isinstance(read, TableRead)
    await target.release({"id": 1})
    with pytest.raises(NotAuditable, match=r"emit: table Rows: .* began while it was read; audit again"):
        await merged_output(read, VertexReleases(JOB, IDENTITY.vertex, target.commits, ended=True), target.blobs)
    read.engine.dispose()


async def test_a_handle_of_any_size_is_read(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """How large handles may be is a setting of the sinks: what is committed is judged whatever it was."""
    target = made(when_matched="replace")
    monkeypatch.setattr(target, "inline_bytes_max", 2_000_000)
    monkeypatch.setattr(target, "handle_bytes_max", 2_000_000)
    await target.release(*({"id": n, "name": "n" * 20} for n in range(20_000)))
    assert len(target.commits[0].staged[IDENTITY.vertex, IDENTITY.index]) > StagingSettings().handle_bytes_max
    assert (await target.audit()).unchecked == []


@pytest.mark.parametrize(
    ("url", "table", "other_url", "other_table"),
    [
        ("sqlite:////data/t.db", "rows", "sqlite:////data/../data/t.db", "main.Rows"),
        ("postgresql://a@db/x", "rows", "postgresql+psycopg://b:c@DB:5432/x", "public.rows"),
    ],
)
def test_one_table_by_two_addresses_is_one(url: str, table: str, other_url: str, other_table: str) -> None:
    """What two processors write into it is no function of one's records, however their documents name it."""
    writers = [JobTables(JOB, ((url, table),)), JobTables(JobId("j2"), ((other_url, other_table), (url, "more")))]
    assert stages_into(writers, url, table) == 2
    assert stages_into(writers, url, "more") == 1


def test_a_job_that_writes_a_table_of_the_same_name_may_be_its_writer() -> None:
    """By another name of the host, say: its marker beside the table makes a difference doubtful, instead of a failure."""
    url = "postgresql://db/x"
    writers = [JobTables(JOB, ((url, "rows"),)), JobTables(JobId("j2"), (("postgresql://10.0.0.1/x", "rows"),))]
    writers.append(
        JobTables(JobId("j3"), ((url, "more"), ("sqlite:///${HOME}/x", "y"), ("postgresql://h:${P}/x", "z")))
    )
    assert stages_into(writers, url, "rows") == 1
    assert no_writers(writers, JOB, "rows") == {JOB, JobId("j3")}


def test_a_database_that_does_not_answer_is_said() -> None:
    """No statement is made, and none is a failure."""
    stage = Merge(path="$merge", connection_name="c", table="rows", on=("id",))
    read = read_table(IDENTITY.vertex, stage, "postgresql://nobody@127.0.0.1:1/none", frozenset())
    assert isinstance(read, Unread)
    assert read.why.startswith("the database gave no answer: ")


async def test_the_audit_writes_nothing_into_the_database(made: Any) -> None:
    """No table, no row, no number of a sequence."""
    target = made(when_matched="merge")
    await target.release(FULL)
    before = sa.inspect(target.engine).get_table_names()
    await target.audit()
    assert sa.inspect(target.engine).get_table_names() == before


async def test_a_table_that_is_too_large_to_be_held_ends_the_command(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the setting that bounds what a command holds, which the error names."""
    target = made(when_matched="merge")
    await target.release({"id": 1, "name": "n" * 20})
    monkeypatch.setenv("TIDEMARK_AUDIT", '{"held_bytes_max": 15}')
    with pytest.raises(TooMuchHeld, match=r"table Rows: .* held_bytes_max in TIDEMARK_AUDIT"):
        await target.audit()


def test_what_a_target_would_refuse_is_expected_among_the_dead_letters() -> None:
    """S6: as the sink's task sends it, instead of a row."""
    document = {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "x"}, "t": {"type": "sql", "url": "sqlite:///t"}},
        "pipeline": [
            {"$source": {"connectionName": "k", "topic": "in", "timeField": {"$toDate": {"$toLong": "$at"}}}},
            {"$merge": {"into": {"connectionName": "t", "table": "rows"}}},
        ],
        "options": {"dlq": {"connectionName": "k", "topic": "late"}},
    }
    split = SplitId("in-0")
    values = [json.dumps({"_id": n, "at": 1_000 + n}).encode() for n in range(3)]
    records = SplitRecords.of(VertexId("source-1"), split, 0, ((at, 5, value, None) for at, value in enumerate(values)))
    stands = [(Epoch(1), {split: Stand(3, "active")})]
    accepts = {VertexId("emit-1"): lambda _: [Rejected(1, "$merge: too long")]}
    (done,) = recompute(parse(document), [records], stands, "p", accepts=accepts).epochs
    assert [d["_id"] for d in done.outputs[VertexId("emit-1")]] == [0, 2]
    (letter,) = done.outputs[VertexId("dlq")]
    assert letter["errInfo"]["reason"] == "$merge: too long"
    assert letter["operatorName"] == "$merge"
    assert letter["doc"]["_id"] == 1


def test_a_database_that_is_away_while_documents_are_judged_is_said() -> None:
    """The types of a table are asked for again then."""
    table = sa.Table("rows", sa.MetaData(), sa.Column("id", sa.BigInteger, primary_key=True), sa.Column("c", INET))
    stage = Merge(path="$merge", connection_name="c", table="rows", on=("id",))
    engine = engine_of("postgresql+psycopg://nobody@127.0.0.1:1/none")
    read = TableRead(IDENTITY.vertex, stage, [], {}, frozenset(), engine=engine, table=table)
    with pytest.raises(NotAuditable, match=r"rows: the database gave no answer: .*[Cc]onnection refused"):
        read.rejected(batch_of([{"id": 1, "c": "::1"}]))
    read.close()
