"""What control remembers of checkpoints and rates, from the messages of coordinator and workers."""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from tests.unit.test_control_stats import SOURCE, STATUS, beat
from tidemark.services.control.history import CHECKPOINTS_MAX, JOBS_MAX, RATE_POINTS, History
from tidemark.services.control.plan import Plans
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.model.checkpoint import (
    BlobRef,
    ChannelState,
    InputState,
    PartHandle,
    TaskHandle,
    TaskProtocolState,
)
from tidemark.shared.model.ids import Epoch, JobId, Offset, Seq, StatePart, TaskId, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import AbortCheckpoint, Ack, CommitHint, Released, StartCheckpoint, TaskBeat

JOB, GENERATION = STATUS.job, STATUS.generation


def start(epoch: int) -> StartCheckpoint:
    return StartCheckpoint(JOB, GENERATION, Epoch(epoch), Epoch(epoch - 1))


def ack(epoch: int, vertex: str = "emit-1", *, barrier: int | None = None, epoch_of_blob: int | None = None) -> Ack:
    """Of a task with one channel, whose last barrier was taken or is still to come, and one blob."""
    last = Epoch(epoch if barrier is None else barrier)
    channel = ChannelState(VertexId("source-1"), 0, Seq(9), last, 0, idle=False, ended=False)
    protocol = TaskProtocolState(inputs=(InputState("e", "i", Offset(0), (channel,)),))
    blob = BlobRef(f"{JOB}/{vertex}/{GENERATION}/{epoch if epoch_of_blob is None else epoch_of_blob}/u", 100, "")
    parts = (PartHandle(StatePart("a"), inline=b"12345"), PartHandle(StatePart("b"), blob=blob, length=40))
    return Ack(WorkerIncarnation("w"), JOB, GENERATION, Epoch(epoch), TaskHandle(VertexId(vertex), 0, protocol, parts))


def shown(history: History, released: int = 0) -> list[dict[str, Any]]:
    return [each.shown(Epoch(released)) for each in history.of(JOB).checkpoints.values()]


def test_a_checkpoint_is_told_from_its_start_to_its_release() -> None:
    """Duration to the commit, time by task, what was written of the state, and how long the slowest sink then took."""
    history = History()
    for message, at_ms in (
        (start(1), 1_000),
        (ack(1, "source-1"), 1_020),
        (ack(1), 1_050),
        (CommitHint(JOB, GENERATION, Epoch(1)), 1_060),
        (CommitHint(JOB, GENERATION, Epoch(1)), 9_000),
        (Released(WorkerIncarnation("w"), JOB, VertexId("emit-1"), 0, Epoch(1)), 1_090),
        (Released(WorkerIncarnation("w"), JOB, VertexId("emit-1"), 1, Epoch(1)), 1_100),
    ):
        history.take(message, at_ms)
    told, released = shown(history)[0], shown(history, 1)[0]
    assert (told["state"], told["durationMillis"], told["releaseMillis"]) == ("committed", 60, None)
    assert (released["state"], released["releaseMillis"]) == ("released", 40)
    assert {each["task"]: each["durationMillis"] for each in told["tasks"]} == {"source-1/0": 20, "emit-1/0": 50}
    assert (told["stateBytes"], told["writtenBytes"], told["aligned"]) == (210, 210, True)


def test_a_commit_is_told_by_the_next_start() -> None:
    """Its duration is the leader's, however late the start comes; one that is not known says nothing."""
    history = History()
    history.take(start(1), 1_000)
    history.take(structs.replace(start(2), committed=Epoch(1)), 1_900)
    assert shown(history)[0]["state"] == "under way"
    history.take(structs.replace(start(3), committed=Epoch(1), committed_ms=70), 2_900)
    history.take(structs.replace(start(4), committed=Epoch(9), committed_ms=70), 3_900)
    assert (shown(history)[0]["state"], shown(history)[0]["durationMillis"]) == ("committed", 70)


def test_a_snapshot_in_front_of_a_barrier_is_unaligned() -> None:
    """One task that did not wait makes the checkpoint unaligned; a blob of an earlier one was not written again."""
    history = History()
    history.take(start(7), 0)
    history.take(ack(7, "source-1"), 1)
    history.take(ack(7, barrier=6, epoch_of_blob=3), 2)
    (told,) = shown(history)
    assert (told["aligned"], told["state"], told["writtenBytes"]) == (False, "under way", 110)
    assert [each["aligned"] for each in told["tasks"]] == [False, True]
    history.take(AbortCheckpoint(JOB, GENERATION, Epoch(7)), 3)
    assert shown(history, 9)[0]["state"] == "aborted"


def test_what_is_kept_is_bounded() -> None:
    """The oldest checkpoints and jobs go; a release of one that was not seen is no news."""
    history = History()
    history.take(Released(WorkerIncarnation("w"), JOB, VertexId("emit-1"), 0, Epoch(1)), 0)
    assert shown(history) == []
    for epoch in range(1, CHECKPOINTS_MAX + 10):
        history.take(start(epoch), epoch)
    assert [each["epoch"] for each in shown(history)] == list(range(10, CHECKPOINTS_MAX + 10))
    for number in range(JOBS_MAX):
        history.of(JobId(f"j{number}"))
    assert JOB not in history.jobs
    assert len(history.jobs) == JOBS_MAX


def test_rates_are_of_the_last_points_and_never_negative() -> None:
    """So many a second over the last points; a new generation's counters begin again."""
    history = History()

    def look(rows: int, at_ms: int) -> None:
        tasks: Mapping[TaskId, TaskBeat] = {TaskId(SOURCE, 0): beat("source-1", 5_000, inRows=rows)}
        history.look(STATUS, tasks, at_ms, at_ms)

    assert history.of(JOB).rates(SOURCE) == {}
    look(100, 0)
    assert history.of(JOB).rates(SOURCE) == {}
    for second in range(1, RATE_POINTS + 5):
        look(100 + 50 * second, 1_000 * second)
    assert history.of(JOB).rates(SOURCE)["inRows"] == 50
    look(0, 60_000)
    assert history.of(JOB).rates(SOURCE)["inRows"] == 0
    assert {point.source_ms for point in history.of(JOB).points} == {5_000}


async def test_a_plan_has_the_names_that_vertices_kept() -> None:
    """A computation's or sink's vertex that kept its name over a change of the document is found by it, with its figures."""
    document = '{"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "o", "format": "json"}}]}'
    services = {VertexId("source-1"): "source", VertexId("emit-7"): "sink"}
    status = structs.replace(STATUS, document=document, services=services)
    plan = await Plans("local", AsyncExecutor()).shown(status, {}, History())
    assert [vertex["name"] for vertex in plan["vertices"]] == ["source-1", "emit-7"]
    assert [(edge["from"], edge["to"]) for edge in plan["edges"]] == [("source-1", "emit-7")]


async def test_a_plan_of_a_document_that_is_not_understood_has_what_runs() -> None:
    """Of another release's document the vertices are known all the same."""
    status = structs.replace(STATUS, document='{"pipeline": [{"$later": {}}]}')
    plan = await Plans("local", AsyncExecutor()).shown(
        status, {TaskId(SOURCE, 0): beat("source-1", 0, inRows=3)}, History()
    )
    assert {vertex["name"]: vertex.get("inputMessageCount") for vertex in plan["vertices"]}["source-1"] == 3
    assert plan["edges"] == []
