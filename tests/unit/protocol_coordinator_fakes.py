"""The workers' side of the coordinator's world: what they are told, what they say, what sinks release."""

from collections.abc import Callable, Mapping

from msgspec import structs

from tests.unit.protocol_coordinator_judge import Judge
from tests.unit.protocol_coordinator_support import Broken, FakeTask, FakeWorker, Fate, Identity, Node, Store
from tidemark.shared.model.checkpoint import (
    BlobRef,
    ChannelState,
    InputState,
    KnownSplit,
    MirrorRow,
    PartHandle,
    SplitStand,
    TaskHandle,
    TaskProtocolState,
)
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import (
    TASK_PART,
    Epoch,
    Generation,
    JobId,
    Offset,
    Place,
    ProcessorName,
    Seq,
    SplitId,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import (
    SHARE,
    TAKEN,
    AbortCheckpoint,
    Ack,
    Assign,
    Command,
    CoordinatorBeat,
    Drain,
    EndsFound,
    Heartbeat,
    ProcessorStatus,
    ReadSplits,
    Register,
    Released,
    Report,
    ShareBytes,
    SplitsFound,
    StartCheckpoint,
    StopTasks,
    TaskBeat,
    TaskFailed,
    TaskRestored,
    TellEnds,
    TellSplits,
    WorkerUnwanted,
    WorkerWanted,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.wire.messages import encode_stands


class WorkersSide:
    """Processes, their tasks, blobs and release markers; and the state that the whole world shares."""

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
        self.waiting: dict[str, tuple[Wait, ...]] = {}
        """What tasks of a vertex say that they wait for."""
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
        self.restoring: Callable[[FakeTask], bool] = lambda _: True
        """Whether a task gets to the end of it."""
        self.telling: Callable[[FakeTask], bool] = lambda _: True
        """Which source tasks say what they find, and where it ends."""
        self.reads = True
        """Whether records come."""
        self.read_to: dict[SplitId, Offset] = {}
        self.inline = b"state"
        self.behind = 0
        """How many barriers channels lack in a snapshot that need not be aligned (C13)."""
        self.code = ""
        """Digest of the computations' code as it is on the disk."""
        self.keep_blobs = 3
        self.grown = 0
        self.one_lists = False
        """Sources are tables: the first task lists the splits of all, once."""
        """Partitions that were added to the sources' topic."""
        self.fate: Callable[[do.CoordinatorCommand], Fate | None] = lambda _: "done"
        """What happens to a command; None: it stays where it is."""
        self.nodes = [Node(machine(self.settings, self.fresh)) for _ in range(nodes)]

    def fresh(self) -> str:
        """An id."""
        self.ids += 1
        return f"{self.ids:032x}"

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
                    counters={TAKEN: fake.taken, SHARE: fake.share} if fake.is_source else {},
                    released=markers,
                    waiting=self.waiting.get(task.vertex, ()),
                )
            )
        w = worker
        self.report(w, Heartbeat(w.incarnation, w.place, w.service, w.slots, 1, "host", tuple(beats)))

    def obey(self, worker: FakeWorker, c: Command) -> None:
        """A worker reads a command."""
        if isinstance(c, CoordinatorBeat | WorkerWanted | WorkerUnwanted):
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
            case TellSplits() | ReadSplits() | TellEnds() | Drain() | ShareBytes():
                for task in mine:
                    if task.is_source and task.assign.generation == c.generation:
                        self._obey_source(worker, task, c)
                    elif isinstance(c, Drain):
                        task.draining = True  # END comes to it at once
            case StopTasks():
                worker.tasks = {
                    k: t for k, t in worker.tasks.items() if k[0] != c.job or t.assign.generation > c.generation
                }
            case _:
                pass

    def _obey_source(
        self, worker: FakeWorker, task: FakeTask, c: TellSplits | ReadSplits | TellEnds | Drain | ShareBytes
    ) -> None:
        """I1, I3: a source's task says what it finds and where that ends, and reads what it was told of."""
        if isinstance(c, ReadSplits | Drain) and TaskId(c.vertex, c.index) != task.id:
            return
        match c:
            case TellSplits():
                self.tell_found(worker, task)
            case ReadSplits(splits=splits):
                self.judge.may_read(task, splits)
                task.splits |= splits
                task.listed = True
            case TellEnds(until=until):
                task.held = True
                self.tell_ends(worker, task, until)
            case Drain(splits=splits):
                self.judge.may_read(task, splits)
                task.splits |= splits
                task.draining, task.held = True, False
            case ShareBytes(shares=shares):
                told = {TaskId(vertex, index): size for vertex, index, size in shares}
                task.share = told.get(task.id, task.share)

    def tell_found(self, worker: FakeWorker, task: FakeTask, gone: tuple[SplitId, ...] = ()) -> None:
        """What a source's task sees and was not told to read."""
        a = task.assign
        splits = {s: k for s, k in self.splits_of(task).items() if s not in task.splits}
        if self.telling(task) and (splits or gone or not task.listed):
            self.report(worker, SplitsFound(worker.incarnation, a.job, a.generation, a.vertex, a.index, splits, gone))

    def tell_ends(self, worker: FakeWorker, task: FakeTask, until: Mapping[str, int]) -> None:
        """Where its splits end: where they stand, which is another place after each restart."""
        a = task.assign
        if not self.telling(task):
            return
        splits = {**self.splits_of(task), **task.splits}
        ended = {
            s: structs.replace(k, end=Offset(max(until.get(s, 0), task.offset) if k.end is None else k.end))
            for s, k in splits.items()
        }
        self.report(worker, EndsFound(worker.incarnation, a.job, a.generation, a.vertex, a.index, ended))

    def splits_of(self, task: FakeTask) -> dict[SplitId, KnownSplit]:
        """One for each task, and those that came since: these from their beginning, the others from where `latest` is now."""
        a = task.assign
        tasks = a.plan.tasks[a.vertex]
        first = not task.listed
        found = {}
        for ordinal in range(tasks + self.grown):
            if (first and not a.index) if self.one_lists else ordinal % tasks == a.index:
                begin = Offset(self.now_ms if first else 0)
                found[SplitId(f"t-{ordinal}")] = KnownSplit(ordinal, "t", begin)
        return found

    def _assign(self, worker: FakeWorker, a: Assign) -> None:
        key = (a.job, TaskId(a.vertex, a.index))
        old = worker.tasks.get(key)
        if old is not None and old.assign.generation >= a.generation:
            return
        task = FakeTask(a, ended=a.last, splits=dict(a.splits), listed=a.listed)
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
        if not self.restoring(task):
            return
        task.restored = True
        self.report(worker, TaskRestored(worker.incarnation, a.job, a.generation, a.vertex, a.index))
        if task.is_source:
            self.judge.assigned_splits(task)
            self.tell_found(worker, task)

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
        behind = 0 if c.aligned else self.behind
        channel = ChannelState(VertexId(""), 0, Seq(0), Epoch(max(0, c.epoch - behind)), 0, idle=False, ended=False)
        inputs = tuple(
            InputState(b.edge, b.incarnation, Offset(task.offset), (channel,))
            for b in a.plan.edges
            if b.edge.split(">")[1] == a.vertex
        )
        protocol = TaskProtocolState(inputs=inputs, ended=task.draining)
        status = task.stands or ("finished" if task.draining else "active")
        if self.reads:
            self.read_to |= dict.fromkeys(task.splits, Offset(task.offset))
        stands = tuple(
            SplitStand(
                s, k.end if task.draining and k.end is not None else self.read_to.get(s, k.begin), k.begin, status
            )
            for s, k in sorted(task.splits.items())
        )
        positions = encode_stands(stands) if task.is_source else b""
        staged = f"{a.vertex}/{a.index}:{c.epoch}".encode() if task.is_sink else b""
        parts = (PartHandle(TASK_PART, self.inline),)
        handle = TaskHandle(a.vertex, a.index, protocol, parts, tuple(task.blobs), staged, positions)
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

    def holder_id(self, vertex: str, index: int = 0) -> TaskId:
        """A task's name."""
        return TaskId(VertexId(vertex), index)

    def holder(self, vertex: str, index: int = 0) -> tuple[FakeWorker, FakeTask]:
        """Who runs a task."""
        for worker in self.workers.values():
            for (_, task), fake in worker.tasks.items():
                if worker.alive and task == TaskId(VertexId(vertex), index):
                    return worker, fake
        raise AssertionError(f"nobody runs {vertex}/{index}")
