"""A running generation: checkpoints, commits, stopping and finishing (C1, C5, C7, C9, C10, C11, E1, E2)."""

from msgspec import structs

from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import AbortCheckpoint, CommitHint, HoldInput, StartCheckpoint
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import CommitPermit, Flight, Numbers, pack
from tidemark.shared.protocol.coordinator.generation import begin, end, interval_ms, leave
from tidemark.shared.protocol.coordinator.kept import wants_aligned
from tidemark.shared.protocol.coordinator.pace import target_ms
from tidemark.shared.protocol.coordinator.plans import own_identities
from tidemark.shared.protocol.coordinator.splits import has_read_on, short_of_end
from tidemark.shared.protocol.coordinator.state import Committed, Doom, ProcessorState, Reserved


def running(p: ProcessorState, now_ms: int) -> None:
    """Decide the next steps while sources run."""
    final = p.final()
    if final and not p.unreleased():
        end(p, "FINISHED", "")  # E1: END is covered everywhere, committed and released
        return
    _hold(p, now_ms)
    if p.leave_behind is not None and (final or (p.row.last > p.leave_behind and p.is_aligned())):
        _leave_at_checkpoint(p, now_ms)
        return
    if final:
        return
    if p.flight is not None:
        _fly(p, p.flight, now_ms)
    elif _due(p, now_ms):
        _start(p, now_ms)


def releasing(p: ProcessorState, now_ms: int) -> None:
    """A generation that only releases (E2, S1): done when nothing waits."""
    if p.unreleased():
        if p.row.desired == "stopped":
            end(p, "STOPPED", "")
        return
    if p.final() and not p.kept.without_state:
        end(p, "FINISHED", "")
    elif p.row.desired == "stopped":
        end(p, "STOPPED", "")
    else:
        leave(p, now_ms, now_ms)
        begin(p)


# --- stopping and changing at a checkpoint ----------------------------------------------------------------------------


def _leave_at_checkpoint(p: ProcessorState, now_ms: int) -> None:
    """The checkpoint that a stop or a change of plan waited for is committed (E2, E3, R4)."""
    if p.row.desired == "stopped":
        if p.stop_since_ms is None:
            p.stop_since_ms = now_ms
        if not p.unreleased() or now_ms - p.stop_since_ms >= p.settings.stop_release_wait_ms:
            end(p, "STOPPED", "")
    elif not p.final():
        leave(p, now_ms, now_ms)
        begin(p)


# --- one checkpoint in flight -----------------------------------------------------------------------------------------


def _hold(p: ProcessorState, now_ms: int) -> None:
    """Sources wait while too many commits wait for their release (C11, F8)."""
    waiting = p.unreleased()
    p.times.look(waiting, now_ms)
    held = len(waiting) > p.settings.unreleased_max
    if held != p.held:
        p.held = held
        p.tell(HoldInput(p.row.job, p.row.generation, held=held))


def _due(p: ProcessorState, now_ms: int) -> bool:
    if p.held:
        return False  # C11
    if p.leave_behind is not None or wants_aligned(p):
        return True
    if p.checkpoint_wanted:
        # F9: a full epoch follows another whose release may go on, and no more than that one, for as long as the target.
        longest_ms = target_ms(p.settings, interval_ms(p))
        return len(p.unreleased()) <= 1 or now_ms >= (p.last_start_ms or 0) + longest_ms
    return now_ms >= next_start_ms(p)


def next_start_ms(p: ProcessorState) -> int:
    """When the interval since the last start is over."""
    return (p.last_start_ms or 0) + interval_ms(p)


def _start(p: ProcessorState, now_ms: int) -> None:
    """Take the next number and tell the sources; reserve a block first if none is left (C1)."""
    if p.numbers.empty:
        block = Reserved(p.row.reserved, Epoch(p.row.reserved + p.settings.numbers_block))
        p.change_row(p.next_kept(), block, structs.replace(p.row, reserved=block.end, state="RUNNING"))
        return
    assert p.run is not None
    epoch = p.numbers.take()
    p.flight = Flight(epoch, p.row.last, now_ms, p.run.acking, asked=p.checkpoint_wanted)
    p.last_start_ms = now_ms
    p.checkpoint_wanted = False
    told = p.times.told(target_ms(p.settings, interval_ms(p)), now_ms)
    aligned = p.leave_behind is not None or wants_aligned(p)
    took_ms = p.epoch_ms
    p.tell(
        StartCheckpoint(p.row.job, p.row.generation, epoch, p.row.last, *told, aligned=aligned, committed_ms=took_ms)
    )


def reserved(p: ProcessorState, block: Reserved) -> None:
    """The block is durable."""
    p.numbers = Numbers(block.given, block.end)


def _fly(p: ProcessorState, flight: Flight, now_ms: int) -> None:
    if not flight.complete or flight.moving is not None or now_ms < flight.retry_at_ms:
        if now_ms - flight.started_ms > p.settings.checkpoint_timeout_ms:
            _time_out(p, flight)
        return
    if (size := flight.mirrored_bytes()) > p.settings.mirror_bytes_max:
        _too_large(p, flight, size)
        return
    flight.moves = flight.to_move(p.settings.inline_bytes_max)
    if flight.moves:
        flight.moving = p.ctx.op()
        row = p.row
        blobs = (pack(flight.acks[t], row.job, row.generation, flight.epoch, p.ctx.fresh()) for t in flight.moves)
        p.emit(do.WriteBlobs(flight.moving, tuple(blobs)))
        return
    _commit(p, flight)


def _too_large(p: ProcessorState, flight: Flight, size: int) -> None:
    """No row of the mirror could tell sinks of this commit (C9): it is not made, and trying again would change nothing."""
    p.flight = None
    reason = (
        f"checkpoint {flight.epoch}: the row that tells sinks of it would have {size} bytes, at most {p.settings.mirror_bytes_max},"
        " by message_bytes_max: read fewer files or partitions, run fewer sink tasks, or raise it and the brokers' bound"
    )
    p.doom = Doom(reason, permanent=True)


def _time_out(p: ProcessorState, flight: Flight) -> None:
    """Abort it everywhere; it counts unless something outside was away meanwhile (C10)."""
    p.tell(AbortCheckpoint(p.row.job, p.row.generation, flight.epoch))
    p.flight = None
    late = flight.tasks - flight.acks.keys()
    if p.outage_since(flight.started_ms) or (p.run is not None and p.run.have_waited(late, flight.started_ms)):
        return
    p.timeouts += 1
    if p.timeouts >= p.settings.checkpoint_timeouts_max:
        missing = ", ".join(str(t) for t in sorted(flight.tasks - flight.acks.keys())) or "the blob store"
        p.doom = Doom(
            f"{p.timeouts} checkpoints in a row timed out; checkpoint {flight.epoch} waited for {missing}", counts=True
        )


def _commit(p: ProcessorState, flight: Flight) -> None:
    """Commit, if the last committed one still is the one that the barriers named (C5, C8, C9)."""
    commit = flight.commit_row(p.row.job, p.row.generation)
    if commit.final and (short := short_of_end(p, commit)):
        p.flight = None
        p.doom = Doom(f"checkpoint {commit.epoch}: every task has ended, but {short} (E1)", permanent=True)
        return
    kept = p.next_kept()
    named = own_identities(p.plan) & {(h.vertex, h.index) for h in commit.tasks}
    kept = structs.replace(
        kept,
        identities=tuple(sorted({*kept.identities, *named})),
        commits=kept.commits + 1,
        unwanted_topics=(*kept.unwanted_topics, *kept.obsolete_topics),  # R4: the new generation has committed
        obsolete_topics=(),
    )
    assert p.run is not None
    p.run.read_on = p.run.read_on or has_read_on(p.commits.newest, commit)
    failures = 0 if p.run.read_on else p.row.failures
    row = structs.replace(p.row, last=commit.epoch, failures=failures, state="RUNNING", reason="")
    p.change_row(kept, Committed(commit), row)


def committed(p: ProcessorState, commit: Committed, now_ms: int) -> None:
    """The commit is durable: now, and not before, others may hear of it (C9)."""
    asked = p.checkpoint_wanted
    if p.flight is not None:
        asked = asked or p.flight.asked
        p.epoch_ms = now_ms - p.flight.started_ms
        p.times.committed(commit.commit.epoch, p.epoch_ms, now_ms)
    permit = CommitPermit.of_done(commit.commit)
    p.commits.add(permit.row)
    p.take_permit(permit)
    late = permit.row.final or p.leave_behind is not None or next_start_ms(p) - now_ms > p.settings.status_interval_ms
    if asked or late:
        # Sources wait for it (F8, F9), or no start says so soon. Else it waits for that start: each message wakes every worker.
        p.tell(CommitHint(p.row.job, permit.row.generation, permit.row.epoch))
    p.flight = None
    p.timeouts = 0
    p.outages, p.outage = 0, ""
