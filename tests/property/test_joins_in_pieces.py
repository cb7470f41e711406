# ruff: noqa: N802 -- a test carries its rule's name
"""`$join`: a watermark that is applied in pieces gives what it gives at once, also where a task ends and is restored between two (C13)."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import GROUP, KEY, PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.specs import JoinSpec

KEYS = ["a", "b", "c", "d"]
Row: TypeAlias = tuple[int, str]
"""(time, key)."""
Line: TypeAlias = tuple[int, int, int, str]
"""An output row: its order key and its document."""


def rows(found: Sequence[Row], first: int) -> pa.RecordBatch:
    """Rows with places from `first` on, in key groups of their own keys."""
    n = len(found)
    documents: list[Document] = [{"t": time, "k": key, "n": first + i} for i, (time, key) in enumerate(found)]
    engine = {
        TS: pa.array([t for t, _ in found], pa.int64()), PART: pa.array([0] * n, pa.int32()),
        POS: pa.array(range(first, first + n), pa.int64()), KEY: pa.array([canonical_key(k) for _, k in found], pa.binary()),
        GROUP: pa.array([KEYS.index(k) % 3 for _, k in found], pa.uint16()),
    }  # fmt: skip
    return batch_of(documents, engine)


def lines(outs: Sequence[Out]) -> list[Line]:
    found: list[Line] = []
    for out in outs:
        places: list[Any] = [out.batch.column(name).to_pylist() for name in (TS, PART, POS)]
        found += [(*place, str(d)) for *place, d in zip(*places, documents_of(out.batch), strict=True)]
    return found


class Task:
    """An operator that may end and be restored."""

    def __init__(self, spec: JoinSpec, context: TaskContext = NOWHERE) -> None:
        self._spec = spec
        self._context = context
        self.operator = JoinOperator(spec, context)
        self.parts: dict[StatePart, bytes] = {}

    def snapshot(self) -> None:
        """It lives on."""
        changed: Mapping[StatePart, bytes | None] = self.operator.snapshot()
        self.parts.update({part: data for part, data in changed.items() if data is not None})
        for part in [part for part, data in changed.items() if data is None]:
            del self.parts[part]

    def restart(self) -> None:
        self.snapshot()
        self.operator = JoinOperator(self._spec, self._context)
        self.operator.restore(dict(self.parts))

    def go_on(self, then: str) -> None:
        if then == "stored":
            self.snapshot()
        elif then == "restored":
            self.restart()


ROWS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(KEYS)), max_size=24)
THEN = st.sampled_from(["", "stored", "restored"])
STEP = st.tuples(ROWS, ROWS, st.integers(0, 14), st.lists(st.tuples(st.integers(1, 6), THEN), max_size=12), THEN)


UNMATCHED: list[Row] = [(time, "abcd"[time % 4]) for time in (9, 1, 10, 2, 11, 4, 8, 1, 2, 10, 3, 0)]


@example(
    steps=[([], UNMATCHED, 14, [(1, ""), (6, "restored"), (2, "restored")], "restored")],
    kind="full", within=(6, 4), memory_bytes=3_000,
)  # fmt: skip
@example(
    steps=[([(5, "a"), (12, "a"), (12, "a")], [], 0, [], "stored"), ([], [], 8, [], "restored")],
    kind="full", within=(0, 0), memory_bytes=1 << 30,
)  # fmt: skip
@example(
    steps=[([(1, "a")], [], 0, [], "stored"), ([(time, "a") for time in range(2, 13)], [], 0, [], "restored")],
    kind="full", within=(0, 0), memory_bytes=3_000,
)  # fmt: skip
@example(
    steps=[([(1, "a"), (5, "a"), (5, "a"), (5, "a")], [], 6, [], "stored"), ([], [], 2, [], "restored")],
    kind="left", within=(6, 6), memory_bytes=1 << 30,
)  # fmt: skip
@example(
    steps=[
        ([(1, "a"), (2, "b")], [], 0, [], ""), ([], [], 1, [], "stored"),
        ([], [(0, "a"), (0, "a")], 1, [(1, "restored")], "restored"),
    ],
    kind="inner", within=(1, 0), memory_bytes=3_000,
)  # fmt: skip
@given(
    steps=st.lists(STEP, max_size=4),
    kind=st.sampled_from(["inner", "left", "right", "full"]),
    within=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    memory_bytes=st.sampled_from([1, 1, 500, 3_000, 1 << 30]),
)
@settings(max_examples=600)
def test_C13_a_join_in_pieces_gives_what_it_gives_at_once(
    steps: list[tuple[list[Row], list[Row], int, list[tuple[int, str]], str]],
    kind: Any,
    within: tuple[int, int],
    memory_bytes: int,
) -> None:
    """The same rows with the same order keys; each piece is small and none of its rows is behind the watermark told before it (J4)."""
    spec = JoinSpec("pipeline[1].$join", kind, *within, "r")
    context = TaskContext(join_bytes_max=memory_bytes, shelve=pa.RecordBatchReader.read_all)
    whole, task, watermark_ms, place = JoinOperator(spec), Task(spec, context), MIN_TIME, 0
    expected: list[Line] = []
    found: list[Line] = []
    for left, right, ahead_ms, pieces, behind in [*steps, ([], [], MAX_TIME, [(1, "")], "")]:
        for side, some in (("left", left), ("right", right)):
            batch = rows([(max(time, watermark_ms), key) for time, key in some], place)
            place += len(some)
            for operator in (whole, task.operator):
                assert not operator.on_batch(batch, "rows", side)
        watermark_ms = min(MAX_TIME, max(watermark_ms, 0) + ahead_ms)
        expected += lines(whole.on_watermark(watermark_ms))
        turns = [*pieces, (MAX_TIME, "")]
        unfinished = True
        while unfinished:
            items, then = turns.pop(0) if len(turns) > 1 else turns[0]
            told_ms = task.operator.output_watermark()
            outs, unfinished = task.operator.on_watermark_piece(watermark_ms, items)
            came = lines(outs)
            assert all(time >= told_ms for time, *_ in came)
            assert task.operator.output_watermark() >= told_ms
            found += came
            if unfinished:
                task.go_on(then)
        assert task.operator.output_watermark() == whole.output_watermark()
        task.go_on(behind)
        if behind == "restored":
            assert not lines(task.operator.on_watermark(watermark_ms))
    assert sorted(found) == sorted(expected)
    assert len({line[:3] for line in found}) == len(found)
    assert (task.operator.counters()["keptBytes"], task.operator.counters()["keys"]) == (0, 0)


def test_C13_a_key_with_many_pairs_at_one_time_goes_out_row_by_row() -> None:
    """No piece finds more than it has room for and the pairs of one more row, though all rows have one key and one time."""
    operator = JoinOperator(JoinSpec("pipeline[1].$join", "inner", 0, 0, "r"))
    for side, first in (("left", 0), ("right", 300)):
        operator.on_batch(rows([(5, "a")] * 300, first), "rows", side)
    sizes, unfinished = [], True
    while unfinished:
        outs, unfinished = operator.on_watermark_piece(9, 1_000)
        sizes.append(sum(out.batch.num_rows for out in outs))
    assert sum(sizes) == 300 * 300
    assert max(sizes) < 1_000 + 300
