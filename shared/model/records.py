"""Records as a source gives them: undecoded, in order, in columns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.ids import SplitId

Int64s: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RawPartition:
    """Records of one partition, in offset order; columns of equal length n ≥ 1."""

    topic: str
    partition: int
    offsets: Int64s
    """Shape (n,)."""
    timestamps: Int64s
    """Shape (n,): the broker's or producer's time, ms since 1970."""
    keys: pa.BinaryArray | None
    """Shape (n,), null where a record has none; None if no record has one, or keys were not asked for."""
    values: pa.BinaryArray
    """Shape (n,), null for a tombstone."""
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why a record has no value here, by its place."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Records of one split as fetched, in order; columns of equal length n."""

    split: SplitId
    partition: int
    """Ordinal of the split among all of the source: the second part of the order key (D11)."""
    positions: Int64s
    """Shape (n,): offset in the split."""
    timestamps_ms: Int64s
    """Shape (n,): the broker's time of each record; arrival where the connector has none."""
    values: pa.BinaryArray
    """Shape (n,): the undecoded records; null for a tombstone."""
    keys: pa.BinaryArray | None = None
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why the value of a row is no record but the bytes of one that the connector could not read, by its place in the batch."""
    file: str = ""
    """The file that the records are of, where there are files; and where it begins among the orders."""
    file_begin: int = 0
    orders: Int64s | None = None
    """Shape (n,): the order of the records among those of the split (D11), below 2^52; None: their positions are the order."""
    steps: tuple[Any, ...] = ()
    """For scripted tests only: watermark, processing-time and idle steps behind these rows."""

    def rows(self, begin: int, end: int) -> "RawBatch":
        """Those of the rows, without the steps behind the last."""
        return replace(
            self,
            positions=self.positions[begin:end],
            timestamps_ms=self.timestamps_ms[begin:end],
            values=self.values.slice(begin, end - begin),
            keys=None if self.keys is None else self.keys.slice(begin, end - begin),
            unread={row - begin: why for row, why in self.unread.items() if begin <= row < end},
            orders=None if self.orders is None else self.orders[begin:end],
            steps=(),
        )
