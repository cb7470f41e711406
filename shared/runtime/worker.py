"""A worker: one process of a service. Registers, beats, takes assignments, hosts tasks (R1, R2).

It reads `commands` from its end at the start of the worker: earlier commands are for an earlier incarnation. The worker sends nothing
before it knows the ends of `commands` and `flow`: the coordinator gives work to every worker that it hears, and would do so too early.
"""

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from msgspec import structs

from tidemark.shared.model.checkpoint import TaskHandle
from tidemark.shared.model.failures import is_lasting, is_outage, words_of
from tidemark.shared.model.held import Wait
from tidemark.shared.model.ids import (
    EdgeId,
    Epoch,
    Generation,
    JobId,
    Offset,
    Place,
    Seq,
    SplitId,
    TaskId,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import (
    AbortCheckpoint,
    Ack,
    Assign,
    CheckpointWanted,
    Command,
    CommitHint,
    CoordinatorBeat,
    Deregister,
    EdgeBinding,
    EndsFound,
    Heartbeat,
    HoldInput,
    ReadPosition,
    ReadPositions,
    Register,
    Released,
    Report,
    Sample,
    Sampled,
    SplitsFound,
    StartCheckpoint,
    StartSources,
    StopTasks,
    TaskFailed,
    TaskRestored,
    WorkerUnwanted,
    WorkerWanted,
)
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.assembly import assemble
from tidemark.shared.runtime.beats import beat_of, encoded
from tidemark.shared.runtime.body import ReceivingBody
from tidemark.shared.runtime.context import Moment, Outside, Service, ensure_topics
from tidemark.shared.runtime.driver import TaskDriver, ZombieError
from tidemark.shared.runtime.fencing import Fence
from tidemark.shared.runtime.measures import Measure, of_task
from tidemark.shared.runtime.outbox import Outbox, Parcel
from tidemark.shared.runtime.reading import end_of, followed, unreadable_measure
from tidemark.shared.runtime.sampling import sample_edge
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.site import Splits, Ways
from tidemark.shared.runtime.waiting import Waits
from tidemark.shared.wire.limits import WireError
from tidemark.shared.wire.messages import decode_command, decode_positions, encode_message

_log = structlog.get_logger()
_REPORTS = EdgeId("reports")
SAMPLES_MAX = 8
"""Samples of edges that are read at the same time: each holds a reader and some frames, beside the tasks."""


@dataclass(slots=True)
class Hosted:
    """A task that this worker has taken: while it is built, `driver` is None."""

    assign: Assign
    starting: Handle | None = None
    """Builds it. A take-over that waits for its target must not go on beside the next generation's, and fence it (S1)."""
    driver: TaskDriver | None = None
    phase: str = "restoring"
    waiting: Waits = field(default_factory=Waits)
    released: dict[int, Epoch] = field(default_factory=dict)
    """Markers of the release identities that it holds, by index."""
    told_bytes: int = 0
    """What it had taken from its edges when senders were last told that it was much."""

    def waits(self, characters_max: int, monotonic_ms: int) -> tuple[Wait, ...]:
        """As heartbeats tell them, the longest first; reasons as long as they may be."""
        waits = self.waiting.told(monotonic_ms)
        return tuple(structs.replace(wait, reason=wait.reason[:characters_max]) for wait in waits)

    def markers(self) -> tuple[tuple[VertexId, int, Epoch], ...]:
        """The release markers of its identities, as heartbeats tell them."""
        return tuple((self.assign.vertex, index, epoch) for index, epoch in self.released.items())


class Worker:
    """One incarnation of a worker at a place."""

    def __init__(self, place: Place, incarnation: WorkerIncarnation, service: Service, outside: Outside) -> None:
        self.place = place
        self.incarnation = incarnation
        self._service = service
        self._outside = outside
        self._tasks: dict[tuple[JobId, TaskId], Hosted] = {}
        self._started: dict[tuple[JobId, TaskId], Generation] = {}
        self._ended: dict[JobId, Generation] = {}
        self._reports = TopicPartition(outside.topics.reports, 0)
        self._outbox = Outbox(
            outside.log, outside.clock, f"worker {place}", lambda _parcel, _offset: None, outside.settings
        )
        self._seq = 0
        self._heard_ms = 0
        self._beat_ms = 0
        """When the last heartbeat was due, or went with an acknowledgement, on the monotonic clock."""
        self._fence = Fence()
        self._registered = False
        self._sends = asyncio.Event()
        self._flow_begun = asyncio.Event()
        """Read positions reach this worker, which has had a task that sends: from before the task said that it has restored."""
        self._told: dict[str, ToldPosition] = {}
        """By partition of an edge: how far it was read, and, of a receiver that is full, its watermark. Bounded by the tasks here."""
        self._samples: list[Handle] = []
        """Samples of edges that are being read."""
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    # --- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop`; raises an error that is no task's fault."""
        outside = self._outside
        self._heard_ms = self._beat_ms = outside.clock.monotonic_ms()
        await ensure_topics(outside)
        self._outbox.open(outside.executor, self._broken)
        loops = (self._read_commands(), self._beat(), self._tick(), self._tell_positions(), self._read_positions())
        handles = [outside.executor.spawn(loop, f"worker {self.place}", self._broken) for loop in loops]
        await self._stopped.wait()
        _log.info("worker.leaves", place=self.place, tasks=len(self._tasks), how="at once; they go on elsewhere")
        handles += self._samples
        for handle in handles:
            handle.cancel()
        for handle in handles:
            await handle.join()
        await self._close_tasks(list(self._tasks))
        self.report(Deregister(self.incarnation))
        await self._outbox.drain(outside.settings.fetch_timeout_ms)
        await self._outbox.close()
        await self._service.close()
        await outside.log.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run` in good order."""
        self._stopped.set()

    def unready(self) -> str:
        """Ready: known to a coordinator that has been heard of lately."""
        settings = self._outside.settings
        if not self._registered:
            return "waits for the brokers"
        silent_ms = self._outside.clock.monotonic_ms() - self._heard_ms
        return f"no coordinator heard for {silent_ms} ms" if silent_ms > 2 * settings.heartbeat_timeout_ms else ""

    def measures(self) -> Iterator[Measure]:
        """The measures of every task that is here."""
        tasks = self._heartbeat().tasks
        yield Measure("tasks", len(tasks))
        yield Measure("slots", self._outside.settings.slots)
        for topic, count in self._outside.unreadable.counts.items():
            yield unreadable_measure(topic, count)
        for beat in tasks:
            hosted = self._tasks.get((beat.job, TaskId(beat.vertex, beat.index)))
            yield from of_task(beat, hosted.driver.meter if hosted is not None and hosted.driver is not None else None)

    def _broken(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stopped.set()
        _log.error("worker.broken", place=self.place, error=repr(error))

    def report(self, report: Report) -> None:
        """Tell the coordinator; sent in order, again after an outage."""
        settings = self._outside.settings
        data = encoded(report, settings) if isinstance(report, Heartbeat) else encode_message(report, settings.wire)
        self._seq += 1
        self._outbox.send(Parcel(_REPORTS, self._reports, Seq(self._seq), data))

    # --- commands ---------------------------------------------------------------------------------------------------------

    async def _read_commands(self) -> None:
        outside, topic = self._outside, TopicPartition(self._outside.topics.commands, 0)
        begin = await end_of(outside.log, outside.clock, topic, outside.settings)
        self._register()
        async for record in followed(outside.log, outside.clock, topic, outside.settings, begin=begin):
            if self._fence.admits(record):
                try:
                    command = decode_command(record.value or b"", outside.settings.wire)
                except WireError as error:
                    message = f"topic {topic.topic} partition 0 offset {record.offset}: {error}"
                    raise WireError(message) from error
                await self._command(command)

    def _register(self) -> None:
        settings = self._outside.settings
        report = Register(
            self.incarnation, self.place, self._service.name, settings.slots, os.getpid(), socket.gethostname()
        )
        self.report(report)
        self._registered = True

    async def _command(self, command: Command) -> None:
        self._heard_ms = self._outside.clock.monotonic_ms()
        match command:
            case Assign():
                await self._assigned(command)
            case StopTasks(job, generation):
                self._ended[job] = max(generation, self._ended.get(job, generation))
                _keep_newest(self._ended, self._outside.settings.assignments_kept_max)
                stopped = [k for k, h in self._tasks.items() if k[0] == job and h.assign.generation <= generation]
                if stopped:
                    self.report(self._heartbeat())  # counts since the last sample, however short the tasks' lives
                await self._close_tasks(stopped)
            case CoordinatorBeat() | WorkerWanted() | WorkerUnwanted():
                pass  # the one only says that somebody leads, the others are a supervisor's
            case Sample():
                self._show(command)
            case _:
                for hosted in list(self._tasks.values()):
                    if hosted.assign.job == command.job and hosted.assign.generation == command.generation:
                        self._tell(hosted, command)

    def _show(self, sample: Sample) -> None:
        """Publish some documents as a sample: nothing depends on their arrival."""
        for (job, task), hosted in self._tasks.items():
            if job != sample.job or hosted.driver is None:
                continue
            body = hosted.driver.body
            edge = hosted.driver.wiring.inputs.get(sample.edge)
            if edge is not None:
                self._show_edge(sample, task, edge, hosted.assign.generation)
            elif sample.edge or not isinstance(body, ReceivingBody):
                continue
            elif (documents := body.sample(sample.limit)) is not None:
                self._publish(Sampled(sample.request, task.vertex, task.index, tuple(documents)))

    def _show_edge(self, sample: Sample, task: TaskId, edge: EdgeBinding, generation: Generation) -> None:
        """Read beside the tasks. An error is the sample's alone."""

        def told(rows: Sequence[bytes], trouble: str) -> None:
            self._publish(Sampled(sample.request, task.vertex, task.index, tuple(rows), sample.edge, trouble))

        async def show() -> None:
            found = await sample_edge(self._outside, edge, task.index, generation, sample.limit)
            told(found.rows, found.trouble)

        self._samples = [each for each in self._samples if not each.done()]
        if len(self._samples) >= SAMPLES_MAX:
            told((), f"{len(self._samples)} other samples are being read there: ask again")
            return
        name = f"sample {sample.edge}"
        self._samples.append(self._outside.executor.spawn(show(), name, lambda error: told((), str(error))))

    def _publish(self, sampled: Sampled) -> None:
        self._seq += 1
        data = encode_message(sampled, self._outside.settings.wire)
        self._outbox.send(Parcel(_REPORTS, TopicPartition(self._outside.topics.samples, 0), Seq(self._seq), data))

    def _tell(self, hosted: Hosted, command: Command) -> None:
        driver = hosted.driver
        if driver is None:
            return
        if driver.source is not None:
            driver.source.told(command)
        match command:
            case StartSources():
                hosted.phase = "running"
                self._told.clear()  # senders that restored behind the last report know of none (F7)
                driver.post(ev.SourcesStarted(command.target_ms, command.first_rows))
            case StartCheckpoint(_, _, epoch, committed, ended, took_ms, late, late_ms, aligned):
                driver.post(ev.Ticked(self._outside.clock.now_ms(), self._outside.clock.monotonic_ms()))
                driver.post(ev.EpochTook(ended, took_ms, late, late_ms))
                driver.post(ev.InputHeld(held=False))
                started = partial(driver.post, ev.CheckpointStarted(epoch, committed, aligned))
                if driver.source is None:
                    started()
                else:
                    driver.source.before_barrier(started)
            case AbortCheckpoint(_, _, epoch):
                driver.post(ev.CheckpointAborted(epoch))
            case CommitHint(_, _, epoch):
                driver.post(ev.CheckpointCommitted(epoch))
            case HoldInput(_, _, held):
                driver.post(ev.InputHeld(held))
            case _:
                pass  # a source's alone

    # --- tasks ------------------------------------------------------------------------------------------------------------

    async def _assigned(self, assign: Assign) -> None:
        """R2: obey only an assignment that names this incarnation, and start a task at most once a generation."""
        key = (assign.job, TaskId(assign.vertex, assign.index))
        begun = self._started.get(key, Generation(0))
        if assign.to != self.incarnation or assign.generation <= max(begun, self._ended.get(assign.job, Generation(0))):
            return
        self._started[key] = assign.generation
        _keep_newest(self._started, self._outside.settings.assignments_kept_max)
        await self._close_tasks(
            [k for k, h in self._tasks.items() if k[0] == assign.job and h.assign.generation < assign.generation]
        )
        hosted = Hosted(assign)
        self._tasks[key] = hosted
        name = f"start {key[1]}"
        hosted.starting = self._outside.executor.spawn(
            self._start_task(key, hosted), name, lambda error: self._failed(hosted, error)
        )

    async def _start_task(self, key: tuple[JobId, TaskId], hosted: Hosted) -> None:
        assign = hosted.assign
        ways = Ways(
            on_ack=lambda epoch, handle: self._ack(assign, epoch, handle),
            on_ask=lambda: self.report(CheckpointWanted(self.incarnation, assign.job, assign.generation)),
            on_found=lambda splits, gone: self._found(assign, splits, gone),
            on_ends=lambda splits: self._ends(assign, splits),
            on_released=lambda index, epoch: self._released(hosted, index, epoch),
            on_failed=lambda error: self._failed(hosted, error),
            on_waits=lambda doing, wait: hosted.waiting.note(doing, wait, self._outside.clock.monotonic_ms()),
            on_taken=lambda: self._taken(hosted),
        )
        driver = await assemble(self._outside, self._service, assign, ways)
        if self._tasks.get(key) is not hosted:
            await driver.close()
            return
        hosted.driver = driver
        if driver.wiring.outputs:
            self._sends.set()
            await self._flow_begun.wait()
        hosted.phase = "restored"
        if not assign.release_only:
            driver.start()
        _log.info("task.restored", task=str(key[1]), job=assign.job, generation=assign.generation, epoch=assign.last)
        self._outside.passing(Moment("restored", assign.last, assign.job, key[1], assign.name))
        self.report(TaskRestored(self.incarnation, assign.job, assign.generation, assign.vertex, assign.index))
        if driver.source is not None:
            driver.source.restored()

    async def _close_tasks(self, keys: Sequence[tuple[JobId, TaskId]]) -> None:
        """Those that are here now: while one is closed, a newer generation's may come to the place of another."""
        for key, hosted in [(key, self._tasks[key]) for key in keys]:
            await self._close_task(key, hosted)

    async def _close_task(self, key: tuple[JobId, TaskId], hosted: Hosted) -> None:
        if self._tasks.get(key) is not hosted:
            return
        del self._tasks[key]
        if hosted.starting is not None:
            hosted.starting.cancel()
            await hosted.starting.join()
        if hosted.driver is not None:
            await hosted.driver.close()

    def _released(self, hosted: Hosted, index: int, epoch: Epoch) -> None:
        hosted.released[index] = epoch
        self.report(Released(self.incarnation, hosted.assign.job, hosted.assign.vertex, index, epoch))

    def _ack(self, assign: Assign, epoch: Epoch, handle: TaskHandle) -> None:
        ack = Ack(self.incarnation, assign.job, assign.generation, epoch, handle)
        self._report_bounded(ack, assign, f"its acknowledgement of checkpoint {epoch}")
        if self._since_beat_ms() >= self._outside.settings.heartbeat_interval_ms - self._beat_leeway_ms():
            self._tell_alive()  # in the same request

    def _found(self, assign: Assign, splits: Splits, gone: Sequence[SplitId]) -> None:
        found = SplitsFound(
            self.incarnation, assign.job, assign.generation, assign.vertex, assign.index, dict(splits), tuple(gone)
        )
        self._report_bounded(found, assign, "the list of the splits that it found")

    def _ends(self, assign: Assign, splits: Splits) -> None:
        ends = EndsFound(self.incarnation, assign.job, assign.generation, assign.vertex, assign.index, dict(splits))
        self._report_bounded(ends, assign, "the list of where its splits end")

    def _report_bounded(self, report: Ack | SplitsFound | EndsFound, assign: Assign, what: str) -> None:
        size, most = len(encode_message(report)), self._outside.settings.acknowledgement_bytes_max
        if size > most:
            message = (
                f"{assign.vertex}/{assign.index}: {what} would have {size} bytes, at most {most}, by message_bytes_max:"
                " run more tasks, read fewer files or partitions, or raise it and the brokers' bound"
            )
            raise LocalError(message)
        self.report(report)

    def _failed(self, hosted: Hosted, error: BaseException) -> None:
        """A task's error: report it, unless the task is a zombie, which only stops (L2)."""
        assign = hosted.assign
        key = (assign.job, TaskId(assign.vertex, assign.index))
        if self._tasks.get(key) is not hosted:
            return
        if not isinstance(error, ZombieError):
            reason = words_of(error)[: self._outside.settings.reason_characters_max]
            failed = TaskFailed(
                self.incarnation,
                assign.job,
                assign.generation,
                assign.vertex,
                assign.index,
                reason,
                is_lasting(error),
                is_outage(error),
            )
            self.report(failed)
        closing = self._close_task(key, hosted)
        self._outside.executor.spawn(closing, f"close {key[1]}", self._broken)
        # Last: a program around us may have a log that raises, and then nobody would know of the failure.
        _log.error(
            "task.failed",
            task=str(key[1]),
            job=assign.job,
            generation=assign.generation,
            reason=str(error),
            exc_info=error,
        )

    # --- periodic work ----------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Heartbeats; and R2: without a word of the coordinator for long, stop all tasks."""
        settings, clock = self._outside.settings, self._outside.clock
        alone_ms = settings.heartbeat_interval_ms + self._beat_leeway_ms()
        while True:
            await clock.sleep_ms(alone_ms - self._since_beat_ms())
            if self._since_beat_ms() >= alone_ms:
                self._tell_alive()
            if clock.monotonic_ms() - self._heard_ms > settings.coordinator_silence_ms_max and self._tasks:
                _log.error("worker.coordinator_silent", place=self.place, tasks=len(self._tasks))
                await self._close_tasks(list(self._tasks))

    def _beat_leeway_ms(self) -> int:
        """A heartbeat goes with an acknowledgement that comes so much before or behind its time: each message costs several requests."""
        return self._outside.settings.heartbeat_interval_ms // 4

    def _since_beat_ms(self) -> int:
        return self._outside.clock.monotonic_ms() - self._beat_ms

    def _tell_alive(self) -> None:
        self._beat_ms = self._outside.clock.monotonic_ms()
        if self._registered and self._outbox.backlog() < self._outside.settings.reports_waiting_max:
            self.report(self._heartbeat())

    def _heartbeat(self) -> Heartbeat:
        settings = self._outside.settings
        clock, most = self._outside.clock, settings.reason_characters_max
        tasks = tuple(
            beat_of(h.assign, h.driver, h.phase, h.markers(), clock, h.waits(most, clock.monotonic_ms()))
            for h in self._tasks.values()
        )
        return Heartbeat(
            self.incarnation, self.place, self._service.name, settings.slots, os.getpid(), socket.gethostname(), tasks
        )

    async def _tick(self) -> None:
        clock, settings = self._outside.clock, self._outside.settings
        while True:
            await clock.sleep_ms(settings.tick_interval_ms if self._tasks else settings.fetch_timeout_ms)
            event = ev.Ticked(clock.now_ms(), clock.monotonic_ms())
            for hosted in self._tasks.values():
                if hosted.driver is not None and hosted.driver.machine.waits_for(event):
                    hosted.driver.post(event)

    async def _tell_positions(self) -> None:
        """F7, the receiver's side: a receiver has become full, or is full no longer; or it is time again."""
        while True:
            settings = self._outside.settings
            await self._outside.clock.sleep_ms(settings.flow_interval_ms if self._tasks else settings.fetch_timeout_ms)
            places = self._tell_news(list(self._tasks.values()))
            self._told = {place: known for place, known in self._told.items() if place in places}

    def _taken(self, hosted: Hosted) -> None:
        """Tell at once that much was read: a sender that is held back takes no input until it hears of it."""
        if hosted.driver is not None:
            much = self._outside.settings.limits.ahead_bytes_max // 8
            if hosted.driver.meter.in_bytes - hosted.told_bytes >= much:
                hosted.told_bytes = hosted.driver.meter.in_bytes
                self._tell_news([hosted], much=True)

    def _tell_news(self, tasks: Sequence[Hosted], *, much: bool = False) -> set[str]:
        """Tell senders how far these tasks have read, where they need it. The places of all that they read."""
        settings, now_ms = self._outside.settings, self._outside.clock.monotonic_ms()
        news: list[ReadPosition] = []
        places: set[str] = set()
        for hosted in tasks:
            for place, position in _positions_of(hosted.driver, hosted.assign.index) if hosted.driver else ():
                places.add(place)
                now = ToldPosition(position.offset, position.watermark_ms if position.full else None, now_ms)
                known = self._told.get(place)
                if known is None or known.is_outdated(now, settings, much=much):
                    news.append(position)
                    self._told[place] = now
        if news:
            self._seq += 1
            data = encode_message(ReadPositions(tuple(news)), settings.wire)
            self._outbox.send(
                Parcel(EdgeId("flow"), TopicPartition(self._outside.topics.flow, 0), Seq(self._seq), data)
            )
        return places

    async def _read_positions(self) -> None:
        """F7, the sender's side. Reports from an outage are read after it: a sender that waits for one is not told it twice."""
        outside, flow = self._outside, TopicPartition(self._outside.topics.flow, 0)
        await self._sends.wait()
        begin = await end_of(outside.log, outside.clock, flow, outside.settings)
        self._flow_begun.set()
        async for record in followed(outside.log, outside.clock, flow, outside.settings, begin=begin):
            self._spread_positions(decode_positions(record.value or b"", outside.settings.wire))

    def _spread_positions(self, positions: ReadPositions) -> None:
        for hosted in self._tasks.values():
            if hosted.driver is None:
                continue
            edges = {b.incarnation: edge for edge, b in hosted.driver.wiring.outputs.items()}
            for position in positions.positions:
                if position.incarnation in edges:
                    edge = edges[position.incarnation]
                    if hosted.driver.source is not None:
                        hosted.driver.source.heard(edge, position)
                    hosted.driver.post(ev.ReadUpTo(edge, position.partition, position.offset))


@dataclass(frozen=True, slots=True)
class ToldPosition:
    """The last report on a partition."""

    offset: Offset
    full_ms: int | None
    """The input watermark of a receiver that is full, ms; None of one that is not."""
    at_ms: int
    """Monotonic."""

    def is_outdated(self, now: "ToldPosition", settings: RuntimeSettings, *, much: bool) -> bool:
        """Whether to report `now` to senders; `much`: an eighth of W was read since the last report."""
        if now.full_ms != self.full_ms:
            return True
        long = now.at_ms - self.at_ms >= settings.flow_silence_ms_max
        return now.offset != self.offset and (long or much)


def _keep_newest(known: dict[Any, Generation], most: int) -> None:
    """Commands are read once, in their order: a command this old is not sent again."""
    while len(known) > most:
        del known[next(iter(known))]


def _positions_of(driver: TaskDriver, index: int) -> Iterator[tuple[str, ReadPosition]]:
    """How far a task has read each in edge, by the partition's name."""
    machine = driver.machine
    full = isinstance(driver.body, ReceivingBody) and driver.body.full()
    for edge, offset in driver.frames.read_offsets.items():
        incarnation = driver.wiring.inputs[edge].incarnation
        yield (
            f"{incarnation}/{index}",
            ReadPosition(incarnation, index, offset, machine.receiver.passed(edge), machine.input_watermark_ms, full),
        )
