"""`$join`: pairs documents of two streams that have one key and are near in time (language.md, Stages; protocol W1).

Rules:

- J1 Late is a row behind its own split's watermark (`lateness: split`, rows of a source), or behind the input watermark. It becomes a
  dead letter. On time is what is at the watermark: a right row at left + after still matches.
- J2 A row waits until the watermark is above its time. Then it is applied, in the order of (time, left before right, partition, position,
  bytes): it pairs with the rows of the other side that were applied before it. So a pair comes out with the later of its two times,
  and what comes out does not depend on how often the watermark moved, nor on which side was faster.
- J3 A row is dropped once the watermark is above the last time at which it may find a match. With an outer side it then comes out
  alone, with its own time, if it has found none.
- J4 The output watermark is the input's, held back to the earliest row that may yet come out alone: nothing that comes out is behind it.
- J5 Output order keys are (time, hash of the key, number): a key's outputs of one time are counted in the order of J2, a row's own
  output before its pairs.
- J6 Keys are equal as `$group`'s are: 1 and 1.0 are one key, null and missing are one.
- J7 Rows lie in memory, at most `TaskContext.join_bytes_max` of them: from the half of it on, the faster side is asked to wait; beyond it
  the task fails, and says what to do.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.language.values import append_field, decode_doc, encode_doc, encode_docs
from shared.model.held import Why
from shared.model.ids import KeyGroup, StatePart, key_group_part
from shared.model.plan import OUT
from shared.model.time import MAX_TIME, MIN_TIME
from shared.operators.base import ARRIVAL, GROUP, KEY, NO_SPLIT_LEAST, PART, POS, RAW, REST, TS, WM, Out
from shared.operators.batches import documents_of, int64s, select, user_columns
from shared.operators.context import NOWHERE, TaskContext
from shared.operators.dead_letters import LATE, LATE_CODE, Failure, dead_letters
from shared.operators.due import Due
from shared.operators.errors import OperatorError
from shared.operators.join_keys import LEFT, RIGHT, Found, JoinKey, KeySnapshot, Side, Waiting
from shared.operators.keygroups import murmur2_column
from shared.operators.specs import JoinSpec

_SIDES: Final[Mapping[str, Side]] = {"left": LEFT, "right": RIGHT}
_FORMAT: Final = 1
_EMPTY: Final = encode_doc({})
_NULL: Final = b"\xc0"
_POSITIVE: Final = np.uint32(0x7FFFFFFF)


class _GroupSnapshot(msgspec.Struct, array_like=True):
    format: int
    keys: list[KeySnapshot]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_GroupSnapshot)


class JoinOperator:
    """One task's share of a `$join`: an `Operator` whose rows carry KEY and GROUP, on the inputs `left` and `right`."""

    def __init__(self, spec: JoinSpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self._reach_ms = (spec.after_ms, spec.before_ms)
        self._outer = (spec.type in ("left", "full"), spec.type in ("right", "full"))
        self._watermark_ms = MIN_TIME
        self._keys: dict[bytes, JoinKey] = {}
        self._by_group: dict[KeyGroup, dict[bytes, JoinKey]] = {}
        self._dirty: set[KeyGroup] = set()
        self._stored: set[KeyGroup] = set()
        self._due = Due()
        """The keys that have something to do once the watermark is above a time."""
        self._holds = Due()
        """The same for J4."""
        self._bytes = 0
        self._counts = {"late": 0, "pairs": 0, "unmatchedLeft": 0, "unmatchedRight": 0}

    # --- events -----------------------------------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch, content: str, tag: str) -> Sequence[Out]:
        """Rows of one side wait (J2), late ones become dead letters (J1)."""
        del content
        side = _SIDES[tag]
        late = int64s(batch.column(TS)) < self._floors(batch)
        outs: list[Out] = []
        if late.any():
            failures = [Failure(int(row), LATE, LATE_CODE, self._path(side)) for row in np.flatnonzero(late)]
            self._counts["late"] += len(failures)
            outs += dead_letters(batch, failures, self._operator, self._context)
            batch = select(batch, ~late)
        if batch.num_rows:
            self._wait(batch, side)
        return outs

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Apply what it lets be applied, and drop what it lets be dropped."""
        if watermark_ms <= self._watermark_ms:
            return ()
        self._watermark_ms = watermark_ms
        found: list[Found] = []
        most = self._context.join_pairs_max
        for data in self._due.take(watermark_ms):
            key = self._keys[data]
            before = key.size_bytes
            done = (key.apply(watermark_ms, self._reach_ms), key.expire(watermark_ms, self._reach_ms, self._outer))
            found += islice(chain(*done), most + 1 - len(found))
            if len(found) > most:
                raise OperatorError(
                    f"{self._spec.path}: the watermark {watermark_ms} lets more than {most} documents out at once, and join_pairs_max"
                    " allows no more: see whether the keys tell rows apart, shorten `within`, or raise join_pairs_max in TIDEMARK_RUNTIME"
                )
            self._bytes += key.size_bytes - before
            self._dirty.add(key.group)
            self._note(key)
        return self._outs(found)

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        """Nothing depends on it."""
        del now_ms
        return ()

    def before_barrier(self) -> Sequence[Out]:
        """Nothing is held for batching."""
        return ()

    def output_watermark(self) -> int:
        """J4, ms."""
        return min(self._watermark_ms, self._holds.first_ms())

    def held_by(self) -> tuple[str, Why]:
        """J4."""
        return "$join", "match"

    def full(self) -> bool:
        """J7: half of what may be kept is."""
        return 2 * self._bytes > self._context.join_bytes_max

    def next_processing_time(self) -> int:
        """Never."""
        return MAX_TIME

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start, and what is kept now."""
        return {**self._counts, "keptBytes": self._bytes, "keys": len(self._keys)}

    # --- rows in ----------------------------------------------------------------------------------------------------------

    def _floors(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | int:
        """Behind what a row is late (J1): one for all, or one a row, shape (n,)."""
        if self._spec.lateness == "split" and WM in batch.schema.names:
            return np.maximum(int64s(batch.column(WM).fill_null(MIN_TIME)), self._watermark_ms)
        return self._watermark_ms

    def _wait(self, batch: pa.RecordBatch, side: Side) -> None:
        times = batch.column(TS).to_pylist()
        places = [_numbers(batch, name) for name in (PART, POS)]
        arrivals = batch.column(ARRIVAL).to_pylist() if ARRIVAL in batch.schema.names else times
        keys = zip(batch.column(KEY).to_pylist(), batch.column(GROUP).to_pylist(), strict=True)
        rows = zip(times, *places, self._encoded(batch, side), arrivals, strict=True)
        touched: dict[bytes, JoinKey] = {}
        for (data, group), (time, part, position, row, arrival) in zip(keys, rows, strict=True):
            key = self._keys.get(data) or self._add(data, KeyGroup(group))
            before = key.size_bytes
            key.wait(Waiting(time, side, part, position, row, arrival))
            self._bytes += key.size_bytes - before
            touched[data] = key
        for key in touched.values():
            self._dirty.add(key.group)
            self._note(key)
        if self._bytes > self._context.join_bytes_max:
            raise OperatorError(
                f"{self._spec.path}: the rows that may still find a match take {self._bytes} bytes, and join_bytes_max allows"
                f" {self._context.join_bytes_max}; the watermark stands at {self._watermark_ms} ms: see which source holds it back, make"
                " `within` shorter, run more tasks, or raise join_bytes_max in TIDEMARK_RUNTIME"
            )

    def _encoded(self, batch: pa.RecordBatch, side: Side) -> list[bytes]:
        """The rows' documents as bytes; of left ones without the field that the right one takes."""
        if not user_columns(batch) and RAW not in batch.schema.names and REST in batch.schema.names:
            rows = [_EMPTY if data is None else data for data in batch.column(REST).to_pylist()]
        else:
            rows = encode_docs(documents_of(batch))
        if side == RIGHT:
            return rows
        name = self._spec.as_.encode("utf-8", "surrogatepass")
        return [self._without(row) if name in row else row for row in rows]

    def _without(self, row: bytes) -> bytes:
        document = decode_doc(row)
        document.pop(self._spec.as_, None)
        return encode_doc(document)

    def _add(self, data: bytes, group: KeyGroup) -> JoinKey:
        key = self._keys[data] = JoinKey(data, group)
        self._by_group.setdefault(group, {})[data] = key
        return key

    # --- what is due --------------------------------------------------------------------------------------------------------

    def _note(self, key: JoinKey) -> None:
        """Remember when the key has something to do, and what it holds; forget it if it is empty."""
        due_ms, hold_ms = key.due_ms(self._reach_ms), key.hold_ms(self._outer)
        if due_ms is None:
            del self._keys[key.data], self._by_group[key.group][key.data]
        self._due.note(key.data, due_ms)
        self._holds.note(key.data, hold_ms)

    # --- documents out ------------------------------------------------------------------------------------------------------

    def _outs(self, found: list[Found]) -> Sequence[Out]:
        if not found:
            return ()
        found.sort(key=lambda f: (f.time_ms, f.key, f.number))  # J5
        alone = [sum(f.left is None for f in found), sum(f.right is None for f in found)]
        self._counts["unmatchedRight"] += alone[0]
        self._counts["unmatchedLeft"] += alone[1]
        self._counts["pairs"] += len(found) - sum(alone)
        hashes = murmur2_column(pa.array([f.key for f in found], type=pa.binary())) & _POSITIVE
        columns = {
            REST: pa.array(self._documents(found), type=pa.binary()),
            TS: pa.array([f.time_ms for f in found], type=pa.int64()),
            PART: pa.array((hashes.astype(np.int64) + NO_SPLIT_LEAST).astype(np.int32)),
            POS: pa.array([f.number for f in found], type=pa.int64()),
            ARRIVAL: pa.array([f.arrival_ms for f in found], type=pa.int64()),
        }
        return (Out(OUT, "rows", pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))),)

    def _documents(self, found: Iterable[Found]) -> list[bytes]:
        name = self._spec.as_
        return [
            append_field(_EMPTY if f.left is None else f.left, name, _NULL if f.right is None else f.right)
            for f in found
        ]

    @property
    def _operator(self) -> str:
        return self._spec.path.rpartition(".")[2]

    def _path(self, side: Side) -> str:
        return self._spec.path if side == LEFT else f"{self._spec.path}.from"

    # --- state --------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Key groups that changed; None for one that has no key left."""
        parts: dict[StatePart, bytes | None] = {}
        for group in sorted(self._dirty):
            keys = self._by_group.get(group, {})
            if keys:
                stored = [keys[data].snapshot() for data in sorted(keys)]
                parts[key_group_part(group)] = _ENCODER.encode(_GroupSnapshot(_FORMAT, stored))
                self._stored.add(group)
            elif group in self._stored:
                parts[key_group_part(group)] = None
                self._stored.discard(group)
        self._dirty.clear()
        return parts

    def restore(self, parts: Mapping[StatePart, bytes]) -> None:
        """The key groups of this task; the input watermark follows as the first `on_watermark`. OperatorError for what is no state."""
        for part, data in parts.items():
            group = KeyGroup(int(part.partition(":")[2]))
            try:
                stored = _DECODER.decode(data)
            except msgspec.DecodeError as error:
                raise OperatorError(
                    f"{part}: the snapshot's {len(data)} bytes are no state of a $join: {error}"
                ) from error
            if stored.format != _FORMAT:
                raise OperatorError(f"{part}: snapshot format {stored.format}, this version reads {_FORMAT}")
            for item in stored.keys:
                key = self._add(item.key, group)
                key.restore(item)
                self._bytes += key.size_bytes
                self._note(key)
            self._stored.add(group)


def _numbers(batch: pa.RecordBatch, name: str) -> list[int]:
    """An engine's column of places; 0 where the rows have none."""
    found = batch.column(name).to_pylist() if name in batch.schema.names else [0] * batch.num_rows
    return [number or 0 for number in found]
