"""Tables of the coordinator's store, the same on SQLite and PostgreSQL.

What conditions are about stands in columns; the rest of a processor's row, and commit rows, are msgpack
bodies, whose structs have defaults for what comes later.
"""

from typing import Final

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

encode: Final = msgspec.msgpack.Encoder().encode
decode_processor: Final = msgspec.msgpack.Decoder(ProcessorRow).decode
decode_commit: Final = msgspec.msgpack.Decoder(CommitRow).decode
