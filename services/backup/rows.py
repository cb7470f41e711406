"""The store's tables, copied from one database to another: SQLite or PostgreSQL, in one transaction on each side."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import sqlalchemy as sa

from tidemark.services.backup.files import BackedFile, BackupFailed
from tidemark.shared.adapters import commit_schema as schema
from tidemark.shared.model.checkpoint import BlobRef, CommitRow
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.protocol.coordinator.record import decode_kept

Tables: TypeAlias = Mapping[str, list[dict[str, Any]]]
"""Rows by table, as columns by name."""

_TABLES: Final = tuple(schema.metadata.tables.values())


def read_tables(url: str) -> Tables:
    """All rows of a store, as of one moment. BackupFailed if there is none."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            lacking = sorted({table.name for table in _TABLES} - set(sa.inspect(connection).get_table_names()))
            if lacking:
                raise BackupFailed(
                    f"store {engine.url!r}: expected the tables of an installation, found no {', '.join(lacking)}"
                )
            connection.rollback()
            with connection.begin():
                return {t.name: [dict(r) for r in connection.execute(sa.select(t)).mappings()] for t in _TABLES}
    finally:
        engine.dispose()


def write_tables(url: str, tables: Tables) -> None:
    """Make the tables and write all rows, or nothing. BackupFailed if an installation has used that database."""
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            schema.make(connection)
            if (
                connection.execute(sa.select(schema.leadership).where(schema.leadership.c.token > 0)).first()
                is not None
            ):
                raise BackupFailed(
                    f"store {engine.url!r}: expected an empty database, found an installation's store: a backup takes the place of none;"
                    " name another database, or drop its tables tidemark…"
                )
            for table in _TABLES:
                connection.execute(sa.delete(table))
                if rows := tables[table.name]:
                    connection.execute(sa.insert(table), rows)
    finally:
        engine.dispose()


def processors_of(tables: Tables) -> list[ProcessorRow]:
    """The processors' rows, by name."""
    rows = (schema.decode_processor(_row(row)) for row in tables[schema.processors.name])
    return sorted(rows, key=lambda row: row.name)


def commits_of(tables: Tables, row: ProcessorRow) -> dict[Epoch, CommitRow]:
    """The commits of a processor's job that are kept."""
    found = [schema.decode_commit(_row(each)) for each in tables[schema.commits.name] if each["job"] == row.job]
    return {commit.epoch: commit for commit in found}


def wanted_commits(row: ProcessorRow) -> set[Epoch]:
    """Those from which a restored processor may begin: the last one, and those that users named."""
    return {epoch for epoch in (row.last, *(each.epoch for each in decode_kept(row.extra).checkpoints)) if epoch}


def keep_wanted(tables: Tables) -> Tables:
    """Without commits that everybody has released and nobody begins from: their blobs are being deleted."""
    wanted = {(row.job, epoch) for row in processors_of(tables) for epoch in wanted_commits(row)}
    rows = [row for row in tables[schema.commits.name] if (row["job"], row["epoch"]) in wanted]
    return {**tables, schema.commits.name: rows}


def with_processors(tables: Tables, change: Callable[[ProcessorRow], ProcessorRow]) -> Tables:
    """With other rows of processors; nobody leads."""
    rows = []
    for row in processors_of(tables):
        new = change(row)
        columns = {
            "name": new.name,
            "leader": new.leader,
            "generation": new.generation,
            "last": new.last,
            "job": new.job,
        }
        rows.append({**columns, "body": schema.encode(new)})
    leads = [{**row, "holder": "", "expires_ms": 0} for row in tables[schema.leadership.name]]
    return {**tables, schema.processors.name: rows, schema.leadership.name: leads}


def check_whole(tables: Tables, files: Mapping[str, BackedFile], where: Path) -> None:
    """BackupFailed unless each processor's last commit, and every blob that it refers to, is in the backup."""
    for row in processors_of(tables):
        commits = commits_of(tables, row)
        for epoch in sorted(wanted_commits(row)):
            if epoch not in commits:
                raise BackupFailed(f"{where}: processor {row.name}: expected the row of commit {epoch}, found none")
            for ref in blobs_of(commits[epoch]):
                file = files.get(f"blobs/{ref.name}")
                if file is None or (file.size, file.sha256) != (ref.size_bytes, ref.digest):
                    found = "none" if file is None else f"{file.size} with {file.sha256}"
                    raise BackupFailed(
                        f"{where}/blobs/{ref.name}: processor {row.name}, commit {epoch}: expected {ref.size_bytes} bytes with SHA-256"
                        f" {ref.digest}, found {found}"
                    )


def blobs_of(commit: CommitRow) -> list[BlobRef]:
    """All that a restore from a commit reads."""
    found = {}
    for handle in commit.tasks:
        for ref in (*(part.blob for part in handle.parts), *handle.blobs):
            if ref is not None:
                found[ref.name] = ref
    return list(found.values())


def _row(columns: Mapping[str, object]) -> Any:
    """As the schema's readers take it: columns are attributes."""
    return type("Row", (), dict(columns))


def _engine(url: str) -> sa.Engine:
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return sa.create_engine(parsed.set(drivername="postgresql+psycopg"), isolation_level="REPEATABLE READ")
    return sa.create_engine(parsed.set(drivername="sqlite"))
