"""The coordinator's store on SQLite or PostgreSQL: one row a processor is the truth (C8).

Rules:
- every change of a processor is one transaction whose UPDATE or DELETE names leader, generation and last,
  and must touch one row; else nothing is changed and Stale is raised;
- an error before COMMIT was sent means that nothing was changed (StoreUnavailable); one after it means that
  this is not known (Ambiguous);
- `lead` writes the new token into every processor's row: it waits for a transaction that has written one of
  them, and a later write of one finds another token. Rows are created under the lock of the
  leadership's row, for the same reason;
- a commit is durable when it is answered: SQLite with a write-ahead log, which `synchronous=FULL` syncs once a commit (a rollback
  journal takes three, and more than twice the time); PostgreSQL with `synchronous_commit=on` and `fsync=on`.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from msgspec.structs import replace
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from tidemark.shared.adapters import commit_schema as schema
from tidemark.shared.adapters import sqlite
from tidemark.shared.adapters.commit_rules import (
    LeaseWatch,
    check_commit,
    check_new_generation,
    check_update,
    leads_no_longer,
    stale,
)
from tidemark.shared.adapters.sqlite import SqliteFile, damage
from tidemark.shared.adapters.store_settings import StoreSettings
from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.formats import FormatError
from tidemark.shared.model.ids import NO_LEADER, Epoch, Generation, JobId, LeaderToken
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.ports.commits import (
    WHAT_TO_DO,
    Ambiguous,
    Stale,
    StoreLost,
    StoreUnavailable,
    StoreUnusable,
    counts_fewer,
    names_earlier,
)

T = TypeVar("T")

_DEFAULT: Final = StoreSettings()
_SETUP_LOCK: Final = 7_433_171
"""PostgreSQL's advisory lock under which tables are made."""
_TROUBLE: Final = (SQLAlchemyError, OSError, TimeoutError)


class UnsafeStore(StoreUnusable):
    """The database does not keep rows that it has confirmed, or holds tables of another version: it must not be used."""


class SqlCommitStore:
    """`CommitStore` on SQLAlchemy; `url` is `sqlite:///path` or `postgresql://user:password@host/database`."""

    def __init__(self, url: str, settings: StoreSettings = _DEFAULT) -> None:
        self._timeout_s = settings.timeout_ms / 1000
        self._engine = _engine(url, settings.timeout_ms, settings.connections_max)
        self._sqlite = self._engine.dialect.name == "sqlite"
        self._lease = LeaseWatch()
        self._file = SqliteFile(self._engine.url) if self._sqlite else None
        self.changes = 0
        """The number of changes that this process knows to be confirmed."""

    async def open(self) -> None:
        """Create missing tables; check durability and version.

        Raises:
            UnsafeStore: a setting of the database, or its tables, are not as needed; says which.
        """

        async def make(connection: AsyncConnection) -> None:
            await (self._check_sqlite(connection) if self._sqlite else self._check_postgresql(connection))
            if not self._sqlite:
                await connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SETUP_LOCK)))
            await connection.run_sync(schema.make)
            version = (await connection.execute(sa.select(schema.about.c.version))).scalar()
            leads = (await connection.execute(sa.select(schema.leadership))).all()
            if version is None and not leads:
                await connection.execute(sa.insert(schema.about).values(version=schema.VERSION))
                await connection.execute(sa.insert(schema.leadership).values(one=1, holder="", token=0, expires_ms=0))
            elif version != schema.VERSION:
                raise UnsafeStore(
                    f"store {self._engine.url!r}: expected tables of version {schema.VERSION}, found {version};"
                    " use the program that wrote it, or another database"
                )
            elif len(leads) != 1 or not all(isinstance(value, int) for value in leads[0][2:]):
                raise self._lost("it does not say who leads")

        with self._readable():
            await self._change(make, counts=False)
        if self._file is not None:
            self._file.opened()
        await self._look_through()

    async def _look_through(self) -> None:
        """Read everything: damage is reported before anybody leads, also damage in rows that belong to no job any more."""
        await self.processors()
        await self.connections()
        commits, lineage = await self._read(sa.select(schema.commits)), await self._read(sa.select(schema.lineage))
        with self._readable():
            for row in commits:
                schema.decode_commit(row)
            for row in lineage:
                schema.decode_lineage(row)

    async def _check_sqlite(self, connection: AsyncConnection) -> None:
        found = (await connection.exec_driver_sql("PRAGMA integrity_check(1)")).scalar()
        if found != "ok":
            raise self._lost(str(found))
        journal = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar()
        synchronous = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar()
        if (journal, synchronous) != ("wal", 2):
            raise UnsafeStore(
                f"store {self._engine.url!r}: expected journal_mode wal and synchronous 2 (FULL), found"
                f" {journal} and {synchronous}; a loss of power could undo a commit"
            )

    async def _check_postgresql(self, connection: AsyncConnection) -> None:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            found = (await connection.exec_driver_sql(f"SHOW {setting}")).scalar()
            if found != "on":
                raise UnsafeStore(
                    f"store {self._engine.url!r}: expected {setting} on, found {found}; a crash of the server could"
                    " undo a commit"
                )

    async def close(self) -> None:
        """Let go of all connections."""
        await self._engine.dispose()

    # --- leadership

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        """Take leadership if the lease is free, over or ours by name; writes the token into every processor's row."""

        async def take(connection: AsyncConnection) -> tuple[LeaderToken, int] | None:
            found = (await connection.execute(sa.select(schema.leadership).with_for_update())).one()
            if found.changes < told:
                raise self._older(found.changes, told)
            if found.token < led:
                raise StoreLost(f"store {self._engine.url!r}: {names_earlier(LeaderToken(found.token), led)}")
            over = self._lease.over(LeaderToken(found.token), found.expires_ms, lease_ms, now_ms, looked_ms)
            if found.holder not in ("", holder) and not over:
                return None
            token = LeaderToken(found.token + 1)
            await connection.execute(
                sa.update(schema.leadership).values(holder=holder, token=token, expires_ms=now_ms + lease_ms)
            )
            await connection.execute(sa.update(schema.processors).values(leader=token))
            return token, await self._count(connection)

        taken = await self._change(take, counts=False)
        if taken is None:
            return None
        self.changes = taken[1]
        return taken[0]

    async def renew(self, token: LeaderToken, lease_ms: int, now_ms: int) -> bool:
        """Keep the lease; False if it is no longer ours."""

        async def keep(connection: AsyncConnection) -> bool:
            table = schema.leadership
            kept = sa.update(table).where(table.c.token == token).values(expires_ms=now_ms + lease_ms)
            found = (await connection.execute(kept.returning(table.c.changes))).scalar()
            if found is not None and found < self.changes:
                raise self._older(found, self.changes)
            return found is not None

        return await self._change(keep, counts=False)

    # --- processors

    async def processors(self) -> list[ProcessorRow]:
        """All rows, by name."""
        table = schema.processors
        rows = await self._read(sa.select(table).order_by(table.c.name))
        with self._readable():
            return [replace(schema.decode_processor(row), leader=LeaderToken(row.leader)) for row in rows]

    async def create(self, row: ProcessorRow) -> None:
        """A new row; Stale if the name is taken, or another leads."""

        async def insert(connection: AsyncConnection) -> None:
            await _require_leader(connection, row.leader)
            await connection.execute(sa.insert(schema.processors).values(**_columns(row)))

        await self._change(insert)

    async def update(self, expected: Expected, row: ProcessorRow) -> None:
        """Replace the columns that may change without a commit."""
        check_update(expected, row)
        await self._change(lambda connection: _write(connection, expected, row))

    async def new_generation(self, expected: Expected, row: ProcessorRow, entry: LineageEntry) -> None:
        """Write the row with its new generation, and its lineage entry (R1)."""
        check_new_generation(expected, row, entry)

        async def begin(connection: AsyncConnection) -> None:
            await _write(connection, expected, row)
            added = schema.lineage_columns(row.job, row.name, entry)
            await connection.execute(sa.insert(schema.lineage).values(**added))

        await self._change(begin)

    async def commit(self, expected: Expected, row: ProcessorRow, commit: CommitRow) -> None:
        """Write the row with `last = commit.epoch`, and the commit row (C8, C9)."""
        check_commit(expected, row, commit)

        async def write(connection: AsyncConnection) -> None:
            await _write(connection, expected, row)
            await connection.execute(
                sa.insert(schema.commits).values(
                    job=row.job, epoch=commit.epoch, name=row.name, body=schema.encode(commit)
                )
            )

        await self._change(write)

    async def drop(self, expected: Expected) -> None:
        """Delete the row and all that belongs to its jobs, earlier ones too."""

        async def delete(connection: AsyncConnection) -> None:
            gone = await connection.execute(sa.delete(schema.processors).where(*_as_expected(expected)))
            if gone.rowcount != 1:
                raise Stale(stale(expected))
            for table in (schema.lineage, schema.commits):
                await connection.execute(sa.delete(table).where(table.c.name == expected.name))

        await self._change(delete)

    # --- rows of a job, and connections

    async def lineage(self, job: JobId) -> list[LineageEntry]:
        """All generations, oldest first."""
        table = schema.lineage
        rows = await self._read(sa.select(table).where(table.c.job == job).order_by(table.c.generation))
        with self._readable():
            return [schema.decode_lineage(row) for row in rows]

    async def commits(self, job: JobId, after: Epoch) -> list[CommitRow]:
        """Commit rows above `after` that are still kept, oldest first."""
        table = schema.commits
        wanted = sa.select(table).where(table.c.job == job, table.c.epoch > after).order_by(table.c.epoch)
        rows = await self._read(wanted)
        with self._readable():
            return [schema.decode_commit(row) for row in rows]

    async def forget(
        self, leader: LeaderToken, job: JobId, epochs: Sequence[Epoch], generations: Sequence[Generation] = ()
    ) -> None:
        """Let go of commit rows that nothing can resume from or release any more (C11), and of entries of the lineage."""
        table, lineage = schema.commits, schema.lineage

        async def forget(connection: AsyncConnection) -> None:
            await _require_leader(connection, leader)
            await connection.execute(sa.delete(table).where(table.c.job == job, table.c.epoch.in_(epochs)))
            gone = sa.delete(lineage).where(lineage.c.job == job, lineage.c.generation.in_(generations))
            await connection.execute(gone)

        await self._change(forget)

    async def connections(self) -> dict[str, str]:
        """The connection registry: JSON by name."""
        table = schema.connections
        rows = await self._read(sa.select(table).order_by(table.c.name))
        with self._readable():
            return dict(schema.decode_connection(row) for row in rows)

    async def put_connection(self, leader: LeaderToken, name: str, value: str | None) -> None:
        """Write or, with None, delete a connection."""
        table = schema.connections

        async def put(connection: AsyncConnection) -> None:
            await _require_leader(connection, leader)
            await connection.execute(sa.delete(table).where(table.c.name == name))
            if value is not None:
                await connection.execute(sa.insert(table).values(**schema.connection_columns(name, value)))

        await self._change(put)

    # --- transactions

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """StoreLost if rows are not as written; UnsafeStore if another version wrote them."""
        try:
            yield
        except FormatError as error:
            raise UnsafeStore(f"store {self._engine.url!r}: {error}") from error
        except (ValueError, TypeError) as error:
            raise self._lost(str(error)) from error

    def _lost(self, how: str) -> StoreLost:
        return StoreLost(
            f"store {self._engine.url!r}: it is damaged ({how}); what it knew of processors, connections and commits is lost."
            f" {WHAT_TO_DO}"
        )

    def _older(self, changes: int, confirmed: int) -> StoreLost:
        return StoreLost(f"store {self._engine.url!r}: {counts_fewer(changes, confirmed)}")

    def _look(self) -> None:
        if self._file is not None and (how := self._file.changed()):
            raise self._lost(how)

    async def _read(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        self._look()
        try:
            async with asyncio.timeout(self._timeout_s), self._engine.connect() as connection:
                rows: Sequence[sa.Row[Any]] = (await connection.execute(query)).all()
                return rows
        except _TROUBLE as error:
            if how := damage(error):
                raise self._lost(how) from error
            raise StoreUnavailable(f"store {self._engine.url!r}: cannot be read now ({_said(error)})") from error

    async def _count(self, connection: AsyncConnection) -> int:
        """One more change; StoreLost where this process knows of more than there were."""
        table = schema.leadership
        counted = sa.update(table).values(changes=table.c.changes + 1).returning(table.c.changes)
        changes = int((await connection.execute(counted)).scalar_one())
        if changes <= self.changes:
            raise self._older(changes - 1, self.changes)
        return changes

    async def _change(self, work: Callable[[AsyncConnection], Awaitable[T]], *, counts: bool = True) -> T:
        """Do the work in one transaction; see the module's rules for the meaning of each error."""
        self._look()
        connection = self._engine.connect()
        try:
            async with asyncio.timeout(self._timeout_s):
                _ = await connection.start()
                _ = await connection.execution_options(writes=True)
                _ = await connection.begin()
                # First: so all that write wait in one order, at the row of the leadership.
                changes = await self._count(connection) if counts else self.changes
                result = await work(connection)
                self._look()
        except IntegrityError as error:
            await self._let_go(connection, broken=False)
            raise Stale(f"store {self._engine.url!r}: a row is there already ({_said(error)}); read it") from error
        except _TROUBLE as error:
            await self._let_go(connection, broken=True)
            if how := damage(error):
                raise self._lost(how) from error
            raise StoreUnavailable(
                f"store {self._engine.url!r}: nothing was changed ({_said(error)}); try again"
            ) from error
        except BaseException:
            await self._let_go(connection, broken=False)
            raise
        await self._commit(connection)
        self.changes = max(self.changes, changes)
        return result

    async def _commit(self, connection: AsyncConnection) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.commit()
        except BaseException as error:
            await self._let_go(connection, broken=True)
            if not isinstance(error, _TROUBLE):
                raise
            if how := damage(error):
                raise self._lost(how) from error
            raise Ambiguous(
                f"store {self._engine.url!r}: the answer to a commit was lost ({_said(error)}): take leadership anew,"
                " then read"
            ) from error
        await self._let_go(connection, broken=False)

    async def _let_go(self, connection: AsyncConnection, *, broken: bool) -> None:
        """Give the connection back; a broken one is thrown away, so that nothing of it is used again."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if broken and connection.sync_connection is not None:
                    await connection.invalidate()
                await connection.close()
        except _TROUBLE:
            # It was unusable already, and the first error is being reported.
            return


def _columns(row: ProcessorRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "leader": row.leader,
        "generation": row.generation,
        "last": row.last,
        "job": row.job,
        "body": schema.encode(row),
    }


def _as_expected(expected: Expected) -> tuple[sa.ColumnElement[bool], ...]:
    columns = schema.processors.c
    return (
        columns.name == expected.name,
        columns.leader == expected.leader,
        columns.generation == expected.generation,
        columns.last == expected.last,
    )


async def _require_leader(connection: AsyncConnection, leader: LeaderToken) -> None:
    """Stale if another leads; it cannot be followed before the transaction ends (C8)."""
    token = (await connection.execute(sa.select(schema.leadership.c.token).with_for_update())).scalar_one()
    if token != leader:
        raise Stale(leads_no_longer(leader, LeaderToken(token)))


async def _write(connection: AsyncConnection, expected: Expected, row: ProcessorRow) -> None:
    """Replace the row if it is as expected; Stale if it is not (C8)."""
    written = await connection.execute(
        sa.update(schema.processors).where(*_as_expected(expected)).values(**_columns(row))
    )
    if written.rowcount != 1:
        raise Stale(stale(expected))


def _said(error: BaseException) -> str:
    """The database's message, in one line without the statement and its values."""
    original = getattr(error, "orig", None) or error
    lines = str(original).splitlines()
    return f"{type(original).__name__}: {lines[0]}" if lines else type(original).__name__


def _engine(url: str, timeout_ms: int, connections_max: int) -> AsyncEngine:
    parsed = sa.make_url(url)
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        engine = create_async_engine(
            parsed.set(drivername="sqlite+aiosqlite"),
            pool_size=connections_max,
            max_overflow=0,
            connect_args={"timeout": timeout_ms / 1000 / 2, "async_creator_fn": sqlite.connect},
        )
        event.listen(engine.sync_engine, "connect", partial(_keep_from_others, parsed.database or ""))
        event.listen(engine.sync_engine, "connect", _prepare_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
        return engine
    if backend == "postgresql":
        # A client that vanished with an open transaction must not hold its row for ever.
        options = (
            f"-c synchronous_commit=on -c idle_in_transaction_session_timeout={timeout_ms} -c lock_timeout={timeout_ms}"
        )
        return create_async_engine(
            parsed.set(drivername="postgresql+psycopg"),
            pool_size=connections_max,
            max_overflow=0,
            pool_pre_ping=True,
            isolation_level="READ COMMITTED",
            connect_args={"options": options, "connect_timeout": max(2, timeout_ms // 1000)},
        )
    raise ValueError(f"store {parsed!r}: expected sqlite:///path or postgresql://…, found {backend}")


def _keep_from_others(database: str, _connection: Any, _: Any) -> None:
    """Documents with their passwords are in it. The files beside it get its mode. Somebody else's file has the mode that they gave it."""
    file = Path(database)
    if file.is_file() and file.stat().st_uid == os.getuid():
        file.chmod(0o600)


def _prepare_sqlite(connection: Any, _: Any) -> None:
    """Durability as the module's rules ask; transactions are begun by `_begin_sqlite`, not by the driver."""
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    """Writers take the lock at once: upgrading a read lock could fail half way."""
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
