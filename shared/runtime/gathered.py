"""Rows that a source has for sinks alone wait for more of them, and for the barrier at the longest.

Nobody sees output of a sink before its epoch is released, so nothing comes later for it; and at low rates most of what a record costs is
its own way through frames, brokers and the sink. Watermarks wait with the rows that they are behind (F4, W1).
"""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.runtime.body import Given

ROWS_MAX: Final = 256
"""More than these go on their way: beyond them a frame costs little a row, and a sink has work to do before the barrier."""


class Gathered:
    """Of one source task."""

    def __init__(self, watermark_ms: int = MIN_TIME) -> None:
        self.rows = 0
        self.watermark_ms = watermark_ms
        """The last that was behind everything."""
        self._outs: list[Given] = []

    def add(self, outs: Sequence[Given]) -> None:
        """These are next."""
        self._outs += outs
        self.rows += sum(out.batch.num_rows for out in outs if isinstance(out, Out))

    def full(self) -> bool:
        """Whether they are to go."""
        return self.rows > ROWS_MAX

    def taken(self) -> Sequence[Given]:
        """All of them, those that follow one another and are alike as one batch."""
        outs, self._outs, self.rows = self._outs, [], 0
        return list(_joined(outs))


def _joined(outs: Sequence[Given]) -> Iterator[Given]:
    alike: list[Out] = []
    for out in outs:
        if alike and not (isinstance(out, Out) and _are_alike(alike[-1], out)):
            yield _one(alike)
            alike = []
        if isinstance(out, Out):
            alike.append(out)
        else:
            yield out
    if alike:
        yield _one(alike)


def _are_alike(one: Out, other: Out) -> bool:
    same = (one.port, one.content) == (other.port, other.content)
    return same and one.batch.schema.equals(other.batch.schema, check_metadata=True)


def _one(alike: Sequence[Out]) -> Out:
    if len(alike) == 1:
        return alike[0]
    return Out(alike[0].port, alike[0].content, pa.concat_batches([out.batch for out in alike]))
