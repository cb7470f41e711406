"""The splits that a connector reads by cursors: files, or the rows of a table."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tidemark.shared.model.ids import Offset, SplitId
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.log import LogUnavailable


class Stands(Protocol):
    """The part of a cursor that tells where it is."""

    position: int
    at_end: bool
    finished: bool


C = TypeVar("C", bound=Stands)
Name = TypeVar("Name")


@dataclass(slots=True)
class CursorSplit(Generic[C]):
    """A split, read up to `until` if it has an end."""

    ordinal: int
    cursor: C
    until: Offset | None = None

    @property
    def finished(self) -> bool:
        """Read to its end."""
        return self.cursor.finished or (self.until is not None and self.cursor.position >= self.until)

    @property
    def position(self) -> Offset:
        """The first position that is not read."""
        position = Offset(self.cursor.position)
        return position if self.until is None else min(position, self.until)


class CursorSplits(dict[SplitId, CursorSplit[C]]):
    """Those of one task, by name."""

    def ended(self) -> bool:
        """All are read to their ends. Without any there is nothing to read yet."""
        return bool(self) and all(split.finished for split in self.values())

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`."""
        return [
            SplitStatus(name, split.position, split.cursor.at_end or split.finished, split.finished)
            for name, split in self.items()
        ]

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`."""
        for name, end in until.items():
            self[name].until = end


class Turns:
    """With which split a fetch begins: another one each time, so that none starves."""

    def __init__(self) -> None:
        self._turn = 0

    def of(self, names: Sequence[Name]) -> list[Name]:
        """All of them, in this fetch's order."""
        self._turn = (self._turn + 1) % max(1, len(names))
        return [*names[self._turn :], *names[: self._turn]]


@contextmanager
def ended_by_outage(batches: Sequence[object]) -> Iterator[None]:
    """An outage ends a fetch. LogUnavailable, but for batches read before it: their splits stand behind them, so they are given out.

    A later fetch meets the outage.
    """
    try:
        yield
    except LogUnavailable:
        if not batches:
            raise
