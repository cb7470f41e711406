"""SQLite for asyncio with few changes of threads: one for BEGIN, one for COMMIT, and one for a read.

The library aiosqlite, by which SQLAlchemy reaches SQLite, runs each call on a connection's thread: a transaction of three statements took
fifteen such trips, each with two wake-ups that wait for a core and the interpreter's lock. What neither waits nor touches the disk is done
at once here: cursors, fetched rows, and changes within a transaction, which go to pages in memory until COMMIT.
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, Final, Self

import aiosqlite

_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")
"""Statements that make their changes in memory, once the transaction has the lock."""


class _Cursor(aiosqlite.Cursor):
    """Has its rows when `execute` returns."""

    def __init__(self, connection: "FewHops") -> None:
        super().__init__(connection, connection.raw.cursor())
        self._rows: list[Any] = []

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, sql: str, parameters: Iterable[Any] | None = None) -> "_Cursor":
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
        """The driver's."""
        return self._conn

    def cursor(self) -> _Cursor:  # type: ignore[override]
        """At once."""
        return _Cursor(self)

    async def rollback(self) -> None:
        """A connection goes back to its pool by a rollback, and mostly without a transaction."""
        if self.raw.in_transaction:
            await super().rollback()


def connect(database: str, **options: Any) -> FewHops:
    """As `aiosqlite.connect`."""
    connection = FewHops(
        lambda: sqlite3.connect(database, **{**options, "check_same_thread": False}), iter_chunk_size=64
    )
    connection._thread.daemon = True  # noqa: SLF001 - as SQLAlchemy does with the library's own
    return connection
