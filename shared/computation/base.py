"""The base class of computations (MillWheel): code that runs for each record and each timer of a key, with state.

Rules for authors:

- Time comes in through the arguments and in no other way: a computation reads no clock, no randomness and no file,
  or its results will differ when it is replayed.
- Everything that has to last lies in `state`. Attributes of the object are lost with the process and not part of a
  snapshot; they hold configuration.
- A callback happens whole or not at all: if it raises, state and timers are as they were before it.
- A document that is yielded takes the time of the record or timer that it is yielded for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from tidemark.shared.computation.problems import StateError
from tidemark.shared.computation.records import Record, Timer
from tidemark.shared.computation.timers import Timers
from tidemark.shared.model.values import Document

S = TypeVar("S")
C = TypeVar("C")

Yield = Iterable[Document] | None
"""The result of a callback: documents, in order; None for none."""


@dataclass(slots=True)
class NoState:
    """The state of a computation that has none."""


@dataclass(frozen=True, slots=True)
class NoConfig:
    """The configuration of a computation that takes none."""


class Computation(Generic[S, C]):
    """Derive from `Computation[State, Config]`, set `State` and `Config` on the class, and write `process`."""

    State: ClassVar[type[Any]] = NoState
    """State of one key: a dataclass whose fields have types and defaults; a new key starts with `State()`."""
    Config: ClassVar[type[Any]] = NoConfig
    """The document's `config`: a dataclass; a field without a default has to be given."""
    state_version: ClassVar[int] = 1
    """Raise it when `State` changes in a way that old state does not fit, and write `migrate`."""
    batch_schema: ClassVar[pa.Schema | None] = None
    """The fields that `process_batch` wants as columns; None: `process` is called for each record."""

    def __init__(self, config: C) -> None:
        self.config = config

    def process(self, record: Record, state: S, timers: Timers) -> Yield:
        """A record of the key. Change `state` in place, set timers, yield documents."""
        raise TypeError(f"{type(self).__name__} has no process method: write process(self, record, state, timers)")

    def on_timer(self, timer: Timer, state: S, timers: Timers) -> Yield:
        """A timer of the key fires: the watermark is above its time (event time), or the clock has reached it."""
        raise TypeError(f"{type(self).__name__} sets timers and has no on_timer method to take {timer.name!r}")

    def process_batch(self, batch: pa.RecordBatch, state: S, timers: Timers) -> pa.RecordBatch | None:
        """Records of the key without a timer between them, in order, as columns: the fast form of `process`.

        `batch` has the columns of `batch_schema` and `timestamp` (int64, ms). The batch returned has a column `timestamp` with the time of
        each row, within those of the batch and not falling; the other columns are the fields of the documents. How many records
        come together depends on chance, so the result must be that of one at a time.
        """
        raise TypeError(f"{type(self).__name__} has a batch_schema and no process_batch method")

    @classmethod
    def migrate(cls, version: int, state: object) -> Any:
        """State of another version, as plain dicts and lists, to `State`; raise StateError for state that cannot be taken over."""
        name = f"{cls.__module__}:{cls.__qualname__}"
        raise StateError(
            f"{name}: the snapshot has state of version {version} (a {type(state).__name__}), the class is at "
            f"{cls.state_version} and has no `migrate`: add it, or start without state (--without-state)"
        )
