"""The documents that MongoDB's collections have, before their changes (`initialSync`): each once, over restarts.

- The stream's beginning is there first: it is the split's first position. All documents are read as they were at that time or later
  (`afterClusterTime`, so of members that lag, too). So nothing lies between: a change behind the beginning that a document has already
  comes again with the stream, which brings each document to its last state.
- A collection is read in the order of `_id`, which is that of its index over all types, and a place is the last `_id`. Operators of
  queries compare within a type only; expressions (`$expr`) compare as the index does, with the collection's collation.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import bson
import msgspec
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.int64 import Int64
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import errors
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.cursor import AsyncCursor

from tidemark.shared.adapters.mongodb import AsyncClient
from tidemark.shared.ports.source import SourceReplaced

_RAW: Final[CodecOptions[RawBSONDocument]] = DEFAULT_RAW_BSON_OPTIONS.with_options(
    datetime_conversion=DatetimeConversion.DATETIME_MS
)
_BATCH_DOCUMENTS: Final = 1000
"""Of an answer at most; a server sends 16 MiB at most."""


class CopyPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the collections are read, as a checkpoint has it."""

    seconds: int
    """Of the operation time with which the stream begins."""
    increment: int
    begin: int
    """The position of the first document."""
    coll: str | None = None
    """The present one; None: the first."""
    after: bytes | None = None
    """BSON with the last `_id` that was read of it: no other form has all types."""
    done: bool = False
    """All are read."""


@dataclass(slots=True)
class CollectionReader:
    """Reads the documents of some collections of a database, or of all. Errors are the driver's."""

    client: AsyncClient
    db: str
    colls: Sequence[str]
    """In this order; none: all that are there, by name."""
    _cursor: AsyncCursor[RawBSONDocument] | None = None
    _session: AsyncClientSession | None = None

    async def read(
        self, place: CopyPosition, position: int, max_bytes: int, count_max: int | None
    ) -> tuple[list[RawBSONDocument], list[CopyPosition], CopyPosition]:
        """Events of the next documents, about so many bytes, with the place behind each; and the place behind all that was looked at.

        It goes on behind the place of the last call that has succeeded, or of any other after `close`. SourceReplaced.
        """
        events: list[RawBSONDocument] = []
        places: list[CopyPosition] = []
        size = 0
        while not place.done and size < max_bytes and len(events) != count_max:
            if self._cursor is None:
                place = await self._open(place)
                continue
            document = await anext(self._cursor, None)
            if document is None:
                await self.close()
                place = await self._next(place)
                continue
            place = msgspec.structs.replace(place, after=bson.encode({"_id": document["_id"]}))
            events.append(self._event(document, place, position + len(events)))
            places.append(place)
            size += len(events[-1].raw)
        return events, places, place

    async def _open(self, place: CopyPosition) -> CopyPosition:
        """Ask for what is behind a place. It is another one in front of the first collection."""
        if place.coll is None:
            return await self._next(place)
        self._session = self.client.start_session(causal_consistency=True)
        # The stream gives what came with its first time; all before that is in what is read.
        self._session.advance_operation_time(Timestamp(place.seconds, max(place.increment - 1, 0)))
        behind: dict[str, Any] = {}
        if place.after is not None:
            behind = {"$expr": {"$gt": ["$_id", {"$literal": RawBSONDocument(place.after, _RAW)["_id"]}]}}
        found = self.client[self.db][place.coll].find(behind, session=self._session, batch_size=_BATCH_DOCUMENTS)
        self._cursor = found.sort("_id", 1).hint([("_id", 1)])
        return place

    async def _next(self, place: CopyPosition) -> CopyPosition:
        """In front of the next collection, or behind the last one."""
        rest = sorted(await self._names()) if not self.colls else list(dict.fromkeys(self.colls))
        if place.coll is not None and self.colls:
            if place.coll not in rest:
                raise SourceReplaced(
                    f"{self.db}: the initial sync has read collection {place.coll} last, and coll of the document does not have it now."
                    " Give it again, or start without state"
                )
            rest = rest[rest.index(place.coll) + 1 :]
        elif place.coll is not None:
            rest = [each for each in rest if each > place.coll]
        coll = rest[0] if rest else place.coll
        return msgspec.structs.replace(place, coll=coll, after=None, done=not rest)

    async def _names(self) -> list[str]:
        """Those that a stream of the database shows: no views, no time series, none of the server's own."""
        names = await self.client[self.db].list_collection_names(filter={"type": "collection"})
        return [each for each in names if not each.startswith("system.")]

    def _event(self, document: RawBSONDocument, place: CopyPosition, position: int) -> RawBSONDocument:
        """An insert with the time at which the stream begins: no change that follows is older."""
        time = Timestamp(place.seconds, place.increment)
        told = {
            "_id": {"clusterTime": time, "index": Int64(position - place.begin), "snapshot": True},
            "operationType": "insert",
            "clusterTime": time,
            "wallTime": DatetimeMS(place.seconds * 1000),
            "fullDocument": document,
            "ns": {"db": self.db, "coll": place.coll},
            "documentKey": {"_id": document["_id"]},
        }
        return RawBSONDocument(bson.encode(told), _RAW)

    async def close(self) -> None:
        """Let go of what the server keeps for it."""
        cursor, self._cursor = self._cursor, None
        session, self._session = self._session, None
        with suppress(errors.PyMongoError):  # it is given up anyway
            if cursor is not None:
                await cursor.close()
            if session is not None:
                await session.end_session()
