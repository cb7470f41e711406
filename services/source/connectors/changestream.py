"""Change streams of MongoDB: of a collection, of several, of a database, of a cluster.

- One split. A position counts events. Each event has a resume token, and the snapshot has the token in front of its position
  (`KnowsOrigins`), behind which the server goes on: with the same events, for a stream is a function of the oplog.
- Without a token a split begins where the document says (position 0), or at an operation time that the source takes from the server at its
  first look. That time is the split's first position (`_position_of`), so the processor's row has it before a record is read (I1).
- With `initialSync` the documents come first (`mongosync`): a snapshot has how far they are read until the stream has a token.
- An empty answer has a token, too (`postBatchResumeToken`): all in front of it was seen. In a silent stretch it takes a position of its own
  at times, without a record, so that a snapshot has it: else the oplog loses the place of a collection that nobody writes.
- A drain ends at the operation time of the server (`_BY_TIME`), which no counting is needed for. All events up to it were seen when one
  behind it comes, or an empty answer whose token lies at it (of shards: behind it, for each says how far it is).
- An event that invalidates the stream is given like any other. Once a checkpoint has it, the source says so: another collection, which
  may come to the name, is another input. Its resume token is said, with which one may go on there.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import bson
import msgspec
import numpy as np
import pyarrow as pa
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp
from pymongo import errors
from pymongo.asynchronous.change_stream import AsyncChangeStream
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tidemark.services.source.connectors.mongosync import CollectionReader, CopyPosition
from tidemark.shared.adapters.mongodb import (
    AsyncClient,
    async_client_at,
    from_bson,
    is_denied,
    is_passing,
    to_bson,
    words_of,
)
from tidemark.shared.language.stages import ChangeStreamSource
from tidemark.shared.language.values import parse_json, render_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.failures import Lasting
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.model.values import Document
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogDenied, LogError, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced

SPLIT: Final = SplitId("events")
_ANSWER_MS: Final = 10_000
"""How long a server is looked for."""
_QUIET_S: Final = 10
"""Of the server's time: after so much without an event a snapshot gets another token. Servers write to a silent oplog as often."""
_REMEMBERED: Final = 4
"""Pieces whose tokens are known: a task takes one while it reads the next, and a checkpoint lies within them."""
_INCREMENT_BITS: Final = 20
"""Of a first position; an order of rows has room for 52 bits, seconds have 32."""
_BY_TIME: Final = 1 << 62
"""An end from here on is this and an operation time: its seconds and its increment, of `_END_BITS`."""
_END_BITS: Final = 30
_AFTER: Final = "after"
_ENDED: Final = "ended"
_SYNC: Final = "sync"
"""The origins of a split: the token, why no event can follow, how far collections are read."""
_TIME_OF_TOKEN: Final = re.compile("82([0-9A-Fa-f]{8})([0-9A-Fa-f]{8})")
"""A token begins with its operation time, in the order of bytes."""
_PLAIN: Final[CodecOptions[Mapping[str, Any]]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_LOST: Final = (136, 260, 280, 286)
"""CappedPositionLost, InvalidResumeToken, ChangeStreamFatalError, ChangeStreamHistoryLost."""
_NO_IMAGE: Final = 47
_TOO_LARGE: Final = 10334
_UNAUTHORIZED: Final = 13
Time = tuple[int, int]
"""An operation time: seconds and increment."""
Token = Mapping[str, Any]
Place = Token | CopyPosition
"""In a stream, or in the collections that are read in front of it."""


class StreamRefused(LogError, Lasting):
    """The stream cannot be read as the document says."""


class _Answers(CommandListener):
    """State that the driver does not show: the events that an answer still has, and the times and tokens beside them."""

    def __init__(self) -> None:
        self.left = 0
        """Events of the last answer that were not taken yet."""
        self.token: Token | None = None
        """Behind the last answer."""
        self.operation_time: Timestamp | None = None

    def started(self, event: CommandStartedEvent) -> None:
        """Nothing to do."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Note what a cursor's answer says beside the events."""
        if event.command_name not in ("aggregate", "getMore"):
            return
        reply: Mapping[str, Any] = event.reply
        cursor = reply["cursor"]
        self.left = len(cursor["firstBatch"] if "firstBatch" in cursor else cursor["nextBatch"])
        self.token, self.operation_time = cursor.get("postBatchResumeToken"), reply.get("operationTime")

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class _EventsRead:
    """Events that were read at once: the place behind each."""

    before: int
    """The position in front of them."""
    places: Sequence[Place | None]


@dataclass(slots=True)
class ChangeStream:
    """`SourcePort` of the change events that a document's stage names."""

    stage: ChangeStreamSource
    url: str
    executor: Executor
    clock: Clock
    _answers: _Answers = field(default_factory=_Answers)
    _client: AsyncClient | None = None
    _stream: AsyncChangeStream[RawBSONDocument] | None = None
    _sharded: bool = False
    _may_ask: bool = True
    """The user may ask for the id of the servers, as far as is known: each refusal is a line in their log."""
    _next: Offset | None = None
    """None: not opened yet."""
    _place: Place | None = None
    """In front of `_next`; None: at the beginning."""
    _documents: CollectionReader | None = None
    _pieces: deque[_EventsRead] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _noted_s: int = 0
    """The time of the last token that a snapshot gets, s."""
    _at_end: bool = False
    _until: Offset | None = None
    _over: bool = False
    """All in front of a drain's time was read."""
    _ended: str = ""
    """Why no event can follow."""
    _committed: int = -1
    _known: Mapping[str, str] = field(default_factory=dict)

    # --- which events ---------------------------------------------------------------------------------------------------------

    @property
    def _what(self) -> str:
        stage = self.stage
        names = f"{stage.db}.{','.join(stage.coll)}" if stage.coll else f"database {stage.db}"
        return f"connection {stage.connection_name}: {names if stage.db else 'the whole cluster'}"

    async def splits(self) -> Mapping[SplitId, int]:
        """There is one: the stream."""
        return {SPLIT: 0}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """The servers are those that were read. SourceReplaced, StreamRefused."""
        if SPLIT not in known:
            return
        was, now = known[SPLIT].origin.split("/"), (await self._origin()).split("/")
        if any(a != b for a, b in zip(was, now, strict=False)):
            raise SourceReplaced(
                f"{self._what}: this processor reads {known[SPLIT].origin} (replica set, its id), and now the connection leads to"
                f" {'/'.join(now)}: resume tokens of the one mean nothing in the other. Bring the old servers back; or start without"
                " state, to read from now on"
            )

    async def _origin(self) -> str:
        """The name of the replica set, and its id where the user may ask for it; of shards that of the cluster."""
        with self._errors():
            admin = self._connected().admin
            hello = await admin.command("hello")
            self._sharded = hello.get("msg") == "isdbgrid"
            if not self._sharded and "setName" not in hello:
                raise StreamRefused(
                    f"{self._what}: expected a replica set or shards, for only these have change streams; found a server that stands"
                    " alone. Start it with --replSet, and call rs.initiate()"
                )
            name = "shards" if self._sharded else str(hello["setName"])
            identity = await self._identity() if self._may_ask else None
            return name if identity is None else f"{name}/{identity}"

    async def _identity(self) -> object:
        """None where the user may not ask for it, or there is none."""
        try:
            if self._sharded:
                version = await self._connected().config.version.find_one()
                return None if version is None else version.get("clusterId")
            config = (await self._connected().admin.command("replSetGetConfig"))["config"]
            return config.get("settings", {}).get("replicaSetId")
        except errors.OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            self._may_ask = False
            return None

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """From where the document says, else from now on: the operation time is the first position (I1)."""
        del first
        if not splits:
            return {}
        origin, now = await self._origin(), await self._now()
        named = self.stage.start_after is not None or self.stage.start_at_operation_time is not None
        begin = Offset(0 if named else _position_of(now))
        return {split: KnownSplit(0, origin, begin) for split in splits}

    async def _now(self) -> Time:
        """The operation time of what a majority has; asked by opening the stream. StreamRefused if the server does not let it be opened."""
        with self._errors():
            answers = _Answers()
            client = self._client_with(answers)
            try:
                async with await self._watch(client, None, None, self.stage.max_await_ms):
                    pass
            finally:
                await client.close()
            at, token = answers.operation_time, answers.token
            if at is None or token is None:
                raise StreamRefused(
                    f"{self._what}: expected MongoDB 4.2 or newer, whose answers have postBatchResumeToken"
                )
            self._time_of(token)
            return at.time, at.inc

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """All events up to the server's time now."""
        seconds, increment = await self._now()
        return dict.fromkeys(positions, Offset(_BY_TIME + (seconds << _END_BITS) + increment))

    # --- reading --------------------------------------------------------------------------------------------------------------

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """See `KnowsOrigins.know`: the place in front of the position."""
        self._known = origins.get(SPLIT, self._known)

    def origins(self, split: SplitId, position: Offset) -> Mapping[str, str]:
        """See `KnowsOrigins.origins`: the place in front of a position that was taken lately; none at the beginning."""
        del split
        if self._next is None:
            return self._known
        place = self._place_at(position)
        if isinstance(place, CopyPosition):
            return {_SYNC: msgspec.json.encode(place).decode()}
        found = {} if place is None else {_AFTER: render_json(from_bson(dict(place)), canonical=True).decode()}
        return {**found, _ENDED: self._ended} if self._ended and position == self._next else found

    def _place_at(self, position: int) -> Place | None:
        if position == self._next:
            return self._place
        for piece in self._pieces:
            if 0 < position - piece.before <= len(piece.places):
                return piece.places[position - piece.before - 1]
        message = f"position {position} of a change stream is none of those that were read lately"
        raise RuntimeError(message)

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read from here; the server is asked with the first fetch."""
        if SPLIT not in positions or self._next is not None:
            return
        self._next = positions[SPLIT]
        if _AFTER in self._known:
            self._place = to_bson(parse_json(self._known[_AFTER].encode()), commands=True)
            self._ended = self._known.get(_ENDED, "")
            self._committed = self._next
        elif _SYNC in self._known:
            self._place = msgspec.json.decode(self._known[_SYNC], type=CopyPosition)
        elif self.stage.initial_sync and (time := _time_at(self._next)).time:
            self._place = CopyPosition(time.time, time.inc, self._next)
        self._pieces.append(_EventsRead(self._next - 1, [self._place]))

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """See `Source.fetch`. SourceReplaced if events were lost, or none can follow; StreamRefused."""
        if self._next is None or self._finished() or (self._ended and self._committed < self._next):
            await self.clock.sleep_ms(min(timeout_ms, self.stage.max_await_ms))
            return []
        if self._ended:
            raise SourceReplaced(self._ended)
        began = self._next
        copies = isinstance(self._place, CopyPosition) and not self._place.done
        events, places = await (self._copy(max_bytes) if copies else self._read(max_bytes, timeout_ms))
        if not events:
            return []
        times = [_time_ms(event, self._time_of(place)) for event, place in zip(events, places, strict=True)]
        values, unread = await self.executor.blocking(_documents, events, self.stage.full_document_only)
        positions = np.arange(began, began + len(events), dtype=np.int64)
        return [
            RawBatch(SPLIT, 0, positions, np.array(times, dtype=np.int64), pa.array(values, pa.binary()), unread=unread)
        ]

    async def _copy(self, max_bytes: int) -> tuple[list[RawBSONDocument], Sequence[Place]]:
        """Events of the collections' next documents with the places behind them; then the state stands behind them."""
        assert self._next is not None, "it is open"
        assert isinstance(self._place, CopyPosition), "documents are read"
        assert self.stage.db is not None, "the language has seen to it"
        if self._documents is None:
            self._documents = CollectionReader(self._connected(), self.stage.db, self.stage.coll)
        try:
            with self._errors():
                events, places, behind = await self._documents.read(
                    self._place, self._next, max_bytes, self._counted(self._next)
                )
        except BaseException:
            # This call's documents are not given out: they are read again.
            await self._close_stream()
            raise
        if events:
            self._go_to(places)
        self._place = behind
        return events, places

    def _counted(self, next_: int) -> int | None:
        """How many positions there are up to an end that is one."""
        return None if self._until is None or self._until >= _BY_TIME else self._until - next_

    async def _read(self, max_bytes: int, timeout_ms: int) -> tuple[list[RawBSONDocument], Sequence[Place]]:
        """The next events with their tokens, what has come without waiting for more; then the state stands behind them."""
        assert self._next is not None, "it is open"
        events: list[RawBSONDocument] = []
        tokens: list[Token] = []
        silent, size, over = False, 0, False
        counted = self._counted(self._next)
        try:
            with self._errors():
                if self._stream is None:
                    await_ms = min(self.stage.max_await_ms, timeout_ms)
                    self._stream = await self._watch(self._connected(), self._place, self._next, await_ms)
                while not events or (self._answers.left and size < max_bytes and len(events) != counted):
                    event = await self._stream.try_next()
                    if event is None:
                        silent = not events
                        break
                    self._answers.left -= 1
                    token = _plain(event["_id"])
                    if self._is_behind(self._time_of(token)):
                        over = True
                        break
                    events.append(event)
                    tokens.append(token)
                    size += len(event.raw)
                alive = self._stream.alive
        except BaseException:
            # This call's events are not given out: they are read again, by another stream.
            await self._close_stream()
            raise
        if events:
            self._go_to(tokens)
        if silent and self._answers.token is not None:
            over = self._see(_plain(self._answers.token))
        if not alive and not over:
            self._end()
        if over:
            self._over, self._next = True, self._until
        self._at_end = silent
        return events, tokens

    def _go_to(self, places: Sequence[Place]) -> None:
        """Stand behind so many positions."""
        assert self._next is not None, "it is open"
        self._pieces.append(_EventsRead(self._next, places))
        self._next, self._place = Offset(self._next + len(places)), places[-1]
        self._noted_s = self._time_of(places[-1])[0]

    def _see(self, token: Token) -> bool:
        """An empty answer: all in front of its token was seen. True if that is all of a drain."""
        time = self._time_of(token)
        self._place = token
        if time[0] - self._noted_s >= _QUIET_S:
            self._go_to([token])
        end = self._end_time()
        return end is not None and (time > end if self._sharded else time >= end)

    def _end(self) -> None:
        """No event can follow. In front of a drain's time that is all there is."""
        assert self._next is not None, "it is open"
        token = self._place if self._answers.token is None else _plain(self._answers.token)
        assert token is not None, "an answer has ended the stream"
        assert not isinstance(token, CopyPosition), "an answer has ended the stream"
        self._go_to([token])  # a snapshot has it, though the document's pipeline may have left out the event
        seconds, increment = self._time_of(token)
        said = render_json(from_bson(dict(token)), canonical=True).decode()
        time = f"{{$timestamp: {{t: {seconds}, i: {increment}}}}}"
        self._ended = (
            f"{self._what}: the change stream has ended, for the collection or the database was dropped or renamed; all events up to that"
            " are in the last checkpoint. Start without state: to read what comes to the name from there on, with config:"
            f" {{startAfter: {said}}}; to read what has another name now, with that name and config: {{startAtOperationTime: {time}}}"
        )
        if self._end_time() is not None:
            self._over, self._next = True, self._until

    def _is_behind(self, time: Time) -> bool:
        end = self._end_time()
        return end is not None and time > end

    def _end_time(self) -> Time | None:
        if self._until is None or self._until < _BY_TIME:
            return None
        return (self._until - _BY_TIME) >> _END_BITS, (self._until - _BY_TIME) & ((1 << _END_BITS) - 1)

    def _finished(self) -> bool:
        return self._over or (self._until is not None and self._next is not None and self._next >= self._until)

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        if self._next is None:
            return []
        done = self._finished()
        position = self._next if self._until is None else Offset(min(self._next, self._until))
        return [SplitStatus(SPLIT, position, done or self._at_end or bool(self._ended), done)]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._until = until.get(SPLIT, self._until)
        if self._ended and self._end_time() is not None:
            self._over, self._next = True, self._until

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """Once a checkpoint has the last event of a stream, the source may say that it has ended."""
        del group
        self._committed = max(self._committed, positions.get(SPLIT, -1))

    # --- the server -----------------------------------------------------------------------------------------------------------

    def _client_with(self, answers: _Answers) -> AsyncClient:
        tags = [",".join(f"{name}:{value}" for name, value in each.items()) for each in self.stage.read_preference_tags]
        options: dict[str, Any] = {"readPreference": self.stage.read_preference, "readConcernLevel": "majority"}
        try:
            return async_client_at(
                self.url, _ANSWER_MS, answers, **options, **({"readPreferenceTags": tags} if tags else {})
            )
        except ValueError as error:
            raise StreamRefused(f"connection {self.stage.connection_name}: {error}") from error

    def _connected(self) -> AsyncClient:
        if self._client is None:
            self._client = self._client_with(self._answers)
        return self._client

    async def _watch(
        self, client: AsyncClient, place: Place | None, position: int | None, await_ms: int
    ) -> AsyncChangeStream[RawBSONDocument]:
        """Behind the token; without one at the beginning, which is the document's, or the time of the position, or now."""
        stage = self.stage
        at: Any = stage.start_at_operation_time
        after: Any = to_bson(stage.start_after) if place is None and stage.start_after is not None else place
        if isinstance(place, CopyPosition):
            after, at = None, Timestamp(place.seconds, place.increment)
        elif after is None and at is None and position is not None:
            at = _time_at(position)
        elif at is not None:
            at = Timestamp(at.seconds, at.increment)
        stages = [to_bson(each, commands=True) for each in stage.server_stages]
        if len(stage.coll) > 1:
            named = {"$in": list(stage.coll)}
            last = {"operationType": {"$in": ["dropDatabase", "invalidate"]}}
            stages.insert(0, {"$match": {"$or": [{"ns.coll": named}, {"to.coll": named}, last]}})
        asked: dict[str, Any] = {
            "pipeline": stages,
            "full_document": None if stage.full_document == "default" else stage.full_document,
            "full_document_before_change": None if stage.full_document_before_change == "off" else stage.full_document_before_change,
            "max_await_time_ms": await_ms,
            "start_after": after,
            "start_at_operation_time": at if after is None else None,
        }  # fmt: skip
        if stage.db is None:
            return await client.watch(**asked)
        if len(stage.coll) != 1:
            return await client[stage.db].watch(**asked)
        return await client[stage.db][stage.coll[0]].watch(**asked)

    def _time_of(self, token: Place) -> Time:
        if isinstance(token, CopyPosition):
            return token.seconds, token.increment
        found = _TIME_OF_TOKEN.match(str(token.get("_data")))
        if found is None:
            raise StreamRefused(
                f"{self._what}: expected resume tokens of MongoDB, whose _data begins with a time, found {str(token)[:100]}"
            )
        return int(found[1], 16), int(found[2], 16)

    def _errors(self) -> "_MongoErrors":
        return _MongoErrors(self._what)

    async def _close_stream(self) -> None:
        documents, self._documents = self._documents, None
        if documents is not None:
            await documents.close()
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(errors.PyMongoError):  # it is given up anyway
                await stream.close()

    async def close(self) -> None:
        """Let go of the stream and the connections."""
        await self._close_stream()
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def _position_of(time: Time) -> int:
    """The position that stands for the first time behind this one. Beyond a million operations in its second that is the millionth."""
    seconds, increment = time
    return (seconds << _INCREMENT_BITS) + min(increment + 1, (1 << _INCREMENT_BITS) - 1)


def _time_at(position: int) -> Timestamp:
    return Timestamp(position >> _INCREMENT_BITS, position & ((1 << _INCREMENT_BITS) - 1))


def _plain(document: Any) -> Token:
    return bson.decode(document.raw, _PLAIN) if isinstance(document, RawBSONDocument) else document


def _time_ms(event: RawBSONDocument, time: Time) -> int:
    """When it happened, by the server's clock; servers before 6.0 tell the second alone."""
    wall = event.get("wallTime")
    return int(wall) if isinstance(wall, DatetimeMS) else time[0] * 1000


def _documents(events: Sequence[RawBSONDocument], alone: bool) -> tuple[list[bytes], dict[int, str]]:  # noqa: FBT001 - of a call
    """Events as extended JSON, or their full documents alone; and why a row has none."""
    values, unread = [], {}
    for row, event in enumerate(events):
        document = from_bson(bson.decode(event.raw, _PLAIN))
        full: Document | None = document.get("fullDocument")
        if alone and type(full) is not dict:
            unread[row] = f"fullDocumentOnly: the event ({document.get('operationType')}) has no fullDocument"
        values.append(render_json(full if alone and row not in unread else document, canonical=True))
    return values, unread


class _MongoErrors:
    """Errors of the driver as those of a source."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """LogUnavailable where waiting may help; SourceReplaced where events were lost; else LogDenied, StreamRefused."""
        if not isinstance(error, errors.PyMongoError):
            return
        text, code = f"{self._what}: {words_of(error)}"[:600], getattr(error, "code", None)
        if code in _LOST:
            raise SourceReplaced(
                f"{text}. The server no longer has the events behind the place up to which was read, or never had that place: what came in"
                " between cannot be read. Start without state, to read from now on, or from config.startAtOperationTime; a larger oplog"
                " (replSetResizeOplog, minRetentionHours) keeps more"
            ) from error
        if is_denied(error):
            raise LogDenied(f"{text}; correct the connection's url, or give the user find and changeStream") from error
        if is_passing(error):
            raise LogUnavailable(text) from error
        if code == _NO_IMAGE:
            raise StreamRefused(
                f"{text}. required needs changeStreamPreAndPostImages of the collection, which keeps images as long as the change is read"
                " (expireAfterSeconds); whenAvailable goes on without"
            ) from error
        if code == _TOO_LARGE:
            raise StreamRefused(
                f"{text}. An event above 16 MiB is not sent: let config.pipeline take fields out of it ($unset, $project), or leave"
                " fullDocument and fullDocumentBeforeChange away"
            ) from error
        raise StreamRefused(text) from error
