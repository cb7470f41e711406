"""What must hold between two events, whatever has happened; tests ask after every event and at their end."""

from itertools import pairwise

from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine, Role
from tidemark.shared.protocol.coordinator.splits import unlisted
from tidemark.shared.protocol.coordinator.state import Committed, Phase, ProcessorState

_WITHOUT_RUN = frozenset({Phase.IDLE, Phase.WAITING, Phase.DROPPING})
_ASSIGNED = frozenset({Phase.RESTORING, Phase.RUNNING, Phase.RELEASING})


def violations(machine: CoordinatorMachine) -> list[str]:
    """Each broken invariant as a sentence that begins with the rule's name; empty if all hold."""
    if machine.role is not Role.LEADS:
        return []
    found = []
    due_ms = machine.due_ms()
    if due_ms is not None and machine.last_ms is not None and due_ms <= machine.last_ms:
        found.append(
            f"at {machine.last_ms} something is due at {due_ms}, which was not decided: ticks come without end"
        )
    for processor in machine.processors.values():
        p = processor.state
        found += [f"{p.name}: {v}" for v in (*_checkpoints(p), *_commits(p), *_generation(p), *_bounds(p))]
    return found


def _checkpoints(p: ProcessorState) -> list[str]:
    found = []
    if p.numbers.end > p.row.reserved and p.write is None:
        found.append(f"C1: numbers up to {p.numbers.end} are given out, but {p.row.reserved} is reserved")
    flight = p.flight
    if flight is None:
        return found
    if p.phase is not Phase.RUNNING:
        found.append(f"C1: checkpoint {flight.epoch} is in flight while {p.phase}")
    if not p.row.last < flight.epoch <= p.row.reserved:
        found.append(f"C1: checkpoint {flight.epoch} is not in ({p.row.last}, {p.row.reserved}]")
    if flight.committed != p.row.last:
        found.append(f"C5: checkpoint {flight.epoch} names {flight.committed}, but the last commit is {p.row.last}")
    if p.run is not None and flight.tasks != p.run.acking:
        found.append(f"C7: checkpoint {flight.epoch} waits for other tasks than the generation has")
    return found


def _commits(p: ProcessorState) -> list[str]:
    found = []
    epochs = [c.epoch for c in p.commits]
    if epochs != sorted(set(epochs)):
        found.append(f"C9: commits are kept in the order {epochs}")
    if p.row.last and (not epochs or epochs[-1] != p.row.last):
        found.append(f"C11: the last commit {p.row.last} is not among those kept, {epochs}")
    released, sinks = p.released, p.sinks()
    waiting = [
        c.epoch
        for c in p.commits
        if any(h.vertex in sinks and released.get((h.vertex, h.index), 0) < c.epoch for h in c.tasks)
    ]
    if p.unreleased() != waiting:
        found.append(f"C11: {p.unreleased()} are said to wait for their release, but {waiting} do")
    kept = {p.row.last, *waiting, *(each.epoch for each in p.kept.checkpoints)}
    superfluous = [epoch for epoch in epochs if epoch not in kept]
    if sorted(p.commits.superfluous(p.row.last, len(epochs))) != superfluous:
        found.append(f"C11: not {superfluous} are said to be superfluous")
    for before, after in pairwise(p.commits):
        if after.predecessor < before.epoch:
            found.append(
                f"C9: commit {after.epoch} has predecessor {after.predecessor}, but {before.epoch} came between"
            )
    lacking = [m.epoch for m in p.mirror.lacking]
    if lacking != sorted(set(lacking)) or any(not p.mirror.appended < e <= p.row.last for e in lacking):
        found.append(f"C9: the mirror has {p.mirror.appended} and lacks {lacking}, the last commit is {p.row.last}")
    if p.write is not None and isinstance(p.write.then, Committed) and p.write.then.commit.predecessor != p.row.last:
        found.append(f"C5: a commit behind {p.write.then.commit.predecessor} is written behind {p.row.last}")
    return found


def _generation(p: ProcessorState) -> list[str]:
    found = []
    if p.row.generation and (not p.lineage or p.lineage[-1].generation != p.row.generation):
        found.append(f"R1: generation {p.row.generation} is not the last of its lineage")
    if (p.run is None) != (p.phase in _WITHOUT_RUN):
        found.append(f"R1: {p.phase} {'without' if p.run is None else 'with'} tasks")
    if p.run is None:
        return found
    if p.phase in _ASSIGNED and p.run.holders.keys() != p.run.tasks.keys():
        found.append(f"R2: {p.phase}, but not every task has a worker")
    if p.phase in (Phase.RUNNING, Phase.RELEASING) and p.run.restored != p.run.tasks.keys():
        found.append(f"R1: {p.phase}, but not every task has restored")
    if p.phase is Phase.RUNNING and (unknown := unlisted(p, p.run)):
        found.append(f"I1: sources run, but the row lists no splits of {unknown}")
    if p.run.ends_told and not p.kept.ended:
        found.append("I3: sources were told of ends that the row does not have")
    given = [
        identity
        for task, work in p.run.tasks.items()
        if work.service == "sink"
        for identity in ((task.vertex, task.index), *work.retired)
    ]
    if len(given) != len(set(given)):
        found.append(f"S1: an identity is given to two tasks: {sorted(given)}")
    if p.phase is not Phase.ADOPTING and (lost := set(p.kept.identities) - set(given)):
        found.append(f"S1: identities {sorted(lost)} are given to nobody")
    return found


def _bounds(p: ProcessorState) -> list[str]:
    found = []
    if len(p.requests) > p.settings.requests_max or len(p.answers) > p.settings.answers_max:
        found.append(f"{len(p.requests)} requests and {len(p.answers)} answers are kept")
    if len(p.mirror.lacking) > p.settings.unreleased_max + 2:
        found.append(f"C11: {len(p.mirror.lacking)} commits wait for the mirror")
    return found
