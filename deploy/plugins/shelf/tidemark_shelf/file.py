"""The SQLite file."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tidemark.plugins import Away, Refused

_TABLES = """
CREATE TABLE IF NOT EXISTS file (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS documents (n INTEGER PRIMARY KEY AUTOINCREMENT, shelf TEXT, added_ms INTEGER, document TEXT);
CREATE INDEX IF NOT EXISTS by_shelf ON documents (shelf, n);
CREATE TABLE IF NOT EXISTS markers (identity TEXT PRIMARY KEY, marker BLOB NOT NULL);
"""


@dataclass(frozen=True)
class Place:
    """The settings of a connection."""

    file: str
    """Its path; it is made where it is missing."""
    wait_s: float = 5
    """How long another writer is waited for."""


class ShelfFile:
    """A connection to the file. Calls may come from any thread, one at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        with self._errors():
            self._db = sqlite3.connect(place.file, place.wait_s, isolation_level=None, check_same_thread=False)
        with self.changed() as db:
            for statement in filter(str.strip, _TABLES.split(";")):
                db.execute(statement)
            if db.execute("SELECT id FROM file").fetchone() is None:
                db.execute("INSERT INTO file VALUES (?)", (uuid.uuid4().hex,))

    @contextmanager
    def changed(self) -> Iterator[sqlite3.Connection]:
        """One transaction, from its beginning alone on the file: whole, or not at all."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection to read by."""
        with self._errors():
            yield self._db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise Away(f"{self._place.file}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise Refused(f"{self._place.file}: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._db.close()
