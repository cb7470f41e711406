"""The outside of a simulated process: log, store and blobs, where each durable write has a name at which the process may die.

A name says which service writes and what: `sink txn commit`, `coordinator store commit`, `source edge BarrierFrame`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar

from tests.harness.simulation.faults import Book, LinkFaults, Side
from tidemark.services.sink.connectors.manifests import Manifest
from tidemark.shared.adapters.blobs import digest_of
from tidemark.shared.adapters.faults import Fault, Operation
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_commit_store import MemoryCommitState, MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog, MemoryWriter
from tidemark.shared.adapters.memory_transactions import MemoryTransactionalWriter
from tidemark.shared.model.checkpoint import BlobRef, CommitRow, LineageEntry
from tidemark.shared.model.ids import NO_LEADER, Epoch, Generation, JobId, LeaderToken, Offset
from tidemark.shared.model.processors import Expected, ProcessorRow
from tidemark.shared.ports.blobs import BlobError, BlobUnavailable, Note
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.runtime.topics import MARKERS_PREFIX
from tidemark.shared.wire.frames import decode_frame
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.messages import decode_command, decode_report

T = TypeVar("T")
_PREFIX: Final = "tidemark."
SCHEME: Final = "simulated"
"""Of the addresses by which Spark's executors find blobs."""


class Mortal(Protocol):
    """Who writes, and may die of it."""

    book: Book

    @property
    def service(self) -> str:
        """Which kind of process it is."""
        ...

    @property
    def dead(self) -> bool:
        """It has died."""
        ...

    def die(self, how: str, *, arrives: bool) -> None:
        """End at once. `arrives`: a part of what was under way still takes effect."""
        ...


class Watcher(Protocol):
    """Sees every effect as it happens."""

    def committed(self, commit: CommitRow, row: ProcessorRow) -> None: ...
    def published(self, name: str, data: bytes) -> None: ...
    def released(self, manifest: Manifest) -> None: ...
    def moved(self, identity: str, epoch: int) -> None: ...
    def blobs_deleted(self, names: Sequence[str]) -> None: ...
    def records_deleted(self, at: TopicPartition, before: Offset) -> None: ...
    def topics_deleted(self, topics: Sequence[str]) -> None: ...


def strikes(who: Mortal, write: str, side: Side) -> bool:
    """Whether the process dies here, or is dead already: its last step runs on until it waits, and must have no effect."""
    if who.dead:
        return True
    name = f"{who.service} {write}"
    if not who.book.crosses(name, side):
        return False
    who.die(f"{side} {name}", arrives=side == "after")
    return True


async def never() -> Any:
    """What a dead process' call comes to. Its steps are not run any more."""
    await asyncio.get_running_loop().create_future()


async def named(who: Mortal, write: str, act: Coroutine[Any, Any, T]) -> T:
    """A durable write under its name."""
    if strikes(who, write, "before"):
        act.close()
        await never()
    result = await act
    if strikes(who, write, "after"):
        await never()
    return result


def write_of(topic: str, value: bytes | None) -> str:
    """What a record is, for its name."""
    if topic.startswith(MARKERS_PREFIX):
        return "marker"
    if not topic.startswith(_PREFIX):
        return "output"
    kind = topic.removeprefix(_PREFIX)
    try:
        match kind:
            case "commands":
                return f"command {type(decode_command(value or b'')).__name__}"
            case "reports":
                return f"report {type(decode_report(value or b'')).__name__}"
            case "requests" | "registry" | "answers" | "flow" | "samples" | "connections" | "redrives":
                return kind
        if kind.endswith(".commits"):
            return "mirror"
        return f"edge {type(decode_frame(value or b'')).__name__}"
    except WireError:
        return f"unreadable in {kind}"


class SimWriter(MemoryWriter):
    """A writer at whose appends its process may die."""

    def __init__(self, who: Mortal, *given: Any) -> None:
        super().__init__(*given)
        self._who = who

    def _record(self, partition: TopicPartition, count: int) -> Any:
        lane = self._lanes[partition]
        if not count or not lane:
            return super()._record(partition, count)
        write = write_of(partition.topic, lane[0][0].value)
        if strikes(self._who, write, "before"):
            return [], Offset(0)
        done = super()._record(partition, count)
        strikes(self._who, write, "after")
        return done

    def perish(self, *, arrives: bool) -> None:
        """The process is gone: of what it had handed over a part arrives, or nothing."""
        if self._error is None and arrives:
            for partition, lane in self._lanes.items():
                super()._record(partition, self._faults.part(len(lane)))
        for lane in self._lanes.values():
            lane.clear()


class SimTransactionalWriter(MemoryTransactionalWriter):
    """A transactional writer at whose writes its process may die; what it leaves open the broker ends later."""

    def __init__(self, who: Mortal, *given: Any) -> None:
        super().__init__(*given)
        self._who = who

    async def send(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Offset | None:
        """Carry records over."""
        kind = write_of(partition.topic, records[0].value) if len(records) else "nothing"
        return await named(self._who, f"txn {kind}", super().send(partition, records))

    async def end(self, operation: Literal["commit", "abort"], state: Literal["committed", "aborted"]) -> None:
        """End the open transaction."""
        await named(self._who, f"txn {operation}", super().end(operation, state))


class SimLog(MemoryLog):
    """A process' client of the broker."""

    def __init__(self, who: Mortal, broker: MemoryBroker, faults: LinkFaults, watcher: Watcher) -> None:
        super().__init__(broker, faults)
        self._who = who
        self._watcher = watcher

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None = None) -> None:
        """See `Log.create_topic`."""
        await named(self._who, "topic create", super().create_topic(topic, partitions, config))

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """See `Log.delete_topics`."""
        self._watcher.topics_deleted(topics)
        await named(self._who, "topic delete", super().delete_topics(topics))

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """See `Log.delete_records`."""
        for at, offset in before.items():
            self._watcher.records_deleted(at, offset)
        await named(self._who, "records delete", super().delete_records(before))

    async def note_offsets(self, group: str, offsets: Mapping[TopicPartition, Offset]) -> None:
        """See `Log.note_offsets`."""
        await named(self._who, "offsets note", super().note_offsets(group, offsets))

    async def writer(self, client: str) -> MemoryWriter:
        """See `Log.writer`."""
        writer = SimWriter(self._who, self._broker, self._faults, client, self._buffer_records_max)
        self._keep(writer)
        return writer

    async def transactional_writer(self, identity: str) -> MemoryTransactionalWriter:
        """See `Log.transactional_writer`."""
        return await named(self._who, "txn init", self._initialised(identity))

    async def _initialised(self, identity: str) -> MemoryTransactionalWriter:
        lost = await self._ask("init")
        epoch = self._broker.open_identity(identity)
        self._answer(lost, "init")
        writer = SimTransactionalWriter(self._who, self._broker, self._faults, identity, epoch)
        self._keep(writer)
        return writer

    def perish(self, *, arrives: bool) -> None:
        """The process is gone."""
        for part in self._opened:
            if isinstance(part, SimWriter):
                part.perish(arrives=arrives)


class SimStore(MemoryCommitStore):
    """A coordinator's client of the store."""

    def __init__(self, who: Mortal, state: MemoryCommitState, faults: LinkFaults, watcher: Watcher) -> None:
        super().__init__(state, faults)
        self._who = who
        self._watcher = watcher

    async def lead(
        self,
        holder: str,
        lease_ms: int,
        now_ms: int,
        told: int = 0,
        led: LeaderToken = NO_LEADER,
        looked_ms: int | None = None,
    ) -> LeaderToken | None:
        """See `CommitStore.lead`."""
        return await named(self._who, "store lead", super().lead(holder, lease_ms, now_ms, told, led, looked_ms))

    async def renew(self, token: LeaderToken, lease_ms: int, now_ms: int) -> bool:
        """See `CommitStore.renew`."""
        return await named(self._who, "store renew", super().renew(token, lease_ms, now_ms))

    async def create(self, row: ProcessorRow) -> None:
        """See `CommitStore.create`."""
        await named(self._who, "store create", super().create(row))

    async def update(self, expected: Expected, row: ProcessorRow) -> None:
        """See `CommitStore.update`."""
        await named(self._who, "store update", super().update(expected, row))

    async def new_generation(self, expected: Expected, row: ProcessorRow, entry: LineageEntry) -> None:
        """See `CommitStore.new_generation`."""
        await named(self._who, "store generation", super().new_generation(expected, row, entry))

    async def commit(self, expected: Expected, row: ProcessorRow, commit: CommitRow) -> None:
        """See `CommitStore.commit`."""
        await named(self._who, "store commit", super().commit(expected, row, commit))

    async def drop(self, expected: Expected) -> None:
        """See `CommitStore.drop`."""
        await named(self._who, "store drop", super().drop(expected))

    async def forget(
        self, leader: LeaderToken, job: JobId, epochs: Sequence[Epoch], generations: Sequence[Generation] = ()
    ) -> None:
        """See `CommitStore.forget`."""
        await named(self._who, "store forget", super().forget(leader, job, epochs, generations))

    async def put_connection(self, leader: LeaderToken, name: str, value: str | None) -> None:
        """See `CommitStore.put_connection`."""
        await named(self._who, "store connection", super().put_connection(leader, name, value))


class WatchedState(MemoryCommitState):
    """The store's content, that tells of each commit as it happens."""

    def __init__(self, watcher: Watcher) -> None:
        super().__init__()
        self._watcher = watcher
        self.commits = _ToldCommits(self, watcher)

    def put_commits(self, commits: Mapping[JobId, Mapping[Epoch, CommitRow]]) -> None:
        """Other commit rows take the place of these: nothing is committed by that."""
        told = _ToldCommits(self, self._watcher)
        for job, rows in commits.items():
            told.setdefault(job).update(rows)
        self.commits = told


class _ToldCommits(dict[JobId, dict[Epoch, CommitRow]]):
    """Commit rows by job; a job's rows tell of what is added."""

    def __init__(self, state: MemoryCommitState, watcher: Watcher) -> None:
        super().__init__()
        self._state = state
        self._watcher = watcher

    def setdefault(self, job: JobId, default: Any = None) -> dict[Epoch, CommitRow]:
        if job not in self:
            self[job] = _ToldRows(self._told)
        return self[job]

    def _told(self, commit: CommitRow) -> None:
        row = next(row for row in self._state.rows.values() if row.job == commit.job)
        self._watcher.committed(commit, row)


class _ToldRows(dict[Epoch, CommitRow]):
    def __init__(self, told: Callable[[CommitRow], None]) -> None:
        super().__init__()
        self._told = told

    def __setitem__(self, epoch: Epoch, commit: CommitRow) -> None:
        super().__setitem__(epoch, commit)
        self._told(commit)


class SimBlobs:
    """`BlobStore` of a process on the objects that all share, by name. `authority`: its own in addresses of blobs."""

    def __init__(
        self, who: Mortal, objects: dict[str, bytes], faults: LinkFaults, watcher: Watcher, authority: str
    ) -> None:
        self.authority = authority
        self._who = who
        self._objects = objects
        self._faults = faults
        self._watcher = watcher

    async def put(self, name: str, data: bytes) -> BlobRef:
        """See `BlobStore.put`."""
        return await named(self._who, "blob put", self._put(name, data))

    async def _put(self, name: str, data: bytes) -> BlobRef:
        async def act() -> BlobRef:
            if name in self._objects:
                raise BlobError(f"blob {name}: the name is taken; every attempt needs a name of its own")
            self._objects[name] = data
            return BlobRef(name, *digest_of([data]))

        return await self._asked("blob.write", name, act)

    async def get(self, ref: BlobRef) -> bytes:
        """See `BlobStore.get`."""

        async def act() -> bytes:
            odd = self._odd("get")
            if ref.name not in self._objects or odd == "missing":
                raise BlobError(f"blob {ref.name}: it is not there; restore the store, or resume from an earlier one")
            data = self._objects[ref.name] if odd != "swapped" else b"of another"
            if digest_of([data]) != (ref.size_bytes, ref.digest):
                raise BlobError(f"blob {ref.name}: expected SHA-256 {ref.digest}; it was changed or cut")
            return data

        return await self._asked("blob.read", ref.name, act)

    async def folders(self) -> list[str]:
        """See `BlobStore.folders`."""

        async def act() -> list[str]:
            return sorted({name.partition("/")[0] for name in self._objects})

        return await self._asked("blob.read", "all", act)

    async def list(self, prefix: str) -> list[str]:
        """See `BlobStore.list`."""

        async def act() -> list[str]:
            found = sorted(name for name in self._objects if name.startswith(prefix))
            return found[: len(found) // 2] if self._odd("list") == "late" else found

        return await self._asked("blob.read", prefix, act)

    async def delete(self, names: Sequence[str]) -> None:
        """See `BlobStore.delete`."""

        async def act() -> None:
            for name in names:
                self._objects.pop(name, None)

        self._watcher.blobs_deleted(names)
        if names:
            await named(self._who, "blob delete", self._asked("blob.write", names[0], act))

    async def seal(self, name: str) -> BlobRef:
        """See `BlobStore.seal`."""

        async def act() -> BlobRef:
            return BlobRef(name, *digest_of([self._objects[name]]))

        return await named(self._who, "blob seal", self._asked("blob.write", name, act))

    def note(self, name: str) -> Note:
        """See `BlobStore.note`."""
        return _SimNote(self._who, self._objects, name)

    async def read_note(self, name: str) -> bytes:
        """See `BlobStore.read_note`."""

        async def act() -> bytes:
            if name not in self._objects:
                raise BlobError(f"blob {name}: it is not there")
            return self._objects[name]

        return await self._asked("blob.read", name, act)

    def uri(self, name: str) -> str:
        """Where this process' executors find a blob."""
        return f"{SCHEME}://{self.authority}/{name}"

    def read_now(self, name: str) -> bytes:
        """As an executor reads. OSError."""
        self._executor("read")
        odd = self._odd("get")
        if name not in self._objects or odd == "missing":
            raise FileNotFoundError(name)
        return self._objects[name] if odd != "swapped" else b"of another"

    def write_now(self, name: str, data: bytes) -> None:
        """As an executor writes. OSError."""
        self._executor("write")
        if not strikes(self._who, "segment write", "before"):
            if name in self._objects:
                raise FileExistsError(name)
            self._objects[name] = data
            strikes(self._who, "segment write", "after")

    def _executor(self, what: str) -> None:
        who, faults = self._who, self._faults
        odd = who.book.by_chance(f"{who.service} segment {what} fails", faults.weather.refused)
        if odd or faults.away or faults.deaf:
            raise OSError(f"simulated: the store cannot be reached to {what} a segment")

    def _odd(self, what: str) -> str:
        faults, book = self._faults, self._who.book
        kinds = {"get": ("missing", "swapped"), "list": ("late",)}[what]
        odd = [kind for kind in kinds if book.by_chance(f"{self._who.service} blob {kind}", faults.weather.odd_blobs)]
        return odd[0] if odd else ""

    async def _asked(self, operation: Operation, name: str, act: Callable[[], Awaitable[T]]) -> T:
        await self._faults.pause()
        fault = self._faults.draw(operation)
        if fault is Fault.REFUSED:
            raise BlobUnavailable(f"blob {name}: the store cannot be reached; try again")
        result = await act()
        await self._faults.pause()
        if fault is Fault.LOST_ANSWER:
            raise BlobUnavailable(f"blob {name}: the store did not answer; try again under another name")
        return result


class _SimNote:
    """A note, which each write replaces."""

    def __init__(self, who: Mortal, objects: dict[str, bytes], name: str) -> None:
        self._who = who
        self._objects = objects
        self._name = name

    def write(self, data: bytes) -> None:
        """See `Note.write`."""
        if not strikes(self._who, "note write", "before"):
            self._objects[self._name] = data
            strikes(self._who, "note write", "after")

    def close(self) -> None:
        """See `Note.close`."""
