# ruff: noqa: N802 -- a test carries its rule's name
"""A Spark stage's task without a Spark: when it steps, with what (P1), under which names (P2), by which clock (W5)."""

from collections.abc import Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.worker_stand import JOB
from tidemark.services.spark import service
from tidemark.services.spark.body import SparkBody, SparkUnavailable, outage_of
from tidemark.services.spark.service import SparkService, SparkSettings, spark_settings
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.virtual import START_MS, VirtualWorld, run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.formats import SPARK_STATE, Codec
from tidemark.shared.model.frames import Inline, Segment
from tidemark.shared.model.ids import TASK_PART, Epoch, Generation, TaskId, VertexId, groups_owned, groups_part
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import MAX_OPEN, MIN_OPEN, WEND, WSTART
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.step import Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead, plan_processor
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.runtime.body import Announced
from tidemark.shared.wire.arrow import encode_batch
from tidemark.spark_stages.executing import Order
from tidemark.spark_stages.manifest import StageManifest, StageState, StateSegment, StepBounds, joined, share
from tidemark.spark_stages.step import OutputSegment, SparkResult, SparkStep

DOCUMENT = (
    '{"pipeline": [{"$source": {"documents": [{"k": "a"}], "schema": {"k": "string"}}}, {"$tumblingWindow": {"interval": '
    '{"size": 1, "unit": "hour"}, "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}]}}]}'
)
GROUPS = 128
WHOLE = groups_part(range(GROUPS))
Call = tuple[StageState, tuple[StateSegment, ...], Times, str]


class Stub:
    """A step that keeps what it was called with, and gives one segment a call."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.checked: list[StateSegment] = []

    def check(self, segments: Sequence[StateSegment]) -> None:
        self.checked += segments

    def __call__(
        self, state: StageState, added: Sequence[StateSegment], times: Times, prefix: str, *, arrived: bool
    ) -> SparkResult:
        self.calls.append((state, tuple(added), times, prefix))
        out = OutputSegment("out", "rows", f"{prefix}-0.parquet", 1, 10, "d", 0, 0)
        return SparkResult(StageState((*state.segments, *added)), [out], output_watermark_ms=times.watermark_ms)


def body_of(
    world: VirtualWorld,
    blobs: MemoryBlobs,
    stub: Stub,
    *,
    generation: int = 2,
    last: int = 0,
    index: int = 0,
    tasks: int = 1,
) -> SparkBody:
    head = plan_processor(parse(DOCUMENT), collects=True).vertices[1].head
    assert isinstance(head, StepHead)
    numbers = iter(range(100))
    outside = SimpleNamespace(
        blobs=blobs, clock=world.clock, executor=world.executor, unique=lambda: f"g{generation}u{next(numbers)}"
    )
    vertex = VertexId("window")
    plan = SimpleNamespace(tasks={vertex: tasks}, key_groups=GROUPS)
    assign = SimpleNamespace(
        job=JOB, vertex=vertex, index=index, plan=plan, generation=Generation(generation), last=Epoch(last)
    )
    task = TaskId(vertex, index)
    context: Any = SimpleNamespace(
        outside=outside,
        assign=assign,
        task=task,
        passing=lambda _phase, _epoch: None,
        waits=lambda _activity, _wait: None,
    )
    make: Any = lambda *_: stub  # noqa: E731 - a factory that the test hands in
    return SparkBody(context, WindowPlan(head.step.window), TaskContext("p"), make)


def partial(start_ms: int, end_ms: int) -> Inline:
    batch = pa.RecordBatch.from_pydict({WSTART: pa.array([start_ms], pa.int64()), WEND: pa.array([end_ms], pa.int64())})
    return Inline("partials", 1, encode_batch(batch))


def on_stage(story: Any) -> None:
    async def main(world: VirtualWorld) -> None:
        blobs = MemoryBlobs(world.executor)
        await story(world, blobs)
        await blobs.close()

    run_virtual(main)


def test_W3_a_stage_with_rows_for_its_step_is_not_idle() -> None:
    """Receivers that did not wait for it would be past what the step lets out; so they would be past windows that are due."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        body = body_of(world, blobs, Stub())
        assert not body.batching()
        await body.apply("", (partial(0, 10),))
        assert body.batching()
        await body.flush(Epoch(1))
        assert not body.batching()
        await body.advance(10)
        assert body.batching()
        await body.flush(Epoch(2))
        assert not body.batching()

    on_stage(story)


def test_P1_small_partials_of_an_epoch_become_one_segment_and_references_stay() -> None:
    """The step runs once an epoch, at its end, on the segments that frames named and one with all that came inline."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        body = body_of(world, blobs, stub)
        await body.open({})
        named = Segment("partials", "job/read/1/1/x.parquet", 5, 50, "digest", 0, 3_600_000)
        assert list(await body.apply("", [partial(0, 10), named])) == []
        assert list(await body.apply("", [partial(10, 20)])) == []
        assert list(await body.advance(15)) == []
        assert stub.calls == []
        outs = await body.flush(Epoch(4))
        ((_, added, times, _),) = stub.calls
        assert [s.name for s in added][:1] == [named.name]
        assert [s.rows for s in added] == [5, 2]
        assert (times.watermark_before_ms, times.watermark_ms) == (MIN_TIME, 15)
        assert [type(out) for out in outs] == [Announced]
        await body.flush(Epoch(5))
        assert stub.calls[1][1] == ()
        assert stub.calls[1][2].watermark_before_ms == 15

    on_stage(story)


def test_P1_only_a_step_or_a_restored_state_waits_for_the_session() -> None:
    """A task without state is restored before its step is made, which may wait for a session that comes up; one with state looks at it."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        made: list[Stub] = []

        def make(*_: object) -> Stub:
            made.append(stub)
            return stub

        body = body_of(world, blobs, stub)
        body._make = make  # type: ignore[assignment]
        await body.open({})
        await body.apply("", [partial(0, 3_600_000)])
        assert made == []
        await body.flush(Epoch(1))
        await body.flush(Epoch(2))
        assert made == [stub]
        copied = await body.copy(Epoch(2), Epoch(1))
        after = body_of(world, blobs, stub, generation=3, last=2)
        after._make = make  # type: ignore[assignment]
        await after.open({part: data for part, data in copied.changed.items() if data is not None})
        assert made == [stub, stub]
        assert stub.checked

    on_stage(story)


def test_P1_at_the_end_of_input_the_last_step_runs_at_once() -> None:
    """END goes out before the next barrier, and no row follows it (E1)."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        body = body_of(world, blobs, stub)
        await body.open({})
        await body.apply("", [partial(0, 10)])
        outs = await body.advance(MAX_TIME)
        assert len(stub.calls) == len(outs) == 1
        assert body.output_watermark() == MAX_TIME

    on_stage(story)


def test_P2_the_snapshot_is_the_manifest_and_attempts_have_names_of_their_own() -> None:
    """It lists segments with sizes and digests; what another attempt at the same epoch writes has other names, and is on no list."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        first, second = Stub(), Stub()
        body = body_of(world, blobs, first, generation=2)
        await body.open({})
        assert MIN_OPEN not in body.counters()
        await body.apply("", [partial(0, 3_600_000), partial(3_600_000, 7_200_000)])
        await body.flush(Epoch(1))
        assert (body.counters()[MIN_OPEN], body.counters()[MAX_OPEN]) == (0, 3_600_000), (
            "windows that are open are told"
        )
        copied = await body.copy(Epoch(1), Epoch(0))
        (listed,) = copied.blobs
        assert (await blobs.get(listed)) != b""
        state = copied.changed[WHOLE]
        assert state is not None
        again = body_of(world, blobs, second, generation=3, last=1)
        await again.open({WHOLE: state})
        await again.apply("", [partial(0, 10)])
        await again.flush(Epoch(2))
        assert [s.name for s in second.calls[0][0].segments] == [listed.name]
        names = [first.calls[0][3], second.calls[0][3], listed.name, second.calls[0][1][0].name]
        assert len(set(names)) == 4
        assert [name.split("/")[2:4] for name in names] == [["2", "1"], ["3", "2"], ["2", "1"], ["3", "2"]]

    on_stage(story)


def test_W5_a_step_never_goes_back_behind_the_time_of_the_one_before() -> None:
    """Neither when the machine's clock is set back, nor after a restore on a machine whose clock is behind."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        body = body_of(world, blobs, stub)
        await body.open({})
        await body.flush(Epoch(1))
        world.clock.shift(-60_000)
        await body.flush(Epoch(2))
        state = (await body.copy(Epoch(2), Epoch(0))).changed[WHOLE]
        assert state is not None
        again = body_of(world, blobs, stub, generation=3, last=2)
        await again.open({WHOLE: state})
        await again.flush(Epoch(3))
        told = [(times.processing_before_ms, times.processing_ms) for _, _, times, _ in stub.calls]
        assert told == [(MIN_TIME, START_MS), (START_MS, START_MS), (START_MS, START_MS)]

    on_stage(story)


def test_P2_a_restore_looks_at_all_that_the_manifest_lists_before_it_goes_on() -> None:
    """The step is asked to check each segment, by name, size and digest, before anything is read of it."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        body = body_of(world, blobs, Stub())
        await body.open({})
        await body.apply("", [partial(0, 10)])
        await body.flush(Epoch(1))
        copied = await body.copy(Epoch(1), Epoch(0))
        state, stub = copied.changed[WHOLE], Stub()
        assert state is not None
        await body_of(world, blobs, stub, generation=3, last=1).open({WHOLE: state})
        assert [BlobRef(s.name, s.size_bytes, s.digest) for s in stub.checked] == list(copied.blobs)

    on_stage(story)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"gathered_rows_max": 0}, "TIDEMARK_EXTRA: spark setting gathered_rows_max: expected a positive number, found 0"),
        ({"gathered_rows_max": "many"}, r"TIDEMARK_EXTRA: Expected `int`, got `str` - at `\$.gathered_rows_max`"),
        ({"task_rows": 9}, r"TIDEMARK_EXTRA\.task_rows: no such setting"),
        ({"conf": ["executor.memory=2g"]}, r"conf: expected spark\.NAME=VALUE, found 'executor\.memory=2g'"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_bounds_of_steps_are_refused_at_the_start(extra: dict[str, Any], said: str) -> None:
    """The message names the setting, what is expected and what was found."""
    with pytest.raises(ProcessSettingsError, match=said):
        spark_settings(ProcessSettings(kafka="k:1", blobs="b", store="", place="spark-0", extra=extra))


def test_spark_connect_without_its_packages_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the address and the packages; a master needs none of them."""
    monkeypatch.setattr(service, "find_spec", lambda module: None if module == "grpc_status" else "there")
    settings = ProcessSettings(kafka="k:1", blobs="b", store="", place="spark-0", extra={"master": "sc://h:15002"})
    with pytest.raises(
        ProcessSettingsError, match=r"sc://h:15002 .* needs grpcio, .*; grpcio-status not found: install"
    ):
        spark_settings(settings)
    monkeypatch.setattr(service, "find_spec", lambda _: None)
    assert spark_settings(replace(settings, extra={"master": "spark://h:7077"})).master == "spark://h:7077"
    monkeypatch.setattr(service, "find_spec", lambda _: "there")
    assert spark_settings(settings).master == "sc://h:15002"


@pytest.mark.parametrize(
    "said",
    [
        "java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext.",
        "org.apache.spark.SparkException: Job 20 cancelled because SparkContext was shut down",
        'because the return value of "org.apache.spark.SparkContext._taskScheduler()" is null',
        "ExecutorLostFailure (executor 1 exited caused by one of the running tasks)",
    ],
)
def test_C10_a_cluster_that_is_away_is_an_outage(said: str) -> None:
    """Recorded words of Spark: masters that do not answer, once and again; an application that was ended; executors that are lost."""
    assert isinstance(outage_of(RuntimeError(f"An error occurred.\n: {said}\n\tat …")), SparkUnavailable)
    assert outage_of(RuntimeError("An error occurred.\n: java.lang.NullPointerException")) is None


def test_settings_of_spark_itself_are_read_by_name() -> None:
    """As `--conf` of `spark-submit` has them; a value may have an equals sign."""
    extra = {"conf": ["spark.executor.memory=2g", "spark.executorEnv.A=b=c"]}
    settings = spark_settings(ProcessSettings(kafka="k:1", blobs="b", store="", place="spark-0", extra=extra))
    assert settings.spark == {"spark.executor.memory": "2g", "spark.executorEnv.A": "b=c"}


def test_a_task_is_not_large_that_is_not_worth_its_while() -> None:
    """The message names both bounds."""
    with pytest.raises(ValueError, match="large_task_rows=99999 must not be below task_rows=100000"):
        StepBounds(task_rows=100_000, large_task_rows=99_999)


def test_bounds_of_steps_reach_the_step() -> None:
    """What is set is what a step is made with, each setting by itself."""
    extra = {each.name: 100 + number for number, each in enumerate(fields(StepBounds))}
    assert _step(extra) == extra
    defaults = {each.name: getattr(StepBounds(), each.name) for each in fields(StepBounds)}
    assert _step({}) == defaults


def _made(extra: dict[str, Any]) -> SparkStep:
    kept: Any = SimpleNamespace(get=lambda: None)
    head = plan_processor(parse(DOCUMENT), collects=True).vertices[1].head
    assert isinstance(head, StepHead)
    return SparkService(kept, SparkSettings(**extra)).make(
        WindowPlan(head.step.window), "root", TaskContext("p"), GROUPS
    )


def _step(extra: dict[str, Any]) -> dict[str, int]:
    step = _made(extra)
    return {each.name: getattr(step, each.name) for each in fields(StepBounds)}


@pytest.mark.parametrize(
    ("extra", "tasks"),
    [({"task_rows": 100}, 8), ({"task_rows": 300}, 4), ({"task_rows": 100, "tasks_planned": 2}, 2),
     ({"task_rows": 100, "tasks_planned": 2, "large_task_rows": 300}, 4), ({}, 1)],
    ids=str,
)  # fmt: skip
def test_a_step_is_cut_into_tasks_as_the_settings_say(extra: dict[str, int], tasks: int) -> None:
    """So many rows are worth another task, up to the tasks that are planned; large ones are halved."""
    step = _made(extra)
    length = step.plan.length_ms
    segment = StateSegment("s", 1_000, 1, "d", 0, 16 * length)
    order = Order(b"", "root", "p", 0, 16 * length, 0, 0, 1)
    assert len(step._ranges(order, [segment])) == tasks


def test_C12_the_step_at_the_end_of_input_has_the_name_of_its_own_epoch() -> None:
    """What it writes behind a barrier is of the epoch that is open: named for an older one it would be deleted before its commit."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        body = body_of(world, blobs, stub, last=3)
        await body.open({})
        await body.flush(Epoch(4))
        await body.copy(Epoch(4), Epoch(3))
        await body.flush(Epoch(7))
        await body.copy(Epoch(7), Epoch(4))
        await body.advance(MAX_TIME)
        epochs = [prefix.split("/")[3] for _, _, _, prefix in stub.calls]
        assert [int(epoch) for epoch in epochs] == [4, 7, 8]

    on_stage(story)


# --- several tasks ------------------------------------------------------------------------------------------------------


def segment(name: str, only: tuple[int, int] | None = None) -> StateSegment:
    return StateSegment(name, 10, 100, name, 0, 3_600_000, only)


def manifest(
    segments: Sequence[StateSegment], groups: tuple[int, int] | None = None, closed_ms: int = 0
) -> StageManifest:
    return StageManifest(StageState(tuple(segments), closed_ms, MIN_TIME, 7), closed_ms, 5, closed_ms, groups)


def rescaled(manifests: Sequence[StageManifest], tasks: int) -> list[StageManifest]:
    """What so many tasks have of what others had."""
    found = []
    for index in range(tasks):
        own = groups_owned(index, tasks, GROUPS)
        owned = (own.start, own.stop)
        shares = [share(each, owned, GROUPS) for each in manifests if meets(each.groups or (0, GROUPS), owned)]
        found.append(manifest(joined([each.state for each in shares]).segments, owned))
    return found


def meets(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


@pytest.mark.parametrize("course", [(2, 3, 1), (3, 2, 5, 1), (1, 4, 2, 1), (128, 1), (7, 5, 3, 2, 1)], ids=str)
def test_R4_each_key_group_of_a_segment_counts_once_however_often_tasks_change(course: Sequence[int]) -> None:
    """A segment that one task wrote counts by key groups where several have it, and is one again when one has it all."""
    manifests = [manifest([segment("first")])]
    for number, tasks in enumerate(course):
        manifests = rescaled(manifests, tasks)
        for index, each in enumerate(manifests):  # each task writes on
            own = segment(f"{number}-{index}")
            manifests[index] = manifest([*each.state.segments, own], each.groups)
        for name in {s.name for each in manifests for s in each.state.segments}:
            counted: list[int] = []
            for each in manifests:
                for s in each.state.segments:
                    if s.name == name:
                        counted += range(*(s.only or (0, GROUPS)))
            assert len(set(counted)) == len(counted), f"{name} after {course[: number + 1]}"
            if name == "first":
                assert sorted(counted) == list(range(GROUPS))
    (last,) = manifests
    assert [s.only for s in last.state.segments if s.name == "first"] in ([None], [(0, GROUPS)])


def test_R4_a_rescaled_task_takes_its_share_and_its_part_replaces_the_old_ones() -> None:
    """Manifests of version 1, which are of all key groups, among them; a task's part names its key groups."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        first = body_of(world, blobs, Stub())
        await first.open({})
        await first.apply("", [partial(0, 3_600_000)])
        await first.flush(Epoch(1))
        state = (await first.copy(Epoch(1), Epoch(0))).changed[WHOLE]
        assert state is not None
        for name in (WHOLE, TASK_PART):
            stub = Stub()
            second = body_of(world, blobs, stub, generation=3, last=1, index=1, tasks=2)
            await second.open({name: state})
            (taken,) = stub.checked
            assert taken.only == (64, 128)
            await second.flush(Epoch(2))
            copied = await second.copy(Epoch(2), Epoch(1))
            assert {part: data is not None for part, data in copied.changed.items()} == {
                groups_part(range(64, 128)): True,
                name: False,
            }
            assert [blob.name for blob in copied.blobs] == [taken.name]
            assert list((await second.copy(Epoch(3), Epoch(2))).changed) == [groups_part(range(64, 128))]

    on_stage(story)


def test_R4_key_groups_that_stood_at_a_lower_watermark_catch_up_before_they_are_one_state() -> None:
    """Else what the one had still open would count as closed, or what the other had closed would come out again."""

    async def story(world: VirtualWorld, blobs: MemoryBlobs) -> None:
        stub = Stub()
        body = body_of(world, blobs, stub, generation=3, last=1)
        behind, ahead = manifest([segment("a")], (0, 64), 100), manifest([segment("b")], (64, 128), 200)
        codec: Codec[StageManifest] = Codec(SPARK_STATE, StageManifest)
        parts = {groups_part(range(*each.groups)): codec.encode(each) for each in (ahead, behind) if each.groups}
        await body.open(parts)
        assert body.output_watermark() == 100
        await body.apply("", [partial(0, 10)])
        outs = await body.flush(Epoch(2))
        steps = [
            ([s.name for s in state.segments], times.watermark_before_ms, times.watermark_ms, len(added))
            for state, added, times, _ in stub.calls
        ]
        assert steps == [(["a"], 100, 200, 0), (["b"], 200, 200, 0), (["a", "b"], 200, 200, 1)]
        assert len(outs) == 3
        assert len({prefix for *_, prefix in stub.calls}) == 3
        await body.flush(Epoch(3))
        assert len(stub.calls) == 4

    on_stage(story)
