"""The coordinator: `CoordinatorMachine.handle(event) -> commands`, the one mutator.

| role, then by event | LeadershipTaken | StoreAmbiguous, StoreStale | LeadershipLost | reports, requests, answers, Tick |
| --- | --- | --- | --- | --- |
| standby | leads | – | – | ignored |
| leads | leads, all read anew | retakes: `TakeLeadership` | standby | decided |
| retakes | leads | – | standby | requests wait, all else is ignored |

While it retakes leadership it emits nothing: the content of the store is not known, so nothing is aborted or deleted (C8). Each
processor decides for itself in `processor.py`. This file knows the leader, the workers, and the processors that are still being created.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum

from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, WorkerIncarnation
from tidemark.shared.model.messages import (
    Alive,
    CreateProcessor,
    CreateRunning,
    Deregister,
    Echo,
    Heartbeat,
    PutConnection,
    Register,
    Report,
    Request,
    StopTasks,
    TaskBeat,
)
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator import requests
from tidemark.shared.protocol.coordinator.commands import CoordinatorCommand, OpId
from tidemark.shared.protocol.coordinator.plans import bind, fault_of, pending_of
from tidemark.shared.protocol.coordinator.processor import ProcessorMachine
from tidemark.shared.protocol.coordinator.quotas import refused_creation, refused_tasks
from tidemark.shared.protocol.coordinator.record import Decisions, encode_kept, encode_plan
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.coordinator.shares import share_all
from tidemark.shared.protocol.coordinator.state import Context, bounded
from tidemark.shared.protocol.coordinator.workers import Workers


class Role(Enum):
    """Whether this coordinator decides."""

    STANDBY = "standby"
    LEADS = "leads"
    RETAKES = "retakes"


@dataclass(slots=True)
class Creation:
    """A processor that is being planned, or whose row is being written."""

    request: CreateProcessor
    op: OpId
    row: ProcessorRow | None = None
    tasks: int = 0
    """Of one that runs then."""
    retry_at_ms: int | None = None


@dataclass(slots=True)
class CoordinatorMachine:
    """One coordinator process' decisions."""

    settings: CoordinatorSettings
    unique: Callable[[], str]
    """Supplies UUIDs, 32 hex digits."""
    role: Role = Role.STANDBY
    processors: dict[ProcessorName, ProcessorMachine] = field(default_factory=dict)
    awake: dict[ProcessorName, ProcessorMachine] = field(default_factory=dict)
    """Those that do not rest: an installation may have had many that have long ended, and no event looks at them one by one."""
    creations: dict[ProcessorName, Creation] = field(default_factory=dict)
    connecting: dict[OpId, PutConnection] = field(default_factory=dict)
    """Changes of the registry of connections that are being written."""
    waiting: deque[Request] = field(default_factory=deque)
    """Requests that came while leadership was being retaken."""
    gone: dict[ProcessorName, deque[tuple[str, str]]] = field(default_factory=dict)
    """Answers to requests of names that no processor has: the next of the name is told, for a later leader may read them again (C8)."""
    last_ms: int | None = None
    ctx: Context = field(init=False)

    def __post_init__(self) -> None:
        """Build the objects that processors share."""
        self.ctx = Context(self.settings, self.unique, Workers(self.settings))
        self.ctx.states = lambda: (machine.state for machine in self.awake.values())
        self.ctx.starting = lambda: ((name, creation.tasks) for name, creation in self.creations.items())

    def handle(self, event: ev.CoordinatorEvent) -> list[CoordinatorCommand]:
        """Take an event in; returns the commands that follow from it, in order."""
        now_ms = event.now_ms
        match event:
            case ev.LeadershipTaken():
                self._lead(event)
            case ev.LeadershipLost():
                self._stand_by()
            case ev.RequestReceived(request=request) if self.role is Role.RETAKES:
                self._wait(request)
            case _ if self.role is Role.LEADS:
                self._handle_as_leader(event)
        if self.ctx.contradicted:
            self.role = Role.RETAKES
            self.ctx.out.append(do.ProveLeadership(self.ctx.contradicted))
            self.ctx.contradicted = ""
        if self.role is Role.LEADS:
            self._advance(now_ms)
        self.last_ms = now_ms
        out, self.ctx.out = self.ctx.out, []
        return out

    def due_ms(self) -> int | None:
        """When the next `Tick` has something to do at the latest that cannot wait for the ordinary one: a checkpoint, or a generation."""
        if self.role is not Role.LEADS or self.last_ms is None:
            return None
        now_ms = self.last_ms
        return min((due for p in self.awake.values() if (due := p.due_ms(now_ms)) is not None), default=None)

    # --- leadership -------------------------------------------------------------------------------------------------------

    def _lead(self, event: ev.LeadershipTaken) -> None:
        unanswered: list[Request] = [*self.waiting, *(c.request for c in self.creations.values())]
        unanswered.extend(self.connecting.values())
        for machine in self.processors.values():
            unanswered.extend(machine.state.requests)
        self.role = Role.LEADS
        self.ctx.token, self.ctx.mark = event.token, event.mark
        self.ctx.workers.reset(event.now_ms)
        self.creations.clear()
        self.connecting.clear()
        self.waiting.clear()
        self.processors = {s.row.name: ProcessorMachine.of(self.ctx, s, event.now_ms) for s in event.processors}
        self.awake = dict(self.processors)
        for request in unanswered:
            self._request(request)

    def _stand_by(self) -> None:
        self.role = Role.STANDBY
        self.processors.clear()
        self.awake.clear()
        self.creations.clear()
        self.connecting.clear()
        self.waiting.clear()
        self.gone.clear()

    def _retake(self, reason: str) -> None:
        """The store's content is unknown, or not as expected: read it again, as the leader of a new term (C8)."""
        self.role = Role.RETAKES
        self.ctx.out.append(do.TakeLeadership(reason))

    def _wait(self, request: Request) -> None:
        if len(self.waiting) < self.settings.requests_max:
            self.waiting.append(request)
        else:
            self.ctx.out.append(
                do.Answer(request.request, request.name, "the coordinator has lost its store for now; ask again")
            )

    # --- events, as the leader --------------------------------------------------------------------------------------------

    def _handle_as_leader(self, event: ev.CoordinatorEvent) -> None:  # noqa: C901, PLR0912 - a table of events
        now_ms = event.now_ms
        self._excuse(now_ms)
        match event:
            case ev.StoreAmbiguous(op=op):
                self._retake(f"the answer to write {op} was lost")
            case ev.StoreStale(op=op):
                self._stale(op)
            case ev.StoreDone(op=op):
                self._store_done(op, now_ms)
            case ev.StoreAway(op=op):
                self._store_away(op, now_ms)
            case ev.ReportReceived(report=report):
                self._report(report, now_ms)
            case ev.RequestReceived(request=request):
                self._request(request)
            case ev.AnswerTold(request=told):
                for machine in self.awake.values():
                    machine.answer_told(told)
            case ev.PlanMade(op=op, plan=plan):
                self._planned(op, plan)
            case ev.PlanRefused(op=op, reason=reason):
                self._planned(op, reason)
            case ev.MirrorAppended(job=job, epoch=epoch, offset=offset):
                if (p := self._of_job(job)) is not None:
                    p.state.mirror.acknowledged(epoch, offset)
            case ev.MirrorFailed(job=job, epoch=epoch):
                if (p := self._of_job(job)) is not None:
                    p.state.mirror.failed(epoch, now_ms + self.settings.retry_ms)
            case ev.StatusFound(name=name, overtaken=overtaken):
                self._status_found(name, overtaken=overtaken)
            case ev.OutageSeen():
                self.ctx.outage_seen_ms = now_ms
            case ev.Tick(read_to_ms=read_to_ms):
                self._tick(now_ms if read_to_ms is None else read_to_ms)
            case _:
                self._answered(event)

    def _answered(self, event: ev.CoordinatorEvent) -> None:
        if isinstance(event, ev.StoreRefused) and (put := self.connecting.pop(event.op, None)) is not None:
            self._answer(put, event.reason)
        for p in self.awake.values():
            match event:
                case ev.TopicsReady() | ev.TopicsFailed():
                    p.topics(event)
                case ev.BlobsWritten() | ev.BlobsFailed():
                    p.blobs(event)
                case ev.Deleted() | ev.DeletionFailed():
                    p.deleted(event)
                case _:
                    pass

    def _status_found(self, name: ProcessorName, *, overtaken: bool) -> None:
        """The registry must show the true status; for a processor that is gone, none (C8)."""
        if (machine := self.processors.get(name)) is None:
            self.ctx.out.append(do.RetractStatus(name))
        elif overtaken:
            self._wake(machine).state.status = None

    def _excuse(self, now_ms: int) -> None:
        """If no event came for long, it was this process that stood still; workers' heartbeats may be waiting to be read."""
        if self.last_ms is not None and now_ms - self.last_ms > self.settings.heartbeat_timeout_ms // 2:
            self.ctx.workers.excuse(now_ms - self.last_ms)

    def _tick(self, read_to_ms: int) -> None:
        settings = self.settings
        for worker in self.ctx.workers.lost(read_to_ms):
            limits = f"{settings.heartbeat_timeout_ms} ms, or has not spoken itself for {settings.work_timeout_ms} ms"
            self._worker_gone(worker, f"has not been heard of for {limits}")

    def _advance(self, now_ms: int) -> None:
        for machine in list(self.awake.values()):
            machine.advance(now_ms)
            if machine.rests:
                del self.awake[machine.state.name]
            if machine.dropped:
                del self.processors[machine.state.name], self.awake[machine.state.name]
                self._remember(machine.state.name, machine.state.answers)
                for request in (
                    machine.state.requests
                ):  # they came while the row was being deleted: of no processor, or of the next
                    self._request(request)
        for creation in list(self.creations.values()):
            self._create_again(creation, now_ms)
        share_all(self.ctx, now_ms)
        self.ctx.out.extend(self.ctx.workers.retire(now_ms))

    # --- workers ----------------------------------------------------------------------------------------------------------

    def _report(self, report: Report, now_ms: int) -> None:
        match report:
            case Register():
                if (lost := self.ctx.workers.register(report, now_ms)) is not None:
                    self._worker_gone(lost, f"has been replaced at {report.place} by {report.worker}")
            case Heartbeat():
                if self.ctx.workers.beat(report, now_ms):
                    self._beat(report, now_ms)
            case Alive(workers=workers):
                self.ctx.workers.vouch(workers, now_ms)
            case Echo():
                pass  # the driver's own (`ev.Tick.read_to_ms`)
            case Deregister():
                if self.ctx.workers.leave(report.worker):
                    self._worker_gone(report.worker, report.reason)
            case _:
                if report.worker not in self.ctx.workers.replaced and (p := self._of_job(report.job)) is not None:
                    p.task_report(report)

    def _beat(self, heartbeat: Heartbeat, now_ms: int) -> None:
        by_job: dict[JobId, list[TaskBeat]] = {}
        for beat in heartbeat.tasks:
            by_job.setdefault(beat.job, []).append(beat)
        for job in by_job:
            self._of_job(job)  # tasks are not of those that rest, but may be there
        for machine in self.awake.values():
            machine.beat(heartbeat, by_job.pop(machine.state.row.job, []), now_ms)
        for job, beats in by_job.items():  # of a processor that was dropped, or of an earlier life of one
            self.ctx.out.append(do.Publish(StopTasks(job, Generation(max(b.generation for b in beats)))))

    def _worker_gone(self, worker: WorkerIncarnation, reason: str) -> None:
        for machine in self.awake.values():
            machine.worker_gone(worker, reason)

    def _of_job(self, job: JobId) -> ProcessorMachine | None:
        """The processor, awake; few events name one that rests."""
        for machines in (self.awake, self.processors):
            if (found := next((p for p in machines.values() if p.state.row.job == job), None)) is not None:
                return self._wake(found)
        return None

    def _wake(self, machine: ProcessorMachine) -> ProcessorMachine:
        return self.awake.setdefault(machine.state.name, machine)

    # --- the store --------------------------------------------------------------------------------------------------------

    def _store_done(self, op: OpId, now_ms: int) -> None:
        if (put := self.connecting.pop(op, None)) is not None:
            self._answer(put, "")
        for creation in self.creations.values():
            if creation.op == op and creation.row is not None:
                self._created(creation, creation.row, now_ms)
                return
        for machine in self.awake.values():
            machine.store_done(op, now_ms)

    def _store_away(self, op: OpId, now_ms: int) -> None:
        if (put := self.connecting.pop(op, None)) is not None:
            self._answer(put, "the coordinator's store is away for now; ask again")
        for creation in self.creations.values():
            if creation.op == op and creation.row is not None:
                creation.retry_at_ms = now_ms + self.settings.retry_ms
        for machine in self.awake.values():
            machine.store_away(op, now_ms)

    def _stale(self, op: OpId) -> None:
        """Somebody else has changed the row: another leads, or a name was taken that was not there when this term began."""
        self._retake(f"write {op} found another row than expected")

    # --- requests ---------------------------------------------------------------------------------------------------------

    def _request(self, request: Request) -> None:
        if isinstance(request, PutConnection):
            self._connect(request)
        elif (machine := self.processors.get(request.name)) is not None:
            requests.receive(self._wake(machine).state, request)
        elif (creation := self.creations.get(request.name)) is not None:
            if creation.request.request != request.request:
                self._answer(request, f"{request.name} is being created; ask again")
        elif not isinstance(request, CreateProcessor):
            self._answer(request, f"there is no processor named {request.name}")
        elif len(self.creations) >= self.settings.requests_max:
            self._answer(request, f"{len(self.creations)} processors are being created; ask again later")
        elif len(self.processors) + len(self.creations) >= self.settings.processors_max:
            known = len(self.processors) + len(self.creations)
            self._answer(
                request,
                f"{known} processors are registered, which is processors_max of the coordinator: drop one first",
            )
        elif over := refused_creation(self.settings.quotas, request.name, (*self._staying(), *self.creations)):
            self._answer(request, over)
        else:
            op = self.ctx.op()
            self.creations[request.name] = Creation(request, op)
            self.ctx.out.append(do.MakePlan(op, request.name, request.document, request.parallelism, None))

    def _staying(self) -> list[ProcessorName]:
        """The processors but those whose drop is answered: only their rows are still there."""
        return [name for name, machine in self.processors.items() if machine.state.untold is None]

    def _connect(self, request: PutConnection) -> None:
        if any(known.request == request.request for known in self.connecting.values()):
            return
        if len(self.connecting) >= self.settings.requests_max:
            self._answer(request, f"{len(self.connecting)} connections are being written; ask again later")
            return
        op = self.ctx.op()
        self.connecting[op] = request
        self.ctx.out.append(do.StoreConnection(op, self.ctx.token, request.name, request.value, request.replaces))

    def _answer(self, request: Request, error: str) -> None:
        said = bounded(error, self.settings.reason_characters_max)
        self.ctx.out.append(do.Answer(request.request, request.name, said))
        if not isinstance(request, PutConnection):
            self._remember(request.name, ((request.request, said),))

    def _remember(self, name: ProcessorName, answers: Iterable[tuple[str, str]]) -> None:
        """`answers_max` a name, `processors_max` names."""
        kept = self.gone.pop(name, deque(maxlen=self.settings.answers_max))
        kept.extend(answers)
        self.gone[name] = kept
        while len(self.gone) > self.settings.processors_max:
            del self.gone[next(iter(self.gone))]

    def _planned(self, op: OpId, plan: ev.PlannedPipeline | str) -> None:
        for creation in list(self.creations.values()):
            if creation.op == op and creation.row is None:
                fault = plan if isinstance(plan, str) else self._fault(creation.request, plan)
                if isinstance(plan, str) or fault:
                    del self.creations[creation.request.name]
                    self._answer(creation.request, fault)
                else:
                    self._create(creation, plan)
        for machine in self.awake.values():
            machine.planned(op, plan)

    def _fault(self, request: CreateProcessor, plan: ev.PlannedPipeline) -> str:
        tasks = sum(vertex.tasks for vertex in plan.vertices)
        return fault_of(plan, frozenset()) or (
            refused_tasks(self.ctx, request.name, tasks) if isinstance(request, CreateRunning) else ""
        )

    def _create(self, creation: Creation, planned: ev.PlannedPipeline) -> None:
        request = creation.request
        pending = pending_of(planned, request.parallelism)
        bound = bind(pending, 1, request.name, self.ctx.fresh, self.settings.topic_prefix, None)
        answers = (*self.gone.get(request.name, ()), (request.request, ""))[-self.settings.answers_max :]
        kept = Decisions(interval_ms=pending.interval_ms, answers=answers)
        creation.row = ProcessorRow(
            name=request.name,
            job=JobId(self.ctx.fresh()),
            leader=self.ctx.token,
            generation=Generation(0),
            last=Epoch(0),
            reserved=Epoch(0),
            desired="running" if isinstance(request, CreateRunning) else "stopped",
            state="STARTING" if isinstance(request, CreateRunning) else "CREATED",
            reason="",
            failures=0,
            plan_version=1,
            plan=encode_plan(bound.plan),
            parallelism=request.parallelism,
            extra=encode_kept(kept),
        )
        creation.tasks = sum(bound.plan.tasks.values()) if isinstance(request, CreateRunning) else 0
        creation.op = self.ctx.op()
        self.ctx.out.append(do.StoreCreate(creation.op, creation.row))

    def _create_again(self, creation: Creation, now_ms: int) -> None:
        if creation.row is not None and creation.retry_at_ms is not None and now_ms >= creation.retry_at_ms:
            creation.retry_at_ms = None
            creation.op = self.ctx.op()
            self.ctx.out.append(do.StoreCreate(creation.op, creation.row))

    def _created(self, creation: Creation, row: ProcessorRow, now_ms: int) -> None:
        request = creation.request
        del self.creations[request.name]
        stored = ev.StoredProcessor(row, (), (), Epoch(0))
        self.processors[request.name] = self._wake(ProcessorMachine.of(self.ctx, stored, now_ms))
        self._answer(request, "")
