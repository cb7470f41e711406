"""Explains a processor's watermark: the way from its sinks to the split that is furthest behind, by the last heartbeats.

At every task the way goes on to the sender of the slowest channel that counts (W3). So each step says how much of the delay arises there:
in an operator that holds the watermark (allowed lateness, an open window, a timer, an epoch that is not complete), between two tasks
(frames that are under way or wait behind a barrier), or at a split. The step that keeps back most is the one to look at.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from tidemark.shared.model.held import Hold, SplitHeld, TaskHeld
from tidemark.shared.model.ids import TaskId, VertexId
from tidemark.shared.model.messages import ProcessorStatus, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.runtime.beats import LAST_REASON, WATERMARK

Tasks = Mapping[TaskId, TaskBeat]
_DEPTH_MAX: Final = 1_000
"""Steps upstream that an explanation follows: more than a plan has."""
AHEAD_MS: Final = 3_600_000
"""An event time further ahead than this is told as one that the clock has not reached. Brokers refuse such timestamps by default."""
_SPLIT: Final = "split:"
_WHY: Final[Mapping[str, str]] = {
    "allowedLateness": "keeps windows open for the allowed lateness",
    "openWindow": "has an open window, whose rows may have an output time inside it",
    "epoch": "works on what it took in when the epoch is complete, at the next checkpoint",
    "timer": "has a record or timer of a computation that waits for its time",
    "match": "keeps rows that may still find their match",
    "operator": "holds it",
}


class WatermarkHop(Struct, frozen=True, kw_only=True, rename="camel"):
    """One place on the way from the sinks to the data."""

    vertex: str
    task: int
    split: str | None = None
    watermark_ms: int
    """The watermark that comes out there."""
    last_event_ms: int | None = None
    """Of a split: the highest event time that was accepted."""
    since_ms: int | None = None
    """Since when it stands there, UTC."""
    keeps_ms: int | None
    """How much of the delay arises here; None where the watermark says nothing yet."""
    why: str


class Explained(Struct, frozen=True, kw_only=True, rename="camel"):
    """The way, and the place on it that keeps back most; `culprit` is an index of `steps`."""

    watermark_ms: int | None
    steps: tuple[WatermarkHop, ...]
    culprit: int | None
    summary: str


def explain_watermark(status: ProcessorStatus, tasks: Tasks, now_ms: int) -> Explained:
    """Why the watermark that reaches the sinks stands where it does. now_ms: UTC."""
    begin = _first(status, tasks)
    if begin is None:
        return Explained(watermark_ms=None, steps=(), culprit=None, summary=f"{status.name} has no task that runs")
    steps: list[WatermarkHop] = []
    task: TaskId | None = begin
    while task is not None and len(steps) < _DEPTH_MAX:
        beat = tasks.get(task)
        if beat is None:
            steps.append(_silent(task))
            break
        more, task = _of_task(beat, tasks, now_ms)
        steps += more
    reached = tasks[begin].input_watermark_ms if held_of(tasks[begin]).sender else tasks[begin].output_watermark_ms
    at = max(range(len(steps)), key=lambda i: (_weight(steps[i]), i), default=None)
    return Explained(
        watermark_ms=reached, steps=tuple(steps), culprit=at, summary="" if at is None else _sentence(steps[at])
    )


def _first(status: ProcessorStatus, tasks: Tasks) -> TaskId | None:
    """The sink task whose input is furthest behind; dead letters' only if there is no other; else the last vertex' task."""
    sinks = [t for t in tasks if status.services.get(t.vertex) == "sink"]
    proper = [t for t in sinks if not t.vertex.startswith("dlq")]
    found = proper or sinks or list(tasks)
    return min(found, key=lambda t: (tasks[t].input_watermark_ms, t), default=None)


def _of_task(beat: TaskBeat, tasks: Tasks, now_ms: int) -> tuple[list[WatermarkHop], TaskId | None]:
    """The steps of a task, and the sender to go on with."""
    held = held_of(beat)
    steps = [_hold(beat, held, hold) for hold in reversed(held.holds)]
    splits = _splits(beat)
    if splits:
        return [*steps, *_slowest_split(beat, held, splits, tasks, now_ms)], None
    if held.sender is None:
        why = (
            "has no input that counts: all of it has ended or is idle" if beat.phase != "restoring" else "is restoring"
        )
        steps.append(_step(beat, held, beat.output_watermark_ms, 0, why))
        return steps, None
    vertex, index, known_ms = held.sender
    sender = TaskId(VertexId(vertex), index)
    sent = tasks[sender].output_watermark_ms if sender in tasks else known_ms
    if sent > known_ms:
        waits = f"behind the barrier of checkpoint {held.aligning}" if held.aligning else "on the way, or in the log"
        why = f"has not read all that {sender} has sent: frames wait {waits}"
        steps.append(_step(beat, held, known_ms, _span(sent, known_ms), why))
    return steps, sender


def _hold(beat: TaskBeat, held: TaskHeld, hold: Hold) -> WatermarkHop:
    return _step(beat, held, hold.output_ms, _span(hold.input_ms, hold.output_ms), f"{hold.operator} {_WHY[hold.why]}")


def _slowest_split(
    beat: TaskBeat, held: TaskHeld, splits: Mapping[str, SplitHeld], tasks: Tasks, now_ms: int
) -> Iterable[WatermarkHop]:
    """The split that sets the task's watermark, and the reason why it stays there; other tasks and streams may wait for it."""
    counting = {n: s for n, s in splits.items() if s.status == "active" and not s.finished}
    considered = counting or {n: s for n, s in splits.items() if not s.finished} or splits
    name, split = min(considered.items(), key=lambda item: (item[1].watermark, item[0]))
    if not counting:
        name, split = max(considered.items(), key=lambda item: (item[1].watermark, item[0]))
    everywhere = [s.watermark for other in tasks.values() for s in _splits(other).values() if not s.finished]
    ahead = max([*everywhere, split.lastEvent if split.lastEvent is not None else split.watermark])
    yield WatermarkHop(
        vertex=beat.vertex,
        task=beat.index,
        split=name,
        watermark_ms=split.watermark,
        last_event_ms=split.lastEvent,
        since_ms=split.since or None,
        keeps_ms=_span(ahead, split.watermark),
        why=_why(split, held, beat, now_ms),
    )


def _why(split: SplitHeld, held: TaskHeld, beat: TaskBeat, now_ms: int) -> str:
    """The reasons in words; the main one comes first."""
    if split.finished:
        return "has ended"
    if split.status == "idle":
        return "is idle, as all splits are: the watermark stays at the highest of them"
    words = []
    if held.held_back == "receivers":
        words.append("is not read on: its receivers are too far behind")
    elif held.held_back == "commits":
        words.append("is not read on: too much waits for a commit")
    elif held.held_back == "quota":
        words.append("is held by the quota: its namespace may take no more bytes a second")
    elif split.lastEvent is None:
        letters = beat.counters.get("dlqRows", 0)
        dead = f": its task has made {letters:,} dead letters, the last for {beat.details.get(LAST_REASON)}"
        words.append(f"has given no record yet{dead if letters else ''}")
    elif split.atEnd:
        words.append("has no further record")
    elif split.more:
        words.append("has records that are not read yet")
    else:
        words.append(
            "has just given records, or its end has not been heard of lately: whether more lie there is not known"
        )
    if split.atEnd and not held.held_back:
        words += _at_end(split)
    if split.delay:
        words.append(f"held {split.delay} ms behind its last event by the watermark's strategy")
    if is_ahead(split, now_ms):
        becomes = "no instant comes before it" if split.keepsTime else "what comes before it is late"
        words.append(f"stands at a time that the clock has not reached: {becomes}")
    if split.away:
        words.append("back from idleness, behind the others")
    return "; ".join(words)


def is_ahead(split: SplitHeld, now_ms: int) -> bool:
    """Whether it stands at an event time that the clock will not reach soon; a schedule does where the clock was ahead before."""
    stands_ms = split.watermark if split.keepsTime else split.lastEvent
    return stands_ms is not None and now_ms + AHEAD_MS < stands_ms < MAX_TIME - 1


def _at_end(split: SplitHeld) -> Iterator[str]:
    """What becomes of its watermark while nothing comes."""
    if split.keepsTime:
        yield "goes with the clock"
    elif split.idleIn is not None:
        yield f"idle in {split.idleIn} ms, then it is left out"
    elif split.idleTimeout is None:
        yield "never left out as idle: the source has no partitionIdleTimeout"


def _step(beat: TaskBeat, held: TaskHeld, watermark_ms: int, keeps_ms: int | None, why: str) -> WatermarkHop:
    return WatermarkHop(
        vertex=beat.vertex,
        task=beat.index,
        watermark_ms=watermark_ms,
        since_ms=held.since_ms or None,
        keeps_ms=keeps_ms,
        why=why,
    )


def _silent(task: TaskId) -> WatermarkHop:
    why = "was not heard of lately: its worker is away, or it is being placed"
    return WatermarkHop(vertex=task.vertex, task=task.index, watermark_ms=MIN_TIME, keeps_ms=None, why=why)


def held_of(beat: TaskBeat) -> TaskHeld:
    """Why its watermark stands and its input waits, as it told with its last beat."""
    data = beat.details.get(WATERMARK)
    return TaskHeld(0) if data is None else msgspec.json.decode(data, type=TaskHeld)


def _splits(beat: TaskBeat) -> dict[str, SplitHeld]:
    return {
        name.removeprefix(_SPLIT): msgspec.json.decode(text, type=SplitHeld)
        for name, text in beat.details.items()
        if name.startswith(_SPLIT)
    }


def _span(ahead_ms: int, behind_ms: int) -> int | None:
    """How far apart; None where one of them says nothing yet, or all has been said."""
    said = all(MIN_TIME + 1 < ms < MAX_TIME - 1 for ms in (ahead_ms, behind_ms))
    return max(0, ahead_ms - behind_ms) if said else None


def _weight(step: WatermarkHop) -> int:
    """A step without a report yet holds most; a split that keeps nothing back is still the last on the way."""
    return MAX_TIME if step.keeps_ms is None else step.keeps_ms


def _sentence(step: WatermarkHop) -> str:
    where = f"{step.vertex}/{step.task}" if step.split is None else f"split {step.split} of {step.vertex}/{step.task}"
    return f"{where} {step.why}"
