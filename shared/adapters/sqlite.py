"""SQLite: whether its file is the one that was opened; and for asyncio few changes of threads: one for BEGIN, COMMIT and a read each.

The library aiosqlite, by which SQLAlchemy reaches SQLite, runs each call on a connection's thread: a transaction of three statements took
fifteen such trips, each with two wake-ups that wait for a core and the interpreter's lock. What neither waits nor touches the disk is done
at once here: cursors, fetched rows, and changes within a transaction, which go to pages in memory until COMMIT.
"""

import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

import aiosqlite
import sqlalchemy as sa

_PRIMARY: Final = 0xFF
_DAMAGE: Final = (11, 26)
"""SQLITE_CORRUPT and SQLITE_NOTADB, https://www.sqlite.org/rescode.html."""
_SHORT_READ: Final = 522
"""SQLITE_IOERR_SHORT_READ: the file is shorter than it says."""
_MISSING: Final = re.compile(r"no such (table|column)|could not decode to UTF-8|file is not a database", re.IGNORECASE)
"""Said without a code of its own."""


class SqliteFile:
    """One that somebody may delete or replace while it is in use: SQLite would go on in the one that nobody can find any more."""

    def __init__(self, url: sa.URL) -> None:
        self._path = Path(url.database) if url.database and url.database != ":memory:" else None
        self._identity: tuple[int, int] | None = None
        self._bytes = 0
        """It never shrinks: rows that are gone leave room for others."""

    def opened(self) -> None:
        """The file that lies there now is the one that counts. Blocks for one look; OSError."""
        if self._path is not None:
            found = self._path.stat()
            self._identity, self._bytes = (found.st_dev, found.st_ino), found.st_size

    def changed(self) -> str:
        """How the file has changed; "" while it is the one that was opened."""
        if self._path is None or self._identity is None:
            return ""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return "the file was deleted while it was in use"
        if (found.st_dev, found.st_ino) != self._identity:
            return "another file was put in its place while it was in use"
        if found.st_size < self._bytes:
            return "the file was cut off while it was in use"
        self._bytes = found.st_size
        return ""


def damage(error: BaseException) -> str:
    """SQLite's message on a damaged file; "" for any other error."""
    original = getattr(error, "orig", None) or error
    code = getattr(original, "sqlite_errorcode", 0) or 0
    said = str(original)
    if code & _PRIMARY in _DAMAGE or code == _SHORT_READ or (code & _PRIMARY == 1 and _MISSING.search(said)):
        return said
    return said if not code and _MISSING.search(said) else ""


_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
"""Statements that make their changes in memory, once the transaction has the lock."""


class _ReadyCursor(aiosqlite.Cursor):
    """Has its rows when `execute` returns."""

    def __init__(self, connection: "FewHops") -> None:
        super().__init__(connection, connection.raw.cursor())
        self._rows: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, sql: str, parameters: Iterable[object] | None = None) -> "_ReadyCursor":
        raw: sqlite3.Cursor = self._cursor

        def run() -> None:
            raw.execute(sql, tuple(parameters or ()))
            self._rows = raw.fetchall() if raw.description else []

        if raw.connection.in_transaction and sql.startswith(_CHANGES):
            run()
        else:
            await self._conn._execute(run)  # type: ignore[no-untyped-call]  # noqa: SLF001 - the library's way to its thread
        return self

    async def fetchall(self) -> list[Any]:
        rows, self._rows = self._rows, []
        return rows

    async def close(self) -> None:
        self._cursor.close()


class FewHops(aiosqlite.Connection):
    """A connection whose calls come one at a time, from the loop's thread or the connection's own."""

    @property
    def raw(self) -> sqlite3.Connection:
        """The driver's own connection."""
        return self._conn

    def cursor(self) -> _ReadyCursor:  # type: ignore[override]
        """A cursor without a wait for the connection's thread."""
        return _ReadyCursor(self)

    async def rollback(self) -> None:
        """A connection goes back to its pool by a rollback, and mostly without a transaction."""
        if self.raw.in_transaction:
            await super().rollback()


def connect(database: str, **options: Any) -> FewHops:
    """A connection, as `aiosqlite.connect` gives it."""
    connection = FewHops(
        lambda: sqlite3.connect(database, **{**options, "check_same_thread": False}), iter_chunk_size=64
    )
    # As SQLAlchemy does with the library's own. Up to 0.21 a connection is its thread.
    thread: Any = getattr(connection, "_thread", connection)
    thread.daemon = True
    return connection
