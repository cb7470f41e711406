"""Sources: splits that are read in order, from positions that a checkpoint keeps.

A split and a position name a record for ever: what was read from a position comes again, the same, when it is read from there again. From
that follows exactly once: positions are part of the snapshot, and no input is stored besides.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tidemark.shared.model.values import Document
from tidemark.shared.plugins.base import C, Plugin, S


@dataclass(frozen=True, slots=True)
class Split:
    """A part of the source that is read in order, by one task."""

    name: str
    ordinal: int = 0
    """A number of its own, 0 to 2^31 − 1, which stays when splits come and go: it gives the split to a task."""
    origin: str = ""
    """The owner of the positions, such as the id of a table: in another one they mean something else, and the job fails."""
    begin: int = 0
    """The position where a job begins to read, when it looks at the source for the first time."""
    earliest: int = 0
    """The same for a split that comes while the job runs: at or in front of its first record."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a split."""

    position: int
    """0 to 2^52; above that of the record before it."""
    value: Document | bytes | None
    """A document, or one as JSON in bytes; None for a record without a value, such as a tombstone."""
    timestamp_ms: int
    """The event time where the document names no `timeField`, ms since 1970. The same whenever it is read."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of a read."""

    records: Sequence[Record]
    next: int
    """The position to read from next: behind the last record, or further."""
    then: Literal["more", "nothing yet", "nothing"] = "more"
    """Behind them: more; nothing now; nothing ever, for the split has ended."""


class Source(Plugin[C, S], ABC):
    """Derive from `Source[Config, Settings]`, and write `splits`, `read` and `end`."""

    @property
    def bounded(self) -> bool:
        """Whether every split ends by itself, and no more splits come."""
        return False

    @abstractmethod
    def splits(self) -> Sequence[Split]:
        """All that exist now; the same in every task. Raises Away, Refused."""

    @abstractmethod
    def read(self, split: str, position: int, max_bytes: int) -> Batch:
        """The next records from a position on, in order, about so many bytes; does not wait for any. Raises Away, Refused."""

    @abstractmethod
    def end(self, split: str) -> int:
        """The position behind the last record that there is now: where a drain stops. Not asked where `bounded`. Raises Away, Refused."""

    def committed(self, positions: Mapping[str, int]) -> None:
        """A checkpoint has these next positions: records in front of them are not asked for again, unless an older one is restored.

        For queues that keep records until they are told so. Raises Away, Refused.
        """
