"""Computations for tests of the life of a processor."""

import os
import signal
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


class Fragile(Computation[Seen, NoConfig]):
    """Counts what its keys bring, and does to its process what the record's `then` says, each time that it sees it."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more, unless this is the end."""
        match record.value.get("then"):
            case "raise":
                raise ValueError("no such meter")
            case "exit":
                os._exit(3)
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case _:
                state.count += 1
                yield {**record.value, "seen": state.count}
