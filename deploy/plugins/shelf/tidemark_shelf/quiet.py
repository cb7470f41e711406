"""Keys that have come to rest."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemark import Computation, Document, Record, Timer, Timers


@dataclass
class Seen:
    """Of one key."""

    documents: int = 0
    last: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rest:
    """The stage's config."""

    after_ms: int = 3_600_000


class Quiet(Computation[Seen, Rest]):
    """The last document of a key, and how many there were, once none has come for a while."""

    State = Seen
    Config = Rest

    def process(self, record: Record, state: Seen, timers: Timers) -> None:
        """See `Computation.process`."""
        state.documents += 1
        state.last = record.value
        timers.set("quiet", record.timestamp + self.config.after_ms)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Iterator[Document]:
        """See `Computation.on_timer`."""
        del timer, timers
        yield {**state.last, "documents": state.documents}
        state.documents, state.last = 0, {}
