"""Computations for tests of the life of a processor."""

from collections.abc import Iterator
from dataclasses import dataclass

from shared.computation import Computation, Document, NoConfig, NoState, Record, Timers


@dataclass(slots=True)
class Seen:
    """How many records a key has had."""

    count: int = 0


class Marks(Computation[Seen, NoConfig]):
    """Says with each record the how manieth of its key it is."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        state.count += 1
        yield {**record.value, "seen": state.count}


class Adds(Computation[NoState, NoConfig]):
    """Marks what went through it."""

    def process(self, record: Record, state: NoState, timers: Timers) -> Iterator[Document]:
        """The same, marked."""
        yield {**record.value, "added": True}
