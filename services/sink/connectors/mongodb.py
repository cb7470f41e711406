"""The MongoDB sink: `$merge` and `$emit` into collections (protocol, S2, S6, S7).

- Each staged part is written with the marker's step from part to part and, with the last, from predecessor to n: in one transaction
  where the server has transactions (a replica set, shards), else one after the other. A server that stands alone takes only what may be
  written twice, because a release that breaks off is repeated from its last marked part on.
- Documents that no server takes are found before staging. A document that is refused all the same is a permanent error, which names commit
  and record.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import bson
import pyarrow as pa
from pymongo import errors
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from tidemark.services.sink.connectors.markers import check_open, is_due
from tidemark.services.sink.connectors.mergechanges import (
    HeldRows,
    NoChange,
    StagedChange,
    StagedRow,
    changes,
    document_of,
    place_of,
    staged_rows,
)
from tidemark.services.sink.connectors.mongodbsettings import MongoSinkSettings
from tidemark.services.sink.connectors.mongodbwrites import CollectionWriter, DocumentRefused
from tidemark.services.sink.connectors.staging import Part, PartStore
from tidemark.shared.adapters.mongodb import (
    Client,
    NoBson,
    ends_at,
    has_transactions,
    is_denied,
    is_passing,
    stored,
    words_of,
)
from tidemark.shared.language.expressions.ast import Call, Literal
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import encode_doc, type_name
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.values import ObjectId, Regex
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import Identity, Rejected, TargetDenied, TargetRefused, TargetUnavailable

MARKERS: Final = "tidemark_released"
"""The collection of markers, beside the collection that is written, or in the connection's database where an expression names that."""
_MAJORITY: Final = WriteConcern("majority")
_CLOSED: Final = ("admin", "config", "local")
_ID: Final = "_id"
Marked = Mapping[str, Any]


class MongoSink:
    """`SinkPort` into a collection, or those that an expression names. `client` is pymongo's; its work runs on the executor's threads."""

    def __init__(
        self,
        stage: Merge,
        client: Client,
        parts: PartStore,
        executor: Executor,
        settings: MongoSinkSettings | None = None,
        source_topics: Topics = None,
    ) -> None:
        """source_topics: those that the rows came from, for `$meta`."""
        self._stage = stage
        self._client = client
        self._parts = parts
        self._executor = executor
        self._settings = settings or MongoSinkSettings()
        self._source_topics = source_topics
        self._held = HeldRows(parts, self._settings.part_bytes_max)
        self._identity: Identity | None = None
        self._transactions = False
        self._marked: Marked = {}
        """The marker, as it was seen last."""
        self._checked: set[str] = set()
        self._writers: dict[tuple[str, str, str], CollectionWriter] = {}

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return place_of(self._stage)

    # --- taking over --------------------------------------------------------------------------------------------------------

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`. TargetRefused if `on` is no unique key, or needs transactions that the server has not."""
        self._identity = identity
        self._held = HeldRows(self._parts, self._settings.part_bytes_max, restored_from)
        return await self._executor.blocking(partial(self._open, identity, restored_from, joins=joins))

    def _open(self, identity: Identity, restored_from: Epoch, *, joins: bool) -> Epoch:
        with self._errors("opening"):
            self._checked, self._writers = set(), {}
            self._transactions = has_transactions(self._client)
            if isinstance(self._stage.table, str):
                self._check(self._stage)
            markers, name = self._markers(), str(identity)
            found = markers.find_one({_ID: name})
            marker = None if found is None else Epoch(found["released"])
            check_open(identity, marker, restored_from, self.place, joins=joins)
            if marker is None:
                first = {"released": restored_from, "parts": 0}
                markers.update_one({_ID: name}, {"$setOnInsert": first}, upsert=True)
            elif joins and marker < restored_from:
                markers.update_one({_ID: name, "released": marker}, {"$set": {"released": restored_from, "parts": 0}})
            marker = self._look(identity)
            if marker != restored_from:  # another holder may have been faster
                check_open(identity, marker, restored_from, self.place, joins=joins)
        return marker

    def _markers(self) -> "Collection[Mapping[str, Any]]":
        """The majority's state, from the primary: a marker that a fail-over takes back has told of nothing."""
        concern = ReadConcern("majority") if self._transactions else None
        database = self._client[_database(self._stage, self._client)]
        return database.get_collection(MARKERS, None, ReadPreference.PRIMARY, _MAJORITY, concern)

    def _look(self, identity: Identity) -> Epoch:
        """Read the marker. TargetRefused if it is gone."""
        found = self._markers().find_one({_ID: str(identity)})
        if found is None:
            raise TargetRefused(f"{self.place}: the marker of {identity} is gone from {MARKERS}")
        self._marked = found
        return Epoch(found["released"])

    def _check(self, stage: Merge) -> None:
        """TargetRefused for a collection that cannot be written as the stage says."""
        if stage.table in self._checked:
            return
        if len(self._checked) >= self._settings.collections_max:
            raise TargetRefused(
                f"{self.place}: the expression has named {len(self._checked)} collections, which is collections_max"
            )
        why = refusal(self._client, stage, transactions=self._transactions)
        if why is not None:
            raise TargetRefused(f"{place_of(stage)}: {why}")
        self._checked.add(str(stage.table))

    def _writer(self, row: StagedRow) -> CollectionWriter:
        """How a row is written. TargetRefused, TargetUnavailable."""
        key = (row.table, row.when_matched, row.when_not_matched) if isinstance(row, StagedChange) else ("", "", "")
        if key not in self._writers:
            stage = row.resolved(self._stage) if isinstance(row, StagedChange) else self._stage
            with self._errors(f"looking at {stage.table}"):
                self._check(stage)
                database, _, collection = str(stage.table).partition(".")
                found = self._client[database].get_collection(collection, None, ReadPreference.PRIMARY, _MAJORITY)
                if needs_transactions(stage) and not self._transactions:
                    raise TargetRefused(f"{place_of(stage)}: {_ALONE}")
                self._writers[key] = CollectionWriter(found, stage)
        return self._writers[key]

    # --- the epoch ------------------------------------------------------------------------------------------------------------

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`. After TargetUnavailable nothing of the batch was taken: it may be handed over again."""
        await self._held.make_room()
        if self._identity is None:
            raise ValueError("mongodb sink: accept before open")
        taken, refused = await self._executor.blocking(self._judged, batch)
        self._held.take(taken)
        return [Rejected(row, f"{self._stage.path}: {why}") for row, why in refused]

    def _judged(self, batch: pa.RecordBatch) -> tuple[list[StagedRow], list[tuple[int, str]]]:
        """The rows to stage, and those that no server takes, with the reasons."""
        rows: Sequence[StagedRow | NoChange]
        rows = (
            encoded(batch).to_pylist() if self._stage.is_constant else changes(self._stage, batch, self._source_topics)
        )
        taken: list[StagedRow] = []
        refused: list[tuple[int, str]] = []
        for number, row in enumerate(rows):
            try:
                if isinstance(row, NoChange):
                    raise row
                if isinstance(row, StagedChange):
                    self._writer(row)
                taken.append(named(self._stage, row))
            except (NoChange, NoBson, TargetRefused) as why:
                refused.append((number, str(why)))
        return taken, refused

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        return await self._held.handle(epoch, committed)

    # --- release --------------------------------------------------------------------------------------------------------------

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`. After TargetUnavailable it is called again; what was done then shows in the marker."""
        await self._released(row, staged, None)

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: each document that the server refuses is passed over; a part that cannot be read, whole."""
        skipped: list[int] = []
        await self._released(row, staged, skipped)
        return sum(skipped)

    async def _released(self, row: MirrorRow, staged: bytes, skipped: list[int] | None) -> None:
        """`skipped`: takes the numbers of records that may be passed over; None: none may."""
        identity = self._identity
        if identity is None:
            raise ValueError("mongodb sink: release before open")
        if not is_due(identity, Epoch(self._marked["released"]), row, self.place):
            return
        parts = self._parts.listed(staged)
        first = 0
        for number, part in enumerate(parts or (None,)):
            rows = 0 if part is None else part.rows
            if number >= self._marked["parts"]:
                documents = await self._loaded(part, skipped)
                step = partial(self._step, identity, row, number, max(1, len(parts)), documents, first, skipped)
                if not await self._executor.blocking(step):
                    # It stands elsewhere: an earlier try has done this part, and its answer was lost; or another holder has.
                    if not is_due(identity, Epoch(self._marked["released"]), row, self.place):
                        return
                    if self._marked["parts"] <= number:
                        raise TargetUnavailable(f"{self.place}: commit {row.epoch}: the marker of {identity} moves")
            first += rows

    async def _loaded(self, part: Part | None, skipped: list[int] | None) -> list[StagedRow]:
        if part is None:
            return []
        try:
            return staged_rows(await self._parts.load(part))
        except TargetRefused:
            if skipped is None:
                raise
            skipped.append(part.rows)
            return []

    def _step(
        self, identity: Identity, row: MirrorRow, number: int, parts: int, rows: list[StagedRow], first: int, skipped: list[int] | None
    ) -> bool:  # fmt: skip
        """Write a part, and move the marker behind it. False: the marker stood elsewhere, and has been read again."""
        name = str(identity)
        before = {"released": row.predecessor, "parts": number}
        after = {"released": row.epoch, "parts": 0} if number == parts - 1 else {**before, "parts": number + 1}
        refused: set[int] = set()
        while True:
            try:
                with self._errors(f"commit {row.epoch}"):
                    left = [(k, each) for k, each in enumerate(rows, first) if k not in refused]
                    moved = self._written(left, {_ID: name, **before}, {"$set": after})
                    if moved:
                        self._marked = {**self._marked, **after}
                    else:
                        self._look(identity)
            except DocumentRefused as error:
                if skipped is None:
                    raise TargetRefused(f"{self.place}: commit {row.epoch}, record {error.number}: {error}") from error
                refused.add(error.number)
                continue
            except TargetUnavailable as error:
                left = [(k, each) for k, each in enumerate(rows, first) if k not in refused]
                found = self._ending(left) if isinstance(error.__cause__, errors.AutoReconnect) else None
                if found is None:
                    raise
                if skipped is None:
                    raise TargetRefused(f"{self.place}: commit {row.epoch}, record {found}: {_ENDS}") from error
                refused.add(found)
                continue
            if moved and skipped is not None:
                skipped += [1] * len(refused)
            return moved

    def _ending(self, rows: list[tuple[int, StagedRow]]) -> int | None:
        """The number of a row at which the server ends the connection, though it answers otherwise; None where it does not."""

        def ends(some: list[tuple[int, StagedRow]]) -> bool:
            table = self._writer(some[0][1]).name
            return ends_at(self._client, table, [stored(document_of(each)) for _, each in some])

        if not rows or not ends(rows):
            return None
        while len(rows) > 1:
            half = rows[: len(rows) // 2]
            rows = half if ends(half) else rows[len(half) :]
        return rows[0][0] if ends(rows) else None

    def _written(self, rows: list[tuple[int, StagedRow]], marker: Marked, step: Marked) -> bool:
        """Whether the marker stood there; then the rows are written, and it has moved. DocumentRefused, with the number of a row."""
        markers = self._markers()
        if not self._transactions:
            if markers.find_one(marker) is None:
                return False
            self._write(rows, None)
            return bool(markers.update_one(marker, step).matched_count)
        with self._client.start_session() as session:
            with session.start_transaction(ReadConcern("snapshot"), _MAJORITY, ReadPreference.PRIMARY):
                # First, so that it is locked until the end of the transaction.
                moved = bool(markers.update_one(marker, step, session=session).matched_count)
                if moved:
                    self._write(rows, session)
            return moved

    def _write(self, rows: list[tuple[int, StagedRow]], session: ClientSession | None) -> None:
        """Write rows in their order; neighbours with one target together."""
        start = 0
        while start < len(rows):
            writer = self._writer(rows[start][1])
            end = start + 1
            while end < len(rows) and self._writer(rows[end][1]) is writer:
                end += 1
            writer.write(rows[start:end], session)
            start = end

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """The server's errors in the words of a sink."""
        try:
            yield
        except (errors.PyMongoError, NoBson) as error:
            sentence = f"{self.place}: {doing}: {words_of(error)}"
            if is_denied(error):
                raise TargetDenied(f"{sentence}; correct the connection's url, or the user's rights") from error
            if is_passing(error):
                raise TargetUnavailable(sentence) from error
            raise TargetRefused(sentence) from error

    async def close(self) -> None:
        """Nothing to let go of: the client is its owner's."""


_ALONE: Final = (
    "this server stands alone and has no transactions, without which only whenMatched replace, merge or keepExisting with whenNotMatched"
    " insert or discard are written exactly once: make it a replica set (one server is enough)"
)


_ENDS: Final = (
    "the server ends the connection at this document, and answers otherwise: it does not take a value or a type in it; let"
    " the pipeline leave that out or turn it into another"
)


def named(stage: Merge, row: StagedRow) -> StagedRow:
    """The row, with an _id where that finds documents: it is given once, before the row is staged. NoBson for what cannot be stored."""
    document = document_of(row)
    if stage.on == (_ID,) and _ID not in document:
        document = {_ID: _new_id(), **document}
        data = encode_doc(document)
        row = StagedChange(data, *_rest(row)) if isinstance(row, StagedChange) else data
    stored(document)
    for name in stage.on:
        value = document.get(name)
        if value is None or type(value) in (list, Regex):
            what = f"type {type_name(value)}" if name in document else "nothing"
            raise NoBson(f"{name}: expected a value that finds a document, found {what}")
    return row


def needs_transactions(stage: Merge) -> bool:
    """Whether a stage writes what must not be written twice."""
    matched, not_matched = stage.when_matched, stage.when_not_matched
    return matched not in ("replace", "merge", "keepExisting") or not_matched not in ("insert", "discard")


def refusal(client: Client, stage: Merge, *, transactions: bool) -> str | None:
    """Why a collection can never be written as a stage says; None if it can. Asks the server; PyMongoError."""
    database, dot, name = str(stage.table).partition(".")
    if not dot or not database or not name:
        return "expected a database and a collection: db and coll, or table: db.coll"
    if database in _CLOSED or name.startswith("system.") or name == MARKERS:
        return f"{database}.{name} is the server's own, or Tidemark's"
    if set(database) & set('/\\ "$*<>:|?\x00') or set(name) & set("$\x00"):
        return f"{stage.table!r:.100} is no name of a database and a collection"
    # Not by an expression either: documents of one key in different modes, written twice, do not give what they gave once.
    if not transactions and needs_transactions(stage):
        return _ALONE
    if any("." in field for field in stage.on):
        return f"`on` is ({', '.join(stage.on)}): expected fields at the top of documents"
    if stage.on == (_ID,):
        return None
    found = client[database][name].index_information().values()
    keys = [[field for field, _ in index["key"]] for index in found if _tells_apart(index)]
    if set(stage.on) in [set(key) for key in keys]:
        return None
    return (
        f"`on` is ({', '.join(stage.on)}), which is no unique key of the collection: create a unique index on"
        f" {', '.join(stage.on)}, or change `on`"
    )


def _tells_apart(index: Mapping[str, object]) -> bool:
    """Whether an index is unique, over all documents, with plain comparisons."""
    partly = "partialFilterExpression" in index or index.get("sparse") or "collation" in index
    return bool(index.get("unique")) and not partly


def _database(stage: Merge, client: Client) -> str:
    """Where the markers are: in the stage's database, or the connection's, where an expression names that."""
    if isinstance(stage.table, str):
        return stage.table.partition(".")[0]
    if isinstance(stage.table, Call) and stage.table.args and isinstance(first := stage.table.args[0], Literal):
        return str(first.value)
    return str(client.get_default_database("tidemark").name)


def _new_id() -> ObjectId:
    """As drivers make them."""
    return ObjectId(bson.ObjectId().binary)


def _rest(change: StagedChange) -> tuple[str, str, str, bytes]:
    return change.table, change.when_matched, change.when_not_matched, change.variables
