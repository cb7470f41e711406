"""What the addresses and errors of SQL databases (PostgreSQL, SQLite) mean, for all that reads or writes one."""

import re
import sqlite3
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import sqlalchemy as sa
from sqlalchemy import exc

DIALECTS: Final = ("postgresql", "sqlite")
_DENIED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|role .* does not exist|database .* does not exist"
    r"|not permitted to log in|permission denied for database|does not support SSL|certificate verify failed"
    r"|does not match host name|certificate file .* does not exist|could not load|could not read .*certificate",
    re.IGNORECASE,
)
"""PostgreSQL's and its library's, in English; in another language a refusal is waited out like an outage. Those of TLS are refusals, too:
server and connection do not want the same."""
_SQLITE_PASSING: Final = ("locked", "busy", "disk", "unable to open", "i/o")
"""SQLite calls all its errors operational. Waiting may mend those with these words."""
_CONNECTING: Final = re.compile(r"connection|resolve", re.IGNORECASE)
_SQLITE_DAMAGED: Final = ("not a database", "malformed")
"""SQLite's words for a file that is none of its own, or is damaged: errors without a kind, as the driver has them."""
PATIENCE: Final[Mapping[str, int]] = {
    "connect_timeout": 10, "keepalives": 1, "keepalives_idle": 20, "keepalives_interval": 5, "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
}  # fmt: skip
"""Options of PostgreSQL's connections that a url does not name: a server that is gone without a word is found out within a minute. By
default a first connection waits for ever, and one that is open for two hours. The last is in ms, the others in s."""
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


def reflected(engine: sa.Engine, name: str) -> sa.Table:
    """The table or view of a name, with its schema's in front or without it; both may have dots. NoSuchTableError."""
    parts = name.split(".")
    inspector = sa.inspect(engine)
    for at in dict.fromkeys((len(parts) - 1, *range(len(parts)))):
        schema, table = ".".join(parts[:at]) or None, ".".join(parts[at:])
        if inspector.has_table(table, schema):
            return sa.Table(table, sa.MetaData(), schema=schema, autoload_with=engine)
    raise exc.NoSuchTableError(name)


def bound_lock_waits(engine: sa.Engine, wait_ms: int) -> None:
    """Let no transaction on PostgreSQL wait longer for a lock: it is an outage then, which is told. By default it waits for ever."""
    if engine.dialect.name == "postgresql":
        # For a transaction alone: a pooler may give its connection to others.
        words = f"SET LOCAL lock_timeout = {wait_ms:d}"
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(words))


def with_driver(url: sa.URL) -> sa.URL:
    """The address, with the driver that is installed where a PostgreSQL's names none."""
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def patience(named: Collection[str]) -> dict[str, int]:
    """`PATIENCE`, without the options that a url names itself."""
    return {option: value for option, value in PATIENCE.items() if option not in named}


def with_server(text: str, url: str) -> str:
    """A sentence about a connection with the server's address, where it does not tell it: a driver's time-out names nobody."""
    server = urlsplit(url).netloc.rpartition("@")[2]
    told = not server or server.rpartition(":")[2] in text
    return text if told or _CONNECTING.search(text) is None else f"{text} (at {server})"


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
    if dialect == "sqlite":
        said = str(error.orig).lower()
        if isinstance(error, exc.OperationalError):
            return any(word in said for word in _SQLITE_PASSING)
        if any(word in said for word in _SQLITE_DAMAGED):
            return False
    code = getattr(error.orig, "sqlstate", None)
    if code is not None:
        return bool(code.startswith(_POSTGRES_PASSING))
    return not isinstance(error, (exc.IntegrityError, exc.DataError, exc.ProgrammingError, exc.NotSupportedError))
