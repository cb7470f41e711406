"""What the addresses and errors of SQL databases (PostgreSQL, SQLite) mean, for all that reads or writes one."""

import re
import sqlite3
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy import exc

DIALECTS: Final = ("postgresql", "sqlite")
_DENIED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|database .* does not exist"
    r"|not permitted to log in|permission denied for database",
    re.IGNORECASE,
)
"""PostgreSQL's, in English; in another language a refusal is waited out like an outage."""
_SQLITE_PASSING: Final = ("locked", "busy", "disk", "unable to open", "i/o")
"""SQLite calls all its errors operational. Waiting may mend those with these words."""
_POSTGRES_PASSING: Final = ("08", "25", "40", "53", "55006", "55P03", "57", "58", "HV", "XX")
"""How PostgreSQL's codes for the same begin: connections, a transaction's state, conflicts, resources, locks, operators, the system, other
servers. An error of the table or the statement itself has another code, though the driver calls some of them operational.
"""


def file_of(url: sa.URL) -> Path | None:
    """The file of a database of SQLite's, if it is one."""
    path = url.database
    named = url.get_backend_name() == "sqlite" and path and not path.startswith((":memory:", "file:"))
    return Path(path) if named and path else None


def only_existing(engine: sa.Engine) -> None:
    """Let an engine open a database that is there: SQLite would make the file, empty. sqlite3.OperationalError as it connects."""
    path = file_of(engine.url)

    def look(*_: object) -> None:
        if path is not None and not path.exists():
            raise sqlite3.OperationalError(_NO_FILE)

    sa.event.listen(engine, "do_connect", look)


_NO_FILE: Final = "the database has no file; make it, with its tables, or correct the connection"
"""It has none of the words of what passes: waiting makes no database."""


def with_driver(url: sa.URL) -> sa.URL:
    """The address, with the driver that is installed where a PostgreSQL's names none."""
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def is_denied(error: exc.DBAPIError) -> bool:
    """A wrong password, user or database. A driver tells of it as of an outage, without a code: only the server's words differ."""
    return isinstance(error, exc.OperationalError) and says_denied(str(error.orig))


def says_denied(text: str) -> bool:
    """Whether these are words of a refusal."""
    return _DENIED.search(text) is not None


def is_passing(error: exc.DBAPIError, dialect: str) -> bool:
    """Whether the database may do tomorrow what it does not do now: it is away, locked or full."""
    if error.connection_invalidated:
        return True
    if dialect == "sqlite" and isinstance(error, exc.OperationalError):
        return any(word in str(error.orig).lower() for word in _SQLITE_PASSING)
    code = getattr(error.orig, "sqlstate", None)
    if code is not None:
        return bool(code.startswith(_POSTGRES_PASSING))
    return not isinstance(error, (exc.IntegrityError, exc.DataError, exc.ProgrammingError, exc.NotSupportedError))
