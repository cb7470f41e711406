"""The service's read model, rebuilt from topics at each start: processors, tasks as workers tell of them, connections.

Readers without a group: every replica reads all. While the brokers are away it keeps its last state, and says since when. Who asks waits
until all is known that the topics had by then (`up_to_now`): so whoever was told that something is done sees it at each replica.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from tidemark.services.control.history import History
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.model.ids import JobId, Offset, Place, ProcessorName, TaskId
from tidemark.shared.model.messages import IDLE_STATES, Heartbeat, ProcessorStatus, TaskBeat
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, LogRecord, OffsetOutOfRange, TopicPartition
from tidemark.shared.runtime.reading import Unreadable, reading
from tidemark.shared.runtime.registry import KnownConnections, Registry
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_command, decode_report

_log = structlog.get_logger()

LOOK_MS: Final = 1
"""Between two looks whether a model has read what it was asked for: it is some milliseconds behind."""
Offsets = Callable[[Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Offset]]]


@dataclass(slots=True)
class SeenWorker:
    """A worker's last heartbeat."""

    beat: Heartbeat
    at_ms: int
    by_job: dict[JobId, list[TaskBeat]] = field(init=False)
    """Its tasks."""

    def __post_init__(self) -> None:
        """Sort its tasks once, not at each question."""
        self.by_job = {}
        for task in self.beat.tasks:
            self.by_job.setdefault(task.job, []).append(task)


@dataclass(slots=True)
class Followed:
    """A topic of one partition."""

    partition: TopicPartition
    take: Callable[[LogRecord], None]
    from_end: bool = False
    """Heartbeats and commands: what was said before this service began is nothing to it."""
    config: Mapping[str, str] | None = None
    """The topic is made with this where it is not there; the service goes on without it."""
    position: Offset | None = None
    """The first offset that has not been read."""
    read: bool = False
    """All that was there at the start has been read."""
    away: str = ""
    """Why it cannot be read now."""


@dataclass(slots=True)
class ReadModel:
    """Statuses by name, workers by place, connections by name."""

    log: Log
    topics: Topics
    clock: Clock
    settings: ControlSettings = field(default_factory=ControlSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    on_status: Callable[[ProcessorStatus | None, ProcessorStatus | None], None] = lambda _before, _now: None
    """Told of every status that is new, with the one before; of a processor that was dropped, None."""
    workers: dict[Place, SeenWorker] = field(default_factory=dict)
    """To be changed by `hear` alone. The worker heard last stands last."""
    _hosts: dict[JobId, dict[Place, SeenWorker]] = field(default_factory=dict)
    """The same, by the jobs whose tasks they host: what is asked about one processor does not grow with the others."""
    _beats: dict[JobId, dict[TaskId, TaskBeat]] = field(default_factory=dict)
    """The last of each task, of each job that has had a status since this service read all that there was: it hears what they tell."""
    unreadable: Unreadable = field(default_factory=Unreadable)
    history: History = field(default_factory=History)
    _connections: KnownConnections = field(init=False)
    _registry: Registry = field(init=False)
    _statuses: Followed = field(init=False)
    _followed: list[Followed] = field(default_factory=list)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: int = 0
    """How often somebody has asked for what is there now."""
    _ends: tuple[int, dict[TopicPartition, Offset]] = (0, {})
    """Where the topics ended when they were looked at last, for the first so many who asked."""

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self._registry = Registry(self.runtime.wire, unreadable=self.unreadable)
        self._connections = KnownConnections(unreadable=self.unreadable)

    @property
    def statuses(self) -> dict[ProcessorName, ProcessorStatus]:
        """Processors by name."""
        return self._registry.statuses

    @property
    def connections(self) -> dict[str, Any]:
        """Connections by name, without their secrets."""
        return self._connections.values

    def start(self, executor: Executor, on_error: Callable[[BaseException], None]) -> list[Handle]:
        """Follow the topics from now on."""
        self._statuses = Followed(TopicPartition(self.topics.registry, 0), self._take_status)
        self._followed += [
            self._statuses,
            Followed(TopicPartition(self.topics.connections, 0), self._connections.take),
            Followed(TopicPartition(self.topics.reports, 0), self._take_report, from_end=True),
            Followed(TopicPartition(self.topics.commands, 0), self._take_command, from_end=True),
        ]
        handles = [executor.spawn(self._follow(t), f"read {t.partition.topic}", on_error) for t in self._followed]
        handles.append(executor.spawn(self._look_for_ends(), "look where topics end", on_error))
        return [*handles, executor.spawn(self._look(), "look at processors", on_error)]

    def follow(self, topic: str, take: Callable[[LogRecord], None], config: Mapping[str, str]) -> Followed:
        """Of another's, from the start on."""
        self._followed.append(Followed(TopicPartition(topic, 0), take, config=config))
        return self._followed[-1]

    def away(self) -> str:
        """Why the topics cannot be read now; empty if they can."""
        return next((topic.away for topic in self._followed if topic.away and topic.config is None), "")

    def ready(self) -> bool:
        """Whether everything that was there at the start is known."""
        needed = [topic for topic in self._followed if topic.config is None]
        return bool(needed) and all(topic.read for topic in needed)

    async def up_to_now(self) -> str:
        """Wait until all is known that the topics have now; else, after `shown_ms_max`, why it is not sure."""
        if not self.ready():
            return self.away() or "the registry is still being read"
        self._asked += 1
        mine, until_ms = self._asked, self.clock.monotonic_ms() + self.settings.shown_ms_max
        self._wanted.set()
        while not self._has(mine):
            if reason := self.away():
                return reason
            if self.clock.monotonic_ms() >= until_ms:
                return f"what was told last has not been read within {self.settings.shown_ms_max} ms"
            await self.clock.sleep_ms(LOOK_MS)
        return ""

    def _has(self, asked: int) -> bool:
        looked, ends = self._ends
        known = [(topic.position, ends[topic.partition]) for topic in self._followed if topic.partition in ends]
        return looked >= asked and all(position is not None and position >= end for position, end in known)

    async def _look_for_ends(self) -> None:
        """For all that have asked by then at once."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            asked, topics = self._asked, [each for each in self._followed if not each.from_end and each.read]
            try:
                self._ends = asked, await self.log.end_offsets([topic.partition for topic in topics])
            except LogError as error:
                _log.warning("control.ends_unknown", reason=str(error))

    def tasks(self, status: ProcessorStatus) -> Mapping[TaskId, TaskBeat]:
        """The running generation's tasks, as workers told of them last."""
        oldest_ms = self.clock.monotonic_ms() - self.settings.silent_ms_max
        return {
            TaskId(beat.vertex, beat.index): beat
            for seen in self._hosts.get(status.job, {}).values()
            if seen.at_ms >= oldest_ms
            for beat in seen.by_job[status.job]
            if beat.generation == status.generation
        }

    def counted(self, status: ProcessorStatus) -> Mapping[TaskId, TaskBeat]:
        """The same where it runs; else what they told last, whenever that was."""
        if status.state not in IDLE_STATES:
            return self.tasks(status)
        known = self._beats.get(status.job, {})
        return {task: beat for task, beat in known.items() if beat.generation == status.generation}

    def heard(self, status: ProcessorStatus) -> bool:
        """Whether this service hears what the job's tasks tell, or was there when they told it."""
        return status.job in self._beats

    def living(self) -> list[Heartbeat]:
        """Workers that have been heard of lately, by place."""
        oldest_ms = self.clock.monotonic_ms() - self.settings.silent_ms_max
        return [seen.beat for _, seen in sorted(self.workers.items()) if seen.at_ms >= oldest_ms]

    async def _look(self) -> None:
        while True:
            await self.clock.sleep_ms(self.settings.look_ms)
            for status in [each for each in self.statuses.values() if each.state == "RUNNING"]:
                self.history.look(status, self.tasks(status), self.clock.now_ms(), self.clock.monotonic_ms())

    # --- reading ----------------------------------------------------------------------------------------------------------

    async def _follow(self, topic: Followed) -> None:
        while True:
            try:
                if topic.config is not None:
                    await self.log.create_topic(topic.partition.topic, 1, topic.config)
                end = (await self.log.end_offsets([topic.partition]))[topic.partition]
                if topic.position is None:
                    begin: Offsets = self.log.begin_offsets
                    topic.position = end if topic.from_end else (await begin([topic.partition]))[topic.partition]
                async with reading(self.log) as reader:
                    await reader.assign({topic.partition: topic.position})
                    while True:
                        records = await reader.fetch(self.runtime.topic_records_max, self.runtime.fetch_timeout_ms)
                        for record in records:
                            topic.take(record)
                        topic.position = reader.position(topic.partition)
                        topic.read = topic.read or topic.position >= end
                        topic.away = ""
            except OffsetOutOfRange as error:
                # It stood still for longer than the topic is kept, or the topic was made anew: the present state is told again.
                _log.warning("control.overtaken", topic=topic.partition.topic, reason=str(error))
                topic.position = None
            except LogError as error:
                if not topic.away:
                    _log.warning("control.log_away", topic=topic.partition.topic, reason=str(error))
                topic.away = str(error) or type(error).__name__
                await self.clock.sleep_ms(self.settings.retry_ms)

    def _take_status(self, record: LogRecord) -> None:
        before = self.statuses.get(ProcessorName((record.key or b"").decode(errors="replace")))
        name = self._registry.take(record)
        if name is not None:
            now = self.statuses.get(name)
            if before is not None and (now is None or now.job != before.job):
                self.history.jobs.pop(before.job, None)
                self._beats.pop(before.job, None)
            if now is not None and self._statuses.read and now.job not in self._beats:
                # What its tasks have told before its status was read: topics are not read in one order.
                told = [task for seen in self._hosts.get(now.job, {}).values() for task in seen.by_job[now.job]]
                self._beats[now.job] = {TaskId(task.vertex, task.index): task for task in told}
            self.on_status(before, now)

    def _take_command(self, record: LogRecord) -> None:
        command = self.unreadable.read(record, lambda found: decode_command(found.value or b"", self.runtime.wire))
        if command is not None:
            self.history.take(command, record.timestamp_ms)

    def _take_report(self, record: LogRecord) -> None:
        report = self.unreadable.read(record, lambda found: decode_report(found.value or b"", self.runtime.wire))
        if report is not None:
            self.history.take(report, record.timestamp_ms)
        if isinstance(report, Heartbeat):
            for task in report.tasks:
                if task.job in self._beats:
                    self._beats[task.job][TaskId(task.vertex, task.index)] = task
            self.hear(report)

    def hear(self, report: Heartbeat) -> None:
        """A worker's heartbeat; those that have been silent for long are forgotten."""
        now_ms = self.clock.monotonic_ms()
        self._forget(report.place)
        seen = self.workers[report.place] = SeenWorker(report, now_ms)
        for job in seen.by_job:
            self._hosts.setdefault(job, {})[report.place] = seen
        oldest_ms = now_ms - 6 * self.settings.silent_ms_max
        for place in [p for p, known in self.workers.items() if known.at_ms < oldest_ms]:
            self._forget(place)
        while len(self.workers) > self.settings.workers_max:
            self._forget(next(iter(self.workers)))

    def _forget(self, place: Place) -> None:
        seen = self.workers.pop(place, None)
        for job in seen.by_job if seen is not None else ():
            hosts = self._hosts[job]
            del hosts[place]
            if not hosts:
                del self._hosts[job]
