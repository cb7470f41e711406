"""A sink into memory, for trying out and for tests: collects released rows, and keeps its marker as every sink does (S2).

The `MemoryTarget` plays the outside world: it outlives the sinks that write to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from tidemark.services.sink.connectors.markers import check_open, is_due
from tidemark.services.sink.connectors.staging import InlinePart, Ledger, Part, decode_handle, encode_handle
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import Epoch
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused

PLACE = "memory"


@dataclass(slots=True)
class MemoryTarget:
    """Released batches and markers. Holds everything: for inputs that end."""

    released: list[tuple[Identity, Epoch, pa.RecordBatch]] = field(default_factory=list)
    """The rows that readers see, in the order of release."""
    markers: dict[Identity, Epoch] = field(default_factory=dict)
    staged: dict[str, tuple[pa.RecordBatch, ...]] = field(default_factory=dict)
    """Staged batches by unique name."""

    def batches(self) -> list[pa.RecordBatch]:
        """Released batches in the order of release."""
        return [batch for _, _, batch in self.released]


class MemorySink:
    """`SinkPort` into a `MemoryTarget`."""

    def __init__(self, target: MemoryTarget) -> None:
        self._target = target
        self._ledger = Ledger()
        self._accepted: list[pa.RecordBatch] = []
        self._identity: Identity | None = None

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return PLACE

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`."""
        marker = self._target.markers.get(identity)
        check_open(identity, marker, restored_from, PLACE, joins=joins)
        if marker is None or joins:
            marker = self._target.markers[identity] = restored_from
        self._identity = identity
        self._ledger = Ledger(newest=restored_from)
        self._accepted = []
        return marker

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """Takes every row."""
        if batch.num_rows:
            self._accepted.append(batch)
        return []

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`."""
        if self._accepted:
            name = f"{self._identity}/{epoch}/{len(self._target.staged)}"
            self._target.staged[name] = tuple(self._accepted)
            rows = sum(batch.num_rows for batch in self._accepted)
            self._ledger.add(InlinePart(rows, msgspec.msgpack.encode(name)))
            self._accepted = []
        return encode_handle(self._ledger.stage(epoch, committed))

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`."""
        identity = self._identity
        if identity is None:
            raise ValueError("memory sink: release before open")
        if not is_due(identity, self._target.markers[identity], row, PLACE):
            return
        for part in decode_handle(staged):
            self._target.released += [(identity, row.epoch, batch) for batch in self._batches(part)]
        self._target.markers[identity] = row.epoch

    async def skip(self, row: MirrorRow, staged: bytes) -> int:
        """See `Sink.skip`: a batch that is not there is passed over."""
        identity = self._identity
        if identity is None:
            raise ValueError("memory sink: release before open")
        skipped = 0
        if is_due(identity, self._target.markers[identity], row, PLACE):
            for part in decode_handle(staged):
                try:
                    self._target.released += [(identity, row.epoch, batch) for batch in self._batches(part)]
                except TargetRefused:
                    skipped += part.rows
            self._target.markers[identity] = row.epoch
        return skipped

    def _batches(self, part: Part) -> tuple[pa.RecordBatch, ...]:
        name = msgspec.msgpack.decode(part.data, type=str) if isinstance(part, InlinePart) else ""
        if name not in self._target.staged:
            raise TargetRefused(f"{PLACE}: staged output {name!r} is not there; memory does not outlive its process")
        return self._target.staged[name]

    async def close(self) -> None:
        """Nothing to let go of."""
