"""`tidemark redrive` in a simulation: a process of a user's, that may die at each of its writes and is then begun again."""

import asyncio
import json
from collections import Counter
from contextvars import copy_context
from datetime import datetime
from functools import partial
from typing import Any, Final

from tests.harness.sealing import sealed
from tests.harness.simulation.drawing import LETTERS, NAME
from tests.harness.simulation.faults import Book, LinkFaults
from tests.harness.simulation.loop import LIFE, Life
from tests.harness.simulation.ports import SimBlobs, SimLog, SimStore
from tests.harness.simulation.results import Key, Row, windows_as_ran, windows_with_all
from tests.harness.simulation.world import SimWorld
from tidemark.services.audit.corrections import CannotRedrive
from tidemark.services.audit.history import AuditFailed
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.redrive import redrive
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.commits import StoreUnavailable
from tidemark.shared.ports.log import LogError

CORRECTIONS: Final = f"{LETTERS}.corrections"
TRIES: Final = 40


class _Command:
    """One run of the command."""

    def __init__(self, world: SimWorld, number: int) -> None:
        self.book: Book = world.book
        self._world = world
        self.place = "user-0"
        self.life = Life(self.place)
        self.ended = asyncio.Event()
        faults = partial(LinkFaults, self.book, self.life)
        self._log = SimLog(self, world.broker, faults("log", world.weather), world.watcher)
        store = SimStore(self, world.store, faults("store", world.weather), world.watcher)
        authority = f"{self.book.seed}-user-{number}"
        blobs = SimBlobs(self, world.objects, faults("blobs", world.weather), world.watcher, authority)
        self._installed = AuditedInstallation(store, blobs, sealed(self._log), {})
        self.said = ""

    @property
    def service(self) -> str:
        """As names of writes begin."""
        return "user"

    @property
    def dead(self) -> bool:
        """It was killed."""
        return self.life.dead

    def die(self, how: str, *, arrives: bool) -> None:
        """See `Mortal.die`."""
        if not self.life.dead:
            self._world.say(f"redrive dies {how}")
            self._log.perish(arrives=arrives)
            self.life.die()
            self.said = how
            self._world.beside(self._over())

    async def _over(self) -> None:
        self.ended.set()

    async def run(self) -> str:
        """What stood in the way; "" if it was done."""
        context = copy_context()
        context.run(LIFE.set, self.life)
        task = asyncio.get_running_loop().create_task(self._run(), context=context)
        await self.ended.wait()
        del task
        return self.said

    async def _run(self) -> None:
        try:
            done = await redrive(NAME, self._installed)
            self._world.say(f"redrive: {done.letters} letters, {done.corrections} corrections")
        except (CannotRedrive, AuditFailed, LogError, BlobError, StoreUnavailable) as error:
            self.said = f"{type(error).__name__}: {error}"
        self.ended.set()


async def redriven(world: SimWorld, tries: int = TRIES) -> str:
    """Repeat the command until it is done; "" or what stood in the way the last time."""
    said = ""
    for number in range(tries):
        said = await _Command(world, number).run()
        if not said:
            break
        world.say(f"redrive: {said}")
        await world.clock.sleep_ms(300)
    return said


def wrong_corrections(world: SimWorld) -> list[str]:
    """What the corrections, one after the other, do not make of the windows as they came out."""
    scenario = world.scenario
    windows = windows_as_ran(scenario)
    said = []
    if CORRECTIONS in world.broker.topics():
        for record in world.broker.dump(CORRECTIONS)[0]:
            found = json.loads(record.value or b"")
            bounds = found["window"]
            key: Key = (found["_id"], _ms(bounds["start"]), _ms(bounds["end"]))
            old, new = (None if found[side] is None else _values(found[side]) for side in ("old", "new"))
            if windows.get(key) != old:
                said.append(
                    f"correction {record.offset} of {key} says that {old} was there, and {windows.get(key)} was"
                )
            if new is None:
                windows.pop(key, None)
            else:
                windows[key] = new
    wanted, got = Counter(windows_with_all(scenario).items()), Counter(windows.items())
    for word, left in (("lacking", wanted - got), ("too many", got - wanted)):
        if left:
            said.append(f"windows after all corrections: {left.total()} {word}: {sorted(map(str, left))[:3]}")
    return said


def _ms(date: dict[str, Any]) -> int:
    return round(datetime.fromisoformat(date["$date"]).timestamp() * 1000)


def _values(row: dict[str, Any]) -> Row:
    return (row["n"], row["s"], tuple(row["vs"]))
