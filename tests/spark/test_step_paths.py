# ruff: noqa: N802 -- a test carries its rule's name
"""However a step's rows get to their executors, by one task, by several or by a shuffle, the same rows come out as on Arrow."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from tests.harness.bench.documents import windowed
from tidemark.shared.language.documents import parse
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.aggregation import merged
from tidemark.shared.operators.base import WEND, WSTART
from tidemark.shared.operators.batches import one_batch
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.step import EpochInput, Step, StepState, Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import plan_processor
from tidemark.shared.planning.specs import StepHead
from tidemark.shared.runtime.exchange import parquet_bytes
from tidemark.spark_stages import executing
from tidemark.spark_stages.executing import WORK_PROPERTY, Order, SegmentDiffers, packed
from tidemark.spark_stages.manifest import StageState, StateSegment
from tidemark.spark_stages.session import open_session
from tidemark.spark_stages.step import OutputSegment, SparkResult, SparkStep

pytestmark = pytest.mark.spark
MINUTE = 60_000
WINDOWS, KEYS, SEGMENTS = 5, 40, 3


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    found = open_session("test step paths")
    yield found
    found.stop()


@pytest.fixture
def plan() -> WindowPlan:
    vertices = plan_processor(parse(json.loads(windowed("a", "b", epoch_ms=100)))).vertices
    head = next(v.head for v in vertices if isinstance(v.head, StepHead))
    return WindowPlan(head.step.window)


def partials(plan: WindowPlan, seed: int) -> pa.Table:
    """Partials of several windows, some keys in each."""
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, WINDOWS, 200) * MINUTE
    keys = [f"key-{n:012d}" for n in rng.integers(0, KEYS, 200)]
    amounts = rng.integers(0, 1000, 200)
    columns = [starts, starts + MINUTE, keys, np.ones(200, dtype=np.int64), amounts]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, plan.partial_schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=plan.partial_schema)


def stored(root: Path, plan: WindowPlan) -> tuple[list[pa.Table], list[StateSegment]]:
    """Segments with partials, in a folder."""
    tables = [partials(plan, seed) for seed in range(SEGMENTS)]
    segments = []
    for number, table in enumerate(tables):
        data = parquet_bytes(table)
        (root / f"{number}.parquet").write_bytes(data)
        low, high = min(table[WSTART].to_pylist()), max(table[WEND].to_pylist())
        digest = hashlib.sha256(data).hexdigest()
        segments.append(StateSegment(f"{number}.parquet", table.num_rows, len(data), digest, low, high))
    return tables, segments


def rows_of(root: Path, result: SparkResult) -> list[dict[str, object]]:
    """What a step gave out, segment by segment."""
    return [row for out in result.outs for row in pq.read_table(root / out.name).to_pylist()]


PATHS = {
    "one task": (10**6, 10**6, 10**6),
    "several tasks": (10**6, 1, 10**6),
    "a task a window": (10**6, 10**6, 1),
    "shuffle": (0, 1, 10**6),
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("watermark_ms", [2 * MINUTE, MAX_TIME])
def test_every_path_gives_the_rows_of_arrow(
    session: SparkSession,
    plan: WindowPlan,
    tmp_path: Path,
    path: str,
    watermark_ms: int,
) -> None:
    """One job, and the same rows; without a shuffle in the order of their windows, too."""
    gathered, task_rows, large = PATHS[path]
    tables, segments = stored(tmp_path, plan)
    times = Times(MIN_TIME, watermark_ms, 0, 7)
    step = SparkStep(
        session, plan, str(tmp_path), gathered_rows_max=gathered, task_rows=task_rows, large_task_rows=large
    )
    result = step(StageState(), segments, times, "out/x", arrived=True)
    expected = Step(plan)(StepState(), EpochInput(tuple(map(one_batch, tables))), times)
    wanted = [row for out in expected.outs for row in out.batch.to_pylist()]
    found = rows_of(tmp_path, result)
    assert result.jobs == 1
    assert result.output_watermark_ms == expected.output_watermark_ms
    by = (lambda row: json.dumps(row, default=str)) if path == "shuffle" else (lambda row: str(row["start"]))
    assert sorted(found, key=by) == sorted(wanted, key=by)
    if path != "shuffle":
        assert [row["start"] for row in found] == [row["start"] for row in wanted]


@pytest.mark.parametrize("path", PATHS)
def test_R4_of_a_segment_that_several_tasks_list_each_counts_its_key_groups(
    session: SparkSession, plan: WindowPlan, tmp_path: Path, path: str
) -> None:
    """Whichever way the rows take: two tasks behind a rescale give out together what one would, each key once."""
    gathered, task_rows, large = PATHS[path]
    tables, segments = stored(tmp_path, plan)
    times = Times(MIN_TIME, MAX_TIME, 0, 7)
    found: list[dict[str, object]] = []
    for number, only in enumerate([(0, 40), (40, 128)]):
        step = SparkStep(
            session,
            plan,
            str(tmp_path),
            NOWHERE,
            128,
            gathered_rows_max=gathered,
            task_rows=task_rows,
            large_task_rows=large,
        )
        state = StageState(tuple(structs.replace(segment, only=only) for segment in segments))
        share = rows_of(tmp_path, step(state, (), times, f"out/{number}", arrived=False))
        assert 0 < len(share) < WINDOWS * KEYS
        found += share
    expected = Step(plan)(StepState(), EpochInput(tuple(map(one_batch, tables))), times)
    wanted = [row for out in expected.outs for row in out.batch.to_pylist()]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_an_altered_segment_is_named(session: SparkSession, plan: WindowPlan, tmp_path: Path) -> None:
    """Bytes that are not those that the manifest lists fail the step, with the segment's name and both digests."""
    _, segments = stored(tmp_path, plan)
    (tmp_path / segments[1].name).write_bytes(parquet_bytes(partials(plan, 99)))
    step = SparkStep(session, plan, str(tmp_path))
    with pytest.raises(PythonException, match=f"{segments[1].name}: expected digest {segments[1].digest}"):
        step(StageState(), segments, Times(MIN_TIME, MAX_TIME, 0, 7), "out/x", arrived=True)


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_P2_a_restore_names_a_segment_that_is_not_as_listed(
    session: SparkSession, plan: WindowPlan, tmp_path: Path, how: str
) -> None:
    """Executors look at every segment of a restored manifest; one of other bytes, or none, is named with its digest."""
    _, segments = stored(tmp_path, plan)
    step = SparkStep(session, plan, str(tmp_path), tasks_planned=2)
    step.check(segments)
    path = tmp_path / segments[1].name
    path.write_bytes(parquet_bytes(partials(plan, 99))) if how == "changed" else path.unlink()
    with pytest.raises(SegmentDiffers, match=f"{segments[1].name}: expected digest {segments[1].digest}"):
        step.check(segments)


def test_a_restore_names_windows_that_another_build_worked_on(
    session: SparkSession, plan: WindowPlan, tmp_path: Path
) -> None:
    """A build that aggregates what this one keeps as rows: they would be rows of nothing."""
    _, segments = stored(tmp_path, plan)
    rows = replace(plan.spec, stage=replace(plan.spec.stage, pipeline=()))
    with pytest.raises(SegmentDiffers, match="another build kept its open windows"):
        SparkStep(session, WindowPlan(rows), str(tmp_path)).check(segments)


@pytest.mark.parametrize(("rows_max", "merges"), [(10**6, 1), (1, 1 + SEGMENTS)])
def test_a_task_merges_what_it_has_read_before_it_holds_too_many_rows(
    plan: WindowPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_max: int, merges: int
) -> None:
    """However uneven segments are: what comes out is the same, and what lies there is bounded by the groups."""
    tables, segments = stored(tmp_path, plan)
    seen: list[int] = []

    def counted(plan: WindowPlan, table: pa.Table) -> pa.Table:
        seen.append(table.num_rows)
        return merged(plan, table)

    monkeypatch.setattr(executing, "merged", counted)
    order = Order(
        packed(plan.spec, NOWHERE), str(tmp_path), f"out/{rows_max}", MIN_TIME, MAX_TIME, MAX_TIME, 7, rows_max
    )
    written = list(
        executing.carry_out_on(order, segments, [(MIN_TIME, MAX_TIME)], iter([pa.record_batch({"id": [0]})]))
    )
    expected = merged(plan, pa.concat_tables(tables)).num_rows
    assert sum(row["rows"] for batch in written for row in batch.to_pylist()) == expected
    assert len(seen) == merges
    assert seen[-1] <= (max(rows_max, 2 * expected) if rows_max == 1 else sum(t.num_rows for t in tables))


def test_workers_leave_what_was_loaded_out_of_the_search_for_garbage(session: SparkSession) -> None:
    """Behind each task Spark's worker looks through all objects: those from before its fork, most by far, are frozen."""

    def counts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        yield from (pa.RecordBatch.from_pydict({"n": [gc.get_freeze_count()]}) for _ in batches)

    assert session.range(0, 1, 1, 1).mapInArrow(counts, "n long").collect()[0][0] > 100_000


def test_a_job_is_planned_once_and_told_its_work_each_time(
    session: SparkSession, plan: WindowPlan, tmp_path: Path
) -> None:
    """Two steps on one plan of a job: each gives its own rows, and leaves no work behind for another job."""
    _, segments = stored(tmp_path, plan)
    step = SparkStep(session, plan, str(tmp_path))
    first = step(StageState(), segments, Times(MIN_TIME, 2 * MINUTE, 0, 7), "out/1", arrived=True)
    second = step(first.state, [], Times(2 * MINUTE, MAX_TIME, 7, 8), "out/2", arrived=False)
    starts = [sorted({str(row["start"]) for row in rows_of(tmp_path, result)}) for result in (first, second)]
    assert [len(found) for found in starts] == [2, WINDOWS - 2]
    assert not set(starts[0]) & set(starts[1])
    assert session.sparkContext.getLocalProperty(WORK_PROPERTY) is None


def test_a_large_step_is_cut_until_its_tasks_are_small(
    session: SparkSession, plan: WindowPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a window that is too large by itself is shuffled: ranges of several are halved, and all windows are in one."""
    _, segments = stored(tmp_path, plan)
    rows = sum(s.rows for s in segments)
    jobs: list[str] = []
    gather = SparkStep._gather

    def gathered(*arguments: Any) -> list[OutputSegment]:
        jobs.append("gathered")
        return gather(*arguments)

    monkeypatch.setattr(SparkStep, "_gather", gathered)
    for rows_max, expected in ((rows // 2, ["gathered"]), (1, [])):
        jobs.clear()
        step = SparkStep(session, plan, str(tmp_path), gathered_rows_max=rows_max, large_task_rows=1)
        result = step(StageState(), segments, Times(MIN_TIME, MAX_TIME, 0, 7), f"out/{rows_max}", arrived=True)
        assert jobs == expected
        assert len({str(row["start"]) for row in rows_of(tmp_path, result)}) == WINDOWS
