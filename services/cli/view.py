"""The view of a running processor: one line a second, or a live table in a terminal."""

import asyncio
import json
import os
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from tidemark.services.cli.feed import Fed
from tidemark.services.cli.installation import Installation
from tidemark.services.control.stats import last_reason, late
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.model.ids import ProcessorName, VertexId
from tidemark.shared.model.messages import Heartbeat, TaskBeat
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.ports.log import Log, TopicPartition
from tidemark.shared.runtime.reading import followed

_LOOK_S = 0.5
"""How often the view measures, s."""
_RATE_LOOKS = 10
"""A rate is taken over so many looks: heartbeats come in between."""
_ALERTS_SHOWN = 8
"""The last alerts of the demo, while it runs."""


@dataclass(slots=True)
class SeenReports:
    """The reports that the view has received so far."""

    beats: dict[str, TaskBeat] = field(default_factory=dict)
    """Of one generation: its tasks count from 0."""
    job: str = ""
    """The job that `beats` are of."""
    counted: int = 0
    """The generation that `beats` are of; 0 before any."""
    first_counted: int = 0
    """The generation that was heard first."""
    epoch: int = 0
    commits: int = 0
    generation: int = 0
    state: str = ""
    why: str = ""
    """Why it waits, or why it begins again."""
    alerts: list[dict[str, Any]] = field(default_factory=list)
    alert_count: int = 0
    fed: Fed = field(default_factory=Fed)
    services: dict[VertexId, str] = field(default_factory=dict)
    """By vertex."""
    event_ms: int = 0
    """Event time of the record that was fed last, ms."""

    def hear(self, beat: TaskBeat) -> None:
        """Take a task's report; it replaces the reports of older generations."""
        if beat.job != self.job:
            self.job, self.counted, self.first_counted = beat.job, 0, 0
        if beat.generation < self.counted:
            return
        if beat.generation > self.counted:
            self.beats, self.counted = {}, beat.generation
            self.first_counted = self.first_counted or beat.generation
        self.beats[f"{beat.vertex}/{beat.index}"] = beat

    def since(self) -> str:
        """From when figures count: tasks begin at 0 with each generation, which reads again from the last checkpoint."""
        if self.counted == self.first_counted:
            return "in this run"
        return f"since the last start (generation {self.counted})"

    def total(self, counter: str) -> int:
        """Sum of a counter over the tasks of sources."""
        return sum(beat.counters.get(counter, 0) for place, beat in self.beats.items() if place.startswith("source"))

    def late(self) -> int:
        """Documents that came late, wherever that was seen: a join or a lookup may stand in front of the window."""
        return late(self.beats.values())

    def written(self) -> int:
        """Rows that sinks took, dead letters apart: less those that the target refuses, and those passed over by order."""
        return sum(
            beat.counters.get("rows", 0) - beat.counters.get("skipped", 0)
            for beat in self.beats.values()
            if self.services.get(beat.vertex) == "sink" and not beat.vertex.startswith("dlq")
        )

    def dead(self) -> int:
        """Dead letters, kept or not."""
        return sum(beat.counters.get("dlqRows", 0) for beat in self.beats.values())

    def dead_told(self) -> str:
        """How many they are, and why the last is one."""
        reason = last_reason(self.beats.values())
        return f"{self.dead():,}{f', the last: {reason}' if reason else ''}"

    def watermark_ms(self) -> int:
        """The lowest output watermark of the sources, ms; MIN_TIME before any."""
        return min(
            (b.output_watermark_ms for place, b in self.beats.items() if place.startswith("source")), default=MIN_TIME
        )


def shown_time(time_ms: int) -> str:
    """An instant for people."""
    if time_ms <= MIN_TIME + 1:
        return "none yet"
    if time_ms >= MAX_TIME - 1:
        return "the end"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%d %b %Y %H:%M")


def _append(path: Path, line: str) -> str:
    """Add a whole line or nothing; "" or the error. A figure that is missing from the report stops no job."""
    before: int | None = None
    try:
        try:
            before = path.stat().st_size
        except FileNotFoundError:
            before = 0
        with path.open("a") as out:
            out.write(line)
    except OSError as error:
        # A length that is not known cuts nothing off.
        if before is not None:
            os.truncate(path, before)
        return f"{path}: {error.strerror}"
    return ""


class ProcessorView:
    """Follows one processor while `run` is awaited beside. Without a topic of alerts nothing is fed, either: that is the demo's."""

    def __init__(
        self, installed: Installation, name: ProcessorName, alerts_topic: str | None, series: Path | None
    ) -> None:
        self._installed = installed
        self._name = name
        self._alerts_topic = alerts_topic
        self._series = series
        self.seen = SeenReports()
        self._began = time.monotonic()
        self._looks: deque[int] = deque([0], maxlen=_RATE_LOOKS + 1)
        self._trouble = ""

    async def run(self) -> None:
        """Show until cancelled."""
        console = Console(stderr=True)
        tasks = [
            asyncio.create_task(self._follow_status()),
            asyncio.create_task(self._follow_beats()),
            asyncio.create_task(self._show(console)),
        ]
        if self._alerts_topic is not None:
            tasks.append(asyncio.create_task(self._follow_alerts(self._installed.log, self._alerts_topic)))
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _follow_status(self) -> None:
        async for status in self._installed.client.watch(self._name):
            self.seen.state, self.seen.why, self.seen.epoch = status.state, status.reason, status.last
            self.seen.commits, self.seen.generation = status.commits, status.generation
            self.seen.services = dict(status.services)

    async def _follow_beats(self) -> None:
        async for beat in self._installed.client.heartbeats():
            self._heard(beat)

    def _heard(self, heartbeat: Heartbeat) -> None:
        for beat in heartbeat.tasks:
            if beat.name == self._name:
                self.seen.hear(beat)

    async def _follow_alerts(self, log: Log, topic: str) -> None:
        async for record in followed(log, SystemClock(), TopicPartition(topic, 0), committed_only=True):
            self.seen.alert_count += 1
            self.seen.alerts = [*self.seen.alerts, json.loads(record.value or b"{}")][-_ALERTS_SHOWN:]

    async def _show(self, console: Console) -> None:
        with (
            Live(console=console, refresh_per_second=4, transient=False)
            if console.is_terminal
            else _Lines(console) as live
        ):
            while True:
                await asyncio.sleep(_LOOK_S)
                self._measure()
                live.update(self._table() if console.is_terminal else self._line())

    def _measure(self) -> None:
        records = self.seen.total("records")
        self._looks.append(records)
        if self._series is not None and self.seen.beats:
            point = {
                "t": round(time.monotonic() - self._began, 2),
                "watermark_ms": self.seen.watermark_ms(),
                "max_event_ms": self.seen.event_ms,
                "sent": self.seen.fed.sent,
                "records": records,
                "epoch": self.seen.epoch,
                "alerts": self.seen.alert_count,
            }
            self._trouble = _append(self._series, json.dumps(point) + "\n")

    def _facts(self) -> list[tuple[str, str]]:
        seen, fed = self.seen, self._alerts_topic is not None
        rate = max(0, self._looks[-1] - self._looks[0]) / (_LOOK_S * max(1, len(self._looks) - 1))
        behind = f", {max(0, seen.fed.sent - seen.total('records')):,} behind" if fed else ""
        return [
            ("state", f"{seen.state} (generation {seen.generation})"),
            *([("why", escape(seen.why))] if seen.why else []),
            *([("counted", seen.since())] if seen.counted != seen.first_counted else []),
            *([("fed", f"{seen.fed.sent:,}")] if fed else []),
            ("read", f"{seen.total('records'):,} ({rate:,.0f}/s){behind}"),
            *([] if fed else [("written", f"{seen.written():,}")]),
            ("watermark", shown_time(seen.watermark_ms())),
            ("epochs committed", f"{seen.commits}"),
            ("late / repeated", f"{seen.late():,} / {seen.total('duplicates'):,}"),
            ("dead letters", escape(seen.dead_told())),
            *([("alerts", f"{seen.alert_count:,}")] if fed else []),
            *(("trouble", said) for said in [*self._installed.cluster.troubles(), self._trouble] if said),
        ]

    def totals(self) -> str:
        """The totals of a run, and since when they count, for its end."""
        seen = self.seen
        figures = (
            ("read", seen.total("records")),
            ("written", seen.written()),
            ("late", seen.late()),
            ("repeated", seen.total("duplicates")),
            ("dead letters", seen.dead()),
        )
        return f"{seen.since()}: " + ", ".join(f"{name} {value:,}" for name, value in figures)

    def _line(self) -> str:
        return "  ".join(f"{name}: {value}" for name, value in self._facts())

    def _table(self) -> Table:
        table = Table(title=f"tidemark: {self._name}", show_header=False)
        for name, value in self._facts():
            table.add_row(name, value)
        for alert in reversed(self.seen.alerts):
            kind = f"{alert.get('kind', '?')} ({alert.get('cause', '?')})"
            figures = f"expected {alert.get('expected', 0):.0f}, found {alert.get('actual', 0)}"
            table.add_row(kind, f"{alert.get('origin', '?')} {alert.get('hour', '?')}: {figures}")
        return table


class _Lines:
    """Where there is no terminal: a line every other second."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, line: object) -> None:
        """Print some of them."""
        self._count += 1
        if self._count % 4 == 0:
            self._console.print(line, highlight=False, soft_wrap=True)
