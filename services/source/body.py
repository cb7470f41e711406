"""A source's task: reads splits, judges time, runs what is fused behind it, and notes positions with the rest of its state (C2).

What takes long, such as a filter that looks for each of a hundred thousand ids, or a slow expression, is done on a thread: it must not keep
the worker from saying that it is alive. Heartbeats tell meanwhile what was true before. What is fast is faster without.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import structlog

from tidemark.services.source.settings import SourceSettings
from tidemark.services.source.steps import Silence, Steps
from tidemark.shared.model.checkpoint import KnownSplit, SplitStand
from tidemark.shared.model.formats import SPLIT_POSITION, Codec
from tidemark.shared.model.held import Hold, SplitHeld
from tidemark.shared.model.ids import FIRST_OFFSET, Epoch, Offset, SplitId, StatePart, split_part
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.build import Chain
from tidemark.shared.operators.rows import while_wanted
from tidemark.shared.operators.source_front import SourceFront
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import LogUnavailable
from tidemark.shared.ports.source import KnowsOrigins, NotesOffsets, RawBatch, Source, SplitStatus
from tidemark.shared.runtime.body import Copied, Fetched, ReadingBody
from tidemark.shared.runtime.context import TaskContext
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
    """What the parts are known by that it has come through (`KnowsOrigins`)."""


_POSITIONS: Final[Codec[SplitPosition]] = Codec(SPLIT_POSITION, SplitPosition)


@dataclass(slots=True)
class _Split:
    position: Offset
    until: Offset | None = None
    begin: Offset = FIRST_OFFSET
    finished: bool = False
    at_end_since_ms: int | None = None
    more: bool = False
    dirty: bool = True
    told_ms: int = MIN_TIME
    """The watermark that was told last, and since when it stands there, UTC ms."""
    stands_since_ms: int = 0


class SourceTaskBody(ReadingBody):
    """Positions, front and chain move together: only `take` changes what a snapshot holds."""

    def __init__(
        self,
        context: TaskContext,
        source: Source,
        front: SourceFront,
        chain: Chain,
        idle_timeout_ms: int | None,
        steps: Steps,
        *,
        bounded: bool,
        settings: SourceSettings = _DEFAULTS,
    ) -> None:
        self._context = context
        self._settings = settings
        self._source = source
        self._front = front
        self._chain = chain
        self._idle_timeout_ms = idle_timeout_ms
        self._steps = steps
        self._silence = Silence(idle_timeout_ms)
        self._bounded = bounded
        self._own: dict[SplitId, _Split] = {}
        self._looked_ms = 0
        self._checked_ms = 0
        self._taken_since = False
        """Records were taken since their splits' origins were compared."""
        self._known: dict[SplitId, KnownSplit] = dict(context.assign.splits)
        """Those that the processor's row lists, as far as this task was told (I1)."""
        self._listed = context.assign.listed
        self._unopened: dict[SplitId, KnownSplit] = {}
        """Of these, what is still to be opened."""
        self._come: dict[SplitId, KnownSplit] = {}
        """Splits that are read and that no fetch has told of."""
        self._handed_out: dict[SplitId, KnownSplit] = {}
        """Splits that a fetch has told of which no `take` has seen: one that came before it is no end of the input."""
        self._found: dict[SplitId, KnownSplit] = {}
        """What is there and not in the row, as far as this task knows."""
        self._gone: tuple[SplitId, ...] = ()
        self._to_tell = False
        self._ending: Mapping[SplitId, KnownSplit] | None = None
        """What was said of the ends (I3): said again as it was, for input stands still from then on."""
        self._draining = False
        self._watermark_ms = -(2**63)
        self._held_since_ms: int | None = None
        self._ended_without_splits = False
        self._moved = False
        self._wanted = True
        self.always_beside = False
        """An expression goes through items: a record may take seconds, whatever the last one took."""
        self._record_ms = math.inf
        """What a record of the last batch took; infinite before the first."""
        self._taking = False
        """Records are being worked on: who asks how things stand has to wait."""
        self._standing: tuple[Mapping[str, str], Sequence[Hold]] = ({}, ())
        """Details and holds before."""
        self._asked = True
        self._snapshots: dict[Epoch, dict[SplitId, Offset]] = {}
        """Positions at checkpoints that may be committed yet, for lag tools."""
        self._committed: dict[SplitId, Offset] = {}

    # --- life -----------------------------------------------------------------------------------------------------------

    async def open(self, parts: Mapping[StatePart, bytes]) -> None:
        """Restore, then stand at the noted positions; a split without one at its beginning, as the row has it (I1)."""
        there = await self._source.splits()
        known = {split: each for split, each in self._known.items() if split in there}
        await self._source.check(known)
        self._checked_ms = self._context.outside.clock.monotonic_ms()
        self._gone = tuple(sorted(self._known.keys() - known.keys()))
        if self._gone:
            _log.warning("source.splits_gone", task=str(self._context.task), splits=self._gone)
        self._known = known
        saved = {
            SplitId(part.removeprefix(_POSITION + split_part(""))): _POSITIONS.decode(data)
            for part, data in parts.items()
            if part.startswith(_POSITION)
        }
        self._front.restore(_below(parts, _FRONT), self._restored_watermark())
        self._chain.restore(_below(parts, _CHAIN))
        self._front.assign({split: each.ordinal for split, each in known.items()})
        self._committed = {s: Offset(saved[s].next) for s in known if s in saved}
        positions = {split: self._committed.get(split, each.begin) for split, each in known.items()}
        if isinstance(self._source, KnowsOrigins):
            self._source.know({split: position.origins for split, position in saved.items()})
        await self._open(known, positions)
        for split, each in known.items():
            self._own[split] = _Split(positions[split], each.end, each.begin)
        await self._look_at(there)

    async def _open(self, splits: Mapping[SplitId, KnownSplit], positions: Mapping[SplitId, Offset]) -> None:
        await self._source.open(positions)
        self._source.end_at({split: each.end for split, each in splits.items() if each.end is not None})

    def _restored_watermark(self) -> int:
        assign = self._context.assign
        own = [h.protocol.output_watermark_ms for h in assign.handles if h.index == assign.index]
        same = len(assign.handles) == assign.plan.tasks[assign.vertex]
        return own[0] if own and same else -(2**63)

    async def close(self) -> None:
        """Let go of the source; records that are worked on beside are left."""
        self._wanted = False
        await self._source.close()

    # --- input ------------------------------------------------------------------------------------------------------------

    async def fetch(self) -> Fetched:
        """Read ahead."""
        settings = self._context.outside.settings
        await self._look()
        await self._open_told()
        try:
            batches = await self._source.fetch(settings.fetch_bytes_max, settings.fetch_timeout_ms)
        except LogUnavailable:
            self._checked_ms = MIN_TIME  # what is there afterwards may be another topic
            raise
        paced = self._steps.one_by_one and bool(batches)
        added, self._come = self._come, {}
        self._handed_out.update(added)
        return Fetched(tuple(batches), tuple(self._source.status()), paced=paced, added=added)

    async def _look(self) -> None:
        """Now and then: whether the splits that are read are still the same (I2), and which have come that are this task's (W2)."""
        now_ms, settings = self._context.outside.clock.monotonic_ms(), self._context.outside.settings
        if now_ms - self._checked_ms >= settings.origins_interval_ms:
            await self._source.check(self._known)
            self._checked_ms = now_ms
        bounded = self._bounded and self._listed
        if now_ms - self._looked_ms >= settings.splits_interval_ms and not bounded and not self._draining:
            await self._look_at(await self._source.splits())

    async def _compare_taken(self) -> None:
        """Behind the last look another topic may have come to the name, with records that were read: no checkpoint has them (I2)."""
        if not self._taken_since:
            return
        self._taken_since = False
        now_ms = self._context.outside.clock.monotonic_ms()
        try:
            await self._source.check(self._known)
        except LogUnavailable:
            self._checked_ms = MIN_TIME  # nothing more is read before it answers
        else:
            # Behind an outage it is the next read's own look that counts.
            self._checked_ms = max(self._checked_ms, now_ms) if self._checked_ms > MIN_TIME else MIN_TIME

    async def _look_at(self, there: Mapping[SplitId, int]) -> None:
        """What of this task's nobody has told it to read is to be told to the coordinator, where there is more than it was told already."""
        assign = self._context.assign
        self._looked_ms = self._context.outside.clock.monotonic_ms()
        tasks = assign.plan.tasks[assign.vertex]
        new = [s for s, o in there.items() if o % tasks == assign.index and s not in self._known]
        late = self._bounded and self._listed
        self._found = {} if late else dict(await self._source.found(new, first=not self._listed))
        self._to_tell = bool(self._found or self._gone) or not self._listed

    def found(self) -> tuple[Mapping[SplitId, KnownSplit], Sequence[SplitId]] | None:
        """See `ReadingBody.found`."""
        if not self._to_tell:
            return None
        self._to_tell = False
        return self._found, self._gone

    def tell_again(self) -> None:
        """See `ReadingBody.tell_again`."""
        self._to_tell = bool(self._found or self._gone) or not self._listed

    def read(self, splits: Mapping[SplitId, KnownSplit]) -> None:
        """See `ReadingBody.read`."""
        new = {split: each for split, each in splits.items() if split not in self._known}
        self._known |= new
        self._unopened |= new
        self._listed = True
        self._found = {split: each for split, each in self._found.items() if split not in self._known}

    async def _open_told(self) -> None:
        """What the row lists since: it is read from here on."""
        splits, self._unopened = self._unopened, {}
        if not splits:
            return
        self._come |= splits  # from here on nothing ends without them
        try:
            await self._open(splits, {split: each.begin for split, each in splits.items()})
        except LogUnavailable:
            self._unopened |= splits
            raise
        _log.info("source.splits_added", task=str(self._context.task), splits=sorted(splits))

    async def take(self, fetched: Fetched, now_ms: int, monotonic_ms: int) -> Sequence[Out]:
        """Rows through front and chain, then the statuses, then the watermark that both allow.

        A task that becomes idle gives out what its chain holds: receivers no longer wait for its watermark, and would be past it (PA4).
        """
        self._end_hold(monotonic_ms)
        was_idle = self._front.idle()
        for name, known in fetched.added.items():
            self._handed_out.pop(name, None)
            self._front.assign({name: known.ordinal})
            self._own[name] = _Split(known.begin, self._known[name].end, known.begin)
        if self._asked:
            self._asked, self._standing = False, (self.details(), self.holds())
        before = self._front.split_watermarks() if fetched.paced else {}
        self._taking = True
        try:
            outs = await self._records(fetched.batches)
        finally:
            self._taking = False
        with_rows = {b.split for b in fetched.batches if len(b.positions)}
        self._taken_since = self._taken_since or bool(with_rows)
        for status in fetched.statuses:
            self._status(status, monotonic_ms, rows=status.split in with_rows)
        if self._chain.next_processing_time() <= now_ms:
            outs += self._chain.on_processing_time(now_ms)
        outs += self._chain.on_watermark(self._front.output_watermark())
        if self._front.idle() and not was_idle:
            outs += self._chain.before_barrier()
        rows = self._steps.rows_too and bool(with_rows)
        self._moved = fetched.paced and (rows or before != self._front.split_watermarks())
        return outs

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
        outs = await self._beside(with_rows) if with_rows else []
        for batch in with_rows:
            self._own[batch.split].at_end_since_ms = None
            self._own[batch.split].dirty = True
        for batch in batches:
            self._steps.carry_out(batch.steps, self._front, tuple(self._own))
            for split in self._silence.behind(batch, tuple(self._own)):
                self._front.on_status(split, "idle")
        return outs

    async def _beside(self, batches: Sequence[RawBatch]) -> list[Out]:
        clock, count = self._context.outside.clock, sum(len(batch.positions) for batch in batches)
        began_ms = clock.monotonic_ms()
        if not self.always_beside and count * self._record_ms < self._settings.beside_ms:
            outs = self._work(batches)
        else:
            outs = await self._context.outside.executor.blocking(self._work, batches)
        self._record_ms = (clock.monotonic_ms() - began_ms) / max(1, count)
        return outs

    def _work(self, batches: Sequence[RawBatch]) -> list[Out]:
        return while_wanted(lambda: self._wanted, lambda: self._through(self._front.on_records(*batches)))

    def settle_ms(self) -> int | None:
        """What has moved no watermark and no clock is seen by nobody before the next step, unless rows alone count."""
        return self._steps.settle_ms if self._moved or self._steps.settle_ms else None

    def _within(self, batch: RawBatch) -> RawBatch:
        """Rows before the split's end: a drain may name an end that was already read past."""
        until = self._own[batch.split].until
        if until is None or int(batch.positions[-1]) < until:
            return batch
        return batch.rows(0, int(np.searchsorted(batch.positions, until)))

    def _through(self, outs: Sequence[Out]) -> list[Out]:
        done: list[Out] = []
        for out in outs:
            done += self._chain.on_batch(out.batch, out.content, "") if out.port == OUT else [out]
        return done

    def _status(self, status: SplitStatus, monotonic_ms: int, *, rows: bool) -> None:
        """W4, E1: idle after the time-out at the end of the split; finished when read to its bound."""
        split = self._own[status.split]
        split.more = status.more
        reached = status.next_position if split.until is None else min(status.next_position, split.until)
        if reached > split.position:
            split.position, split.dirty = reached, True
        if status.finished or (split.until is not None and split.position >= split.until):
            split.finished = True
            self._front.on_status(status.split, "finished")
            return
        if rows or not status.at_end:
            split.at_end_since_ms = None
            if status.more and not rows:
                # Something is coming that cannot be read yet, such as an open transaction: the split was idle, and is no longer.
                self._front.on_status(status.split, "active")
            return
        if split.at_end_since_ms is None:
            split.at_end_since_ms = monotonic_ms
        timeout_ms = self._idle_timeout_ms
        if timeout_ms is not None and monotonic_ms - split.at_end_since_ms >= timeout_ms:
            self._front.on_status(status.split, "idle")

    def returned(self) -> Mapping[SplitId, int]:
        """See `SourceFront.returned`."""
        return self._front.returned()

    def on_receivers(self, split: SplitId, highest_ms: int) -> None:
        """See `SourceFront.on_receivers`."""
        self._front.on_receivers(split, highest_ms)

    def held_rows(self, merge_above: int) -> int:
        """See `ReadingBody.held_rows`."""
        return self._chain.held_rows(merge_above)

    def held_back(self, monotonic_ms: int) -> None:
        """The clock of idleness stands still from here until the next `take`."""
        if self._held_since_ms is None:
            self._held_since_ms = monotonic_ms

    def _end_hold(self, monotonic_ms: int) -> None:
        if self._held_since_ms is None:
            return
        held_ms, self._held_since_ms = monotonic_ms - self._held_since_ms, None
        for split in self._own.values():
            if split.at_end_since_ms is not None:
                split.at_end_since_ms += held_ms

    async def ends(self, until: Mapping[str, int]) -> Mapping[SplitId, KnownSplit]:
        """See `ReadingBody.ends`."""
        if self._ending is None:
            await self._source.check(self._known)
            await self._look_at(await self._source.splits())
            splits = {**self._found, **self._known}
            read = {s: self._own[s].position if s in self._own else each.begin for s, each in splits.items()}
            now = await self._source.ends(read)
            self._ending = {
                s: msgspec.structs.replace(k, end=_end(k, until.get(s), now[s], read[s])) for s, k in splits.items()
            }
        return self._ending

    def drain(self, splits: Mapping[SplitId, KnownSplit]) -> None:
        """E2: the row says where they end."""
        self._draining = True
        self.read(splits)
        self._known |= splits
        for waiting in (self._unopened, self._come):
            waiting.update({s: splits[s] for s in waiting if s in splits})
        for name, split in self._own.items():
            split.until = self._known[name].end
        self._source.end_at({s: split.until for s, split in self._own.items() if split.until is not None})
        _log.info("source.drain", task=str(self._context.task), until={s: k.end for s, k in splits.items()})

    def idle(self) -> bool:
        """See `SourceFront.idle`; who waits for splits is not without any (W3)."""
        waits = not self._listed or self._unopened or self._come or self._handed_out
        return not waits and self._front.idle()

    async def note_committed(self, epoch: Epoch) -> None:
        """The group named after the processor stands where the checkpoint does."""
        positions = self._snapshots.get(epoch)
        for older in [e for e in self._snapshots if e <= epoch]:
            del self._snapshots[older]
        self._committed.update(positions or {})
        if positions and isinstance(self._source, NotesOffsets):
            await self._source.note(self._context.assign.name, positions)

    def details(self) -> Mapping[str, str]:
        """Where at most `told_splits_max` splits stand, those first that hold the watermark back: `shared.model.held.SplitHeld` as JSON."""
        if self._taking:
            self._asked = True
            return self._standing[0]
        clock = self._context.outside.clock
        told = [(name, self._told(name, split, clock)) for name, split in self._own.items()]
        told.sort(key=lambda each: (each[1].status != "active", each[1].watermark, each[0]))
        return {
            f"split:{name}": msgspec.json.encode(held).decode() for name, held in told[: self._settings.told_splits_max]
        }

    def _told(self, name: SplitId, split: _Split, clock: Clock) -> SplitHeld:
        told = self._front.told_of(name)
        if told.watermark != split.told_ms:
            split.told_ms, split.stands_since_ms = told.watermark, clock.now_ms()
        idle_in = None
        if split.at_end_since_ms is not None and self._idle_timeout_ms is not None:
            idle_in = max(0, split.at_end_since_ms + self._idle_timeout_ms - clock.monotonic_ms())
        return msgspec.structs.replace(
            told,
            position=split.position,
            checkpoint=self._committed.get(name),
            until=split.until,
            atEnd=split.at_end_since_ms is not None,
            more=split.more,
            finished=split.finished,
            since=split.stands_since_ms,
            idleTimeout=self._idle_timeout_ms,
            idleIn=idle_in,
        )

    def holds(self) -> Sequence[Hold]:
        """What is fused behind the front and holds the watermark back."""
        return self._standing[1] if self._taking else self._chain.holds()

    def ended(self) -> bool:
        """All splits are read to their ends; a task without splits ends at once if the source is bounded, else when it is drained."""
        if self._unopened or self._come or self._handed_out:
            return False
        return self._front.ended() if self._own else self._bounded or self._draining

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
        self._snapshots[epoch] = {name: split.position for name, split in self._own.items()}
        while len(self._snapshots) > self._settings.noted_checkpoints_max:
            del self._snapshots[min(self._snapshots)]
        changed: dict[StatePart, bytes | None] = {}
        for name, split in self._own.items():
            if split.dirty:
                origins = self._source.origins(name) if isinstance(self._source, KnowsOrigins) else {}
                position = SplitPosition(split.position, origins)
                changed[StatePart(_POSITION + split_part(name))] = _POSITIONS.encode(position)
                split.dirty = False
        changed.update({StatePart(_FRONT + part): data for part, data in self._front.snapshot().items()})
        changed.update({StatePart(_CHAIN + part): data for part, data in self._chain.snapshot().items()})
        return Copied(changed, positions=encode_stands(self._stands()))

    def _stands(self) -> tuple[SplitStand, ...]:
        statuses = self._front.split_watermarks()
        return tuple(
            SplitStand(name, split.position, split.begin, statuses[name][1])
            for name, split in sorted(self._own.items())
        )

    def output_watermark(self) -> int:
        """What the chain lets out, ms."""
        return self._chain.output_watermark()

    def next_processing_ms(self) -> int:
        """The chain's, ms."""
        return self._chain.next_processing_time()

    def counters(self) -> Mapping[str, int]:
        """What front and chain count."""
        return {**self._chain.counters(), **self._front.counters()}


def _end(known: KnownSplit, named: int | None, now: Offset | None, read: Offset) -> Offset | None:
    """Where a drain ends a split: where the user says, else with what is there now; never in front of what was read."""
    if named is not None:
        return Offset(max(named, read))
    if known.end is not None:  # it is bounded already
        return known.end
    return None if now is None else Offset(max(now, read))


def _below(parts: Mapping[StatePart, bytes], prefix: str) -> dict[StatePart, bytes]:
    return {StatePart(p.removeprefix(prefix)): data for p, data in parts.items() if p.startswith(prefix)}
