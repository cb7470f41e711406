"""The file of a SQLite database: whether it is the one that was opened, and SQLite's message if it is damaged."""

import re
from pathlib import Path
from typing import Final

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
