"""The judge can find fault: each guard taken out, some seed shows which rule breaks. With all guards in, none does (the other file)."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from tests.property.protocol_coordinator_chaos import simulate
from tests.unit.protocol_coordinator_support import Broken
from tidemark.shared.model.checkpoint import CommitRow
from tidemark.shared.model.ids import Epoch, Generation
from tidemark.shared.protocol.coordinator import cleanup, generation, requests, retention, running, state
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.checkpoints import CommitPermit, Numbers
from tidemark.shared.protocol.coordinator.record import Decisions
from tidemark.shared.protocol.coordinator.state import Phase, ProcessorState

SEEDS = 120
STEPS = 250
Patch = pytest.MonkeyPatch


def _numbers_from_the_last_commit(patch: Patch) -> None:
    """C1: a new generation counts on from the last commit instead of a new block."""
    begun = generation.begun

    def counts_on(p: ProcessorState, began: Any, now_ms: int) -> None:
        begun(p, began, now_ms)
        p.numbers = Numbers(p.row.last, p.row.reserved)

    patch.setattr(generation, "begun", counts_on)


def _two_in_flight(patch: Patch) -> None:
    """C1: the interval alone decides when a checkpoint starts."""
    fly = running._fly

    def starts_another(p: ProcessorState, flight: Any, now_ms: int) -> None:
        if running._due(p, now_ms):
            running._start(p, now_ms)
        else:
            fly(p, flight, now_ms)

    patch.setattr(running, "_fly", starts_another)


def _mirror_before_commit(patch: Patch) -> None:
    """C9: the mirror is told when the commit is asked for, not when it is durable."""
    commit = running._commit

    def tells_at_once(p: ProcessorState, flight: Any) -> None:
        row = flight.commit_row(p.row.job, p.row.generation)
        p.emit(do.AppendMirror(CommitPermit(row).mirror_row(p.sinks())))
        commit(p, flight)

    patch.setattr(running, "_commit", tells_at_once)


def _mirror_without_waiting(patch: Patch) -> None:
    """C9: rows are appended without waiting for the previous one's acknowledgement."""

    def at_once(mirror: Any, now_ms: int) -> Any:
        if not mirror.lacking:
            return None
        row = mirror.lacking.popleft()
        mirror.appended = row.epoch
        return row

    patch.setattr("tidemark.shared.protocol.coordinator.mirror.Mirror.next", at_once)


def _forgets_unreleased(patch: Patch) -> None:
    """C11: only the last commit is retained."""

    def only_last(commits: retention.Retained, last: Epoch, most: int) -> tuple[Epoch, ...]:
        return tuple(c.epoch for c in commits if c.epoch != last)[:most]

    patch.setattr(retention.Retained, "superfluous", only_last)


def _deletes_listed_blobs(patch: Patch) -> None:
    """C12: blobs go by their epoch alone."""
    patch.setattr(cleanup, "blobs_kept", lambda _commits: frozenset())


def _deletes_records_by_the_last_commit(patch: Patch) -> None:
    """C12: the floor is the last commit's, whatever else is retained."""

    def by_last(commits: list[CommitRow], last: Epoch, edges: Any) -> Any:
        return retention.record_floors([c for c in commits if c.epoch == last], last, edges)

    patch.setattr(cleanup, "record_floors", by_last)


def _assigns_again_in_the_same_generation(patch: Patch) -> None:
    """R2: a new leader that does not see all tasks assigns them, in the generation that it found."""

    def again(p: ProcessorState, now_ms: int) -> None:
        if p.run is not None and now_ms >= p.resume_at_ms:
            p.run.holders.clear()
            p.run.restored.clear()
            p.phase = Phase.PREPARING

    patch.setattr(generation, "adopt", again)


def _forgets_identities(patch: Patch) -> None:
    """S1: identities that are not the plan's own are given to nobody."""
    works_of = generation.works_of

    def own_only(plan: Any, kept: Decisions) -> Any:
        own = tuple(i for i in kept.identities if i[0] in plan.tasks and i[1] < plan.tasks[i[0]])
        return works_of(plan, structs.replace(kept, identities=own))

    patch.setattr(generation, "works_of", own_only)
    patch.setattr("tests.unit.protocol_coordinator_world.violations", lambda _machine: [])


def _calls_known_identities_new(patch: Patch) -> None:
    """S2: an identity is new in every generation."""
    works_of = generation.works_of

    def all_new(plan: Any, kept: Decisions) -> Any:
        works = works_of(plan, kept)
        return {t: _with_new_identity(w) for t, w in works.items()}

    patch.setattr(generation, "works_of", all_new)


def _with_new_identity(work: state.Work) -> state.Work:
    return state.Work(work.service, work.plan, work.release_only, work.retired, work.service == "sink")


def _starts_sources_at_once(patch: Patch) -> None:
    """R1: sources go before every task has restored."""
    patch.setattr(generation, "restore", generation._go)


def _deletes_replaced_topics_at_once(patch: Patch) -> None:
    """R4: the old topic goes with the plan, not with the new generation's first commit."""
    change = generation._change_plan

    def at_once(p: ProcessorState, kept: Decisions, row: Any) -> Any:
        kept, row = change(p, kept, row)
        return structs.replace(kept, unwanted_topics=kept.obsolete_topics, obsolete_topics=()), row

    patch.setattr(generation, "_change_plan", at_once)


def _new_life_before_release(patch: Patch) -> None:
    """E2: a start without state does not wait for what is committed."""
    begin = generation.begin

    def at_once(p: ProcessorState) -> None:
        kept = p.next_kept()
        if kept.without_state:
            row = structs.replace(p.row, generation=Generation(p.row.generation + 1), state="STARTING")
            generation._begin_new_job(p, kept, row)
        else:
            begin(p)

    patch.setattr(generation, "begin", at_once)


def _believes_ambiguous_writes(patch: Patch) -> None:
    """C8: a write whose answer was lost is taken for done."""

    def believe(self: Any, _reason: str) -> None:
        for machine in self.processors.values():
            if machine.state.write is not None:
                machine.store_done(machine.state.write.op, self.last_ms)

    patch.setattr("tidemark.shared.protocol.coordinator.machine.CoordinatorMachine._retake", believe)


def _loses_the_drain(patch: Patch) -> None:
    """E2: a drain is only told to the tasks of the generation that runs."""
    applied = requests.applied

    def forgets(p: ProcessorState, request: Any, now_ms: int) -> None:
        applied(p, request, now_ms)
        p.kept = structs.replace(p.kept, drain=None)

    patch.setattr(requests, "applied", forgets)


GUARDS: dict[str, tuple[str, int, Callable[[Patch], None]]] = {
    "numbers from the last commit": ("C1", 0, _numbers_from_the_last_commit),
    "two in flight": ("C1", 0, _two_in_flight),
    "believes ambiguous writes": ("R1", 0, _believes_ambiguous_writes),
    "mirror before commit": ("C9", 0, _mirror_before_commit),
    "mirror without waiting": ("C9", 45, _mirror_without_waiting),
    "forgets unreleased": ("C11", 0, _forgets_unreleased),
    "deletes listed blobs": ("C12", 0, _deletes_listed_blobs),
    "deletes records by the last commit": ("C12", 0, _deletes_records_by_the_last_commit),
    "assigns again": ("R2", 0, _assigns_again_in_the_same_generation),
    "forgets identities": ("R3", 25, _forgets_identities),
    "calls known identities new": ("S2", 0, _calls_known_identities_new),
    "starts sources at once": ("R1", 0, _starts_sources_at_once),
    "deletes replaced topics at once": ("R4", 0, _deletes_replaced_topics_at_once),
    "new life before release": ("R3", 41, _new_life_before_release),
    "loses the drain": ("E2", 14, _loses_the_drain),
}
"""By name: the rule that breaks, the first seed to try (one that shows it, when this was written), how the guard is taken out."""


@pytest.mark.parametrize("guard", GUARDS)
def test_a_guard_taken_out_is_noticed(guard: str, monkeypatch: Patch) -> None:
    """Some random run breaks the rule that the guard keeps."""
    expected, first, take_out = GUARDS[guard]
    take_out(monkeypatch)
    found = []
    for seed in range(first, first + SEEDS):
        try:
            simulate(seed, STEPS)
        except Broken as broken:
            found.append(str(broken))
            if expected in str(broken):
                return
    raise AssertionError(f"no seed in {first} to {first + SEEDS} breaks {expected}; found {set(found)}")
