"""Tables that `$merge` writes into, as they are, and as the sink's own statements make them (scratch.py). See merged.py."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.services.audit.history import AuditFailed, NotAuditable
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.merged import MARKERS, Key, NotWritten, TargetRead, Unread, why_not
from tidemark.services.audit.outputs import KeptTable
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.scratch import Row, filled, folded, rows_of
from tidemark.services.sink.connecting import stage_of
from tidemark.services.sink.connectors.mergechanges import place_of
from tidemark.services.sink.connectors.sql import engine_at
from tidemark.services.sink.connectors.sqlasked import AskedColumns
from tidemark.services.sink.connectors.sqlrows import RowMaker, maker_of
from tidemark.services.sink.connectors.sqltable import target_table
from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, parse, resolve
from tidemark.shared.language.stages import Merge
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.values import Document
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.planning import DeadLetterHead, WriteHead, plan_processor
from tidemark.shared.ports.sink import Rejected, TargetRefused
from tidemark.shared.protocol.coordinator.record import decode_plan


@dataclass(slots=True, kw_only=True)
class TableRead(TargetRead):
    """A table."""

    kind: ClassVar[str] = "table"
    engine: sa.Engine
    table: sa.Table

    @property
    def columns(self) -> list[str]:
        """See `TargetRead.columns`."""
        return [str(column.name) for column in self.table.columns]

    def rejected(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `TargetRead.rejected`."""
        maker, documents = maker_of(self.table, self.stage, self.engine.dialect), encoded(batch)
        try:
            with self.engine.begin() as connection:
                asked = AskedColumns(connection, self.table)
            misfits = asked.judged(self.engine.begin, maker, documents, maker.misfits(documents))
        except exc.SQLAlchemyError as error:
            raise NotAuditable(f"{self.place}: the database gave no answer: {_said(error)}") from error
        return [Rejected(row, f"{self.stage.path}: {misfit}") for row, misfit in misfits.items()]

    def came_since(self, name: str) -> bool:
        """See `TargetRead.came_since`."""
        if not sa.inspect(self.engine).has_table(MARKERS):
            return False
        with self.engine.connect() as connection:
            return name in _markers(connection)

    def keys(self, documents: Sequence[Document]) -> list[Key]:
        """See `TargetRead.keys`."""
        maker = RowMaker(self.table, self.stage.on, self.engine.dialect, inserts=False)
        return [tuple(maker.parameters(each)[name] for name in self.stage.on) for each in documents]

    def written(self, stage: Merge, epochs: Sequence[Sequence[Document]], begin: KeptTable | None = None) -> list[Row]:
        """See `TargetRead.written`."""
        try:
            return folded(self.engine, self.table, stage, epochs, begin)
        except exc.SQLAlchemyError as error:
            raise NotWritten(_said(error)) from error

    def compared(self, named: set[str] | None) -> dict[int, str]:
        """See `TargetRead.compared`: not those that the database fills, unless every document names them."""
        by_database = filled(self.table)
        always = by_database if named is None else by_database & named
        left = sorted(c.name for c in self.table.columns if c.name in by_database - always and c.computed is None)
        if left:
            self.notes.append(f"{self.place}: columns that the database fills: {', '.join(left)}")
        return {i: c.name for i, c in enumerate(self.table.columns) if c.name not in by_database - always}

    def close(self) -> None:
        """See `TargetRead.close`."""
        self.engine.dispose()


def read_table(
    vertex: VertexId, stage: Merge, url: str, known: frozenset[JobId], *, rows: bool = True
) -> TableRead | Unread:
    """Read a table, with or without its rows, and its markers. AuditFailed if the table is not there."""
    if (why := why_not(stage)) is not None:
        return Unread(vertex, why, always=True)
    engine = engine_at(url)
    path = engine.url.database
    if engine.dialect.name == "sqlite" and path and not Path(path).exists():
        raise AuditFailed(f"{vertex}: {place_of(stage)}: there is no database at {path}")
    try:
        table = target_table(engine, stage)
        marked = sa.inspect(engine).has_table(MARKERS)
        with _moment(engine) as connection:
            markers = _markers(connection) if marked else {}
            found = rows_of(connection, table) if rows else []
    except TooMuchHeld:
        engine.dispose()
        raise
    except TargetRefused as error:
        engine.dispose()
        raise AuditFailed(f"{vertex}: {error}") from error
    except exc.SQLAlchemyError as error:
        engine.dispose()
        return Unread(vertex, f"the database gave no answer: {_said(error)}")
    return TableRead(vertex, stage, found, markers, known, engine=engine, table=table)


async def targets_of(
    row: ProcessorRow, processor: Processor, installed: AuditedInstallation, *, rows: bool
) -> dict[VertexId, TargetRead | Unread]:
    """The tables and collections that `$merge` stages write into, as they are now, with or without their rows.

    A table is read if no other job is known to write it.
    """
    writers: list[JobTables] = []
    for other in await installed.store.processors():
        document = parse(decode_plan(other.plan).document)
        stages = [stage for stage in all_stages(document.pipeline) if isinstance(stage, Merge)]
        written = [
            (_url(document, stage, installed.environment), stage.table)
            for stage in stages
            if isinstance(stage.table, str)
        ]
        writers.append(JobTables(other.job, tuple(written)))
    found: dict[VertexId, TargetRead | Unread] = {}
    for vertex in plan_processor(processor, engine="local").vertices:
        if not isinstance(vertex.head, WriteHead | DeadLetterHead) or not isinstance(
            stage := stage_of(vertex.head), Merge
        ):
            continue
        url = _url(processor, stage, installed.environment)
        mongodb = processor.connections[stage.connection_name].type == "mongodb"
        if not isinstance(stage.table, str):
            found[vertex.id] = Unread(
                vertex.id, "its tables are named by an expression, which an audit does not follow", always=True
            )
        elif (count := stages_into(writers, url, stage.table)) > 1:
            why = f"{count} stages of this installation's processors write into table {stage.table}"
            found[vertex.id] = Unread(vertex.id, why)
        elif "${" in url:
            found[vertex.id] = Unread(
                vertex.id, f"the environment lacks what connection {stage.connection_name} refers to"
            )
        elif why := installed.refusal(processor, stage.connection_name):
            found[vertex.id] = Unread(vertex.id, why)
        else:
            known = no_writers(writers, row.job, stage.table)
            if mongodb:
                from tidemark.services.audit.collected import read_collection  # noqa: PLC0415 - a driver that few need

                found[vertex.id] = read_collection(vertex.id, stage, url, known, rows=rows)
            else:
                found[vertex.id] = read_table(vertex.id, stage, url, known, rows=rows)
    return found


def _url(processor: Processor, stage: Merge, environment: Mapping[str, str]) -> str:
    """The url of the connection; as the document has it, if the environment lacks a variable of it."""
    connection = processor.connections[stage.connection_name]
    with suppress(InvalidDocument):
        connection = resolve(connection, environment)
    return str(connection.settings["url"])


@dataclass(frozen=True, slots=True)
class JobTables:
    """A job, and the tables that its `$merge` stages write into: (url, table as the document names it)."""

    job: JobId
    tables: tuple[tuple[str, str], ...]


def stages_into(writers: Sequence[JobTables], url: str, table: str) -> int:
    """How many stages write into this table: rows of other jobs must not be taken for wrong ones of the job that is audited.

    A database has many addresses. Those that differ in how a path, a port or a schema is written are seen to be one. Those that differ in
    the name of the host are not; but then a job's marker beside the table says that it writes there.
    """
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


def _markers(connection: sa.Connection) -> dict[str, Epoch]:
    query = sa.text(f"SELECT identity, released FROM {MARKERS}")  # noqa: S608 - a name of ours
    return {str(i): Epoch(int(n)) for i, n in connection.execute(query)}


def _moment(engine: sa.Engine) -> sa.Connection:
    """A connection in which all reads see one moment."""
    if engine.dialect.name == "postgresql":
        return engine.connect().execution_options(isolation_level="REPEATABLE READ")
    connection = engine.connect()
    connection.exec_driver_sql("BEGIN")
    return connection


def _said(error: exc.SQLAlchemyError) -> str:
    """Without statement and parameters."""
    return str(error.orig if isinstance(error, exc.DBAPIError) else error).strip().splitlines()[0]
