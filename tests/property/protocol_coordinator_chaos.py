"""What two coordinators, workers and users may do next, chosen by a chooser: hypothesis' or a seeded one. And how it must end."""

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from tests.unit.protocol_coordinator_support import DOCUMENT, Broken, Fate, Node
from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.checkpoint import CommitRow
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ForgetCheckpoint,
    KeepCheckpoint,
    ModifyProcessor,
    Request,
    StartProcessor,
    StopProcessor,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.machine import CoordinatorMachine
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

T = TypeVar("T")


class Choose(Protocol):
    """Picks one of several."""

    def __call__(self, among: Sequence[T], /) -> T: ...


NAMES = (ProcessorName("flights"), ProcessorName("trains"))
KEPT = ("then", "later")
"""Names of checkpoints."""
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
    retires_workers=True,
    retire_idle_ms=2_000,
    failures_max=6,
)
FATES: tuple[Fate, ...] = (*(("done",) * 10), "lost", "ambiguous-done", "ambiguous-lost", "away")
LANES = (
    (do.StoreCreate, do.StoreUpdate, do.StoreNewGeneration, do.StoreCommit, do.StoreDrop, do.StoreForget),
    (do.AppendMirror,),
    (do.Publish, do.PublishStatus, do.RetractStatus, do.Answer),
)
"""What a driver carries out one behind the other; all else goes beside."""
_PARALLELISM: tuple[dict[str, int], ...] = ({}, {"sink": 2}, {"sink": 3, "operator": 2}, {"source": 2})
_WORKERS_MAX = 8


class Chaos:
    """A world and what may happen in it."""

    def __init__(self, machine: type[CoordinatorMachine] = CoordinatorMachine) -> None:
        """Nobody leads yet."""
        self.world = World(SETTINGS, nodes=2, machine=machine)
        self.requests = 0

    def begin(self, parallelism: dict[str, int]) -> None:
        """A leader, workers, and a processor that runs and has committed."""
        self.world.lead(self.world.nodes[0])
        self.world.standard_workers()
        self.world.request(CreateProcessor("r-create", NAMES[0], DOCUMENT, parallelism))
        self.world.settle()
        self.world.request(StartProcessor("r-start", NAMES[0]))
        self.world.settle()
        self.world.pass_ms(700)

    # --- what goes on ----------------------------------------------------------------------------------------------------

    def carry_out(self, choose: Choose, times: int) -> None:
        """A coordinator's commands are carried out, each lane in order, the last one with some fate."""
        node = choose(self.world.nodes)
        for i in range(times):
            ready = _ready(node)
            if not ready:
                return
            command = choose(ready)
            node.todo.remove(command)
            self.world.carry_out(node, command, choose(FATES) if i == times - 1 else "done")

    def carry_out_late(self, choose: Choose) -> None:
        """Something that an earlier term had handed over happens now."""
        node = choose(self.world.nodes)
        if node.leftover:
            self.world.carry_out_leftover(node)

    def hear(self, choose: Choose, times: int) -> None:
        """A coordinator reads reports."""
        node = choose(self.world.nodes)
        for _ in range(min(times, len(node.inbox))):
            self.world.give(node, ev.ReportReceived(self.world.now_ms, node.inbox.popleft()))

    def obey(self, choose: Choose, times: int) -> None:
        """A worker reads commands."""
        workers = [w for w in self.world.workers.values() if w.alive and w.inbox]
        if workers:
            worker = choose(workers)
            for _ in range(min(times, len(worker.inbox))):
                self.world.obey(worker, worker.inbox.popleft())

    def release(self, choose: Choose) -> None:
        """Sinks release."""
        worker = choose(list(self.world.workers.values()))
        if worker.alive:
            self.world.release_once(worker)

    def time_passes(self, choose: Choose) -> None:
        """The clock goes on; perhaps nobody's heart beats meanwhile."""
        self.world.now_ms += choose([50, 300, 900])
        if choose([True, True, False]):
            self.world.beat_all()
        self.world.tick()

    def well(self, choose: Choose, times: int) -> None:
        """For a while all but everything works, and somebody leads. Sinks' targets may be away."""
        if self.world.leader is None:
            self.world.lead(choose(self.world.nodes))
        self.world.releasing = choose([True, True, False])
        rarely = choose([True, False])
        self.world.fate = lambda _: choose(FATES) if rarely and choose(range(8)) == 0 else "done"
        for _ in range(times):
            self.world.now_ms += 200
            self.world.beat_all()
            self.world.tick()
            self.world.settle()
        self.world.fate = lambda _: "done"
        self.world.releasing = True

    # --- what goes wrong -------------------------------------------------------------------------------------------------

    def trouble(self, choose: Choose) -> None:
        """Something breaks."""
        kinds = (
            self._task_fails,
            self._worker_dies,
            self._worker_falls_silent,
            self._worker_comes,
            self._another_leads,
            self._coordinator_dies,
            self._lease_lost,
        )
        choose(kinds)(choose)

    def _task_fails(self, choose: Choose) -> None:
        workers = [w for w in self.world.workers.values() if w.alive and not w.mute]
        tasks = sorted({(t.vertex, t.index) for w in workers for _, t in w.tasks})
        if tasks:
            vertex, index = choose(tasks)
            self.world.fail(vertex, index, outage=choose([True, False]))

    def _worker_dies(self, choose: Choose) -> None:
        worker = choose(list(self.world.workers.values()))
        worker.alive = False
        worker.tasks.clear()
        if choose([True, True, False]):
            self.world.worker(worker.place, worker.service)

    def _worker_falls_silent(self, choose: Choose) -> None:
        """It goes on, but nothing that it says arrives; or it is heard again."""
        worker = choose(list(self.world.workers.values()))
        worker.mute = not worker.mute

    def _worker_comes(self, choose: Choose) -> None:
        places = {w.place for w in self.world.workers.values()}
        if len(places) < _WORKERS_MAX:
            service = choose(["source", "operator", "sink"])
            self.world.worker(f"{service}-{len(places)}", service)

    def _another_leads(self, choose: Choose) -> None:
        """A coordinator takes leadership; the other does not know."""
        self.world.lead(choose(self.world.nodes))

    def _coordinator_dies(self, choose: Choose) -> None:
        """Between any two things that it does; a new process stands by."""
        self.world.crash_node(choose(self.world.nodes))

    def _lease_lost(self, choose: Choose) -> None:
        node = choose(self.world.nodes)
        self.world.give(node, ev.LeadershipLost(self.world.now_ms))
        if self.world.leader is node:
            self.world.leader = None

    # --- what users want -------------------------------------------------------------------------------------------------

    def user(self, choose: Choose) -> None:
        """Somebody asks for something."""
        self.requests += 1
        request = f"r-{self.requests}"
        name = choose((NAMES[0], *NAMES))
        match choose(
            ["start", "start", "start", "stop", "modify", "modify", "create", "drop", "keep", "forget", "back"]
        ):
            case "start":
                wish: Request = StartProcessor(request, name, choose([True, True, False]))
            case "stop":
                wish = StopProcessor(request, name, choose([True, False, False]))
            case "modify":
                document = choose([None, DOCUMENT, TWO_SINKS, "bad"])
                resume = choose([True, True, True, False])
                wish = ModifyProcessor(request, name, document, choose(_PARALLELISM), resume)
            case "create":
                wish = CreateProcessor(request, name, DOCUMENT)
            case "keep":
                wish = KeepCheckpoint(request, name, choose(KEPT))
            case "forget":
                wish = ForgetCheckpoint(request, name, choose(KEPT))
            case "back":
                self.world.request(StopProcessor(f"{request}-stop", name))
                self.well(choose, choose([0, 10, 20]))
                wish = StartProcessor(request, name, checkpoint=choose(KEPT))
            case _:
                wish = DropProcessor(request, NAMES[1])
        self.world.request(wish)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Once all is well every processor comes to what its users asked for, and nothing committed stays unreleased."""
        world = self.world
        for worker in world.workers.values():
            worker.mute = False
        for service in ("source", "operator", "sink"):
            world.worker(f"{service}-0", service)
        for node in world.nodes:
            world.crash_node(node)
        world.lead(world.nodes[1])
        for _ in range(100):
            world.now_ms += 200
            world.beat_all()
            world.tick()
            world.settle()
        accepted = {
            "stopped": ("STOPPED", "CREATED", "FINISHED"),
            "drained": ("FINISHED", "STOPPED"),
            "running": ("RUNNING", "FINISHED"),
        }
        for row in list(world.store.rows.values()):
            if row.state != "FAILED" and row.state not in accepted[row.desired]:
                raise Broken(f"E2: {row.name} was to be {row.desired} and is {row.state}: {world.status[row.name]}")
        self._all_released()

    def _all_released(self) -> None:
        """R3, E2: of earlier lives all, of the present one all but what is on its way or waits for a start."""
        rows = {r.job: r for r in self.world.store.rows.values()}
        for job, commits in self.world.store.history.items():
            if job in self.world.dropped:
                continue
            on_its_way = 0 if job not in rows else 3 if rows[job].state in ("RUNNING", "FINISHED") else len(commits)
            for commit in commits[: len(commits) - on_its_way]:
                self._released(commit)

    def _released(self, commit: CommitRow) -> None:
        for h in commit.tasks:
            identity = (commit.job, h.vertex, h.index)
            if h.vertex in ("emit", "audit") and commit.epoch not in self.world.judge.outputs.get(identity, []):
                raise Broken(f"R3: {identity} never released {commit.epoch}")


def _ready(node: Node) -> list[do.CoordinatorCommand]:
    ready: list[do.CoordinatorCommand] = []
    busy = set()
    for command in node.todo:
        lane = next((i for i, kinds in enumerate(LANES) if isinstance(command, kinds)), None)
        if lane is None or lane not in busy:
            ready.append(command)
        busy.add(lane)
    return ready


def simulate(seed: int, steps: int, chaos: Chaos | None = None) -> Chaos:
    """A long run from a seed; a failing seed replays alone."""
    random = Random(seed)

    def choose(among: Sequence[T], /) -> T:
        return among[random.randrange(len(among))]

    chaos = chaos or Chaos()
    chaos.begin(choose([{}, {"sink": 2}, {"operator": 2}]))
    for _ in range(steps):
        turn = random.random()
        if turn < 0.03:
            chaos.trouble(choose)
        elif turn < 0.06:
            chaos.user(choose)
        elif turn < 0.08:
            chaos.well(choose, random.randrange(1, 12))
        elif turn < 0.25:
            chaos.time_passes(choose)
        elif turn < 0.33:
            chaos.release(choose)
        elif turn < 0.35:
            chaos.carry_out_late(choose)
        elif turn < 0.6:
            chaos.carry_out(choose, random.randrange(1, 7))
        elif turn < 0.8:
            chaos.hear(choose, random.randrange(1, 9))
        else:
            chaos.obey(choose, random.randrange(1, 9))
    chaos.end()
    return chaos
