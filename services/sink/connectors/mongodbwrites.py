"""`$merge` into a collection as write operations: by the server where each may be repeated, else after a look at what is there."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne, errors
from pymongo.client_session import ClientSession
from pymongo.collection import Collection

from tidemark.services.sink.connectors.mergechanges import StagedChange, StagedRow, document_of
from tidemark.shared.adapters.mongodb import Bson, NoBson, from_bson, is_passing, stored, to_bson
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import canonical_key, equal
from tidemark.shared.model.values import MISSING, Document

Write: TypeAlias = InsertOne[Bson] | ReplaceOne[Bson] | UpdateOne | DeleteOne
Numbered = Sequence[tuple[int, StagedRow]]
_KEYS_MAX: Final = 1000
"""Documents that one question asks for."""


class DocumentRefused(Exception):
    """Why a record cannot be written, with its number in the commit."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class CollectionWriter:
    """Writes documents into one collection, in their order."""

    def __init__(self, collection: "Collection[Bson]", stage: Merge) -> None:
        self._collection = collection
        self._stage = stage
        matched, not_matched = stage.when_matched, stage.when_not_matched
        self._looks = matched not in ("replace", "merge", "keepExisting") or not_matched == "fail"

    @property
    def name(self) -> str:
        """Of the collection, with its database."""
        return self._collection.full_name

    def write(self, rows: Numbered, session: ClientSession | None) -> None:
        """Write numbered rows. DocumentRefused for the first that the server refuses, or that `fail` is said of; PyMongoError."""
        writes = self._after_a_look(rows, session) if self._looks else self._blindly(rows)
        if not writes:
            return
        try:
            self._collection.bulk_write([write for _, write in writes], session=session)
        except errors.BulkWriteError as error:
            if is_passing(error):
                raise
            first = error.details["writeErrors"][0]
            raise DocumentRefused(writes[first["index"]][0], str(first.get("errmsg", error))) from error
        except errors.DocumentTooLarge as error:
            raise DocumentRefused(writes[0][0], str(error)) from error
        except KeyError as error:
            # The driver's, at an answer without what the protocol demands, as FerretDB's is where it refuses: it does not tell which.
            if session is None and not self._looks and len(rows) > 1:
                for row in rows:
                    self.write([row], None)
                return
            raise DocumentRefused(writes[0][0], f"the server refuses it, in an answer that has no {error}") from error

    def _blindly(self, rows: Numbered) -> list[tuple[int, Write]]:
        """Operations that give the same when they are repeated."""
        upsert = self._stage.when_not_matched == "insert"
        return [(n, write) for n, row in rows if (write := self._one(document_of(row), upsert=upsert)) is not None]

    def _one(self, document: Document, *, upsert: bool) -> Write | None:
        found, made = self._filter(document), stored(document)
        if self._stage.when_matched == "replace":
            return ReplaceOne(found, made, upsert=upsert)
        if self._stage.when_matched == "keepExisting":
            return UpdateOne(found, {"$setOnInsert": made}, upsert=True) if upsert else None
        # The document that is there keeps its own _id.
        once = {name: value for name, value in made.items() if name in self._stage.on or name == "_id"}
        always = {name: value for name, value in made.items() if name not in once}
        update = {"$setOnInsert": once} | ({"$set": always} if always else {})
        return UpdateOne(found, update, upsert=upsert)

    def _filter(self, document: Document) -> dict[str, Any]:
        return {name: {"$eq": to_bson(document[name])} for name in self._stage.on}

    # --- in a transaction, which sees the documents as they are -----------------------------------------------------------------

    def _after_a_look(self, rows: Numbered, session: ClientSession | None) -> list[tuple[int, Write]]:
        there = self._found([document_of(row) for _, row in rows], session)
        writes: list[tuple[int, Write]] = []
        for number, row in rows:
            document = document_of(row)
            key = self._key(document)
            try:
                write, after = self._decided(document, there.get(key), row)
            except (NoBson, ValueError) as error:
                raise DocumentRefused(number, str(error)) from error
            if after is None:
                there.pop(key, None)
            else:
                there[key] = after
            if write is not None:
                writes.append((number, write))
        return writes

    def _decided(
        self, document: Document, before: Document | None, row: StagedRow
    ) -> tuple[Write | None, Document | None]:
        """The operation, and the document behind it. ValueError where none may be done."""
        matched, not_matched = self._stage.when_matched, self._stage.when_not_matched
        found = self._filter(document)
        if before is None:
            if not_matched == "fail":
                raise ValueError("the document is not there, and whenNotMatched is fail")
            return (InsertOne(stored(document)), document) if not_matched == "insert" else (None, None)
        if isinstance(matched, tuple):
            assert isinstance(row, StagedChange), "a pipeline's rows are staged with its variables"
            after = self._made(before, row)
            return ReplaceOne(found, stored(after)), after
        if matched == "fail":
            raise ValueError("the document is there, and whenMatched is fail")
        if matched == "delete":
            return DeleteOne(found), None
        if matched == "keepExisting":
            return None, before
        return self._one(document, upsert=False), {**before, **document} if matched == "merge" else document

    def _made(self, before: Document, row: StagedChange) -> Document:
        """A document after the pipeline of whenMatched."""
        pipeline = self._stage.when_matched
        assert isinstance(pipeline, tuple)
        for outcome in apply_stages(pipeline, before, row.environment()):
            match outcome:
                case Passed((after,)):
                    moved = [
                        name for name in ("_id", *self._stage.on)
                        if not equal(before.get(name, MISSING), after.get(name, MISSING))
                    ]  # fmt: skip
                    if moved:
                        raise ValueError(f"the pipeline changes {', '.join(moved)}, which finds the document")
                    return after
                case Failure(reason=reason, path=path):
                    raise ValueError(f"{path}: {reason}")
        raise ValueError("the pipeline makes nothing of the document")

    def _key(self, document: Document) -> bytes:
        return b"".join(canonical_key(document.get(name, MISSING)) for name in self._stage.on)

    def _found(self, documents: Sequence[Document], session: ClientSession | None) -> dict[bytes, Document]:
        """The documents that are there, by key."""
        wanted = list({self._key(document): self._filter(document) for document in documents}.values())
        found: dict[bytes, Document] = {}
        for start in range(0, len(wanted), _KEYS_MAX):
            some = self._collection.find({"$or": wanted[start : start + _KEYS_MAX]}, session=session)
            for document in map(from_bson, some):
                found[self._key(document)] = document
        return found
