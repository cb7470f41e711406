"""Knows everything that reached the outside of the coordinators, and raises `Broken` with the name of the rule that it breaks."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tests.unit.protocol_coordinator_support import Broken, FakeTask, Identity, Node
from tidemark.shared.model.checkpoint import (
    CommitRow,
    KnownSplit,
    MirrorRow,
)
from tidemark.shared.model.ids import (
    Epoch,
    Generation,
    JobId,
    Offset,
    SplitId,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import (
    AbortCheckpoint,
    Assign,
    Command,
    StartCheckpoint,
    StopTasks,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.record import decode_kept, decode_plan
from tidemark.shared.protocol.coordinator.retention import parse_blob_name

if TYPE_CHECKING:
    from tests.unit.protocol_coordinator_fakes import WorkersSide


class Judge:
    """Knows everything that reached the outside, and which rules that may break."""

    def __init__(self, world: "WorkersSide") -> None:
        """Of one world."""
        self.world = world
        self.numbers: dict[tuple[JobId, Epoch], int] = {}
        self.flights: dict[int, dict[JobId, Epoch]] = {}
        self.holders: dict[tuple[JobId, Generation, TaskId], WorkerIncarnation] = {}
        self.identities: dict[tuple[JobId, Generation, Identity], TaskId] = {}
        self.outputs: dict[Identity, list[Epoch]] = {}
        self.ranges: dict[tuple[JobId, VertexId, SplitId], tuple[Offset, Offset | None]] = {}

    def may_read(self, task: FakeTask, splits: Mapping[SplitId, KnownSplit]) -> None:
        """I1, I3: what a task is told to read, and where it ends, stands in the row, and is the same in every generation."""
        a = task.assign
        row = self.world.store.rows.get(a.name)
        if row is None or row.job != a.job or row.generation != a.generation:
            return  # it has been overtaken, and nothing that it reads counts
        kept = decode_kept(row.extra)
        for split, told in splits.items():
            listed = kept.splits.get(a.vertex, {}).get(split)
            if listed is None:
                raise Broken(f"I1: {a.vertex}/{a.index} is to read {split}, and the row does not have it")
            begin, end = self.ranges.get((a.job, a.vertex, split), (told.begin, told.end))
            if (told.begin, listed.begin) != (begin, begin):
                raise Broken(
                    f"I1: {split} began at {begin}, now it begins at {told.begin}, in the row at {listed.begin}"
                )
            if end is not None and listed.end != end:
                raise Broken(f"I3: {split} ended at {end}, now it ends at {listed.end}")
            if told.end is not None and told.end != listed.end:
                raise Broken(f"I3: {split} is to end at {told.end}, in the row at {listed.end}")
            self.ranges[a.job, a.vertex, split] = (begin, listed.end)

    def assigned_splits(self, task: FakeTask) -> None:
        """I3: a task that begins after the ends are decided knows them."""
        self.may_read(task, task.assign.splits)
        row = self.world.store.rows.get(task.assign.name)
        if row is None or (row.job, row.generation) != (task.assign.job, task.assign.generation):
            return
        if decode_kept(row.extra).ended and any(known.end is None for known in task.assign.splits.values()):
            raise Broken(f"I3: {task.id} was not told where its splits end")

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
        """C11: what something could resume from or release is not forgotten. Behind a going back splits have the ranges that they had."""
        if isinstance(c, do.StoreCommit) and decode_kept(self.world.store.rows[c.row.name].extra).go_back:
            self.ranges = {key: known for key, known in self.ranges.items() if key[0] != c.row.job}
        if isinstance(c, do.StoreForget):
            for row in (*self._retained(c.job), *self._kept(c.job)):
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

    def _kept(self, job: JobId) -> Iterable[CommitRow]:
        """C11: those that users named."""
        row = next((r for r in self.world.store.rows.values() if r.job == job and r.desired != "dropped"), None)
        named = () if row is None else decode_kept(row.extra).checkpoints
        found = {commit.epoch: commit for commit in self.world.store.history.get(job, [])}
        return [found[each.epoch] for each in named]

    def blob_goes(self, name: str) -> None:
        """C12: nothing is deleted that a retained checkpoint lists, or that a checkpoint to come may list."""
        parsed = parse_blob_name(name)
        assert parsed is not None
        for commit in (*self._retained(parsed.job), *self._kept(parsed.job)):
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
