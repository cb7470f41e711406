"""One processor: facts in, then at most one decision at a time (`ProcessorMachine`).

Events only note facts; `advance` then decides by the phase. While a write of the row is unanswered nothing that depends on the row is
decided (C8), so an event that comes meanwhile waits as a fact.

| phase, then by event | generation written | topics, mirror, worker | all restored | task or worker lost | stop | drain | all released |
| --- | --- | --- | --- | --- | --- | --- | --- |
| IDLE | – | – | – | – | – | refused | – |
| ADOPTING | – | – | all seen: RESTORING; late: WAITING | WAITING | as there | as there | noted |
| WAITING | PREPARING | – | – | – | IDLE, STOPPED | noted | noted |
| PREPARING | – | assign: RESTORING | – | – | IDLE, STOPPED | noted | noted |
| RESTORING | – | – | RUNNING, RELEASING | WAITING, FAILED | IDLE, STOPPED | noted | noted |
| RUNNING | new plan: PREPARING | – | – | WAITING, FAILED | checkpoint, IDLE | told | final: IDLE, FINISHED |
| RELEASING | – | – | – | WAITING, FAILED | IDLE, STOPPED | noted | FINISHED, or a new job: PREPARING |
| DROPPING | – | – | – | – | – | refused | – |

| rule | where |
| --- | --- |
| C1 C5 C7 C10 C11 E1 | running.py, checkpoints.py |
| C8 | `ProcessorState.change_row`, machine.py |
| C9 | mirror.py, `CommitPermit` |
| C12 | cleanup.py, retention.py |
| R1 R2 R4 S1 | generation.py, workers.py, plans.py |
| E2 E3 | requests.py, generation.py |
| E2, with checkpoints that users keep (C11) | kept.py |
| I1 I3 | splits.py |
"""

from dataclasses import dataclass

from tidemark.shared.model.ids import Epoch, TaskId, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import (
    IDLE_STATES,
    Ack,
    CheckpointWanted,
    EndsFound,
    Heartbeat,
    Released,
    SplitsFound,
    StopTasks,
    TaskBeat,
    TaskFailed,
    TaskRestored,
)
from tidemark.shared.protocol.coordinator import cleanup, generation, requests, running, shares, splits, status
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.checkpoints import CommitPermit
from tidemark.shared.protocol.coordinator.commands import OpId
from tidemark.shared.protocol.coordinator.state import (
    ACTIVE,
    HOSTED,
    Applied,
    Began,
    Committed,
    Context,
    Doom,
    Dropped,
    Ended,
    FailureCounted,
    GenerationRun,
    Learned,
    Phase,
    ProcessorState,
    Reserved,
    restore_state,
)

RESTORING_PHASE = "restoring"
"""The phase in a task's beat while it has not restored; any other phase means that it has."""
_STEPS_MAX = 8
"""Decisions on one event; more would be a circle."""

TaskReport = TaskRestored | SplitsFound | EndsFound | Ack | CheckpointWanted | TaskFailed | Released


@dataclass(slots=True)
class ProcessorMachine:
    """The decisions about one processor."""

    state: ProcessorState
    dropped: bool = False
    """Its row is gone, it is to be forgotten."""
    rests: bool = False
    """Time alone changes nothing about it: no generation runs, nothing is under way, and nothing is left to delete or to tell."""

    @staticmethod
    def of(ctx: Context, stored: ev.StoredProcessor, now_ms: int) -> "ProcessorMachine":
        """A processor as a new leader finds it."""
        p = restore_state(ctx, stored.row, stored.lineage, stored.commits)
        p.mirror.appended = stored.mirrored
        p.mirror.rows.extend(stored.rows)
        for commit in stored.commits:
            if commit.epoch > stored.mirrored:
                p.take_permit(CommitPermit.of_read(commit))
        if p.row.desired == "dropped":
            p.phase = Phase.DROPPING
        elif p.row.state in IDLE_STATES:
            p.phase = Phase.IDLE
        elif not generation.is_the_one_that_was_ordered(p):
            p.phase = Phase.WAITING
        else:
            p.phase = Phase.ADOPTING
            p.run = GenerationRun(p.kept.purpose, generation.works_of(p.plan, p.kept), since_ms=now_ms)
        p.resume_at_ms = now_ms + ctx.settings.adopt_wait_ms if p.phase is Phase.ADOPTING else now_ms
        p.clean_at_ms = now_ms + ctx.settings.cleanup_interval_ms
        return ProcessorMachine(p)

    # --- deciding ---------------------------------------------------------------------------------------------------------

    def advance(self, now_ms: int) -> None:
        """Take the steps that the facts allow."""
        p = self.state
        if (row := p.mirror.next(now_ms)) is not None:
            p.emit(do.AppendMirror(row))
        for _ in range(_STEPS_MAX):
            if self.dropped or p.write is not None or now_ms < p.retry_at_ms:
                break
            before = p.phase, p.doom
            self._decide(now_ms)
            if (p.phase, p.doom) == before:
                break
        if not self.dropped:
            clean, told = cleanup.clean(p, now_ms), p.untold is not None or status.publish(p, now_ms)
            self.rests = clean and told and p.phase is Phase.IDLE and p.write is None and not p.requests

    def due_ms(self, now_ms: int) -> int | None:
        """When time alone makes the next decision, ms, unless something else must come first; None if nothing lies ahead.

        A checkpoint under way does not hide when the next is due: who asks now may sleep until then.
        """
        p = self.state
        due_ms = None
        if p.phase is Phase.RUNNING and not p.held and not p.final():
            due_ms = running.next_start_ms(p)
        elif p.phase is Phase.WAITING:
            due_ms = p.resume_at_ms
        if due_ms is None or (due_ms := max(due_ms, p.retry_at_ms)) <= now_ms:
            return None
        return due_ms

    def _decide(self, now_ms: int) -> None:
        p = self.state
        requests.serve(p)
        if p.write is not None:
            return None
        if p.doom is not None and p.phase in ACTIVE:
            return generation.settle(p, p.doom, now_ms)
        stopping = p.row.desired == "stopped"
        if not stopping and splits.write_what_is_told(p):
            return None
        match p.phase:
            case Phase.ADOPTING:
                generation.adopt(p, now_ms)
            case Phase.WAITING | Phase.PREPARING | Phase.RESTORING if stopping:
                generation.end(p, "STOPPED", "")
            case Phase.WAITING if now_ms >= p.resume_at_ms:
                generation.begin(p)
            case Phase.PREPARING:
                generation.prepare(p, now_ms)
            case Phase.RESTORING:
                generation.restore(p, now_ms)
            case Phase.RUNNING:
                running.running(p, now_ms)
            case Phase.RELEASING:
                running.releasing(p, now_ms)
            case Phase.DROPPING:
                cleanup.drop(p)
            case _:
                pass
        return None

    # --- the store --------------------------------------------------------------------------------------------------------

    def store_done(self, op: OpId, now_ms: int) -> None:
        """A write, or a forgetting, is durable."""
        p = self.state
        if p.cleaning is not None and p.cleaning.forget_op == op:
            return cleanup.forgotten(p)
        if p.write is None or p.write.op != op:
            return cleanup.deleted(p, op, done=True)
        match p.written().then:
            case Began() as began:
                generation.begun(p, began, now_ms)
            case Reserved() as block:
                running.reserved(p, block)
            case Committed() as commit:
                running.committed(p, commit, now_ms)
            case Learned():
                pass  # `splits` goes on with it
            case FailureCounted():
                generation.counted(p, now_ms)
            case Ended():
                generation.ended(p, now_ms)
            case Applied(request):
                requests.applied(p, request, now_ms)
            case Dropped():
                self.dropped = True
        return None

    def store_away(self, op: OpId, now_ms: int) -> None:
        """Nothing was changed: decide again, later (C10: an outage is waited out)."""
        p = self.state
        if p.cleaning is not None and p.cleaning.forget_op == op:
            p.cleaning = None
        elif p.write is not None and p.write.op == op:
            p.write = None
            p.store_away = True
            p.retry_at_ms = now_ms + p.settings.retry_ms
        else:
            cleanup.deleted(p, op, done=False)

    def answer_told(self, request: str) -> None:
        """The brokers have an answer."""
        if self.state.untold is not None:
            self.state.untold.discard(request)

    # --- answers to other commands ------------------------------------------------------------------------------------------

    def planned(self, op: OpId, plan: ev.PlannedPipeline | str) -> None:
        """Planning has answered: a plan, or why not."""
        p = self.state
        if p.planning_op == op:
            p.planning_op = None
            p.planned = plan

    def topics(self, event: ev.TopicsReady | ev.TopicsFailed) -> None:
        """The topics of the generation are there, or are not."""
        p = self.state
        if p.run is None or p.run.topics_op != event.op:
            return
        p.run.topics_op = None
        if isinstance(event, ev.TopicsReady):
            p.run.topics_ready = True
        elif event.permanent:
            p.doom = Doom(f"topics: {event.reason}", permanent=True)
        else:
            p.retry_at_ms = event.now_ms + p.settings.retry_ms

    def blobs(self, event: ev.BlobsWritten | ev.BlobsFailed) -> None:
        """The state of the checkpoint in flight lies in blobs, or does not (C7)."""
        flight = self.state.flight
        if flight is None or flight.moving != event.op:
            return
        if isinstance(event, ev.BlobsWritten):
            flight.moved(event.refs)
        else:
            flight.moving = None
            flight.retry_at_ms = event.now_ms + self.state.settings.retry_ms
            self.state.ctx.outage_seen_ms = event.now_ms

    def deleted(self, event: ev.Deleted | ev.DeletionFailed) -> None:
        """A deletion has been carried out, or has not."""
        if not cleanup.dropped(self.state, event):
            cleanup.deleted(self.state, event.op, done=isinstance(event, ev.Deleted))

    # --- workers ------------------------------------------------------------------------------------------------------------

    def worker_gone(self, worker: WorkerIncarnation, reason: str) -> None:
        """A worker is lost: that ends a generation that has tasks there, and counts for nothing (R1, C10)."""
        p = self.state
        if p.run is not None and worker in p.run.holders.values():
            self._doom(Doom(f"worker {worker} {reason}"))

    def task_report(self, report: TaskReport) -> None:
        """Take a report of a task; it counts only from the worker that was told to run the task in this generation (R2)."""
        p = self.state
        if isinstance(report, Released):
            self._note_released(report.vertex, report.index, report.epoch)
            return
        if p.run is None or report.generation != p.row.generation:
            return
        if isinstance(report, CheckpointWanted):
            if report.worker in p.run.holders.values():
                p.checkpoint_wanted = True
            return
        handle = report.handle if isinstance(report, Ack) else report
        task = TaskId(handle.vertex, handle.index)
        if p.run.holders.get(task) != report.worker and not (
            p.phase is Phase.ADOPTING and isinstance(report, TaskFailed)
        ):
            return
        match report:
            case TaskRestored():
                p.run.restored.add(task)
            case SplitsFound():
                p.run.found[task] = report
            case EndsFound(splits=told):
                p.run.ends[task] = told
            case Ack(epoch=epoch, handle=acked):
                if p.flight is not None and p.flight.epoch == epoch:
                    p.flight.acknowledge(task, acked)
            case TaskFailed():
                counts = not report.outage
                self._doom(Doom(f"task {task}: {report.reason}", counts, report.permanent, report.outage))

    def beat(self, heartbeat: Heartbeat, tasks: list[TaskBeat], now_ms: int) -> None:
        """A live worker reports the tasks of this processor's job that it runs."""
        p = self.state
        seen = set()
        stray = None
        for beat in tasks:
            task = TaskId(beat.vertex, beat.index)
            for vertex, index, marker in beat.released:
                self._note_released(vertex, index, marker)
            if beat.generation > p.row.generation:
                self._ahead(
                    f"worker {heartbeat.worker} runs task {task} of generation {beat.generation}", p.row.generation
                )
            elif beat.generation < p.row.generation or p.phase not in HOSTED:
                stray = max(stray or beat.generation, beat.generation)
            else:
                seen.add(task)
                if p.run is not None and p.phase is Phase.ADOPTING and task in p.run.tasks:
                    p.run.holders[task] = heartbeat.worker
                if p.run is not None and beat.phase != RESTORING_PHASE and p.run.holders.get(task) == heartbeat.worker:
                    p.run.restored.add(task)
                if p.run is not None and task in p.run.tasks:
                    if p.run.tasks[task].service == splits.SOURCE:
                        shares.heard(p.run, task, beat.counters, now_ms)
                    p.run.waits[task] = beat.waiting
                    if beat.waiting:
                        p.run.waited_ms[task] = now_ms
        if stray is not None:
            p.tell(StopTasks(p.row.job, stray))
        if p.run is None or p.phase not in HOSTED:
            return
        missing = [t for t in sorted(p.run.restored - seen) if p.run.holders.get(t) == heartbeat.worker]
        if missing:
            self._doom(Doom(f"worker {heartbeat.worker} no longer runs task {missing[0]}", outage=True))

    def _doom(self, doom: Doom) -> None:
        """The generation cannot go on; the first reason stays, but a permanent one goes before it."""
        p = self.state
        if p.phase in HOSTED and (p.doom is None or (doom.permanent and not p.doom.permanent)):
            p.doom = doom

    def _note_released(self, vertex: VertexId, index: int, marker: Epoch) -> None:
        p = self.state
        if marker > p.row.last:
            self._ahead(f"the release marker of {vertex}/{index} stands at {marker}", p.row.last)
            return
        identity = (vertex, index)
        p.released[identity] = max(marker, p.released.get(identity, marker))

    def _ahead(self, what: str, ours: int) -> None:
        """Others have seen more than the row says: another leads, or the store has lost it (C8)."""
        p = self.state
        if p.write is None:
            p.ctx.contradicted = f"has {ours} of job {p.row.job}, but {what}"
