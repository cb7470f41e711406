"""The computation of the keyed job of runs with faults: state and a timer for each meter."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidemark.shared.computation import Computation, Document, Record, Timer, Timers

SHOWN_EVERY: Final = 5


@dataclass(slots=True)
class Total:
    """Of one meter."""

    meter: str = ""
    readings: int = 0
    wh: int = 0
    silences: int = 0
    last_ms: int = 0


@dataclass(frozen=True, slots=True)
class Quiet:
    """How long a meter says nothing until it counts as quiet."""

    quiet_ms: int = 300_000


class Usage(Computation[Total, Quiet]):
    """In: {meter, wh}. Out: the running total at every fifth reading, so that an order or a count that is wrong shows; and each silence."""

    State = Total
    Config = Quiet

    def process(self, record: Record, state: Total, timers: Timers) -> Iterator[Document]:
        """A reading."""
        state.meter = record.key
        state.readings += 1
        state.wh += record.value["wh"]
        timers.set("quiet", record.timestamp + self.config.quiet_ms)
        if state.readings % SHOWN_EVERY == 0:
            since = record.timestamp - state.last_ms
            yield {"meter": state.meter, "readings": state.readings, "wh": state.wh, "since": since}
        state.last_ms = record.timestamp

    def on_timer(self, timer: Timer, state: Total, timers: Timers) -> Iterator[Document]:
        """A silence."""
        state.silences += 1
        yield {"meter": state.meter, "quiet": state.silences, "readings": state.readings, "wh": state.wh}
