"""Slots and places: existing workers first, spread, a worker wished for when none is free and wished away when empty."""

import random

import pytest

from tests.harness.share import share
from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, StartProcessor, StopProcessor
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.settings import RuntimeSettings

SETTINGS = CoordinatorSettings(retires_workers=True, retire_idle_ms=1_000, spawn_wait_ms=5_000)
SOLO = "read:source"


def solo_world() -> World:
    """A leader and one source worker with four slots."""
    world = World(SETTINGS)
    world.lead()
    world.worker("source-1", "source")
    world.pass_ms(SETTINGS.adopt_wait_ms)
    return world


def start(world: World, number: int, request: str = "") -> None:
    """Create (if need be) and start proc<number>, a processor of one source task."""
    name = ProcessorName(f"proc{number:02}")
    if name not in world.store.rows:
        world.request(CreateProcessor(f"create-{number}", name, SOLO))
        world.settle()
    world.request(StartProcessor(request or f"start-{number}", name))
    supervise(world)


def stop(world: World, number: int) -> None:
    """Stop it."""
    world.request(StopProcessor(f"stop-{number}", ProcessorName(f"proc{number:02}")))
    world.settle()


def supervise(world: World) -> None:
    """What a supervisor does with wishes: start and end processes."""
    world.settle()
    while world.spawns:
        world.spawns.pop()
        number = 1 + max(int(w.place.split("-")[1]) for w in world.workers.values() if w.alive)
        world.worker(f"source-{number}", "source")
        world.settle()
    for place in world.retires:
        for worker in world.workers.values():
            if worker.place == place:
                worker.alive = False
    world.retires.clear()


def place_of(world: World, number: int) -> str:
    """Where proc<number> runs."""
    ((_, _, place),) = world.status[ProcessorName(f"proc{number:02}")].tasks
    return place


def eight_on_two() -> World:
    """proc01 to proc08 run."""
    world = solo_world()
    for number in range(1, 9):
        start(world, number)
    return world


def test_eight_processors_fill_two_workers() -> None:
    """Existing workers first: another is wished for when no slot is free."""
    world = eight_on_two()
    assert [place_of(world, n) for n in range(1, 9)] == ["source-1"] * 4 + ["source-2"] * 4


def test_processors_go_where_the_fewest_are() -> None:
    """Several workers share what comes, in the order of their places; one that comes later catches up."""
    world = solo_world()
    world.worker("source-2", "source")
    world.settle()
    for number in range(1, 5):
        start(world, number)
    assert [place_of(world, n) for n in range(1, 5)] == ["source-1", "source-2"] * 2
    world.worker("source-10", "source")
    world.settle()
    for number in range(5, 8):
        start(world, number)
    assert [place_of(world, n) for n in range(5, 8)] == ["source-10", "source-10", "source-1"]


def test_thirty_processors_share_a_worker_of_a_service() -> None:
    """As a worker offers slots by default: with a process for each four, thirty took nine gigabytes and minutes to start."""
    world = World(SETTINGS)
    world.lead()
    world.worker("source-1", "source", slots=RuntimeSettings().slots)
    world.pass_ms(SETTINGS.adopt_wait_ms)
    for number in range(1, 31):
        start(world, number)
    assert {place_of(world, n) for n in range(1, 31)} == {"source-1"}


def test_the_ninth_makes_a_third_which_goes_when_it_is_empty() -> None:
    """proc09 makes a third worker; stopped, it leaves it empty, and the third goes; with proc03 stopped, proc09 finds room on the first."""
    world = eight_on_two()
    start(world, 9)
    assert place_of(world, 9) == "source-3"
    stop(world, 3)
    stop(world, 9)
    world.pass_ms(2_000)
    assert world.retires == ["source-3"]
    start(world, 9, "start-9-again")
    assert place_of(world, 9) == "source-1"


def test_tasks_of_one_vertex_are_spread() -> None:
    """Over distinct workers where there are several."""
    world = World()
    world.lead()
    for place in ("source-10", "source-2", "source-1"):
        world.worker(place, "source")
    world.pass_ms(SETTINGS.adopt_wait_ms)
    world.request(CreateProcessor("create", ProcessorName("wide"), SOLO, {"source": 3}))
    world.settle()
    world.request(StartProcessor("start", ProcessorName("wide")))
    world.settle()
    assert [t[2] for t in world.status[ProcessorName("wide")].tasks] == ["source-1", "source-2", "source-10"]


def test_a_processor_takes_one_slot_of_a_worker_however_many_tasks_it_has_there() -> None:
    """Slots are counted in processors."""
    world = World(SETTINGS)
    world.lead()
    world.worker("source-1", "source", slots=1)
    world.pass_ms(SETTINGS.adopt_wait_ms)
    world.request(CreateProcessor("create", ProcessorName("wide"), SOLO, {"source": 3}))
    world.settle()
    world.request(StartProcessor("start", ProcessorName("wide")))
    world.settle()
    assert [t[2] for t in world.status[ProcessorName("wide")].tasks] == ["source-1"] * 3


def test_a_wish_is_not_repeated_before_its_time() -> None:
    """One worker is asked for, and again only when none has come for long."""
    world = World(SETTINGS)
    world.lead()
    world.pass_ms(SETTINGS.adopt_wait_ms)
    world.request(CreateProcessor("create", ProcessorName("p"), SOLO))
    world.settle()
    world.request(StartProcessor("start", ProcessorName("p")))
    world.pass_ms(4_000)
    assert world.spawns == ["source"]
    world.pass_ms(2_000)
    assert world.spawns == ["source", "source"]


def test_a_new_leader_wishes_for_nobody_before_workers_could_have_spoken() -> None:
    """Workers that live are heard of within their heartbeat."""
    world = World(SETTINGS)
    world.lead()
    world.request(CreateProcessor("create", ProcessorName("p"), SOLO))
    world.settle()
    world.request(StartProcessor("start", ProcessorName("p")))
    world.pass_ms(SETTINGS.adopt_wait_ms - 200)
    assert world.spawns == []


def test_the_last_worker_of_a_service_stays() -> None:
    """An empty worker is wished away only while others of its service remain."""
    world = solo_world()
    world.pass_ms(5_000)
    assert world.retires == []
    world.worker("source-2", "source")
    world.pass_ms(3_000)
    assert world.retires == ["source-2"]


def test_who_came_first_waits_for_the_other_that_was_wished_for() -> None:
    """A processor that lacks two workers gets both: the first to come is not wished away for hosting nothing meanwhile."""
    world = World(SETTINGS)
    world.lead()
    for service in ("source", "sink"):
        world.worker(f"{service}-1", service, slots=1)
    world.pass_ms(SETTINGS.adopt_wait_ms)
    for number in (1, 2):
        name = ProcessorName(f"p{number}")
        world.request(CreateProcessor(f"create-{number}", name, "read:source emit:sink; read>emit"))
        world.settle()
        world.request(StartProcessor(f"start-{number}", name))
        world.settle()
    assert sorted(world.spawns) == ["sink", "source"]
    world.worker("sink-2", "sink", slots=1)
    world.pass_ms(2 * SETTINGS.retire_idle_ms)
    assert world.retires == []
    world.worker("source-2", "source", slots=1)
    world.settle()
    assert {t[2] for t in world.status[ProcessorName("p2")].tasks} == {"source-2", "sink-2"}


def scale(world: World) -> None:
    """What an autoscaler does with the number: it adds the next place, or ends the last."""
    world.spawns.clear()
    world.retires.clear()
    workers = world.nodes[0].machine.ctx.workers
    there = sorted((w for w in world.workers.values() if w.alive), key=lambda w: int(w.place.split("-")[1]))
    wanted = workers.wanted(world.now_ms).get("source")
    if wanted is None or wanted == len(there):
        return
    if wanted > len(there):
        world.worker(f"source-{len(there)}", "source", slots=2)
        return
    hosting = [known.hosting for known in workers.alive.values() if known.place == there[-1].place]
    assert hosting in ([], [set()]), "one that works is ended"
    there[-1].alive = False


@pytest.mark.parametrize("seed", share(range(10), 3))
def test_an_autoscaler_that_follows_the_number_gives_each_its_place_and_ends_none_that_works(seed: int) -> None:
    """Processors come and go; in the end all that should run do, and without any, one worker is left."""
    rng = random.Random(seed)
    world = World(CoordinatorSettings(retire_idle_ms=1_000, spawn_wait_ms=1_000))
    world.lead()
    assert world.nodes[0].machine.ctx.workers.wanted(world.now_ms) == {}
    world.pass_ms(SETTINGS.adopt_wait_ms)
    running: set[int] = set()
    for step in range(20):
        number = rng.randint(1, 9)
        name = ProcessorName(f"proc{number:02}")
        if number in running:
            running.discard(number)
            world.request(StopProcessor(f"stop-{step}", name))
        else:
            if name not in world.store.rows:
                world.request(CreateProcessor(f"create-{number}", name, SOLO))
                world.settle()
            running.add(number)
            world.request(StartProcessor(f"start-{step}", name))
        for _ in range(rng.choice((1, 5, 20))):
            world.pass_ms(200)
            scale(world)
    for _ in range(60):
        world.pass_ms(500)
        scale(world)
    states = {number: world.status[ProcessorName(f"proc{number:02}")].state for number in running}
    assert states == dict.fromkeys(running, "RUNNING")
    for number in running:
        world.request(StopProcessor(f"last-{number}", ProcessorName(f"proc{number:02}")))
    for _ in range(60):
        world.pass_ms(500)
        scale(world)
    assert [w.place for w in world.workers.values() if w.alive] == ["source-0"]
