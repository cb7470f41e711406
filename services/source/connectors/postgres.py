"""Changes of PostgreSQL's tables, by logical decoding: a slot of `pgoutput` is peeked, and advanced behind committed checkpoints alone.

- One split. A user makes publication and slot, and the source begins where the slot stands.
- A position counts events, from the slot's LSN at the beginning. An *anchor* is a position with an LSN: all transactions whose commits lie
  before the LSN are in front of the position, all others behind it. Each end of a transaction is one. So a position within a transaction is
  an anchor and a count behind it, and the snapshot has the anchors (`KnowsOrigins`). The stream behind an LSN is always the same.
- The slot is advanced to the last anchor at or below a committed position, which is in that commit's snapshot, too. So a slot that stands
  behind the anchor of a restored position was advanced by somebody else, or made anew: changes are lost, and the source says so.
- Transactions without events move the LSN only. At times such a stretch takes a position of its own, without a record, so that the slot can
  be advanced over it. Its LSN is the server's insert position, which lies between two records of its log, unlike the flush position.
- With `initialSync` the tables' rows come first (`pgsync`); the first anchor is behind them.
- A drain while rows are read cannot count them: its end is an LSN, above all positions (`_BY_LSN`). At the end the position is set to that.
- A peek stops at the first end of a transaction behind a number of messages; the server keeps its result (a cursor WITH HOLD, which spills
  to its disk) and it is fetched in pieces. So no transaction is too large. The next peek decodes again what was not advanced over; where
  that alone is more than the number, the number doubles.
"""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import psycopg
import pyarrow as pa
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict

from tidemark.services.source.connectors.pgoutput import (
    Begun,
    Decoder,
    RowChange,
    TransactionEnd,
    UnreadMessage,
    lsn_text,
)
from tidemark.services.source.connectors.pgslot import (
    PostgresSettings,
    SlotRefused,
    SlotState,
    check_identities,
    slot_state,
)
from tidemark.services.source.connectors.pgsync import Seam, Synced, TableReader, tables_of
from tidemark.shared.adapters.sql import patience, says_denied, with_server
from tidemark.shared.language.values import render_json
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.ports.log import LogDenied, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced

SPLIT: Final = SplitId("changes")
_SYNC: Final = "sync"
"""The origin that has the tables' state; all others are anchors."""
_BY_LSN: Final = 1 << 62
"""An end from here on is this and an LSN, for a reader in front of it: all transactions whose commits lie before that."""
_CURSOR: Final = "tidemark_changes"
_SCHEMES: Final = ("postgresql://", "postgres://", "postgresql+psycopg://")
_SESSION: Final = (
    "SET datestyle = 'ISO, YMD'", "SET timezone = 'UTC'", "SET intervalstyle = 'postgres'", "SET bytea_output = 'hex'",
    "SET extra_float_digits = 1", "SET client_encoding = 'UTF8'", "SET lc_messages = 'C'",
    "SET search_path = pg_catalog",
)  # fmt: skip
"""Values come as texts, whose form is the session's. What is asked for is the server's own, whatever a database has of its name."""
_DOMAINS: Final = """
WITH RECURSIVE made AS (
    SELECT oid, typbasetype AS base FROM pg_type WHERE typtype = 'd'
    UNION ALL SELECT made.oid, t.typbasetype FROM made JOIN pg_type t ON t.oid = made.base WHERE t.typtype = 'd')
SELECT made.oid::bigint, base::bigint FROM made JOIN pg_type t ON t.oid = base WHERE t.typtype <> 'd'
"""


@dataclass(slots=True)
class _Peek:
    """A result that is being fetched."""

    decoder: Decoder
    anchor: int
    skip: int
    """Events behind the anchor that were taken before."""
    seen: int | None
    """All commits before this LSN are in the result, if the peek was not cut short."""
    messages: int = 0
    events: int = 0
    counts: bool = False
    """The present transaction lies behind the anchor."""
    began: int = 0
    seam: Seam | None = None


@dataclass(slots=True)
class _Connection:
    """One connection that reads on from a position. Not for two threads at once."""

    settings: PostgresSettings
    next: int
    anchors: list[tuple[int, int]]
    """None yet while the tables are read."""
    tables: TableReader | None = None
    """Also behind the tables, as long as changes are compared with it."""
    end_lsn: int | None = None
    """A drain's: no transaction from here on is read."""
    over: bool = False
    """All up to `end_lsn` was read."""
    at_end: bool = False
    committed: int = 0
    _seen: int | None = None
    _limit: int = 0
    _peek: _Peek | None = None
    _connection: psycopg.Connection[Any] | None = None
    _advanced: int = 0
    _spare: set[int] = field(default_factory=set)

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            self._connection = _connect(self.settings)
        return self._connection

    def log_end(self) -> int:
        """LSN: what was committed by now lies before it."""
        row = self._connected().execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None, "it has no condition"
        return int(row[0])

    def close(self) -> None:
        """Let go of the connection and the result."""
        if self._connection is not None:
            with suppress(psycopg.Error):  # it is given up anyway
                self._connection.close()
        self._connection = self._peek = self._seen = None
        self.at_end = False

    def anchor(self, position: int) -> tuple[int, int]:
        """The last one at or below a position."""
        return max(each for each in self.anchors if each[0] <= position)

    def read(self, max_bytes: int) -> tuple[list[int], list[int], list[bytes]]:
        """Positions, times (ms) and events of the next piece; nothing at the end."""
        positions: list[int] = []
        times: list[int] = []
        values: list[bytes] = []
        connection = self._connected()
        if self.tables is not None and not self.tables.is_done():
            for time_ms, value in self._rows(connection, self.tables, max_bytes):
                positions.append(self.next)
                times.append(time_ms)
                values.append(value)
                self.next += 1
            if self.tables.state.done:
                self.anchors = [(self.next, self.tables.state.lsn)]
                self.tables.done(self.next)
            return positions, times, values
        self._advance(connection)
        if self._peek is None:
            self._begin(connection)
        size = 0
        while self._peek is not None and size < max_bytes and not self.over:
            rows = connection.execute(f"FETCH {self.settings.fetch_messages} FROM {_CURSOR}").fetchall()
            if not rows:
                self._end(connection, self._peek)
                break
            self._peek.messages += len(rows)
            decoded = [each for (data,) in rows for each in self._peek.decoder.decode(data)]
            for event in self._events(self._peek, decoded):
                positions.append(self.next)
                times.append(event.time_ms)
                values.append(render_json(event.event, canonical=True))
                size += len(values[-1])
                self.next += 1
        if self.over and self.end_lsn is not None:
            self.next = _BY_LSN + self.end_lsn
            self._add_anchor(self.next, self.end_lsn, quiet=True)
        return positions, times, values

    def _rows(
        self, connection: psycopg.Connection[Any], tables: TableReader, max_bytes: int
    ) -> Iterator[tuple[int, bytes]]:
        state = slot_state(connection, self.settings)
        self._compare(state, tables.state.lsn, max(tables.state.lsn, tables.state.high))
        return tables.read(connection, state.database, self.next, max_bytes)

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        """Have the server decode, unless nothing was written since all was seen."""
        row = connection.execute(
            "SELECT pg_current_wal_insert_lsn() - '0/0', pg_current_wal_flush_lsn() - '0/0'"
        ).fetchone()
        assert row is not None, "it has no condition"
        insert, flush = map(int, row)
        self.over = self.over or (
            self.end_lsn is not None and max(self._seen or 0, self.anchor(self.next)[1]) >= self.end_lsn
        )
        if insert == self._seen or self.over:
            return
        self._limit = self._limit or self.settings.peek_messages
        position, lsn = self.anchor(self.next)
        connection.execute(
            sql.SQL(
                "DECLARE {} NO SCROLL CURSOR WITH HOLD FOR SELECT data FROM pg_logical_slot_peek_binary_changes("
                "{}, NULL, {}, 'proto_version', '1', 'publication_names', {})"
            ).format(
                sql.Identifier(_CURSOR),
                sql.Literal(self.settings.slot),
                sql.Literal(self._limit),
                sql.Literal(sql.Identifier(self.settings.publication).as_string(connection)),
            )
        )
        state = slot_state(connection, self.settings)
        self._compare(state, lsn, lsn if self.tables is None else max(lsn, self.tables.state.high))
        self.at_end = False
        domains: dict[int, int] = dict(connection.execute(_DOMAINS).fetchall())
        self._peek = _Peek(
            Decoder(state.database, lsn, domains), lsn, self.next - position, insert if flush >= insert else None
        )
        if self.tables is not None and lsn < self.tables.state.high:
            self._peek.seam = Seam(self.tables.state, self.settings.publication)

    def _compare(self, state: SlotState, lsn: int, seen: int) -> None:
        """The slot has not passed the LSN from which is read, and the log reaches to what was seen of it."""
        if state.end < seen:
            raise SourceReplaced(
                f"slot {self.settings.slot}: this processor has read up to {lsn_text(seen)}, and the server's log ends at"
                f" {lsn_text(state.end)}: this is a copy that is behind (a fail-over, a backup), and its next changes would lie where"
                " others were read. Bring the server back that has all; or start without state, to read from where the slot stands"
            )
        if state.confirmed > lsn:
            raise SourceReplaced(
                f"slot {self.settings.slot}: this processor has read up to {lsn_text(lsn)}, and the slot stands at"
                f" {lsn_text(state.confirmed)}: another reader has advanced it, or it was dropped and made anew, or this is"
                " an older checkpoint, which the slot has passed; the changes in between are lost. Start without state, to read from where"
                " the slot stands; let nobody else read this slot"
            )

    def _events(self, peek: _Peek, decoded: Sequence[Begun | RowChange | TransactionEnd]) -> list[RowChange]:
        """The events of messages that are due, and anchors at ends of transactions."""
        found: list[RowChange] = []
        if peek.seam is not None:
            peek.seam.look([each for each in decoded if isinstance(each, RowChange)], self._connected())
        for each in decoded:
            match each:
                case Begun(commit_lsn) if self.end_lsn is not None and commit_lsn >= self.end_lsn:
                    self.over, peek.counts = True, False
                case Begun(commit_lsn):
                    peek.counts, peek.began = commit_lsn >= peek.anchor, peek.events
                case RowChange() if peek.counts:
                    due = each if peek.seam is None else peek.seam.due(each)
                    peek.events += due is not None
                    if due is not None and peek.events > peek.skip:
                        found.append(due)
                case TransactionEnd(end_lsn) if peek.counts and peek.events > peek.began and peek.events >= peek.skip:
                    self._add_anchor(self.next + len(found), end_lsn, quiet=False)
                case _:
                    pass
        return found

    def _end(self, connection: psycopg.Connection[Any], peek: _Peek) -> None:
        connection.execute(f"CLOSE {_CURSOR}")
        self._peek = None
        cut = peek.messages >= self._limit
        fresh = peek.events > peek.skip
        self._limit = 2 * self._limit if cut and not fresh else self._limit
        self.at_end = not cut
        if not cut and peek.events < peek.skip:
            raise SourceReplaced(
                f"slot {self.settings.slot}: {peek.skip} events behind {lsn_text(peek.anchor)} were read before, and now there are"
                f" {peek.events}: this is not the stream that was read. Start without state"
            )
        if cut or peek.seen is None:
            return
        self._seen = peek.seen
        room = len(self.anchors) < self.settings.anchors_max
        if room and not peek.events and peek.seen - peek.anchor >= self.settings.quiet_bytes:
            self.next += 1
            self._add_anchor(self.next, peek.seen, quiet=True)

    def _add_anchor(self, position: int, lsn: int, *, quiet: bool) -> None:
        """Anchors of ends of transactions may be left out again: from the one before, events are counted. Those of quiet stretches not."""
        if position <= self.anchors[-1][0]:
            return
        self.anchors = [*self.anchors, (position, lsn)]
        if not quiet:
            self._spare.add(position)
        if len(self.anchors) > self.settings.anchors_max:
            spare = [place for place, _ in self.anchors[1:] if place in self._spare]
            self._spare.difference_update(gone := set(spare[::2]))
            self.anchors = [each for each in self.anchors if each[0] not in gone]

    def follow(self) -> None:
        """Let the slot follow the last commit; nothing is read behind that."""
        if self._peek is not None:
            self.close()  # a slot that is peeked cannot be advanced
        self._advance(self._connected())

    def _advance(self, connection: psycopg.Connection[Any]) -> None:
        """Let the slot follow the last commit."""
        if self.committed < self.anchors[0][0]:
            return
        anchor = self.anchor(self.committed)
        self.anchors = [each for each in self.anchors if each >= anchor]
        self._spare.intersection_update(place for place, _ in self.anchors)
        if anchor[1] > self._advanced:
            connection.execute(
                "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self.settings.slot, lsn_text(anchor[1]))
            )
            self._advanced = anchor[1]
            self._limit = self.settings.peek_messages


def _connect(settings: PostgresSettings) -> psycopg.Connection[Any]:
    scheme = next((each for each in _SCHEMES if settings.url.startswith(each)), None)
    if scheme is None:
        raise SlotRefused(
            f"connection {settings.connection_name}: a source of changes reads PostgreSQL; expected a url postgresql://…, found another,"
            " which is not shown here"
        )
    url = "postgresql://" + settings.url.removeprefix(scheme)
    options: dict[str, Any] = patience(conninfo_to_dict(url))
    name = f"tidemark {settings.slot}"
    connection = psycopg.connect(url, autocommit=True, **options, application_name=name)
    for statement in _SESSION:
        with suppress(errors.InsufficientPrivilege):  # lc_messages is an administrator's
            connection.execute(statement)
    connection.execute(sql.SQL("SET lock_timeout = {}").format(sql.Literal(settings.lock_wait_ms)))
    return connection


@dataclass(slots=True)
class PostgresConnector:
    """`SourcePort` of the changes that a slot of PostgreSQL keeps. Work with the server runs on the executor's threads, one at a time."""

    settings: PostgresSettings
    executor: Executor
    clock: Clock
    _reader: _Connection | None = None
    _until: Offset | None = None
    _known: Mapping[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def splits(self) -> Mapping[SplitId, int]:
        """There is one: the slot."""
        return {SPLIT: 0}

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """The slot is there, in the database and server that were read. SourceReplaced, SourceMissing."""
        if SPLIT not in known:
            return
        state = await self.state()
        if state.origin != known[SPLIT].origin:
            raise SourceReplaced(
                f"connection {self.settings.connection_name}: this processor reads {known[SPLIT].origin} (system"
                f" identifier, database, slot), and now the connection leads to {state.origin}: positions in the one mean nothing in the"
                " other. Bring the old server back; or"
                " start without state, to read from where the slot stands"
            )

    async def state(self) -> SlotState:
        """The slot, as the server describes it. SourceMissing, SlotRefused, SourceReplaced, LogUnavailable."""
        return await self.executor.blocking(self._look)

    def _look(self) -> SlotState:
        with _PostgresErrors(self.settings), _connect(self.settings) as connection:
            found = slot_state(connection, self.settings)
            check_identities(connection, self.settings.publication)
            if self.settings.initial_sync and self._reader is None:
                tables_of(connection, self.settings.publication)
            return found

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """From where the slot stands: its LSN is the first position."""
        del first
        if not splits:
            return {}
        state = await self.state()
        return {split: KnownSplit(0, state.origin, Offset(state.confirmed)) for split in splits}

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Behind the last event of a transaction that has been committed by now."""
        return {split: Offset(await self.executor.blocking(self._end, at)) for split, at in positions.items()}

    def _end(self, position: int) -> int:
        """Counted by a reader of its own. An empty stretch at the end counts no position: no record has it."""
        with self._lock, _PostgresErrors(self.settings):
            own = self._reader or self._reader_at(position)
            end = max(position, own.next)
            reader = _Connection(self.settings, end, list(own.anchors), own.tables)
            try:
                if own.tables is not None and not own.tables.is_done():
                    return _BY_LSN + reader.log_end()
                while not reader.at_end:
                    end = max([end, *(each + 1 for each in reader.read(_COUNT_BYTES)[0])])
            finally:
                reader.close()
            return end

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """See `KnowsOrigins.know`: anchors."""
        self._known = origins.get(SPLIT, self._known)

    def origins(self, split: SplitId, position: Offset) -> Mapping[str, str]:
        """See `KnowsOrigins.origins`: anchors, position to LSN; the tables' state while it matters."""
        del split
        if self._reader is None:
            return self._known
        # The state first: a thread that reads meanwhile has anchors before all tables count as read.
        tables = self._reader.tables
        state = None if tables is None else tables.at(position)
        anchors = list(self._reader.anchors)
        found = {str(each): lsn_text(lsn) for each, lsn in anchors}
        if state is not None and (not state.done or anchors[0][1] < state.high):
            found[_SYNC] = msgspec.json.encode(state).decode()
        return found

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """The slot may follow a committed checkpoint: it is advanced before the next read, and at once where none will come."""
        del group
        if self._reader is not None and SPLIT in positions:
            self._reader.committed = max(self._reader.committed, positions[SPLIT])
            if self._finished():
                await self.executor.blocking(self._follow, self._reader)

    def _follow(self, reader: _Connection) -> None:
        with self._lock, _PostgresErrors(self.settings):
            reader.follow()

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read from here; the server is asked with the first fetch."""
        if SPLIT in positions and self._reader is None:
            self._reader = self._reader_at(positions[SPLIT])

    def _reader_at(self, position: int) -> _Connection:
        """One that goes on where a snapshot is. Without one the position is the beginning, which is the slot's LSN."""
        state = None
        if _SYNC in self._known:
            state = msgspec.json.decode(self._known[_SYNC], type=Synced)
        elif not self._known and self.settings.initial_sync:
            state = Synced(lsn=position, begin=position)
        tables = None
        if state is not None:
            tables = TableReader(self.settings.publication, self.settings.fetch_messages, position, state)
            if not state.done:
                return _Connection(self.settings, position, [], tables)
        return _Connection(self.settings, position, _anchors(self._known, position), tables)

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """See `Source.fetch`. SourceReplaced if changes were lost; SourceMissing, SlotRefused."""
        if self._reader is None or self._finished():
            await self.clock.sleep_ms(min(timeout_ms, self.settings.poll_ms))
            return []
        positions, times, values = await self.executor.blocking(self._read, self._reader, max_bytes)
        if not positions and self._reader.at_end:
            await self.clock.sleep_ms(min(timeout_ms, self.settings.poll_ms))
        if self._until is not None:
            count = sum(position < self._until for position in positions)
            positions, times, values = positions[:count], times[:count], values[:count]
        if not positions:
            return []
        columns = np.array(positions, dtype=np.int64), np.array(times, dtype=np.int64), pa.array(values, pa.binary())
        return [RawBatch(SPLIT, 0, *columns)]

    def _read(self, reader: _Connection, max_bytes: int) -> tuple[list[int], list[int], list[bytes]]:
        before = reader.next
        with self._lock, _PostgresErrors(self.settings):
            try:
                return reader.read(max_bytes)
            except BaseException:
                # This call's rows are not given out: they are read again, over a new connection.
                reader.close()
                reader.next, reader.over = before, False
                if reader.tables is not None:
                    reader.tables.back_to(before)
                reader.anchors = [each for each in reader.anchors if each[0] <= before]
                raise

    def _finished(self) -> bool:
        reader = self._reader
        return self._until is not None and reader is not None and (reader.over or reader.next >= self._until)

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        if self._reader is None:
            return []
        done = self._finished()
        position = self._reader.next if self._until is None else min(self._reader.next, self._until)
        return [SplitStatus(SPLIT, Offset(position), done or self._reader.at_end, done)]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        self._until = until.get(SPLIT, self._until)
        if self._until is not None and self._reader is not None and self._reader.next < _BY_LSN <= self._until:
            self._reader.end_lsn = self._until - _BY_LSN

    async def close(self) -> None:
        """Let go of the connection. The slot stays: it keeps what was not read."""
        if self._reader is not None:
            await self.executor.blocking(self._reader.close)


_COUNT_BYTES: Final = 4 * 1024 * 1024
"""Read at once when the end is looked for."""


def _anchors(known: Mapping[str, str], position: int) -> list[tuple[int, int]]:
    """Those of a snapshot; without one the position is the beginning, which is an LSN."""
    found = sorted((int(each), _lsn(text)) for each, text in known.items() if each != _SYNC and int(each) <= position)
    return found or [(position, position)]


def _lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


class _PostgresErrors:
    """Errors of the driver as those of a source."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """LogUnavailable where waiting may help, else LogDenied or SlotRefused."""
        where = f"connection {self._settings.connection_name}"
        if isinstance(error, UnreadMessage):
            raise SlotRefused(f"{where}, slot {self._settings.slot}: {error}") from error
        if not isinstance(error, psycopg.Error):
            return
        text = f"{where}: {with_server(' '.join(str(error).split()), self._settings.url)}"
        if says_denied(str(error)):
            raise LogDenied(f"{text}; correct the connection's url") from error
        if isinstance(error, errors.LockNotAvailable):
            sentence = f"{where}: waits for a lock on tables of publication {self._settings.publication}: a transaction that has altered"
            raise LogUnavailable(f"{sentence} or truncated one is open (pg_locks, pg_blocking_pids)") from error
        if isinstance(error, errors.ObjectNotInPrerequisiteState):
            raise SlotRefused(
                f"{text}. Set wal_level=logical; make a slot anew that was invalidated, and start without state"
            ) from error
        if isinstance(error, errors.OperationalError | errors.InterfaceError | errors.InternalError):
            raise LogUnavailable(text) from error
        raise SlotRefused(text) from error
