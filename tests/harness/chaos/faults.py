"""Faults of a round, drawn from a seed: each kind strikes before any strikes again; several may be at work at the same time."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, get_args

from tests.harness.chaos.lanes import Cut
from tidemark.services.local.supervisor import BROKER, CONTROL
from tidemark.shared.runtime.context import Phase

PHASES: Final[dict[str, tuple[Phase, ...]]] = {
    "source": ("snapshot-taken", "state-durable"),
    "operator": ("snapshot-taken", "state-durable"),
    "spark": ("snapshot-taken", "step-running", "state-durable"),
    "sink": ("staged", "snapshot-taken", "state-durable", "releasing", "released"),
    "coordinator": ("commit-decided", "commit-stored", "mirrored"),
}
"""Where each service can be struck by its own hand."""
DISKS: Final = ("kafka", "blobs", "store", "out")
"""store: the folder of the coordinator's store, of logs and scratch files."""
EVERYTHING: Final = "everything"
FORK_SERVER: Final = "forkserver"
"""The process that all services are forked from, and that they die with."""
PAUSE_S: Final = (1.0, 22.0)
"""A lease is 5 s, and silence of workers for 5 s ends a generation."""
CUT_S: Final = (1.0, 25.0)
FULL_S: Final = (3.0, 20.0)
LEFT_BYTES: Final = (0, 4_096, 200_000)
"""Of room on a full disk."""
Card = TypeVar("Card")


@dataclass(frozen=True)
class Fault:
    """What strikes, where, when in a round, and for how long. `how`: of which kind, by what."""

    what: str
    """kill, pause, phase, cut, full."""
    where: str
    """A place, a disk, `forkserver`, or `everything`."""
    how: str
    at_s: float
    for_s: float = 0.0

    @property
    def kind(self) -> tuple[str, str, str]:
        """What is counted: by service, not by place."""
        return self.what, self.where.rpartition("-")[0] or self.where, self.how


class Deck(Generic[Card]):
    """Deals its cards in an order of chance, all of them before any of them again."""

    def __init__(self, chance: random.Random, cards: Iterable[Card]) -> None:
        self._chance = chance
        self._cards = list(cards)
        self._left: list[Card] = []

    def deal(self) -> Card:
        """The next card."""
        if not self._left:
            self._left = self._chance.sample(self._cards, len(self._cards))
        return self._left.pop()


Kind = tuple[str, str, str]


def kinds(services: Sequence[str], *, disks: bool) -> list[Kind]:
    """Every kind of fault. `services`: those of which there are processes."""
    found: list[Kind] = []
    for service in (*services, BROKER):
        found += [("kill", service, "process"), ("pause", service, "process")]
    found += [("kill", where, "process") for where in (BROKER, FORK_SERVER, EVERYTHING)]
    if "spark" in services:
        found += [("kill", "spark", "child"), ("pause", "spark", "child")]
    if "operator" in services:
        found += [("kill", "operator", "child")]
    found += [("phase", service, phase) for service in services for phase in PHASES.get(service, ())]
    found += [("cut", service, how) for service in services for how in get_args(Cut) if service != CONTROL]
    found += [("cut", CONTROL, "both"), *(("cut", EVERYTHING, how) for how in get_args(Cut))]
    if disks:
        found += [("full", disk, "disk") for disk in DISKS]
    return found


class Faults:
    """Rounds of them."""

    def __init__(self, seed: str, workers: dict[str, int], *, disks: bool) -> None:
        self._chance = random.Random(seed)
        self._workers = {service: count for service, count in workers.items() if count}
        self._deck = Deck(self._chance, kinds(list(self._workers), disks=disks))

    def next(self, count: int, seconds: float) -> list[Fault]:
        """So many, spread over so many seconds."""
        return sorted((self._drawn(*self._deck.deal(), seconds) for _ in range(count)), key=lambda fault: fault.at_s)

    def victim(self) -> str:
        """Any place, the broker among them."""
        service = self._chance.choice([*self._workers, BROKER])
        return service if service == BROKER else self._place(service)

    def _drawn(self, what: str, where: str, how: str, seconds: float) -> Fault:
        chance = self._chance
        place = self._place(where) if where in self._workers else where
        at_s = chance.uniform(0.0, seconds)
        match what:
            case "pause":
                return Fault(what, place, how, at_s, chance.uniform(*PAUSE_S))
            case "cut":
                return Fault(what, place, how, at_s, chance.uniform(*CUT_S))
            case "full":
                return Fault(what, place, how, at_s, chance.uniform(*FULL_S))
            case _:
                return Fault(what, place, how, at_s)

    def left_bytes(self) -> int:
        """Of room, on a disk that is full now."""
        return self._chance.choice(LEFT_BYTES)

    def _place(self, service: str) -> str:
        return f"{service}-{self._chance.randrange(self._workers[service])}"
