"""What `$merge` has written into tables and collections, against the content that follows from the source's records.

- Target and markers are read at one moment, before the commits: each marker is then one of a commit that the audit knows (S5).
- Staged documents lie in the commits' handles, in the order in which they are written. As a multiset they must follow from the epoch's
  input, like any output.
- The expected content: these documents, up to each identity's marker, written into an empty target (`TargetRead.written`).
  Rows are compared by `on`, values with their types.

A target is a function of the records where this job alone writes it, and every row began with one of them. Where it is not, or where the
order of a key's rows within an epoch is kept no more, `unchecked` says so.
"""

import sys
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from tidemark.services.audit.expected import PLAIN, ExpectedOutput, Line, line_of
from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable
from tidemark.services.audit.outputs import KeptTable, Output, VertexReleases
from tidemark.services.audit.recompute import EpochDone
from tidemark.services.audit.scratch import Row
from tidemark.services.sink.connectors.mergechanges import document_of, staged_rows
from tidemark.services.sink.connectors.staging import PartStore, decode_handle
from tidemark.shared.language.stages import Merge
from tidemark.shared.language.values import to_json
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, VertexId
from tidemark.shared.model.values import Document
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused, TargetUnavailable

Key = tuple[Any, ...]
MARKERS: Final = "tidemark_released"
"""Where the sinks of tables and of collections keep their markers."""
_SHOWN: Final = 200


class NotWritten(Exception):
    """Why an empty target does not take the documents."""


@dataclass(frozen=True, slots=True)
class Unread:
    """A table that says nothing about the records."""

    vertex: VertexId
    why: str
    always: bool = False
    """The document is why: no later audit will read it either."""


@dataclass(slots=True)
class TargetRead(ABC):
    """A table or collection and the markers beside it, as of one moment."""

    kind: ClassVar[str]
    """What it is, in messages."""

    vertex: VertexId
    stage: Merge
    rows: list[Row]
    markers: dict[str, Epoch]
    """Of all jobs that write there, by release identity."""
    known: frozenset[JobId]
    """Jobs of the installation of which none but this one may write into it."""
    staged: list[tuple[Commit, list[Document] | None]] = field(default_factory=list)
    """The released documents, in order; None for those that are kept no more."""
    unchecked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begin: KeptTable | None = None
    """As it had to be where an earlier audit ended."""

    @property
    def place(self) -> str:
        """How messages name it."""
        return f"{self.vertex}: {self.kind} {self.stage.table}"

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """Those of its rows."""

    @property
    def expected(self) -> ExpectedOutput:
        """How staged documents look beside those that are computed again."""
        return PLAIN

    def unjudged(self, done: Sequence[EpochDone], output: Output) -> str:
        """Why nothing can be said of it; "" if it can."""
        del done, output
        return ""

    def moving(self, output: Output, commits: Sequence[Commit]) -> str:
        """Why a difference may come from a release that was under way; "" where target and markers are of one moment."""
        del output, commits
        return ""

    @abstractmethod
    def rejected(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """The rows that the sink would not have staged (S6)."""

    @abstractmethod
    def came_since(self, name: str) -> bool:
        """Whether this identity has a marker by now: its task began after the target was read, and before the commits were."""

    @abstractmethod
    def keys(self, documents: Sequence[Document]) -> list[Key]:
        """The values of `on` in each document, as they find rows."""

    @abstractmethod
    def written(self, stage: Merge, epochs: Sequence[Sequence[Document]], begin: KeptTable | None = None) -> list[Row]:
        """The rows after these documents, an epoch at a time, in their order; begin: else there was none. NotWritten."""

    @abstractmethod
    def compared(self, named: set[str] | None) -> dict[int, str]:
        """The columns to compare, by place. named: those that each document names; None: there was no document."""

    def differs(self, column: str, expected: str | None, found: str | None) -> str:
        """How a row's column differs."""
        return f"column {column}: expected {shown(expected)}, found {shown(found)}"

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection."""


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


# --- the staged documents -------------------------------------------------------------------------------------------------


async def merged_output(read: TargetRead, what: VertexReleases, blobs: BlobStore) -> Output:
    """The documents released into the target, from the commits' handles. AuditFailed for markers that no commit allows."""
    output = Output()
    parts = PartStore(blobs, str)
    known = {commit.epoch for commit in what.commits} | {NO_EPOCH}
    read.begin = what.before.table
    for identity in what.identities():
        name = str(Identity(what.job, *identity))
        marker = read.markers.get(name)
        if marker is None and read.came_since(name):
            raise NotAuditable(f"{read.place}: {name} began while it was read; audit again")
        later = marker is not None and what.until is not None and marker > what.until
        if marker is None or not (later or marker in {*known, what.marker(identity)}):
            found = "none" if marker is None else f"commit {marker}"
            raise AuditFailed(
                f"{read.place}: {MARKERS} has {found} for {name}; expected one of the job's commits, up to "
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
            output.texts[commit.epoch] += [(read.expected.text(d), place) for d in documents]
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
    read: TargetRead,
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
    if why := read.unjudged(done, output):
        read.unchecked.append(f"{read.place}: {why}")
        return
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
        expected = read.written(read.stage, [epoch.documents for epoch in epochs], begin)
        unordered = _unordered(read, epochs)
    except NotWritten as error:
        read.unchecked.append(f"{read.place}: an empty {read.kind} of its kind does not take its rows: {error}")
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
                rows = read.written(read.stage, [epoch.documents for epoch in covered], begin)
            named = _named(read, covered)
            kept = [list(row) for row in rows]
            output.table = KeptTable(read.columns, kept, None if named is None else sorted(named))
        return
    if moving := read.moving(output, commits):
        read.unchecked.append(f"{found}; {moving}")
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
    read: TargetRead, done: Sequence[EpochDone], output: Output, commits: Sequence[Commit]
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
        output.texts[commit.epoch] = [(read.expected.text(d), "computed again") for d in again[commit.epoch]]
        epochs += [StagedDocuments(commit.epoch, documents, True), StagedDocuments(commit.epoch, rest, False)]
    return epochs


def _unordered(read: TargetRead, epochs: Sequence[StagedDocuments]) -> set[Key]:
    """Keys of rows that another order within an epoch might have left otherwise."""
    stage = read.stage
    unordered: dict[Key, Document] = {}
    at, begin = _places(read), read.begin
    keyed = [] if begin is None else [begin.columns.index(name) for name in stage.on]
    seen = set() if begin is None else {tuple(row[i] for i in keyed) for row in begin.rows}
    for _, documents, ordered in epochs:
        keys = read.keys(documents)
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
    return {tuple(row[i] for i in at) for row in read.written(whole, [list(unordered.values())])}


def _places(read: TargetRead) -> list[int]:
    return [read.columns.index(name) for name in read.stage.on]


def _named(read: TargetRead, epochs: Sequence[StagedDocuments]) -> set[str] | None:
    """The columns that each document has named; None: there was no document."""
    named = None if read.begin is None or read.begin.named is None else set(read.begin.named)
    columns = set(read.columns)
    for epoch in epochs:
        for document in epoch.documents:
            named = (columns if named is None else named) & document.keys()
    return named


def _difference(
    read: TargetRead, epochs: Sequence[StagedDocuments], expected: Sequence[Row], unordered: set[Key]
) -> str | None:
    """The first row that is not as it must be."""
    at, compared = _places(read), read.compared(_named(read, epochs))
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
                return f"{place}: {read.differs(name, wanted[key][i], found[key][i])}"
    return None


def shown(value: str | None) -> str:
    """A value in a message."""
    return "null" if value is None else value[:_SHOWN]
