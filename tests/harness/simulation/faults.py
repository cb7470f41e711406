"""What goes wrong in a simulation, so that it can be told, counted, repeated and left out.

Each fault has an id. What strikes by chance (a refused call, a lost answer, a delay) is drawn from the seed, the process, the operation and
how many of them there were, not from a stream that all share: leaving one out leaves the others where they are, so that a failing seed's
faults can be shrunk.
"""

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from tests.harness.simulation.loop import Life
from tidemark.shared.adapters.faults import Fault, FaultRates, Faults, Operation

Side = Literal["before", "after"]
Link = Literal["log", "store", "blobs", "target"]
LINKS: Final[tuple[Link, ...]] = ("log", "store", "blobs", "target")


@dataclass(frozen=True, slots=True)
class Weather:
    """How often something strikes by chance, of each call of a link: 0 to 1; and how long things take."""

    refused: float = 0.0
    lost: float = 0.0
    slow: float = 0.0
    slow_ms_max: int = 0
    turns_max: int = 1
    blocking_slow: float = 0.0
    """Of work on threads."""
    odd_blobs: float = 0.0
    """A blob that is not there yet, has other bytes, or is not listed yet."""


CALM: Final = Weather()


@dataclass(frozen=True, slots=True)
class Strike:
    """A crash of whoever comes to a durable write for the `nth` time (from 1) from a time on: before it, or after it and unheard."""

    write: str
    side: Side
    nth: int
    from_ms: int = 0

    @property
    def id(self) -> str:
        return f"crash {self.side} {self.write} #{self.nth} from {self.from_ms} ms"


@dataclass(slots=True)
class Book:
    """What was drawn, what struck, and what durable writes there were."""

    seed: int
    left_out: Container[str] = ()
    """Ids of faults that do not strike: for shrinking."""
    strikes: list[Strike] = field(default_factory=list)
    struck: list[str] = field(default_factory=list)
    writes: Counter[str] = field(default_factory=Counter)
    crashed: Counter[tuple[str, Side]] = field(default_factory=Counter)
    say: Callable[[str], None] = lambda _: None
    lull: Callable[[], bool] = lambda: False
    """Nothing strikes by chance now."""
    asleep: bool = False
    """Nothing strikes yet."""
    over: bool = False
    """Faults have ended, but for deaths at durable writes that only come at the end."""
    now_ms: Callable[[], int] = lambda: 0
    _met: Counter[Strike] = field(default_factory=Counter)
    _spared: dict[str, int] = field(default_factory=dict)
    """How many more times each thing that strikes by chance may come to pass before it does."""
    _chances: Counter[str] = field(default_factory=Counter)

    def _spared_for(self, what: str, rate: float) -> int:
        """How many times it comes to pass until it strikes: depends on the seed and on how often it has struck, and on nothing else."""
        self._chances[what] += 1
        text = f"{self.seed}/{what}/{self._chances[what]}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest()) / (1 << 56)
        return math.floor(math.log(1 - number) / math.log(1 - rate))

    def strikes_now(self, fault: str) -> bool:
        """Whether a fault that was drawn happens; it is written down if so."""
        if self.over or fault in self.left_out:
            return False
        return self._write_down(fault)

    def _write_down(self, fault: str) -> bool:
        self.struck.append(fault)
        self.say(f"fault: {fault}")
        return True

    def by_chance(self, what: str, rate: float) -> bool:
        """Whether something strikes this time."""
        if not rate or self.over or self.asleep or self.lull():
            return False
        spared = self._spared.get(what)
        if spared is None:
            spared = self._spared_for(what, rate)
        if spared:
            self._spared[what] = spared - 1
            return False
        struck = f"{what} #{self._chances[what]}"
        self._spared[what] = self._spared_for(what, rate)
        return self.strikes_now(struck)

    def crosses(self, write: str, side: Side) -> bool:
        """A process comes to a durable write, or from it: whether it dies there."""
        if side == "before":
            self.writes[write] += 1
        if self.asleep:
            return False
        for strike in self.strikes:
            if strike.write == write and strike.side == side and self.now_ms() >= strike.from_ms:
                self._met[strike] += 1
                if self._met[strike] < strike.nth:
                    continue
                self.strikes.remove(strike)
                if strike.id not in self.left_out:
                    self.crashed[write, side] += 1
                    return self._write_down(strike.id)
        return False


class LinkFaults(Faults):
    """Of one process' way to one part of the outside."""

    def __init__(self, book: Book, life: Life, link: Link, weather: Weather) -> None:
        super().__init__(random.Random(f"{book.seed}/{life.place}/{link}"), FaultRates(turns_max=weather.turns_max))
        self._book = book
        self._life = life
        self.weather = weather
        self.deaf = False
        """Answers do not come back: what was asked happens all the same."""
        self.awaits: Callable[[], None] = lambda: None
        head = f"{life.place} {link}"
        self._slow = f"{head} slow"
        self._names: dict[Operation, tuple[str, str]] = {
            operation: (f"{head} {operation} refused", f"{head} {operation} lost") for operation in get_args(Operation)
        }

    def calm(self) -> None:
        """From here on all goes well."""
        self.weather = CALM
        self.away = self.deaf = False
        self._planned.clear()

    async def pause(self) -> None:
        """Take turns, and sometimes time."""
        self.awaits()
        if self._life.dead:
            await asyncio.get_running_loop().create_future()
        assert self._chooser is not None
        # Mostly none: turns of the loop are what a seed costs.
        for _ in range(int((self.weather.turns_max + 1) * self._chooser.random() ** 3)):
            await asyncio.sleep(0)
        if self._book.by_chance(self._slow, self.weather.slow):
            await asyncio.sleep(self._chooser.randint(1, max(1, self.weather.slow_ms_max)) / 1000)

    def _decide(self, operation: Operation) -> Fault:
        if self._planned[operation]:
            return self._planned[operation].popleft()
        if self.away:
            return Fault.REFUSED
        if self.deaf:
            return Fault.LOST_ANSWER
        refused, lost = self._names[operation]
        if self._book.by_chance(refused, self.weather.refused):
            return Fault.REFUSED
        if self._book.by_chance(lost, self.weather.lost):
            return Fault.LOST_ANSWER
        return Fault.NONE


def ids_of(struck: Iterable[str]) -> list[str]:
    """Each fault once, in order."""
    return list(dict.fromkeys(struck))
