"""The contract of operators: a task's work on data, pure and deterministic.

Data are Arrow record batches. Columns of the user's document are typed Arrow columns (int32 int, int64 long, double, string, bool,
timestamp[ms, UTC] date, binary, lists and structs); a null cell is a missing field. `REST` holds the undeclared fields, one encoded
document a row (`shared.language`'s codec), and explicit nulls of declared fields. Columns below, with two leading underscores, are the
engine's and never reach a user's output.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidemark.shared.model.failures import Outage
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.plan import Port
from tidemark.shared.model.time import MAX_TIME

TS: Final = "__ts"
"""int64: event time, ms."""
WM: Final = "__wm"
"""int64: its split's own watermark before the record (`lateness: split`); MIN_TIME where there was none. Only on rows of a source."""
PART: Final = "__part"
"""int32: ordinal of the source split, second part of the order key (D11). Negative for a row that is no record of a source."""
NO_SPLIT: Final = -1
"""PART of a document that is no record: of a computation, a window. Its order key is its own, and no place of the source."""
NO_SPLIT_LEAST: Final = -(2**31)
"""Added to a hash of 31 bits it is the PART of a row that is no record, and keeps the order of the hashes."""
EVENT: Final = "__event"
"""int64 ms, in a window that closes: event time of a record, where TS is already the output's. TS tells it elsewhere."""
POS: Final = "__pos"
"""int64: position in the split: third part of the order key. Where streams flow together, above PLACE which of them (passing.py)."""
PLACE_BITS: Final = 52
"""Of a position in a split: 256 TB of a file, or as many records of a partition."""
PLACE: Final = (1 << PLACE_BITS) - 1
"""The bits of POS that are the position in the split, as people are shown it."""
ARRIVAL: Final = "__arr"
"""int64: `$$NOW` of the record, ms."""
REST: Final = "__rest"
"""binary: undeclared fields, encoded; null for none."""
RAW: Final = "__raw"
"""binary: the source record as it came, JSON, where REST would stand."""
AWAY: Final = "__away"
"""bool: idleness had left the row's split out of the watermark: the receiver judges its lateness (a missing column is false)."""
SRCKEY: Final = "__srckey"
"""binary: the source record's key."""
META: Final = "__meta"
"""binary: what `$setStreamMeta` has set, an encoded document; null, or no column, for nothing."""
NTH: Final = "__nth"
"""binary: which of its record's rows a row is, where `$createUUID` asks: 8 bytes for each `$unwind` on the way, 16 for each `$union`."""
KEY: Final = "__key"
"""binary: canonical bytes of the shuffle key."""
GROUP: Final = "__kg"
"""uint16: key group of KEY; routes the row on an edge partitioned by key."""
WSTART: Final = "__ws"
"""int64: start of the window, ms, on partials."""
WEND: Final = "__we"
"""int64: end of the window (exclusive), ms, on partials."""
AGAIN: Final = "__again"
"""bool, of rows in windows that overlap: the row is in an earlier window, too, which tells of it where it fails (null is false)."""

ENGINE_PREFIX: Final = "__"


MIN_OPEN: Final = "minOpenWindow"
MAX_OPEN: Final = "maxOpenWindow"
"""Among the counters of a window's operator, the only ones that are no counts: starts of the first and the last open window, ms."""


@dataclass(frozen=True, slots=True)
class Out:
    """Rows for the edges of one port of the vertex."""

    port: Port
    content: Content
    batch: pa.RecordBatch


class Operator(ABC):
    """One operator of one task. Calls come one at a time; time comes in as arguments; nothing else is read.

    The methods that are not abstract suit an operator that keeps no state and does nothing by processing time.
    """

    @property
    def kind(self) -> str:
        """Prefix of the names of the state's parts; another class that stands for this one has the same."""
        return type(self).__name__

    @abstractmethod
    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows have come on the input `tag` (plan.Edge.tag)."""

    @abstractmethod
    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Raise the input watermark to this (it never falls), and fire all that has become due. MAX_TIME at the end of input (E1)."""

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """Like `on_watermark`, but for some `items_max` rows and timers at the most, and whether any are left for the next call.

        A piece is the work of a lower watermark: output, order and watermark are what they would be, had that one come.
        """
        del items_max
        return self.on_watermark(watermark_ms), False

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """Processing time is now this (W5: it never falls)."""
        return ()

    def before_barrier(self) -> Sequence[Out]:
        """Give out rows that are held only for batching (partial aggregates), so that the snapshot need not hold them."""
        return ()

    @abstractmethod
    def output_watermark(self) -> int:
        """min(input watermark − allowedLateness, holds), ms: every later output row is at or above it (W1)."""

    def held_by(self) -> tuple[str, Why]:
        """(stage, reason): why the output watermark is below the input watermark."""
        return type(self).__name__, "operator"

    def held_rows(self, merge_above: int) -> int:
        """Rows that are held for the next barrier; beyond `merge_above` those that can be merged are merged before they are counted."""
        return 0

    def between(self) -> bool:
        """Whether since the last `snapshot` (or `restore`) a window has judged rows, or closed, by a watermark between two barriers."""
        return False

    def full(self) -> bool:
        """Whether the rows that wait for the watermark are so near their bound that senders ahead in event time should wait."""
        return False

    def next_processing_time(self) -> int:
        """When `on_processing_time` next has something to do, ms; MAX_TIME for never."""
        return MAX_TIME

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """State parts that changed since the last `snapshot` (or `restore`), None for one that is gone; never changes behaviour."""
        return {}

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:  # noqa: B027 - without state there is nothing to do
        """Take the state from these parts, out of the mapping; called once, before anything else. A part that stays in it is refused."""

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start, by name: late, duplicates, dead letters, …; for `stats`."""
        return {}


class OperatorError(Exception):
    """The task cannot go on. The message says what was expected, what was found, and what to do."""


class ScratchUnavailable(OperatorError, Outage):
    """A local disk is full or fails: time or its owner mends it, and the task's snapshots hold what lay there."""
