"""Drives the coordinator machine (`shared.protocol.coordinator`): leadership, reports and requests in; store, mirror, topics, blobs out.

Publications and mirror records must keep their order, so each kind goes through one sender. Calls that have an answer run beside.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import structlog

from tidemark.shared.language.redaction import redacted_text
from tidemark.shared.model.checkpoint import BlobRef
from tidemark.shared.model.ids import NO_LEADER, Epoch, JobId, LeaderToken, Offset, ProcessorName
from tidemark.shared.model.messages import Answered, Command, CoordinatorBeat, Echo, Request, StartCheckpoint
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.clock import Handle
from tidemark.shared.ports.commits import Ambiguous, CommitStore, StoreUnavailable, StoreUnusable
from tidemark.shared.ports.log import LogError, LogRecord, LogUnavailable, TopicPartition
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.record import decode_kept
from tidemark.shared.protocol.coordinator.status import status_of
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.runtime.context import Moment, Outside, ensure_topics
from tidemark.shared.runtime.fencing import Fence, token_of
from tidemark.shared.runtime.measures import Measure, of_processor
from tidemark.shared.runtime.mirror import MirrorWriter, read_mirrors
from tidemark.shared.runtime.reading import end_of, followed, key_of, patiently, unreadable_measure
from tidemark.shared.runtime.storing import Write, carry_out
from tidemark.shared.runtime.sweeping import Sweeper, mark_of
from tidemark.shared.runtime.telling import Doubt, Teller, ToldChanges
from tidemark.shared.runtime.upkeep import Trimmer, Undecided, create, delete
from tidemark.shared.wire.messages import decode_report, encode_message

_log = structlog.get_logger()
_TICKS_A_BEAT: Final = 4
"""While nothing is due, the machine is told the time so often in a heartbeat interval: its time-outs are some beats long."""

Planner = Callable[[str, dict[str, int], Any, Mapping[str, str]], ev.PlannedPipeline]
"""(document, parallelism, previous RunningPlan or None, the registry of connections) → plan; raises PlanRefusal."""


class OthersFound(Protocol):
    """Names of which a compacted topic has a word that is not this leader's."""

    async def __call__(self, term: int, names: Sequence[str], *, overtaken: bool) -> None:
        """`overtaken`: it lies behind this leader's own word, else before it."""
        ...


class PlanRefusal(Exception):
    """The document cannot run, or its state cannot be kept: the message is for the user."""


class CoordinatorDriver:
    """One coordinator process: leader, or standby until the lease is free. `holder`: its place, there it leads again at once (C8)."""

    def __init__(
        self,
        holder: str,
        outside: Outside,
        store: CommitStore,
        planner: Planner,
        machine: CoordinatorMachine,
        *,
        lease_ms: int | None = None,
    ) -> None:
        self._place = self._holder = holder
        self._outside = outside
        self._store = store
        self._planner = planner
        self._machine = machine
        self._lease_ms = lease_ms or machine.settings.lease_ms
        self._lease: LeaderToken | None = None
        """The lease that is held. The rows may still be being read under it."""
        self._renewed_ms = 0
        self._reads: Handle | None = None
        self._token: LeaderToken | None = None
        self._commanded_ms = 0
        """It leads."""
        self._term = 0
        self._inbox: deque[tuple[int, ev.CoordinatorEvent]] = deque()
        """`events_waiting_max`."""
        self._wake = asyncio.Event()
        waiting_max = outside.settings.writes_waiting_max
        self._store_queue: asyncio.Queue[tuple[int, Write]] = asyncio.Queue(waiting_max)
        self._mirror_queue: asyncio.Queue[tuple[int, do.AppendMirror]] = asyncio.Queue(waiting_max)
        self._wire = outside.settings.wire
        self._unreadable = outside.unreadable
        self._read_to_ms = 0
        """R1: reports from before this time have been read. So a slow channel does not count as the workers' silence."""
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None
        self._mirror = MirrorWriter(outside.log, outside.topics.commits)
        self._waits_for = "the store and the brokers"
        self._undecided = Undecided(outside)
        self._teller = Teller(outside, store, holder, self._answer_told, self._broken, self._away)
        self._told = ToldChanges(outside)
        self._doubt = Doubt(outside.clock, self._lease_ms)

    # --- life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Coordinate until `stop`; raises an error that does not pass by waiting."""
        await self._open_store()
        await ensure_topics(self._outside)
        loops: tuple[Coroutine[Any, Any, None], ...] = (
            self._main(),
            self._lead(),
            self._tick(),
            self._read_reports(),
            self._read_requests(),
            self._read_registry(),
            self._read_connections(),
            self._undecided.let_go(),
            self._run_store(),
            self._run_mirror(),
            Trimmer(self._outside).run(lambda: self._token is not None),
            Sweeper(self._outside, self._store, self._lease_ms).run(lambda: self._token),
        )
        handles = [self._outside.executor.spawn(loop, "coordinator", self._broken) for loop in loops]
        await self._stopped.wait()
        if self._reads is not None:
            handles.append(self._reads)
        for handle in handles:
            handle.cancel()
        for handle in handles:
            await handle.join()
        await self._teller.close()
        await self._mirror.close()
        await self._store.close()
        await self._outside.log.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End `run`; the lease runs out by itself."""
        self._stopped.set()

    def unready(self) -> str:
        """Ready: it leads, or stands by while the store says that another does."""
        return self._waits_for

    def measures(self) -> Iterator[Measure]:
        """Of every processor, where this one leads."""
        yield Measure("leads", int(self._token is not None))
        for topic, count in self._unreadable.counts.items():
            yield unreadable_measure(topic, count)
        if self._token is not None:
            for service, count in self._machine.ctx.workers.wanted(self._now()).items():
                yield Measure("workers_wanted", count, {"service": service})
        for machine in self._machine.processors.values():
            state = machine.state
            yield from of_processor(status_of(state), len(state.unreleased()), state.times.timings)

    def _away(self) -> None:
        """C10: the brokers take nothing, though reading may go well."""
        self._post(self._term, ev.OutageSeen(self._now()))

    def _broken(self, error: BaseException) -> None:
        self._error = self._error or error
        self._stopped.set()
        # StoreUnusable is a sentence for users; a stack trace tells them nothing.
        trace = None if isinstance(error, StoreUnusable) else error
        _log.error("coordinator.broken", error=repr(error), exc_info=trace)

    async def _open_store(self) -> None:
        while True:
            try:
                await self._store.open()
            except StoreUnavailable as error:
                _log.warning("coordinator.waiting", what="store", reason=str(error))
                await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
            else:
                return

    # --- the machine ------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._outside.clock.monotonic_ms()

    def _post(self, term: int, event: ev.CoordinatorEvent) -> None:
        if len(self._inbox) >= self._outside.settings.events_waiting_max:
            self._broken(LocalError(f"{len(self._inbox)} events wait for the coordinator (events_waiting_max)"))
            return
        self._inbox.append((term, event))
        self._wake.set()

    async def _main(self) -> None:
        while True:
            while self._inbox:
                await self._doubt.over()
                term, event = self._inbox.popleft()
                if term != self._term:
                    continue  # an answer to a question of an earlier term
                # Answers last: who has one finds the status that it speaks of in the registry.
                for command in sorted(self._machine.handle(event), key=lambda each: isinstance(each, do.Answer)):
                    self._carry_out(command)
            self._wake.clear()
            await self._wake.wait()

    def _carry_out(self, command: do.CoordinatorCommand) -> None:
        term = self._term
        match command:
            case do.TakeLeadership(reason):
                _log.warning("coordinator.leadership_anew", reason=reason)
                self._end_term()
                self._lease = None
            case do.Publish(message):
                self._command(message)
            case do.PublishStatus(status):
                self._teller.tell(
                    self._outside.topics.registry, status.name.encode(), encode_message(status, self._wire)
                )
            case do.RetractStatus(name):
                self._teller.tell(self._outside.topics.registry, name.encode(), None)
            case do.Answer(request, name) if self._undecided.told(request, name):
                self._post(term, ev.AnswerTold(self._now(), request))
            case do.Answer(request, name, error):
                self._answer(request, name, error)
            case do.AppendMirror():
                self._mirror_queue.put_nowait((term, command))
            case (
                do.StoreCreate()
                | do.StoreUpdate()
                | do.StoreNewGeneration()
                | do.StoreCommit()
                | do.StoreDrop()
                | do.StoreForget()
                | do.StoreConnection()
            ):
                self._store_queue.put_nowait((term, command))
            case _:
                beside = self._beside(term, command)
                self._outside.executor.spawn(beside, type(command).__name__, self._broken)

    def _command(self, command: Command) -> None:
        self._commanded_ms = self._now()
        if isinstance(command, StartCheckpoint):
            self._outside.passing(Moment("checkpoint-started", command.epoch, command.job))
        self._teller.tell(self._outside.topics.commands, None, encode_message(command, self._wire))

    # --- answers ------------------------------------------------------------------------------------------------------------

    async def _run_store(self) -> None:
        while True:
            term, command = await self._store_queue.get()
            if term == self._term:
                event = await carry_out(self._store, command, self._outside, self._machine.settings.connections_max)
                if isinstance(command, do.StoreConnection) and isinstance(event, ev.StoreDone):
                    self._tell_connection(command.name, command.value)
                self._post(term, event)

    async def _run_mirror(self) -> None:
        """C9: one row at a time, each only after the one before was acknowledged."""
        while True:
            term, command = await self._mirror_queue.get()
            if term != self._term or self._token is None:
                continue
            row = command.row
            try:
                offset = await self._mirror.append(row.job, encode_message(row, self._wire), self._token)
            except LogError as error:
                _log.warning("mirror.failed", job=row.job, epoch=row.epoch, reason=str(error))
                self._post(term, ev.MirrorFailed(self._now(), row.job, row.epoch))
            else:
                self._outside.passing(Moment("mirrored", row.epoch, row.job))
                self._post(term, ev.MirrorAppended(self._now(), row.job, row.epoch, offset))

    async def _beside(self, term: int, command: do.CoordinatorCommand) -> None:
        match command:
            case do.MakePlan():
                await self._plan(term, command)
            case do.ProveLeadership(contradiction):
                await self._prove(self._token or NO_LEADER, contradiction)
            case do.CreateTopics():
                self._post(term, await create(command, self._outside))
            case do.WriteBlobs(op, wanted):
                try:
                    refs: tuple[BlobRef, ...] = tuple([await self._outside.blobs.put(b.name, b.data) for b in wanted])
                except BlobError as error:
                    self._post(term, ev.BlobsFailed(self._now(), op, str(error)))
                else:
                    self._post(term, ev.BlobsWritten(self._now(), op, refs))
            case do.DeleteTopics() | do.DeleteRecords() | do.TrimMirror() | do.DeleteBlobs():
                self._post(term, await delete(command, self._outside))
            case _:
                message = f"the driver knows no {type(command).__name__}"
                raise TypeError(message)

    async def _plan(self, term: int, command: do.MakePlan) -> None:
        """Plan beside the loop: a large plan takes seconds. Any error is the answer of this request, and stops no other processor."""
        op, executor = command.op, self._outside.executor
        try:
            connections = await self._store.connections()
            given = command.document, command.parallelism, command.previous, connections
            planned = await executor.blocking(self._planner, *given)
        except PlanRefusal as refusal:
            _log.info("plan.refused", processor=command.name, reason=str(refusal))
            self._post(term, ev.PlanRefused(self._now(), op, str(refusal)))
        except (StoreUnavailable, Ambiguous) as error:
            self._post(term, ev.PlanRefused(self._now(), op, f"the registry of connections is away: {error}"))
        except StoreUnusable:  # the process ends with it
            raise
        except Exception as error:  # noqa: BLE001 - the request stays until it is decided: each leader would end with it
            _log.exception("plan.failed", processor=command.name, error=repr(error))
            reason = f"planning failed, which is a fault of Tidemark's: {error!r}; the coordinator's log has more"
            self._post(term, ev.PlanRefused(self._now(), op, reason))
        else:
            self._post(term, ev.PlanMade(self._now(), op, planned))

    def _tell_connection(self, name: str, value: str | None) -> None:
        """Tell the read models a connection, without its secrets."""
        shown = None if value is None else redacted_text(value).encode()
        self._teller.tell(self._outside.topics.connections, name.encode(), shown)

    # --- leadership -----------------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        while True:
            doubt = self._doubt.number
            try:
                await self._lead_once()
            except (StoreUnavailable, Ambiguous, LogUnavailable) as error:
                _log.warning("coordinator.leadership_waits", reason=str(error))
                self._waits_for = str(error) or type(error).__name__
            else:
                self._waits_for = ""
            self._doubt.asked(doubt)
            asked_ms = self._now()
            while not self._doubt.there() and self._now() - asked_ms < self._lead_interval_ms():
                await self._outside.clock.sleep_ms(self._outside.settings.tick_interval_ms)

    def _lead_interval_ms(self) -> int:
        return self._lease_ms // 4 if self._lease is not None else self._outside.settings.retry_ms

    async def _lead_once(self) -> None:
        """Take the lease, or renew it; also while the rows are still being read."""
        now_ms, asked_ms = self._outside.clock.now_ms(), self._now()
        if self._lease is not None:
            held = self._lease
            if await self._store.renew(held, self._lease_ms, now_ms):
                self._renewed_ms = asked_ms
            elif held == self._lease:
                self._lose_lease("the store says so")
            return
        most = await self._told.most()
        token = await self._store.lead(self._holder, self._lease_ms, now_ms, most, self._told.leader, self._now())
        if token is None:
            return
        self._lease, self._renewed_ms = token, asked_ms
        if self._reads is not None:
            self._reads.cancel()
        self._reads = self._outside.executor.spawn(self._begin_term(token), f"read for {token}", self._broken)

    def _lose_lease(self, how: str) -> None:
        _log.warning("coordinator.lease_lost", holder=self._holder, how=how)
        self._lease = None
        if self._reads is not None:
            self._reads.cancel()
        self._end_term()  # the new leader judges the events that came meanwhile
        self._post(self._term, ev.LeadershipLost(self._now()))
        # Two at one place would take it from each other for ever.
        self._holder = f"{self._place}-{self._outside.unique()}"

    def _end_term(self) -> None:
        self._term += 1
        self._token = None
        self._teller.end()

    async def _begin_term(self, token: LeaderToken) -> None:
        """Read the store, however long it takes; then lead."""
        while (found := await self._read_store(token)) is None:
            await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
        mark, stored, connections = found
        for one in stored:
            # Before anything is published, so that a newer copy of the store still counts these commits.
            if one.mirrored > one.row.last:
                last = f"has checkpoint {one.row.last} as the last of {one.row.name} (job {one.row.job})"
                await self._prove(token, f"{last}, but its commits topic has {one.mirrored}")
        if self._lease != token:
            return
        self._waits_for = ""
        self._term += 1
        self._token = token
        self._read_to_ms = self._now()
        self._teller.begin(token)
        for name, value in connections.items():
            self._tell_connection(name, value)
        _log.info("coordinator.leads", holder=self._holder, leader=token, processors=len(stored))
        self._post(self._term, ev.LeadershipTaken(self._now(), token, tuple(stored), mark))

    async def _read_store(self, token: LeaderToken) -> tuple[str, list[ev.StoredProcessor], dict[str, str]] | None:
        """Everything that a leader knows when it begins; None while something is away."""
        try:
            await self._undecided.learn()
            mark = await mark_of(self._outside)
            stored, connections = await self._stored(await self._store.processors()), await self._store.connections()
            # Reads do not count changes, a renewal does: all was read from the copy that gave the lease.
            await self._store.renew(token, self._lease_ms, self._outside.clock.now_ms())
            return mark, stored, connections
        except (StoreUnavailable, Ambiguous, LogUnavailable) as error:
            _log.warning("coordinator.leadership_waits", reason=str(error))
            self._waits_for = str(error) or type(error).__name__
            return None

    async def _prove(self, token: LeaderToken, contradiction: str) -> None:
        """StoreLost if the store still names this leader; otherwise another leader has written the commits that were seen (C8)."""
        await self._told.contradicts(contradiction, self._store, token, self._lease_ms)
        if self._lease == token:
            self._lose_lease(f"the store {contradiction}")

    async def _certain(self) -> None:
        """Wait until the lease was renewed within its length: a leader that cannot ask the store may have been followed by another."""
        while self._token is not None and self._now() - self._renewed_ms >= self._lease_ms:
            await self._outside.clock.sleep_ms(self._outside.settings.tick_interval_ms)

    async def _stored(self, rows: Sequence[ProcessorRow]) -> list[ev.StoredProcessor]:
        """Rows with all that belongs to them, and their mirrors' records from the oldest commit on that still waits (C9)."""
        topics = {self._outside.topics.commits(row.job): row for row in rows}
        commits = {row.job: tuple(await self._store.commits(row.job, Epoch(0))) for row in rows}
        oldest = {row.job: commits[row.job][0].epoch if commits[row.job] else row.last for row in rows}
        tops, places = dict[JobId, Epoch](), defaultdict[JobId, dict[Epoch, Offset]](dict)
        begins = {topic: decode_kept(row.extra).mirror for topic, row in topics.items()}
        async for topic, offset, mirrored in read_mirrors(self._outside.log, begins, self._outside.settings):
            job = topics[topic].job
            if mirrored.job == job:
                tops[job] = max(mirrored.epoch, tops.get(job, mirrored.epoch))
                if mirrored.epoch >= oldest[job]:
                    places[job].setdefault(mirrored.epoch, offset)
        return [
            ev.StoredProcessor(
                row,
                tuple(await self._store.lineage(row.job)),
                commits[row.job],
                tops.get(row.job, Epoch(0)),
                tuple(sorted(places[row.job].items())),
            )
            for row in rows
        ]

    # --- incoming records -------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        beat_ms = self._now()
        while True:
            due_ms = self._machine.due_ms()
            tick_ms = self._outside.settings.heartbeat_interval_ms // _TICKS_A_BEAT
            wait_ms = tick_ms if due_ms is None else max(1, min(tick_ms, due_ms - self._now()))
            await self._outside.clock.sleep_ms(wait_ms)
            self._doubt.runs()
            if self._token is not None:
                self._post(self._term, ev.Tick(self._now(), self._read_to_ms))
                settings = self._outside.settings
                has_room = self._teller.backlog() < settings.reports_waiting_max
                if has_room and self._now() - beat_ms >= settings.heartbeat_interval_ms:
                    beat_ms = self._now()
                    self._teller.count()
                    if self._now() - self._commanded_ms >= settings.heartbeat_interval_ms:
                        self._command(
                            CoordinatorBeat(self._token)
                        )  # a worker that hears another command knows already that somebody leads
                    echo = encode_message(Echo(self._token, beat_ms), self._wire)
                    self._teller.tell(self._outside.topics.reports, None, echo)

    def _answer(self, request: str, name: ProcessorName, error: str) -> None:
        _log.info("coordinator.answer", request=request, processor=name, error=error)
        self._undecided.answered(request, name, error)
        answer = encode_message(Answered(request, name, error), self._wire)
        self._teller.tell(self._outside.topics.answers, None, answer, request=request)

    def _answer_told(self, request: str, offset: Offset) -> None:
        self._undecided.decided(request, offset)
        self._post(self._term, ev.AnswerTold(self._now(), request))

    async def _read_reports(self) -> None:
        topic = TopicPartition(self._outside.topics.reports, 0)
        start = await end_of(self._outside.log, self._outside.clock, topic, self._outside.settings)
        await self._follow(topic, start, lambda: True, self._hear_report)

    async def _begin_of(self, topic: TopicPartition) -> Offset:
        """Where a topic begins; an outage is waited out."""
        outside = self._outside
        ask = partial(outside.log.begin_offsets, [topic])
        return (await patiently(outside.clock, ask, outside.settings, topic=topic.topic))[topic]

    async def _read_requests(self) -> None:
        """Every leader reads all requests that are still there: a decided request has been deleted, or is known by its id."""
        topic = TopicPartition(self._outside.topics.requests, 0)
        while True:
            term, _ = await self._next_term()
            start = await self._begin_of(topic)
            self._undecided.begin(start)
            await self._follow(topic, start, partial(self._leads_in, term), self._hear_request)

    async def _next_term(self) -> tuple[int, LeaderToken]:
        """The term in which it leads; waits for one."""
        while self._token is None:
            await self._outside.clock.sleep_ms(self._outside.settings.tick_interval_ms)
        return self._term, self._token

    def _leads_in(self, term: int) -> bool:
        return self._token is not None and self._term == term

    async def _read_registry(self) -> None:
        """Statuses that an earlier leader writes behind this one's are overwritten; so are a dead leader's, of processors that are gone."""
        topic = TopicPartition(self._outside.topics.registry, 0)

        async def found(term: int, names: Sequence[str], *, overtaken: bool) -> None:
            for name in names:
                self._post(term, ev.StatusFound(self._now(), ProcessorName(name), overtaken))

        while True:
            await self._read_told(topic, found)

    async def _read_connections(self) -> None:
        """Read what was told of connections, in the same way."""
        topic = TopicPartition(self._outside.topics.connections, 0)

        async def found(term: int, names: Sequence[str], *, overtaken: bool) -> None:
            while names and self._leads_in(term):
                try:
                    known = await self._store.connections()
                except StoreUnavailable:
                    await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
                    continue
                for name in names:
                    if overtaken or name not in known:
                        self._tell_connection(name, known.get(name))
                return

        while True:
            await self._read_told(topic, found)

    async def _read_told(self, topic: TopicPartition, found: OthersFound) -> None:
        """Read a compacted topic of leaders for one term: `found` learns of the records that were there, then of late ones."""
        term, token = await self._next_term()
        fence, before = Fence(), dict[str, None]()

        async def hear(record: LogRecord) -> None:
            counts, its = fence.admits(record), token_of(record)
            name = self._unreadable.read(record, key_of)
            if name is None:
                return
            if its > token and self._leads_in(term):
                await self._prove(token, f"names leader {token}, but leader {its} has told of itself in the registry")
            elif its == token and not name:
                await found(term, list(before), overtaken=False)
                before.clear()
            elif not counts:
                _log.warning("coordinator.overtaken", topic=topic.topic, offset=record.offset, leader=its)
                if name:
                    await found(term, [name], overtaken=True)
            elif its < token and record.value is not None and name:
                before[name] = None
            elif its < token:
                before.pop(name, None)

        start = await self._begin_of(topic)
        await self._follow(topic, start, partial(self._leads_in, term), hear)

    async def _follow(
        self,
        topic: TopicPartition,
        position: Offset,
        go_on: Callable[[], bool],
        hear: Callable[[LogRecord], Awaitable[None]],
    ) -> None:
        outside = self._outside
        told = followed(
            outside.log, outside.clock, topic, outside.settings, begin=position, goes_on=go_on, on_away=self._away
        )
        async for record in told:
            await hear(record)

    async def _hear_request(self, record: LogRecord) -> None:
        await self._certain()
        self._hear(record)

    async def _hear_report(self, record: LogRecord) -> None:
        self._hear(record)

    def _hear(self, record: LogRecord) -> None:
        message = self._unreadable.read(record, lambda found: decode_report(found.value or b"", self._wire))
        if message is None or self._token is None:
            return
        if isinstance(message, Echo):
            if message.leader == self._token:
                self._read_to_ms = message.said_ms
        elif isinstance(message, Request):
            self._undecided.heard(message.request, record.offset)
            answer = self._undecided.known(message.request, record)
            if answer is None:
                self._post(self._term, ev.RequestReceived(self._now(), message))
            else:
                self._answer(message.request, message.name, answer)
        else:
            self._post(self._term, ev.ReportReceived(self._now(), message))
