"""What must hold at every moment of a simulation, looked at as it happens; a breach is a sentence with its time.

- what is released is committed, in the order of the commits, each once; nothing is told as released before it is visible;
- no watermark falls, on a channel and over a restore;
- nothing is deleted that the last commit, or one that waits for its release, refers to;
- the registry says no longer than a bound what is not so, while a coordinator could know better.
"""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from tests.harness.simulation.drawing import NAME
from tidemark.services.sink.connectors.kafkamarkers import Marker
from tidemark.services.sink.connectors.manifests import MANIFESTS, Manifest, decode_manifest
from tidemark.shared.adapters.memory_broker import MemoryBroker, OpenTransaction
from tidemark.shared.adapters.virtual import VirtualClock
from tidemark.shared.model.checkpoint import CommitRow, TaskHandle
from tidemark.shared.model.ids import Epoch, Incarnation, JobId, Offset, VertexId
from tidemark.shared.model.messages import Heartbeat, Released
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.ports.sink import Identity
from tidemark.shared.protocol.coordinator.checkpoints import is_aligned
from tidemark.shared.protocol.coordinator.record import decode_kept, decode_plan
from tidemark.shared.runtime.context import Phase
from tidemark.shared.runtime.registry import Registry
from tidemark.shared.runtime.topics import MARKERS_PREFIX
from tidemark.shared.wire.frames import decode_frame
from tidemark.shared.wire.messages import decode_report

if TYPE_CHECKING:
    from tests.harness.simulation.process import SimProcess
    from tests.harness.simulation.world import SimWorld

REGISTRY_STALE_MS: Final = 20_000
"""So long the registry may lag behind the store while a coordinator runs undisturbed."""


def is_edge(topic: str) -> bool:
    """Whether a topic is an edge of a processor."""
    return topic.startswith(f"tidemark.{NAME}.")


def incarnation_of(topic: str) -> Incarnation:
    """Of an edge, by its topic's name."""
    return Incarnation(topic.rpartition(".")[2])


class ToldBroker(MemoryBroker):
    """A broker that tells of each append and of each transaction that is committed."""

    def __init__(self, clock: VirtualClock, transaction_timeout_ms: int) -> None:
        super().__init__(clock, transaction_timeout_ms=transaction_timeout_ms)
        self.appended: Callable[[TopicPartition, Sequence[NewRecord]], None] = lambda _at, _records: None
        self.visible: Callable[[list[LogRecord]], None] = lambda _records: None

    def _append(self, at: TopicPartition, records: Sequence[NewRecord], transaction: OpenTransaction | None) -> Offset:
        first = super()._append(at, records, transaction)
        self.appended(at, records)
        return first

    def _finish(self, transaction: OpenTransaction, state: str) -> None:
        if state == "committed":
            self.visible(list(self._of(transaction)))
        super()._finish(transaction, state)  # type: ignore[arg-type]

    def _of(self, transaction: OpenTransaction) -> Sequence[LogRecord]:
        return [
            stored.record
            for at, first in transaction.first.items()
            if at.topic in self._topics
            for stored in self._partition(at).stored[first - self._partition(at).start :]
            if stored.transaction is transaction and stored.record is not None
        ]


class Checks:
    """Sees every effect. `breaches` are what must not have happened."""

    def __init__(self, world: "SimWorld") -> None:
        self._world = world
        self.breaches: list[str] = []
        self.digest = hashlib.sha256()
        """Of all that was written: two runs of a seed have the same."""
        self.history: dict[JobId, dict[Epoch, Epoch]] = defaultdict(dict)
        """Predecessors by committed epoch, as the store in place has them."""
        self._ever: dict[JobId, set[Epoch]] = defaultdict(set)
        """All that was committed. What the store told before it fell back is still released."""
        self.went_back = 0
        """Commits by which the processor began from a kept checkpoint."""
        self.in_flight = 0
        """Commits whose channels carry frames (C13)."""
        self._markers: dict[str, Epoch] = {}
        self._manifests: dict[str, bytes] = {}
        self._channels: dict[tuple[str, int, str, int, int], tuple[int, int]] = {}
        """Of (topic, partition, sender, generation): the highest number and its watermark."""
        self._told: dict[tuple[VertexId, int], int] = {}
        """Output watermarks of tasks in the last commit."""
        self._plan: tuple[JobId, int] | None = None
        self._wrong_since_ms: int | None = None
        self._registry = Registry()

    def breach(self, what: str) -> None:
        """Something that must not be."""
        if len(self.breaches) < 20:
            self.breaches.append(f"at {self._world.now_ms()} ms: {what}")
        self._world.say(f"BREACH: {what}")

    def seen_of_the_store(self) -> object:
        """What commits have been seen, for when the store falls back to what it has now."""
        return {job: dict(chain) for job, chain in self.history.items()}, dict(self._told), self._plan

    def see_again(self, seen: Any) -> None:
        """The store is as it was when this was seen (`seen_of_the_store`)."""
        history, self._told, self._plan = seen
        self.history = defaultdict(dict, {job: dict(chain) for job, chain in history.items()})

    def lives(self) -> int:
        """How often the processor may have given all: its lives that have committed something, and once more for each time it went back."""
        return max(1, len(self.history)) + self.went_back

    def commits(self) -> int:
        """Of all lives."""
        return sum(len(chain) for chain in self.history.values())

    # --- commits and releases ---------------------------------------------------------------------------------------------

    def committed(self, commit: CommitRow, row: ProcessorRow) -> None:
        """C9: commits are a chain. W1: no vertex tells less than before."""
        self._world.say(f"commit {commit.epoch} behind {commit.predecessor}, generation {commit.generation}")
        chain = self.history[commit.job]
        if chain and commit.predecessor != max(chain):
            self.breach(
                f"commit {commit.epoch} names {commit.predecessor} as its predecessor, the last is {max(chain)}"
            )
        chain[commit.epoch] = commit.predecessor
        self._ever[commit.job].add(commit.epoch)
        going_back = decode_plan(row.plan).since == commit.epoch
        self.went_back += going_back
        self.in_flight += not is_aligned(commit)
        told = {(t.vertex, t.index): t.protocol.output_watermark_ms for t in commit.tasks}
        plan = (row.job, row.plan_version)
        if plan == self._plan:  # another plan begins its edges with the least of the old ones (R4)
            for task, watermark in told.items():
                if watermark < self._told.get(task, watermark):
                    self.breach(
                        f"commit {commit.epoch}: {task} tells {watermark}, and told {self._told[task]} before (W1)"
                    )
        # The commit of a going back has the tasks of the plan that it goes back to.
        self._told, self._plan = told, None if going_back else plan

    def passing(self, process: "SimProcess", phase: Phase, epoch: Epoch) -> None:
        """A phase is reached: what is released is committed."""
        if phase == "releasing" and not any(epoch in epochs for epochs in self._ever.values()):
            self.breach(f"{process.place} releases {epoch}, which is not committed")

    def visible(self, records: list[LogRecord]) -> None:
        """S2: transactions of an identity become visible in the order of commits, each part once."""
        for record in records:
            if record.topic.startswith(MARKERS_PREFIX):
                marker = msgspec.json.decode(record.value or b"", type=Marker)
                if marker.part == marker.parts:
                    self._released(marker.identity, marker.epoch, marker.predecessor)

    def published(self, name: str, data: bytes) -> None:
        """S4: manifests of an identity come in the order of commits. A zombie may write one again that is in a volume."""
        if not name.startswith(MANIFESTS):
            return
        if self._manifests.setdefault(name, data) != data:
            self.breach(f"{name} is written again, with other words")
        elif self._manifests[name] is data:
            self.released(decode_manifest(name, data))

    def released(self, manifest: Manifest) -> None:
        """The same, of a manifest that lies in a commit of a table."""
        before = None if manifest.predecessor is None else Epoch(manifest.predecessor)
        self._released(manifest.identity, Epoch(manifest.epoch), before)

    def moved(self, identity: str, epoch: int) -> None:
        """S5: markers in a database move in the order of commits."""
        if self._markers.get(identity) != epoch:
            self._released(identity, Epoch(epoch), None)

    def told_released(self, job: JobId, vertex: VertexId, index: int, epoch: Epoch) -> None:
        """C12: what is told as released is so, for the coordinator forgets it: readers see the marker."""
        identity = str(Identity(job, vertex, index))
        if epoch > self._markers.get(identity, 0):
            self.breach(f"{identity} tells {epoch} as released, its marker is {self._markers.get(identity)}")

    def _released(self, identity: str, epoch: Epoch, predecessor: Epoch | None) -> None:
        self._world.say(f"released {epoch} of {identity}")
        job = JobId(identity.split(".", maxsplit=1)[0])
        if not epoch and all(row.job != job for row in self._world.store.rows.values()):
            return  # who stood still over the drop begins the markers anew: they are nobody's, and are swept (`nobodys`)
        last = self._markers.get(identity)
        if epoch and epoch not in self._ever[job]:
            self.breach(f"{identity} has released {epoch}, which is not committed")
        if last is not None and epoch <= last:
            self.breach(f"{identity} has released {epoch} behind {last}")
        if last is not None and predecessor is not None and predecessor != last:
            self.breach(f"{identity} has released {epoch}, whose predecessor is {predecessor}, behind {last}")
        self._markers[identity] = epoch

    # --- frames -------------------------------------------------------------------------------------------------------------

    def appended(self, at: TopicPartition, records: Sequence[NewRecord]) -> None:
        """W1: the watermarks of a channel do not fall within a generation. And the digest, and the registry."""
        topic = at.topic
        for record in records:
            self.digest.update(f"{topic}/{at.partition}".encode())
            if topic != "tidemark.reports":  # workers name their process' number there
                self.digest.update(record.value or b"-")
        if topic == "tidemark.registry":
            for record in records:
                self._registry.take(LogRecord(topic, 0, Offset(0), 0, record.key, record.value, record.headers))
        elif topic == "tidemark.reports":
            for record in records:
                self._report(decode_report(record.value or b""))
        elif is_edge(topic):
            for record in records:
                self._frame(at, record.value or b"")

    def _report(self, report: object) -> None:
        if isinstance(report, Released):
            self.told_released(report.job, report.vertex, report.index, report.epoch)
        elif isinstance(report, Heartbeat):
            for beat in report.tasks:
                for vertex, index, epoch in beat.released:
                    self.told_released(beat.job, vertex, index, epoch)

    def _frame(self, at: TopicPartition, data: bytes) -> None:
        h = decode_frame(data).header
        channel = (at.topic, at.partition, h.sender.vertex, h.sender.index, h.generation)
        seq, watermark = self._channels.get(channel, (-1, MIN_TIME))
        if h.seq > seq:
            if seq >= 0 and h.seq != seq + 1:
                self.breach(f"frame {h.seq} of {channel} follows {seq} (F1)")
            if h.watermark_ms < watermark:
                self.breach(f"the watermark of {channel} falls from {watermark} to {h.watermark_ms} (W1)")
            self._channels[channel] = (h.seq, h.watermark_ms)

    # --- deletions ----------------------------------------------------------------------------------------------------------

    def _needed(self) -> list[TaskHandle]:
        """Tasks' handles of commits that a restore or a release may still ask for."""
        store = self._world.copies.in_force()
        return [
            task
            for row in store.rows.values()
            for epoch, commit in store.commits.get(row.job, {}).items()
            if epoch == row.last and row.desired != "dropped"
            for task in commit.tasks
        ]

    def listed(self) -> set[str]:
        """Blobs that the last commit lists, and those that users named (C11)."""
        tasks = (*self._needed(), *(task for commit in self._kept() for task in commit.tasks))
        return {b.name for t in tasks for b in (*t.blobs, *(p.blob for p in t.parts if p.blob is not None))}

    def _kept(self) -> list[CommitRow]:
        store = self._world.copies.in_force()
        rows = [row for row in store.rows.values() if row.desired != "dropped"]
        return [store.commits[row.job][each.epoch] for row in rows for each in decode_kept(row.extra).checkpoints]

    def blobs_deleted(self, names: Sequence[str]) -> None:
        """C11, C12: nothing that the last commit lists, or one that a user named."""
        for name in self.listed().intersection(names):
            self.breach(f"blob {name} is deleted, which the last commit lists, or a kept one (C11, C12)")

    def records_deleted(self, at: TopicPartition, before: Offset) -> None:
        """C12: nothing that a restore of the last commit reads."""
        for task in self._needed():
            for stand in task.protocol.inputs:
                mine = incarnation_of(at.topic) == stand.incarnation and task.index == at.partition
                if mine and before > stand.resume_offset:
                    self.breach(
                        f"{at.topic}-{at.partition} is cut below {before}; {task.vertex} resumes at {stand.resume_offset}"
                    )

    def garbage(self) -> list[str]:
        """Blobs that the last commit does not list."""
        needed = self.listed()
        return [name for name in self._world.objects if name not in needed]

    def nobodys(self) -> list[str]:
        """Blobs and topics of jobs and of edges that no processor has."""
        rows = self._world.store.rows.values()
        kept = [decode_kept(row.extra) for row in rows]
        jobs = {row.job for row in rows} | {old.job for k in kept for old in k.old_jobs}
        edges = {binding.topic for row in rows for binding in decode_plan(row.plan).edges}
        edges |= {topic for k in kept for topic in (*k.obsolete_topics, *k.unwanted_topics)}
        found = [name for name in self._world.objects if name.partition("/")[0] not in jobs]
        for topic in self._world.broker.topics():
            if topic.startswith(MARKERS_PREFIX) or topic.endswith(".commits"):
                job = topic.removeprefix(MARKERS_PREFIX).removeprefix("tidemark.").partition(".")[0]
                found += [topic] if job not in jobs else []
            elif is_edge(topic) and topic not in edges:
                found.append(topic)
        return found

    def topics_deleted(self, topics: Sequence[str]) -> None:
        """C12: no edge of the last commit."""
        used = {stand.incarnation for task in self._needed() for stand in task.protocol.inputs}
        for topic in topics:
            if incarnation_of(topic) in used:
                self.breach(f"topic {topic} is deleted, which the last commit reads")

    def read_unnoticed(self) -> list[TopicPartition]:
        """I2: partitions made anew of which a job has read more than the old ones had, under their identity."""
        found = []
        for row in self._world.store.rows.values():
            for splits in decode_kept(row.extra).splits.values():
                for split, known in splits.items():
                    topic, _, number = split.rpartition("-")
                    at = TopicPartition(topic, int(number))
                    old = at in self._world.remade and known.origin != self._world.broker.topic_id(topic)
                    if old and (known.end or 0) > self._world.remade[at]:
                        found.append(at)
        return found

    # --- the registry -------------------------------------------------------------------------------------------------------

    def registry(self, *, undisturbed: bool) -> None:
        """Looked at now and then: state, job, generation and last commit as the store has them, but for a short while."""
        wrong = self.registry_wrong()
        if not wrong or not undisturbed:
            self._wrong_since_ms = None
        elif self._wrong_since_ms is None:
            self._wrong_since_ms = self._world.now_ms()
        elif self._world.now_ms() - self._wrong_since_ms > REGISTRY_STALE_MS:
            self.breach(f"for {REGISTRY_STALE_MS} ms {wrong}")
            self._wrong_since_ms = self._world.now_ms()

    def registry_wrong(self) -> str:
        """What the registry says that is not so; "" if nothing."""
        row = next(iter(self._world.store.rows.values()), None)
        said = next(iter(self._registry.statuses.values()), None)
        if row is None or said is None:
            return (
                ""
                if row is None and said is None
                else f"the store has {row and row.name}, the registry {said and said.name}"
            )
        final = ("STOPPED", "FINISHED", "FAILED")
        found = (said.job, said.generation, said.last, said.state if said.state in final else "under way")
        wanted = (row.job, row.generation, row.last, row.state if row.state in final else "under way")
        return "" if found == wanted else f"the registry says {found}, the store {wanted}"
