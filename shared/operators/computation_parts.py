"""The parts of a computation's key groups in the snapshot: one whole, and behind it what has changed since.

Rules:

- CP1 `kg:G` holds the keys of a group as of one snapshot, `kg:G#N` those that have changed since the part in front of it; of a key that is
  gone its name. The latest part that has a key counts.
- CP2 Each part of changes holds at least twice as many keys as the one behind it: those that would not become one with it.
- CP3 Where the parts of changes would hold more than half as many keys as the whole one, this is written anew and they go.

So of n keys a group has at most log2(n) + 1 parts, a restore reads at most three entries for each key that is left, and a key that has
changed is written again as often as its part is merged. A merge reads nothing: the task has every key's bytes, and here lie the names.
Runs of record ids and of joins (`remembered`, `join_runs`) have no use for it: what they hold never changes.

A computation's child loads this file: nothing here takes machine code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidemark.shared.model.ids import KeyGroup, StatePart, key_group_part

_AS_LARGE: Final = 2
"""CP2, CP3."""


@dataclass(frozen=True, slots=True)
class ToWrite:
    """The part of a group that the next snapshot has."""

    part: StatePart
    keys: frozenset[bytes] | None
    """Of a part of changes; None: the whole group."""
    gone: tuple[StatePart, ...]
    """Parts that it replaces."""


@dataclass(slots=True)
class _Group:
    whole: int = 0
    """Keys of the whole part."""
    number: int = 0
    """Of the next part of changes."""
    changes: list[tuple[StatePart, pa.BinaryArray]] = field(default_factory=list)
    """Names of their keys, packed: they may be as many as half of the keys, most of which lie on a disk."""


class Parts:
    """Which parts the snapshot of a task has."""

    def __init__(self) -> None:
        self._groups: dict[KeyGroup, _Group] = {}

    def next(self, group: KeyGroup, changed: Iterable[bytes]) -> ToWrite:
        """The part to write where these keys have changed; from here on it counts as written. `wrote` follows it where it is the whole."""
        of = self._groups.setdefault(group, _Group())
        keys = set(changed)
        if _AS_LARGE * (len(keys) + sum(len(names) for _, names in of.changes)) > of.whole:  # CP3
            gone = tuple(part for part, _ in of.changes)
            self._groups[group] = _Group(of.whole)
            return ToWrite(key_group_part(group), None, gone)
        gone = ()
        while of.changes and len(of.changes[-1][1]) < _AS_LARGE * len(keys):  # CP2
            part, names = of.changes.pop()
            keys.update(names.to_pylist())
            gone = (*gone, part)
        part = StatePart(f"{key_group_part(group)}#{of.number}")
        of.number += 1
        of.changes.append((part, pa.array(sorted(keys), pa.binary())))
        return ToWrite(part, frozenset(keys), gone)

    def wrote(self, group: KeyGroup, keys: int) -> bool:
        """The group was written whole, with so many keys; whether a snapshot has or had a part of it."""
        had = self._groups[group].whole > 0
        if keys:
            self._groups[group].whole = keys
        else:
            del self._groups[group]
        return had or keys > 0

    def restored(self, group: KeyGroup, whole: int, changes: Mapping[int, Iterable[bytes]]) -> None:
        """The snapshot has a whole part with so many keys, and parts of changes with these, by number."""
        parts = [
            (StatePart(f"{key_group_part(group)}#{number}"), pa.array(sorted(keys), pa.binary()))
            for number, keys in sorted(changes.items())
        ]
        self._groups[group] = _Group(whole, max(changes, default=-1) + 1, parts)


def by_group(parts: Iterable[StatePart]) -> dict[KeyGroup, list[tuple[int, StatePart]]]:
    """The parts of each group with their numbers, the latest first; the whole one is -1."""
    found: dict[KeyGroup, list[tuple[int, StatePart]]] = {}
    for part in parts:
        group, _, number = part.partition(":")[2].partition("#")
        found.setdefault(KeyGroup(int(group)), []).append((int(number) if number else -1, part))
    return {group: sorted(own, reverse=True) for group, own in found.items()}


def lacks_whole(parts: Sequence[tuple[int, StatePart]]) -> bool:
    """Whether of these, of one group, none is the whole one."""
    return parts[-1][0] >= 0
