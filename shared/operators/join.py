"""`$join`: pairs documents of two streams that have one key and are near in time (LANGUAGE.md, Stages; protocol W1).

Rules:

- J1 Late is a row behind its own split's watermark (`lateness: split`, rows of a source), or behind the input watermark. It becomes a
  dead letter. A row at the watermark is on time: a right row at left + after still matches.
- J2 A row waits until the watermark is above its time. Then it is applied, in the order of (time, left before right, partition, position,
  bytes): it pairs with the rows of the other side that were applied before it. So a pair comes out with the later of its two times,
  and the output does not depend on how often the watermark moved, nor on which side was faster.
- J3 A row is dropped once the watermark is above the last time at which it may find a match. With an outer side it then comes out
  alone, with its own time, if it has found none.
- J4 The output watermark is the input's, held back to the earliest row that may yet come out alone: no output row is behind it.
- J5 Output order keys are (time, hash of the key, number): a key's outputs of one time are counted in the order of J2, a row's own
  output before its pairs.
- J6 Keys are equal as `$group`'s are: 1 and 1.0 are one key, null and missing are one.
- J7 Rows lie in memory, at most `TaskContext.join_bytes_max` of them, the others on a disk (`join_rows` has the rules). Where more than
  `join_ahead_bytes_max` of them wait for the watermark, senders that are ahead in event time are asked to wait.
- J8 A watermark that lets much come due is applied in pieces, each the work of a lower watermark. Where the rows of one time find more than
  a piece has room for, that time is divided between two rows: those that are left still wait, and the key's numbers (J5) go on.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import joining
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.formats import JOIN_STATE, Codec, FormatError, unknown_part
from tidemark.shared.model.frames import Content
from tidemark.shared.model.held import Why
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import (
    ARRIVAL,
    GROUP,
    KEY,
    NO_SPLIT_LEAST,
    PART,
    POS,
    REST,
    TS,
    WM,
    Operator,
    OperatorError,
    Out,
)
from tidemark.shared.operators.batches import int64s, select
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dead_letters import LATE, LATE_CODE, Cause, Failures, dead_letters
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.join_rows import Arrived, JoinedRows, JoinRows
from tidemark.shared.operators.join_runs import RowsSnapshot
from tidemark.shared.operators.join_slots import LEFT, RIGHT, Side
from tidemark.shared.operators.keygroups import murmur2_column
from tidemark.shared.operators.specs import JoinSpec

_SIDES: Final[Mapping[str, Side]] = {"left": LEFT, "right": RIGHT}
_POSITIVE: Final = np.uint32(0x7FFFFFFF)
_CODEC: Final[Codec[RowsSnapshot]] = Codec(JOIN_STATE, RowsSnapshot)
"""Of a key group."""
_PART: Final = re.compile(r"kg:(\d+)(?:#(\d+))?")
_IN_MEMORY: Final = 2**62
"""Instead of the number of a run."""


class JoinOperator(Operator):
    """One task's share of a `$join`: an `Operator` whose rows carry KEY and GROUP, on the inputs `left` and `right`."""

    def __init__(self, spec: JoinSpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        outer = (spec.type in ("left", "full"), spec.type in ("right", "full"))
        self._rows = JoinRows((spec.after_ms, spec.before_ms), outer, context.join_bytes_max, context.shelve)
        self._watermark_ms = MIN_TIME
        """The input's: rows behind it are late."""
        self._reached_ms = MIN_TIME
        """That of the work which is done (J8)."""
        self._counts = {"late": 0, "pairs": 0, "unmatchedLeft": 0, "unmatchedRight": 0}

    # --- events -----------------------------------------------------------------------------------------------------------

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """Rows of one side wait (J2), late ones become dead letters (J1)."""
        del content
        side = _SIDES[tag]
        late = int64s(batch.column(TS)) < self._floors(batch)
        outs: list[Out] = []
        if late.any():
            failures = Failures.alike(np.flatnonzero(late), Cause(LATE, LATE_CODE, self._path(side)))
            self._counts["late"] += len(failures)
            outs += dead_letters(batch, failures, self._operator, self._context.of_input(tag))
            batch = select(batch, ~late)
        if batch.num_rows:
            self._wait(batch, side)
        return outs

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        """Apply the rows that the watermark has passed, and drop those that can find no match any more."""
        return self._advance(watermark_ms, MAX_TIME)[0]

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        """The same for some rows and documents (J8)."""
        return self._advance(watermark_ms, items_max)

    def _advance(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        watermark_ms = max(watermark_ms, self._watermark_ms)
        if watermark_ms <= self._reached_ms:
            return (), False
        self._watermark_ms = watermark_ms
        if self._rows.due_ms() >= watermark_ms:
            self._reached_ms = watermark_ms
            return (), False
        most = self._context.join_pairs_max
        found = self._rows.advance(watermark_ms, most, items_max)
        if found is None:
            raise OperatorError(
                f"{self._spec.path}: the watermark {watermark_ms} lets more than {most} documents out at once, and join_pairs_max"
                " allows no more: see whether the keys tell rows apart, shorten `within`, or raise join_pairs_max in TIDEMARK_RUNTIME"
            )
        self._reached_ms = found.reached_ms
        outs = self._outs(found)
        self._rows.drop(found)
        return outs, self._reached_ms < watermark_ms

    def output_watermark(self) -> int:
        """J4, ms."""
        return min(self._reached_ms, self._rows.hold_ms())

    def held_by(self) -> tuple[str, Why]:
        """J4."""
        return "$join", "match"

    def full(self) -> bool:
        """J7: too many rows wait for the watermark."""
        return self._rows.waiting_bytes > self._context.join_ahead_bytes_max

    def counters(self) -> Mapping[str, int]:
        """Totals since the task's start; the rows and keys in memory now, and the rows on the disk."""
        slots = self._rows.slots
        return {**self._counts, "keptBytes": slots.size_bytes, "keys": len(slots), "diskBytes": self._rows.cold_bytes}

    # --- rows in ----------------------------------------------------------------------------------------------------------

    def _floors(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64] | int:
        """The time behind which a row is late (J1): one for all, or one a row, shape (n,)."""
        if self._spec.lateness == "split" and WM in batch.schema.names:
            return np.maximum(int64s(batch.column(WM).fill_null(MIN_TIME)), self._watermark_ms)
        return self._watermark_ms

    def _wait(self, batch: pa.RecordBatch, side: Side) -> None:
        times = int64s(batch.column(TS))
        arrivals = int64s(batch.column(ARRIVAL)) if ARRIVAL in batch.schema.names else times
        documents = encoded(batch, () if side == RIGHT else (self._spec.as_,))
        parts, positions, groups = (_numbers(batch, name) for name in (PART, POS, GROUP))
        arrived = Arrived(times, arrivals, parts, positions, batch.column(KEY), groups, documents)
        self._rows.wait(arrived, side)

    # --- documents out ------------------------------------------------------------------------------------------------------

    def _outs(self, found: JoinedRows) -> Sequence[Out]:
        slots = self._rows.slots
        rows, keys = slots.ordered(found.rows, found.keys)  # J5
        alone = [int((rows[:, side] < 0).sum()) for side in (joining.LEFT, joining.RIGHT)]
        self._counts["unmatchedRight"] += alone[0]
        self._counts["unmatchedLeft"] += alone[1]
        self._counts["pairs"] += len(rows) - sum(alone)
        outs = []
        for some, documents in slots.documents(rows, encode_value(self._spec.as_)):
            part = rows[some]
            hashes = murmur2_column(keys[some]) & _POSITIVE
            columns = {
                REST: documents,
                TS: pa.array(part[:, joining.FOUND_TIME]),
                PART: pa.array((hashes.astype(np.int64) + NO_SPLIT_LEAST).astype(np.int32)),
                POS: pa.array(part[:, joining.FOUND_NUMBER]),
                ARRIVAL: pa.array(part[:, joining.FOUND_ARRIVAL]),
            }
            outs.append(Out(OUT, "rows", pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))))
        return outs

    @property
    def _operator(self) -> str:
        return self._spec.path.rpartition(".")[2]

    def _path(self, side: Side) -> str:
        return self._spec.path if side == LEFT else f"{self._spec.path}.from"

    # --- state --------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        """Of key groups that changed, the rows in memory; the rows of new runs (JR3). None for a part that is gone."""
        found = self._rows.snapshot().items()
        return {part: None if stored is None else _CODEC.encode(stored) for part, stored in found}

    def restore(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """The key groups of this task; the input watermark follows as the first `on_watermark`. OperatorError for bad bytes."""
        runs: dict[int, list[tuple[int, StatePart]]] = {}
        for part in parts:
            with _telling(part):
                of_group, run = _placed(part)
            runs.setdefault(_IN_MEMORY if run is None else run, []).append((of_group, part))
        in_memory = runs.pop(_IN_MEMORY, [])
        for number in sorted(runs):
            found = [(group, part, _decoded(part, parts.pop(part))) for group, part in runs[number]]
            with _telling(runs[number][0][1]):
                self._rows.restore_run(number, found)
        for group, part in in_memory:
            stored = _decoded(part, parts.pop(part))
            with _telling(part):
                self._rows.restore(stored, group)
        self._rows.restored()


def _placed(part: StatePart) -> tuple[int, int | None]:
    """The key group, and the run where it is a part of one. FormatError for another name."""
    name = _PART.fullmatch(part)
    if name is None:
        raise unknown_part(JOIN_STATE.name, part, "kg:G or kg:G#N")
    return int(name[1]), int(name[2]) if name[2] else None


def _decoded(part: StatePart, data: bytes) -> RowsSnapshot:
    with _telling(part):
        return _CODEC.decode(data)


@contextmanager
def _telling(part: StatePart) -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise OperatorError(f"{part}: {error}") from error
    except ValueError as error:
        raise OperatorError(f"{part}: {JOIN_STATE.name} cannot be: {error}") from error


def _numbers(batch: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    """An engine's column of places; 0 where the rows have none. Shape (n,)."""
    if name not in batch.schema.names:
        return np.zeros(batch.num_rows, dtype=np.int64)
    return int64s(pc.fill_null(batch.column(name), 0).cast(pa.int64()))
