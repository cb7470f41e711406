"""The coordinator's writes to the store: a command becomes one call, and the store's answer becomes an event (C8)."""

import msgspec
import structlog

from tidemark.shared.language.redaction import connection_digest, shown_connection
from tidemark.shared.model.messages import NO_CONNECTION
from tidemark.shared.ports.commits import Ambiguous, CommitStore, Stale, StoreUnavailable
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.runtime.context import Moment, Outside

_log = structlog.get_logger()

Write = (
    do.StoreCreate
    | do.StoreUpdate
    | do.StoreNewGeneration
    | do.StoreCommit
    | do.StoreDrop
    | do.StoreForget
    | do.StoreConnection
)


async def carry_out(store: CommitStore, command: Write, outside: Outside, connections_max: int) -> ev.CoordinatorEvent:
    """Make one write and give its answer. `connections_max`: of the registry."""
    op, clock = command.op, outside.clock
    try:
        if isinstance(command, do.StoreConnection) and command.value is not None:
            known = await store.connections()
            if command.name not in known and len(known) >= connections_max:
                reason = f"the registry has {len(known)} connections, which is connections_max of the coordinator: delete one first"
                return ev.StoreRefused(clock.monotonic_ms(), op, reason)
        if isinstance(command, do.StoreConnection) and command.replaces:
            found = (await store.connections()).get(command.name)
            # What it would write is there where its own answer was lost, and it is asked again.
            if found != command.value and (changed := _changed(found, command.replaces)):
                reason = f"connection {command.name} {changed}: somebody else changed it; look at it again"
                return ev.StoreRefused(clock.monotonic_ms(), op, reason)
        await _write(store, command, outside)
    except Stale as error:
        _log.warning("store.stale", command=type(command).__name__, reason=str(error))
        return ev.StoreStale(clock.monotonic_ms(), op)
    except Ambiguous as error:
        _log.warning("store.ambiguous", command=type(command).__name__, reason=str(error))
        return ev.StoreAmbiguous(clock.monotonic_ms(), op)
    except StoreUnavailable as error:
        _log.warning("store.away", command=type(command).__name__, reason=str(error))
        return ev.StoreAway(clock.monotonic_ms(), op)
    return ev.StoreDone(clock.monotonic_ms(), op)


def _changed(found: str | None, replaces: str) -> str:
    """What became of the connection that a change was made from; "" where it is there."""
    there = NO_CONNECTION if found is None else connection_digest(shown_connection(msgspec.json.decode(found)))
    if there == replaces:
        return ""
    if found is None:
        return "is there no more"
    return "was made" if replaces == NO_CONNECTION else "is another one now"


async def _write(store: CommitStore, command: Write, outside: Outside) -> None:
    match command:
        case do.StoreCreate(_, row):
            await store.create(row)
        case do.StoreUpdate(_, expected, row):
            await store.update(expected, row)
        case do.StoreNewGeneration(_, expected, row, entry):
            await store.new_generation(expected, row, entry)
        case do.StoreCommit(_, expected, row, commit):
            outside.passing(Moment("commit-decided", commit.epoch, commit.job, processor=row.name))
            await store.commit(expected, row, commit)
            outside.passing(Moment("commit-stored", commit.epoch, commit.job, processor=row.name))
            _log.info(
                "checkpoint.committed",
                processor=row.name,
                job=commit.job,
                epoch=commit.epoch,
                generation=commit.generation,
            )
        case do.StoreDrop(_, expected):
            await store.drop(expected)
        case do.StoreForget(_, leader, job, epochs, generations):
            await store.forget(leader, job, epochs, generations)
        case do.StoreConnection(_, leader, name, value, _):
            await store.put_connection(leader, name, value)
