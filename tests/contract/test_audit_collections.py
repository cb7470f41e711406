"""What an audit says of a collection that the MongoDB sink wrote: with transactions and without, for each way to merge."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from itertools import count
from typing import Any

import pytest
from pymongo import MongoClient

from tests.harness.mongodb.servers import Servers
from tidemark.services.audit.account import same
from tidemark.services.audit.collected import CollectionRead, read_collection
from tidemark.services.audit.history import AuditFailed, Commit
from tidemark.services.audit.merged import Unread, compare, merged_output
from tidemark.services.audit.outputs import NO_OUTPUT, VertexReleases
from tidemark.services.audit.recompute import EpochDone, Recomputed
from tidemark.services.library.release_world import IDENTITY, JOB, InlineSpawner, row_of
from tidemark.services.sink.connectors.mongodb import MARKERS, MongoSink
from tidemark.services.sink.connectors.staging import PartStore
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Merge
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import Binary, Date, Document, Long, ObjectId
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.planning import plan_processor

pytestmark = pytest.mark.mongodb
_NUMBERS = count()
_PLAN = plan_processor(
    parse({"pipeline": [{"$source": {"documents": []}}, {"$emit": {"path": "out", "format": "json"}}]}), engine="local"
)
_SOURCE = _PLAN.vertices[0].id
FULL: Document = {
    "id": Long(1), "name": "a", "ratio": 0.1, "price": Decimal("2.50"), "at": Date(86_400_123), "raw": Binary(b"\x00\xff"),
    "more": {"list": [1, "x", None], "id": ObjectId(b"0123456789ab")},
}  # fmt: skip


class Target:
    """A collection, what was released into it, and what an audit has computed again."""

    def __init__(self, url: str, on: str = "id", **options: Any) -> None:
        self.url = url
        self.client: MongoClient[Any] = MongoClient(url)
        self.database = self.client[f"audited{next(_NUMBERS)}"]
        self.rows = self.database["rows"]
        self.rows.create_index(on, unique=True)
        table = f"{self.database.name}.rows"
        self.stage = Merge(path="$merge", connection_name="c", table=table, on=(on,), **options)
        self.blobs = MemoryBlobs(InlineSpawner())
        self.commits: list[Commit] = []
        self.done: list[EpochDone] = []
        self.inline_bytes_max = 100_000

    async def release(
        self, *documents: Document, again: Sequence[Document] | None = None, visible: bool = True
    ) -> None:
        """An epoch. again: what the audit computes, if not the same. visible: else it is committed only."""
        epoch, before = Epoch(len(self.commits) + 1), Epoch(len(self.commits))
        parts = PartStore(self.blobs, lambda e: f"part-{e}", self.inline_bytes_max, 10_000_000)
        with closing(client_at(self.url, 10_000)) as client:
            sink = MongoSink(self.stage, client, parts, InlineSpawner())
            await sink.open(IDENTITY, before)
            assert not await sink.accept(batch_of(list(documents)))
            staged = await sink.stage(epoch, before)
            row = row_of(epoch, before, staged)
            if visible:
                await sink.release(row, staged)
        self.commits.append(Commit(row, {}, "here"))
        done = EpochDone(epoch)
        done.outputs[IDENTITY.vertex] = list(documents if again is None else again)
        done.senders[IDENTITY.vertex] = done.origins[IDENTITY.vertex] = [_SOURCE] * len(done.outputs[IDENTITY.vertex])
        self.done.append(done)

    async def audit(self) -> CollectionRead:
        """From the begin."""
        read = read_collection(IDENTITY.vertex, self.stage, self.url, frozenset([JOB]))
        assert isinstance(read, CollectionRead)
        what = VertexReleases(JOB, IDENTITY.vertex, self.commits, ended=False, before=NO_OUTPUT, since=Epoch(0))
        try:
            output = await merged_output(read, what, self.blobs)
            done = Recomputed(self.done, {}, _PLAN, ())
            await same(read.vertex, done, output, self.commits, read.expected, by_epoch=True, others=False)
            compare(read, self.done, output, self.commits, by_epoch=True, keep=Epoch(len(self.commits)))
        finally:
            read.close()
        return read


@pytest.fixture(params=["alone", "replicas"])
def made(mongodb_servers: Servers, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Makes targets on a server of each kind."""
    targets: list[Target] = []

    def make(**options: Any) -> Target:
        if request.param == "alone" and options.get("when_matched") == "delete":
            options["when_matched"] = "replace"  # it does not delete: that may not be done twice
        targets.append(Target(getattr(mongodb_servers, request.param), **options))
        return targets[-1]

    yield make
    for target in targets:
        target.client.close()


@pytest.mark.parametrize("mode", ["replace", "merge", "keepExisting", "delete"])
async def test_what_the_sink_wrote_is_what_follows(made: Any, mode: str) -> None:
    """Values of all types, documents met again in one epoch and in the next: no difference, in each mode."""
    target = made(when_matched=mode)
    await target.release(FULL, {"id": 2, "name": "b"}, {"id": 1, "ratio": 2.5}, {"id": 3})
    await target.release()
    await target.release({"id": 2, "price": 7}, {**FULL, "name": None}, {"id": 4, "at": Date(5)})
    read = await target.audit()
    assert read.unchecked == []
    assert read.notes == [f"emit: collection {target.stage.table}: _id, which the server gives"]


async def test_documents_to_which_the_sink_gave_an_id_are_compared(made: Any) -> None:
    """No record tells the id; all else of them must follow."""
    target = made(on="_id", when_matched="replace")
    await target.release({"a": 1}, {"a": 2}, {"_id": "own", "a": 3})
    assert (await target.audit()).unchecked == []
    target.rows.update_one({"a": 2}, {"$set": {"a": 7}})
    with pytest.raises(AuditFailed, match=r"field a: expected .*2.*, found .*7"):
        await target.audit()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"$set": {"name": "z"}}, 'field name: expected "a", found "z"'),
        ({"$set": {"ratio": 1}}, "field ratio: expected .*0.1.*, found .*1"),
        ({"$set": {"price": "2.50"}}, "field price"),
        ({"$unset": {"at": 1}}, "field at: expected .*, found none"),
        ({"$set": {"more.list.1": "y"}}, "field more"),
        ({"$set": {"extra": 1}}, "field extra: expected none"),
    ],
)
async def test_a_value_that_was_changed_is_named(made: Any, change: Any, says: str) -> None:
    """With its document and field, also where the value is the same of another type."""
    target = made(when_matched="merge")
    await target.release(FULL)
    target.rows.update_one({"id": 1}, change)
    with pytest.raises(AuditFailed, match=f"row id=.*1.*: {says}"):
        await target.audit()


async def test_a_document_that_was_dropped_or_added_is_named(made: Any) -> None:
    """Each by its key, with the numbers of documents."""
    target = made(when_matched="replace")
    await target.release({"id": 1}, {"id": 2})
    target.rows.insert_one({"id": 3})
    with pytest.raises(AuditFailed, match=r"3.*: follows from no record of the source; expected 2 rows, found 3"):
        await target.audit()
    target.rows.delete_many({"id": {"$in": [2, 3]}})
    with pytest.raises(AuditFailed, match=r"2.*: is missing; expected 2 rows, found 1"):
        await target.audit()


async def test_a_document_that_does_not_follow_from_the_records_is_named(made: Any) -> None:
    """What was staged is compared with what is computed again."""
    target = made(when_matched="replace")
    await target.release({"id": 1, "a": 1}, again=[{"id": 1, "a": 2}])
    with pytest.raises(AuditFailed, match="epoch 1, emit"):
        await target.audit()


async def test_a_collection_or_marker_that_is_gone_is_a_discrepancy(made: Any) -> None:
    """A job that has committed has a marker, and its documents."""
    target = made(when_matched="replace")
    await target.release({"id": 1})
    documents = list(target.rows.find())
    target.rows.drop()
    with pytest.raises(AuditFailed, match="is missing; expected 1 rows, found 0"):
        await target.audit()
    target.rows.insert_many(documents)
    target.database[MARKERS].delete_many({})
    with pytest.raises(AuditFailed, match="tidemark_released has none"):
        await target.audit()


async def test_a_collection_without_documents_need_not_be_there(made: Any) -> None:
    """MongoDB makes it with its first document."""
    target = made(when_matched="replace")
    await target.release()
    target.rows.drop()
    assert (await target.audit()).unchecked == []


async def test_a_release_under_way_is_no_discrepancy_where_a_server_shows_no_moment(made: Any) -> None:
    """Documents of a commit that no marker tells: with transactions nobody but a stranger can have written them."""
    target = made(when_matched="replace")
    await target.release({"id": 1})
    await target.release({"id": 2}, visible=False)
    assert (await target.audit()).unchecked == []
    target.rows.insert_one({"id": 2})
    if target.client.admin.command("isMaster").get("setName"):
        with pytest.raises(AuditFailed, match="follows from no record"):
            await target.audit()
        return
    (why,) = (await target.audit()).unchecked
    assert "commit 2 was not released when it was read: audit again" in why


@pytest.mark.parametrize("given", [True, False])
async def test_documents_that_are_staged_no_more_are_computed_again(made: Any, *, given: bool) -> None:
    """But for those whose _id the sink gave."""
    target = made(on="_id", when_matched="replace")
    target.inline_bytes_max = 1
    await target.release({"a": 1} if given else {"_id": 1, "a": 1})
    await target.blobs.delete(await target.blobs.list(""))
    unchecked = (await target.audit()).unchecked
    assert [("gave documents an _id" in why) for why in unchecked] == ([True] if given else [])


def test_a_server_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is a way to merge that a collection does not follow from."""
    monkeypatch.setattr("tidemark.services.audit.collected._ANSWER_MS", 100)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "the database gave no answer"),
        ({"when_matched": "fail"}, "whenMatched is fail"),
    ]
    for options, says in cases:
        stage = Merge(path="$merge", connection_name="c", table="d.rows", on=("id",), **options)
        read = read_collection(IDENTITY.vertex, stage, "mongodb://127.0.0.1:1/", frozenset())
        assert isinstance(read, Unread)
        assert says in read.why
