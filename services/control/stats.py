"""Statistics of a processor, with the names that MongoDB Atlas gives them, and a diagnosis: late or slow (W5).

Counts are those of the running generation's tasks, since each began. An operator here is a vertex of the physical plan, several stages
that are fused in one; `README.md` says which of Atlas' fields are not here, and which are ours.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemark.shared.model.held import SplitHeld
from tidemark.shared.model.ids import TaskId, VertexId
from tidemark.shared.model.messages import IDLE_STATES, QUOTA_MS, SHARE, ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.base import MAX_OPEN, MIN_OPEN
from tidemark.shared.runtime.beats import LAST_REASON
from tidemark.shared.runtime.watermark import Explained, held_of, is_ahead

SLOW_MS = 10_000
"""Work that waits longer makes a system slow."""
BEHIND_MS = 60_000
"""Event time that lags further than this, while no work waits, is data that comes late."""

COSTLY = 5
"""How many of the operators that took most time are named."""
SCALE_MAX = 1024**3
"""The range of a query's `scale`."""
_KEEPS_TIME = '"keepsTime":true'
"""In what a task tells of a schedule; of other splits most are not decoded at each request."""
Tasks = Mapping[TaskId, TaskBeat]
_SIZES = {"inputMessageSize", "outputMessageSize", "dlqMessageSize", "stateSize", "maxMemoryUsage"}
_COUNTS = (
    "inputMessageCount", "inputMessageSize", "outputMessageCount", "outputMessageSize", "dlqMessageCount", "dlqMessageSize",
    "lateMessageCount", "stateSize",
)  # fmt: skip


def stats_of(status: ProcessorStatus, tasks: Tasks, now_ms: int, *, verbose: bool, scale: int = 1) -> dict[str, Any]:
    """The document. now_ms: UTC. scale: sizes are in so many bytes.

    tasks: as they were last heard of; where a processor ran and none is known, its counts are null.
    """
    sources = _of(status, tasks, "source")
    sinks = [beat for beat in _of(status, tasks, "sink") if not is_queue(beat.vertex)]
    queues = [beat for beat in _of(status, tasks, "sink") if is_queue(beat.vertex)]
    watermark_ms = min((beat.output_watermark_ms for beat in sources), default=MIN_TIME)
    stats: dict[str, Any] = {
        "name": status.name,
        "processorId": status.job,
        "status": status.state,
        "scaleFactor": scale,
        "inputMessageCount": _sum(sources, "inRows"),
        "inputMessageSize": _sum(sources, "inBytes"),
        "outputMessageCount": _sum(sinks, "inRows"),
        "outputMessageSize": _sum(sinks, "inBytes"),
        "dlqMessageCount": _sum(queues, "inRows") if queues else _sum(tasks.values(), "dlqRows"),
        "dlqMessageSize": _sum(queues, "inBytes") if queues else _sum(tasks.values(), "dlqBytes"),
        "lastDeadLetter": last_reason(tasks.values()) or None,
        "lateMessageCount": late(tasks.values()),
        "lateFraction": late_fraction(sources),
        "stateSize": _sum(tasks.values(), "stateBytes"),
        "watermark": shown_time(watermark_ms),
        "generation": status.generation,
        "epoch": status.last,
        "releasedEpoch": status.released,
        "epochMillis": status.epoch_ms,
        **_lags(
            {} if status.state in IDLE_STATES else tasks,
            watermark_ms,
            now_ms,
            dying=bool(mostly_dead(status, tasks)),
            ahead=bool(beyond_clock(status, tasks, now_ms)),
        ),
    }
    if not tasks and status.generation and status.state in IDLE_STATES:
        stats |= dict.fromkeys(_COUNTS)
    if verbose:
        operators = operator_stats(status, tasks)
        stats["operatorStats"] = operators
        costly = sorted(operators, key=lambda each: -each["executionTimeMillis"])[:COSTLY]
        stats["costliest"] = ", ".join(each["name"] for each in costly)
        splits = [(name, split) for beat in sources for name, split in _told(beat)]
        stats["kafkaPartitions"] = [
            {"topic": s.topic, "partition": int(name.removeprefix(f"{s.topic}-")), **_split(s)}
            for name, s in splits
            if s.topic is not None
        ]
        stats["splits"] = [{"split": name, **_split(s)} for name, s in splits if s.topic is None]
    return _scaled(stats, scale)


def _scaled(stats: dict[str, Any], scale: int) -> dict[str, Any]:
    if scale == 1:
        return stats
    scaled = {name: value / scale if name in _SIZES and value is not None else value for name, value in stats.items()}
    if "operatorStats" in scaled:
        scaled["operatorStats"] = [_scaled(operator, scale) for operator in scaled["operatorStats"]]
    return scaled


def is_queue(vertex: VertexId) -> bool:
    """Whether a sink is the dead letter queue's."""
    return vertex == "dlq" or vertex.startswith("dlq-")


def late(beats: Iterable[TaskBeat]) -> int:
    """Documents that came late, wherever that was seen."""
    return sum(beat.counters.get("late", 0) + beat.counters.get("latePartials", 0) for beat in beats)


def shown_time(time_ms: int) -> str | None:
    """An instant as ISO 8601; None before the first, `end` after the last."""
    if time_ms <= MIN_TIME + 1:
        return None
    if time_ms >= MAX_TIME - 1:
        return "end"
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(time_ms)


def shown_watermark(explained: Explained) -> dict[str, Any]:
    """`explain-watermark` with its times as ISO 8601."""
    return {
        "watermark": None if explained.watermark_ms is None else shown_time(explained.watermark_ms),
        "summary": explained.summary,
        "culprit": explained.culprit,
        "steps": [
            {
                "vertex": step.vertex,
                "task": step.task,
                "split": step.split,
                "watermark": shown_time(step.watermark_ms),
                "lastEvent": None if step.last_event_ms is None else shown_time(step.last_event_ms),
                "since": None if step.since_ms is None else shown_time(step.since_ms),
                "keepsMillis": step.keeps_ms,
                "why": step.why,
            }
            for step in explained.steps
        ],
    }


def counts_are_final(status: ProcessorStatus, beats: Iterable[TaskBeat]) -> bool:
    """Whether a task of each vertex, and no task of an earlier checkpoint, has told of the last one: nothing is counted behind it."""
    told: dict[VertexId, int] = {}
    for beat in beats:
        if (beat.job, beat.generation) == (status.job, status.generation):
            told[beat.vertex] = min(beat.epoch, told.get(beat.vertex, beat.epoch))
    return all(told.get(vertex, -1) >= status.last for vertex in status.services)


def last_reason(beats: Iterable[TaskBeat]) -> str:
    """Why the last dead letter is one: of the tasks that tell of one, the task with most; "" where there are none."""
    told = [beat for beat in beats if LAST_REASON in beat.details]
    return max(told, key=lambda beat: beat.counters.get("dlqRows", 0)).details[LAST_REASON] if told else ""


def mostly_dead(status: ProcessorStatus, tasks: Tasks) -> str:
    """A sentence where at least half of the records that were read became dead letters; "" else, and of a processor that does not run."""
    read, dead = _sum(_of(status, tasks, "source"), "inRows"), _sum(tasks.values(), "dlqRows")
    if status.state != "RUNNING" or not dead or 2 * dead < read:
        return ""
    return f"{dead:,} dead letters of {read:,} records that were read; {last_reason(tasks.values())}".rstrip("; ")


def beyond_clock(status: ProcessorStatus, tasks: Tasks, now_ms: int) -> str:
    """A sentence where a split stands at an event time that the clock has not reached, and records come late behind it; "" else.

    Of a schedule none come at all. now_ms: UTC.
    """
    if status.state != "RUNNING":
        return ""
    records = late(tasks.values())
    ahead = [
        (split.watermark if split.keepsTime else split.lastEvent or split.watermark, task, name, split.keepsTime)
        for task, beat in sorted(tasks.items())
        if records or any(_KEEPS_TIME in text for text in beat.details.values())
        for name, split in _told(beat)
        if not split.finished and is_ahead(split, now_ms) and (split.keepsTime or (records and split.late))
    ]
    if not ahead:
        return ""
    time_ms, task, name, keeps_time = max(ahead)
    if keeps_time:
        return (
            f"{task} stands at {shown_time(time_ms)}, which the clock has not reached: its schedule gives nothing until then;"
            " where the clock was wrong, start without state"
        )
    return (
        f"{records:,} late records: split {name} of {task} has given an event time of {shown_time(time_ms)}, which the clock has not"
        " reached; $source.maxEventTimeJump keeps such a record out"
    )


def diagnosis(
    event_lag_ms: int | None,
    processing_lag_ms: int,
    *,
    nothing_left: bool = False,
    by_quota: bool = False,
    waits: bool = False,
    dying: bool = False,
    ahead: bool = False,
) -> str:
    """W5: work that waits is a slow system, whatever its event times; event times that are behind while none waits are late data.

    nothing_left: the whole input has been read; then no data are late, for there are none. by_quota: what waits so long does so for the
    namespace's quota of bytes (E4); waits: a task waits for what lies outside (C10); then nothing here is slow.
    dying: at least half of what was read became dead letters. ahead: records come late behind a time that the clock has not reached.
    """
    if waits:
        return "waits for what lies outside"
    if processing_lag_ms >= SLOW_MS:
        return "held by its quota" if by_quota else "slow system"
    if ahead:
        return "event times ahead of the clock"
    if dying:
        return "mostly dead letters"
    if nothing_left:
        return "nothing to read"
    if event_lag_ms is not None and event_lag_ms >= BEHIND_MS:
        return "late data"
    return "in time"


def late_fraction(beats: Iterable[TaskBeat]) -> float | None:
    """The fraction of the splits' records that came behind their watermark, in the life of the splits: a percentile strategy's result."""
    splits = [split for beat in beats for _, split in _told(beat)]
    seen = sum(split.seen for split in splits)
    return sum(split.late for split in splits) / seen if seen else None


def _lags(tasks: Tasks, watermark_ms: int, now_ms: int, *, dying: bool, ahead: bool) -> dict[str, Any]:
    """W5: a large event-time lag with a small processing-time lag is late data; both large is a slow system."""
    processing_ms = max((beat.counters.get("lagMs", 0) for beat in tasks.values()), default=0)
    known = MIN_TIME + 1 < watermark_ms < MAX_TIME - 1
    event_ms = max(0, now_ms - watermark_ms) if known else None
    return {
        "processingTimeWatermark": shown_time(now_ms - processing_ms) if tasks else None,
        "processingTimeLagMillis": processing_ms,
        "eventTimeLagMillis": event_ms,
        "diagnosis": diagnosis(
            event_ms,
            processing_ms,
            nothing_left=_nothing_left(tasks),
            by_quota=_by_quota(tasks),
            waits=bool(_waits(tasks)),
            dying=dying,
            ahead=ahead,
        )
        if tasks
        else "not running",
        "waitsFor": _waits(tasks) or None,
    }


def _waits(tasks: Tasks) -> str:
    """What the first of the tasks waits for outside, and why; "" where none does."""
    return next((f"{task}: {beat.waiting[0]}" for task, beat in sorted(tasks.items()) if beat.waiting), "")


def _by_quota(tasks: Tasks) -> bool:
    """All work that has waited for long does so for a quota: no task behind the sources is slow."""
    return all(
        held_of(beat).held_back == "quota" for beat in tasks.values() if beat.counters.get("lagMs", 0) >= SLOW_MS
    )


def _nothing_left(tasks: Tasks) -> bool:
    """Every split has been read to where it ends now."""
    splits = [split for beat in tasks.values() for _, split in _told(beat)]
    return bool(splits) and all(split.finished or (split.atEnd and not split.more) for split in splits)


def operator_stats(status: ProcessorStatus, tasks: Tasks) -> list[dict[str, Any]]:
    """Of each vertex, by name."""
    return [_operator(status, vertex, beats) for vertex, beats in _by_vertex(tasks).items()]


def _operator(status: ProcessorStatus, vertex: VertexId, beats: list[TaskBeat]) -> dict[str, Any]:
    names = {name for beat in beats for name in beat.counters} - _NAMED
    return {
        "name": vertex,
        "service": status.services.get(vertex, ""),
        "tasks": len(beats),
        "inputMessageCount": _sum(beats, "inRows"),
        "inputMessageSize": _sum(beats, "inBytes"),
        "outputMessageCount": _sum(beats, "outRows"),
        "outputMessageSize": _sum(beats, "outBytes"),
        "dlqMessageCount": _sum(beats, "dlqRows"),
        "dlqMessageSize": _sum(beats, "dlqBytes"),
        "stateSize": _sum(beats, "stateBytes"),
        "maxMemoryUsage": _sum(beats, "stateBytesMax"),
        "executionTimeSecs": _sum(beats, "busyMs") / 1000,
        "executionTimeMillis": _sum(beats, "busyMs"),
        "executionMicrosPerMessage": _micros_per_row(beats),
        **_open_windows(beats),
        "heldBackSecs": _sum(beats, "heldMs") / 1000,
        "heldByQuotaSecs": _sum(beats, QUOTA_MS) / 1000,
        "quotaBytesPerSecond": _sum(beats, SHARE) or None,
        "inputWatermark": shown_time(min(beat.input_watermark_ms for beat in beats)),
        "watermark": shown_time(min(beat.output_watermark_ms for beat in beats)),
        "counters": {name: sum(beat.counters.get(name, 0) for beat in beats) for name in sorted(names)},
    }


def task_stats(beat: TaskBeat | None) -> dict[str, Any]:
    """Of one task, so that one sees whether some have more to do than others; null while none is heard of."""
    counters = {} if beat is None else beat.counters
    named = {
        "inputMessageCount": "inRows",
        "outputMessageCount": "outRows",
        "lagMillis": "lagMs",
        "stateSize": "stateBytes",
    }
    return {
        **{name: None if beat is None else counters.get(counter, 0) for name, counter in named.items()},
        "watermark": None if beat is None else shown_time(beat.output_watermark_ms),
    }


_NAMED = {
    "inRows", "inBytes", "outRows", "outBytes", "dlqRows", "dlqBytes", "stateBytes", "stateBytesMax", "busyMs", "heldMs", "lagMs",
    QUOTA_MS, SHARE, MIN_OPEN, MAX_OPEN,
}  # fmt: skip


def _micros_per_row(beats: list[TaskBeat]) -> float | None:
    """Time spent on a row that came in, us; None before the first."""
    rows = _sum(beats, "inRows")
    return round(1000 * _sum(beats, "busyMs") / rows, 2) if rows else None


def _open_windows(beats: Iterable[TaskBeat]) -> dict[str, str | None]:
    """Of a vertex with windows that are open."""
    first = [beat.counters[MIN_OPEN] for beat in beats if MIN_OPEN in beat.counters]
    last = [beat.counters[MAX_OPEN] for beat in beats if MAX_OPEN in beat.counters]
    found = {"minOpenWindowStartTime": shown_time(min(first))} if first else {}
    return {**found, "maxOpenWindowStartTime": shown_time(max(last))} if last else found


def _split(split: SplitHeld) -> dict[str, Any]:
    return {
        "currentOffset": split.position,
        "checkpointOffset": split.checkpoint,
        "isIdle": split.status == "idle",
        "atEnd": split.atEnd,
        "watermark": shown_time(split.watermark),
        "lateFraction": split.late / split.seen if split.seen else None,
    }


def _told(beat: TaskBeat) -> Iterable[tuple[str, SplitHeld]]:
    for name, text in beat.details.items():
        if name.startswith("split:"):
            yield name.removeprefix("split:"), msgspec.json.decode(text, type=SplitHeld)


def _by_vertex(tasks: Tasks) -> dict[VertexId, list[TaskBeat]]:
    found: dict[VertexId, list[TaskBeat]] = defaultdict(list)
    for task, beat in sorted(tasks.items()):
        found[task.vertex].append(beat)
    return found


def _of(status: ProcessorStatus, tasks: Tasks, service: str) -> list[TaskBeat]:
    return [beat for task, beat in tasks.items() if status.services.get(task.vertex) == service]


def _sum(beats: Iterable[TaskBeat], counter: str) -> int:
    return sum(beat.counters.get(counter, 0) for beat in beats)
