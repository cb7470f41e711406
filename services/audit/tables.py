"""Tables that `$merge` writes into, against the content that follows from the source's records.

- Table and markers are read in one transaction, before the commits: each marker is then one of a commit that the audit knows (S5).
- Staged documents lie in the commits' handles, in the order in which they are written. As a multiset they must follow from the epoch's
  input, like any output.
- The expected table: the sink's own statements write these documents, up to each identity's marker, into an empty table of the same
  definition (audit_scratch.py). Rows are compared by `on`, values with their types.

A table is a function of the records where this job alone writes it, and every row began with one of them. Where it is not, or where the
order of a key's rows within an epoch is kept no more, `unchecked` says so.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.services.audit.expected import Line, line_of
from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.outputs import KeptTable, Output, VertexReleases
from tidemark.services.audit.reading import TooMuchHeld
from tidemark.services.audit.recompute import EpochDone
from tidemark.services.audit.scratch import Row, filled, folded, rows_of
from tidemark.services.sink.connecting import stage_of
from tidemark.services.sink.connectors.mergechanges import document_of, place_of, staged_rows
from tidemark.services.sink.connectors.sql import MARKERS_TABLE, engine_at
from tidemark.services.sink.connectors.sqlrows import RowMaker
from tidemark.services.sink.connectors.sqltable import target_table
from tidemark.services.sink.connectors.staging import PartStore, decode_handle
from tidemark.shared.language.documents import InvalidDocument, Processor, all_stages, parse, resolve
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import to_json
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, VertexId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.values import Document
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.planning import DeadLetterHead, WriteHead, plan_processor
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused, TargetUnavailable
from tidemark.shared.protocol.coordinator.record import decode_plan

Key = tuple[Any, ...]
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Unread:
    """A table that says nothing about the records."""

    vertex: VertexId
    why: str
    always: bool = False
    """The document is why: no later audit will read it either."""


@dataclass(slots=True)
class TableRead:
    """A table and the markers beside it, as of one moment."""

    vertex: VertexId
    stage: Merge
    engine: sa.Engine
    table: sa.Table
    rows: list[Row]
    markers: dict[str, Epoch]
    """Of all jobs that write into the database, by release identity."""
    known: frozenset[JobId]
    """Jobs of the installation of which none but this one may write into the table."""
    staged: list[tuple[Commit, list[Document] | None]] = field(default_factory=list)
    """The released documents, in order; None for those that are kept no more."""
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begin: KeptTable | None = None
    """As it had to be where an earlier audit ended."""

    @property
    def place(self) -> str:
        """How messages name the table."""
        return f"{self.vertex}: table {self.stage.table}"

    def rejected(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """The rows that the sink would not have staged (S6)."""
        maker = RowMaker(
            self.table,
            self.stage.on,
            self.engine.dialect,
            inserts=self.stage.when_not_matched == "insert",
        )
        misfits = maker.misfits(encoded(batch))
        return [Rejected(row, f"{self.stage.path}: {misfit}") for row, misfit in misfits.items()]


def why_not(stage: Merge) -> str | None:
    """Why a table of this stage is no function of the records; None if it is one."""
    if not stage.is_constant:
        return "its table, or what becomes of its rows, is an expression or a pipeline, which an audit does not follow"
    for option, value in (("whenMatched", stage.when_matched), ("whenNotMatched", stage.when_not_matched)):
        if value == "fail":
            return f"{option} is fail: what the table held before decides"
    if stage.when_not_matched == "discard":
        return "whenNotMatched is discard: the rows were there before, and others have written them"
    return None


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
        marked = sa.inspect(engine).has_table(MARKERS_TABLE)
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
    return TableRead(vertex, stage, engine, table, found, markers, known)


async def tables_of(
    row: ProcessorRow, processor: Processor, installed: AuditedInstallation, *, rows: bool
) -> dict[VertexId, TableRead | Unread]:
    """The tables that `$merge` stages write into, as they are now, with or without their rows.

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
    found: dict[VertexId, TableRead | Unread] = {}
    for vertex in plan_processor(processor, engine="local").vertices:
        if not isinstance(vertex.head, WriteHead | DeadLetterHead) or not isinstance(
            stage := stage_of(vertex.head), Merge
        ):
            continue
        url = _url(processor, stage, installed.environment)
        if processor.connections[stage.connection_name].type == "mongodb":
            found[vertex.id] = Unread(vertex.id, "an audit does not read collections of MongoDB", always=True)
        elif not isinstance(stage.table, str):
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
            found[vertex.id] = read_table(vertex.id, stage, url, no_writers(writers, row.job, stage.table), rows=rows)
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
    query = sa.text(f"SELECT identity, released FROM {MARKERS_TABLE}")  # noqa: S608 - a name of ours
    return {str(i): Epoch(int(n)) for i, n in connection.execute(query)}


def _came_since(engine: sa.Engine, name: str) -> bool:
    """Whether this identity has a marker by now: its task began after the table was read, and before the commits were."""
    if not sa.inspect(engine).has_table(MARKERS_TABLE):
        return False
    with engine.connect() as connection:
        return name in _markers(connection)


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


# --- the staged documents -------------------------------------------------------------------------------------------------


async def table_output(read: TableRead, what: VertexReleases, blobs: BlobStore) -> Output:
    """The documents released into the table, from the commits' handles. AuditFailed for markers that no commit allows."""
    output = Output()
    parts = PartStore(blobs, str)
    known = {commit.epoch for commit in what.commits} | {NO_EPOCH}
    read.begin = what.before.table
    for identity in what.identities():
        name = str(Identity(what.job, *identity))
        marker = read.markers.get(name)
        if marker is None and _came_since(read.engine, name):
            raise NotAuditable(f"{read.place}: {name} began while it was read; audit again")
        later = marker is not None and what.until is not None and marker > what.until
        if marker is None or not (later or marker in {*known, what.marker(identity)}):
            found = "none" if marker is None else f"commit {marker}"
            raise AuditFailed(
                f"{read.place}: {MARKERS_TABLE} has {found} for {name}; expected one of the job's commits, up to "
                f"{what.commits[-1].epoch}"
            )
        output.released[identity] = marker
        output.steps[identity] = [commit.epoch for commit in what.commits if commit.epoch <= marker]
    for commit in what.commits:
        if commit.epoch <= what.since:
            continue
        for identity, handle in sorted(commit.staged.items()):
            if identity[0] != read.vertex or output.released[identity] < commit.epoch or not handle:
                continue
            documents = await _documents(parts, handle)
            read.staged.append((commit, documents))
            if documents is None:
                output.untold.add(commit.epoch)
                continue
            place = f"what {identity[0]}/{identity[1]} staged"
            output.texts[commit.epoch] += [(_line(d), place) for d in documents]
    return output


async def _documents(parts: PartStore, handle: bytes) -> list[Document] | None:
    """The documents of a handle; None if a blob of it is gone, as it may be once it is released (C11)."""
    found: list[Document] = []
    for part in decode_handle(handle, sys.maxsize):  # without the sinks' limit: it is committed
        try:
            found += [document_of(each) for each in staged_rows(await parts.load(part))]
        except TargetRefused:
            return None
        except TargetUnavailable as error:
            raise NotAuditable(str(error)) from error
    return found


def _line(document: Document) -> Line:
    return line_of(to_json(document))


# --- the expected table -----------------------------------------------------------------------------------------------------


def compare(
    read: TableRead,
    done: Sequence[EpochDone],
    output: Output,
    commits: Sequence[Commit],
    *,
    by_epoch: bool,
    keep: Epoch = NO_EPOCH,
    part: bool = False,
) -> None:
    """AuditFailed names the first row that is missing, altered, or of nobody; `read.unchecked` takes rows that cannot be judged.

    by_epoch: an epoch's output is a function of positions: it can stand for staged documents that are kept no more. keep: the epoch behind
    which `output.table` is the table, if all of it was judged. part: of a piece: rows are compared with the last one.
    """
    if output.untold and not by_epoch:
        read.unchecked.append(
            f"{read.place}: what was staged up to commit {max(output.untold)} is kept no more, and what an epoch put out "
            "depends on when splits were idle"
        )
        return
    epochs = _in_order(read, done, output, commits)
    if epochs is None:
        return
    begin = read.begin
    if begin is not None and (lost := {*read.stage.on} - {*begin.columns}):
        raise NotAuditable(f"{read.place}: an earlier audit, from which this one goes on, knew no column {min(lost)}")
    try:
        expected = folded(read.engine, read.table, read.stage, [epoch.documents for epoch in epochs], begin)
        unordered = _unordered(read, epochs)
    except exc.SQLAlchemyError as error:
        read.unchecked.append(f"{read.place}: an empty table of its kind does not take its rows: {_said(error)}")
        return
    if unordered:
        read.unchecked.append(
            f"{read.place}: {len(unordered)} rows: in which order an epoch wrote them several times is kept no more"
        )
    found = None if part else _difference(read, epochs, expected, unordered)
    if found is None:
        if keep and not read.unchecked:
            covered, rows = [epoch for epoch in epochs if epoch.epoch <= keep], expected
            if len(covered) < len(epochs):
                rows = folded(read.engine, read.table, read.stage, [epoch.documents for epoch in covered], begin)
            columns, named = [str(c.name) for c in read.table.columns], _named(read, covered)
            output.table = KeptTable(
                columns,
                [list(row) for row in rows],
                None if named is None else sorted(named),
            )
        return
    strangers = sorted({_job(i) for i in read.markers if _job(i) not in read.known})
    if strangers:
        read.unchecked.append(
            f"{found}; other jobs have markers in this database and may have written it: {', '.join(strangers)}"
        )
        return
    raise AuditFailed(found)


def _job(identity: str) -> JobId:
    return JobId(identity.partition(".")[0])


class StagedDocuments(NamedTuple):
    """Documents of an epoch; ordered: in the order of their release."""

    epoch: Epoch
    documents: list[Document]
    ordered: bool


def _in_order(
    read: TableRead, done: Sequence[EpochDone], output: Output, commits: Sequence[Commit]
) -> list[StagedDocuments] | None:
    """The documents of all epochs; those kept no more are taken from the computation."""
    again = {epoch.epoch: epoch.outputs.get(read.vertex, []) for epoch in done}
    released: dict[Epoch, list[Document]] = defaultdict(list)
    for commit, staged in read.staged:
        released[commit.epoch] += staged or ()
    epochs: list[StagedDocuments] = []
    for commit in commits:
        documents = released[commit.epoch]
        if commit.epoch not in output.untold:
            epochs.append(StagedDocuments(commit.epoch, documents, True))
            continue
        if not output.complete(commit, read.vertex):
            read.unchecked.append(f"{read.place}: commit {commit.epoch} is released in part only")
            return None
        left = Counter(_line(d) for d in documents)
        rest = []
        for document in again[commit.epoch]:
            if left[line := _line(document)] > 0:
                left[line] -= 1
            else:
                rest.append(document)
        output.texts[commit.epoch] = [(_line(d), "computed again") for d in again[commit.epoch]]
        epochs += [StagedDocuments(commit.epoch, documents, True), StagedDocuments(commit.epoch, rest, False)]
    return epochs


def _unordered(read: TableRead, epochs: Sequence[StagedDocuments]) -> set[Key]:
    """Keys of rows that another order within an epoch might have left otherwise."""
    stage = read.stage
    maker = RowMaker(read.table, stage.on, read.engine.dialect, inserts=False)
    unordered: dict[Key, Document] = {}
    at, begin = _places(read), read.begin
    keyed = [] if begin is None else [begin.columns.index(name) for name in stage.on]
    seen = set() if begin is None else {tuple(row[i] for i in keyed) for row in begin.rows}
    for _, documents, ordered in epochs:
        keys = [tuple(maker.parameters(d)[name] for name in stage.on) for d in documents]
        lines: dict[Key, set[Line]] = {}
        for key, document in zip(keys, documents, strict=True):
            lines.setdefault(key, set()).add(_line(document))
        for key, document in zip(keys, documents, strict=True):
            if not ordered and len(lines[key]) > 1:
                if stage.when_matched != "keepExisting" or key not in seen:
                    unordered[key] = document
            elif stage.when_matched == "replace":
                unordered.pop(key, None)
        seen.update(keys)
    if not unordered:
        return set()
    whole = replace(stage, when_matched="replace", when_not_matched="insert")
    return {tuple(row[i] for i in at) for row in folded(read.engine, read.table, whole, [list(unordered.values())])}


def _places(read: TableRead) -> list[int]:
    names = [column.name for column in read.table.columns]
    return [names.index(name) for name in read.stage.on]


def _named(read: TableRead, epochs: Sequence[StagedDocuments]) -> set[str] | None:
    """The columns that each document has named; None: there was no document."""
    named = None if read.begin is None or read.begin.named is None else set(read.begin.named)
    columns = {column.name for column in read.table.columns}
    for epoch in epochs:
        for document in epoch.documents:
            named = (columns if named is None else named) & document.keys()
    return named


def _compared(read: TableRead, epochs: Sequence[StagedDocuments]) -> dict[int, str]:
    """Columns to compare, by place: not those that the database fills, unless every document names them."""
    by_database = filled(read.table)
    named = _named(read, epochs)
    always = by_database if named is None else by_database & named
    left = sorted(c.name for c in read.table.columns if c.name in by_database - always and c.computed is None)
    if left:
        read.notes.append(f"{read.place}: columns that the database fills: {', '.join(left)}")
    return {i: c.name for i, c in enumerate(read.table.columns) if c.name not in by_database - always}


def _difference(
    read: TableRead, epochs: Sequence[StagedDocuments], expected: Sequence[Row], unordered: set[Key]
) -> str | None:
    """The first row that is not as it must be."""
    at, compared = _places(read), _compared(read, epochs)
    wanted: Mapping[Key, Row] = {tuple(row[i] for i in at): row for row in expected}
    found: Mapping[Key, Row] = {tuple(row[i] for i in at): row for row in read.rows}
    sizes = f"expected {len(expected)} rows, found {len(read.rows)}"
    for key in sorted(wanted.keys() | found.keys(), key=repr):
        if key in unordered:
            continue
        named = ", ".join(f"{name}={value}" for name, value in zip(read.stage.on, key, strict=True))
        place = f"{read.place}, row {named[:_SHOWN]}"
        if key not in found:
            return f"{place}: is missing; {sizes}"
        if key not in wanted:
            return f"{place}: follows from no record of the source; {sizes}"
        for i, name in compared.items():
            if wanted[key][i] != found[key][i]:
                return f"{place}: column {name}: expected {_shown(wanted[key][i])}, found {_shown(found[key][i])}"
    return None


def _shown(value: str | None) -> str:
    return "null" if value is None else value[:_SHOWN]
