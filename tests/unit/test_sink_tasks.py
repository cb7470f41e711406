# ruff: noqa: N802 -- a test carries its rule's name
"""A sink's task: takes identities over first (S1), releases what the mirror says and nothing else (S2, C9), obeys an order (S6)."""

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.harness.worker_stand import JOB, TOPICS, WorkerStand, working
from tidemark.services.sink.body import SinkBody
from tidemark.services.sink.connectors.memory import MemorySink, MemoryTarget
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import MirrorRow, ReleaseHandle
from tidemark.shared.model.frames import Inline
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import Epoch, Generation, JobId, LeaderToken, VertexId
from tidemark.shared.model.messages import Ack, CommitHint, Drain, Released, TaskFailed, TaskRestored
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS, WEND, WSTART
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.body import Copied
from tidemark.shared.runtime.mirror import MirrorWriter
from tidemark.shared.runtime.upkeep import create_mirror
from tidemark.shared.wire.arrow import encode_batch
from tidemark.shared.wire.messages import encode_message

COLLECT = VertexId("collect-1")


class WatchedSink(MemorySink):
    """Notes what it is asked, and fails as the test says."""

    def __init__(self, target: MemoryTarget, log: list[str], trouble: list[BaseException]) -> None:
        super().__init__(target)
        self._log, self._trouble = log, trouble

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        self._log.append(f"open {identity.index}")
        return await super().open(identity, restored_from, joins=joins)

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        self._log.append(f"accept {batch.num_rows}")
        refused = pc.equal(batch.column(TS), 666)
        await super().accept(batch.filter(pc.invert(refused)))
        return [Rejected(row, "refused") for row, is_it in enumerate(refused.to_pylist()) if is_it]

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        self._log.append(f"release {row.epoch}")
        if self._trouble:
            raise self._trouble.pop(0)
        await super().release(row, staged)

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        self._log.append(f"skip {row.epoch}")
        return await super().skip(row, staged)


class Bench:
    """A worker that hosts sink tasks on one target, and the mirror of the job."""

    def __init__(self, stand: WorkerStand, target: MemoryTarget, log: list[str], trouble: list[BaseException]) -> None:
        self.stand, self.target, self.log, self.trouble = stand, target, log, trouble

    async def mirror(self, *rows: MirrorRow) -> None:
        writer = MirrorWriter(MemoryLog(self.stand.broker), TOPICS.commits)
        for row in rows:
            # A row of whatever job, into this job's topic.
            await writer.append(JOB, encode_message(row), LeaderToken(1))
        await writer.close()

    def visible(self) -> list[tuple[int, int]]:
        """(epoch, event time) of what readers see."""
        return [(e, t) for _, e, batch in self.target.released for t in batch.column(TS).to_pylist()]

    async def staged(self, epoch: int, committed: int, *values: int, index: int = 0) -> bytes:
        """Output of an identity, as an earlier generation staged it."""
        sink = MemorySink(self.target)
        await sink.open(Identity(JOB, COLLECT, index), Epoch(committed), joins=True)
        await sink.accept(pa.RecordBatch.from_pydict({TS: pa.array(values, pa.int64())}))
        return await sink.stage(Epoch(epoch), Epoch(committed))


def row(epoch: int, predecessor: int, *staged: bytes, job: JobId = JOB, digest: str | None = None) -> MirrorRow:
    handles = tuple(
        ReleaseHandle(COLLECT, index, data, digest or sha256(data).hexdigest()) for index, data in enumerate(staged)
    )
    return MirrorRow(job, Epoch(epoch), Epoch(predecessor), Generation(1), handles)


def on_bench(story: Callable[[Bench], Awaitable[None]], *, rejected_to_dlq: bool = True) -> None:
    target, log, trouble = MemoryTarget(), list[str](), list[BaseException]()

    def make(context: Any) -> Any:
        return SinkBody(context, lambda *_: WatchedSink(target, log, trouble), rejected_to_dlq=rejected_to_dlq)

    async def main(world: VirtualWorld) -> None:
        async with working(world, make=make) as stand:
            await create_mirror(JOB, MemoryLog(stand.broker), TOPICS)
            await story(Bench(stand, target, log, trouble))

    run_virtual(main)


def test_S1_all_that_is_committed_is_released_before_the_task_has_restored() -> None:
    """Under every identity that the task holds, its own and those of earlier generations; only then does it say that it stands."""

    async def story(bench: Bench) -> None:
        one, two = await bench.staged(3, 0, 10), await bench.staged(3, 0, 20, index=1)
        assign = bench.stand.assign(2, last=Epoch(3), retired=((COLLECT, 1),))
        await bench.stand.tell(assign)
        await bench.stand.settle()
        assert await bench.stand.reports(TaskRestored) == []
        await bench.mirror(row(3, 0, one, two))
        await bench.stand.said(TaskRestored)
        assert sorted(bench.visible()) == [(3, 10), (3, 20)]
        assert bench.log[:2] == ["open 0", "open 1"]
        released = await bench.stand.said(Released, 2)
        assert {(r.index, r.epoch) for r in released} == {(0, 3), (1, 3)}

    on_bench(story)


def test_S2_commits_are_learned_from_the_mirror_and_released_in_their_order() -> None:
    """Empty ones too, and repeats change nothing; what the mirror does not have is not released, whatever else is said."""

    async def story(bench: Bench) -> None:
        staged = await bench.staged(5, 0, 10)
        await bench.stand.tell(bench.stand.assign(1))
        await bench.stand.said(TaskRestored)
        await bench.stand.tell(
            CommitHint(JOB, Generation(1), Epoch(5)), Drain(JOB, Generation(1), VertexId("x"), 0, {})
        )
        await bench.stand.settle()
        assert bench.visible() == []
        await bench.mirror(row(5, 0, staged), row(6, 5), row(5, 0, staged), row(9, 6))
        await bench.stand.until(lambda: bench.target.markers[Identity(JOB, COLLECT, 0)] == 9)
        assert bench.visible() == [(5, 10)]
        assert [line for line in bench.log if line.startswith("release")] == ["release 5", "release 6", "release 9"]

    on_bench(story)


def test_S2_a_missing_commit_stops_the_release() -> None:
    """A row whose predecessor has not been released is an error of the task; nothing of it is visible."""

    async def story(bench: Bench) -> None:
        staged = await bench.staged(6, 5, 10)
        bench.target.markers.clear()
        await bench.stand.tell(bench.stand.assign(1))
        await bench.stand.said(TaskRestored)
        await bench.mirror(row(6, 5, staged))
        (failed,) = await bench.stand.said(TaskFailed)
        assert "commit 6 follows 5, but the marker of this output stands at 0" in failed.reason
        assert bench.visible() == []

    on_bench(story)


def test_C9_rows_of_another_job_are_nothing_and_a_changed_handle_is_refused() -> None:
    """Numbers of another history do not count; a handle that is not what was committed, by its digest, is never released."""

    async def story(bench: Bench) -> None:
        staged = await bench.staged(5, 0, 10)
        await bench.stand.tell(bench.stand.assign(1))
        await bench.stand.said(TaskRestored)
        await bench.mirror(row(90, 0, staged, job=JobId("f" * 32)))
        await bench.stand.settle()
        assert bench.visible() == []
        assert await bench.stand.reports(TaskFailed) == []
        await bench.mirror(row(5, 0, staged, digest="0" * 64))
        (failed,) = await bench.stand.said(TaskFailed)
        assert failed.permanent
        assert "the mirror was changed" in failed.reason
        assert bench.visible() == []

    on_bench(story)


def test_C10_a_target_that_is_away_is_waited_for() -> None:
    """The release is tried again until it is there; the task does not fail."""

    async def story(bench: Bench) -> None:
        staged = await bench.staged(5, 0, 10)
        await bench.stand.tell(bench.stand.assign(1))
        await bench.stand.said(TaskRestored)
        bench.trouble += [TargetUnavailable("away")] * 3
        await bench.mirror(row(5, 0, staged))
        await bench.stand.until(lambda: bench.visible() == [(5, 10)])
        assert bench.log.count("release 5") == 4
        assert await bench.stand.reports(TaskFailed) == []

    on_bench(story)


def test_C11_a_release_that_waits_keeps_nothing_from_being_staged() -> None:
    """Epochs go on while the target is away; the wait is told with what is waited for and since when, and no more once it is over."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        await body.apply("", [_inline(1)])
        first = await _copied(body, Epoch(1), Epoch(0))
        bench.trouble += [TargetUnavailable("away")] * 1_000
        clock = bench.stand.world.clock
        began_ms = clock.now_ms()
        await bench.mirror(row(1, 0, first.staged))
        await bench.stand.until(lambda: bool(_waits(bench)))
        await body.apply("", [_inline(2)])
        second = await _copied(body, Epoch(2), Epoch(1))
        await bench.stand.settle()
        (wait,) = _waits(bench)
        assert (wait.kind, wait.doing, wait.on, wait.reason) == ("target", "releasing 1", "memory", "away")
        assert began_ms <= wait.since_ms < clock.now_ms()
        assert bench.visible() == []
        bench.trouble.clear()
        await bench.mirror(row(2, 1, second.staged))
        await bench.stand.until(lambda: bench.visible() == [(1, 1), (2, 2)])
        assert _waits(bench) == ()

    on_bench(story)


def test_C11_a_release_is_told_when_it_has_happened_and_not_before() -> None:
    """A commit whose release was told is kept no longer: while the target is away it is not told."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        await body.apply("", [_inline(1)])
        staged = await _copied(body, Epoch(1), Epoch(0))
        bench.trouble += [TargetUnavailable("away")] * 1_000
        await bench.mirror(row(1, 0, staged.staged))
        await bench.stand.until(lambda: bool(_waits(bench)))
        await bench.stand.settle()
        assert [told.epoch for told in await bench.stand.reports(Released) if told.epoch > 0] == []
        bench.trouble.clear()
        await bench.stand.until(lambda: bench.visible() == [(1, 1)])
        await bench.stand.settle()
        assert [told.epoch for told in await bench.stand.reports(Released) if told.epoch > 0] == [1]

    on_bench(story)


def test_C10_two_activities_that_wait_are_told_side_by_side() -> None:
    """A release that goes on does not end the word of a staging that still waits."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        (hosted,) = bench.stand.worker._tasks.values()
        staging = Wait("blobs", "staging 2", "memory", 5, "full")
        hosted.waiting.note("staging", staging, 0)
        first = await _copied(body, Epoch(1), Epoch(0))
        bench.trouble.append(TargetUnavailable("away"))
        await bench.mirror(row(1, 0, first.staged))
        await bench.stand.until(lambda: len(_waits(bench)) > 1)
        assert [wait.doing for wait in _waits(bench)] == ["staging 2", "releasing 1"]
        await bench.stand.until(lambda: bench.target.markers[Identity(JOB, COLLECT, 0)] == 1)
        assert _waits(bench) == (staging,)

    on_bench(story)


def test_S6_a_refusal_at_release_is_permanent_and_only_an_order_passes_it_over() -> None:
    """The failure says so; a later generation that is told to skip this commit of this identity does, and no other."""

    async def story(bench: Bench) -> None:
        staged = await bench.staged(5, 0, 10)
        await bench.stand.tell(bench.stand.assign(1))
        await bench.stand.said(TaskRestored)
        bench.trouble.append(TargetRefused("commit 5, record 0: too large"))
        await bench.mirror(row(5, 0, staged), row(6, 5))
        (failed,) = await bench.stand.said(TaskFailed)
        assert failed.permanent
        assert "commit 5, record 0: too large" in failed.reason
        bench.log.clear()
        skips = ((COLLECT, 0, Epoch(5)), (COLLECT, 1, Epoch(6)))
        await bench.stand.tell(bench.stand.assign(2, last=Epoch(6), skips=skips))
        await bench.stand.said(TaskRestored, 2)
        assert bench.log == ["open 0", "skip 5", "release 6"]

    on_bench(story)


def test_S6_what_the_target_would_refuse_goes_to_the_dead_letters_before_staging() -> None:
    """The row comes out on the port of dead letters with the target's reason; the rest of the epoch is taken."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        outs = [*await body.apply("", [_inline(666), _inline(7)]), *await body.flush(Epoch(1))]
        assert [(out.port, out.batch.num_rows) for out in outs] == [("dlq", 1)]
        copied = await _copied(body, Epoch(1), Epoch(0))
        await bench.mirror(row(1, 0, copied.staged))
        await bench.stand.until(lambda: bench.visible() == [(1, 7)])

    on_bench(story)


def test_a_letter_of_a_row_that_is_no_record_invents_nothing() -> None:
    """A window's row has places of the engine's own: its letter names none, and is of the time at which it is made."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        columns = {
            TS: pa.array([666], pa.int64()),
            PART: pa.array([3], pa.int32()),
            POS: pa.array([17], pa.int64()),
            "id": pa.array([1]),
        }
        record = pa.RecordBatch.from_pydict({**columns, ARRIVAL: pa.array([1234], pa.int64())})
        window = {WSTART: pa.array([0], pa.int64()), WEND: pa.array([667], pa.int64())}
        row = pa.RecordBatch.from_pydict({**columns, **window})
        outs = [*await body.apply("", [Inline("rows", 1, encode_batch(batch)) for batch in (record, row)])]
        outs += await body.flush(Epoch(1))
        of_record, of_row = (documents_of(out.batch)[0] for out in outs)
        assert of_record["_stream_meta"]["source"]["offset"] == 17
        assert int(of_record["dlqTime"]) == 1234
        assert of_row["_stream_meta"]["source"] == {}
        assert int(of_row["dlqTime"]) == bench.stand.world.clock.now_ms()

    on_bench(story)


def test_E1_at_the_end_all_letters_of_rows_come_before_it() -> None:
    """Rows that are held for a larger batch go to the target with the highest watermark, and with no lower one."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        assert [*await body.apply("", [_inline(666)]), *await body.advance(5)] == []
        assert [out.port for out in await body.advance(MAX_TIME)] == ["dlq"]

    on_bench(story)


def test_frames_of_an_epoch_go_to_the_target_together() -> None:
    """Those of one schema; one of another does not wait behind them, and the order stays."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        bench.log.clear()
        await body.apply("", [_inline(1), _inline(2)])
        await body.apply("", [_inline(3)])
        other = pa.RecordBatch.from_pydict({TS: pa.array([4], pa.int64()), "more": pa.array([1])})
        assert bench.log == []
        await body.apply("", [Inline("rows", 1, encode_batch(other))])
        assert bench.log == ["accept 3"]
        copied = await _copied(body, Epoch(1), Epoch(0))
        assert bench.log == ["accept 3", "accept 1"]
        await bench.mirror(row(1, 0, copied.staged))
        await bench.stand.until(lambda: bench.visible() == [(1, 1), (1, 2), (1, 3), (1, 4)])

    on_bench(story)


def test_S6_a_dead_letter_that_is_refused_is_an_error() -> None:
    """There is nowhere left to put it: the task fails for good instead of dropping it."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        await body.apply("", [_inline(666)])
        with pytest.raises(TargetRefused, match="the target of the dead letters refuses one"):
            await body.flush(Epoch(1))

    on_bench(story, rejected_to_dlq=False)


def test_C7_an_epoch_is_staged_with_the_snapshot_and_seen_by_nobody() -> None:
    """The handle of everything after the last commit goes into the ack; readers see nothing before the mirror has the commit."""

    async def story(bench: Bench) -> None:
        body = await _opened(bench)
        await body.apply("", [_inline(1)])
        await _copied(body, Epoch(1), Epoch(0))  # aborted
        await body.apply("", [_inline(2)])
        copied = await _copied(body, Epoch(2), Epoch(0))
        await bench.stand.settle()
        assert bench.visible() == []
        await bench.mirror(row(2, 0, copied.staged))
        await bench.stand.until(lambda: bench.visible() == [(2, 1), (2, 2)])
        assert await bench.stand.reports(Ack) == []

    on_bench(story)


async def _opened(bench: Bench) -> Any:
    await bench.stand.tell(bench.stand.assign(1))
    await bench.stand.said(TaskRestored)
    (hosted,) = bench.stand.worker._tasks.values()
    assert hosted.driver is not None
    return hosted.driver.body


def _waits(bench: Bench) -> tuple[Wait, ...]:
    """As the next heartbeat tells them."""
    return tuple(wait for task in bench.stand.worker._heartbeat().tasks for wait in task.waiting)


async def _copied(body: SinkBody, epoch: Epoch, committed: Epoch) -> Copied:
    """Flushed, then copied, as the machine has it."""
    await body.flush(epoch)
    return await body.copy(epoch, committed)


def _inline(time_ms: int) -> Inline:
    batch = pa.RecordBatch.from_pydict({TS: pa.array([time_ms], pa.int64()), "id": pa.array([time_ms])})
    return Inline("rows", 1, encode_batch(batch))
