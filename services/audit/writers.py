"""Which processors of an installation write into a table: rows of another one must not be taken for wrong ones of the job that is audited.

A database has many addresses. Those that differ in how a path, a port or a schema is written are seen to be one. Those that differ in the
name of the host are not; but then a job's marker beside the table says that it writes there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.shared.model.ids import JobId


@dataclass(frozen=True, slots=True)
class JobTables:
    """A job, and the tables that its `$merge` stages write into: (url, table as the document names it)."""

    job: JobId
    tables: tuple[tuple[str, str], ...]


def stages_into(writers: Sequence[JobTables], url: str, table: str) -> int:
    """How many stages write into this table."""
    place = _place(url, table)
    return sum(_place(*written) == place for writer in writers for written in writer.tables)


def no_writers(writers: Sequence[JobTables], job: JobId, table: str) -> frozenset[JobId]:
    """The jobs of which none but this one may write into the table, wherever their databases are: none of theirs has its name."""
    return frozenset(
        w.job for w in writers if w.job == job or _bare(table) not in {_bare(name) for _, name in w.tables}
    )


def _bare(table: str) -> str:
    return table.rpartition(".")[2].lower()


def _place(url: str, table: str) -> tuple[str, ...]:
    schema, _, name = table.rpartition(".")
    try:
        found = sa.make_url(url)
    except (exc.ArgumentError, ValueError):  # the environment lacks a part of it
        return url, schema, name
    if found.get_backend_name() == "sqlite":
        return "sqlite", str(Path(found.database or "").resolve()), schema or "main", name.lower()
    host, port = found.host or str(found.query.get("host", "")), found.port or str(found.query.get("port", 5432))
    return found.get_backend_name(), host.lower(), str(port), found.database or "", schema or "public", name
