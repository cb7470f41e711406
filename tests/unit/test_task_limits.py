"""Bounds of one task's operators, and of its process' caches: each acts at its value, and says what to do."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.computations import Marks
from tests.harness.fronted import Fronted
from tidemark.shared.computation.loading import make_computation
from tidemark.shared.language import patterns
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.base import PART, POS, TS, Operator, OperatorError
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import build_operator
from tidemark.shared.operators.computation import KeyedComputation, row_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning.physical import plan_processor

A, B = SplitId("t-0"), SplitId("t-1")
SECOND = {"size": 1, "unit": "second"}


@pytest.fixture
def kept_patterns() -> Iterator[None]:
    """The process' patterns are as before, whatever a test does."""
    yield
    patterns.keep_patterns(patterns.KEPT_DEFAULT)


def front(bytes_max: int) -> Fronted:
    """A source's front of two splits that remembers ids within ten positions."""
    source = {
        "connectionName": "c",
        "topic": "t",
        "recordId": "$i",
        "recordIdHorizon": {"positions": 10},
        "recordIdScope": "split",
    }
    made = Fronted(FrontSpec(parse({"pipeline": [{"$source": source}]}).source), TaskContext(ids_bytes_max=bytes_max))
    made.assign({A: 0, B: 1})
    return made


def records(split: SplitId, at: int, *ids: int) -> RawBatch:
    """Records with these ids, from a position on."""
    positions = np.arange(at, at + len(ids), dtype=np.int64)
    return RawBatch(split, int(split[-1]), positions, positions, pa.array([b'{"i": %d}' % i for i in ids], pa.binary()))


def size_of(*batches: RawBatch) -> int:
    """What the ids of these records take."""
    made = front(10**9)
    for batch in batches:
        made.on_records(batch)
    return sum(held.ids.size_bytes for held in made.front._splits.values() if held.ids is not None)


def test_ids_of_a_task_are_bounded() -> None:
    """As many as fit are remembered, over all splits; more fail the task, with the place, the setting and what to do."""
    batches = [records(A, 0, 1, 2, 3), records(B, 0, 4, 5)]
    most = size_of(*batches)
    for made, fits in ((front(most), True), (front(most - 1), False)):
        made.on_records(batches[0])
        if fits:
            made.on_records(batches[1])
            continue
        with pytest.raises(
            OperatorError, match=r"\$source\.recordId: .*ids_bytes_max allows .*recordIdHorizon.*TIDEMARK_RUNTIME"
        ):
            made.on_records(batches[1])


def test_ids_that_are_forgotten_make_room_and_those_of_a_snapshot_count() -> None:
    """A bucket that expires is no more counted; what is restored is."""
    far = 10 * 65_536
    assert size_of(records(A, 0, 1, 2, 3), records(A, far, 9)) == size_of(records(A, far, 9))
    made = front(10**9)
    made.on_records(records(A, 0, 1, 2, 3))
    again = Fronted(made.spec, made.context)
    again.restore({part: data for part, data in made.snapshot().items() if data is not None})
    again.assign({A: 0})
    assert again.front._splits[A].ids.size_bytes == made.front._splits[A].ids.size_bytes > 0  # type: ignore[union-attr]


# --- windows ----------------------------------------------------------------------------------------------------------


def window(context: TaskContext, accumulator: dict[str, Any], **limits: int) -> tuple[Operator, Operator]:
    """The sender's half of a window, and its step."""
    stage = {"$tumblingWindow": {"interval": SECOND, "pipeline": [{"$group": {"_id": "$k", "v": accumulator}}]}}
    source = {"$source": {"connectionName": "c", "topic": "t", "schema": {"k": "long", "v": "long"}}}
    document = {"pipeline": [source, stage], "options": {"limits": limits}}
    plan = plan_processor(parse(document), engine="local", collects=True)
    partial = next(spec for spec in plan.vertices[0].chain if type(spec).__name__ == "PartialSpec")
    return build_operator(partial, context), build_operator(plan.vertices[1].chain[0], context)


def batch(*keys: int) -> pa.RecordBatch:
    """Rows of these keys, all in one window."""
    n = len(keys)
    engine = {
        TS: pa.array([5] * n, pa.int64()), PART: pa.array([0] * n, pa.int32()), POS: pa.array(range(n), pa.int64()),
    }  # fmt: skip
    columns = {"k": pa.array(keys, pa.int64()), "v": pa.array([1] * n, pa.int64())}
    return pa.RecordBatch.from_pydict({**columns, **engine})


@pytest.mark.parametrize(("unmerged", "sent"), [(1, False), (1_000, True)])
def test_partials_are_merged_when_there_are_so_many(unmerged: int, sent: bool) -> None:
    """Merged early they stay within what may be held; unmerged, the same groups count again and again and are sent before the barrier."""
    partial, _ = window(TaskContext(unmerged_groups_max=unmerged, held_groups_max=4), {"$sum": "$v"})
    outs = [out for _ in range(3) for out in partial.on_batch(batch(1, 2), "rows", "")]
    assert bool(outs) == sent
    total = sum(row for out in [*outs, *partial.before_barrier()] for row in out.batch.column("__n").to_pylist())
    assert total == 6


@pytest.mark.parametrize("pushed", ["$v", {"$concatArrays": [["$v"]]}], ids=["on columns", "row by row"])
def test_a_group_that_is_too_large_fails_its_sender_as_it_fails_the_step(pushed: Any) -> None:
    """Wherever its rows meet, in one batch or in the step, and whichever way they are aggregated: which row is too much is chance."""
    for most, fits in ((3, True), (2, False)):
        partial, step = window(TaskContext(), {"$push": pushed}, valuesPerGroup=most)
        del step
        rows = batch(1, 1, 1).set_column(1, "v", pa.array([1, 2, 3], pa.int64()))
        if fits:
            assert [out.batch.num_rows for out in (*partial.on_batch(rows, "rows", ""), *partial.before_barrier())] == [
                1
            ]
            continue
        with pytest.raises(OperatorError, match=r"\$group: \$push keeps more than 2 values.*valuesPerGroup"):
            partial.on_batch(rows, "rows", "")


def test_open_windows_are_bounded_by_what_they_keep() -> None:
    """What becomes one group counts once; one group too many fails the task with the place, the setting and what to do."""
    partial, step = window(TaskContext(open_rows_max=3), {"$sum": "$v"})
    for keys in ((1, 2), (2, 3), (1, 2, 3)):
        partial.on_batch(batch(*keys), "rows", "")
        for out in partial.before_barrier():
            assert not step.on_batch(out.batch, out.content, "")
    partial.on_batch(batch(4), "rows", "")
    (out,) = partial.before_barrier()
    with pytest.raises(
        OperatorError, match=r"pipeline\[1\]\.\$tumblingWindow: open windows keep 4 .*open_rows_max allows 3"
    ):
        step.on_batch(out.batch, out.content, "")


def test_open_windows_within_their_bound_come_out_as_without_one() -> None:
    """Taking in early changes no result."""
    found = []
    for most in (3, 10**6):
        partial, step = window(TaskContext(open_rows_max=most), {"$sum": "$v"})
        for keys in ((1, 2), (2, 3), (1, 2, 3)):
            partial.on_batch(batch(*keys), "rows", "")
            for out in partial.before_barrier():
                step.on_batch(out.batch, out.content, "")
        outs = [*step.on_watermark(10_000), *step.before_barrier()]
        found.append([d for out in outs if out.port == OUT for d in documents_of(out.batch)])
    assert found[0] == found[1]
    assert sorted(d["v"] for d in found[0]) == [2, 2, 3]


# --- computations -----------------------------------------------------------------------------------------------------


def test_one_callback_may_not_let_out_more_than_its_task() -> None:
    """The document's limit and the process' contradict each other: said when the task is built, with both names."""
    stage = {"$compute": {"class": "tests.harness.computations:Marks", "key": "$k"}}
    source = {"$source": {"documents": [{"k": 1}]}}
    plan = plan_processor(
        parse({"pipeline": [source, stage], "options": {"limits": {"outputsPerCall": 8}}}), collects=True
    )
    spec = plan.vertices[1].chain[0]
    build_operator(spec, TaskContext(computed_max=8))
    with pytest.raises(
        OperatorError, match=r"\$compute: options.limits.outputsPerCall=8 must not be above computed_max=7"
    ):
        build_operator(spec, TaskContext(computed_max=7))


def test_what_one_step_of_time_lets_out_is_bounded() -> None:
    """Two documents where two are allowed; a third fails the task with the setting and what to do, and is no dead letter."""
    for most, fits in ((2, True), (1, False)):
        task = KeyedComputation(make_computation(Marks), computed_max=most)
        task.on_records([row_of(1, {"n": "a"}, 10), row_of(2, {"n": "b"}, 20)])
        if fits:
            assert len(task.on_watermark(30).outputs) == 2
            continue
        with pytest.raises(
            OperatorError, match="more than 1 documents out of this task, and computed_max allows no more"
        ):
            task.on_watermark(30)


# --- caches -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kept_patterns")
def test_patterns_are_kept_as_many_as_the_setting_says() -> None:
    """The one asked for longest ago is made anew; what it matches does not change."""
    for most, made in ((2, 2), (1, 3)):
        patterns.keep_patterns(most)
        found = [patterns.compile_pattern(pattern) for pattern in ("a+", "b+", "a+")]
        assert patterns._kept.compile.cache_info().misses == made
        assert found[0].search("xaa").span() == found[2].search("xaa").span() == (1, 3)
