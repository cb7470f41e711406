"""Counts of a task's work since it began, made by its driver: for heartbeats, `stats` and metrics. No decision depends on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemark.shared.model.checkpoint import BlobRef, PartHandle, state_bytes
from tidemark.shared.model.frames import Body, Inline
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.spans import Spans
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.runtime.body import Fetched, Given

_REASON_MAX: Final = 300
"""Characters of a dead letter's reason that heartbeats tell: each task sends one a second."""


@dataclass(slots=True)
class Meter:
    """Totals; bytes are those of the data, in Arrow, on the wire or in a segment, whichever the driver has at hand."""

    in_rows: int = 0
    in_bytes: int = 0
    out_rows: int = 0
    out_bytes: int = 0
    dlq_rows: int = 0
    dlq_bytes: int = 0
    last_letter: pa.RecordBatch | None = None
    """The last dead letter, one row, until it was asked for its reason."""
    reason: str = ""
    """Of the last dead letter that was asked for it."""
    busy_ms: int = 0
    """Spent in the body's calls."""
    held_ms: int = 0
    """A source had input and was not let (F7, F8, E4)."""
    held_since_ms: int | None = None
    quota_ms: int = 0
    """A part of it: a source waited for its namespace's quota of bytes (E4)."""
    quota_since_ms: int | None = None
    state_bytes: int = 0
    """Size of the last snapshot, with the state that it refers to."""
    state_bytes_max: int = 0
    """Of the largest."""
    snapshot_ms: int = 0
    """From the last snapshot's copy to its acknowledgement."""
    snapshot_since_ms: int = 0
    snapshots: Spans = field(default_factory=Spans)
    """All of them."""
    steps: Spans = field(default_factory=Spans)
    """The body's calls."""
    lags: Spans = field(default_factory=Spans)
    """Event-time lag, of the output watermark behind the clock, at each snapshot."""
    output_ms: int | None = None
    output_since_ms: int = 0
    """The output watermark that was told last, and since when it stands there, UTC, ms."""
    oldest_ms: int | None = None
    """W5: when the oldest work that is not yet done arrived, wall clock; None: there is none."""

    def worked(self, span_ms: int) -> None:
        """A call of the body is over."""
        self.busy_ms += span_ms
        self.steps.add(span_ms)

    def stands(self, output_ms: int, wall_ms: int) -> int:
        """Since when the output watermark has been this, as far as this was asked before; UTC, ms."""
        if output_ms != self.output_ms:
            self.output_ms, self.output_since_ms = output_ms, wall_ms
        return self.output_since_ms

    def took(self, bodies: Iterable[Body]) -> None:
        """Bodies from an edge."""
        for body in bodies:
            self.in_rows += body.rows
            self.in_bytes += len(body.ipc) if isinstance(body, Inline) else body.size_bytes

    def read(self, batches: Iterable[RawBatch]) -> None:
        """Count records that a source has read."""
        for batch in batches:
            self.in_rows += len(batch.positions)
            self.in_bytes += batch.values.nbytes

    def gave(self, outs: Sequence[Given]) -> None:
        """Count the rows that a body let out."""
        for out in outs:
            rows, size = (
                (out.batch.num_rows, out.batch.nbytes)
                if isinstance(out, Out)
                else (out.segment.rows, out.segment.size_bytes)
            )
            if out.port == DLQ:
                self.dlq_rows += rows
                self.dlq_bytes += size
                if isinstance(out, Out) and rows:
                    # A copy: a slice would hold the whole batch.
                    self.last_letter = pa.concat_batches([out.batch.slice(rows - 1)])
            else:
                self.out_rows += rows
                self.out_bytes += size

    def held(self, now_ms: int, arrived_ms: int | None = None) -> None:
        """Input waits, the oldest of it since `arrived_ms` (UTC); now_ms: monotonic."""
        if arrived_ms is not None:
            self.oldest_ms = arrived_ms if self.oldest_ms is None else min(self.oldest_ms, arrived_ms)
        if self.held_since_ms is None:
            self.held_since_ms = now_ms

    def short(self, now_ms: int) -> None:
        """The input that waits does so for the quota of bytes."""
        if self.quota_since_ms is None:
            self.quota_since_ms = now_ms

    def short_ms(self, now_ms: int) -> int:
        """How long it has waited for the quota until now."""
        return self.quota_ms + (0 if self.quota_since_ms is None else now_ms - self.quota_since_ms)

    def released(self, now_ms: int) -> None:
        """The work goes on: the time for which it was held is counted."""
        if self.held_since_ms is not None:
            self.held_ms += now_ms - self.held_since_ms
            self.held_since_ms = None
        if self.quota_since_ms is not None:
            self.quota_ms += now_ms - self.quota_since_ms
            self.quota_since_ms = None

    def acknowledged(self, parts: Iterable[PartHandle], blobs: Iterable[BlobRef], now_ms: int) -> None:
        """A snapshot is durable."""
        self.state_bytes = state_bytes(parts, blobs)
        self.state_bytes_max = max(self.state_bytes_max, self.state_bytes)
        self.snapshot_ms = now_ms - self.snapshot_since_ms
        self.snapshots.add(self.snapshot_ms)

    def last_reason(self) -> str:
        """Why the last dead letter is one, on one line; "" before any."""
        if self.last_letter is not None:
            [letter] = documents_of(self.last_letter)
            reason = " ".join(letter["errInfo"]["reason"].split())[:_REASON_MAX]
            self.reason = reason.encode("utf-8", "replace").decode()  # It may quote half a surrogate pair.
            self.last_letter = None
        return self.reason

    def counters(self, now_ms: int, wall_ms: int) -> Mapping[str, int]:
        """By name, for heartbeats. now_ms: monotonic; wall_ms: UTC."""
        held_ms = self.held_ms + (now_ms - self.held_since_ms if self.held_since_ms is not None else 0)
        return {
            "inRows": self.in_rows,
            "inBytes": self.in_bytes,
            "outRows": self.out_rows,
            "outBytes": self.out_bytes,
            "dlqRows": self.dlq_rows,
            "dlqBytes": self.dlq_bytes,
            "busyMs": self.busy_ms,
            "heldMs": held_ms,
            "stateBytes": self.state_bytes,
            "stateBytesMax": self.state_bytes_max,
            "snapshotMs": self.snapshot_ms,
            "lagMs": 0 if self.oldest_ms is None else max(0, wall_ms - self.oldest_ms),
        }


def first_arrival(fetched: Fetched) -> int | None:
    """When the oldest record of a fetch arrived, ms; None for one without records."""
    return min((int(b.timestamps_ms[0]) for b in fetched.batches if len(b.timestamps_ms)), default=None)


def oldest_work(fetched: Fetched) -> int | None:
    """W5, at a source: the arrival of the last record of the split that is furthest behind its end, ms; None if all are at theirs."""
    behind = {status.split for status in fetched.statuses if not status.at_end and not status.finished}
    arrivals = [int(b.timestamps_ms[-1]) for b in fetched.batches if len(b.timestamps_ms) and b.split in behind]
    return min(arrivals, default=None)
