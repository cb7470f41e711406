"""The work of a task on its data, as its driver sees it. Each service brings its own body; driver and machine are the same for all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow.compute as pc

from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.frames import Body, Segment
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import Epoch, Offset, SplitId, StatePart
from tidemark.shared.model.plan import Port
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.operators.base import Out
from tidemark.shared.protocol.source.machine import Input


@dataclass(frozen=True, slots=True)
class Copied:
    """A body's result of a snapshot: copies, so that processing may go on."""

    changed: Mapping[StatePart, bytes | None] = field(default_factory=dict)
    """State parts that changed since the last snapshot; None for one that is gone."""
    blobs: tuple[BlobRef, ...] = ()
    """All blobs that the state refers to (C12)."""
    staged: bytes = b""
    """A sink's handle of the output that was staged after the last commit (C5)."""
    positions: bytes = b""
    """A source's splits at the barrier (C2)."""
    between: bool = False
    """It has judged rows by a watermark between two barriers."""


@dataclass(frozen=True, slots=True)
class Announced:
    """Rows that the body has made durable itself, for the edges of a port (P2)."""

    port: Port
    segment: Segment


Given = Out | Announced


class TaskBody(ABC):
    """The work that every task does. Calls come one at a time, in the order of the machine's commands."""

    @abstractmethod
    async def open(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Take the state of the restored checkpoint: all parts that this task owns; {} for none. They may be taken out of the mapping."""

    @abstractmethod
    async def fire(self, now_ms: int) -> Sequence[Given]:
        """Processing time is now this."""

    @abstractmethod
    async def flush(self, epoch: Epoch) -> Sequence[Given]:
        """The epoch is complete: give out the rows held for batching; a step task runs its step (P1)."""

    @abstractmethod
    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        """The snapshot (C6)."""

    @abstractmethod
    def output_watermark(self) -> int:
        """The watermark of the output, ms (W1)."""

    @abstractmethod
    def next_processing_ms(self) -> int:
        """When `fire` next has something to do, ms; MAX_TIME for never."""

    @abstractmethod
    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start, for `stats`."""

    @abstractmethod
    async def close(self) -> None:
        """Release all resources; nothing becomes visible by it."""

    def holds(self) -> Sequence[Hold]:
        """The holds that keep the output watermark below the input watermark, in the order of the operators."""
        return ()

    def details(self) -> Mapping[str, str]:
        """By split, as JSON: its position, its watermark, its holds; for `stats`."""
        return {}


class ReceivingBody(TaskBody):
    """A task with in edges."""

    @abstractmethod
    async def apply(self, tag: str, bodies: Sequence[Body]) -> Sequence[Given]:
        """Rows have come on the input `tag`."""

    @abstractmethod
    async def advance(self, watermark_ms: int) -> Sequence[Given]:
        """The input watermark is now this. A piece of the work may be done: then `unfinished` says so, and the same call follows."""

    def unfinished(self) -> bool:
        """Whether the last `advance` left work for the next."""
        return False

    def batching(self) -> bool:
        """Whether it holds rows until the epoch ends."""
        return False

    def full(self) -> bool:
        """Whether senders that are ahead in event time should wait, for it keeps rows until the watermark is above them."""
        return False

    def sample(self, limit: int) -> Sequence[bytes] | None:
        """The last documents that went into it, at most so many, as extended JSON; None if it cannot show them."""
        del limit
        return None


@dataclass(frozen=True, slots=True)
class Fetched:
    """One fetch of a source: rows, and where each split then stands."""

    batches: Sequence[RawBatch]
    statuses: Sequence[SplitStatus]
    one_by_one: bool = False
    """A script's step: nothing more is fetched before it is taken, and covered by a checkpoint where it moved something."""
    gathers_ms: int = 0
    """For how long what comes next may lie at the source, unless the epoch ends before (C2)."""

    @property
    def rows(self) -> int:
        """How many records all batches have."""
        return sum(len(batch.positions) for batch in self.batches)

    @property
    def size_bytes(self) -> int:
        """Of the records' values, as `Meter.read` counts them."""
        return sum(batch.values.nbytes for batch in self.batches)

    def rows_within(self, size_bytes: int) -> int:
        """How many of the first rows have together at most so many bytes."""
        rows = 0
        for batch in self.batches:
            if batch.values.nbytes > size_bytes:
                lengths = pc.fill_null(pc.binary_length(batch.values), 0).to_numpy(zero_copy_only=False)
                beside = (batch.values.nbytes - lengths.sum()) / len(lengths)  # of each row: where it begins
                return rows + int(np.searchsorted(np.cumsum(lengths + beside), size_bytes, side="right"))
            rows, size_bytes = rows + len(batch.positions), size_bytes - batch.values.nbytes
        return rows

    def divided(self, rows_max: int) -> tuple["Fetched", "Fetched | None"]:
        """The first rows, at most so many, with the positions of their splits behind them; and the rest, None if there is none.

        A script's steps are not divided. A split whose rows are divided is not at its end behind the first of them.
        """
        if self.one_by_one or self.rows <= rows_max:
            return self, None
        first, rest, room = [], [], rows_max
        for batch in self.batches:
            count = min(room, len(batch.positions))
            room -= count
            if count:
                first.append(batch.rows(0, count))
            if count < len(batch.positions):
                rest.append(batch.rows(count, len(batch.positions)))
        stands = {b.split: Offset(int(b.positions[0])) for b in reversed(rest)}
        begun = {b.split for b in first}
        before = [
            status
            if status.split not in stands
            else SplitStatus(status.split, stands[status.split], at_end=False, finished=False, more=True)
            for status in self.statuses
            if status.split in begun
        ]
        behind = [status for status in self.statuses if status.split in stands or status.split not in begun]
        return Fetched(first, before), Fetched(rest, behind)


class ReadingBody(TaskBody):
    """A task that reads from outside instead of edges."""

    input: Input
    """The state by which the task decides about its input. The driver passes on reports of others, the body those of the source."""
    place: str
    """The source, as the document names it."""

    @abstractmethod
    async def fetch(self, *, waits: bool = True) -> Fetched:
        """Read ahead, waiting a little for the first if `waits`; changes no state that a snapshot holds. LogUnavailable."""

    @abstractmethod
    async def take(self, fetched: Fetched, now_ms: int, monotonic_ms: int) -> Sequence[Given]:
        """Process the fetched rows: positions, watermarks and filters move with them (C2)."""

    @abstractmethod
    def held_rows(self, merge_above: int) -> int:
        """Rows that are held for the next barrier; beyond `merge_above` those that can be merged are merged before they are counted."""

    @abstractmethod
    async def ends(self) -> Mapping[SplitId, Offset | None]:
        """Where all splits end that are there, found or listed; None for one that ends by itself (I3). LogUnavailable."""

    @abstractmethod
    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """The input ends where the processor's row says (I3, E2)."""

    @abstractmethod
    async def note(self, positions: Mapping[SplitId, Offset]) -> None:
        """A committed checkpoint has these: tell lag tools, where the source can. LogError; nothing depends on it."""
