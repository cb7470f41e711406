# ruff: noqa: N802 -- a test carries its rule's name
"""What holds a watermark back, and whether data are late or the system is slow: told from heartbeats."""

from typing import Any

import msgspec
import pytest

from tidemark.services.control.stats import BEHIND_MS, SLOW_MS, diagnosis, late_fraction
from tidemark.shared.model.held import Hold, SplitHeld, TaskHeld
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, TaskId, VertexId
from tidemark.shared.model.messages import ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.runtime.beats import LAST_REASON, WATERMARK
from tidemark.shared.runtime.watermark import AHEAD_MS, Explained, WatermarkHop, explain_watermark

NOW = 1_000_000
SERVICES = {"source-1": "source", "window-1": "spark", "emit-1": "sink", "dlq": "sink"}


def status() -> ProcessorStatus:
    return ProcessorStatus(
        name=ProcessorName("p"), job=JobId("j"), state="RUNNING", reason="", generation=Generation(1), last=Epoch(1),
        released=Epoch(1), plan_version=1, document="{}", parallelism={},
        services={VertexId(v): s for v, s in SERVICES.items()},
    )  # fmt: skip


def beat(vertex: str, reads: int, gives: int, held: TaskHeld, **splits: SplitHeld) -> tuple[TaskId, TaskBeat]:
    details = {f"split:{n}": msgspec.json.encode(s).decode() for n, s in splits.items()}
    details[WATERMARK] = msgspec.json.encode(held).decode()
    found = TaskBeat(
        name=ProcessorName("p"), job=JobId("j"), generation=Generation(1), vertex=VertexId(vertex), index=0,
        phase="running", epoch=Epoch(1), input_watermark_ms=reads, output_watermark_ms=gives, details=details,
    )  # fmt: skip
    return TaskId(VertexId(vertex), 0), found


def split(watermark: int, last: int | None, **more: Any) -> SplitHeld:
    return SplitHeld(position=7, watermark=watermark, status=more.pop("status", "active"), lastEvent=last, **more)


def explained(
    *splits: SplitHeld, window: tuple[Hold, ...] = (), out: int = 100, source: TaskHeld | None = None, aligning: int = 0
) -> Explained:
    """A source, a window and a sink, whose watermarks are these."""
    named = {f"s{i}": s for i, s in enumerate(splits)}
    given = min((s.watermark for s in splits if s.status == "active"), default=100)
    tasks = [
        beat("source-1", MIN_TIME, given, source or TaskHeld(NOW - 9), **named),
        beat("window-1", given, out, TaskHeld(NOW - 5, window, ("source-1", 0, given - 50 if aligning else given), aligning=aligning)),
        beat("emit-1", out, out, TaskHeld(NOW - 5, (), ("window-1", 0, out))),
        beat("dlq", MIN_TIME + 5, MIN_TIME + 5, TaskHeld(NOW - 5, (), ("source-1", 0, MIN_TIME + 5))),
    ]  # fmt: skip
    return explain_watermark(status(), dict(tasks), NOW)


def test_a_schedule_goes_with_the_clock() -> None:
    """Nobody is told to leave it out as idle."""
    why = culprit(explained(split(500, 100, atEnd=True, keepsTime=True), split(900, 900))).why
    assert why == "has no further record; goes with the clock"


def culprit(found: Explained) -> WatermarkHop:
    assert found.culprit is not None
    return found.steps[found.culprit]


def test_W2_the_split_that_is_furthest_behind_is_named_with_its_last_event() -> None:
    """Vertex, task, split, last event, since when, and why it is waited for."""
    found = culprit(explained(split(900, 900), split(100, 110, atEnd=True, idleIn=4_000, delay=10, since=NOW - 77)))
    assert (found.vertex, found.task, found.split, found.last_event_ms, found.since_ms) == (
        "source-1",
        0,
        "s1",
        110,
        NOW - 77,
    )
    assert found.keeps_ms == 800
    assert "no further record" in found.why
    assert "idle in 4000 ms" in found.why
    assert "held 10 ms behind" in found.why


def test_W3_the_slow_side_of_a_join_is_named_and_not_the_join() -> None:
    """What one stream is behind another counts where it arises: at its split, not at the operator where they meet."""
    match = Hold("$join", "match", 100, 98)
    tasks = dict([
        beat("source-1", MIN_TIME, 900, TaskHeld(NOW), fast=split(900, 900)),
        beat("source-2", MIN_TIME, 100, TaskHeld(NOW), slow=split(100, 100, atEnd=True)),
        beat("window-1", 100, 98, TaskHeld(NOW, (match,), ("source-2", 0, 100))),
        beat("emit-1", 98, 98, TaskHeld(NOW, (), ("window-1", 0, 98))),
    ])  # fmt: skip
    found = culprit(explain_watermark(status(), tasks, NOW))
    assert (found.split, found.keeps_ms) == ("slow", 800)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (split(MIN_TIME, None, atEnd=True), ("no record yet", "never left out as idle")),
        (split(100, 100, more=True), ("not read yet",)),
        (split(100, 100), ("not known",)),
        (split(100, 100, away=True), ("back from idleness",)),
        (split(100, 100, status="idle"), ("is idle",)),
        (split(100, NOW + AHEAD_MS + 1), ("the clock has not reached",)),
    ],
)
def test_W4_a_split_says_why_it_is_waited_for(given: SplitHeld, words: tuple[str, ...]) -> None:
    """Without data, with data that wait, not heard of lately, back from idleness, or idle with all the others."""
    found = explained(given).steps[-1]
    assert all(word in found.why for word in words)


@pytest.mark.parametrize(("held_back", "words"), [("receivers", "too far behind"), ("commits", "waits for a commit")])
def test_F8_a_source_that_may_not_read_says_so(held_back: Any, words: str) -> None:
    """Flow control, not the data, is what is waited for (F7, F8)."""
    assert words in explained(split(100, 100), source=TaskHeld(0, held_back=held_back)).steps[-1].why


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("allowedLateness", "allowed lateness"),
        ("openWindow", "open window"),
        ("epoch", "epoch is complete"),
        ("timer", "timer of a computation"),
        ("match", "find their match"),
    ],
)
def test_W1_an_operator_that_holds_the_watermark_is_named(why: Any, words: str) -> None:
    """What keeps back most on the way is the culprit, with its stage."""
    hold = Hold("$stage", why, 5_000, 2_000)
    found = culprit(explained(split(5_000, 5_000), window=(hold,), out=2_000))
    assert (found.vertex, found.keeps_ms, found.watermark_ms) == ("window-1", 3_000, 2_000)
    assert found.why.startswith("$stage")
    assert words in found.why


def test_C3_frames_behind_a_barrier_are_named() -> None:
    """What was sent and waits for the epoch to be complete everywhere."""
    found = culprit(explained(split(100, 100), out=50, aligning=7))
    assert found.vertex == "window-1"
    assert "behind the barrier of checkpoint 7" in found.why


def test_W3_what_has_ended_holds_nothing() -> None:
    """A processor without tasks, and one whose input has ended, have no culprit to show but say so."""
    assert explain_watermark(status(), {}, NOW).culprit is None
    tasks = dict([beat("emit-1", MAX_TIME, MAX_TIME, TaskHeld(0))])
    assert "has ended or is idle" in explain_watermark(status(), tasks, NOW).summary


def test_a_task_that_nobody_has_heard_of_is_the_culprit() -> None:
    """Its worker is away."""
    tasks = dict([beat("emit-1", 10, 10, TaskHeld(0, (), ("window-1", 0, 10)))])
    assert "not heard of" in explain_watermark(status(), tasks, NOW).summary


@pytest.mark.parametrize(
    ("event_lag", "processing_lag", "expected"),
    [
        (BEHIND_MS, 10, "late data"),
        (BEHIND_MS - 1, 10, "in time"),
        (None, 10, "in time"),
        (10 * BEHIND_MS, SLOW_MS, "slow system"),
        (0, SLOW_MS, "slow system"),
        (None, SLOW_MS, "slow system"),
    ],
)
def test_W5_late_data_and_a_slow_system_are_told_apart(
    event_lag: int | None, processing_lag: int, expected: str
) -> None:
    """An event-time lag without work that waits is the data's; work that waits is the system's."""
    assert diagnosis(event_lag, processing_lag) == expected


def test_W5_what_has_read_all_there_is_has_no_late_data() -> None:
    """A source whose topic is silent is behind the clock by its silence; work that waits is the system's all the same."""
    assert diagnosis(10 * BEHIND_MS, 10, nothing_left=True) == "nothing to read"
    assert diagnosis(10 * BEHIND_MS, SLOW_MS, nothing_left=True) == "slow system"


def test_the_achieved_late_fraction_is_that_of_all_splits() -> None:
    """Of all records of a source, over the life of its splits; nothing before the first."""
    _, told = beat("source-1", 0, 0, TaskHeld(0), a=split(0, 0, seen=10, late=1), b=split(0, 0, seen=30, late=1))
    assert late_fraction([told]) == pytest.approx(0.05)
    assert late_fraction([beat("source-1", 0, 0, TaskHeld(0), a=split(0, None))[1]]) is None


def test_a_split_whose_records_are_dead_letters_says_so() -> None:
    """It has records, and gave none with an event time."""
    place, source = beat(
        "source-1", MIN_TIME, MIN_TIME, TaskHeld(NOW), s0=SplitHeld(position=7, watermark=MIN_TIME, status="active")
    )
    details = {**source.details, LAST_REASON: "no date"}
    tasks = {place: msgspec.structs.replace(source, details=details, counters={"dlqRows": 1_234})}
    assert "1,234 dead letters, the last for no date" in explain_watermark(status(), tasks, NOW).summary
