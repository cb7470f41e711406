"""When the number of tasks follows the load: behind and busy for a while, or calm for long, within the document's bounds."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec import structs

from tests.unit.test_control_stats import STATUS, beat
from tidemark.services.control.audit import Audit
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.scaling import Scaling
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.documents.model import TaskBounds
from tidemark.shared.model.ids import Generation, Place, VertexId, WorkerIncarnation
from tidemark.shared.model.messages import Heartbeat, ProcessorStatus
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.topics import Topics

SETTINGS = ControlSettings(scale_after_ms=12_000, scale_up_ms=5_000, scale_down_ms=60_000, scale_lag_ms=2_000)
BOUNDS = {"operator": TaskBounds(1, 4)}


@dataclass
class Stand:
    """A processor with operator tasks whose load the test sets, looked at once a second."""

    world: VirtualWorld
    scaling: Scaling
    status: ProcessorStatus
    busy_ms: float = 0

    def restart(self, tasks: int) -> None:
        """A generation with so many tasks."""
        places = tuple((VertexId("compute-1"), index, Place("operator-0")) for index in range(tasks))
        generation = Generation(self.status.generation + 1)
        self.status = structs.replace(self.status, generation=generation, parallelism={"operator": tasks}, tasks=places)
        self.busy_ms = 0

    async def looked(self, seconds: int, *, busy: float, lag_ms: int = 0) -> list[dict[str, int]]:
        """What is wanted at each look. busy: of each task's time."""
        found = []
        model = self.scaling.model
        for _ in range(seconds):
            await self.world.clock.sleep_ms(1_000)
            self.busy_ms += 1_000 * busy
            told = beat("compute-1", 0, busyMs=int(self.busy_ms), lagMs=lag_ms)
            beats = tuple(
                structs.replace(told, index=index, generation=self.status.generation)
                for _, index, _ in self.status.tasks
            )
            worker = Heartbeat(WorkerIncarnation("w"), Place("operator-0"), "operator", 1, 1, "h", beats)
            model.hear(worker)
            clock = self.world.clock
            model.history.look(self.status, model.tasks(self.status), clock.now_ms(), clock.monotonic_ms())
            found.append(self.scaling.wanted(self.status, BOUNDS))
        return found


def standing(story: Callable[[Stand], object]) -> None:
    async def main(world: VirtualWorld) -> None:
        log = MemoryLog(MemoryBroker(world.clock))
        client = Client(log, Topics(), world.clock, lambda: "u")
        model = ReadModel(log, Topics(), world.clock, SETTINGS)
        scaling = Scaling(model, client, world.clock, world.executor, SETTINGS, Audit(world.clock))
        services = {VertexId("source-1"): "source", VertexId("compute-1"): "operator"}
        stand = Stand(world, scaling, structs.replace(STATUS, services=services))
        stand.restart(1)
        await story(stand)  # type: ignore[misc]

    run_virtual(main)


def test_tasks_double_while_they_are_behind_and_busy() -> None:
    """After a while, not before; again after the next generation has run for a while; no more than the bound."""

    async def story(stand: Stand) -> None:
        looks = await stand.looked(20, busy=0.95, lag_ms=9_000)
        assert (looks[:16], looks[18:]) == ([{}] * 16, [{"operator": 2}] * 2)
        stand.restart(2)
        assert {"operator": 4} not in await stand.looked(12, busy=0.95, lag_ms=9_000)
        assert (await stand.looked(8, busy=0.95, lag_ms=9_000))[-1] == {"operator": 4}
        stand.restart(4)
        assert await stand.looked(60, busy=1.0, lag_ms=9_000) == [{}] * 60

    standing(story)


@pytest.mark.parametrize(("busy", "lag_ms"), [(0.95, 500), (0.3, 60_000), (0.7, 0)])
def test_tasks_stay_where_more_would_not_help(busy: float, lag_ms: int) -> None:
    """Busy and in time; behind, but something else takes the time, such as one hot key; or in between."""

    async def story(stand: Stand) -> None:
        stand.restart(2)
        assert await stand.looked(100, busy=busy, lag_ms=lag_ms) == [{}] * 100

    standing(story)


def test_tasks_become_fewer_once_they_have_been_calm_for_long() -> None:
    """A step at a time, and never so few that they would be busy; one busy look begins the time anew."""

    async def story(stand: Stand) -> None:
        stand.restart(4)
        assert await stand.looked(60, busy=0.05) == [{}] * 60
        assert await stand.looked(20, busy=0.9) == [{}] * 20
        looks = await stand.looked(75, busy=0.05)
        assert (looks[:50], looks[-1]) == ([{}] * 50, {"operator": 2})
        stand.restart(4)
        assert (await stand.looked(80, busy=0.3))[-1] == {"operator": 3}
        stand.restart(2)
        assert (await stand.looked(80, busy=0.2))[-1] == {"operator": 1}
        stand.restart(1)
        assert await stand.looked(80, busy=0.0) == [{}] * 80

    standing(story)


def test_nothing_is_wanted_while_tasks_are_silent() -> None:
    """A worker that is away says neither that it is busy nor that it is calm."""

    async def story(stand: Stand) -> None:
        await stand.looked(17, busy=0.95, lag_ms=9_000)
        stand.scaling.model.hear(Heartbeat(WorkerIncarnation("w"), Place("operator-0"), "operator", 1, 1, "h"))
        assert stand.scaling.wanted(stand.status, BOUNDS) == {}

    standing(story)


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"operator": {"min": 3, "max": 2}}, "min is at most max, found 3 and 2"),
        ({"operator": {"min": 1}}, "operator needs max"),
        ({"operator": {"max": 0}}, "options.tasks.operator.max"),
        ({"gateway": {"max": 2}}, "unknown option gateway"),
    ],
)
def test_bounds_are_checked_with_the_document(tasks: dict[str, object], said: str) -> None:
    """At their place; all services whose numbers of tasks may be asked for have some."""
    pipeline = [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "out", "format": "json"}}]
    with pytest.raises(InvalidDocument, match=said):
        parse({"pipeline": pipeline, "options": {"tasks": tasks}})
    tasks = {service: {"max": 3} for service in ("source", "operator", "spark", "sink")}
    found = parse({"pipeline": pipeline, "options": {"tasks": tasks}}).options.tasks
    assert found == dict.fromkeys(tasks, TaskBounds(1, 3))
