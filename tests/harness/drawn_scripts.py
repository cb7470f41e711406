"""Scripts of both times drawn at random, as a user writes them, through the whole system in one process; and what is to come of them."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tests.harness.drawn_world import ms
from tests.oracle.scripts import Clock, Closed, Data, Idle, Lateness, Script, Step, Watermark, Windows
from tidemark.services.cli.process import Runner, run_case
from tidemark.shared.language.values import from_json

BASE_MS: Final = 1_704_067_200_000 // 1_260 * 1_260
"""A boundary of windows of every size that is drawn."""
_KEYS: Final = ("a", "b", 1, 1.0, None)
_TABLE: Final = [
    {"_id": "a", "w": 1},
    {"_id": 1, "w": 10},
    {"_id": 1.0, "w": 100},
    {"_id": None, "w": 1000},
    {"w": 5000},
]
"""What is looked up inside of windows."""
_LOOKUP: Final = {"$lookup": {"from": {"documents": _TABLE}, "localField": "k", "foreignField": "_id", "as": "f"}}
_WEIGHED: Final = {"$set": {"w": {"$sum": "$f.w"}}}


def date(time_ms: int) -> dict[str, Any]:
    """As a script says it."""
    return {"$date": {"$numberLong": str(BASE_MS + time_ms)}}


def script(chooser: random.Random) -> list[Step]:
    """Event time goes on in jumps, with records far behind; the clock goes on by itself; partitions fall silent and come back."""
    partitions, now, event = chooser.choice((1, 1, 2, 3)), 0, 0
    behind, silent = chooser.choice((3, 15, 40)), chooser.choice((0.05, 0.2))
    steps: list[Step] = [Clock(0)]
    for number in range(chooser.choice((6, 15, 30))):
        partition = chooser.randrange(partitions)
        drawn = chooser.random()
        if drawn < 0.25:
            now += chooser.choice((0, 1, 4, 15))
            steps.append(Clock(now))
        elif drawn < 0.32:
            steps.append(Watermark(event + chooser.randint(-10, 10), partition if chooser.random() < 0.5 else None))
        elif drawn < 0.32 + silent:
            steps.append(Idle(partition))
        else:
            event += chooser.randint(-2, 7)
            time = event + chooser.randint(-behind, 3)
            timers = (chooser.choice((None, time - 2, time, time + 6)), chooser.choice((None, now + 1, now + 9)))
            steps.append(Data(number, time, chooser.choice(_KEYS), partition, *timers))
    # A step waits for the watermark of the one before it. The end does not, and timers that it finds pending fire once.
    return [*steps, Clock(now)]


def windows(chooser: random.Random) -> Windows:
    """A stage of any kind."""
    size, hop = chooser.choice((3, 7, 20)), chooser.choice((0, 0, 0, 2, 5, 9, -1, -1))
    hop = size if hop < 0 else hop
    if chooser.random() < 0.3:
        return Windows(size, hop, by_arrival=True)
    lateness = chooser.choice((0, 0, 1, 8, 30))
    offset = chooser.choice((0, -3, 4)) if hop else 0
    idle = chooser.choice((0, 2, 5)) if hop and chooser.random() < 0.4 else None
    return Windows(size, hop, offset, lateness, idle)


def document(chooser: random.Random, steps: Sequence[Step], stage: Windows, lateness: str, delay_ms: int) -> Any:
    """The same as a user writes it; each row tells its window."""
    names = ("start", "end", *(() if stage.hop_ms else ("partition",)))
    told = {"$addFields": {name: {"$meta": f"stream.window.{name}"} for name in names}}
    looked, weight = chooser.choice((([], 0), ([_LOOKUP, _WEIGHED], "$w")))
    if not stage.hop_ms:  # in front of a session's `$group` it is refused
        looked, weight = [], 0
    behind = chooser.random() < 0.5
    forms: list[list[Any]] = [
        [*looked, {"$group": {"_id": "$k", "vs": {"$push": "$v"}, "w": {"$sum": weight}}}],
        [*looked, {"$sort": {"v": 1}}, {"$group": {"_id": "$k", "vs": {"$push": "$v"}, "w": {"$sum": weight}}}],
        [{"$group": {"_id": "$k", "vs": {"$push": "$v"}}}, *([] if not behind else [
            {"$lookup": {**_LOOKUP["$lookup"], "localField": "_id"}}, {"$set": {"w": {"$multiply": [{"$size": "$vs"}, {"$sum": "$f.w"}]}}},
        ]), {"$project": {"vs": 1, "w": {"$ifNull": ["$w", 0]}}}],
    ]  # fmt: skip
    form = chooser.choice(forms)
    looks = bool(behind if form is forms[-1] else looked)
    window: dict[str, Any] = {"pipeline": [*form, told]}
    if stage.by_arrival:
        window["boundary"] = "processingTime"
    else:
        window["allowedLateness"] = ms(stage.lateness_ms)
    if stage.idle_ms is not None:
        window["idleTimeout"] = ms(stage.idle_ms)
    if not stage.hop_ms:
        kind, own = "$sessionWindow", {"gap": ms(stage.size_ms), "partitionBy": "$k"}
    else:
        kind, own = "$hoppingWindow", {"interval": ms(stage.size_ms), "hopSize": ms(stage.hop_ms)}
        if stage.hop_ms == stage.size_ms:
            kind = "$tumblingWindow"
            del own["hopSize"]
        if stage.offset_ms:
            own["offset"] = {"offsetFromUtc": stage.offset_ms, "unit": "ms"}
    return (
        {
            "pipeline": [source(steps, delay_ms), {kind: {**own, **window}}],
            "options": {"lateness": lateness},
        },
        looks,
        "$sort" in str(form),
    )


def source(steps: Sequence[Step], delay_ms: int) -> dict[str, Any]:
    """The script as a source."""
    watermark = {"strategy": "boundedDisorder", "maxDelay": ms(delay_ms)}
    return {"$source": {"script": [*map(_step, steps)], "timeField": "$ts", "watermark": watermark}}


def row_of(record: Data) -> dict[str, Any]:
    """A record's document."""
    timers = {
        name: None if time is None else BASE_MS + time
        for name, time in (("event", record.event_ms), ("clock", record.clock_ms))
    }
    return {"ts": date(record.time_ms), "k": record.key, "v": record.number, **timers}


def _step(step: Step) -> dict[str, Any]:
    match step:
        case Data():
            return {"data": row_of(step), "partition": step.partition}
        case Watermark():
            where = {} if step.partition is None else {"partition": step.partition}
            return {"watermark": date(step.time_ms), **where}
        case Clock():
            return {"processingTime": date(step.time_ms)}
        case Idle():
            return {"idle": True, "partition": step.partition}


def key_of(value: Any) -> Any:
    """As groups and sessions compare it."""
    return value if value is None or isinstance(value, str) else float(value)


def weight_of(key: Any) -> int:
    """What is looked up for a record of a key."""
    return {"a": 1, None: 6000, 1.0: 110}.get(key_of(key), 0)


def wanted(closed: Sequence[Closed], *, sessions: bool, looks: bool, sorts: bool) -> Iterator[tuple[Any, ...]]:
    """A row for each key of each window: its bounds, its records in order, what was looked up for them."""
    for window in closed:
        groups: dict[Any, list[Data]] = defaultdict(list)
        for record in window.records:
            groups[key_of(record.key)].append(record)
        for key, records in groups.items():
            numbers = [record.number for record in records]
            weight = weight_of(key) * len(records) if looks else 0
            told = (window.start_ms, window.end_ms, *((key_of(window.key),) if sessions else ()))
            yield (*told, key, tuple(sorted(numbers) if sorts else numbers), weight)


def found(rows: Iterable[Any], *, sessions: bool) -> Iterator[tuple[Any, ...]]:
    """Rows as they came out."""
    for row in rows:
        told = (int(row["start"]) - BASE_MS, int(row["end"]) - BASE_MS)
        yield (
            *told, *((key_of(row["partition"]),) if sessions else ()),
            key_of(row["_id"]), tuple(map(int, row["vs"])), int(row["w"]),
        )  # fmt: skip


def since(told: str) -> str:
    """What a computation tells of a timer, with the time since the beginning."""
    name, at, time = told.partition("@")
    return f"{name}@{int(time) - BASE_MS}" if at else name


def difference(seed: int, runner: Runner) -> str | None:
    """What a seed's windows give otherwise than its steps say, with the document; None where nothing differs."""
    chooser = random.Random(seed)
    steps, stage = script(chooser), windows(chooser)
    lateness: Lateness = chooser.choice(("merged", "split"))
    delay_ms = chooser.choice((0, 3, 8))
    text, looks, sorts = document(chooser, steps, stage, lateness, delay_ms)
    result = run_case(runner, {"id": "drawn", **text})
    told, sessions = Script(steps, stage, lateness, delay_ms), not stage.hop_ms
    letters = [from_json(letter) for letter in result["dlq"]]
    missed = [
        (int(each["doc"]["v"]), tuple(int(start) - BASE_MS for start in each.get("missedWindowStartTimes", ())))
        for each in letters
    ]
    rows = sorted(found(map(from_json, result["output"]), sessions=sessions), key=repr)
    due = sorted(wanted(told.closed, sessions=sessions, looks=looks, sorts=sorts), key=repr)
    got = (result["error"], rows, sorted(missed))
    return None if got == (None, due, sorted(told.late)) else f"{got} for {due}, {told.late}: {text}"
