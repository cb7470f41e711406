"""Tables of the coordinator's store, the same on SQLite and PostgreSQL.

What conditions are about stands in columns; the rest of a processor's row, and commit rows, are msgpack
bodies, whose structs have defaults for what comes later.
"""

import zlib
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from shared.model.checkpoint import CommitRow
from shared.model.processors import ProcessorRow

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
)
"""One row, `one` = 1."""

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
)

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
)

_CHECKED: Final = b"\xc1"
"""Before the CRC of a body: no msgpack begins with it, so that bodies without one are read, too."""
_CRC_BYTES: Final = 4
_encode: Final = msgspec.msgpack.Encoder().encode
_processor: Final = msgspec.msgpack.Decoder(ProcessorRow).decode
_commit: Final = msgspec.msgpack.Decoder(CommitRow).decode


def encode(row: ProcessorRow | CommitRow) -> bytes:
    """The body of a row, with its CRC: a database notices no byte that flips inside a value."""
    data = _encode(row)
    return _CHECKED + zlib.crc32(data).to_bytes(_CRC_BYTES) + data


def decode_processor(row: sa.Row[Any]) -> ProcessorRow:
    """What `encode` wrote. ValueError where body or columns are not what was written."""
    found = _processor(_checked(row.body))
    wanted = (found.name, found.job, found.generation, found.last)
    if (row.name, row.job, row.generation, row.last) != wanted or not isinstance(row.leader, int):
        raise ValueError(f"the row of processor {found.name} has other columns than were written")
    return found


def decode_commit(row: sa.Row[Any]) -> CommitRow:
    """The same of a commit."""
    found = _commit(_checked(row.body))
    if (row.job, row.epoch) != (found.job, found.epoch):
        raise ValueError(f"the row of commit {found.epoch} of job {found.job} has other columns than were written")
    return found


def check_whole(connection: sa.Connection) -> None:
    """Make the tables where there is none. ValueError where some are there and others are not."""
    there = set(sa.inspect(connection).get_table_names())
    if there and (lacking := sorted(set(metadata.tables) - there)):
        raise ValueError(f"it has tables, but not {', '.join(lacking)}")
    metadata.create_all(connection)


def _checked(body: bytes) -> bytes:
    if body[:1] != _CHECKED:
        return body
    crc, data = body[1 : 1 + _CRC_BYTES], body[1 + _CRC_BYTES :]
    if zlib.crc32(data).to_bytes(_CRC_BYTES) != crc:
        raise ValueError("the bytes of a row are not those that were written")
    return data
