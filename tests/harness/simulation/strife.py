"""Lets the events of a plan befall a world."""

from collections.abc import Sequence

from tests.harness.simulation.faults import Link
from tests.harness.simulation.orders import User
from tests.harness.simulation.plan import Event, Plan
from tests.harness.simulation.process import SimProcess
from tests.harness.simulation.world import SimWorld

JUMPS_MS = (-3_600_000, -10_000, 10_000, 3_600_000)


class Strife:
    """The plan's hand in a world."""

    def __init__(self, world: SimWorld, user: User, plan: Plan) -> None:
        self._world = world
        self._user = user
        self._plan = plan

    async def go_on(self) -> None:
        """Each event at its time; then all faults end."""
        world = self._world
        began_ms = world.now_ms()
        for event in self._plan.events:
            await world.clock.sleep_ms(max(0, began_ms + event.at_ms - world.now_ms()))
            if world.book.strikes_now(event.id):
                self._befall(event)
        await world.clock.sleep_ms(max(0, began_ms + self._plan.calm_ms - world.now_ms()))
        world.calm()

    def _befall(self, event: Event) -> None:
        world, process = self._world, self._world.processes[event.place]
        match event.kind:
            case "crash":
                process.die("by a crash", arrives=event.choice % 2 == 0)
            case "crash several":
                for other in self._from(event)[: 1 + event.choice % 3]:
                    other.die("by a crash of several", arrives=event.choice % 2 == 0)
            case "freeze":
                world.beside(self._freeze(process, event.length_ms))
            case "cut out" | "cut in" | "cut off":
                links: Sequence[Link] = (("log",), ("log", "store", "blobs", "target"))[event.choice % 2]
                world.beside(self._cut([process], links, event.kind, event.length_ms))
            case "broker away" | "leader change":
                length_ms = 150 if event.kind == "leader change" else event.length_ms
                world.beside(self._cut(world.alive(), ("log",), "cut out", length_ms))
            case "store away" | "blobs away" | "target away":
                link: Link = "store" if "store" in event.kind else "blobs" if "blobs" in event.kind else "target"
                world.beside(self._cut(world.alive(), (link,), "cut out", event.length_ms))
            case "store falls back":
                if event.choice % 3:  # with those who knew better
                    for other in world.alive():
                        if other.service == "coordinator":
                            other.die("with the store", arrives=event.choice % 2 == 0)
                world.copies.fall_back(event.length_ms)
            case "clock jumps":
                process.clock.skew_ms += JUMPS_MS[event.choice % len(JUMPS_MS)]
            case "dies at await":
                process.awaits_left = event.choice
            case order:
                self._user.does(order, event.choice)

    def _from(self, event: Event) -> list[SimProcess]:
        places = list(self._world.processes)
        at = places.index(event.place)
        return [self._world.processes[place] for place in places[at:] + places[:at]]

    async def _freeze(self, process: SimProcess, length_ms: int) -> None:
        process.freeze()
        await self._world.clock.sleep_ms(length_ms)
        process.thaw()

    async def _cut(self, processes: Sequence[SimProcess], links: Sequence[Link], how: str, length_ms: int) -> None:
        """`cut out`: what it asks does not arrive; `cut in`: answers do not; `cut off`: neither is known."""
        for process in processes:
            for link in links:
                faults = process.links[link]
                faults.deaf, faults.away = how == "cut in", how != "cut in"
        await self._world.clock.sleep_ms(length_ms)
        for process in processes:
            for link in links:
                process.links[link].deaf = process.links[link].away = False
