"""What `$join` is meant to give, every row against every other in plain Python; nothing of the product's in it."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

JoinType = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True)
class Row:
    """A record of one split of one side. `key`: equal values are one key; None stands for null and missing."""

    split: int
    position: int
    time_ms: int
    key: Hashable
    value: int
    counts: bool = True
    """Else it is a repeat, that moves the watermark of its split alone."""


@dataclass(frozen=True)
class Pair:
    """A result: the values of both rows, None for the one that is not there; the later of the two times."""

    time_ms: int
    left: int | None
    right: int | None


def on_time(splits: Sequence[Sequence[Row]], delay_ms: int) -> tuple[list[Row], list[Row]]:
    """(taken, late) under `lateness: split`: late is a row behind the highest time before it in its split less the delay."""
    taken: list[Row] = []
    late: list[Row] = []
    for rows in splits:
        highest: int | None = None
        for row in rows:
            if row.counts:
                (late if highest is not None and row.time_ms < highest - delay_ms else taken).append(row)
            highest = row.time_ms if highest is None else max(highest, row.time_ms)
    return taken, late


def joined(left: Sequence[Row], right: Sequence[Row], before_ms: int, after_ms: int, kind: JoinType) -> list[Pair]:
    """All pairs, and the rows of outer sides that have none."""
    found = []
    met: set[tuple[str, int, int]] = set()
    for a in left:
        for b in right:
            if a.key == b.key and a.time_ms - before_ms <= b.time_ms <= a.time_ms + after_ms:
                found.append(Pair(max(a.time_ms, b.time_ms), a.value, b.value))
                met |= {("left", a.split, a.position), ("right", b.split, b.position)}
    if kind in ("left", "full"):
        found += [Pair(a.time_ms, a.value, None) for a in left if ("left", a.split, a.position) not in met]
    if kind in ("right", "full"):
        found += [Pair(b.time_ms, None, b.value) for b in right if ("right", b.split, b.position) not in met]
    return found
