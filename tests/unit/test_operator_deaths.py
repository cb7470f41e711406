"""A callback in which the process dies is found and given up; between deaths nobody pays, and nobody else is suspected."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.harness.computations import Seen
from tidemark.services.operator.deaths import Deaths
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.computation import Computation, Document, NoConfig, Record, Timer, Timers
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import Assign, RunningPlan
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.computation import batch_of_rows, row_of
from tidemark.shared.operators.compute import ComputeOperator
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import ComputeSpec
from tidemark.shared.ports.blobs import BlobStore
from tidemark.shared.protocol.coordinator.retention import blob_may_go
from tidemark.shared.runtime.settings import DeathSettings

JOB, VERTEX = JobId("0" * 32), VertexId("compute-1")
SETTINGS = DeathSettings(deaths_max=2, commits_watched=3)
_numbers = itertools.count()


class Died(BaseException):
    """Stands for the end of the process: nothing behind it is carried out."""


class Deadly(Computation[Seen, NoConfig]):
    """Ends the process at what says so."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more, or the end."""
        if record.value.get("deadly"):
            raise Died
        state.count += 1
        yield {"id": record.value["id"], "seen": state.count}


class DeadlyTimer(Deadly):
    """Takes records, and ends the process when its timer fires."""

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more, and a timer."""
        timers.set("t", record.timestamp + 10)
        yield {"id": record.value["id"]}

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Iterator[Document]:
        """The end."""
        raise Died


class DeadlyBatches(Computation[Seen, NoConfig]):
    """The same for batches."""

    State = Seen
    batch_schema = pa.schema([("id", pa.int64()), ("deadly", pa.bool_())])

    def process_batch(self, batch: pa.RecordBatch, state: Seen, timers: Timers) -> pa.RecordBatch:
        """So many more, or the end."""
        if any(batch.column("deadly").to_pylist()):
            raise Died
        state.count += batch.num_rows
        return batch.select(["id", "timestamp"])


def story(tell: Callable[[BlobStore], Coroutine[Any, Any, None]], folder: Path | None = None) -> None:
    """On a directory, or in memory."""

    async def main() -> None:
        executor = AsyncExecutor()
        await tell(MemoryBlobs(executor) if folder is None else DirectoryBlobs(folder, executor))
        await executor.close()

    asyncio.run(main())


async def begun(blobs: BlobStore, generation: int, last: int = 0) -> Deaths:
    """A task of a generation that restores a checkpoint, at its start."""
    plan = RunningPlan(1, "{}", {VERTEX: 1}, ())
    assign = Assign(
        WorkerIncarnation("w"), ProcessorName("p"), JOB, Generation(generation), (), Epoch(last), plan, VERTEX, 0
    )
    deaths = Deaths(blobs, assign, lambda: f"u{next(_numbers)}", SETTINGS)
    await deaths.open()
    return deaths


def operator(deaths: Deaths | None, computation: type = Deadly) -> ComputeOperator:
    """The operator of a computation of this module."""
    stage = {"class": f"{__name__}:{computation.__name__}", "key": "$k"}
    document = {
        "pipeline": [{"$source": {"documents": []}}, {"$compute": stage}, {"$emit": {"path": "/x", "format": "json"}}]
    }
    (compute,) = [s for s in parse(document).pipeline if type(s).__name__ == "Compute"]
    return ComputeOperator(ComputeSpec(compute, from_source=True), TaskContext("p", topic="t", guard=deaths))  # type: ignore[arg-type]


def rows(*ids: int, deadly: int = -1) -> pa.RecordBatch:
    """Records of one key, a second apart, at the places of their numbers in partition 3."""
    return batch_of_rows([row_of("a", {"id": i, "k": "a", "deadly": i == deadly}, 1_000 * i, (3, i)) for i in ids])


def ids(outs: list[Out], port: str) -> list[Any]:
    """Of what came out there."""
    found = [d for out in outs if out.port == port for d in documents_of(out.batch)]
    return [d["id"] if port == OUT else (d["doc"]["id"], d["_stream_meta"]["source"]) for d in found]


def survives(task: ComputeOperator, deadly: int) -> list[Out] | None:
    """What comes out of six records; None if the process died."""
    try:
        return [*task.on_batch(rows(*range(6), deadly=deadly), "rows", ""), *task.on_watermark(MAX_TIME)]
    except Died:
        return None


def _lives(computation: type, folder: Path | None) -> None:
    async def tell(blobs: BlobStore) -> None:
        lives: list[bool] = []
        outs: list[Out] | None = None
        for generation in range(1, 5):
            deaths = await begun(blobs, generation)
            lives.append(deaths.watching)
            outs = survives(operator(deaths, computation), deadly=4)
            if outs is not None:
                break
        assert lives == [False, True, True, True], "the first death names nobody, two more name the record"
        assert outs is not None
        assert ids(outs, OUT) == [0, 1, 2, 3, 5]
        assert ids(outs, DLQ) == [(4, {"partition": 3, "topic": "t", "offset": 4})]
        (letter,) = [d for out in outs if out.port == DLQ for d in documents_of(out.batch)]
        assert letter["errInfo"]["code"] == "ComputationFailed"
        assert "ended 2 times" in letter["errInfo"]["reason"]

    story(tell, folder)


def test_a_record_that_ends_the_process_is_given_up_and_has_a_letter_with_its_place(tmp_path: Path) -> None:
    """After one death that names nobody, and two in the same callback; whatever else waits is applied."""
    _lives(Deadly, tmp_path)


def test_it_is_found_in_an_object_store_too() -> None:
    """Notes are objects that are written anew where a file cannot stay open."""
    _lives(Deadly, None)


def test_while_deaths_are_watched_batches_are_applied_record_by_record() -> None:
    """So that the one that kills is told from those beside it."""
    _lives(DeadlyBatches, None)


def test_a_timer_that_ends_the_process_is_given_up(tmp_path: Path) -> None:
    """Its letter says which timer of which key; it stands at no place of the source. The key's records are applied."""

    async def tell(blobs: BlobStore) -> None:
        outs: list[Out] = []
        for generation in range(1, 5):
            task = operator(await begun(blobs, generation), DeadlyTimer)
            try:
                outs = [*task.on_batch(rows(0), "rows", ""), *task.on_watermark(MAX_TIME)]
            except Died:
                assert generation < 4
        (letter,) = [d for out in outs if out.port == DLQ for d in documents_of(out.batch)]
        assert (letter["doc"]["key"], letter["doc"]["timer"]) == ("a", "t")
        assert letter["_stream_meta"]["source"] == {}
        assert "ended 2 times" in letter["errInfo"]["reason"]
        assert ids(outs, OUT) == [0]

    story(tell, tmp_path)


def test_deaths_outside_of_callbacks_name_nobody() -> None:
    """A worker that is killed again and again while it waits loses no record."""

    async def tell(blobs: BlobStore) -> None:
        for generation in range(1, 8):
            deaths = await begun(blobs, generation)
            outs = survives(operator(deaths), deadly=-1)
            assert outs is not None
            assert ids(outs, OUT) == list(range(6))
            assert ids(outs, DLQ) == []

    story(tell)


def test_a_task_that_was_closed_in_good_order_leaves_nothing_to_watch() -> None:
    """A stop, a rescale or another task's failure is no death."""

    async def tell(blobs: BlobStore) -> None:
        (await begun(blobs, 1)).close()
        assert not (await begun(blobs, 2)).watching

    story(tell)


def test_between_deaths_nothing_is_written_between_records() -> None:
    """The guard is not even asked."""

    class Untouched(Deaths):
        def enter(self, call: bytes) -> str | None:
            raise AssertionError(call)

    async def tell(blobs: BlobStore) -> None:
        deaths = await begun(blobs, 1)
        deaths.__class__ = Untouched
        assert ids(survives(operator(deaths), deadly=-1) or [], OUT) == list(range(6))

    story(tell)


def test_watching_ends_with_the_commits(tmp_path: Path) -> None:
    """So many after the death; and what was noted before a commit goes with it, by the rule for all blobs (C12)."""

    async def tell(blobs: BlobStore) -> None:
        await begun(blobs, 1)
        deaths = await begun(blobs, 2)
        for epoch in range(1, SETTINGS.commits_watched + 1):
            assert deaths.watching
            doomed = [n for n in await blobs.list(JOB) if blob_may_go(n, JOB, Epoch(epoch), frozenset())]
            assert doomed
            await blobs.delete(doomed)
            deaths.committed(Epoch(epoch))
        assert not deaths.watching
        assert await blobs.list(JOB) == []
        assert not (await begun(blobs, 3, last=SETTINGS.commits_watched)).watching

    story(tell, tmp_path)


def test_a_death_behind_a_commit_still_counts(tmp_path: Path) -> None:
    """The callback that was suspected before it stays so: its count is carried into the new note."""

    async def tell(blobs: BlobStore) -> None:
        await begun(blobs, 1)
        for generation in (2, 3):
            deaths = await begun(blobs, generation)
            assert deaths.enter(b"x") is None
            if generation == 2:  # died in x once; a commit passes in the next life before x comes
                continue
            deaths.leave()
            deaths.committed(Epoch(2))
            assert deaths.enter(b"x") is None
        deaths = await begun(blobs, 4, last=2)
        assert "ended 2 times" in (deaths.enter(b"x") or "")

    story(tell, tmp_path)
