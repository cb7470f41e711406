"""A source's connector: reads splits, each in its own order, and says where it stands."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.failures import Lasting, WrongSetup
from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.log import LogError, OffsetOutOfRange


class SourceMissing(LogError, WrongSetup):
    """The topic or file to be read is not there, and was not for a while."""


class SourceReplaced(LogError, Lasting):
    """Where a split was there is another one: positions of the one mean nothing in the other. Waiting does not help (I2)."""


class SourceUnreadable(LogError, Lasting):
    """What lies next in a split can be read by nobody, as often as it is fetched. The message names the place and how to go on."""


class SourceOvertaken(OffsetOutOfRange, Lasting):
    """Retention has deleted what was to be read next. Waiting does not bring it back."""


@runtime_checkable
class NotesOffsets(Protocol):
    """A source whose positions can be looked up from outside, for tools that show lag."""

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """A committed checkpoint has these next positions. For information: nothing ever reads it back. LogError."""
        ...


@runtime_checkable
class Gathers(Protocol):
    """A source that answers with many records for the cost of one: what comes to it may lie there for a while, until its epoch ends."""

    def gathers_ms(self) -> int:
        """For how long not to fetch again, going by what the last fetch brought; 0: there may be more already."""
        ...

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> Sequence[RawBatch]:
        """As `SourcePort.fetch`; without `waits` it asks once, and [] comes as soon as the source answers that nothing is there."""
        ...


@runtime_checkable
class KnowsOrigins(Protocol):
    """A source whose splits have several parts. Each part has an origin of its own, known once the part is begun (I2)."""

    def origins(self, split: SplitId, position: Offset) -> Mapping[str, str]:
        """Origins of the parts that a checkpoint's position names or has passed lately. They are few, for they go into each snapshot.

        Reading may be ahead of the position, by the last batches that were taken and those that wait.
        """
        ...

    def know(self, origins: Mapping[SplitId, Mapping[str, str]]) -> None:
        """Take the earlier answers of `origins` for splits that are to be opened: `open` and the reads behind it compare with them."""
        ...


@runtime_checkable
class OneLists(Protocol):
    """A source of a version of what goes on changing, which tasks would choose each: the first lists the splits of all, once (I1)."""

    @property
    def one_lists(self) -> bool:
        """Whether it is so."""
        ...


class SourcePort(Protocol):
    """One task's reader over the splits that it was given."""

    async def splits(self) -> Mapping[SplitId, int]:
        """All splits that exist now, with their ordinals (D11). Ordinals are the same in every task, and stay when more splits come."""
        ...

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """See that splits which exist have the origin that they had (I2). SourceReplaced; LogUnavailable: try again."""
        ...

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """Facts on splits that no task has read: origin, where they begin, and where they end if that is settled (E1).

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
        """The next batches, at most so many bytes, waiting at most so long; [] after the time.

        LogUnavailable on an outage: nothing was taken then, and the next call reads it. What was read before it is given out instead.
        """
        ...

    def status(self) -> Sequence[SplitStatus]:
        """Where each split stands after the last `fetch`."""
        ...

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """Make the named splits bounded: positions from these on are not read. Splits that are not named go on."""
        ...

    async def close(self) -> None:
        """Close files and connections."""
        ...
