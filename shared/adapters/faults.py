"""Faults of a simulation, and how long operations take, drawn from one seeded chooser.

The adapters in memory ask a `Faults` at every operation. The default lets everything pass after one turn of
the loop; a simulation hands in one with rates, plans single faults, or takes a part away for a while.
"""

import asyncio
import random
from collections import defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

Operation = Literal[
    "admin",
    "offsets",
    "fetch",
    "send",
    "init",
    "txn",
    "commit",
    "abort",
    "store.read",
    "store.write",
    "blob.read",
    "blob.write",
]
"""Of the log: topics, offsets, reading, writing; an identity, its sends, commits, aborts. Of store and blobs."""


class Fault(Enum):
    """How an operation goes."""

    NONE = "none"
    """It happens, and the answer arrives."""
    REFUSED = "refused"
    """It does not happen; an error says so."""
    LOST_ANSWER = "lost answer"
    """It happens, wholly or in part, perhaps only later; the caller gets an error."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Chances per operation (0 to 1), and bounds of delays."""

    refused: float = 0.0
    lost_answer: float = 0.0
    turns_max: int = 1
    """Turns of the loop that an operation takes at most (drawn from 0)."""
    slow: float = 0.0
    """Chance that an operation takes time besides turns."""
    slow_ms_max: int = 0
    """Time of a slow operation at most, ms."""

    def __post_init__(self) -> None:
        for name in ("refused", "lost_answer", "slow"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"fault rates: expected {name} between 0 and 1, found {value}")
        if self.refused + self.lost_answer > 1:
            raise ValueError("fault rates: refused and lost_answer together exceed 1")


CALM: Final = FaultRates()
"""Nothing goes wrong; every operation takes at most one turn of the loop."""


class Faults:
    """Decides about each operation. One object may serve several adapters, or each client may have its own.

    `away` makes everything refuse until it is set back: a broker, store or network that is down.
    """

    def __init__(self, chooser: random.Random | None = None, rates: FaultRates = CALM) -> None:
        self._chooser = chooser
        self.rates = rates
        self.away = False
        self._planned: defaultdict[Operation, deque[Fault]] = defaultdict(deque)
        self.drawn: dict[tuple[Operation, Fault], int] = {}
        """How often each fault was drawn: a simulation that met none of a kind proved nothing about it."""

    def plan(self, operation: Operation, *faults: Fault) -> None:
        """Say how the next operations of a kind go, before anything is drawn for it."""
        self._planned[operation].extend(faults)

    def calm(self) -> None:
        """From here on all goes well: for the end of a simulation, when everything must come to rest."""
        self.rates = FaultRates(turns_max=self.rates.turns_max)
        self.away = False
        self._planned.clear()

    async def pause(self) -> None:
        """Let others run: a drawn number of turns, and sometimes time."""
        if self._chooser is None:
            await asyncio.sleep(0)
            return
        for _ in range(self._chooser.randint(0, self.rates.turns_max)):
            await asyncio.sleep(0)
        if self.rates.slow and self._chooser.random() < self.rates.slow:
            await asyncio.sleep(self._chooser.randint(0, self.rates.slow_ms_max) / 1000)

    def draw(self, operation: Operation) -> Fault:
        """How this operation goes."""
        fault = self._decide(operation)
        if fault is not Fault.NONE:
            self.drawn[operation, fault] = self.drawn.get((operation, fault), 0) + 1
        return fault

    def _decide(self, operation: Operation) -> Fault:
        if self._planned[operation]:
            return self._planned[operation].popleft()
        if self.away:
            return Fault.REFUSED
        if self._chooser is None or not (self.rates.refused or self.rates.lost_answer):
            return Fault.NONE
        number = self._chooser.random()
        if number < self.rates.refused:
            return Fault.REFUSED
        if number < self.rates.refused + self.rates.lost_answer:
            return Fault.LOST_ANSWER
        return Fault.NONE

    def part(self, whole: int) -> int:
        """How much of something took effect before the connection broke: 0 to `whole`; all if no chooser."""
        return whole if self._chooser is None else self._chooser.randint(0, whole)

    def some(self, whole: int) -> int:
        """How many of the waiting items are taken at once: 1 to `whole`, mostly all; all if no chooser."""
        if self._chooser is None or whole <= 1 or self._chooser.random() < 0.7:  # noqa: PLR2004 - mostly
            return whole
        return self._chooser.randint(1, whole)

    def coin(self) -> bool:
        """An even chance; True without a chooser."""
        return self._chooser is None or self._chooser.random() < 0.5  # noqa: PLR2004 - even
