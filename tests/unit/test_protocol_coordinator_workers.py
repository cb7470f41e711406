"""Slots and places: existing workers first, spread, a worker wished for when none is free and wished away when empty."""

from tests.unit.protocol_coordinator_world import World
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import CreateProcessor, StartProcessor, StopProcessor
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

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
    """Existing workers first, in the order of their places."""
    world = eight_on_two()
    assert [place_of(world, n) for n in range(1, 9)] == ["source-1"] * 4 + ["source-2"] * 4


def test_the_ninth_makes_a_third_and_goes_back_when_a_slot_is_free() -> None:
    """proc09 makes a third worker; with proc03 stopped, restarting proc09 moves it to the first, and the third goes."""
    world = eight_on_two()
    start(world, 9)
    assert place_of(world, 9) == "source-3"
    stop(world, 3)
    stop(world, 9)
    start(world, 9, "start-9-again")
    assert place_of(world, 9) == "source-1"
    world.pass_ms(2_000)
    assert world.retires == ["source-3"]


def test_a_tenth_started_in_between_takes_the_free_slot() -> None:
    """proc10 takes proc03's slot; proc09 stays where it was."""
    world = eight_on_two()
    start(world, 9)
    stop(world, 3)
    start(world, 10)
    assert place_of(world, 10) == "source-1"
    assert place_of(world, 9) == "source-3"


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
