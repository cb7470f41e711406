"""Two coordinators, workers, store, mirror and clock act at random; the rules hold after every event, and in the end all goes on.

The judge (`tests.unit.protocol_coordinator_support`) watches what reaches the outside; `invariants.violations` is asked after every event.
"""

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shared.model.ids import ProcessorName
from shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ModifyProcessor,
    StartProcessor,
    StopProcessor,
)
from shared.protocol.coordinator import commands as do
from shared.protocol.coordinator import events as ev
from shared.protocol.coordinator.machine import CoordinatorMachine
from shared.protocol.coordinator.settings import CoordinatorSettings
from tests.unit.protocol_coordinator_support import DOCUMENT, Broken, Fate, Node, World

NAMES = (ProcessorName("flights"), ProcessorName("trains"))
TWO_SINKS = "read:source count:operator emit:sink audit:sink; read>count count>emit count>audit"
SETTINGS = CoordinatorSettings(
    heartbeat_timeout_ms=2_000,
    adopt_wait_ms=1_500,
    checkpoint_interval_ms=300,
    checkpoint_timeout_ms=2_000,
    restore_timeout_ms=3_000,
    backoff_base_ms=100,
    backoff_max_ms=1_000,
    retry_ms=100,
    unreleased_max=2,
    inline_bytes_max=12,
    numbers_block=4,
    stop_release_wait_ms=2_000,
    cleanup_interval_ms=500,
    status_interval_ms=100,
    spawn_wait_ms=1_000,
    retire_idle_ms=2_000,
    failures_max=6,
)
FATES: tuple[Fate, ...] = ("done",) * 12 + ("lost", "ambiguous-done", "ambiguous-lost", "away")  # type: ignore[assignment]
LANES = (
    (do.StoreCreate, do.StoreUpdate, do.StoreNewGeneration, do.StoreCommit, do.StoreDrop, do.StoreForget),
    (do.AppendMirror,),
    (do.Publish, do.PublishStatus, do.RetractStatus, do.Answer),
)
"""What a driver carries out one behind the other; all else goes beside."""


class Coordination(RuleBasedStateMachine):
    """The world at random."""

    machine_type: type[CoordinatorMachine] = CoordinatorMachine

    def __init__(self) -> None:
        super().__init__()
        self.world = World(SETTINGS, nodes=2, machine=self.machine_type)
        self.requests = 0

    @initialize(parallelism=st.sampled_from([{}, {"sink": 2}, {"operator": 2}]))
    def begin(self, parallelism: dict[str, int]) -> None:
        """A leader, workers, one processor that has been asked to run."""
        self.world.lead(self.world.nodes[0])
        self.world.standard_workers()
        self.world.request(CreateProcessor("r-create", NAMES[0], DOCUMENT, parallelism))
        self.world.settle()
        self.world.request(StartProcessor("r-start", NAMES[0]))
        self.world.settle()

    # --- what goes on ----------------------------------------------------------------------------------------------------

    def _ready(self, node: Node) -> list[do.CoordinatorCommand]:
        ready: list[do.CoordinatorCommand] = []
        busy = set()
        for command in node.todo:
            lane = next((i for i, kinds in enumerate(LANES) if isinstance(command, kinds)), None)
            if lane is None or lane not in busy:
                ready.append(command)
            busy.add(lane)
        return ready

    @rule(which=st.integers(0, 1), choice=st.integers(0, 9), fate=st.sampled_from(FATES), times=st.integers(1, 6))
    def carry_out(self, which: int, choice: int, fate: Fate, times: int) -> None:
        """A coordinator's commands are carried out, each lane in order, the last one with this fate."""
        node = self.world.nodes[which]
        for i in range(times):
            ready = self._ready(node)
            if not ready:
                return
            command = ready[choice % len(ready)]
            node.todo.remove(command)
            self.world.carry_out(node, command, fate if i == times - 1 else "done")

    @rule(which=st.integers(0, 1))
    def carry_out_late(self, which: int) -> None:
        """Something that an earlier term had handed over happens now."""
        if self.world.nodes[which].leftover:
            self.world.carry_out_leftover(self.world.nodes[which])

    @rule(which=st.integers(0, 1), times=st.integers(1, 8))
    def hear(self, which: int, times: int) -> None:
        """A coordinator reads reports."""
        node = self.world.nodes[which]
        for _ in range(min(times, len(node.inbox))):
            self.world.give(node, ev.ReportReceived(self.world.now_ms, node.inbox.popleft()))

    @rule(data=st.data(), times=st.integers(1, 8))
    def obey(self, data: Any, times: int) -> None:
        """A worker reads commands."""
        workers = [w for w in self.world.workers.values() if w.alive and w.inbox]
        if workers:
            worker = data.draw(st.sampled_from(workers))
            for _ in range(min(times, len(worker.inbox))):
                self.world.obey(worker, worker.inbox.popleft())

    @rule()
    def release(self) -> None:
        """Sinks release."""
        for worker in self.world.workers.values():
            if worker.alive:
                self.world.release_once(worker)

    @rule(step_ms=st.sampled_from([50, 300, 900]), beats=st.booleans())
    def time_passes(self, step_ms: int, beats: bool) -> None:
        """The clock goes on; perhaps nobody's heart beats meanwhile."""
        self.world.now_ms += step_ms
        if beats:
            self.world.beat_all()
        self.world.tick()

    @rule(times=st.integers(1, 5))
    def all_is_well(self, times: int) -> None:
        """For a while everything works."""
        if any(n.machine.role.value == "leads" for n in self.world.nodes):
            for _ in range(times):
                self.world.now_ms += 200
                self.world.beat_all()
                self.world.tick()
                self.world.settle()

    # --- what goes wrong -------------------------------------------------------------------------------------------------

    @rule(data=st.data(), outage=st.booleans())
    def task_fails(self, data: Any, outage: bool) -> None:
        """A task stops with an error."""
        tasks = [(t.vertex, t.index) for w in self.world.workers.values() if w.alive and not w.mute for _, t in w.tasks]
        if tasks:
            vertex, index = data.draw(st.sampled_from(sorted(tasks)))
            self.world.fail(vertex, index, outage=outage)

    @rule(data=st.data(), again=st.booleans())
    def worker_dies(self, data: Any, again: bool) -> None:
        """A worker's process dies, and perhaps another starts at its place."""
        worker = data.draw(st.sampled_from(list(self.world.workers.values())))
        worker.alive = False
        worker.tasks.clear()
        if again:
            self.world.worker(worker.place, worker.service)

    @rule(data=st.data())
    def worker_falls_silent(self, data: Any) -> None:
        """A worker goes on, but nothing that it says arrives; or it is heard again."""
        worker = data.draw(st.sampled_from(list(self.world.workers.values())))
        worker.mute = not worker.mute

    @rule(service=st.sampled_from(["source", "operator", "sink"]))
    def worker_comes(self, service: str) -> None:
        """One more worker."""
        places = {w.place for w in self.world.workers.values()}
        if len(places) < 8:
            self.world.worker(f"{service}-{len(places)}", service)

    @rule(which=st.integers(0, 1))
    def another_leads(self, which: int) -> None:
        """A coordinator takes leadership; the other does not know."""
        self.world.lead(self.world.nodes[which])

    @precondition(lambda self: any(n.wants_lead for n in self.world.nodes))
    @rule()
    def leads_anew(self) -> None:
        """One that asked for leadership gets it."""
        self.world.lead(next(n for n in self.world.nodes if n.wants_lead))

    @rule(which=st.integers(0, 1))
    def coordinator_dies(self, which: int) -> None:
        """The process dies between any two things that it does, and a new one stands by."""
        self.world.crash_node(self.world.nodes[which])

    @rule(which=st.integers(0, 1))
    def lease_lost(self, which: int) -> None:
        """A coordinator learns that it leads no more."""
        self.world.give(self.world.nodes[which], ev.LeadershipLost(self.world.now_ms))

    # --- what users want -------------------------------------------------------------------------------------------------

    def _id(self) -> str:
        self.requests += 1
        return f"r-{self.requests}"

    @rule(name=st.sampled_from(NAMES), resume=st.booleans())
    def start(self, name: ProcessorName, resume: bool) -> None:
        """Start a processor, perhaps without its state."""
        self.world.request(StartProcessor(self._id(), name, resume))

    @rule(name=st.sampled_from(NAMES), drain=st.booleans())
    def stop(self, name: ProcessorName, drain: bool) -> None:
        """Stop it, or drain it."""
        self.world.request(StopProcessor(self._id(), name, drain))

    @rule(
        name=st.sampled_from(NAMES),
        document=st.sampled_from([None, DOCUMENT, TWO_SINKS, "bad"]),
        parallelism=st.sampled_from([{}, {"sink": 2}, {"sink": 3, "operator": 2}, {"source": 2}]),
        resume=st.sampled_from([True, True, True, False]),
    )
    def modify(self, name: ProcessorName, document: str | None, parallelism: dict[str, int], resume: bool) -> None:
        """Change its document or its task counts."""
        self.world.request(ModifyProcessor(self._id(), name, document, parallelism, resume))

    @rule(name=st.sampled_from(NAMES))
    def create(self, name: ProcessorName) -> None:
        """Create a processor, which may exist."""
        self.world.request(CreateProcessor(self._id(), name, DOCUMENT))

    @rule(name=st.just(NAMES[1]))
    def drop(self, name: ProcessorName) -> None:
        """Drop the second processor."""
        self.world.request(DropProcessor(self._id(), name))

    # --- the end ---------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once all is well again every processor comes to what its users asked for, and nothing committed stays unreleased."""
        world = self.world
        if not world.store.rows:
            return
        for worker in world.workers.values():
            worker.mute = False
        for service in ("source", "operator", "sink"):
            world.worker(f"{service}-0", service)
        for node in world.nodes:
            world.crash_node(node)
        world.lead(world.nodes[1])
        for _ in range(150):
            world.now_ms += 200
            world.beat_all()
            world.tick()
            world.settle()
        for row in list(world.store.rows.values()):
            if row.state == "FAILED":
                continue
            if row.desired == "stopped" and row.state not in ("STOPPED", "CREATED", "FINISHED"):
                raise Broken(f"E2: {row.name} was to stop and is {row.state}")
            if row.desired == "drained" and row.state not in ("FINISHED", "STOPPED"):
                raise Broken(f"E2: {row.name} was to drain and is {row.state}")
            if row.desired == "running" and row.state not in ("RUNNING", "FINISHED"):
                raise Broken(f"R1: {row.name} was to run and is {row.state}: {world.status[row.name]}")
            if row.state in ("RUNNING", "FINISHED"):
                self._all_released(row.job)

    def _all_released(self, job: str) -> None:
        for commit in self.world.store.history.get(job, [])[:-3]:  # type: ignore[call-overload]
            for h in commit.tasks:
                identity = (commit.job, h.vertex, h.index)
                if h.vertex in ("emit", "audit") and commit.epoch not in self.world.judge.outputs.get(identity, []):
                    raise Broken(f"R3: {identity} never released {commit.epoch}")


Coordination.TestCase.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCoordination = Coordination.TestCase
TestCoordination.__doc__ = "No interleaving of two coordinators, workers, store, mirror, clock and users breaks a rule."
