# ruff: noqa: N802 -- a test carries its rule's name
"""The step on a real Spark session, by the rules' names: names of attempts (P2), late partials (P3), stream and batch (P4)."""

import copy
import hashlib
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.harness.window_world import CONTEXT, World
from tests.unit.test_operators_window_rules import SPLITS, pipeline, record
from tidemark.shared.language.documents import parse
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import WEND, WSTART, Out
from tidemark.shared.operators.batches import documents_of, one_batch
from tidemark.shared.operators.step import EpochInput, Step, StepState, Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead, plan_processor
from tidemark.spark_stages.manifest import StageState, StateSegment
from tidemark.spark_stages.segments import write_segment
from tidemark.spark_stages.session import open_session
from tidemark.spark_stages.step import SparkResult, SparkStep

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    opened = open_session("rules")
    yield opened
    opened.stop()


class Stage:
    """A step on Spark over a folder, and the segments that its senders write there."""

    def __init__(
        self, session: SparkSession, root: Path, *, lateness: str = "split", idle_timeout_ms: int | None = None
    ) -> None:
        """idle_timeout_ms: of the step alone, so that partials come, and not rows."""
        self.document = pipeline(10, lateness=lateness)
        own = copy.deepcopy(self.document)
        if idle_timeout_ms is not None:
            idle = {"size": idle_timeout_ms, "unit": "ms"}
            own["pipeline"][1]["$tumblingWindow"]["idleTimeout"] = idle
        head = plan_processor(parse(own), collects=True).vertices[1].head
        assert isinstance(head, StepHead)
        self.plan = WindowPlan(head.step.window)
        self.root = root
        self.step = SparkStep(session, self.plan, str(root), CONTEXT)
        self._numbers = itertools.count()

    def sent(self, *records: bytes) -> list[Out]:
        """What a source's task makes of these records in one epoch."""
        made = World(self.document, [list(records)], 1)
        made.feed(0, len(records))
        made.flush(0)
        return [out for out in made.tasks[0].channel if isinstance(out, Out) and out.port == OUT]

    def segments(self, outs: Sequence[Out]) -> list[StateSegment]:
        return [self._segment(out.batch) for out in outs]

    def _segment(self, batch: pa.RecordBatch) -> StateSegment:
        name = f"in/{next(self._numbers)}.parquet"
        size, digest = write_segment(str(self.root), name, batch)
        low, high = min(batch.column(WSTART).to_pylist()), max(batch.column(WEND).to_pylist())
        return StateSegment(name, batch.num_rows, size, digest, low, high)

    def rows(self, result: SparkResult) -> list[str]:
        """The documents that a step gave out."""
        tables = [pq.read_table(self.root / out.name) for out in result.outs if out.port == OUT]
        documents = [d for table in tables for d in documents_of(one_batch(table))]
        return sorted(json.dumps(d, default=str, sort_keys=True) for d in documents)


def test_P4_spark_gives_the_same_rows_in_many_epochs_at_once_and_as_the_local_batch(
    session: SparkSession, tmp_path: Path
) -> None:
    """With `lateness: split` three runs agree: epoch by epoch on Spark, one step over everything on Spark, and one in Arrow."""
    stage = Stage(session, tmp_path)
    outs = [out for split in SPLITS for out in stage.sent(*split)]
    batch = stage.step(StageState(), stage.segments(outs), Times(MIN_TIME, MAX_TIME), "batch/b", arrived=True)
    local = Step(stage.plan, CONTEXT)(StepState(), EpochInput([o.batch for o in outs]), Times(MIN_TIME, MAX_TIME))
    state, found, before = StageState(), list[str](), MIN_TIME
    for number, (arrives, watermark) in enumerate([(outs[:1], 14), (outs[1:], 30), ([], MAX_TIME)]):
        result = stage.step(
            state, stage.segments(arrives), Times(before, watermark), f"stream/{number}", arrived=bool(arrives)
        )
        state, before = result.state, watermark
        found += stage.rows(result)
        assert result.late_partials == 0
    in_arrow = [d for out in local.outs for d in documents_of(out.batch)]
    assert sorted(json.dumps(d, default=str, sort_keys=True) for d in in_arrow) == stage.rows(batch) == sorted(found)
    assert found


@pytest.mark.parametrize("gathered_rows_max", [0, 10_000])
def test_P3_a_late_partial_is_counted_and_never_taken_in(
    session: SparkSession, tmp_path: Path, gathered_rows_max: int
) -> None:
    """Each record in it, for the window that has closed; what the same segment holds of an open window counts."""
    stage = Stage(session, tmp_path)
    stage.step.gathered_rows_max = gathered_rows_max
    late = stage.segments(stage.sent(record(3), record(4, "b"), record(25)))
    result = stage.step(StageState(), late, Times(15, 15), "late/a", arrived=True)
    assert result.late_partials == 2
    closed = stage.step(result.state, [], Times(15, MAX_TIME), "late/b", arrived=False)
    assert [json.loads(row)["n"] for row in stage.rows(closed)] == [1]


@pytest.mark.parametrize("seed", range(3))
def test_ST4_idleness_closes_the_same_windows_as_in_arrow(session: SparkSession, tmp_path: Path, seed: int) -> None:
    """Where the watermark stands: when each is due, what comes out, and to where idleness has put the watermark."""
    stage = Stage(session, tmp_path, idle_timeout_ms=30)
    local, chooser = Step(stage.plan, CONTEXT), random.Random(seed)
    ours, theirs, now_ms, found = StepState(), StageState(), 0, list[str]()
    for number in range(8):
        before, now_ms = now_ms, now_ms + chooser.choice([5, 20, 40, 60])
        at = [record(now_ms + chooser.randrange(30), chooser.choice("ab")) for _ in range(chooser.choice([0, 0, 2]))]
        outs = stage.sent(*at) if at else []
        times = Times(MIN_TIME, MIN_TIME, before, now_ms)
        expected = local(ours, EpochInput([out.batch for out in outs]), times)
        got = stage.step(theirs, stage.segments(outs), times, f"idle/{number}", arrived=bool(outs))
        ours, theirs = expected.state, got.state
        rows = [json.dumps(d, default=str, sort_keys=True) for out in expected.outs for d in documents_of(out.batch)]
        assert stage.rows(got) == sorted(rows)
        assert (theirs.closed_to_ms, theirs.forced_ms) == (ours.closed_to_ms, ours.forced_ms)
        assert stage.step.next_processing_time(theirs) <= local.next_processing_time(ours)
        found += rows
    assert found
    assert theirs.forced_ms > MIN_TIME


@pytest.mark.parametrize("gathered_rows_max", [0, 10_000])
def test_ST3_what_comes_for_a_closed_window_on_processing_time_is_another_result(
    session: SparkSession, tmp_path: Path, gathered_rows_max: int
) -> None:
    """Once, dated no earlier than what was said; what the same segment holds of an open window waits for its end."""
    stage = Stage(session, tmp_path)
    document = pipeline(10)
    window = document["pipeline"][1]["$tumblingWindow"]
    del window["allowedLateness"]
    window["boundary"] = "processingTime"
    head = plan_processor(parse(document), collects=True).vertices[1].head
    assert isinstance(head, StepHead)
    plan = WindowPlan(head.step.window)
    step = SparkStep(session, plan, str(tmp_path), CONTEXT, gathered_rows_max=gathered_rows_max)
    state, found = StageState(), []
    epochs = [([record(3)], 5), ([], 18), ([record(4), record(5), record(19)], 19), ([], 20), ([], 40)]
    before = MIN_TIME
    for number, (arrives, now) in enumerate(epochs):
        added = stage.segments(stage.sent(*arrives)) if arrives else []
        result = step(state, added, Times(MIN_TIME, MIN_TIME, before, now), f"now/{number}", arrived=bool(arrives))
        state, before = result.state, now
        found.append(
            [(json.loads(row)["n"], out.low_ms) for row, out in zip(stage.rows(result), result.outs, strict=True)]
        )
        assert result.late_partials == 0
    assert found == [[], [(1, 9)], [(2, 18)], [(1, 19)], []]


def test_P2_what_the_manifest_lists_counts_and_attempts_do_not_meet(session: SparkSession, tmp_path: Path) -> None:
    """A step that is run again writes under other names; outputs have the sizes and digests that are told; leftovers are read by nobody."""
    stage = Stage(session, tmp_path)
    added = stage.segments(stage.sent(record(3), record(4, "b"), record(25)))
    first = stage.step(StageState(), added, Times(MIN_TIME, 15), "one/x", arrived=True)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")}
    second = stage.step(StageState(), added, Times(MIN_TIME, 15), "one/x", arrived=True)
    assert stage.rows(first) == stage.rows(second) != []
    names = [out.name for result in (first, second) for out in result.outs]
    assert len(set(names)) == len(names)
    assert not {out.name for out in second.outs} & files
    for out in first.outs:
        data = (tmp_path / out.name).read_bytes()
        assert (out.size_bytes, out.digest) == (len(data), hashlib.sha256(data).hexdigest())
    write_segment(str(tmp_path), "in/left-over.parquet", pq.read_table(tmp_path / added[0].name))
    end = stage.step(second.state, [], Times(15, MAX_TIME), "two/x", arrived=False)
    assert [json.loads(row)["n"] for row in stage.rows(end)] == [1]
