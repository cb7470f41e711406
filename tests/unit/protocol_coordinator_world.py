"""A world for the coordinator machine: mirror, topics, blobs, workers and sinks in memory, with faults.

`World.settle` carries everything out in order, for stories; chaos carries out one thing at a time. The judge is told of everything that
reaches the outside.
"""

from hashlib import sha256

from tests.harness.coordinator_invariants import violations
from tests.unit.protocol_coordinator_fakes import WorkersSide
from tests.unit.protocol_coordinator_support import (
    DOCUMENT,
    NAME,
    WRITES,
    Broken,
    Fate,
    Node,
    plan_of,
)
from tidemark.shared.model.checkpoint import (
    BlobRef,
    MirrorRow,
)
from tidemark.shared.model.ids import (
    TaskId,
)
from tidemark.shared.model.messages import (
    Assign,
    Command,
    CreateProcessor,
    Request,
    StartProcessor,
    StartSources,
    WorkerUnwanted,
    WorkerWanted,
)
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.retention import blob_may_go
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

_TURNS_MAX = 100_000


class World(WorkersSide):
    """Everything outside the machine."""

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
        node.leftover.extend(c for c in node.todo if not isinstance(c, WRITES))
        node.todo.clear()
        self.judge.new_term(node)
        self.give(node, ev.LeadershipTaken(self.now_ms, token, self.store.read(self.mirror)))
        return node

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

    # --- what commands do -----------------------------------------------------------------------------------------------

    def carry_out(self, node: Node, c: do.CoordinatorCommand, fate: Fate) -> None:  # noqa: C901, PLR0912 - a table
        """One command of a coordinator, with this fate."""
        now = self.now_ms
        match c:
            case do.TakeLeadership():
                node.wants_lead = True
            case do.ProveLeadership():
                if node.machine.ctx.token == self.store.token:
                    node.alive = False  # the process ends: the store has lost what others saw
                else:
                    self.give(node, ev.LeadershipLost(now))
                    node.wants_lead = True
            case do.Publish(command=WorkerWanted(service=service)):
                self.spawns.append(service)
            case do.Publish(command=WorkerUnwanted(place=place)):
                self.retires.append(place)
            case do.Publish(command=command):
                self.publish(node, command)
            case do.PublishStatus(status=status):
                self.status[status.name] = status
            case do.RetractStatus(name=name):
                self.status.pop(name, None)
            case do.Answer(request=request, error=error):
                node.answers[request] = error
                self.give(node, ev.AnswerTold(now, request))
            case do.MakePlan(op=op, document=document, parallelism=parallelism):
                plan = plan_of(document, parallelism, self.code)
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
