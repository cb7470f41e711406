"""Events on a topic for other systems: states of processors, commits, too much late data, answers to commands.

At least once: every event has an id that is the same whenever it is told again (a service that starts tells again what the registry
still holds: the present state of each processor at least), so that readers can drop repeats. JSON, keyed by processor.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.settings import ControlSettings
from tidemark.services.control.stats import late, shown_time
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, NewRecord, TopicPartition, Writer
from tidemark.shared.runtime.topics import KEPT, STAMPED, Topics

_log = structlog.get_logger()
_PAUSE_MS = 100
"""Between two looks for events: those that came meanwhile are written together."""


def _shown(status: ProcessorStatus) -> tuple[Any, ...]:
    """The fields whose change is an event; `changes` alone where a reader of the registry saw only the last of several."""
    return status.state, status.generation, status.job, status.changes


@dataclass(slots=True)
class Events:
    """Writes events in their order; while the brokers are away they wait, and beyond the bound the oldest go."""

    log: Log
    topics: Topics
    clock: Clock
    settings: ControlSettings
    _waiting: deque[tuple[str, bytes]] = field(default_factory=deque)
    """`events_max`."""
    _alerted: dict[str, bool] = field(default_factory=dict)
    _lost: int = 0

    def start(self, executor: Executor, model: ReadModel, on_error: Callable[[BaseException], None]) -> list[Handle]:
        """Write and watch from now on."""
        return [
            executor.spawn(self._write(), "write events", on_error),
            executor.spawn(self._look(model), "look for late data", on_error),
        ]

    def tell(self, kind: str, event_id: str, processor: str, **facts: object) -> None:
        """Put an event into the queue of those to send; the oldest makes room where it is full."""
        if len(self._waiting) >= self.settings.events_max:
            self._waiting.popleft()
            self._lost += 1
        time = shown_time(self.clock.now_ms())
        event = {"id": event_id, "type": kind, "time": time, "processor": processor, **facts}
        self._waiting.append((processor, msgspec.json.encode(event)))

    def status(self, before: ProcessorStatus | None, now: ProcessorStatus | None) -> None:
        """Tell the events that follow from a new, changed or removed status."""
        if now is None:
            if before is not None:
                self._alerted.pop(before.name, None)
                facts = {"before": before.state, "reason": "", "generation": before.generation}
                self.tell("state", f"{before.job}-{before.name}-DROPPED", before.name, state="DROPPED", **facts)
            return
        same_job = before is not None and before.job == now.job
        if before is None or _shown(before) != _shown(now):
            self.tell(
                "state",
                f"{now.job}-{now.generation}-{now.state}-{now.changes}",
                now.name,
                state=now.state,
                before=before.state if before is not None else None,
                reason=now.reason,
                generation=now.generation,
            )
        if now.last and (not same_job or before is None or before.last != now.last):
            epochs = {"epoch": now.last, "released": now.released}
            self.tell("commit", f"{now.job}-commit-{now.last}", now.name, **epochs, commits=now.commits)

    # --- late data --------------------------------------------------------------------------------------------------------

    async def _look(self, model: ReadModel) -> None:
        while True:
            await self.clock.sleep_ms(self.settings.look_ms)
            for status in list(model.statuses.values()):
                self.judge(status, model)

    def judge(self, status: ProcessorStatus, model: ReadModel) -> None:
        """An alert when the late part of a running processor's input rises above the setting; again only after it has fallen."""
        tasks = model.tasks(status)
        sources = [b for t, b in tasks.items() if status.services.get(t.vertex) == "source"]
        records = sum(beat.counters.get("inRows", 0) for beat in sources)
        if status.state != "RUNNING" or records < self.settings.late_records_min:
            return
        fraction = late(tasks.values()) / records
        above = fraction > self.settings.late_fraction_max
        if above and not self._alerted.get(status.name, False):
            facts = {"fraction": fraction, "allowed": self.settings.late_fraction_max, "records": records}
            self.tell(
                "alert", f"{status.job}-{status.generation}-late-{records}", status.name, what="late data", **facts
            )
        self._alerted[status.name] = above

    # --- writing ----------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        partition = TopicPartition(self.topics.events, 0)
        config = {**KEPT, **STAMPED, "retention.ms": str(self.settings.events_kept_ms)}
        while True:
            try:
                await self.log.create_topic(partition.topic, 1, config)
                writer = await self.log.writer("events")
                try:
                    await self._write_with(writer, partition)
                finally:
                    await writer.close()
            except LogError as error:
                _log.warning("events.log_away", waiting=len(self._waiting), reason=str(error))
                await self.clock.sleep_ms(self.settings.retry_ms)

    async def _write_with(self, writer: Writer, partition: TopicPartition) -> None:
        while True:
            while self._waiting:
                key, data = self._waiting[0]
                await (await writer.send(partition, NewRecord(data, key.encode())))
                self._waiting.popleft()
            if self._lost:
                _log.error("events.lost", count=self._lost, most=self.settings.events_max)
                self._lost = 0
            await self.clock.sleep_ms(_PAUSE_MS)
