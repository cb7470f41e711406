"""A replica set of one member that has change streams, in this process: an oplog in memory behind MongoDB's wire protocol.

It is written for the source of change streams, by what MongoDB's documentation says of them: order and form of events, resume tokens that
sort as times do, `postBatchResumeToken`, what ends a stream, and the errors by their codes and labels. It has no query language but the
`$match` that such a source asks for, and `find` in the order of `_id` behind a place, which sees what is written while its cursor is open.
Writers call its methods; a test says what breaks, and when.
"""

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.timestamp import Timestamp

from tidemark.shared.adapters.mongodb import from_bson
from tidemark.shared.language.values.order import sort_key

_ANY_DATE: Final[CodecOptions[Any]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_OP_MSG: Final = 2013
_OP_QUERY: Final = 2004
_OP_REPLY: Final = 1
_RESUMABLE: Final = "ResumableChangeStreamError"
Time = tuple[int, int]


def token_of(time: Time, number: int | None = None, *, invalidates: bool = False) -> dict[str, str]:
    """Of an event at this time, or (None) the mark in front of all events of it."""
    kind = "29" if number is None else f"2C0100{number:08X}"
    return {"_data": f"82{time[0]:08X}{time[1]:08X}2B04{kind}{'6F' if invalidates else '6E'}04"}


@dataclass(frozen=True)
class Entry:
    """An event of the oplog; without `event` something that no stream shows."""

    time: Time
    number: int = 0
    event: Mapping[str, Any] | None = None

    @property
    def token(self) -> str:
        return token_of(self.time, self.number)["_data"]


@dataclass
class _Cursor:
    scope: tuple[str | None, str | None]
    stages: list[dict[str, Any]]
    options: dict[str, Any]
    after: str
    """The token behind which it goes on."""
    ended: bool = False


@dataclass
class _Reading:
    """A cursor of a `find`."""

    place: tuple[str, str]
    behind: Any
    """The order of the last `_id`; None: in front of all."""


@dataclass
class _Failure:
    command: str
    code: int
    message: str
    labels: tuple[str, ...] = ()


@dataclass
class StreamingServer:
    """One primary. `images`: collections keep pre- and post-images."""

    images: bool = True
    batch: int = 3
    """Events of an answer at most."""
    entries: list[Entry] = field(default_factory=list)
    stored: dict[tuple[str, str], dict[Any, dict[str, Any]]] = field(default_factory=dict)
    """Documents by the order of their `_id`."""
    views: tuple[str, ...] = ()
    """Of each database."""
    replica_set: str | None = "rs0"
    sharded: bool = False
    """It shows the face of a router, in front of one shard."""
    identity: bson.ObjectId | None = field(default_factory=bson.ObjectId)
    """None: the user may not ask for it."""
    asked: list[str] = field(default_factory=list)
    """Commands that have come, without those of the driver's own."""
    opened: list[dict[str, Any]] = field(default_factory=list)
    """`$changeStream` of each stream that was opened."""
    finds: list[dict[str, Any]] = field(default_factory=list)
    """Commands that read documents."""
    oldest: Time = (0, 0)
    """The oplog has what came from this time on."""
    _clock: Time = (1_700_000_000, 1)
    _cursors: dict[int, _Cursor] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))
    _readings: dict[int, _Reading] = field(default_factory=dict)
    _failures: deque[_Failure] = field(default_factory=deque)
    _cut_after: int | None = None
    _primary: bool = True
    _server: asyncio.Server | None = None
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _written: asyncio.Event = field(default_factory=asyncio.Event)
    _port: int = 0

    # --- life -----------------------------------------------------------------------------------------------------------------

    async def start(self) -> "StreamingServer":
        """Listen; behind `stop` at the same address."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Take no connection, and end those that are open. The oplog stays."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self._port}/?directConnection=false&replicaSet={self.replica_set}"

    # --- what a test does -----------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """End all connections, and the cursors with them."""
        self._cursors.clear()
        self._readings.clear()
        for writer in list(self._open):
            writer.close()
        self._open.clear()

    def cut_after(self, answers: int) -> None:
        """The connection on which so many answers more come breaks with the last one of them, which is lost."""
        self._cut_after = answers

    def elect(self) -> None:
        """Step down, and win again when somebody has asked: cursors are gone."""
        self._primary = False
        self._cursors.clear()
        self._readings.clear()

    def fail(self, command: str, code: int, message: str = "scripted", *labels: str) -> None:
        """The next command of this name is answered with an error."""
        self._failures.append(_Failure(command, code, message, labels))

    def forget(self, before: Time) -> None:
        """The oplog loses what is older."""
        self.oldest = max(self.oldest, before)

    def tick(self, seconds: int = 0) -> Time:
        """The next operation time."""
        second, increment = self._clock
        self._clock = (second + seconds, 1) if seconds else (second, increment + 1)
        return self._clock

    def noop(self, seconds: int = 10) -> None:
        """What a primary writes in silence."""
        self._append(Entry(self.tick(seconds)))

    @property
    def now(self) -> Time:
        """Of the last entry."""
        return self.entries[-1].time if self.entries else self._clock

    def transaction(self, db: str, coll: str, *changes: tuple[str, Any, Mapping[str, Any] | None]) -> None:
        """Inserts, updates and deletions `(kind, _id, fields)`, all with one operation time."""
        time, collection = self.tick(), self.stored.setdefault((db, coll), {})
        for number, (kind, key, fields) in enumerate(changes):
            place = order(key)
            before = collection.get(place)
            if kind == "delete":
                collection.pop(place)
            else:
                collection[place] = {"_id": key, **({} if kind == "insert" else before or {}), **(fields or {})}
            event: dict[str, Any] = {"ns": {"db": db, "coll": coll}, "documentKey": {"_id": key}}
            if kind == "update":
                event["updateDescription"] = {
                    "updatedFields": dict(fields or {}),
                    "removedFields": [],
                    "truncatedArrays": [],
                }
            event["images"] = before, None if kind == "delete" else dict(collection[place])
            self._event(time, number, kind, event)

    def insert(self, db: str, coll: str, key: Any, **fields: Any) -> None:
        self.transaction(db, coll, ("insert", key, fields))

    def update(self, db: str, coll: str, key: Any, **fields: Any) -> None:
        self.transaction(db, coll, ("update", key, fields))

    def delete(self, db: str, coll: str, key: Any) -> None:
        self.transaction(db, coll, ("delete", key, None))

    def drop(self, db: str, coll: str) -> None:
        """Of a collection: ends its streams."""
        self.stored.pop((db, coll), None)
        self._event(self.tick(), 0, "drop", {"ns": {"db": db, "coll": coll}})

    def rename(self, db: str, coll: str, to: str) -> None:
        """Of a collection: ends its streams."""
        self.stored[db, to] = self.stored.pop((db, coll), {})
        self._event(self.tick(), 0, "rename", {"ns": {"db": db, "coll": coll}, "to": {"db": db, "coll": to}})

    def drop_database(self, db: str) -> None:
        """With its collections: ends the streams of the database."""
        for name, coll in [each for each in self.stored if each[0] == db]:
            self.drop(name, coll)
        self._event(self.tick(), 0, "dropDatabase", {"ns": {"db": db}})

    def _event(self, time: Time, number: int, kind: str, event: dict[str, Any]) -> None:
        wall = bson.DatetimeMS(time[0] * 1000 + time[1] % 1000)
        told = {
            "_id": token_of(time, number), "operationType": kind, "clusterTime": Timestamp(*time), "wallTime": wall, **event,
        }  # fmt: skip
        self._append(Entry(time, number, told))

    def _append(self, entry: Entry) -> None:
        self.entries.append(entry)
        self._written.set()
        self._written = asyncio.Event()

    # --- the wire -------------------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        # The client has gone, a test has cut it off, or is over.
        with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while await self._serve_one(reader, writer):
                pass
        self._open.discard(writer)
        writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the answer was not lost."""
        size, request, _, kind = struct.unpack("<iiii", await reader.readexactly(16))
        body = await reader.readexactly(size - 16)
        if kind == _OP_QUERY:
            at = body.index(b"\x00", 4) + 9
            answer = await self._answer(bson.decode(body[at : at + struct.unpack_from("<i", body, at)[0]]))
            data = struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(answer)
            kind = _OP_REPLY
        else:
            assert kind == _OP_MSG and body[4] == 0, "a message of one document"  # noqa: PT018
            answer = await self._answer(bson.decode(body[5:], _ANY_DATE))
            data = struct.pack("<IB", 0, 0) + bson.encode(answer)
        if self._lost(answer):
            self.cut()
            return False
        writer.write(struct.pack("<iiii", 16 + len(data), next(self._numbers), request, kind) + data)
        await writer.drain()
        return True

    def _lost(self, answer: Mapping[str, Any]) -> bool:
        if self._cut_after is None or "cursor" not in answer:
            return False
        self._cut_after -= 1
        if self._cut_after > 0:
            return False
        self._cut_after = None
        return True

    async def _answer(self, command: dict[str, Any]) -> dict[str, Any]:
        name = next(iter(command))
        if name.lower() in ("hello", "ismaster"):
            return self._hello()
        self.asked.append(name)
        if self._failures and self._failures[0].command == name:
            failure = self._failures.popleft()
            return _error(failure.code, failure.message, *failure.labels)
        if not self._primary:
            self._primary = True
            return _error(10107, "not primary", _RESUMABLE)
        handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "aggregate": self._aggregate, "killCursors": self._kill, "replSetGetConfig": self._config,
            "find": self._find, "listCollections": self._collections,
        }  # fmt: skip
        answer: dict[str, Any] = {"ok": 1.0}
        if name == "getMore":
            answer = await self._get_more(command)
        elif name in handlers:
            answer = handlers[name](command)
        return {**answer, "operationTime": Timestamp(*self.now)}

    def _hello(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "isWritablePrimary": True, "ismaster": True, "helloOk": True, "minWireVersion": 0, "maxWireVersion": 21,
            "maxBsonObjectSize": 1 << 24, "maxMessageSizeBytes": 48_000_000, "maxWriteBatchSize": 100_000,
            "logicalSessionTimeoutMinutes": 30, "readOnly": False, "ok": 1.0,
        }  # fmt: skip
        me = f"127.0.0.1:{self._port}"
        if self.sharded:
            found["msg"] = "isdbgrid"
        elif self.replica_set is not None:
            found |= {
                "setName": self.replica_set,
                "setVersion": 1,
                "hosts": [me],
                "me": me,
                "primary": me,
                "secondary": False,
            }
        return found

    def _config(self, _command: dict[str, Any]) -> dict[str, Any]:
        if self.identity is None:
            return _error(13, "not authorized on admin to execute command { replSetGetConfig: 1 }")
        return {"config": {"_id": self.replica_set, "settings": {"replicaSetId": self.identity}}, "ok": 1.0}

    # --- documents ------------------------------------------------------------------------------------------------------------

    def _collections(self, command: dict[str, Any]) -> dict[str, Any]:
        db, kind = command["$db"], command["filter"]["type"]
        there = [("system.js", "collection"), *((each, "view") for each in self.views)]
        there += [(coll, "collection") for name, coll in self.stored if name == db]
        told = [{"name": name, "type": each} for name, each in there if each == kind]
        return {"cursor": {"id": bson.Int64(0), "ns": f"{db}.$cmd.listCollections", "firstBatch": told}, "ok": 1.0}

    def _find(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["find"] == "version":  # of the database config
            told = {"id": bson.Int64(0), "ns": "config.version", "firstBatch": [{"_id": 1, "clusterId": self.identity}]}
            return {"cursor": told, "ok": 1.0}
        self.finds.append(command)
        at = command["readConcern"].get("afterClusterTime")
        if at is not None and (at.time, at.inc) > self.now:
            return _error(72, "readConcern afterClusterTime value must not be greater than the current clusterTime.")
        assert command["sort"] == command["hint"] == {"_id": 1}, "it is the order that is known here"
        name, last = command["filter"]["$expr"]["$gt"] if command["filter"] else ("$_id", None)
        assert name == "$_id", "it is compared"
        number, behind = next(self._numbers), None if last is None else order(last["$literal"])
        self._readings[number] = _Reading((command["$db"], command["find"]), behind)
        return self._documents(number, "firstBatch")

    def _documents(self, number: int, name: str) -> dict[str, Any]:
        """The next documents as they are now."""
        reading = self._readings[number]
        there = self.stored.get(reading.place, {})
        orders = sorted(each for each in there if reading.behind is None or each > reading.behind)[: self.batch]
        if orders:
            reading.behind = orders[-1]
        if len(orders) < self.batch:
            del self._readings[number]
        told = {"id": bson.Int64(number if number in self._readings else 0), name: [there[each] for each in orders]}
        return {"cursor": {**told, "ns": ".".join(reading.place)}, "ok": 1.0}

    # --- change streams -------------------------------------------------------------------------------------------------------

    def _aggregate(self, command: dict[str, Any]) -> dict[str, Any]:
        stream, *stages = command["pipeline"]
        options = stream["$changeStream"]
        self.opened.append(options)
        coll = command["aggregate"] if isinstance(command["aggregate"], str) else None
        scope = (None if options.get("allChangesForCluster") else command["$db"], coll)
        given = options.get("startAfter") or options.get("resumeAfter")
        if given is not None:
            after = given["_data"]
            time = int(after[2:10], 16), int(after[10:18], 16)
            if "6F" in after[-6:] and "resumeAfter" in options:
                return _error(
                    260,
                    "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification.",
                )
            known = any(entry.token == after or _invalid(entry) == after for entry in self.entries)
            if time >= self.oldest and not after.endswith("2B04296E04") and not known:
                return _error(
                    280, "cannot resume stream; the resume token was not found", "NonResumableChangeStreamError"
                )
        elif (at := options.get("startAtOperationTime")) is not None:
            time, after = (at.time, at.inc), token_of((at.time, at.inc))["_data"]
        else:
            time = (self.now[0], self.now[1] + 1)
            after = token_of(time)["_data"]
        if time < self.oldest:
            message = "Resume of change stream was not possible, as the resume point may no longer be in the oplog."
            return _error(286, message, "NonResumableChangeStreamError")
        number = next(self._numbers)
        self._cursors[number] = _Cursor(scope, stages, options, after)
        return self._batch(number, "firstBatch")

    async def _get_more(self, command: dict[str, Any]) -> dict[str, Any]:
        number = int(command["getMore"])
        if number in self._readings:
            return self._documents(number, "nextBatch")
        if number not in self._cursors:
            return _error(43, f"cursor id {number} not found", _RESUMABLE)
        found, waited = self._batch(number, "nextBatch"), self._written
        if not found.get("cursor", {}).get("nextBatch", [1]):
            try:
                async with asyncio.timeout(command.get("maxTimeMS", 1000) / 1000):
                    await waited.wait()
            except TimeoutError:
                return found
            if number not in self._cursors:
                return _error(43, f"cursor id {number} not found", _RESUMABLE)
            found = self._batch(number, "nextBatch")
        return found

    def _kill(self, command: dict[str, Any]) -> dict[str, Any]:
        for number in command["cursors"]:
            self._cursors.pop(int(number), None)
            self._readings.pop(int(number), None)
        return {"cursorsKilled": command["cursors"], "ok": 1.0}

    def _batch(self, number: int, name: str) -> dict[str, Any]:
        """The next events, and the token behind them; all that was looked at and is of no use lies in front of it, too."""
        cursor, events = self._cursors[number], []
        behind = cursor.after
        for entry in self.entries:
            ends = _invalid(entry) if _ends(entry, cursor.scope) else None
            if entry.token > cursor.after:
                behind = (
                    entry.token
                    if entry.event is not None and _shows(entry, cursor.scope)
                    else token_of(entry.time)["_data"]
                )
                if entry.event is not None and _shows(entry, cursor.scope):
                    try:
                        events += self._passed(entry.event, cursor)
                    except _NoImageError as error:
                        return _error(47, str(error), "NonResumableChangeStreamError")
            if ends is not None and ends > cursor.after:
                assert entry.event is not None, "something has ended it"
                last = {
                    "_id": {"_data": ends}, "operationType": "invalidate", "clusterTime": entry.event["clusterTime"],
                    "wallTime": entry.event["wallTime"],
                }  # fmt: skip
                events += self._passed(last, cursor)
                behind, cursor.ended = ends, True
            if cursor.ended or len(events) >= self.batch:
                break
        cursor.after = max(behind, cursor.after)
        if cursor.ended:
            del self._cursors[number]
        told = {
            "id": bson.Int64(0 if cursor.ended else number), "ns": "d.c", name: events, "postBatchResumeToken": {"_data": cursor.after},
        }  # fmt: skip
        return {"cursor": told, "ok": 1.0}

    def _passed(self, event: Mapping[str, Any], cursor: _Cursor) -> list[dict[str, Any]]:
        """The event as the options want it, if the stages let it pass."""
        found = {name: value for name, value in event.items() if name != "images"}
        before, behind = event.get("images", (None, None))
        asked, asked_before = cursor.options.get("fullDocument"), cursor.options.get("fullDocumentBeforeChange")
        if event["operationType"] == "insert":
            found["fullDocument"] = behind
        elif event["operationType"] == "update" and asked == "updateLookup":
            ns = event["ns"]
            found["fullDocument"] = self.stored.get((ns["db"], ns["coll"]), {}).get(order(event["documentKey"]["_id"]))
        elif event["operationType"] == "update" and asked in ("required", "whenAvailable"):
            if not self.images and asked == "required":
                raise _NoImageError("Change stream was configured to require a post-image for all update events")
            found["fullDocument"] = behind if self.images else None
        if event["operationType"] in ("update", "delete") and asked_before in ("required", "whenAvailable"):
            if not self.images and asked_before == "required":
                raise _NoImageError(
                    "Change stream was configured to require a pre-image for all update and delete events"
                )
            found["fullDocumentBeforeChange"] = before if self.images else None
        for stage in cursor.stages:
            if "$match" in stage and not _matches(found, stage["$match"]):
                return []
            for name in [stage["$unset"]] if "$unset" in stage else []:
                found.pop(name, None)
        return [found]


def order(key: Any) -> Any:
    """Of an `_id`, as Python orders it: values that are the same place of an index have the same."""
    return sort_key(from_bson(key))


class _NoImageError(Exception):
    pass


def _error(code: int, message: str, *labels: str) -> dict[str, Any]:
    found: dict[str, Any] = {"ok": 0.0, "errmsg": message, "code": code, "codeName": f"Code{code}"}
    return {**found, "errorLabels": list(labels)} if labels else found


def _shows(entry: Entry, scope: tuple[str | None, str | None]) -> bool:
    """Whether a stream of the scope has the event."""
    assert entry.event is not None, "it is one"
    db, coll = scope
    places = [entry.event["ns"], *([entry.event["to"]] if "to" in entry.event else [])]
    if coll is not None:
        return any((each["db"], each.get("coll")) == (db, coll) for each in places)
    return db is None or any(each["db"] == db for each in places)


def _ends(entry: Entry, scope: tuple[str | None, str | None]) -> bool:
    """Whether it ends a stream of the scope."""
    if entry.event is None or scope[0] is None:
        return False
    kinds = ("dropDatabase",) if scope[1] is None else ("drop", "rename")
    return entry.event["operationType"] in kinds and _shows(entry, scope)


def _invalid(entry: Entry) -> str:
    return token_of(entry.time, entry.number, invalidates=True)["_data"]


def _matches(event: Mapping[str, Any], query: Mapping[str, Any]) -> bool:
    return all(
        any(_matches(event, each) for each in wanted) if name == "$or" else _fits(_at(event, name), wanted)
        for name, wanted in query.items()
    )


def _at(event: Any, path: str) -> Any:
    for name in path.split("."):
        event = event.get(name) if isinstance(event, Mapping) else None
    return event


def _fits(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, Mapping) or not any(name.startswith("$") for name in wanted):
        return bool(value == wanted)
    tests: dict[str, Callable[[Any], bool]] = {
        "$in": lambda w: value in w,
        "$ne": lambda w: value != w,
        "$nin": lambda w: value not in w,
    }
    return all(tests[name](each) for name, each in wanted.items())
