"""A sink's task: takes rows into the epoch, stages with the snapshot, releases the commits that the mirror has (protocol, section 6).

Release goes on beside: it learns of commits from the mirror alone (S2, C9), in the order of commits, and never from a hint. A release that
waits for its target does not keep rows from being staged: checkpoints go on until C11 holds sources back.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
import structlog

from tidemark.services.sink.connectors.staging import blobs_of
from tidemark.services.sink.settings import SinkSettings
from tidemark.shared.language.values.extended_json import to_json
from tidemark.shared.model.checkpoint import MirrorRow, ReleaseHandle
from tidemark.shared.model.frames import Body
from tidemark.shared.model.ids import Epoch, Offset, StatePart, VertexId
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.dead_letters import WOULD_REFUSE, RowFailure, dead_letters
from tidemark.shared.operators.in_order import InOrder
from tidemark.shared.operators.specs import InOrderSpec
from tidemark.shared.planning import WriteHead
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.ports.sink import Identity, SinkPort, TargetRefused, TargetUnavailable
from tidemark.shared.protocol.release import ReleaseMachine, ReleaseNow
from tidemark.shared.runtime.body import Copied, ReceivingBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.exchange import digest_of, load_body
from tidemark.shared.runtime.mirror import within
from tidemark.shared.runtime.reading import followed
from tidemark.shared.runtime.waiting import waiting
from tidemark.shared.wire.messages import decode_mirror_row

T = TypeVar("T")
_log = structlog.get_logger()
_DEFAULT: Final = SinkSettings()
_GATHERED_BYTES: Final = 1 << 20
"""Rows of one epoch go to the target together, so many bytes of them: then each batch has its cost, not each frame."""


@dataclass(slots=True)
class _Release:
    """One release identity that this task holds (S1)."""

    identity: Identity
    sink: SinkPort
    machine: ReleaseMachine


class SinkBody(ReceivingBody):
    """Its own identity, and those of earlier generations that it takes over until they are retired."""

    def __init__(
        self,
        context: AssignedTask,
        make: Callable[[VertexId, int], SinkPort],
        *,
        rejected_to_dlq: bool,
        settings: SinkSettings = _DEFAULT,
    ) -> None:
        self._context = context
        self._settings = settings
        self._make = make
        self._rejected_to_dlq = rejected_to_dlq
        self._releases: list[_Release] = []
        self._own: SinkPort | None = None
        self._follower: Handle | None = None
        self._watermark_ms = -(2**63)
        self._rows = 0
        self._rejected = 0
        self._skipped = 0
        self._recent: pa.RecordBatch | None = None
        self._held: list[pa.RecordBatch] = []
        """Of one schema, less than `_GATHERED_BYTES`, until the epoch ends."""
        self._held_bytes = 0
        self._in_order = _ordering(context)
        assign = context.assign
        self._topic = TopicPartition(context.outside.topics.commits(assign.job), 0)
        self._position = Offset(0)

    # --- takeover (S1) ----------------------------------------------------------------------------------------------------

    async def open(self, parts: Mapping[StatePart, bytes]) -> None:
        """Fence, read the markers, release all commits up to the checkpoint that is being restored; then follow the mirror."""
        if parts:
            message = f"{self._context.task}: a sink keeps no state, found {sorted(parts)}"
            raise ValueError(message)
        assign, outside = self._context.assign, self._context.outside
        identities = [(assign.vertex, assign.index), *assign.retired]
        for number, (vertex, index) in enumerate(identities):
            await self._take_over(vertex, index, own=number == 0)
        begin, end = await outside.log.begin_offsets([self._topic]), await outside.log.end_offsets([self._topic])
        self._position = within(assign.mirror, begin[self._topic], end[self._topic])
        await self._follow(lambda: all(r.machine.marker >= assign.last for r in self._releases))
        for release in self._releases[1:]:
            await release.sink.close()
        del self._releases[1:]
        self._own = self._releases[0].sink
        if not assign.release_only:
            self._follower = outside.executor.spawn(
                self._follow(lambda: False), f"{self._context.task} release", self._context.fail
            )

    async def _take_over(self, vertex: VertexId, index: int, *, own: bool) -> None:
        assign = self._context.assign
        sink = self._make(vertex, index)
        identity = Identity(assign.job, vertex, index)
        try:
            open_ = partial(sink.open, identity, assign.last, joins=own and assign.new_identity)
            marker = await self._patiently(sink, open_, "opening", identity)
        except BaseException:
            await sink.close()
            raise
        waiting_max = self._context.outside.settings.commits_waiting_max
        _log.info("sink.opened", identity=str(identity), marker=marker, restored_from=assign.last)
        self._releases.append(_Release(identity, sink, ReleaseMachine(assign.job, marker, waiting_max)))
        if marker == assign.last:
            self._context.released(index, marker)

    async def _patiently(
        self, sink: SinkPort, attempt: Callable[[], Awaitable[T]], doing: str, identity: Identity
    ) -> T:
        """C10: wait until an outage of the target ends, and tell the coordinator of it.

        `doing`: its first word names the activity, because a release waits beside the work of the epoch.
        """
        activity = f"{doing.partition(' ')[0]} {identity}"
        clock = self._context.outside.clock
        with waiting(self._context.waits, clock, activity, doing, sink.place) as away:
            while True:
                try:
                    return await attempt()
                except TargetUnavailable as error:
                    _log.warning("sink.target_away", what=doing, identity=str(identity), reason=str(error))
                    away(error, error.kind)
                await clock.sleep_ms(self._settings.target_wait_ms)

    # --- the mirror (C9) ----------------------------------------------------------------------------------------------------

    async def _follow(self, enough: Callable[[], bool]) -> None:
        outside, begin = self._context.outside, self._position
        rows = followed(
            outside.log, outside.clock, self._topic, outside.settings, begin=begin, goes_on=lambda: not enough()
        )
        async with aclosing(rows):
            async for record in rows:
                row = decode_mirror_row(record.value or b"", outside.settings.wire)
                for release in self._releases:
                    await self._mirrored(release, row)
                self._position = Offset(record.offset + 1)

    async def _mirrored(self, release: _Release, row: MirrorRow) -> None:
        step = release.machine.mirrored(row)
        while step is not None:
            step = await self._release(release, step)

    async def _release(self, release: _Release, step: ReleaseNow) -> ReleaseNow | None:
        row, identity = step.row, release.identity
        staged = _staged_of(row, identity)
        self._context.passing("releasing", row.epoch, identity.index)
        skips = (identity.vertex, identity.index, row.epoch) in self._context.assign.skips
        attempt = partial(release.sink.skip if skips else release.sink.release, row, staged)
        skipped = await self._patiently(release.sink, attempt, f"releasing {row.epoch}", identity)
        if skips:
            self._skipped += skipped or 0
            _log.warning("epoch.skipped", job=row.job, epoch=row.epoch, identity=str(identity), records=skipped)
        _log.info("epoch.released", job=row.job, epoch=row.epoch, identity=str(identity), staged_bytes=len(staged))
        self._context.passing("released", row.epoch, identity.index)
        following = release.machine.released(row.epoch)
        self._context.released(identity.index, row.epoch)
        return following

    # --- the epoch ------------------------------------------------------------------------------------------------------------

    async def apply(self, tag: str, bodies: Sequence[Body]) -> Sequence[Out]:
        """Rows go into the current epoch, many together; rows that the target would refuse go to the dead letters (S6)."""
        del tag
        outs: list[Out] = []
        outside = self._context.outside
        for body in bodies:
            batch = await load_body(outside.blobs, body, outside.settings.wire)
            if self._in_order is None:
                outs += await self._hold(batch)
            else:
                outs += await self._ordered(self._in_order.on_batch(batch, "rows", ""))
        return outs

    async def _ordered(self, given: Sequence[Out]) -> list[Out]:
        """Rows that are in their order now."""
        outs: list[Out] = []
        for out in given:
            outs += await self._hold(out.batch)
        return outs

    async def _hold(self, batch: pa.RecordBatch) -> list[Out]:
        outs: list[Out] = []
        if self._held and not batch.schema.equals(self._held[0].schema, check_metadata=True):
            outs += await self._accept()
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GATHERED_BYTES:
            outs += await self._accept()
        return outs

    async def _rest(self) -> list[Out]:
        """Hand over all rows that have come."""
        waiting = () if self._in_order is None else self._in_order.before_barrier()
        return [*await self._ordered(waiting), *await self._accept()]

    async def _accept(self) -> list[Out]:
        """Hand over the held rows, as one batch."""
        if not self._held:
            return []
        batch = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        self._held, self._held_bytes = [], 0
        context = self._context
        accept = partial(self._sink().accept, batch)
        rejected = await self._patiently(self._sink(), accept, "accepting", self._releases[0].identity)
        self._rows += batch.num_rows - len(rejected)
        self._remember(batch)
        self._rejected += len(rejected)
        if rejected and not self._rejected_to_dlq:
            message = f"{context.task}: the target of the dead letters refuses one: {rejected[0].reason}"
            raise TargetRefused(message)
        failures = [RowFailure(r.row, r.reason, WOULD_REFUSE) for r in rejected]
        now_ms = context.outside.clock.now_ms()
        return list(dead_letters(batch, failures, context.vertex.label, context.operators, now_ms=now_ms))

    def _remember(self, batch: pa.RecordBatch) -> None:
        """A copy of the last rows: a slice would hold the whole batch."""
        if batch.num_rows and isinstance(self._context.vertex.head, WriteHead):
            first = max(0, batch.num_rows - self._settings.sample_rows_max)
            self._recent = pa.concat_batches([batch.slice(first)])

    def sample(self, limit: int) -> Sequence[bytes]:
        """The last documents that came, newest last, within `sample_bytes_max`."""
        shown: list[bytes] = []
        size = 0
        recent = self._held[-1] if self._held else self._recent
        if recent is None or not isinstance(self._context.vertex.head, WriteHead):
            return ()
        last = recent.slice(max(0, recent.num_rows - min(limit, self._settings.sample_rows_max)))
        for document in reversed(documents_of(last)):
            data = msgspec.json.encode(to_json(document, canonical=False))
            size += len(data)
            if size > self._settings.sample_bytes_max:
                break
            shown.append(data)
        return shown[::-1]

    async def advance(self, watermark_ms: int) -> Sequence[Out]:
        """A sink only passes time on, for the dead letters that it sends; at the end they all come before it (E1)."""
        self._watermark_ms = max(self._watermark_ms, watermark_ms)
        return await self._rest() if watermark_ms == MAX_TIME else ()

    async def fire(self, now_ms: int) -> Sequence[Out]:
        """Nothing waits for processing time."""
        del now_ms
        return ()

    async def flush(self, epoch: Epoch) -> Sequence[Out]:
        """All rows of the epoch are in it."""
        del epoch
        return await self._rest()

    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        """Stage: durable at the target, visible to no reader (C7)."""
        sink = self._sink()
        stage = partial(sink.stage, epoch, committed)
        staged = await self._patiently(sink, stage, f"staging {epoch}", self._releases[0].identity)
        self._context.passing("staged", epoch)
        return Copied(blobs=blobs_of(staged, self._settings.staging.handle_bytes_max) if staged else (), staged=staged)

    def output_watermark(self) -> int:
        """The watermark of the input, ms: a sink holds none back."""
        return self._watermark_ms

    def next_processing_ms(self) -> int:
        """Never: a sink waits for no time."""
        return MAX_TIME

    def counters(self) -> Mapping[str, int]:
        """Rows accepted and rejected."""
        return {
            "rows": self._rows,
            "rejected": self._rejected,
            "skipped": self._skipped,
            "released": self._releases[0].machine.marker if self._releases else 0,
        }

    async def close(self) -> None:
        """Stop releasing; let go."""
        if self._follower is not None:
            self._follower.cancel()
            await self._follower.join()
        for release in self._releases:
            await release.sink.close()

    def _sink(self) -> SinkPort:
        if self._own is None:
            message = f"{self._context.task}: not opened"
            raise ValueError(message)
        return self._own


def _ordering(context: AssignedTask) -> InOrder | None:
    """Restores the order of rows of one key that come from several tasks of a Spark stage; None where none do."""
    inputs = {edge.id for edge in context.plan.inputs_of(context.vertex.id)}
    several = any(edge.senders > 1 for edge in context.assign.plan.edges if edge.edge in inputs)
    spec = next((spec for spec in context.vertex.chain if isinstance(spec, InOrderSpec)), None)
    return InOrder(spec, context.operators) if spec is not None and several else None


def _staged_of(row: MirrorRow, identity: Identity) -> bytes:
    """This identity's handle in a commit, checked against its digest; b"" if it staged nothing."""
    handle: ReleaseHandle | None = next(
        (h for h in row.handles if h.vertex == identity.vertex and h.index == identity.index), None
    )
    if handle is None:
        return b""
    if digest_of(handle.staged) != handle.digest:
        message = (
            f"commit {row.epoch} of job {row.job}: the handle of {identity} has digest {digest_of(handle.staged)}, "
            f"but the mirror says {handle.digest}: the mirror was changed"
        )
        raise TargetRefused(message)
    return handle.staged
