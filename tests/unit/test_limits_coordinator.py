"""Limits of the coordinator act, and what contradicts workers' or brokers' settings ends it at its start."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocol_coordinator_support import NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.services.coordinator.planning import plan_for_coordinator, with_connections
from tidemark.services.coordinator.service import coordinator_settings
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.redaction import connection_digest, shown_connection
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.ids import Epoch, Generation, LeaderToken, Place, ProcessorName, WorkerIncarnation
from tidemark.shared.model.messages import (
    NO_CONNECTION,
    Assign,
    CreateProcessor,
    Deregister,
    Heartbeat,
    PutConnection,
    Register,
)
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.commands import Answer, OpId, StoreConnection
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.coordinator.workers import Workers
from tidemark.shared.protocol.lineage import Lineage, Verdict, essential
from tidemark.shared.runtime.coordinator import PlanRefusal
from tidemark.shared.runtime.settings import DeathSettings, RuntimeSettings, SettingsError
from tidemark.shared.runtime.storing import carry_out
from tidemark.shared.runtime.topics import KEPT, STAMPED, Topics


def test_no_more_processors_are_created_than_may_be() -> None:
    """The answer names the setting and what to do; after a drop there is room."""
    world = World(CoordinatorSettings(processors_max=1))
    world.lead()
    world.request(CreateProcessor("one", NAME, "read:source"))
    world.settle()
    world.request(CreateProcessor("two", ProcessorName("other"), "read:source"))
    world.settle()
    answers = world.nodes[0].answers
    assert answers["one"] == ""
    assert answers["two"] == "1 processors are registered, which is processors_max of the coordinator: drop one first"
    assert list(world.store.rows) == [NAME]


def _leading(settings: CoordinatorSettings) -> CoordinatorMachine:
    machine = CoordinatorMachine(settings, lambda: "0" * 32)
    machine.handle(ev.LeadershipTaken(0, LeaderToken(1), ()))
    return machine


def test_a_full_registry_of_connections_says_so_to_who_asks() -> None:
    """One more is not written; one that is there may be changed, and one may be deleted."""

    async def main(world: VirtualWorld) -> None:
        machine, store = _leading(CoordinatorSettings()), MemoryCommitStore()
        leader = await store.lead("c", 1_000, 0)
        assert leader == 1
        await store.put_connection(leader, "a", "{}")
        outside: Any = type("Outside", (), {"clock": world.clock})
        said: dict[str, str] = {}
        for request, name, value in (("1", "b", "{}"), ("2", "a", '{"x": 1}'), ("3", "a", None), ("4", "b", "{}")):
            asked = machine.handle(ev.RequestReceived(0, PutConnection(request, ProcessorName(name), value)))
            (write,) = [c for c in asked if isinstance(c, StoreConnection)]
            event = await carry_out(store, write, outside, 1)
            said |= {c.request: c.error for c in machine.handle(event) if isinstance(c, Answer)}
        assert said == {
            "1": "the registry has 1 connections, which is connections_max of the coordinator: delete one first",
            **dict.fromkeys("234", ""),
        }
        assert await store.connections() == {"b": "{}"}
        assert machine.handle(ev.StoreRefused(0, OpId(99), "another's")) == []

    run_virtual(main)


@pytest.mark.parametrize("lost", ["the answer to who asks", "the store's answer"])
@pytest.mark.parametrize("before", [None, '{"type":"kafka"}'])
@pytest.mark.parametrize("value", [None, '{"type":"sql"}'])
def test_a_change_of_a_connection_that_is_asked_again_is_no_one_elses(
    before: str | None, value: str | None, lost: str
) -> None:
    """It is answered as done; what another makes of the same connection is refused, and what was deleted by another is not written."""

    async def main(world: VirtualWorld) -> None:
        machine, store = _leading(CoordinatorSettings()), MemoryCommitStore()
        outside: Any = type("Outside", (), {"clock": world.clock})
        leader = LeaderToken(1)
        assert await store.lead("c", 1_000, 0) == leader
        name = ProcessorName("a")
        if before is not None:
            await store.put_connection(leader, name, before)
        replaces = NO_CONNECTION if before is None else connection_digest(shown_connection(msgspec.json.decode(before)))

        async def asked(request: str, value: str | None) -> list[str]:
            out = machine.handle(ev.RequestReceived(0, PutConnection(request, name, value, replaces)))
            (write,) = [c for c in out if isinstance(c, StoreConnection)]
            event = await carry_out(store, write, outside, 9)
            if lost == "the store's answer" and request == "mine":
                machine.handle(ev.StoreAmbiguous(0, write.op))
                out = machine.handle(ev.LeadershipTaken(0, leader, ()))
                (write,) = [c for c in out if isinstance(c, StoreConnection)]
                event = await carry_out(store, write, outside, 9)
            return [c.error for c in machine.handle(event) if isinstance(c, Answer)]

        assert await asked("mine", value) == [""]
        assert await asked("mine again", value) == [""]
        refused = await asked("another's", '{"type":"file"}')
        assert (refused == [""]) == (before == value is None)
        assert (await store.connections()).get(name) == (value if refused != [""] else '{"type":"file"}')

    run_virtual(main)


def test_workers_beyond_the_bound_get_no_tasks() -> None:
    """They do not count until another has gone; then they do, by their next heartbeat."""
    workers = Workers(CoordinatorSettings(workers_max=1))

    def of(number: int) -> tuple[WorkerIncarnation, Place, str, int, int, str]:
        return WorkerIncarnation(f"w{number}"), Place(f"operator-{number}"), "operator", 4, 1, "h"

    for number in (1, 2):
        workers.register(Register(*of(number)), 0)
    assert [workers.beat(Heartbeat(*of(number), ()), 0) for number in (1, 2)] == [True, False]
    assert list(workers.alive) == ["w1"]
    workers.leave(WorkerIncarnation("w1"))
    assert workers.beat(Heartbeat(*of(2), ()), 0)
    assert list(workers.alive) == ["w2"]


def test_a_vertex_gets_no_more_tasks_than_may_be() -> None:
    """Refused in the user's words; at the bound itself it is planned."""
    document = json.dumps({"name": "p", "pipeline": [{"$source": {"documents": [{"v": 1}]}}]})
    with pytest.raises(PlanRefusal, match=r"parallelism.sink: expected 1 to 3 tasks, found 4"):
        plan_for_coordinator("local", document, {"sink": 4}, None, {}, collects=True, tasks_max=3)
    plan_for_coordinator("local", document, {"sink": 3}, None, {}, collects=True, tasks_max=3)


def test_a_document_that_no_assignment_could_carry_is_refused() -> None:
    """When it is planned, with what to do; at the bound itself it is planned. What the registry puts in counts."""
    pipeline = [
        {"$source": {"documents": [{"v": 1}]}},
        {"$emit": {"connectionName": "o", "path": "out", "format": "json"}},
    ]
    document, registry = json.dumps({"name": "p", "pipeline": pipeline}), {"o": '{"type": "files", "path": "/tmp"}'}
    size = len(with_connections(document, registry).encode())
    assert size > len(document)
    with pytest.raises(
        PlanRefusal, match=rf"has {size} bytes; at most {size - 1} fit into an assignment, by message_bytes_max"
    ):
        plan_for_coordinator("local", document, {}, None, registry, document_bytes_max=size - 1)
    plan_for_coordinator("local", document, {}, None, registry, document_bytes_max=size)


def test_C9_a_commit_that_no_row_of_the_mirror_could_tell_is_not_made() -> None:  # noqa: N802
    """The processor is FAILED with what to do, instead of sinks waiting for a row that no broker takes."""
    world = started(CoordinatorSettings(mirror_bytes_max=700))
    world.pass_ms(2_000)
    assert world.row.state == "FAILED"
    assert "at most 700, by message_bytes_max" in world.row.reason
    assert world.store.history.get(world.row.job, []) == []
    world = started(CoordinatorSettings(mirror_bytes_max=5_000))
    world.pass_ms(2_000)
    assert world.row.state == "RUNNING"
    assert world.store.history[world.row.job]


def test_an_assignment_carries_nothing_that_nobody_restores_from() -> None:
    """Neither what was staged nor where splits stood: with many tasks or files it would become too large."""
    world = started()
    world.pass_ms(2_000)
    assert any(h.staged for h in world.store.history[world.row.job][-1].tasks)
    worker, _ = world.holder("read", 0)
    world.report(worker, Deregister(worker.incarnation))
    world.worker("source-1", "source")
    world.pass_ms(5_000)
    assigned = [c for c in world.commands if isinstance(c, Assign) and c.last > 0]
    assert any(c.handles for c in assigned)
    assert all(not h.staged and not h.positions for c in assigned for h in c.handles)


def test_L1_an_assignment_names_no_generation_that_committed_nothing() -> None:  # noqa: N802
    """However often a processor began in vain: the lineage that tasks are told does not grow with it."""
    entries = [
        LineageEntry(Generation(g), Epoch(e), 1) for g, e in ((1, 0), (2, 0), (3, 7), (4, 7), (5, 7), (6, 9), (7, 9))
    ]
    assert [e.generation for e in essential(entries, 100, Epoch(9))] == [2, 5, 7]
    assert [e.generation for e in essential(entries, 2, Epoch(9))] == [5, 7]
    assert [e.generation for e in essential(entries, 2, Epoch(7))] == [5, 7]
    assert [e.generation for e in essential(entries, 2, Epoch(6))] == [2, 5, 7]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(2, 14),
    st.integers(0, 20),
)
def test_L1_what_is_left_out_of_a_lineage_decides_nothing(  # noqa: N802
    story: list[tuple[bool, int]], most: int, behind: int
) -> None:
    """Every frame that a generation may have written is judged as before; with the oldest left out, it is discarded at the worst.

    Not if a channel may still carry it (C13): the restored checkpoint has not taken the last `behind` epochs of each.
    """
    entries, committed = [], 0
    for generation, (commits, by) in enumerate(story, 1):
        entries.append(LineageEntry(Generation(generation), Epoch(committed), 1))
        committed += 1 + by if commits else 0
    current, restored = Generation(len(entries)), entries[-1].restored_from
    whole, told = (Lineage.of(some, current) for some in (entries, essential(entries, len(entries), restored)))
    few = Lineage.of(essential(entries, most, Epoch(max(0, restored - behind))), current)
    assert whole.snapshot_generation == told.snapshot_generation == few.snapshot_generation
    for entry in [*entries, LineageEntry(Generation(current + 1), Epoch(0), 1)]:
        for epoch in range(entry.restored_from + 1, committed + 3):
            before, now = (lineage.judge(entry.generation, Epoch(epoch)) for lineage in (whole, told))
            assert now is before
            assert few.judge(entry.generation, Epoch(epoch)) in (before, Verdict.DISCARDED)
            if epoch > restored - behind:
                assert few.judge(entry.generation, Epoch(epoch)) is before


def test_samples_are_kept_as_long_as_is_set() -> None:
    """The samples topic alone has a retention by time."""
    topics = Topics("p", samples_kept_ms=7)
    assert topics.plain()[topics.samples] == {**KEPT, **STAMPED, "retention.ms": "7"}


# --- relations ------------------------------------------------------------------------------------------------------------


def _process(extra: dict[str, Any], runtime: RuntimeSettings, kafka: dict[str, Any]) -> ProcessSettings:
    return ProcessSettings(
        kafka="k:1",
        blobs="b",
        store="sqlite://",
        place="coordinator-0",
        kafka_config=kafka,
        runtime=runtime,
        extra=extra,
    )


@pytest.mark.parametrize(
    ("extra", "runtime", "kafka", "said"),
    [
        (
            {"heartbeat_timeout_ms": 1_000},
            {},
            {},
            "heartbeat_timeout_ms=1000 of the coordinator .* heartbeat_interval_ms=1000",
        ),
        ({"lease_ms": 30_000}, {}, {}, "coordinator_silence_ms_max=60000 must be above twice lease_ms=30000"),
        (
            {"failures_max": 3},
            {},
            {},
            "deaths.deaths_max=3 and one more must be below failures_max=3 of the coordinator",
        ),
        (
            {},
            {"deaths": DeathSettings(deaths_max=5)},
            {},
            "deaths.deaths_max=5 and one more must be below failures_max=5",
        ),
        ({"unreleased_max": 10_000}, {}, {}, "commits_waiting_max=10000 must be above unreleased_max=10000"),
        ({}, {}, {"message_bytes_max": 200_000}, "message_bytes_max=200000 must be at least 262144"),
        ({"mirror_bytes_max": 990_000}, {}, {}, r"TIDEMARK_EXTRA\.mirror_bytes_max: no such setting"),
        ({"processors_max": 0}, {}, {}, "coordinator setting processors_max: expected a positive number, found 0"),
        ({"processors_max": "9"}, {}, {}, r"TIDEMARK_EXTRA: Expected `int`, got `str` - at `\$.processors_max`"),
        ({"lineage_max": 9}, {}, {}, r"TIDEMARK_EXTRA\.lineage_max: no such setting"),
    ],
)
def test_a_coordinator_whose_settings_cannot_work_ends_at_its_start(
    extra: dict[str, Any], runtime: dict[str, Any], kafka: dict[str, Any], said: str
) -> None:
    """The message names the settings, whose they are, and their values."""
    with pytest.raises((ProcessSettingsError, SettingsError), match=said):
        coordinator_settings(_process(extra, RuntimeSettings(**runtime), kafka))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lineage_max": 1}, "coordinator setting lineage_max: expected at least 2, found 1"),
        ({"tasks_max": 129}, r"tasks_max \(129\) must not be above the 128 key groups"),
    ],
)
def test_bounds_of_a_coordinator_that_cannot_work_are_refused(given: dict[str, int], said: str) -> None:
    """Also those that no variable sets."""
    with pytest.raises(ValueError, match=said):
        CoordinatorSettings(**given)  # type: ignore[arg-type]


def test_the_defaults_of_a_coordinator_agree() -> None:
    """With workers' and the brokers'; another service's settings beside its own are no error."""
    found = coordinator_settings(_process({"retires_workers": True, "scratch": "/x"}, RuntimeSettings(), {}))
    assert found == CoordinatorSettings(retires_workers=True)
