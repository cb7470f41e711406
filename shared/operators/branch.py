"""Streams that flow together (`$union`) keep an order among themselves: event time, partition, stream, position (D11).

Two sources number their partitions alike, so their order keys would tie. The number of the stream stands in the high bits of POS; the
first stream's is 0, so a pipeline without a union is as it was. People are shown `base.place_of` it.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from tidemark.shared.model.frames import Content
from tidemark.shared.model.plan import OUT
from tidemark.shared.operators.base import PLACE, PLACE_BITS, POS, Out
from tidemark.shared.operators.batches import int64s, with_column
from tidemark.shared.operators.errors import OperatorError
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.specs import BranchSpec

BRANCHES_MAX: Final = 2**11
"""Streams that may flow together."""


class Branch(Passing):
    """An `Operator` without state."""

    def __init__(self, spec: BranchSpec) -> None:
        if not 0 < spec.branch < BRANCHES_MAX:
            raise OperatorError(f"stream {spec.branch} of a $union: at most {BRANCHES_MAX} may flow together")
        self._mark = spec.branch << PLACE_BITS

    def on_batch(self, batch: pa.RecordBatch, content: Content, tag: str) -> Sequence[Out]:
        """The same rows, with the stream's number in POS; one that a union further in has put there gives way."""
        del tag
        if POS in batch.schema.names:
            batch = with_column(batch, POS, pa.array((int64s(batch.column(POS)) & PLACE) | self._mark))
        return (Out(OUT, content, batch),)

    def counters(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}
