"""What came out against what the source topics hold: each id once, nowhere else, in its window; and what readers saw stays.

It knows nothing of epochs, markers or watermarks: it reads the source topic, and the outputs as any reader would.
"""

import asyncio
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.chaos.jobs import Job
from tidemark.services.audit.reading import committed_records
from tidemark.services.sink.connectors.released import read_released_rows
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.runtime.reading import followed

_SHOWN = 5


@dataclass
class Reader:
    """Reads the topics of a job's output all the time, and keeps what it was shown."""

    job: Job
    log: Log
    shown: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    ids: Counter[str] = field(default_factory=Counter)
    """Of all that was shown."""
    wrong: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        topics = [topic for topic in (self.job.topic, self.job.letters) if topic]
        await asyncio.gather(*(self._follow(topic) for topic in topics))

    async def _follow(self, topic: str) -> None:
        seen = self.shown.setdefault(topic, [])
        async for record in followed(self.log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            if seen and record.offset <= seen[-1][0]:
                self.wrong.append(f"{topic}: offset {record.offset} was read after {seen[-1][0]}")
            seen.append((record.offset, record.value or b""))
            self.ids.update(ids_of(json.loads(record.value or b"null")))

    async def stayed(self) -> list[str]:
        """What was shown and is there no more, or otherwise."""
        found = list(self.wrong)
        for topic, seen in self.shown.items():
            now: dict[int, bytes] = {r.offset: r.value or b"" async for r in committed_records(self.log, topic)}
            gone = [offset for offset, value in seen if now.get(offset) != value]
            if gone:
                found.append(f"{topic}: {len(gone)} records were shown and did not stay, the first at offset {gone[0]}")
        return found


def ids_of(row: Mapping[str, Any]) -> list[str]:
    """Of the records that an output is made of."""
    document = row.get("doc", row) if "errInfo" in row else row
    return list(document["ids"]) if "ids" in document else [document["id"]]


@dataclass
class Outputs:
    """Of a job, by where they lie."""

    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    letters: list[dict[str, Any]] = field(default_factory=list)


async def outputs_of(job: Job, log: Log) -> Outputs:
    """As any reader sees them now."""
    found = Outputs()
    if job.topic:
        found.rows["topic"] = [json.loads(r.value or b"null") async for r in committed_records(log, job.topic)]
    if job.letters:
        found.letters = [json.loads(r.value or b"null") async for r in committed_records(log, job.letters)]
    if job.folder:
        found.rows["files"] = await asyncio.to_thread(read_released_rows, str(job.folder))
    if job.table:
        found.rows["table"] = await asyncio.to_thread(_table, job.table)
    return found


def _table(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as table:
        return [{"id": id_, "k": key} for id_, key in table.execute("SELECT id, k FROM seen")]


async def there(job: Job, log: Log) -> Counter[str]:
    """The ids that the source topic holds, as often as it does."""
    return Counter([json.loads(r.value or b"null")["id"] async for r in committed_records(log, job.source)])


def open_still(sent: str, closed: int) -> bool:
    """Whether an id is one of those that close round `closed`'s windows: its own window is open."""
    return sent.startswith(f"{closed}-closes-")


def judge(job: Job, source: Counter[str], found: Outputs, late: set[str], closed: int | None) -> list[str]:
    """Sentences on what is lost, twice or wrong. `closed`: the round whose windows are closed; None: the job has finished."""
    due = {i: n for i, n in source.items() if closed is None or not open_still(i, closed)}
    expected = Counter(dict.fromkeys(due, 1) if job.wholly else due)
    letters = Counter(i for letter in found.letters for i in ids_of(letter))
    wrong = _differ("letters", Counter({i: 1 for i in expected if i in late}), letters)
    on_time = Counter({i: n for i, n in expected.items() if i not in late})
    for place, rows in found.rows.items():
        ids = Counter(i for row in rows for i in ids_of(row))
        if place == "table":  # a row of it stands for all that were of its key
            wrong += _differ(place, Counter(dict.fromkeys(on_time, 1)), ids)
        else:
            wrong += _differ(place, on_time, ids)
        if job.middle == "window":
            wrong += [
                f"{place}: a window counts {row['n']} of {len(row['ids'])} records"
                for row in rows
                if row["n"] != len(row["ids"])
            ]
        if job.middle == "marks" and place != "table":
            wrong += _unnumbered(place, rows)
    return wrong


def _unnumbered(place: str, rows: list[dict[str, Any]]) -> list[str]:
    """A key's records are numbered from one."""
    seen: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        seen[row["k"]].append(row["seen"])
    odd = [key for key, numbers in seen.items() if sorted(numbers) != list(range(1, len(numbers) + 1))]
    return [f"{place}: the records of {len(odd)} keys are not numbered from one, such as {odd[0]}"] if odd else []


def _differ(place: str, expected: Counter[str], found: Counter[str]) -> list[str]:
    lost, more = expected - found, found - expected
    wrong = []
    if lost:
        wrong.append(f"{place}: {lost.total()} of {expected.total()} lost: {sorted(lost)[:_SHOWN]}")
    if more:
        wrong.append(f"{place}: {more.total()} too many or not due: {sorted(more)[:_SHOWN]}")
    return wrong
