"""The SQL sink: `$merge` into a table of PostgreSQL or SQLite (protocol, S2, S5, S6).

- Rows of an epoch, and `released = n where released = predecessor`, are one transaction that must touch one marker row. So a zombie, or a
  commit whose answer was lost, cannot write twice: the second finds another marker.
- Staged rows lie in the commit's handle if small, else in the blob store, in parts; a large epoch is streamed part by part.
- Rows that the table would refuse are found before staging. A row that it refuses all the same is a permanent error, which names commit
  and record.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.schema import CreateTable

from tidemark.services.sink.connectors.markers import check_open, is_due
from tidemark.services.sink.connectors.mergechanges import (
    HeldRows,
    NoChange,
    StagedChange,
    StagedRow,
    changes,
    place_of,
    staged_rows,
)
from tidemark.services.sink.connectors.sqlasked import AskedColumns
from tidemark.services.sink.connectors.sqlpipelines import PipelineWriter
from tidemark.services.sink.connectors.sqlrows import RowMaker, SqlRows, documents_array, maker_of
from tidemark.services.sink.connectors.sqltable import target_table
from tidemark.services.sink.connectors.sqlvalues import NoColumn
from tidemark.services.sink.connectors.sqlwrites import MergeWriter, Unwanted
from tidemark.services.sink.connectors.staging import Part, PartStore
from tidemark.shared.adapters.sql import (
    DIALECTS,
    bound_lock_waits,
    is_denied,
    is_passing,
    only_existing,
    patience,
    with_driver,
    with_server,
)
from tidemark.shared.adapters.sql_cells import read_all
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import decode_doc, encode_doc
from tidemark.shared.language.values.cells import JSON_DEPTH_MAX
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.ports.clock import Executor
from tidemark.shared.ports.sink import Identity, Rejected, TargetDenied, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.one_by_one import OneByOne

MARKERS_TABLE: Final = "tidemark_released"
_RELEASED: Final = sa.Table(
    MARKERS_TABLE,
    sa.MetaData(),
    sa.Column("identity", sa.String(300), primary_key=True),
    sa.Column("released", sa.BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlSinkSettings:
    """Bounds of an SQL sink."""

    part_bytes_max: int = 4 * 1024 * 1024
    """Encoded rows of one part; also the rows held in memory before they are staged."""
    lock_wait_ms: int = knob(10_000)
    """How long a lock is waited for, such as a zombie's, before the target counts as away."""
    idle_in_transaction_ms: int = 60_000
    """After so long of silence PostgreSQL ends a release's transaction: a stopped process holds no lock for ever."""
    tables_max: int = 1000
    """How many tables an expression in `$merge.into` may name; rows for more go to the dead letters."""
    connections_max: int = 15
    """Connections to one database, of all tasks of the process; a task that needs one more waits."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "sql sink")


def engine_at(url: str, settings: SqlSinkSettings | None = None) -> sa.Engine:
    """An engine for a connection's url: PostgreSQL by the driver that is installed, SQLite where its file is.

    TargetRefused for a url of another database.
    """
    expected = "the connection's url: expected postgresql://user:password@host/database or sqlite:///path"
    try:
        address = sa.make_url(url)
    except exc.ArgumentError:
        raise TargetRefused(f"{expected}, found no address of a database; it is not shown here") from None
    if address.get_backend_name() not in DIALECTS:
        raise TargetRefused(f"{expected}, found one of {address.get_backend_name()}")
    engine = engine_of(with_driver(address), settings)
    only_existing(engine)
    return engine


def engine_of(url: str | sa.URL, settings: SqlSinkSettings | None = None) -> sa.Engine:
    """An engine that waits for locks as the settings say and, on SQLite, writes every commit through to the disk."""
    settings = settings or SqlSinkSettings()
    wait_s = settings.lock_wait_ms / 1000
    pool = {"pool_size": settings.connections_max, "max_overflow": 0, "pool_timeout": wait_s}
    url = sa.make_url(url)
    if url.get_backend_name() != "sqlite":
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=patience(url.query), **pool)
        read_all(engine, JSON_DEPTH_MAX)
        bound_lock_waits(engine, settings.lock_wait_ms)
    else:
        engine = sa.create_engine(url, poolclass=sa.QueuePool, connect_args={"timeout": wait_s}, **pool)
        sa.event.listen(engine, "connect", _sync_each_commit)
    sa.event.listen(engine, "reset", _roll_back)
    return engine


def _sync_each_commit(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA synchronous = EXTRA")


def _roll_back(connection: Any, _record: Any, _state: Any) -> None:
    """Roll back a returned connection after a failed commit: its next user would find the marker of a release that never was (S5)."""
    connection.rollback()


@dataclass(frozen=True, slots=True)
class _WrittenTable:
    """A table, and how its rows are written."""

    stage: Merge
    maker: RowMaker
    writer: MergeWriter | PipelineWriter
    asked: AskedColumns

    def data(self, row: StagedRow) -> bytes:
        """The encoded fields of a row that are written, or that find the existing row."""
        if not isinstance(row, StagedChange) or self.stage.when_not_matched == "insert":
            return row.document if isinstance(row, StagedChange) else row
        if self.stage.when_matched in ("replace", "merge"):
            return row.document
        return encode_doc({name: value for name, value in decode_doc(row.document).items() if name in self.stage.on})


@dataclass(frozen=True, slots=True)
class _KnownTable:
    """A table as it was looked at. Accepting and releasing are threads: another look makes another of these, and mends none."""

    table: sa.Table
    by_actions: dict[tuple[str, str], _WrittenTable] = field(default_factory=dict)


def _key_of(row: StagedRow) -> tuple[str, tuple[str, str]]:
    """What a row has of its own: table, "" for the one that the stage names, and actions."""
    return (row.table, (row.when_matched, row.when_not_matched)) if isinstance(row, StagedChange) else ("", ("", ""))


class SqlSink:
    """`SinkPort` into a table, or those that an expression names.

    `engine` is SQLAlchemy's, synchronous; its work runs on the executor's threads.
    """

    def __init__(
        self,
        stage: Merge,
        engine: sa.Engine,
        parts: PartStore,
        executor: Executor,
        settings: SqlSinkSettings | None = None,
        source_topics: Topics = None,
    ) -> None:
        """source_topics: those that the rows came from, for `$meta`."""
        if engine.dialect.name not in DIALECTS:
            raise ValueError(
                f"{stage.path}: expected a connection to {' or '.join(DIALECTS)}, found {engine.dialect.name}"
            )
        self._stage = stage
        self._engine = engine
        self._parts = parts
        self._executor = executor
        self._settings = settings or SqlSinkSettings()
        self._source_topics = source_topics
        self._held = HeldRows(parts, self._settings.part_bytes_max)
        self._identity: Identity | None = None
        self._marker = Epoch(0)
        self._known: dict[str, _KnownTable] = {}
        """By the names that rows have for them."""
        self._looked: set[str] = set()
        """Tables that were looked at again in this epoch, as rows name them."""

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`. TargetRefused if the table is not there, or `on` is no unique key of it."""
        self._identity = identity
        self._held = HeldRows(self._parts, self._settings.part_bytes_max, restored_from)
        return await self._executor.blocking(partial(self._open, identity, restored_from, joins=joins))

    def _open(self, identity: Identity, restored_from: Epoch, *, joins: bool) -> Epoch:
        with self._errors("opening"):
            self._known = {}
            if self._stage.is_constant:
                self._target(b"")
            elif isinstance(self._stage.table, str):
                self._table(self._stage.table, self._stage)
            self._make_markers()
            with self._engine.begin() as connection:
                marker = self._read_marker(connection, identity)
                check_open(identity, marker, restored_from, self.place, joins=joins)
                if marker is None:
                    marker = self._begin_marker(connection, identity, restored_from)
                elif joins and marker < restored_from:
                    connection.execute(
                        sa.update(_RELEASED).where(
                            _RELEASED.c.identity == str(identity), _RELEASED.c.released == marker
                        ),
                        {"released": restored_from},
                    )
                    marker = restored_from
        self._marker = marker
        return marker

    def _table(self, name: str, stage: Merge) -> _KnownTable:
        """The table of a resolved stage, which rows name so. TargetRefused."""
        known = self._known.get(name)
        if known is None:
            # In this order: another thread may learn of it meanwhile, and nobody forgets one.
            if len(self._known) >= self._settings.tables_max and name not in self._known:
                raise TargetRefused(
                    f"{place_of(stage)}: the expression has named {len(self._known)} tables, which is tables_max"
                )
            known = self._known.setdefault(name, _KnownTable(target_table(self._engine, stage)))
        return known

    def _target(self, row: StagedRow) -> _WrittenTable:
        """Where a row goes. TargetRefused, TargetUnavailable."""
        name, actions = _key_of(row)
        known = self._known.get(name)
        found = None if known is None else known.by_actions.get(actions)
        if found is None:
            stage = self._stage_of(row)
            with self._errors(f"looking at {stage.table}"):
                known = self._table(name, stage)
                found = self._written(stage, known.table)
            known.by_actions[actions] = found
        return found

    def _stage_of(self, row: StagedRow) -> Merge:
        return row.resolved(self._stage) if isinstance(row, StagedChange) else self._stage

    def _written(self, stage: Merge, table: sa.Table) -> _WrittenTable:
        maker = maker_of(table, stage, self._engine.dialect)
        with self._engine.begin() as connection:
            piped = isinstance(stage.when_matched, tuple)
            writer = PipelineWriter(connection, table, stage, maker) if piped else MergeWriter(connection, table, stage)
            return _WrittenTable(stage, maker, writer, AskedColumns(connection, table))

    def _make_markers(self) -> None:
        """Make the markers table if it is not there; another task may be making it at the same time."""
        if sa.inspect(self._engine).has_table(MARKERS_TABLE):
            return
        try:
            with self._engine.begin() as connection:
                connection.execute(CreateTable(_RELEASED, if_not_exists=True))
        except exc.DBAPIError:
            if not sa.inspect(self._engine).has_table(MARKERS_TABLE):
                raise

    def _read_marker(self, connection: sa.Connection, identity: Identity) -> Epoch | None:
        query = sa.select(_RELEASED.c.released).where(_RELEASED.c.identity == str(identity))
        found = connection.execute(query).scalar_one_or_none()
        return None if found is None else Epoch(found)

    def _begin_marker(self, connection: sa.Connection, identity: Identity, restored_from: Epoch) -> Epoch:
        """A new identity's first marker; another holder may have been faster."""
        insert = postgresql_insert if self._engine.dialect.name == "postgresql" else sqlite_insert
        connection.execute(
            insert(_RELEASED).values(identity=str(identity), released=restored_from).on_conflict_do_nothing()
        )
        marker = self._read_marker(connection, identity)
        assert marker is not None, "it was written in this transaction"
        check_open(identity, marker, restored_from, self.place, joins=True)
        return marker

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`. After TargetUnavailable nothing of the batch was taken: it may be handed over again."""
        await self._held.make_room()
        if self._identity is None:
            raise ValueError("sql sink: accept before open")
        if self._stage.is_constant:
            documents = encoded(batch)
            rows: list[StagedRow | NoChange] = list(documents.to_pylist())
            target = self._target(b"")
            misfits: Mapping[int, object] = target.maker.misfits(documents)
            if target.asked or self._may_have_come(b"", misfits):
                misfits = await self._executor.blocking(self._judged, b"", documents)
        else:
            rows = await self._executor.blocking(changes, self._stage, batch, self._source_topics)
            misfits = await self._executor.blocking(self._misfits, rows)
        self._held.take([data for n, data in enumerate(rows) if n not in misfits and not isinstance(data, NoChange)])
        return [Rejected(row, f"{self._stage.path}: {misfit}") for row, misfit in sorted(misfits.items())]

    def _misfits(self, rows: Sequence[StagedRow | NoChange]) -> dict[int, object]:
        """Rows that no table takes, with the reasons. TargetUnavailable."""
        found: dict[int, object] = {}
        alike: dict[tuple[str, tuple[str, str]], list[tuple[int, StagedRow]]] = {}
        for n, row in enumerate(rows):
            if isinstance(row, NoChange):
                found[n] = row
            else:
                alike.setdefault(_key_of(row), []).append((n, row))
        for some in alike.values():
            try:
                target = self._target(some[0][1])
                why = self._judged(some[0][1], documents_array([target.data(row) for _, row in some]))
            except TargetRefused as refused:
                found |= dict.fromkeys([n for n, _ in some], refused)
            else:
                found |= {some[at][0]: reason for at, reason in why.items()}
        return found

    def _may_have_come(self, row: StagedRow, misfits: Mapping[int, object]) -> bool:
        """Whether a row's table is looked at again, once in an epoch: somebody may have added a column."""
        return _key_of(row)[0] not in self._looked and any(isinstance(why, NoColumn) for why in misfits.values())

    def _judged(self, row: StagedRow, documents: pa.BinaryArray) -> Mapping[int, object]:
        """Documents that the table of a row does not take, with the reasons. TargetRefused, TargetUnavailable."""
        target = self._target(row)
        misfits: Mapping[int, object] = target.maker.misfits(documents)
        if self._may_have_come(row, misfits):
            self._look_again(row)
            target = self._target(row)
            misfits = target.maker.misfits(documents)
        with self._errors("asking for types"):
            return target.asked.judged(self._engine.begin, target.maker, documents, misfits)

    def _look_again(self, row: StagedRow) -> None:
        """Know a row's table as it is now; as before where it cannot be written any more: its rows' release says so. TargetUnavailable.

        A release may go on meanwhile, on another thread: what it needs is replaced, and never missing.
        """
        stage, (name, actions) = self._stage_of(row), _key_of(row)
        with suppress(TargetRefused), self._errors(f"looking at {stage.table}"):
            table = target_table(self._engine, stage)
            self._known[name] = _KnownTable(table, {actions: self._written(stage, table)})
        self._looked.add(name)

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        self._looked.clear()
        return await self._held.handle(epoch, committed)

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`. After TargetUnavailable it is called again; whether it was done then shows in the marker."""
        identity = self._identity
        if identity is None:
            raise ValueError("sql sink: release before open")
        if not is_due(identity, self._marker, row, self.place):
            return
        await self._transaction(identity, row, self._parts.listed(staged), None)

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: each record that the table refuses is passed over; a part that cannot be read, whole."""
        identity = self._identity
        if identity is None:
            raise ValueError("sql sink: release before open")
        if not is_due(identity, self._marker, row, self.place):
            return 0
        skipped: list[int] = []
        await self._transaction(identity, row, self._parts.listed(staged), skipped)
        return sum(skipped)

    async def _transaction(
        self, identity: Identity, row: MirrorRow, parts: Sequence[Part], skipped: list[int] | None
    ) -> None:
        """`skipped`: takes the numbers of records that may be passed over; None: none may."""
        async with self._connection() as on_connection:
            before = await on_connection(self._claim, identity, row)
            if before is not None:
                self._marker = before
                is_due(identity, before, row, self.place)
                return
            if skipped is not None:
                await on_connection(self._check_at_once)
            done = 0
            for part in parts:
                try:
                    documents = staged_rows(await self._parts.load(part))
                except TargetRefused:
                    if skipped is None:
                        raise
                    skipped.append(part.rows)
                    documents = []
                await on_connection(self._write, f"commit {row.epoch}", documents, done, skipped)
                done += part.rows
            await on_connection(self._commit)
        self._marker = row.epoch

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """A function that does a step on a connection of its own; uncommitted changes are rolled back."""
        steps = OneByOne(self._executor)
        connection = await steps.blocking(self._connect)
        try:
            yield lambda work, *args: steps.blocking(work, connection, *args)
        finally:
            await steps.blocking(self._let_go, connection)

    def _connect(self) -> sa.Connection:
        with self._errors("connecting"):
            connection = self._engine.connect()
            if self._engine.dialect.name == "postgresql":
                idle = self._settings.idle_in_transaction_ms
                connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = {idle:d}")
                connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
            return connection

    def _let_go(self, connection: sa.Connection) -> None:
        try:
            connection.close()
        except exc.DBAPIError:
            # If its rollback found the connection dead, it may have been given back already.
            if not connection.closed:
                connection.invalidate()

    def _claim(self, connection: sa.Connection, identity: Identity, row: MirrorRow) -> Epoch | None:
        """Move the marker, which locks its row until the end of the transaction; where it stands if it was not the predecessor."""
        mine = _RELEASED.c.identity == str(identity)
        with self._errors(f"commit {row.epoch}"):
            moved = connection.execute(
                sa.update(_RELEASED).where(mine, _RELEASED.c.released == row.predecessor), {"released": row.epoch}
            )
            if moved.rowcount == 1:
                return None
            marker = self._read_marker(connection, identity)
        if marker is None:
            raise TargetRefused(
                f"{self.place}: commit {row.epoch}: the marker of {identity} is gone from {MARKERS_TABLE}"
            )
        return marker

    def _write(
        self, connection: sa.Connection, commit: str, staged: list[StagedRow], first: int, skipped: list[int] | None
    ) -> None:
        """Write the rows of a part; `first` is the number of the first of them. Neighbours with one target go together."""
        for target, run in groupby(staged, key=self._target):
            rows = list(run)
            if isinstance(target.writer, PipelineWriter):
                self._write_through(connection, commit, target.writer, rows, first, skipped)
            else:
                self._write_run(connection, commit, target, rows, first, skipped)
            first += len(rows)

    def _write_through(
        self,
        connection: sa.Connection,
        commit: str,
        writer: PipelineWriter,
        staged: Sequence[StagedRow],
        first: int,
        skipped: list[int] | None,
    ) -> None:
        """Each row by the pipeline of whenMatched; a refused row leaves nothing behind (S6)."""
        for number, change in enumerate(staged, first):
            assert isinstance(change, StagedChange), "a pipeline's rows are staged with its variables"
            try:
                with self._savepoint(connection, f"{commit}, record {number}"):
                    writer.write(connection, change)
            except TargetRefused:
                if skipped is None:
                    raise
                skipped += [1]

    def _write_run(
        self,
        connection: sa.Connection,
        commit: str,
        target: _WrittenTable,
        staged: Sequence[StagedRow],
        first: int,
        skipped: list[int] | None,
    ) -> None:
        with self._errors(f"{commit}, records {first} to {first + len(staged) - 1}"):
            rows, misfits = target.maker.rows(documents_array([target.data(each) for each in staged]))
        if misfits and skipped is None:
            number, error = min(misfits.items(), key=lambda item: item[0])
            raise TargetRefused(
                f"{self.place}: {commit}, record {first + number}: {error}; has the table changed since it was staged?"
            ) from error
        if misfits and skipped is not None:
            skipped += [1] * len(misfits)
        taken = np.setdiff1d(np.arange(rows.size), list(misfits))
        assert isinstance(target.writer, MergeWriter)
        self._write_rows(connection, commit, target.writer, rows.taken(taken), (taken + first).tolist(), skipped)

    def _write_rows(
        self,
        connection: sa.Connection,
        commit: str,
        writer: MergeWriter,
        rows: SqlRows,
        numbers: list[int],
        skipped: list[int] | None,
    ) -> None:
        """Write rows with these numbers. Of those that are refused together each half is written alone, until it is one row (S6)."""
        if not numbers:
            return
        try:
            with self._savepoint(connection, f"{commit}, record {numbers[0]}"):
                writer.write(connection, rows)
        except TargetRefused:
            half = len(numbers) // 2
            if not half and skipped is None:
                raise
            if not half and skipped is not None:
                skipped.append(1)
                return
            self._write_rows(connection, commit, writer, rows.taken(slice(0, half)), numbers[:half], skipped)
            self._write_rows(connection, commit, writer, rows.taken(slice(half, None)), numbers[half:], skipped)

    def _check_at_once(self, connection: sa.Connection) -> None:
        """Of a constraint that is looked at with the commit nobody could tell which record it refuses."""
        if self._engine.dialect.name == "postgresql":
            with self._errors("passing over records"):
                connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")

    def _commit(self, connection: sa.Connection) -> None:
        with self._errors("committing"):
            connection.commit()

    @contextmanager
    def _savepoint(self, connection: sa.Connection, doing: str) -> Iterator[None]:
        """A refused statement leaves nothing behind.

        Where the database has ended the whole transaction, as SQLite does on a full disk, nothing may go on in it: TargetUnavailable.
        """
        with self._errors(doing):
            nested = connection.begin_nested()
            try:
                yield
            except BaseException as error:
                try:
                    nested.rollback()
                except exc.DBAPIError as gone:
                    raise TargetUnavailable(
                        f"{self.place}: {doing}: {str(getattr(error, 'orig', error)).strip()}, and the transaction has ended with it"
                    ) from gone
                raise
            nested.commit()

    def _url(self) -> str:
        return self._engine.url.render_as_string()  # the password is hidden

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """The database's errors in the words of a sink."""
        try:
            yield
        except Unwanted as unwanted:
            raise TargetRefused(f"{self.place}: {doing}: {unwanted}") from unwanted
        except exc.DBAPIError as error:
            sentence = f"{self.place}: {doing}: {with_server(str(error.orig).strip(), self._url())}"
            if is_denied(error):
                raise TargetDenied(f"{sentence}; correct the connection's url") from error
            raise (TargetUnavailable if is_passing(error, self._engine.dialect.name) else TargetRefused)(
                sentence
            ) from error
        except exc.TimeoutError as error:
            raise TargetUnavailable(f"{self.place}: {doing}: {error}") from error
        except exc.StatementError as error:
            raise TargetRefused(f"{self.place}: {doing}: {error}") from error

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return place_of(self._stage)

    async def close(self) -> None:
        """Nothing to let go of: the engine is its owner's."""
