"""A computation in both forms, as cheap as one can be: what it costs to be called is what is measured."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidemark.shared.computation import Computation, Document, NoConfig, Record, Timer, Timers


@dataclass(slots=True)
class Seen:
    """How many records a key has had."""

    count: int = 0


class Counts(Computation[Seen, NoConfig]):
    """Says every hundredth record of a key."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> Iterator[Document]:
        """One more."""
        state.count += 1
        if state.count % 100 == 0:
            yield {"sensor": record.key, "seen": state.count}


class CountsOfBatch(Computation[Seen, NoConfig]):
    """The same, a run of records at a time."""

    State = Seen
    batch_schema = pa.schema([("sensor", pa.string())])

    def process_batch(self, batch: pa.RecordBatch, state: Seen, timers: Timers) -> pa.RecordBatch | None:
        """So many more."""
        first = state.count + 1
        state.count += batch.num_rows
        rows = [row for row in range(batch.num_rows) if (first + row) % 100 == 0]
        if not rows:
            return None
        said = batch.take(pa.array(rows, pa.int64()))
        return said.append_column("seen", pa.array([first + row for row in rows], pa.int32()))


class Quiet(Computation[Seen, NoConfig]):
    """Says how many records a key has had when it has been quiet for a while: each record sets the timer anew."""

    State = Seen

    def process(self, record: Record, state: Seen, timers: Timers) -> None:
        """One more."""
        state.count += 1
        timers.set("quiet", record.timestamp + 500)

    def on_timer(self, timer: Timer, state: Seen, timers: Timers) -> Iterator[Document]:
        """So many."""
        yield {"seen": state.count}
