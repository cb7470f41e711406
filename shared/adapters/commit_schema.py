"""Tables of the coordinator's store, the same on SQLite and PostgreSQL.

Values that conditions use stand in columns; the rest of a processor's row, and commit rows, are bodies of
formats (`tidemark.shared.model.formats`).
"""

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from tidemark.shared.model.checkpoint import CommitRow, LineageEntry
from tidemark.shared.model.formats import COMMIT_ROW, PROCESSOR_ROW, Codec
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName
from tidemark.shared.model.processors import ProcessorRow

VERSION: Final = 1
"""Of these tables. Another version in a store is refused."""

metadata: Final = sa.MetaData()

about: Final = sa.Table("tidemark", metadata, sa.Column("version", sa.Integer, primary_key=True, autoincrement=False))

leadership: Final = sa.Table(
    "tidemark_leadership",
    metadata,
    sa.Column("one", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("expires_ms", sa.BigInteger, nullable=False),
    sa.Column("changes", sa.BigInteger, nullable=False, server_default="0"),
)
"""One row, `one` = 1. `changes`: how many there were, of all tables: a copy of before counts fewer."""

processors: Final = sa.Table(
    "tidemark_processors",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("leader", sa.BigInteger, nullable=False),
    sa.Column("generation", sa.BigInteger, nullable=False),
    sa.Column("last", sa.BigInteger, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
"""`body` is the whole ProcessorRow; `leader` in it may be older than the column, which a take-over writes alone."""

lineage: Final = sa.Table(
    "tidemark_lineage",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("restored_from", sa.BigInteger, nullable=False),
    sa.Column("plan_version", sa.BigInteger, nullable=False),
    sa.Column("crc", sa.BigInteger),
)
"""`crc` of the columns that count; none in rows of before there was one."""

commits: Final = sa.Table(
    "tidemark_commits",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("name", sa.Text, nullable=False, index=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

connections: Final = sa.Table(
    "tidemark_connections",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("crc", sa.BigInteger),
)

_LATER: Final = frozenset({"changes", "crc"})
"""Columns that stores of before do not have."""
_LINEAGE: Final = ("job", "generation", "restored_from", "plan_version")
_CHECKED: Final = b"\xc1"
"""Before the CRC of a body: no MessagePack begins with it, so that a body without one is known, and refused for its version."""
_CRC_BYTES: Final = 4  # of CRC-32
_plain: Final = msgspec.msgpack.Encoder().encode
_processors: Final[Codec[ProcessorRow]] = Codec(PROCESSOR_ROW, ProcessorRow)
_commits: Final[Codec[CommitRow]] = Codec(COMMIT_ROW, CommitRow)


def encode(row: ProcessorRow | CommitRow) -> bytes:
    """The body of a row, with its CRC: a database notices no byte that flips inside a value."""
    data = _processors.encode(row) if isinstance(row, ProcessorRow) else _commits.encode(row)
    return _CHECKED + zlib.crc32(data).to_bytes(_CRC_BYTES) + data


def decode_processor(row: sa.Row[Any]) -> ProcessorRow:
    """The row that `encode` wrote. ValueError if body or columns are not as written; FormatError for a body of another version."""
    found = _processors.decode(_checked(row.body))
    wanted = (found.name, found.job, found.generation, found.last)
    if (row.name, row.job, row.generation, row.last) != wanted or not isinstance(row.leader, int):
        raise ValueError(f"the row of processor {found.name} has other columns than were written")
    return found


def decode_commit(row: sa.Row[Any]) -> CommitRow:
    """The commit that a row holds, checked against its columns."""
    found = _commits.decode(_checked(row.body))
    if (row.job, row.epoch) != (found.job, found.epoch):
        raise ValueError(f"the row of commit {found.epoch} of job {found.job} has other columns than were written")
    return found


def lineage_columns(job: JobId, name: ProcessorName, entry: LineageEntry) -> dict[str, Any]:
    """A row of the lineage."""
    columns = (job, entry.generation, entry.restored_from, entry.plan_version)
    return dict(zip(_LINEAGE, columns, strict=True)) | {"name": name, "crc": _crc(columns)}


def decode_lineage(row: sa.Row[Any]) -> LineageEntry:
    """The entry that `lineage_columns` wrote. ValueError if it is not as written."""
    columns = (row.job, row.generation, row.restored_from, row.plan_version)
    if row.crc not in (None, _crc(columns)) or not all(isinstance(value, int) for value in columns[1:]):
        raise ValueError(f"the row of generation {row.generation} of job {row.job} has other columns than were written")
    return LineageEntry(Generation(row.generation), Epoch(row.restored_from), row.plan_version)


def connection_columns(name: str, value: str) -> dict[str, Any]:
    """A row of the connections."""
    return {"name": name, "value": value, "crc": _crc((name, value))}


def decode_connection(row: sa.Row[Any]) -> tuple[str, str]:
    """Name and value. ValueError if they are not as written."""
    if row.crc not in (None, _crc((row.name, row.value))):
        raise ValueError(f"the row of connection {row.name} has another value than was written")
    return row.name, row.value


def make(connection: sa.Connection) -> None:
    """Make the tables where there is none, and the columns that came later. ValueError where some tables are there and others are not."""
    found = sa.inspect(connection)
    there = set(found.get_table_names()) & set(metadata.tables)
    if there and (lacking := sorted(set(metadata.tables) - there)):
        raise ValueError(f"it has tables, but not {', '.join(lacking)}")
    metadata.create_all(connection)
    for name in sorted(there):
        known = {column["name"] for column in found.get_columns(name)}
        for column in metadata.tables[name].columns:
            if column.name not in known and column.name in _LATER:
                made = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN {made}")


def _crc(columns: Sequence[object]) -> int:
    return zlib.crc32(_plain(columns))


def _checked(body: bytes) -> bytes:
    if body[:1] != _CHECKED:
        return body
    crc, data = body[1 : 1 + _CRC_BYTES], body[1 + _CRC_BYTES :]
    if zlib.crc32(data).to_bytes(_CRC_BYTES) != crc:
        raise ValueError("the bytes of a row are not those that were written")
    return data
