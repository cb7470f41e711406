"""Repeats: records with an id that was seen within the horizon (LANGUAGE.md, `recordId`).

Rules:

- DD1 Time is cut into buckets (ten minutes of event time, or `POSITIONS_A_BUCKET` positions); an id is remembered in the bucket of its
  first record. Where the document promises that repeats stay in their split (`recordIdScope: split`), a split's records are judged in their
  order, and a bucket counts until it lies wholly beyond the horizon behind the highest time (position) before the record: a function of the
  split's records alone, wherever batches are cut.
- DD2 Else ids are those of the source: rows come to the task of their id's key group, an epoch's in the order of `in_order`, and a bucket
  counts until it lies beyond the horizon behind the watermark of the record's own split before it. So the ids that count are a function
  of where the splits stood at the barriers, however many tasks there are; of the copies in one epoch the least late one counts.
- DD3 A record without an id (null or missing) is never a repeat; one on which the expression fails is a dead letter, and no repeat.
- DD4 A repeat is looked for before lateness is judged: it is never late, nor in a window. An id whose first record came late is late.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.expressions.ast import Expr, FieldPath
from tidemark.shared.language.stages import PositionHorizon, TimeHorizon
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.frames import Content
from tidemark.shared.model.ids import StatePart, key_group_part
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.base import GROUP, KEY, POS, TS, WM, OperatorError, Out
from tidemark.shared.operators.batches import int64s, is_tagged, select
from tidemark.shared.operators.cells import canonical_column
from tidemark.shared.operators.context import NOWHERE, TaskContext, Topics
from tidemark.shared.operators.dead_letters import Failures
from tidemark.shared.operators.frame import evaluated
from tidemark.shared.operators.keygroups import murmur2_column
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.remembered import CODEC, Remembered, StoredPart
from tidemark.shared.operators.specs import DistinctSpec

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

BUCKET_MS: Final = 600_000
"""Width of a bucket of ids: part of the snapshot's form."""
POSITIONS_A_BUCKET: Final = 65_536
_HEAD: Final = "head"


def record_ids(expr: Expr, batch: pa.RecordBatch, topic: Topics = None) -> tuple[pa.BinaryArray, Failures]:
    """Canonical bytes of each row's id, shape (n,), null where it has none or the expression fails (DD3)."""
    at = batch.schema.get_field_index(expr.names[0]) if isinstance(expr, FieldPath) and len(expr.names) == 1 else -1
    if at >= 0 and not batch.column(at).null_count:
        return canonical_column(batch.column(at), batch.schema.field(at)), Failures.of([])
    found = evaluated(expr, batch, topic)
    if not found.array.null_count and not found.errors and not is_tagged(found.field):
        return canonical_column(found.array, found.field), Failures.of([])
    keys = [None if v is None or v is MISSING else canonical_key(v) for v in found.values()]
    for row in found.errors:
        keys[row] = None
    return pa.array(keys, type=pa.binary()), found.failures("")


def check_size(size_bytes: int, context: TaskContext, path: str) -> None:
    """OperatorError where a task remembers more than it may."""
    if size_bytes > context.ids_bytes_max:
        raise OperatorError(
            f"{path}.recordId: the ids that are remembered take {size_bytes} bytes, and ids_bytes_max allows {context.ids_bytes_max};"
            " shorten recordIdHorizon, run more tasks, or raise ids_bytes_max in TIDEMARK_RUNTIME"
        )


def _oldest(highest: Int64s, horizon: TimeHorizon | PositionHorizon) -> Int64s:
    """The first bucket that counts where time, or the position, has come so far (DD1)."""
    by_time = isinstance(horizon, TimeHorizon)
    span = horizon.duration_ms if isinstance(horizon, TimeHorizon) else horizon.positions
    ends = (highest == MIN_TIME) | (highest == MAX_TIME)
    return np.where(ends, MIN_TIME, (highest - span) // (BUCKET_MS if by_time else POSITIONS_A_BUCKET))


@dataclass(slots=True)
class SplitIds:
    """The ids of one split in which repeats are promised to stay (DD1)."""

    record_id: Expr
    horizon: TimeHorizon | PositionHorizon
    topic: Topics = None
    _ids: Remembered = field(default_factory=Remembered)
    _highest: int = MIN_TIME
    _written_highest: int = MIN_TIME

    @property
    def size_bytes(self) -> int:
        """Of the ids, as a snapshot has them."""
        return self._ids.size_bytes

    def told_apart(self, batch: pa.RecordBatch) -> tuple[Bools, Failures]:
        """Which rows are no repeats, shape (n,); their ids are remembered. And the rows on which the expression fails (DD3)."""
        ids, failures = record_ids(self.record_id, batch, self.topic)
        rows = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
        out: Bools = np.ones(batch.num_rows, dtype=np.bool_)
        by_time = isinstance(self.horizon, TimeHorizon)
        at = int64s(batch.column(TS if by_time else POS))
        seen = np.maximum.accumulate(np.concatenate(([self._highest], at)))
        if len(rows):
            known = ids if len(rows) == len(ids) else ids.drop_null()
            buckets = at[rows] // (BUCKET_MS if by_time else POSITIONS_A_BUCKET)
            oldest = _oldest(seen[:-1][rows], self.horizon)
            out[rows] = self._ids.told_apart(known, murmur2_column(known), buckets, oldest)
        self._highest = int(seen[-1])
        self._ids.expire(int(_oldest(seen[-1:], self.horizon)[0]))
        return out, failures

    def snapshot(self, part: StatePart) -> dict[StatePart, bytes | None]:
        """Parts that changed; names begin with `<part>#`."""
        out = self._ids.snapshot(lambda _: part)
        if self._highest != self._written_highest:
            out[StatePart(f"{part}#{_HEAD}")] = CODEC.encode(StoredPart(self._highest))
            self._written_highest = self._highest
        return out

    def restore(self, parts: Mapping[StatePart, bytes]) -> None:
        """Remember the ids in the parts of one split."""
        head = next((part for part in parts if part.endswith(f"#{_HEAD}")), None)
        if head is not None:
            self._highest = CODEC.decode(parts[head]).highest
            self._written_highest = self._highest
        self._ids.restore({part: data for part, data in parts.items() if part != head})


class Distinct(Passing):
    """The ids of a source (DD2): an `Operator` whose rows carry KEY, null where there is no id, and GROUP, in the order of `in_order`."""

    def __init__(self, spec: DistinctSpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self._ids = Remembered(spec.key_groups, context.ids_bytes_max, context.shelve)
        self._duplicates = 0

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Without the repeats, and without the columns of the shuffle."""
        del tag
        keys = batch.column(KEY)
        rows = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        kept: Bools = np.ones(batch.num_rows, dtype=np.bool_)
        if len(rows):
            known = keys if len(rows) == len(keys) else keys.drop_null()
            buckets = int64s(batch.column(TS))[rows] // BUCKET_MS
            oldest = _oldest(int64s(batch.column(WM))[rows], self._spec.horizon)
            kept[rows] = self._ids.told_apart(known, murmur2_column(known), buckets, oldest)
            if self._context.shelve is None:
                check_size(self._ids.size_bytes, self._context, self._spec.path)
        self._duplicates += int((~kept).sum())
        batch = batch.drop_columns([KEY, GROUP])
        return (Out(OUT, content, batch if kept.all() else select(batch, kept)),) if kept.any() else ()

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Passed on. No split's own watermark is below it, so ids that it lets expire are not asked for again."""
        if watermark_ms != MAX_TIME:
            self._ids.expire(int(_oldest(np.array([watermark_ms]), self._spec.horizon)[0]))
        return super().on_watermark(watermark_ms)

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Key groups' runs that changed."""
        return self._ids.snapshot(key_group_part)

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """The key groups of this task."""
        self._ids.restore(parts)

    def counters(self) -> Mapping[str, int]:
        """Repeats since the task's start, and ids remembered now."""
        return {"duplicates": self._duplicates, "idsBytes": self._ids.size_bytes}
