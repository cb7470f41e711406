"""Collections of MongoDB that `$merge` and `$emit` write into. See merged.py.

The expected content is made here, as the server would: the writes that an audit follows are the sink's own four (`mongodbwrites.py`). An
`_id` that a sink or the server gave is in no record: the first is in the staged documents, the second is not compared.

A server with transactions shows documents and markers of one moment. One that stands alone does not: there a release may be under way.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import bson
import pyarrow as pa
from pymongo import errors
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from tidemark.services.audit.expected import PLAIN, ExpectedOutput, Line
from tidemark.services.audit.history import Commit
from tidemark.services.audit.merged import MARKERS, Key, NotWritten, TargetRead, Unread, shown, why_not
from tidemark.services.audit.outputs import KeptTable, Output
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.recompute import EpochDone
from tidemark.services.audit.scratch import Row
from tidemark.services.audit.settings import audit_settings
from tidemark.services.sink.connectors.mongodb import named
from tidemark.services.sink.connectors.mongodbsettings import MongoSinkSettings
from tidemark.shared.adapters.mongodb import Client, NoBson, client_at, from_bson, has_transactions, stored
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import canonical_key, parse_json, render_json
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.model.values import Document, ObjectId
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.ports.sink import Rejected

_ID: Final = "_id"
_DOCUMENT: Final = "document"
_ANSWER_MS: Final = MongoSinkSettings().answer_ms


@dataclass(slots=True, kw_only=True)
class CollectionRead(TargetRead):
    """A collection. Its rows are the fields of `on`, and the document, as texts."""

    kind: ClassVar[str] = "collection"
    client: Client
    transactions: bool

    @property
    def columns(self) -> list[str]:
        """See `TargetRead.columns`."""
        return [*self.stage.on, _DOCUMENT]

    @property
    def expected(self) -> ExpectedOutput:
        """See `TargetRead.expected`: without an _id that the sink may have given."""
        return replace(PLAIN, text=self._line) if self.stage.on == (_ID,) else PLAIN

    @staticmethod
    def _line(document: Document) -> Line:
        given = isinstance(document.get(_ID), ObjectId)
        return PLAIN.text({k: v for k, v in document.items() if k != _ID} if given else document)

    def unjudged(self, done: Sequence[EpochDone], output: Output) -> str:
        """See `TargetRead.unjudged`: an _id that the sink gave is in the staged documents alone."""
        lost = [each for each in done if each.epoch in output.untold]
        if self.stage.on == (_ID,) and any(_ID not in d for each in lost for d in each.outputs.get(self.vertex, [])):
            return f"the sink gave documents an _id, and what was staged up to commit {lost[-1].epoch} is kept no more"
        return ""

    def moving(self, output: Output, commits: Sequence[Commit]) -> str:
        """See `TargetRead.moving`."""
        due = [commit.epoch for commit in commits if not output.complete(commit, self.vertex)]
        if self.transactions or not due:
            return ""
        return f"the server has no transactions, and commit {due[0]} was not released when it was read: audit again"

    def rejected(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `TargetRead.rejected`."""
        found: list[Rejected] = []
        for number, row in enumerate(encoded(batch).to_pylist()):
            try:
                named(self.stage, row)
            except NoBson as why:
                found.append(Rejected(number, f"{self.stage.path}: {why}"))
        return found

    def came_since(self, name: str) -> bool:
        """See `TargetRead.came_since`."""
        return self.client[self._database][MARKERS].find_one({_ID: name}) is not None

    @property
    def _database(self) -> str:
        return str(self.stage.table).partition(".")[0]

    def keys(self, documents: Sequence[Document]) -> list[Key]:
        """See `TargetRead.keys`."""
        return [_key(self.stage, each) for each in documents]

    def written(self, stage: Merge, epochs: Sequence[Sequence[Document]], begin: KeptTable | None = None) -> list[Row]:
        """See `TargetRead.written`."""
        rows = () if begin is None else begin.rows
        there: dict[Key, Document] = {}
        for row in rows:
            document = parse_json(str(row[-1]).encode())
            assert isinstance(document, dict)
            there[_key(stage, document)] = document
        try:
            for documents in epochs:
                for document in documents:
                    _write(there, stage, _as_stored(self.client, document))
        except NoBson as error:
            raise NotWritten(str(error)) from error
        return [_row(stage, document) for document in there.values()]

    def compared(self, named: set[str] | None) -> dict[int, str]:
        """See `TargetRead.compared`: the whole document."""
        del named
        if _ID not in self.stage.on:
            self.notes.append(f"{self.place}: _id, which the server gives")
        return {len(self.stage.on): _DOCUMENT}

    def differs(self, column: str, expected: str | None, found: str | None) -> str:
        """See `TargetRead.differs`: the first field that does."""
        del column
        wanted, there = json.loads(expected or "{}"), json.loads(found or "{}")
        name = next(name for name in sorted({*wanted, *there}) if wanted.get(name) != there.get(name))
        said = [
            shown(json.dumps(each[name], ensure_ascii=False)) if name in each else "none" for each in (wanted, there)
        ]
        return f"field {name}: expected {said[0]}, found {said[1]}"

    def close(self) -> None:
        """See `TargetRead.close`."""
        self.client.close()


def read_collection(
    vertex: VertexId, stage: Merge, url: str, known: frozenset[JobId], *, rows: bool = True
) -> CollectionRead | Unread:
    """Read a collection, with or without its documents, and its markers. One that is not there is empty."""
    if (why := why_not(stage)) is not None:
        return Unread(vertex, why, always=True)
    try:
        client = client_at(url, _ANSWER_MS)
    except ValueError as error:
        return Unread(vertex, str(error))
    database = str(stage.table).partition(".")[0]
    try:
        transactions = has_transactions(client)
        with _moment(client, transactions=transactions) as session:
            markers = {
                str(each[_ID]): Epoch(int(each["released"])) for each in client[database][MARKERS].find(session=session)
            }
            found = _rows_of(client, stage, session) if rows else []
    except errors.PyMongoError as error:
        client.close()
        return Unread(vertex, f"the database gave no answer: {error}")
    except TooMuchHeld:
        client.close()
        raise
    return CollectionRead(vertex, stage, found, markers, known, client=client, transactions=transactions)


@contextmanager
def _moment(client: Client, *, transactions: bool) -> Iterator[ClientSession | None]:
    """A session in which all reads see one moment; None where the server has none."""
    if not transactions:
        yield None
        return
    snapshot, primary = ReadConcern("snapshot"), ReadPreference.PRIMARY
    with client.start_session() as session, session.start_transaction(snapshot, read_preference=primary):
        yield session


def _rows_of(client: Client, stage: Merge, session: ClientSession | None) -> list[Row]:
    """All documents. TooMuchHeld if there are more than a command may hold."""
    database, _, name = str(stage.table).partition(".")
    most, size = audit_settings().held_bytes_max, 0
    rows: list[Row] = []
    for each in client[database][name].find(session=session):
        document = from_bson(each)
        assert isinstance(document, dict)
        rows.append(_row(stage, document))
        size += sum(len(text or "") for text in rows[-1])
        if size > most:
            raise TooMuchHeld(
                f"collection {stage.table}: its first {len(rows)} documents take {most} characters; held_bytes_max in"
                " TIDEMARK_AUDIT is less"
            )
    return rows


def _row(stage: Merge, document: Document) -> Row:
    whole = document if _ID in stage.on else {name: value for name, value in document.items() if name != _ID}
    return (*(_text(document.get(name)) for name in stage.on), _text(whole))


def _text(value: object) -> str:
    """Canonical JSON, which keeps types; the order of fields says nothing."""
    return json.dumps(json.loads(render_json(value, canonical=True)), sort_keys=True, ensure_ascii=False)


def _key(stage: Merge, document: Document) -> Key:
    return tuple(canonical_key(document.get(name)) for name in stage.on)


def _as_stored(client: Client, document: Document) -> Document:
    """A document as it is read again. NoBson."""
    found: Mapping[str, Any] = bson.decode(bson.encode(stored(document)), client.codec_options)
    read = from_bson(found)
    assert isinstance(read, dict)
    return read


def _write(there: dict[Key, Document], stage: Merge, document: Document) -> None:
    """As the sink writes it, and the server does."""
    key = _key(stage, document)
    before = there.get(key)
    if before is None or stage.when_matched == "replace":
        there[key] = document
    elif stage.when_matched == "merge":
        there[key] = before | {k: v for k, v in document.items() if k not in (_ID, *stage.on)}
    elif stage.when_matched == "delete":
        del there[key]
