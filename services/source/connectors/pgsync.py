"""The rows that PostgreSQL's tables have, before their changes (`initialSync`), exact at the seam over restarts.

- The slot is there first. Then a transaction (REPEATABLE READ) reads the published tables in the order of their names and keys. It cannot
  outlive its connection: behind a break another transaction, with a snapshot of its own, goes on behind the last key of the position
  that is resumed. What one transaction has read is a *segment*: where it begins, and its `pg_current_snapshot`.
- Then the slot's changes are read from the beginning. Each tells its transaction's id. A change is left out if the snapshot of the segment
  in which its key lies saw that transaction, for then the row that was read has it; all others are given. So each key has one insert, and
  then every change behind it. PostgreSQL itself compares keys with the places where segments begin: it alone knows the columns' order.
- A commit's record is in the log before snapshots see it. So the first snapshot is taken when all transactions that were open behind the
  slot's making have ended: else one in front of the slot could be in neither. All have committed in front of `high`, the log's end behind a
  snapshot, if the snapshot saw them: once the slot is there, segments are forgotten.
- Tables are locked (ACCESS SHARE) before the snapshot is taken, because TRUNCATE and rewrites do not heed snapshots.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from tidemark.services.source.connectors.pgoutput import Decoder, RelationColumn, RowChange
from tidemark.shared.language.values import render_json
from tidemark.shared.model.failures import Lasting
from tidemark.shared.ports.log import LogError, LogUnavailable
from tidemark.shared.ports.source import SourceReplaced

_CURSOR: Final = "tidemark_rows"
_XIDS: Final = 1 << 32
_REMEMBERED: Final = 4
"""Pieces whose keys are known: a task takes one while it reads the next, and a checkpoint lies within them."""
_NAMES: Final = """
SELECT p.schemaname, p.tablename, c.oid::bigint
FROM pg_publication_tables p JOIN pg_namespace s ON s.nspname = p.schemaname
     JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = p.tablename
WHERE p.pubname = %s ORDER BY p.schemaname COLLATE "C", p.tablename COLLATE "C"
"""
_TABLE: Final = """
SELECT c.relkind = 'p', c.relreplident::text, to_jsonb(p) -> 'attnames', to_jsonb(p) ->> 'rowfilter',
       has_table_privilege(c.oid, 'SELECT'),
       (SELECT jsonb_agg(jsonb_build_array(a.attname, a.attgenerated <> '',
                         a.attnum = ANY ((identity.indkey::int2[])[0:identity.indnkeyatts - 1]))
                         ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT jsonb_agg(jsonb_build_array(a.attname, format_type(a.atttypid, a.atttypmod), quote_ident(n.nspname) || '.'
                         || quote_ident(l.collname)) ORDER BY k.place)
        FROM unnest(paged.indkey::int2[]) WITH ORDINALITY k (attnum, place)
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
             LEFT JOIN pg_collation l ON l.oid = a.attcollation LEFT JOIN pg_namespace n ON n.oid = l.collnamespace
        WHERE k.place <= paged.indnkeyatts)
FROM pg_publication_tables p JOIN pg_namespace s ON s.nspname = p.schemaname
     JOIN pg_class c ON c.relnamespace = s.oid AND c.relname = p.tablename
     LEFT JOIN pg_index identity ON identity.indexrelid = pg_get_replica_identity_index(c.oid)
     LEFT JOIN pg_index paged ON paged.indrelid = c.oid AND CASE WHEN c.relreplident = 'f' THEN paged.indisprimary
                                                                 ELSE paged.indexrelid = identity.indexrelid END
WHERE p.pubname = %s AND p.schemaname = %s AND p.tablename = %s
"""

Key = Mapping[str, str]
"""Columns with their texts."""


class SyncRefused(LogError, Lasting):
    """The tables cannot be read as they are."""


class TableScan(msgspec.Struct, frozen=True, array_like=True):
    """The part that one transaction reads: from behind this key of this table on."""

    table: int
    after: Key | None
    snapshot: str
    """`pg_current_snapshot`."""
    high: int
    """LSN: all that the snapshot saw was committed before."""


class Synced(msgspec.Struct, frozen=True):
    """How far the tables are read, as a checkpoint has it."""

    lsn: int
    """Where the slot stood: changes are read from here."""
    begin: int
    """The position of the first row."""
    time_ms: int = 0
    """Of all rows: no change that is given has an earlier one."""
    tables: tuple[tuple[str, str, int], ...] = ()
    """Schemas, names and numbers (oid): a table may have had another name in its earlier changes."""
    segments: tuple[TableScan, ...] = ()
    table: int = 0
    """The present one; behind the last one all are read."""
    after: Key | None = None
    """The last key that was read of it."""

    @property
    def done(self) -> bool:
        """All tables are read."""
        return bool(self.segments) and self.table >= len(self.tables)

    @property
    def high(self) -> int:
        """LSN: changes behind it need no comparison."""
        return max((each.high for each in self.segments), default=0)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table: what is read of it, and by what it is ordered."""

    name: tuple[str, str]
    partitioned: bool
    columns: tuple[tuple[str, bool], ...]
    """Names, and whether one is of the replica identity: in the order of pgoutput."""
    key: tuple[tuple[str, str, str | None], ...]
    """Names, types and collations."""
    condition: str | None

    def from_clause(self) -> sql.Composed:
        """Partitions are read with their root; tables that inherit are tables of their own."""
        return sql.SQL("{}{}").format(sql.SQL("" if self.partitioned else "ONLY "), sql.Identifier(*self.name))

    def query(self, after: Key | None) -> sql.Composed:
        """Rows behind a key, in order."""
        names = sql.SQL(", ").join(sql.Identifier(name) for name, _ in self.columns)
        ordered = sql.SQL(", ").join(sql.Identifier(name) for name, _, _ in self.key)
        conditions = [sql.SQL("({})").format(sql.SQL(self.condition))] if self.condition else []
        if after is not None:
            conditions.append(sql.SQL("ROW({}) > {}").format(ordered, self.row(after)))
        where = sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(conditions)) if conditions else sql.SQL("")
        return sql.SQL("SELECT {} FROM {}{} ORDER BY {}").format(names, self.from_clause(), where, ordered)

    def row(self, key: Mapping[str, str | sql.Composable]) -> sql.Composed:
        """A key as a value of the server's. SyncRefused if it is of other columns."""
        if set(key) != {name for name, _, _ in self.key}:
            raise SyncRefused(
                f"table {'.'.join(self.name)}: its initial sync is ordered by {', '.join(sorted(key))}, and now its key is"
                f" {', '.join(name for name, _, _ in self.key)}. Bring the old key back, or start without state, with a new slot"
            )
        parts = [
            sql.SQL("{}::{}{}").format(
                value if isinstance(value := key[name], sql.Composable) else sql.Literal(value),
                sql.SQL(kind),
                sql.SQL("" if collation is None else f" COLLATE {collation}"),
            )
            for name, kind, collation in self.key
        ]
        return sql.SQL("ROW({})").format(sql.SQL(", ").join(parts))


@dataclass(frozen=True, slots=True)
class _RowsRead:
    """Rows that were read at once: where a checkpoint within them goes on."""

    before: int
    """The position in front of them."""
    state: Synced
    keys: Sequence[tuple[int, Sequence[str], tuple[str, ...]]]
    """Of each row the table's number, and its key: columns (one object for a table) and texts."""

    def at(self, position: int) -> Synced | None:
        place = position - self.before
        if not 0 < place <= len(self.keys):
            return None
        table, names, texts = self.keys[place - 1]
        return msgspec.structs.replace(self.state, table=table, after=dict(zip(names, texts, strict=True)))


@dataclass(slots=True)
class TableReader:
    """Reads the tables' rows over the source's connection. Not for two threads at once, but for `at`."""

    publication: str
    rows_max: int
    """In memory at once, besides those of a piece."""
    start: int
    """The position from which it reads."""
    state: Synced
    _pieces: tuple[_RowsRead, ...] = ()
    _done_at: int | None = None
    _session: psycopg.Connection[Any] | None = None
    _table: PublishedTable | None = None
    _open_below: int | None = None
    """The first look's: all transactions below have to end before rows are read."""
    _begun: Synced = field(init=False)

    def __post_init__(self) -> None:
        """It stands at its beginning."""
        self._begun = self.state
        self._done_at = self.start if self.state.done else None

    def is_done(self) -> bool:
        """All rows were given out, or will be with the piece that was read."""
        return self._done_at is not None

    def at(self, position: int) -> Synced:
        """The state at a position that a checkpoint may have."""
        if self._done_at is not None and position >= self._done_at:
            return self.state
        for piece in self._pieces:
            if (found := piece.at(position)) is not None:
                return found
        if position == self.start:
            return self._begun
        message = f"position {position} of an initial sync is none of those that were read lately"
        raise RuntimeError(message)

    def back_to(self, position: int) -> None:
        """The connection was given up, and rows behind this position were not given out: go on from here in a new transaction."""
        if not self.is_done():
            self._session = self._table = None
            self._pieces = tuple(each for each in self._pieces if each.before < position)
            self.state = self.at(position)
            self.start, self._begun = position, self.state

    def read(
        self, connection: psycopg.Connection[Any], database: str, next_: int, max_bytes: int
    ) -> Iterator[tuple[int, bytes]]:
        """Times (ms) and events of the next rows as inserts, about so many bytes; at the end of all tables `state.done`."""
        if self._session is None:
            self._begin(connection)
        keys: list[tuple[int, Sequence[str], tuple[str, ...]]] = []
        decoder, size, state = Decoder(database), 0, self.state
        while size < max_bytes and not self.state.done:
            if self._table is None:
                self._open(connection)
            cursor = connection.execute(f"FETCH {self.rows_max} FROM {_CURSOR}")
            result, table = cursor.pgresult, self._table
            assert result is not None and table is not None, "it was opened, and has answered"  # noqa: PT018
            if not result.ntuples:
                connection.execute(f"CLOSE {_CURSOR}")
                self._table = None
                self.state = msgspec.structs.replace(self.state, table=self.state.table + 1, after=None)
                continue
            columns = [RelationColumn(name, result.ftype(n), key) for n, (name, key) in enumerate(table.columns)]
            names = tuple(name for name, _, _ in table.key)
            places = [[name for name, _ in table.columns].index(name) for name in names]
            for number in range(result.ntuples):
                cells = [result.get_value(number, n) for n in range(result.nfields)]
                keys.append((self.state.table, names, tuple((cells[place] or b"").decode() for place in places)))
                index = next_ + len(keys) - 1 - state.begin
                row = decoder.row(table.name, columns, cells, state.lsn, index, state.time_ms)
                value = render_json(row.event, canonical=True)
                size += len(value)
                yield row.time_ms, value
            self.state = msgspec.structs.replace(self.state, after=dict(zip(names, keys[-1][2], strict=True)))
        if keys:
            self._pieces = (*self._pieces[1 - _REMEMBERED :], _RowsRead(next_, self.state, keys))
        if self.state.done:
            connection.execute("ROLLBACK")
            self._session = None

    def done(self, position: int) -> None:
        """All rows are in front of this position: whoever reads has an anchor there."""
        self._done_at = position

    def _begin(self, connection: psycopg.Connection[Any]) -> None:
        """A transaction with its snapshot. LogUnavailable while transactions are open that began in front of the slot."""
        state = self.state
        found = tuple(
            (schema, table, oid) for schema, table, oid in connection.execute(_NAMES, (self.publication,)).fetchall()
        )
        if not state.segments:
            self._wait(connection)
            state = msgspec.structs.replace(self.state, tables=found)
        gone = [".".join(name) for *name, oid in state.tables[state.table :] if (*name, oid) not in found]
        if gone:
            raise SourceReplaced(
                f"publication {self.publication}: its initial sync expected table {', '.join(gone)}, which it had as the sync began,"
                " and found none, or another one of that name. Start without state, with a new slot"
            )
        rest = [described(connection, self.publication, (each[0], each[1])) for each in state.tables[state.table :]]
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute("SET LOCAL row_security = off")  # rows that a policy hides are an error
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # receivers may be slow
        if rest:
            connection.execute(
                sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(
                    sql.SQL(", ").join(each.from_clause() for each in rest)
                )
            )
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        end = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        assert row is not None and end is not None, "they have no condition"  # noqa: PT018
        own = TableScan(state.table, state.after, row[0], int(end[0]))
        earlier = tuple(each for each in state.segments if (each.table, each.after) != (own.table, own.after))
        self.state = msgspec.structs.replace(state, segments=(*earlier, own))
        self._session = connection

    def _wait(self, connection: psycopg.Connection[Any]) -> None:
        """Until no transaction is open that was at the first look; that look's time is the rows'.

        All ids that were given by then are below its own. A snapshot's `xmax` would not do: it is behind the last that has ended.
        """
        if self._open_below is None:
            row = connection.execute(
                "SELECT pg_current_xact_id()::text, (extract(epoch FROM statement_timestamp()) * 1000)::bigint"
            ).fetchone()
            assert row is not None, "it has no condition"
            self._open_below = int(row[0])
            self.state = self._begun = msgspec.structs.replace(self.state, time_ms=int(row[1]))
        row = connection.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text").fetchone()
        assert row is not None, "it has no condition"
        if int(row[0]) < self._open_below:
            raise LogUnavailable(
                f"the initial sync waits for transactions that were open as it began: the oldest is {row[0]}, and all below"
                f" {self._open_below} have to end first (pg_stat_activity.backend_xid, pg_prepared_xacts)"
            )

    def _open(self, connection: psycopg.Connection[Any]) -> None:
        schema, name, _ = self.state.tables[self.state.table]
        self._table = table = described(connection, self.publication, (schema, name))
        connection.execute(
            sql.SQL("DECLARE {} NO SCROLL CURSOR FOR {}").format(sql.Identifier(_CURSOR), table.query(self.state.after))
        )


def described(connection: psycopg.Connection[Any], publication: str, name: tuple[str, str]) -> PublishedTable:
    """A published table as it is. SyncRefused if it has no key, or may not be read."""
    where = f"table {'.'.join(name)} of publication {publication}"
    row = connection.execute(_TABLE, (publication, *name)).fetchone()
    if row is None:
        raise SourceReplaced(
            f"{where}: it was there a moment ago, and now it is not. Start without state, with a new slot"
        )
    partitioned, identity, published, condition, readable, columns, key = row
    if not readable:
        raise SyncRefused(
            f"{where}: initialSync expected the connection's user to have SELECT on it, found that it has not."
            f" GRANT SELECT ON {'.'.join(name)} TO …"
        )
    if not key:
        found = {"n": "REPLICA IDENTITY NOTHING"}.get(identity, "none")
        raise SyncRefused(
            f"{where}: initialSync expected a primary key (or REPLICA IDENTITY USING INDEX), by which its rows are read in"
            f" order, found {found}. ALTER TABLE … ADD PRIMARY KEY; or leave the table to a publication of its own"
        )
    kept = [
        (each, identity == "f" or bool(is_key))
        for each, generated, is_key in columns
        if (each in published if published is not None else not generated)
    ]
    missing = [each for each, _, _ in key if each not in dict(kept)]
    if missing:
        computed = {each for each, generated, _ in columns if generated}
        remedy = (
            "The database computes it: choose another key (REPLICA IDENTITY USING INDEX), or, from PostgreSQL 18 on, name it in a list of"
            " columns"
            if computed.intersection(missing)
            else "Add it to the publication's list of columns"
        )
        raise SyncRefused(
            f"{where}: initialSync expected the key's columns to be published, found that {', '.join(missing)} is not. {remedy}"
        )
    return PublishedTable(name, partitioned, tuple(kept), tuple(map(tuple, key)), condition)


def tables_of(connection: psycopg.Connection[Any], publication: str) -> list[PublishedTable]:
    """All tables of a publication. SyncRefused."""
    names = connection.execute(_NAMES, (publication,)).fetchall()
    return [described(connection, publication, (schema, name)) for schema, name, _ in names]


class _Snapshot:
    """A `pg_current_snapshot`: which transactions it saw."""

    def __init__(self, text: str) -> None:
        low, high, open_ = text.split(":")
        self._low, self._high = int(low), int(high)
        self._open = {int(each) for each in open_.split(",") if each}

    def saw(self, xid: int) -> bool:
        """Whether a committed transaction with this id of 32 bits is in it: the ids of 64 bits lie nearer than 2^31."""
        full = self._high + ((xid - self._high + _XIDS // 2) % _XIDS - _XIDS // 2)
        return full < self._low or (full < self._high and full not in self._open)


@dataclass(slots=True)
class Seam:
    """Which changes of the slot are not in the rows that were read."""

    state: Synced
    publication: str
    _snapshots: dict[str, _Snapshot] = field(default_factory=dict)
    _tables: dict[int, PublishedTable] = field(default_factory=dict)
    _places: dict[tuple[int, tuple[str, ...]], int] = field(default_factory=dict)
    """Of keys: the segments in which they lie."""

    def look(self, changes: Sequence[RowChange], connection: psycopg.Connection[Any]) -> None:
        """Ask the server for the segments of these changes' keys, at once: `due` takes no others."""
        asked: dict[int, dict[tuple[str, ...], None]] = {}
        for change in changes:
            table, seen = self._seen(change)
            if table is not None and any(seen) and not all(seen):
                names = self._names(table)
                keys = (tuple(key[name] for name in names) for key in change.keys if set(names) <= key.keys())
                asked.setdefault(table, {}).update((key, None) for key in keys)
        self._places = {}
        for table, found in asked.items():
            if found:
                self._ask(table, list(found), connection)

    def due(self, change: RowChange) -> RowChange | None:
        """The change as it is to be given; None if the rows have it. SyncRefused."""
        table, seen = self._seen(change)
        if table is None or all(seen) or not any(seen):
            return None if table is not None and all(seen) else change
        if not change.keys:
            raise SyncRefused(
                f"table {'.'.join(change.table)} was truncated while its initial sync was interrupted: some of its rows were read in"
                " front of that, some behind it. Start without state, with a new slot"
            )
        *before, after = [seen[self._place(change, table, key)] for key in change.keys]
        if all(each == after for each in before):
            return None if after else change
        return _as_delete(change) if after else _as_insert(change)

    def _seen(self, change: RowChange) -> tuple[int | None, Sequence[bool]]:
        """The change's table if its rows were read, and whether the snapshots of its segments saw the transaction."""
        tables = self.state.tables
        same = [n for n, (*_, oid) in enumerate(tables) if oid == change.oid]
        same = same or [n for n, (*name, _) in enumerate(tables) if tuple(name) == change.table]
        if not same:
            return None, ()
        return same[0], [self._saw(segment, change.xid) for segment in self._segments(same[0])]

    def _segments(self, table: int) -> list[TableScan]:
        """Those in which rows of a table were read: the one that came to it, and those that begin within it, by their keys."""
        found: list[TableScan] = []
        for each in self.state.segments:
            if (each.table, each.after) == (table, None) or each.table < table:
                found = [each]
            elif each.table == table:
                found.append(each)
        return found

    def _saw(self, segment: TableScan, xid: int) -> bool:
        if segment.snapshot not in self._snapshots:
            self._snapshots[segment.snapshot] = _Snapshot(segment.snapshot)
        return self._snapshots[segment.snapshot].saw(xid)

    def _names(self, table: int) -> Sequence[str]:
        """The columns of the key by which a table was read in several segments."""
        return next(list(each.after) for each in self._segments(table)[1:] if each.after is not None)

    def _place(self, change: RowChange, table: int, key: Key) -> int:
        """The segment in which a key lies. SyncRefused if the change does not tell it."""
        names = self._names(table)
        missing = [name for name in names if name not in key]
        if missing:
            raise SyncRefused(
                f"table {'.'.join(change.table)}: its initial sync expected each change to tell the key {', '.join(names)}, found one"
                f" without {', '.join(missing)}: its replica identity was changed while the sync was interrupted. Start without"
                " state, with a new slot"
            )
        return self._places[table, tuple(key[name] for name in names)]

    def _ask(self, table: int, keys: Sequence[tuple[str, ...]], connection: psycopg.Connection[Any]) -> None:
        """The keys' segments, by the server's order. SyncRefused."""
        if table not in self._tables:
            schema, name, _ = self.state.tables[table]
            self._tables[table] = described(connection, self.publication, (schema, name))
        own = self._tables[table]
        begins = [each.after for each in self._segments(table)[1:] if each.after is not None]
        names = self._names(table)
        value = own.row({name: sql.Identifier("k", f"c{n}") for n, name in enumerate(names)})
        behind = [sql.SQL("({} > {})::int").format(value, own.row(after)) for after in begins]
        columns = [sql.Identifier(f"c{n}") for n in range(len(names))]
        rows = connection.execute(
            sql.SQL("SELECT {} FROM unnest({}) WITH ORDINALITY k ({}, place) ORDER BY k.place").format(
                sql.SQL(" + ").join(behind),
                sql.SQL(", ").join(sql.SQL("%s::text[]") for _ in names),
                sql.SQL(", ").join(columns),
            ),
            [list(each) for each in zip(*keys, strict=True)],
        ).fetchall()
        self._places.update(((table, key), place) for key, (place,) in zip(keys, rows, strict=True))


def _as_delete(change: RowChange) -> RowChange:
    """A key that was read has gone to where the row was read under its new one."""
    event = dict(change.event)
    key = event.pop("documentKeyBeforeChange", None) or event["fullDocumentBeforeChange"]
    for name in ("fullDocument", "updateDescription"):
        event.pop(name, None)
    return replace(change, event={**event, "operationType": "delete", "documentKey": key})


def _as_insert(change: RowChange) -> RowChange:
    """A key that was read nowhere has come to where keys had been read before."""
    event = dict(change.event)
    if "updateDescription" in event:
        raise SyncRefused(
            f"table {'.'.join(change.table)}: a row's key was changed while its initial sync was interrupted, and the server did not send"
            f" its columns {', '.join(event['updateDescription']['notSent'])}, which nothing has read. ALTER TABLE … REPLICA"
            " IDENTITY FULL, and start without state, with a new slot"
        )
    for name in ("documentKeyBeforeChange", "fullDocumentBeforeChange"):
        event.pop(name, None)
    return replace(change, event={**event, "operationType": "insert"})
