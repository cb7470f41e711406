"""A world for the coordinator machine: store, mirror, topics, blobs, workers and sinks in memory, with faults, and a judge of the rules.

`World.settle` carries everything out in order, for stories; `World.step` carries one thing out, for the random machine. `Judge` is told
of everything that reaches the outside and raises `Broken` with the rule's name.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal

from msgspec import structs

from shared.model.checkpoint import (
    BlobRef,
    CommitRow,
    InputState,
    LineageEntry,
    MirrorRow,
    PartHandle,
    TaskHandle,
    TaskProtocolState,
)
from shared.model.ids import (
    NO_EPOCH,
    TASK_PART,
    Epoch,
    Generation,
    JobId,
    LeaderToken,
    Offset,
    Place,
    ProcessorName,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from shared.model.messages import (
    AbortCheckpoint,
    Ack,
    Assign,
    Command,
    CoordinatorBeat,
    CreateProcessor,
    Drain,
    Heartbeat,
    ProcessorStatus,
    Register,
    Released,
    Report,
    Request,
    StartCheckpoint,
    StartProcessor,
    StartSources,
    StopTasks,
    TaskBeat,
    TaskFailed,
    TaskRestored,
)
from shared.model.processors import Expected, ProcessorRow
from shared.protocol.coordinator import commands as do
from shared.protocol.coordinator import events as ev
from shared.protocol.coordinator.invariants import violations
from shared.protocol.coordinator.machine import CoordinatorMachine
from shared.protocol.coordinator.record import decode_plan
from shared.protocol.coordinator.retention import blob_may_go, parse_blob_name
from shared.protocol.coordinator.settings import CoordinatorSettings

NAME = ProcessorName("flights")
DOCUMENT = "read:source count:operator emit:sink; read>count count>emit"
Fate = Literal["done", "lost", "ambiguous-done", "ambiguous-lost", "away", "stale"]
"""Of a write: `lost` means the broker's or blob store's command failed; `ambiguous-done` that it happened and nobody said so."""
_TURNS_MAX = 100_000
_WRITES = (do.StoreCreate, do.StoreUpdate, do.StoreNewGeneration, do.StoreCommit, do.StoreDrop)

Identity = tuple[JobId, VertexId, int]


class Broken(AssertionError):
    """A rule does not hold."""


def plan_of(document: str, parallelism: dict[str, int]) -> ev.PlannedPipeline | str:
    """A planner: `vertex:service …; sender>receiver …`; `bad` is refused."""
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
    return ev.PlannedPipeline(document, tuple(vertices), tuple(edges))


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

    @property
    def id(self) -> TaskId:
        """Which."""
        return TaskId(self.assign.vertex, self.assign.index)

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


# --- the world --------------------------------------------------------------------------------------------------------


class World:
    """Everything outside the machine."""

    def __init__(
        self,
        settings: CoordinatorSettings | None = None,
        nodes: int = 1,
        machine: type[CoordinatorMachine] = CoordinatorMachine,
    ) -> None:
        """Standbys only; `lead` makes one the leader."""
        self.settings = settings or CoordinatorSettings()
        self.now_ms = 1_000
        self.store = Store()
        self.mirror: list[MirrorRow] = []
        self.workers: dict[WorkerIncarnation, FakeWorker] = {}
        self.topics: dict[str, int] = {}
        self.floors: dict[tuple[str, int], int] = {}
        self.blobs: dict[str, bytes] = {}
        self.markers: dict[Identity, Epoch] = {}
        self.fences: dict[Identity, Generation] = {}
        self.status: dict[ProcessorName, ProcessorStatus] = {}
        self.spawns: list[str] = []
        self.retires: list[Place] = []
        self.commands: list[Command] = []
        self.ids = 0
        self.dropped: set[JobId] = set()
        self.leader: Node | None = None
        """Who holds the lease."""
        self.judge = Judge(self)
        self.releasing = True
        self.acking: Callable[[FakeTask], bool] = lambda _: True
        self.inline = b"state"
        self.keep_blobs = 3
        self.fate: Callable[[do.CoordinatorCommand], Fate | None] = lambda _: "done"
        """What happens to a command; None: it stays where it is."""
        self.nodes = [Node(machine(self.settings, self.fresh)) for _ in range(nodes)]

    def fresh(self) -> str:
        """An id."""
        self.ids += 1
        return f"{self.ids:032x}"

    # --- driving --------------------------------------------------------------------------------------------------------

    def give(self, node: Node, event: ev.CoordinatorEvent) -> list[do.CoordinatorCommand]:
        """Hand an event to a coordinator."""
        if node.deaf:
            return []
        out = node.machine.handle(event)
        node.todo.extend(out)
        node.log.extend(out)
        self.judge.decided(node, out)
        if found := violations(node.machine):
            raise Broken("; ".join(found))
        return out

    def lead(self, node: Node | None = None) -> Node:
        """A coordinator takes leadership and reads everything."""
        node = node or self.nodes[0]
        token = self.store.lead()
        node.wants_lead = False
        self.leader = node
        # What an earlier term had handed over may still happen; nobody hears the answer.
        node.leftover.extend(c for c in node.todo if not isinstance(c, _WRITES))
        node.todo.clear()
        self.judge.new_term(node)
        self.give(node, ev.LeadershipTaken(self.now_ms, token, self.store.read(self.mirror)))
        return node

    def worker(self, place: str, service: str, slots: int = 4) -> FakeWorker:
        """A process starts, perhaps at the place of another."""
        worker = FakeWorker(WorkerIncarnation(self.fresh()), Place(place), service, slots)
        for old in self.workers.values():
            if old.place == worker.place:
                old.alive = False
        self.workers[worker.incarnation] = worker
        self.report(worker, Register(worker.incarnation, worker.place, service, slots, 1, "host"))
        return worker

    def standard_workers(self) -> None:
        """One of each service."""
        for service in ("source", "operator", "sink"):
            self.worker(f"{service}-0", service)

    def report(self, worker: FakeWorker, report: Report) -> None:
        """What a worker says reaches every coordinator."""
        if not worker.mute:
            for node in self.nodes:
                node.inbox.append(report)

    def request(self, request: Request) -> None:
        """A user asks; the leader reads it."""
        for node in self.nodes:
            self.give(node, ev.RequestReceived(self.now_ms, request))

    def settle(self) -> None:
        """Carry everything out, in order, until nothing is left."""
        for _ in range(_TURNS_MAX):
            if not self._turn():
                return
        raise AssertionError("the world does not come to rest")

    def carry_out_leftover(self, node: Node) -> None:
        """Something of an earlier term happens late."""
        command = node.leftover.popleft()
        if isinstance(command, (do.TakeLeadership, do.MakePlan)):
            return
        node.deaf = True
        self.carry_out(node, command, "done")
        node.deaf = False

    def _turn(self) -> bool:
        moved = False
        for node in self.nodes:
            while node.leftover:
                self.carry_out_leftover(node)
            while node.inbox:
                moved = True
                self.give(node, ev.ReportReceived(self.now_ms, node.inbox.popleft()))
            for _ in range(len(node.todo)):
                command = node.todo.popleft()
                fate = self.fate(command)
                if fate is None:
                    node.todo.append(command)
                else:
                    moved = True
                    self.carry_out(node, command, fate)
            if node.wants_lead and self.leader in (None, node):
                moved = True
                self.lead(node)
        for worker in list(self.workers.values()):
            while worker.inbox and worker.alive:
                moved = True
                self.obey(worker, worker.inbox.popleft())
        return moved or self._release_all()

    def _release_all(self) -> bool:
        moved = False
        if self.releasing:
            for worker in list(self.workers.values()):
                moved = (worker.alive and self.release_once(worker)) or moved
        return moved

    def pass_ms(self, duration_ms: int, step_ms: int = 100) -> None:
        """Let time pass, with heartbeats and ticks."""
        for _ in range(0, duration_ms, step_ms):
            self.now_ms += step_ms
            self.beat_all()
            self.tick()
            self.settle()

    def tick(self) -> None:
        """Tell the time."""
        for node in self.nodes:
            if node.alive:
                self.give(node, ev.Tick(self.now_ms))

    def beat_all(self) -> None:
        """Every live worker says that it lives."""
        for worker in self.workers.values():
            if worker.alive:
                self.beat(worker)

    def beat(self, worker: FakeWorker) -> None:
        """One heartbeat."""
        beats = []
        for (job, task), fake in worker.tasks.items():
            markers = tuple((v, i, self.markers[j, v, i]) for j, v, i in fake.identities() if (j, v, i) in self.markers)
            beats.append(
                TaskBeat(
                    fake.assign.name,
                    job,
                    fake.assign.generation,
                    task.vertex,
                    task.index,
                    "running" if fake.restored else "restoring",
                    fake.ended,
                    0,
                    0,
                    released=markers,
                )
            )
        w = worker
        self.report(w, Heartbeat(w.incarnation, w.place, w.service, w.slots, 1, "host", tuple(beats)))

    # --- what commands do -----------------------------------------------------------------------------------------------

    def carry_out(self, node: Node, c: do.CoordinatorCommand, fate: Fate) -> None:
        """One command of a coordinator, with this fate."""
        now = self.now_ms
        match c:
            case do.TakeLeadership():
                node.wants_lead = True
            case do.Publish(command=command):
                self.publish(node, command)
            case do.PublishStatus(status=status):
                self.status[status.name] = status
            case do.RetractStatus(name=name):
                self.status.pop(name, None)
            case do.Answer(request=request, error=error):
                node.answers[request] = error
            case do.SpawnWorker(service=service):
                self.spawns.append(service)
            case do.RetireWorker(place=place):
                self.retires.append(place)
            case do.MakePlan(op=op, document=document, parallelism=parallelism):
                plan = plan_of(document, parallelism)
                event = ev.PlanRefused(now, op, plan) if isinstance(plan, str) else ev.PlanMade(now, op, plan)
                self.give(node, event)
            case do.AppendMirror(row=row):
                self._append(node, row, fate)
            case do.CreateTopics(op=op, topics=topics):
                if fate == "done":
                    self.topics.update({t.topic: t.partitions for t in topics})
                    self.give(node, ev.TopicsReady(now, op))
                else:
                    self.give(node, ev.TopicsFailed(now, op, "no broker"))
            case do.WriteBlobs(op=op, blobs=blobs):
                self._write_blobs(node, op, blobs, fate)
            case do.DeleteTopics() | do.DeleteRecords() | do.DeleteBlobs():
                self._delete(node, c, fate)
            case _:
                self._write(node, c, fate)

    def _append(self, node: Node, row: MirrorRow, fate: Fate) -> None:
        if fate in ("done", "ambiguous-done"):
            self.judge.mirrored(row)
            self.mirror.append(row)
        answer = ev.MirrorAppended if fate == "done" else ev.MirrorFailed
        self.give(node, answer(self.now_ms, row.job, row.epoch))

    def _write_blobs(self, node: Node, op: do.OpId, blobs: tuple[do.BlobWanted, ...], fate: Fate) -> None:
        if fate != "done":
            self.give(node, ev.BlobsFailed(self.now_ms, op, "no store"))
            return
        refs = []
        for blob in blobs:
            if blob.name in self.blobs:
                raise Broken(f"C12: blob {blob.name} is written twice")
            self.blobs[blob.name] = blob.data
            refs.append(BlobRef(blob.name, len(blob.data), sha256(blob.data).hexdigest()))
        self.give(node, ev.BlobsWritten(self.now_ms, op, tuple(refs)))

    def _delete(self, node: Node, c: do.DeleteTopics | do.DeleteRecords | do.DeleteBlobs, fate: Fate) -> None:
        if fate != "done":
            self.give(node, ev.DeletionFailed(self.now_ms, c.op, "no broker"))
            return
        match c:
            case do.DeleteTopics(topics=topics):
                for topic in topics:
                    self.judge.topic_goes(topic)
                    self.topics.pop(topic, None)
            case do.DeleteRecords(floors=floors):
                for f in floors:
                    self.judge.records_go(f)
                    self.floors[f.topic, f.partition] = max(f.offset, self.floors.get((f.topic, f.partition), 0))
            case do.DeleteBlobs(job=job, up_to=up_to, keep=keep):
                for name in [n for n in self.blobs if blob_may_go(n, job, up_to, keep)]:
                    self.judge.blob_goes(name)
                    del self.blobs[name]
        self.give(node, ev.Deleted(self.now_ms, c.op))

    def _write(self, node: Node, c: do.CoordinatorCommand, fate: Fate) -> None:
        op: do.OpId = c.op  # type: ignore[union-attr]
        now = self.now_ms
        if fate in ("away", "lost"):
            self.give(node, ev.StoreAway(now, op))
        elif fate == "stale":
            self.give(node, ev.StoreStale(now, op))
        elif fate == "ambiguous-lost":
            self.give(node, ev.StoreAmbiguous(now, op))
        else:
            self.judge.before_write(c)
            job = (
                self.store.rows[c.expected.name].job
                if isinstance(c, do.StoreDrop) and c.expected.name in self.store.rows
                else None
            )
            done = self.store.apply(c)
            if done and job is not None:
                self.dropped.add(job)
            if fate == "ambiguous-done":
                self.give(node, ev.StoreAmbiguous(now, op))
            else:
                self.give(node, ev.StoreDone(now, op) if done else ev.StoreStale(now, op))

    # --- workers --------------------------------------------------------------------------------------------------------

    def publish(self, node: Node, command: Command) -> None:
        """To all workers."""
        self.commands.append(command)
        self.judge.published(node, command)
        for worker in self.workers.values():
            worker.inbox.append(command)

    def obey(self, worker: FakeWorker, c: Command) -> None:
        """A worker reads a command."""
        if isinstance(c, CoordinatorBeat):
            return
        mine = [t for (job, _), t in worker.tasks.items() if job == c.job]
        match c:
            case Assign() if c.to == worker.incarnation:
                self._assign(worker, c)
            case StartCheckpoint():
                for task in mine:
                    if task.assign.generation == c.generation and not task.assign.release_only and self.acking(task):
                        self._snapshot(worker, task, c)
            case AbortCheckpoint():
                for task in mine:
                    task.ended = max(task.ended, c.epoch)
            case Drain():
                for task in mine:
                    task.draining = True
            case StopTasks():
                worker.tasks = {
                    k: t for k, t in worker.tasks.items() if k[0] != c.job or t.assign.generation > c.generation
                }
            case _:
                pass

    def _assign(self, worker: FakeWorker, a: Assign) -> None:
        key = (a.job, TaskId(a.vertex, a.index))
        old = worker.tasks.get(key)
        if old is not None and old.assign.generation >= a.generation:
            return
        task = FakeTask(a, ended=a.last)
        for handle in a.handles:
            if handle.index == a.index:
                task.offset = max([0, *(i.resume_offset for i in handle.protocol.inputs)])
                task.blobs = list(handle.blobs)
                task.draining = handle.protocol.ended
        current = any((r.job, r.generation) == (a.job, a.generation) for r in self.store.rows.values())
        for blob in task.blobs:
            if blob.name not in self.blobs:
                if not current:
                    return  # the assignment is of an earlier generation: this task finds nothing, and is not missed
                raise Broken(f"C12: {key} restores from {a.last}, but {blob.name} is gone")
        worker.tasks[key] = task
        self._take_identities(task)
        task.restored = True
        self.report(worker, TaskRestored(worker.incarnation, a.job, a.generation, a.vertex, a.index))

    def _take_identities(self, task: FakeTask) -> None:
        a = task.assign
        for identity in task.identities():
            self.fences[identity] = max(a.generation, self.fences.get(identity, a.generation))
            if identity == (a.job, a.vertex, a.index) and a.new_identity:
                self.judge.marker_is_new(identity, a.last)
                self.markers[identity] = a.last
            elif identity not in self.markers:
                self.markers[identity] = Epoch(0)

    def _snapshot(self, worker: FakeWorker, task: FakeTask, c: StartCheckpoint) -> None:
        if c.epoch <= task.ended:
            return
        a = task.assign
        task.ended = c.epoch
        task.offset += 10
        name = f"{a.job}/{a.vertex}/{a.generation}/{max(task.barrier, a.last) + 1}/{self.fresh()}"
        self.blobs[name] = b"blob"
        task.blobs = [*task.blobs, BlobRef(name, 4, "")][-self.keep_blobs :]
        task.barrier = c.epoch
        inputs = tuple(
            InputState(b.edge, b.incarnation, Offset(task.offset), ())
            for b in a.plan.edges
            if b.edge.split(">")[1] == a.vertex
        )
        protocol = TaskProtocolState(inputs=inputs, ended=task.draining)
        staged = f"{a.vertex}/{a.index}:{c.epoch}".encode() if task.is_sink else b""
        parts = (PartHandle(TASK_PART, self.inline),)
        handle = TaskHandle(a.vertex, a.index, protocol, parts, tuple(task.blobs), staged)
        self.report(worker, Ack(worker.incarnation, a.job, a.generation, c.epoch, handle))

    def release_once(self, worker: FakeWorker) -> bool:
        """Each sink task of a worker releases at most one commit an identity; whether anything was done."""
        moved = False
        for task in worker.tasks.values():
            for identity in task.identities():
                job, vertex, index = identity
                marker = self.markers[identity]
                rows = [m for m in self.mirror if m.job == job and m.predecessor == marker and m.epoch > marker]
                if rows and self.fences[identity] == task.assign.generation:
                    moved = True
                    self.judge.released(identity, marker, rows[0])
                    self.markers[identity] = rows[0].epoch
                    self.report(worker, Released(worker.incarnation, job, vertex, index, rows[0].epoch))
        return moved

    def fail(self, vertex: str, index: int = 0, *, permanent: bool = False, outage: bool = False) -> None:
        """A task stops with an error."""
        worker, task = self.holder(vertex, index)
        del worker.tasks[task.assign.job, task.id]
        a = task.assign
        failed = TaskFailed(worker.incarnation, a.job, a.generation, a.vertex, a.index, "it broke", permanent, outage)
        self.report(worker, failed)

    def holder(self, vertex: str, index: int = 0) -> tuple[FakeWorker, FakeTask]:
        """Who runs a task."""
        for worker in self.workers.values():
            for (_, task), fake in worker.tasks.items():
                if worker.alive and task == TaskId(VertexId(vertex), index):
                    return worker, fake
        raise AssertionError(f"nobody runs {vertex}/{index}")

    # --- for stories ------------------------------------------------------------------------------------------------------

    @property
    def row(self) -> ProcessorRow:
        """The processor's row in the store."""
        return self.store.rows[NAME]

    def said(self, kind: type[Command]) -> list[Command]:
        """Commands of a kind that reached the workers' topic."""
        return [c for c in self.commands if isinstance(c, kind)]

    def assigned(self, generation: int) -> dict[TaskId, Assign]:
        """Assignments of a generation."""
        return {
            TaskId(c.vertex, c.index): c for c in self.commands if isinstance(c, Assign) and c.generation == generation
        }

    def crash_node(self, node: Node) -> None:
        """The process dies; another may be made of the same node."""
        node.machine = type(node.machine)(self.settings, self.fresh)
        node.todo.clear()
        node.inbox.clear()
        node.wants_lead = False
        if self.leader is node:
            self.leader = None


def started(
    settings: CoordinatorSettings | None = None, *, document: str = DOCUMENT, parallelism: dict[str, int] | None = None
) -> World:
    """A world in which one processor runs."""
    world = World(settings)
    world.lead()
    world.standard_workers()
    world.request(CreateProcessor("create", NAME, document, parallelism or {}))
    world.settle()
    world.request(StartProcessor("start", NAME))
    world.settle()
    assert world.said(StartSources), world.status
    return world


# --- the judge --------------------------------------------------------------------------------------------------------


class Judge:
    """Knows everything that reached the outside, and which rules that may break."""

    def __init__(self, world: World) -> None:
        """Of one world."""
        self.world = world
        self.numbers: dict[tuple[JobId, Epoch], int] = {}
        self.flights: dict[int, dict[JobId, Epoch]] = {}
        self.holders: dict[tuple[JobId, Generation, TaskId], WorkerIncarnation] = {}
        self.identities: dict[tuple[JobId, Generation, Identity], TaskId] = {}
        self.outputs: dict[Identity, list[Epoch]] = {}

    def new_term(self, node: Node) -> None:
        """What a node had in flight is forgotten with its term."""
        self.flights[id(node)] = {}

    def decided(self, node: Node, out: list[do.CoordinatorCommand]) -> None:
        """C8: nothing is decided beside a write that is unanswered, and a retaking coordinator decides nothing."""
        if any(isinstance(c, do.TakeLeadership) for c in out):
            later = out[[isinstance(c, do.TakeLeadership) for c in out].index(True) + 1 :]
            if any(not isinstance(c, do.Answer) for c in later):
                raise Broken(f"C8: decided after leadership was in doubt: {later}")

    def published(self, node: Node, c: Command) -> None:
        """A command has reached the workers' topic."""
        match c:
            case Assign():
                self._assigned(c)
            case StartCheckpoint():
                key = (c.job, c.epoch)
                if key in self.numbers:
                    raise Broken(f"C1: number {c.epoch} is used twice")
                self.numbers[key] = c.generation
                if node.deaf:
                    return
                flights = self.flights.setdefault(id(node), {})
                flying = flights.get(c.job)
                if flying is not None and not self._over(c.job, flying):
                    raise Broken(f"C1: checkpoint {c.epoch} starts while {flying} is in flight")
                flights[c.job] = c.epoch
            case AbortCheckpoint():
                if any(r.epoch == c.epoch for r in self.world.store.history.get(c.job, [])):
                    raise Broken(f"C8: checkpoint {c.epoch} is aborted and committed")
                self.flights.setdefault(id(node), {}).pop(c.job, None)
            case StopTasks():
                self.flights.setdefault(id(node), {}).pop(c.job, None)
            case _:
                pass

    def _over(self, job: JobId, epoch: Epoch) -> bool:
        return any(r.epoch == epoch for r in self.world.store.history.get(job, []))

    def _assigned(self, c: Assign) -> None:
        task = TaskId(c.vertex, c.index)
        held = self.holders.setdefault((c.job, c.generation, task), c.to)
        if held != c.to:
            raise Broken(f"R2: task {task} of generation {c.generation} is held by {held} and {c.to}")
        if not any(e.generation == c.generation for e in self.world.store.lineages.get(c.job, [])):
            raise Broken(f"R1: generation {c.generation} is assigned before it is durable")
        if c.plan.services[c.vertex] != "sink":
            return
        for vertex, index in ((c.vertex, c.index), *c.retired):
            identity = (c.job, vertex, index)
            owner = self.identities.setdefault((c.job, c.generation, identity), task)
            if owner != task:
                raise Broken(f"S1: identity {identity} is given to {owner} and {task}")

    def mirrored(self, row: MirrorRow) -> None:
        """C9: what the mirror says is what SQL has; each row behind its predecessor."""
        commit = next((c for c in self.world.store.history.get(row.job, []) if c.epoch == row.epoch), None)
        if commit is None:
            raise Broken(f"C9: mirror row {row.epoch} is not committed")
        staged = {(h.vertex, h.index): h.staged for h in commit.tasks if h.vertex.startswith(("emit", "audit"))}
        if {(h.vertex, h.index): h.staged for h in row.handles} != staged or row.predecessor != commit.predecessor:
            raise Broken(f"C9: mirror row {row.epoch} says something else than the commit")
        if row.predecessor and not any(m.job == row.job and m.epoch == row.predecessor for m in self.world.mirror):
            raise Broken(f"C9: mirror row {row.epoch} comes before its predecessor {row.predecessor}")

    def before_write(self, c: do.CoordinatorCommand) -> None:
        """C11: what something could resume from or release is not forgotten."""
        if isinstance(c, do.StoreForget):
            for row in self._retained(c.job):
                if row.epoch in c.epochs:
                    raise Broken(f"C11: commit {row.epoch} is retained and forgotten")

    def released(self, identity: Identity, marker: Epoch, row: MirrorRow) -> None:
        """A sink released: each epoch once, in order."""
        output = self.outputs.setdefault(identity, [])
        if output and row.epoch <= output[-1]:
            raise Broken(f"S1: {identity} releases {row.epoch} after {output[-1]}")
        if any((h.vertex, h.index) == identity[1:] for h in row.handles):
            output.append(row.epoch)
        if marker != row.predecessor:
            raise Broken(f"S2: {identity} releases {row.epoch} from {marker}")

    def marker_is_new(self, identity: Identity, marker: Epoch) -> None:
        """S2: an identity that has something to release is never called new."""
        job, vertex, index = identity
        at = self.world.markers.get(identity, Epoch(0))
        for row in self.world.store.history.get(job, []):
            named = any((h.vertex, h.index) == (vertex, index) for h in row.tasks)
            if named and at < row.epoch:
                raise Broken(f"S2: {identity} is called new, but {row.epoch} waits at marker {at}")

    # --- deletions ------------------------------------------------------------------------------------------------------

    def _retained(self, job: JobId) -> Iterable[CommitRow]:
        """By the truth: SQL's last, and what some identity has not released."""
        world = self.world
        row = next((r for r in world.store.rows.values() if r.job == job and r.desired != "dropped"), None)
        if row is None:
            return
        for commit in world.store.history.get(job, []):
            waits = any(
                world.markers.get((job, h.vertex, h.index), Epoch(0)) < commit.epoch
                for h in commit.tasks
                if h.vertex.startswith(("emit", "audit"))
            )
            if commit.epoch == row.last or waits:
                yield commit

    def blob_goes(self, name: str) -> None:
        """C12: nothing is deleted that a retained checkpoint lists, or that a checkpoint to come may list."""
        parsed = parse_blob_name(name)
        assert parsed is not None
        for commit in self._retained(parsed.job):
            for handle in commit.tasks:
                listed = {b.name for b in handle.blobs} | {p.blob.name for p in handle.parts if p.blob is not None}
                if name in listed:
                    raise Broken(f"C12: {name} is deleted and listed by checkpoint {commit.epoch}")
        row = next((r for r in self.world.store.rows.values() if r.job == parsed.job), None)
        if row is not None and row.desired != "dropped" and parsed.epoch > row.last:
            raise Broken(f"C12: {name} is newer than the last commit {row.last} and deleted")

    def records_go(self, floor: do.Floor) -> None:
        """C12: a retained checkpoint can resume from the log."""
        for row in self.world.store.rows.values():
            for commit in self._retained(row.job):
                for handle in commit.tasks:
                    for state in handle.protocol.inputs:
                        here = floor.topic.endswith(state.incarnation) and floor.partition == handle.index
                        if here and state.resume_offset < floor.offset:
                            raise Broken(f"C12: {floor} deletes what checkpoint {commit.epoch} resumes from")

    def topic_goes(self, topic: str) -> None:
        """R4: a topic goes only when the store's plan does not use it and the generation that replaced it has committed."""
        world = self.world
        for row in world.store.rows.values():
            if row.desired == "dropped":
                continue
            if any(b.topic == topic for b in decode_plan(row.plan).edges):
                raise Broken(f"R4: topic {topic} is in use and deleted")
            for commit in world.store.history.get(row.job, []):
                if commit.epoch == row.last:
                    used = {s.incarnation for h in commit.tasks for s in h.protocol.inputs}
                    if any(topic.endswith(i) for i in used):
                        raise Broken(f"R4: topic {topic} is deleted, but checkpoint {commit.epoch} resumes from it")
