"""Statistics and alerts from what workers tell: late data or a slow system, and one alert for one rise."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tidemark.services.control.events import Events
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.services.control.stats import beyond_clock, counts_are_final, mostly_dead, stats_of
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.held import SplitHeld, TaskHeld, Wait
from tidemark.shared.model.ids import (
    Epoch,
    Generation,
    JobId,
    Place,
    ProcessorName,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import Heartbeat, ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import RowFailure, dead_letters
from tidemark.shared.runtime.beats import LAST_REASON, WATERMARK
from tidemark.shared.runtime.meter import Meter
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.runtime.watermark import AHEAD_MS

NOW_MS = 1_700_000_000_000
SOURCE = VertexId("source-1")
STATUS = ProcessorStatus(
    ProcessorName("p"),
    JobId("j"),
    "RUNNING",
    "",
    Generation(3),
    Epoch(7),
    Epoch(6),
    1,
    "{}",
    {},
    services={SOURCE: "source", VertexId("emit-1"): "sink", VertexId("dlq"): "sink"},
)


def beat(vertex: str, watermark_ms: int, **counters: int) -> TaskBeat:
    return TaskBeat(
        STATUS.name,
        STATUS.job,
        STATUS.generation,
        VertexId(vertex),
        0,
        "running",
        Epoch(7),
        watermark_ms,
        watermark_ms,
        counters,
    )


def tasks(*beats: TaskBeat) -> Mapping[TaskId, TaskBeat]:
    return {TaskId(b.vertex, b.index): b for b in beats}


def test_counts_that_nobody_here_has_heard_of_are_null() -> None:
    """Of a processor that ran and does not run now; one that never ran has counted nothing."""
    ended = msgspec.structs.replace(STATUS, state="STOPPED")
    stats = stats_of(ended, {}, NOW_MS, verbose=True, scale=1_024)
    assert [stats[name] for name in ("inputMessageCount", "outputMessageSize", "lateMessageCount")] == [None] * 3
    created = msgspec.structs.replace(ended, state="CREATED", generation=Generation(0))
    assert stats_of(created, {}, NOW_MS, verbose=False)["inputMessageCount"] == 0
    kept = stats_of(ended, tasks(beat(SOURCE, NOW_MS, inRows=3, lagMs=60_000)), NOW_MS, verbose=False)
    assert (kept["inputMessageCount"], kept["diagnosis"]) == (3, "not running")


@pytest.mark.parametrize(
    ("event_lag_ms", "work_waits_ms", "said"),
    [
        (1_000, 0, "in time"),
        (600_000, 0, "late data"),
        (600_000, 60_000, "slow system"),
        (1_000, 60_000, "slow system"),
    ],
)
def test_late_data_or_a_slow_system(event_lag_ms: int, work_waits_ms: int, said: str) -> None:
    """Event time that lags while no work waits is data that comes late; where work waits, too, the system is slow (W5)."""
    stats = stats_of(STATUS, tasks(beat(SOURCE, NOW_MS - event_lag_ms, lagMs=work_waits_ms)), NOW_MS, verbose=False)
    assert stats["diagnosis"] == said
    assert (stats["eventTimeLagMillis"], stats["processingTimeLagMillis"]) == (event_lag_ms, work_waits_ms)


@pytest.mark.parametrize(
    ("held_back", "behind_ms", "said"),
    [("quota", 0, "held by its quota"), ("quota", 60_000, "slow system"), ("commits", 0, "slow system")],
)
def test_who_waits_for_a_quota_is_not_slow(held_back: Any, behind_ms: int, said: str) -> None:
    """As long as no other work waits: more tasks would help nobody there (E4)."""
    held = {WATERMARK: msgspec.json.encode(TaskHeld(0, held_back=held_back)).decode()}
    source = msgspec.structs.replace(beat(SOURCE, NOW_MS, lagMs=60_000), details=held)
    stats = stats_of(STATUS, tasks(source, beat("emit-1", NOW_MS, lagMs=behind_ms)), NOW_MS, verbose=False)
    assert stats["diagnosis"] == said


def test_who_waits_for_what_lies_outside_is_not_slow() -> None:
    """The diagnosis says so, and which task waits for what; another task's work may wait behind it."""
    wait = Wait("target", "staging 7", "$emit", 0, "orders at a:9092 refuses it for now")
    sink = msgspec.structs.replace(beat("emit-1", NOW_MS, lagMs=60_000), waiting=(wait,))
    stats = stats_of(STATUS, tasks(beat(SOURCE, NOW_MS, lagMs=60_000), sink), NOW_MS, verbose=False)
    assert stats["diagnosis"] == "waits for what lies outside"
    assert stats["waitsFor"] == "emit-1/0: staging 7: orders at a:9092 refuses it for now"
    assert stats_of(STATUS, tasks(beat(SOURCE, NOW_MS)), NOW_MS, verbose=False)["waitsFor"] is None


def test_counts_are_those_of_ends() -> None:
    """Input is the sources', output the sinks', dead letters the queue's; state is everybody's."""
    found = tasks(
        beat(SOURCE, NOW_MS, inRows=10, inBytes=100, outRows=8, stateBytes=5, late=2, busyMs=1_500),
        beat("emit-1", NOW_MS, inRows=8, inBytes=80, stateBytes=1),
        beat("dlq", NOW_MS, inRows=2, inBytes=20),
    )
    stats = stats_of(STATUS, found, NOW_MS, verbose=True)
    wanted = {
        "inputMessageCount": 10,
        "inputMessageSize": 100,
        "outputMessageCount": 8,
        "outputMessageSize": 80,
        "dlqMessageCount": 2,
        "lateMessageCount": 2,
        "stateSize": 6,
        "watermark": "2023-11-14T22:13:20.000Z",
    }
    assert {name: stats[name] for name in wanted} == wanted
    assert {o["name"]: o["executionTimeSecs"] for o in stats["operatorStats"]} == {
        "dlq": 0,
        "emit-1": 0,
        "source-1": 1.5,
    }
    assert {o["name"]: o["executionMicrosPerMessage"] for o in stats["operatorStats"]} == {
        "dlq": 0,
        "emit-1": 0,
        "source-1": 150_000,
    }
    assert stats["costliest"].startswith("source-1")


def test_windows_that_are_open_and_splits_are_told_with_atlas_fields() -> None:
    """Starts of open windows; a Kafka split by topic and number, another by its name; sizes in the unit asked for."""
    partition = SplitHeld(position=7, watermark=NOW_MS, status="active", topic="t-1", checkpoint=5)
    file = SplitHeld(position=9, watermark=NOW_MS, status="idle")
    details = {f"split:{name}": msgspec.json.encode(s).decode() for name, s in (("t-1-3", partition), ("a-2", file))}
    found = tasks(
        msgspec.structs.replace(beat(SOURCE, NOW_MS, inRows=1, inBytes=2_048), details=details),
        beat(
            "window-1",
            NOW_MS,
            minOpenWindow=NOW_MS,
            maxOpenWindow=NOW_MS + 1_000,
            stateBytes=1_024,
            stateBytesMax=4_096,
        ),
    )
    stats = stats_of(STATUS, found, NOW_MS, verbose=True, scale=1_024)
    assert (stats["scaleFactor"], stats["inputMessageSize"], stats["inputMessageCount"]) == (1_024, 2, 1)
    window = next(o for o in stats["operatorStats"] if o["name"] == "window-1")
    assert (window["stateSize"], window["maxMemoryUsage"]) == (1, 4)
    assert window["minOpenWindowStartTime"] == "2023-11-14T22:13:20.000Z"
    assert window["maxOpenWindowStartTime"] == "2023-11-14T22:13:21.000Z"
    assert window["counters"] == {}
    (split,) = stats["kafkaPartitions"]
    assert [split[name] for name in ("topic", "partition", "currentOffset", "checkpointOffset", "isIdle")] == [
        "t-1",
        3,
        7,
        5,
        False,
    ]
    assert [(s["split"], s["currentOffset"], s["isIdle"]) for s in stats["splits"]] == [("a-2", 9, True)]


def told(events: Events) -> list[dict[str, Any]]:
    return [json.loads(data) for _, data in events._waiting]


def test_one_alert_for_one_rise() -> None:
    """The late part is told when it rises above the setting, once; and again after it has fallen; never on few records."""
    clock = SystemClock()
    model = ReadModel(MemoryLog(MemoryBroker(clock)), Topics(), clock)
    events = Events(model.log, Topics(), clock, ControlSettings(late_fraction_max=0.1, late_records_min=100))
    for records, late in ((50, 50), (100, 20), (200, 40), (1_000, 50), (1_100, 300)):
        heard = Heartbeat(
            WorkerIncarnation("w"),
            Place("source-0"),
            "source",
            4,
            1,
            "h",
            (beat(SOURCE, NOW_MS, inRows=records, late=late),),
        )
        model.hear(heard)
        events.judge(STATUS, model)
    assert [(e["type"], e["processor"], e["records"], e["fraction"]) for e in told(events)] == [
        ("alert", "p", 100, 0.2),
        ("alert", "p", 1_100, 300 / 1_100),
    ]


def test_events_that_wait_are_bounded() -> None:
    """While the brokers are away the newest are kept, as many as the setting says."""
    clock = SystemClock()
    events = Events(MemoryLog(MemoryBroker(clock)), Topics(), clock, ControlSettings(events_max=2))
    for number in range(5):
        events.tell("state", f"e{number}", "p")
    assert [event["id"] for event in told(events)] == ["e3", "e4"]


_REASON = "The event time is a date, found '2026-01-01'."


@pytest.mark.parametrize(
    ("state", "read", "dead", "mostly"),
    [("RUNNING", 10, 10, True), ("RUNNING", 10, 5, True), ("RUNNING", 10, 4, False), ("STOPPED", 10, 10, False)],
)
def test_a_processor_whose_records_are_mostly_dead_letters_says_why(
    state: str, read: int, dead: int, mostly: bool
) -> None:
    """It runs, and nothing comes out: diagnosis and reason say so, with the reason of the last dead letter."""
    source = beat(SOURCE, MIN_TIME, inRows=read, dlqRows=dead)
    source = msgspec.structs.replace(source, details={LAST_REASON: _REASON})
    status = msgspec.structs.replace(STATUS, state=state)
    stats = stats_of(status, tasks(source), NOW_MS, verbose=False)
    assert stats["lastDeadLetter"] == _REASON
    assert (stats["diagnosis"] == "mostly dead letters") == mostly
    told = f"{dead} dead letters of {read} records that were read; {_REASON}" if mostly else ""
    assert mostly_dead(status, tasks(source)) == told


@pytest.mark.parametrize(
    ("ahead_ms", "late", "told"),
    [(AHEAD_MS + 1, 3, True), (AHEAD_MS, 3, False), (AHEAD_MS + 1, 0, False), (-5_000, 3, False)],
)
def test_a_time_that_the_clock_has_not_reached_is_named_where_records_come_late(
    ahead_ms: int, late: int, told: bool
) -> None:
    """One record of a wrong time makes all that follow late: state and lag alone look as well as ever."""
    at_ms = NOW_MS + ahead_ms
    split = msgspec.json.encode(
        SplitHeld(position=9, watermark=at_ms, status="active", lastEvent=at_ms, late=late)
    ).decode()
    source = msgspec.structs.replace(beat(SOURCE, at_ms, inRows=10), details={"split:rides-0": split})
    window = beat("window-1", NOW_MS, late=late)
    stats = stats_of(STATUS, tasks(source, window), NOW_MS, verbose=False)
    assert (stats["diagnosis"] == "event times ahead of the clock") == told
    said = beyond_clock(STATUS, tasks(source, window), NOW_MS)
    assert bool(said) == told
    assert not told or said.startswith(f"3 late records: split rides-0 of {SOURCE}/0 has given an event time of ")
    schedule = SplitHeld(position=at_ms, watermark=at_ms, status="active", keepsTime=True)
    source = msgspec.structs.replace(source, details={"split:instants": msgspec.json.encode(schedule).decode()})
    said = beyond_clock(STATUS, tasks(source), NOW_MS)
    assert bool(said) == (ahead_ms > AHEAD_MS)
    assert not said or "its schedule gives nothing until then" in said
    stopped = msgspec.structs.replace(STATUS, state="STOPPED")
    assert beyond_clock(stopped, tasks(source, window), NOW_MS) == ""


def test_the_last_dead_letter_is_told_with_heartbeats() -> None:
    """In one line that every message takes, whatever the reason quotes: line ends, half a surrogate pair, a long text."""
    meter = Meter()
    assert meter.last_reason() == ""
    rows = batch_of([{"v": 1}, {"v": 2}], {TS: pa.array([7, 8])})
    for reason in ("first", "found \ud800\n" + "x" * 1_000):
        failures = [RowFailure(0, "another", "Code"), RowFailure(1, reason, "Code")]
        meter.gave(dead_letters(rows, failures, "$source", TaskContext("p", topic="t")))
    assert meter.last_reason() == "found ? " + "x" * 292
    assert meter.dlq_rows == 4


def test_counts_are_final_once_each_task_has_told_of_the_last_checkpoint() -> None:
    """An earlier beat has counts of the time before it; one of an earlier generation says nothing."""
    last = [beat(vertex, MIN_TIME) for vertex in (SOURCE, "emit-1", "dlq")]
    assert counts_are_final(STATUS, last)
    assert not counts_are_final(STATUS, last[:2])
    behind = msgspec.structs.replace(last[0], index=1, epoch=Epoch(6))
    assert not counts_are_final(STATUS, [*last, behind])
    assert counts_are_final(STATUS, [*last, msgspec.structs.replace(behind, generation=Generation(2))])
