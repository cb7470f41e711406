"""A source's connector: reads splits, each in its own order, and says where it stands."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.failures import Lasting
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.ports.log import LogError
from tidemark.shared.ports.setup import WrongSetup


class SourceMissing(LogError, WrongSetup):
    """What is to be read is not there, and was not for a while."""


class SourceReplaced(LogError, Lasting):
    """Where a split was there is another one: positions of the one mean nothing in the other. Waiting does not help (I2)."""


@dataclass(frozen=True, slots=True)
class RawBatch:
    """Records of one split as fetched, in order; columns of equal length n."""

    split: SplitId
    partition: int
    """Ordinal of the split among all of the source: the second part of the order key (D11)."""
    positions: npt.NDArray[np.int64]
    """Shape (n,): offset in the split."""
    timestamps_ms: npt.NDArray[np.int64]
    """Shape (n,): the broker's time of each record; arrival where the connector has none."""
    values: pa.BinaryArray
    """Shape (n,): the undecoded records; null for a tombstone."""
    keys: pa.BinaryArray | None = None
    unread: Mapping[int, str] = field(default_factory=dict)
    """Why the value of a row is no record but the bytes of one that the connector could not read, by its place in the batch."""
    file: str = ""
    """The file that the records are of, where there are files; and where it begins among the orders."""
    file_begin: int = 0
    orders: npt.NDArray[np.int64] | None = None
    """Shape (n,): what orders the records among those of the split (D11), below 2^52; None: their positions do."""
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


@dataclass(frozen=True, slots=True)
class SplitStatus:
    """Where a split stands beside the batches."""

    split: SplitId
    next_position: Offset
    at_end: bool
    """The position has reached what the broker last said is there, and the broker answered (W4)."""
    finished: bool
    """The split is bounded and read to its end (E1)."""
    more: bool = False
    """The broker has said lately that there is something behind the position, which may not be readable yet: no idleness lasts (W4)."""


@runtime_checkable
class NotesOffsets(Protocol):
    """A source whose positions others can look up, for tools that show lag."""

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """A committed checkpoint has these next positions. For information: nothing ever reads it back. LogError."""
        ...


@runtime_checkable
class KnowsOrigins(Protocol):
    """A source whose splits are made of parts, each with an origin of its own that shows when it is begun (I2)."""

    def origins(self, split: SplitId) -> Mapping[str, str]:
        """What the parts are known by that the split's position names or has passed lately; few: they go into each snapshot."""
        ...

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """What `origins` said of splits that are to be opened: `open` and what is read behind it compare."""
        ...


class Source(Protocol):
    """One task's reader over the splits that it was given."""

    async def splits(self) -> Mapping[SplitId, int]:
        """All splits that exist now, with their ordinals (D11); the same in every task, and whatever comes later."""
        ...

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """See that splits which exist have the origin that they had (I2). SourceReplaced; LogUnavailable: try again."""
        ...

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """What is to be known of splits that nobody has read: origin, where they begin, and where they end if that is settled (E1).

        `first`: the source is looked at for the first time, and they begin where the document says; else they have come since, and
        begin with their first record (W2).
        """
        ...

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """Where these splits, read up to these positions, end now; None for one that ends by itself (I3)."""
        ...

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read these splits from here, besides those that are read already."""
        ...

    async def fetch(self, max_bytes: int, timeout_ms: int) -> Sequence[RawBatch]:
        """What is there, at most so many bytes, waiting at most so long; [] after the time. LogUnavailable on an outage."""
        ...

    def status(self) -> Sequence[SplitStatus]:
        """Where each split stands after the last `fetch`."""
        ...

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """Make the named splits bounded: positions from these on are not read. Splits that are not named go on."""
        ...

    async def close(self) -> None:
        """Let go."""
        ...
