"""What must hold of the rows of jobs in which the moment has a part: each record once, in a place that is right for it."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.harness.drawn_jobs.comparing import audited
from tests.harness.drawn_jobs.job import say
from tests.harness.drawn_jobs.timed import STAMPED, Timed
from tests.harness.drawn_scripts import BASE_MS, found, key_of, since, wanted, weight_of
from tests.oracle.scripts import Script, computed, starts_of
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.installation import Installation
from tidemark.shared.language.values import parse_json
from tidemark.shared.model.values import Date

_SECOND_MS: Final = 1_000
_TENTH_MS: Final = 100


async def judged(there: Installation, folder: Path, job: Timed) -> list[str]:
    """What is wrong; nothing where all is as it must be."""
    rows = [parse_json(r.value or b"null") async for r in committed_records(there.log, f"{job.name}-out")]
    letters = [parse_json(r.value or b"null") async for r in committed_records(there.log, f"{job.name}-dlq")]
    came = {}
    async for record in committed_records(there.log, f"{job.name}-in"):
        came[int(parse_json(record.value or b"")["v"])] = record.timestamp_ms
    late = {
        int(each["doc"]["v"]): tuple(int(start) - BASE_MS for start in each.get("missedWindowStartTimes", ()))
        for each in letters
    }
    wrong = [] if len(late) == len(letters) else ["a record is late twice"]
    match job.shape:
        case "arrival" | "timers":
            wrong += _stories(job, rows, late)
        case "join":
            wrong += _joined(job, rows)
        case "union" | "sample":
            wrong += _beside(job, rows)
        case _:
            wrong += _exact(job, rows, late) if job.shape == "late" else _windows(job, rows, late, came)
    if late and job.shape in ("clock", "arrival", *STAMPED):
        wrong.append(f"late: {late}")
    wrong += await audited(folder, job, None if job.shape in STAMPED else len(job.values))
    say(
        f"{job.name}: {job.shape} {len(job.values)} records, {len(rows)} rows, {len(late)} late; {' '.join([*job.between, job.last])}"
    )
    return wrong[:5]


# --- windows ----------------------------------------------------------------------------------------------------------


def _exact(job: Timed, rows: list[Any], late: Mapping[int, tuple[int, ...]]) -> list[str]:
    """Where a record's own split judges it, all is a function of the records."""
    told, sessions = Script(job.steps, job.stage, job.lateness, job.delay_ms), not job.stage.hop_ms
    got = Counter(found(rows, sessions=sessions))
    due = Counter(wanted(told.closed, sessions=sessions, looks=job.looks, sorts=job.sorts))
    wrong = [] if got == due else [f"rows: more {list(got - due)[:3]}, missing {list(due - got)[:3]}"]
    return wrong if late == dict(told.late) else [*wrong, f"late: {late} for {told.late}"]


def _windows(
    job: Timed, rows: list[Any], late: Mapping[int, tuple[int, ...]], came: Mapping[int, int]
) -> Iterator[str]:
    """Each record in each of its windows, or late there; each window once, unless it is one of processing time."""
    stage, sessions = job.stage, not job.stage.hop_ms
    times = came if stage.by_arrival else {step.number: step.time_ms for step in job.steps}
    from_ms = BASE_MS if stage.by_arrival else 0
    at: dict[int, list[int]] = defaultdict(list)
    windows: Counter[tuple[int, int, Any]] = Counter()
    for row in found(rows, sessions=sessions):
        start, end, key, values, weight = row[0] + from_ms, row[1] + from_ms, *row[-3:]
        windows[start, end, key] += 1
        for value in values:
            at[value].append(start)
        inside = sorted(times[value] for value in values)
        if sessions:
            near = all(after - before < stage.size_ms for before, after in pairwise(inside))
            if not near or (start, end) != (inside[0], inside[-1] + stage.size_ms) or row[2] != key:
                yield f"bounds: {row}, {inside}"
        elif start not in starts_of(inside[0], stage) or inside[-1] >= end or end != start + stage.size_ms:
            yield f"bounds: {row}, {inside}"
        orders = [(value,) if job.sorts else (times[value], job.steps[value].partition, value) for value in values]
        if orders != sorted(orders) or {key_of(job.steps[value].key) for value in values} != {key}:
            yield f"order, or key: {row}, {orders}"
        if job.looks and weight != weight_of(key) * len(values):
            yield f"looked up: {row}"
    twice = [each for each, times in windows.items() if times > 1]
    if twice and not stage.by_arrival:
        yield f"twice: {twice}"
    for step in job.steps:
        number, missed = step.number, late.get(step.number, ())
        where = at[number]
        once = [*where, *([0] * (number in late))] if sessions else sorted([*where, *missed])
        if (len(once) != 1) if sessions else (once != starts_of(times[number], stage)):
            yield f"record {number} of {times[number]}: in {where}, missed {missed}"
    if not stage.by_arrival:
        yield from _rightly_late(job, late)


def _rightly_late(job: Timed, late: Mapping[int, tuple[int, ...]]) -> Iterator[str]:
    """No record that all watermarks leave on time; and with lateness by split all that their own split has left behind."""
    stage, of = job.stage, defaultdict[int, int | None](lambda: None)
    most = max(step.time_ms for step in job.steps) - job.delay_ms - stage.lateness_ms
    for step in job.steps:
        own, missed = of[step.partition], late.get(step.number, ())
        least = None if own is None or job.lateness == "merged" else own - job.delay_ms - stage.lateness_ms
        if stage.hop_ms:
            ends = [start + stage.size_ms for start in starts_of(step.time_ms, stage)]
            early = [end for end in ends if end > most and end - stage.size_ms in missed and stage.idle_ms is None]
            due = [end for end in ends if least is not None and end <= least and end - stage.size_ms not in missed]
        else:
            behind = least is not None and step.time_ms < least
            early = [0] if step.number in late and not behind and step.time_ms + stage.size_ms > most else []
            due = [0] if behind and step.number not in late else []
        if early or due:
            yield f"late too early {early} or not at all {due}: {step}, its split {own}, all {most}"
        of[step.partition] = max(step.time_ms, step.time_ms if own is None else own)


# --- computations -----------------------------------------------------------------------------------------------------


def _stories(job: Timed, rows: list[Any], late: Mapping[int, tuple[int, ...]]) -> Iterator[str]:
    """Each row of a key tells one thing more than the one before it: each record once, each timer as it was set."""
    keys: dict[Any, list[list[str]]] = defaultdict(list)
    for row in rows:
        told = [since(each) for each in row["seen"]]
        keys[key_of(job.steps[int(told[0])].key)].append(told)
    exact = job.shape == "timers" and job.lateness == "split" and not _silent(job) and not _clocked(job)
    oracle = computed(job.steps, job.lateness, job.delay_ms, arrival=False)[0] if exact else {}
    for key in {key_of(step.key) for step in job.steps}:
        stories = sorted(keys[key], key=len)
        if any(before != after[:-1] for before, after in pairwise([[], *stories])):
            yield f"{key}: {stories}"
            continue
        story = stories[-1] if stories else []
        yield from (f"{key}: {what}: {story}" for what in _told(job, key, story, late))
        if exact:
            wanted = [told for each, all_ in oracle.items() if key_of(each) == key and all_ for told in all_[-1]]
            last = max((place for place, each in enumerate(story) if each.isdigit()), default=0) + 1
            if story[:last] != wanted[:last]:
                yield f"{key}: {story[:last]} for {wanted[:last]}"


def _silent(job: Timed) -> bool:
    return "partitionIdleTimeout" in job.pipeline[0]["$source"]


def _clocked(job: Timed) -> bool:
    return any(step.clock_ms is not None for step in job.steps)


def _told(job: Timed, key: Any, story: list[str], late: Mapping[int, tuple[int, ...]]) -> Iterator[str]:
    """What is wrong of one key's story."""
    records = [int(each) for each in story if each.isdigit()]
    due = [step.number for step in job.steps if key_of(step.key) == key and step.number not in late]
    if sorted(records) != due:
        yield f"records for {due}"
    by_time = {number: (job.steps[number].time_ms, job.steps[number].partition, number) for number in records}
    for partition in range(job.partitions):
        own = [number for number in records if job.steps[number].partition == partition]
        if job.shape == "arrival" and own != sorted(own):
            yield f"the order of partition {partition}"
    if job.shape == "timers" and records != sorted(records, key=by_time.__getitem__):
        yield "the order of time"
    pending: dict[str, int | None] = {}
    by_timer = False
    for each in story:
        name, at, time = each.partition("@")
        if not at:
            step, odd = job.steps[int(each)], int(each) % 2
            if step.event_ms is not None:
                pending[f"e{odd}"] = step.event_ms
                by_timer = by_timer and odd == 0
            if step.clock_ms is not None:
                pending[f"c{odd}"] = None
            continue
        if name not in pending or pending[name] not in (None, int(time)):
            yield f"{each} while {pending}"
        pending.pop(name, None)
        if name == "e0":
            pending["e1"], by_timer = int(time) + 3, True
    if pending and not (list(pending) == ["e1"] and by_timer):  # set behind the end
        yield f"never fired: {pending}"


# --- schedules --------------------------------------------------------------------------------------------------------


def _instants(found: Iterable[int], every_ms: int) -> Iterator[str]:
    """Each once, none left out."""
    instants = sorted(found)
    holes = [each for each in pairwise(instants) if each[1] - each[0] != every_ms]
    if holes or not instants:
        yield f"instants: {holes[:3]} of {len(instants)}"


def _ms(value: Any) -> int:
    """Of a date, or of the text of one."""
    return int(datetime.fromisoformat(value).timestamp() * 1000) if isinstance(value, str) else int(value)


def _joined(job: Timed, rows: list[Any]) -> Iterator[str]:
    """Each record with its second's instant, if that was told; instants without records alone."""
    numbers = Counter(int(row["v"]) for row in rows if "v" in row)
    if numbers != Counter(step.number for step in job.steps):
        yield f"records: {numbers}"
    met = {_ms(row["at"]["scheduledAt"]) for row in rows if row["at"] is not None and "v" in row}
    alone = Counter(_ms(row["at"]["scheduledAt"]) for row in rows if "v" not in row)
    instants = met | alone.keys()
    if met & alone.keys() or any(times > 1 for times in alone.values()):
        yield f"instants that came twice: {alone}, {met}"
    yield from _instants(instants, _SECOND_MS)
    for row in rows:
        if "v" in row:
            second = job.stamps[int(row["v"])] // _SECOND_MS * _SECOND_MS
            told = None if row["at"] is None else _ms(row["at"]["scheduledAt"])
            if told != (second if second in instants else None):
                yield f"{row} for {second}"


def _beside(job: Timed, rows: list[Any]) -> Iterator[str]:
    """Each record, and each of the other stream's, once, in the window of its time; each window once."""
    size_ms = job.stage.size_ms
    starts = Counter(int(row["start"]) for row in rows)
    if any(times > 1 or start % size_ms for start, times in starts.items()):
        yield f"windows: {starts}"
    numbers: Counter[int] = Counter()
    instants = []
    for row in rows:
        for each in row["vs"]:
            record = None if isinstance(each, str | Date) else int(each)
            if record is None:
                instants.append(_ms(each))
            else:
                numbers[record] += 1
            at_ms = instants[-1] if record is None else job.stamps[record]
            if not int(row["start"]) <= at_ms < int(row["end"]) == int(row["start"]) + size_ms:
                yield f"{each} of {at_ms} in {row['start']}"
    if numbers != Counter(step.number for step in job.steps):
        yield f"records: {Counter(step.number for step in job.steps) - numbers}, more {numbers.total()}"
    yield from _instants(instants, _SECOND_MS if job.shape == "union" else _TENTH_MS)
