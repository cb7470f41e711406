"""What the coordinator's world consists of: a commit store, tasks, workers and coordinator processes, in memory."""

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from tidemark.shared.model.checkpoint import (
    BlobRef,
    CommitRow,
    KnownSplit,
    LineageEntry,
    MirrorRow,
)
from tidemark.shared.model.ids import (
    NO_EPOCH,
    Epoch,
    JobId,
    LeaderToken,
    Place,
    ProcessorName,
    SplitId,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import (
    Assign,
    Command,
    Report,
)
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine

NAME = ProcessorName("flights")
DOCUMENT = "read:source count:operator emit:sink; read>count count>emit"
Fate = Literal["done", "lost", "ambiguous-done", "ambiguous-lost", "away", "stale"]
"""Of a write: `lost` means the broker's or blob store's command failed; `ambiguous-done` that it happened and nobody said so."""
WRITES = (do.StoreCreate, do.StoreUpdate, do.StoreNewGeneration, do.StoreCommit, do.StoreDrop)

Identity = tuple[JobId, VertexId, int]


class Broken(AssertionError):
    """A rule does not hold."""


def plan_of(document: str, parallelism: dict[str, int], code: str = "") -> ev.PlannedPipeline | str:
    """A planner: `vertex:service …; sender>receiver …`; `bad` is refused. `code`: the digest of its computations' code."""
    if document.startswith("bad"):
        return "pipeline[0]: no such stage"
    left, _, right = document.partition(";")
    vertices = []
    for word in left.split():
        name, service = word.split(":")
        vertices.append(ev.PlannedVertex(VertexId(name), service, parallelism.get(name, parallelism.get(service, 1))))
    edges = []
    for word in right.split():
        sender, receiver = word.split(">")
        edges.append(ev.PlannedEdge(word, VertexId(sender), VertexId(receiver)))  # type: ignore[arg-type]
    return ev.PlannedPipeline(document, tuple(vertices), tuple(edges), code=code.encode(), code_digest=code)


# --- the store --------------------------------------------------------------------------------------------------------


@dataclass
class Store:
    """A commit store in memory; `history` is every commit that ever became durable."""

    rows: dict[ProcessorName, ProcessorRow] = field(default_factory=dict)
    lineages: dict[JobId, list[LineageEntry]] = field(default_factory=dict)
    commits: dict[JobId, list[CommitRow]] = field(default_factory=dict)
    history: dict[JobId, list[CommitRow]] = field(default_factory=dict)
    token: int = 0

    def lead(self) -> LeaderToken:
        """A new term."""
        self.token += 1
        for name, row in self.rows.items():
            self.rows[name] = structs.replace(row, leader=LeaderToken(self.token))
        return LeaderToken(self.token)

    def read(self, mirror: list[MirrorRow]) -> tuple[ev.StoredProcessor, ...]:
        """All that a new leader reads."""
        out = []
        for row in self.rows.values():
            top = max((m.epoch for m in mirror if m.job == row.job), default=Epoch(0))
            lineage = tuple(self.lineages.get(row.job, []))
            out.append(ev.StoredProcessor(row, lineage, tuple(self.commits.get(row.job, [])), top))
        return tuple(out)

    def apply(self, c: do.CoordinatorCommand) -> bool:  # noqa: C901 - a table
        """Carry a write out; False if the row is not as expected."""
        match c:
            case do.StoreCreate(row=row):
                if row.name in self.rows or row.leader != self.token:
                    return False
                self.rows[row.name] = row
            case do.StoreForget(job=job, epochs=epochs):
                self.commits[job] = [r for r in self.commits.get(job, []) if r.epoch not in epochs]
            case do.StoreDrop(expected=expected):
                if not self._matches(expected):
                    return False
                del self.rows[expected.name]
            case do.StoreUpdate(expected=expected, row=row):
                if not self._matches(expected):
                    return False
                before = self.rows[expected.name]
                if (row.job, row.generation, row.last) != (before.job, before.generation, before.last):
                    raise Broken("C8: an update changes job, generation or last")
                self.rows[row.name] = row
            case do.StoreNewGeneration(expected=expected, row=row, entry=entry):
                if not self._matches(expected):
                    return False
                if row.generation <= self.rows[row.name].generation:
                    raise Broken(f"R1: generation {row.generation} does not grow")
                self.rows[row.name] = row
                self.lineages.setdefault(row.job, []).append(entry)
            case do.StoreCommit(expected=expected, row=row, commit=commit):
                if not self._matches(expected):
                    return False
                if commit.predecessor != expected.last or row.last != commit.epoch or commit.epoch <= expected.last:
                    raise Broken(f"C9: commit {commit.epoch} after {commit.predecessor}, but last is {expected.last}")
                self.rows[row.name] = row
                self.commits.setdefault(row.job, []).append(commit)
                self.history.setdefault(row.job, []).append(commit)
            case _:
                raise AssertionError(c)
        return True

    def _matches(self, e: Expected) -> bool:
        row = self.rows.get(e.name)
        return row is not None and (row.leader, row.generation, row.last) == (e.leader, e.generation, e.last)


# --- workers ----------------------------------------------------------------------------------------------------------


@dataclass
class FakeTask:
    """A task as the coordinator sees one."""

    assign: Assign
    restored: bool = False
    draining: bool = False
    ended: Epoch = NO_EPOCH
    offset: int = 0
    blobs: list[BlobRef] = field(default_factory=list)
    barrier: Epoch = NO_EPOCH
    splits: dict[SplitId, KnownSplit] = field(default_factory=dict)
    """Of a source's task: what it was told to read."""
    listed: bool = False
    stands: str = ""
    """What it says of its splits at barriers, whatever is so."""
    held: bool = False
    """It has said where its splits end, and reads nothing until it is told."""
    share: int = 0
    """Of a source's task: bytes a second that it was told it may take (E4); 0: all."""
    taken: int = 0
    """Bytes that it has taken."""

    @property
    def id(self) -> TaskId:
        """Which."""
        return TaskId(self.assign.vertex, self.assign.index)

    @property
    def is_source(self) -> bool:
        """Whether it reads splits."""
        return self.assign.plan.services[self.assign.vertex] == "source" and not self.assign.release_only

    @property
    def is_sink(self) -> bool:
        """Whether it releases."""
        return self.assign.plan.services[self.assign.vertex] == "sink"

    def identities(self) -> list[Identity]:
        """What it may release under (S1)."""
        a = self.assign
        return [(a.job, a.vertex, a.index), *((a.job, v, i) for v, i in a.retired)] if self.is_sink else []


@dataclass
class FakeWorker:
    """A process with slots. `mute`: alive, but nothing that it says arrives."""

    incarnation: WorkerIncarnation
    place: Place
    service: str
    slots: int
    inbox: deque[Command] = field(default_factory=deque)
    tasks: dict[tuple[JobId, TaskId], FakeTask] = field(default_factory=dict)
    alive: bool = True
    mute: bool = False


@dataclass
class Node:
    """A coordinator process: its machine, what it has still to carry out, and what it has still to read."""

    machine: CoordinatorMachine
    todo: deque[do.CoordinatorCommand] = field(default_factory=deque)
    leftover: deque[do.CoordinatorCommand] = field(default_factory=deque)
    deaf: bool = False
    """What it carries out now is of an earlier term: answers do not arrive."""
    inbox: deque[Report] = field(default_factory=deque)
    wants_lead: bool = False
    alive: bool = True
    answers: dict[str, str] = field(default_factory=dict)
    log: list[do.CoordinatorCommand] = field(default_factory=list)
