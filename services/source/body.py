"""A source's task: reads splits, judges time, runs the stages fused behind it, and notes positions with the rest of its state (C2).

Its machine decides what to read, and which splits are idle or ended (`tidemark.shared.protocol.source`). Slow work, such as a filter that
looks for each of a hundred thousand ids, or a slow expression, runs on a thread, so that the worker's heartbeats go on. They report the
state before that work. Fast work is faster without a thread.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import numpy as np
import structlog

from tidemark.services.source.settings import SourceSettings
from tidemark.services.source.steps import Silence, Steps
from tidemark.services.source.taken import BEGUN, taken
from tidemark.shared.language.stages import FileSource
from tidemark.shared.model.formats import SPLIT_POSITION, Codec
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import NO_EPOCH, Epoch, Offset, SplitId, StatePart, split_part
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.build import OperatorChain
from tidemark.shared.operators.rows import while_wanted
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import Gathers, KnowsOrigins, NotesOffsets, OneLists, SourcePort
from tidemark.shared.protocol.source.machine import Input
from tidemark.shared.protocol.source.split import Split
from tidemark.shared.runtime.body import Copied, Fetched, ReadingBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.waiting import waiting
from tidemark.shared.wire.messages import encode_stands

_log = structlog.get_logger()
_POSITION = "position|"
_FRONT = "front|"
_CHAIN = "chain|"
_DEFAULTS: Final = SourceSettings()


class SplitPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a split stands: the next position. Where it begins and ends stands in the processor's row (I1)."""

    next: int
    origins: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Fingerprints of the parts that the split has come through (`KnowsOrigins`)."""
    check: str = ""
    """See `SplitStand.check`."""


_POSITIONS: Final[Codec[SplitPosition]] = Codec(SPLIT_POSITION, SplitPosition)


class SourceTaskBody(ReadingBody):
    """Positions, front and chain move together: only `take` changes the content of a snapshot."""

    def __init__(
        self,
        context: AssignedTask,
        source: SourcePort,
        front: SourceFront,
        chain: OperatorChain,
        idle_timeout_ms: int | None,
        steps: Steps,
        *,
        bounded: bool,
        settings: SourceSettings = _DEFAULTS,
    ) -> None:
        self._context = context
        self._clock = context.outside.clock
        self._settings = settings
        self._source = source
        self._gathers = source if isinstance(source, Gathers) else None
        self._front = front
        self._of_files = isinstance(front.spec.source, FileSource)
        self.place = front.spec.source.path
        self._chain = chain
        self._steps = steps
        self._silence = Silence(idle_timeout_ms)
        assign, runtime = context.assign, context.outside.settings
        self.input = Input(
            tasks=assign.plan.tasks[assign.vertex],
            index=assign.index,
            bounded=bounded,
            idle_timeout_ms=idle_timeout_ms,
            look_interval_ms=runtime.splits_interval_ms,
            compare_interval_ms=runtime.origins_interval_ms,
            rows_covered=steps.rows_too,
            settle_ms=steps.settle_ms,
            noted_checkpoints_max=settings.noted_checkpoints_max,
            listed_once=assign.listed,
            one_lists=isinstance(source, OneLists) and source.one_lists,
        )
        self._wanted = True
        self.always_beside = False
        """An expression goes through items: a record may take seconds, however fast the last one was."""
        self._record_ms = math.inf
        """How long a record of the last batch took, ms; infinite before the first."""
        self._holds: Sequence[Hold] | None = None
        """Those before the records that are being worked on."""

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, parts: Mapping[StatePart, bytes]) -> None:
        """Restore, then stand at the noted positions; a split without one at its beginning, as the row has it (I1)."""
        with waiting(self._context.waits, self._context.outside.clock, "opening", "opening", self.place):
            await self._restore(parts)

    async def _restore(self, parts: Mapping[StatePart, bytes]) -> None:
        row, decided = self._context.assign.splits, self.input.one_lists and self.input.listed_once
        there = {split: each.ordinal for split, each in row.items()} if decided else await self._source.splits()
        known = {split: each for split, each in row.items() if split in there}
        await self._source.check(known)
        self.input.compared(self._clock.monotonic_ms())
        self.input.gone = tuple(sorted(row.keys() - known.keys()))
        if self.input.gone:
            _log.warning("source.splits_gone", task=str(self._context.task), splits=self.input.gone)
        saved = {
            SplitId(part.removeprefix(_POSITION + split_part(""))): _POSITIONS.decode(data)
            for part, data in parts.items()
            if part.startswith(_POSITION)
        }
        self._front.restore(_below(parts, _FRONT))
        self._chain.restore(_below(parts, _CHAIN))
        noted = self._front.assign({split: each.ordinal for split, each in known.items()})
        watermarks_ms = self._front.watermarks(known)
        self.input.watermark_ms = self._restored_watermark()
        now_ms, first = self._context.outside.clock.now_ms(), self._context.assign.last == NO_EPOCH
        for name, each in known.items():
            checkpoint = Offset(saved[name].next) if name in saved else None
            self.input.splits[name] = Split.restored(
                each, checkpoint, watermarks_ms[name], noted[name], now_ms, first=first
            )
            self.input.splits[name].check = saved[name].check if name in saved else ""
        self.input.judged({}, now_ms)
        self._chain.on_watermark(self.input.watermark_ms)  # by which receivers may have closed windows (PA2)
        if isinstance(self._source, KnowsOrigins):
            self._source.know({split: position.origins for split, position in saved.items()})
        await self._open(self.input.unopened())
        await self._look(there)

    async def _open(self, positions: Mapping[SplitId, Offset]) -> None:
        for split in map(self.input.splits.__getitem__, positions):
            if self._of_files and split.position == split.known.begin:
                split.check = BEGUN
        await self._source.open(positions)
        self._source.end_at(self.input.opened(positions))

    def _restored_watermark(self) -> int:
        assign = self._context.assign
        own = [h.protocol.output_watermark_ms for h in assign.handles if h.index == assign.index]
        same = len(assign.handles) == assign.plan.tasks[assign.vertex]
        return own[0] if own and same else MIN_TIME

    async def close(self) -> None:
        """Let go of the source; records that are worked on beside are left."""
        self._wanted = False
        await self._source.close()

    # --- input ------------------------------------------------------------------------------------------------------------

    async def fetch(self, *, waits: bool = True) -> Fetched:
        """Read ahead; before that, check that the data are still the same (I2), and take in splits that came or were listed (I1)."""
        given, settings, now_ms = self.input, self._context.outside.settings, self._clock.monotonic_ms()
        if given.compares(now_ms):
            await self._source.check(given.known())
            given.compared(now_ms)
        if given.looks(now_ms):
            await self._look(await self._source.splits())
        if positions := given.unopened():
            await self._open(positions)
            _log.info("source.splits_added", task=str(self._context.task), splits=sorted(positions))
        most = settings.fetch_bytes_max
        try:
            if waits or self._gathers is None:
                batches = await self._source.fetch(most, settings.fetch_timeout_ms)
            else:
                batches = await self._gathers.fetch(most, self._settings.last_look_ms, waits=False)
        except LogUnavailable:
            given.away()
            raise
        one_by_one = self._steps.one_by_one and bool(batches)
        gathers_ms = self._gathers.gathers_ms() if self._gathers is not None else 0
        return Fetched(tuple(batches), tuple(self._source.status()), one_by_one, gathers_ms)

    async def _look(self, there: Mapping[SplitId, int]) -> None:
        now_ms, new = self._clock.monotonic_ms(), self.input.unlisted(there)
        self.input.looked(await self._source.found(new, first=not self.input.listed_once), now_ms)

    async def ends(self) -> Mapping[SplitId, Offset | None]:
        """See `ReadingBody.ends`."""
        await self._source.check(self.input.known())
        await self._look(await self._source.splits())
        return await self._source.ends(self.input.read())

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `ReadingBody.end_at`."""
        self._source.end_at(until)

    async def note(self, positions: Mapping[SplitId, Offset]) -> None:
        """The group named after the processor stands where the checkpoint does."""
        if positions and isinstance(self._source, NotesOffsets):
            await self._source.note(self._context.assign.name, positions)

    async def take(self, fetched: Fetched, now_ms: int, monotonic_ms: int) -> Sequence[Out]:
        """Rows through front and chain, then the positions of splits, then the watermark that both allow.

        A task that becomes idle gives out its chain's rows: receivers no longer wait for its watermark, and would be past it (PA4).
        """
        given = self.input
        was_idle = given.is_idle()
        self._assign({s.split: given.splits[s.split].known.ordinal for s in fetched.statuses})
        outs = await self._records(fetched.batches)
        with_rows = {b.split for b in fetched.batches if len(b.positions)}
        given.stood(fetched.statuses, with_rows, monotonic_ms)
        if moved := self._front.stand_at({s.split: given.splits[s.split].position for s in fetched.statuses}):
            given.judged(self._front.watermarks(moved), self._clock.now_ms())
        if self._chain.next_processing_time() <= now_ms:
            outs += self._chain.on_processing_time(now_ms)
        outs += self._chain.on_watermark(given.watermark_ms)
        if given.is_idle() and not was_idle:
            outs += self._chain.before_barrier()
        return outs

    def _assign(self, splits: Mapping[SplitId, int]) -> None:
        """A split may have a watermark before its first row (SF5)."""
        new = self._front.assign(splits)
        self.input.judged(self._front.watermarks(new), self._clock.now_ms())

    async def _records(self, batches: Sequence[RawBatch]) -> list[Out]:
        """All batches at once, up to the one with a script's steps: these are behind its rows."""
        outs: list[Out] = []
        waiting: list[RawBatch] = []
        for number, batch in enumerate(batches, 1):
            waiting.append(batch)
            if batch.steps or number == len(batches):
                outs += await self._gathered(waiting)
                waiting = []
        return outs

    async def _gathered(self, batches: Sequence[RawBatch]) -> list[Out]:
        with_rows = [self._within(batch) for batch in batches if len(batch.positions)]
        for batch in with_rows:
            self._noted(batch)
        outs = await self._beside(with_rows) if with_rows else []
        for batch in batches:
            self._steps.carry_out(batch.steps, self.input, self._front, self._clock.now_ms())
            self.input.become(self._silence.behind(batch, tuple(self.input.splits)), "idle")
        return outs

    async def _beside(self, batches: Sequence[RawBatch]) -> list[Out]:
        count, names = sum(len(batch.positions) for batch in batches), {batch.split for batch in batches}
        away = self.input.rows(names)
        began_ms = self._clock.monotonic_ms()
        if not self.always_beside and count * self._record_ms < self._settings.beside_ms:
            outs = self._work(batches, away)
        else:
            self._holds = self._chain.holds()
            try:
                outs = await self._context.outside.executor.blocking(self._work, batches, away)
            finally:
                self._holds = None
        self._record_ms = (self._clock.monotonic_ms() - began_ms) / max(1, count)
        self.input.judged(self._front.watermarks(names), self._clock.now_ms())
        return outs

    def _work(self, batches: Sequence[RawBatch], away: frozenset[SplitId]) -> list[Out]:
        return while_wanted(lambda: self._wanted, lambda: self._through(batches, away))

    def _through(self, batches: Sequence[RawBatch], away: frozenset[SplitId]) -> list[Out]:
        done: list[Out] = []
        for out in self._front.on_records(*batches, away=away):
            done += self._chain.on_batch(out.batch, out.content, "") if out.port == OUT else [out]
        return done

    def _within(self, batch: RawBatch) -> RawBatch:
        """Rows before the split's end: a drain may name an end that was already read past."""
        end = self.input.splits[batch.split].known.end
        if end is None or int(batch.positions[-1]) < end:
            return batch
        return batch.rows(0, int(np.searchsorted(batch.positions, end)))

    def _noted(self, batch: RawBatch) -> None:
        """The check on records of files goes on; there is none in a split of which an earlier release had read the first ones."""
        split = self.input.splits[batch.split]
        if split.check:
            split.check = taken(split.check, batch)

    def held_rows(self, merge_above: int) -> int:
        """See `ReadingBody.held_rows`."""
        return self._chain.held_rows(merge_above)

    # --- the machine's commands -------------------------------------------------------------------------------------------

    async def fire(self, now_ms: int) -> Sequence[Out]:
        """Processing time through the chain."""
        return self._chain.on_processing_time(now_ms)

    async def flush(self, epoch: Epoch) -> Sequence[Out]:
        """Partial aggregates of the epoch."""
        del epoch
        return self._chain.before_barrier()

    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        """C2, C6: positions, front and chain as of the last `take`."""
        del committed
        await self._compare_taken()
        changed: dict[StatePart, bytes | None] = {}
        splits = self.input.copied(epoch)
        listed = {name: split.known.ordinal for name, split in splits.items()}
        self._assign(listed)  # those that nothing was taken of yet are away, too
        for name, split in splits.items():
            origins = self._source.origins(name, split.position) if isinstance(self._source, KnowsOrigins) else {}
            changed[StatePart(_POSITION + split_part(name))] = _POSITIONS.encode(
                SplitPosition(split.position, origins, split.check)
            )
        changed.update({StatePart(_FRONT + part): data for part, data in self._front.snapshot(splits).items()})
        changed.update({StatePart(_CHAIN + part): data for part, data in self._chain.snapshot().items()})
        return Copied(
            changed,
            positions=encode_stands(tuple(split.stand(name) for name, split in sorted(self.input.splits.items()))),
        )

    async def _compare_taken(self) -> None:
        """Behind the last look another topic may have come to the name, with records that were read: no checkpoint has them (I2)."""
        if not self.input.compares_taken():
            return
        now_ms = self._clock.monotonic_ms()
        try:
            await self._source.check(self.input.known())
        except LogUnavailable:
            self.input.away()
        else:
            self.input.compared(now_ms, reads=False)

    # --- questions of the worker ------------------------------------------------------------------------------------------

    def output_watermark(self) -> int:
        """The watermark behind the chain, ms."""
        return self._chain.output_watermark()

    def next_processing_ms(self) -> int:
        """When the chain next has something due by processing time, ms."""
        return self._chain.next_processing_time()

    def counters(self) -> Mapping[str, int]:
        """The counters of front and chain."""
        return {**self._chain.counters(), **self._front.counters()}

    def holds(self) -> Sequence[Hold]:
        """The holds of the fused stages behind the front: reasons that keep the watermark back."""
        return self._chain.holds() if self._holds is None else self._holds

    def details(self) -> Mapping[str, str]:
        """Where at most `told_splits_max` splits stand, those first that hold the watermark back: `shared.model.held.SplitHeld` as JSON."""
        now_ms = self._clock.monotonic_ms()
        timeout_ms, splits = self.input.idle_timeout_ms, self.input.splits.items()
        held = [(name, self._front.told_of(name, split.held(timeout_ms, now_ms))) for name, split in splits]
        held.sort(key=lambda each: (each[1].status != "active", each[1].watermark, each[0]))
        return {
            f"split:{name}": msgspec.json.encode(told).decode() for name, told in held[: self._settings.told_splits_max]
        }


def _below(parts: Mapping[StatePart, bytes], prefix: str) -> dict[StatePart, bytes]:
    return {StatePart(p.removeprefix(prefix)): data for p, data in parts.items() if p.startswith(prefix)}
