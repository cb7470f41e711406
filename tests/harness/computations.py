"""Computations for tests of the life of a processor."""

import ctypes
import hashlib
import itertools
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from tidemark.shared.computation import Computation, Document, NoConfig, NoState, Record, Timer, Timers
from tidemark.shared.computation.records import Domain

ROUNDS = 1_500
"""Of a hash: about a millisecond."""
ASKING_S = 0.004
SLOW_S = 0.02


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


class Totals(Computation[Seen, NoConfig]):
    """Counts what its keys bring in the first hour of event time."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        state.count += 1
        timers.set("end", 3_600_000)
        yield from ()

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Iterator[Document]:
        """The number of them."""
        yield {"n": state.count}


class Skewed(Computation[Seen, NoConfig]):
    """Counts what its keys bring, and takes its time over one of them."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        if record.key == "m0":
            hashlib.pbkdf2_hmac("sha256", b"m0", b"", ROUNDS)
        state.count += 1
        yield {**record.value, "seen": state.count}


class Asking(Skewed):
    """The same, but that it waits for somebody else meanwhile: as slow on a busy machine as on an idle one."""

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        if record.key == "m0":
            threading.Event().wait(ASKING_S)
        state.count += 1
        yield {**record.value, "seen": state.count}


class Slow(Computation[Seen, NoConfig]):
    """Counts what its keys bring, and waits for somebody else over each record: as slow on a busy machine as on an idle one."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        threading.Event().wait(SLOW_S)
        state.count += 1
        yield {**record.value, "seen": state.count}


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
                ctypes.string_at(0)  # at once, in this very thread: a signal to the process may find another one
            case _:
                state.count += 1
                yield {**record.value, "seen": state.count}


class Draws(Computation[NoState, NoConfig]):
    """Gives each record a number that it never gave before: asked again, it answers otherwise."""

    DRAWN: ClassVar[Iterator[int]] = itertools.count(1)
    """For all tasks of the process."""

    def process(self, record: Record, state: NoState, timers: Timers) -> Iterator[Document]:
        """The same, with its number."""
        yield {**record.value, "answer": next(self.DRAWN)}


@dataclass(frozen=True, slots=True)
class OfDomain:
    """Which time timers go by."""

    domain: Domain = "event"


class Ticks(Computation[Seen, OfDomain]):
    """Says after a while how many records a key has had by then."""

    State = Seen
    Config = OfDomain

    def process(self, record: Record, state: Seen, timers: Timers) -> None:
        """One more."""
        state.count += 1
        timers.set(f"t{state.count}", record.timestamp + 2_000, self.config.domain)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Iterator[Document]:
        """So many."""
        yield {"timer": timer.name, "seen": state.count}


class Refuses(Computation[Seen, NoConfig]):
    """Takes no record whose id is a multiple of seven, and says how many it has taken."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        if record.value["id"] % 7 == 0:
            raise ValueError(f"after {state.count}")
        state.count += 1
        yield {**record.value, "seen": state.count}


@dataclass(slots=True)
class Remembered:
    """What has come to a key, in order."""

    seen: list[str] = field(default_factory=list)


class Remembers(Computation[Remembered, NoConfig]):
    """Says with each record and timer what its key has had so far; records set timers of both times, some of which set another."""

    State = Remembered

    def process(self, record: Record, state: Remembered, timers: Timers) -> Iterator[Document]:
        """One more; `event` and `clock` are times of timers, ms."""
        state.seen.append(str(record.value["v"]))
        if record.value["event"] is not None:
            timers.set(f"e{record.value['v'] % 2}", record.value["event"])
        if record.value["clock"] is not None:
            timers.set(f"c{record.value['v'] % 2}", record.value["clock"], "processing")
        yield {"k": record.value["k"], "seen": list(state.seen)}

    def on_timer(self, timer: Timer, state: Remembered, timers: Timers) -> Iterator[Document]:
        """One more; the first of event time sets the second anew, so much later."""
        state.seen.append(f"{timer.name}@{timer.time}")
        if timer.name == "e0":
            timers.set("e1", timer.time + 3)
        yield {"seen": list(state.seen)}
