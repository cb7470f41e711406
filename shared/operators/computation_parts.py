"""The parts of a computation's key groups in the snapshot: one whole, and behind it what has changed since.

Rules:

- CP1 `kg:G` holds the keys of a group as of one snapshot, `kg:G#N` those that have changed since the part in front of it; of a key that is
  gone its name. The latest part that has a key counts.
- CP2 Each part of changes holds at least twice as many keys as the one behind it: those that would not become one with it.
- CP3 Where the parts of changes would hold more than half as many keys as the whole one, this is written anew and they go.
- CP4 Rows that wait for the watermark lie in runs, `kg:G#wN`: those of a group that came between two snapshots, written once. A key's entry
  says which of its rows have been taken: those below a time. Of a key without an entry all have.
  Runs are merged by `run_sizes`; those of a restored task become one with its first snapshot.

So of n keys a group has at most log2(n) + 1 parts, a restore reads at most three entries for each key that is left, and a key that has
changed is written again as often as its part is merged, as is a row that waits. A merge reads nothing: the task has every key's bytes and
every row, and here lie the names. Runs of record ids and of joins (`remembered`, `join_runs`) have no use for the parts of keys: what they
hold never changes.

A computation's child loads this file: nothing here takes machine code.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tidemark.shared.model.formats import COMPUTATION_STATE, WAITING_ROWS, Codec, unknown_part
from tidemark.shared.model.ids import KeyGroup, StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.computation_rows import (
    KEY,
    ORDINAL,
    PACKED,
    POSITION,
    STORED,
    TIME,
    WaitingRows,
    numbers,
)
from tidemark.shared.operators.keygroups import key_groups
from tidemark.shared.operators.run_sizes import runs_kept

_AS_LARGE: Final = 2
"""CP2, CP3."""
_RUN: Final = "#w"
_NAME: Final = re.compile(r"kg:(\d+)(?:#(w)?(\d+))?")
_NUMBERS: Final = (TIME, ORDINAL, POSITION)


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


class StateParts:
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


class StoredRows(msgspec.Struct, array_like=True):
    """A run of a key group: n rows that wait."""

    keys: list[bytes]
    """Canonical bytes, each once."""
    numbers: bytes
    """Shape (4, n), int64, little endian: of each row the place of its key, its time in ms, and its order key."""
    documents: list[bytes]
    """Encoded, n of them."""


_ROWS: Final[Codec[StoredRows]] = Codec(WAITING_ROWS, StoredRows)


@dataclass(frozen=True, slots=True)
class _KeyRun:
    parts: tuple[StatePart, ...]
    since: int
    """The number from which on it has the rows that waited, up to those of the next run."""
    rows: int


class Runs:
    """Which runs of waiting rows the snapshot of a task has."""

    def __init__(self) -> None:
        self._runs: list[_KeyRun] = []
        self._number = 0
        self._arrived = 0
        """Rows below this number lie in runs."""
        self._restored: tuple[StatePart, ...] = ()

    def snapshot(self, waiting: WaitingRows, groups: int) -> dict[StatePart, bytes | None]:
        """The parts that are written and that go (CP4)."""
        rows = waiting.since(self._arrived)
        kept = runs_kept([run.rows for run in self._runs], rows.num_rows, len(waiting))
        gone = self._runs[kept:]
        parts: dict[StatePart, bytes | None] = dict.fromkeys(self._restored)
        parts |= dict.fromkeys(part for run in gone for part in run.parts)
        del self._runs[kept:]
        since = gone[0].since if gone else self._arrived
        if gone:
            rows = waiting.since(since)
        if rows.num_rows:
            written = self._written(rows, groups)
            parts |= written
            self._runs.append(_KeyRun(tuple(written), since, rows.num_rows))
        self._restored, self._arrived = (), waiting.arrived
        return parts

    def restored(self, parts: Iterable[StatePart]) -> None:
        """The snapshot has these, of rows that are there again: the next one has others in their place."""
        self._restored = tuple(parts)

    def _written(self, rows: pa.RecordBatch, groups: int) -> dict[StatePart, bytes]:
        of_group = key_groups(rows.column(KEY), groups)
        order = np.argsort(of_group, kind="stable")
        begins = np.flatnonzero(np.diff(of_group[order], prepend=-1))
        found = {}
        for places in np.split(order, begins[1:]):
            part = StatePart(f"{key_group_part(int(of_group[places[0]]))}{_RUN}{self._number}")
            found[part] = _ROWS.encode(_stored(rows.take(pa.array(places))))
        self._number += 1
        return found


def _stored(rows: pa.RecordBatch) -> StoredRows:
    keys = rows.column(KEY).dictionary_encode()
    columns = np.stack([keys.indices.to_numpy(), *(numbers(rows, name) for name in _NUMBERS)])
    return StoredRows(keys.dictionary.to_pylist(), columns.astype("<i8").tobytes(), rows.column(PACKED).to_pylist())


def waiting_rows(data: bytes, taken_ms: Mapping[bytes, int]) -> pa.RecordBatch:
    """The rows of a run that wait, by the times of the keys that have an entry (CP4).

    FormatError, ValueError or IndexError for bytes that are no run.
    """
    stored = _ROWS.decode(data)
    columns = np.frombuffer(stored.numbers, "<i8").reshape(1 + len(_NUMBERS), len(stored.documents))
    taken = np.array([taken_ms.get(key, MAX_TIME) for key in stored.keys], dtype=np.int64)
    keys = pa.array(stored.keys, pa.binary()).take(pa.array(columns[0]))
    documents = pa.array(stored.documents, pa.large_binary())
    rows = pa.RecordBatch.from_arrays([keys, *map(pa.array, columns[1:]), documents], schema=STORED)
    return rows.filter(pa.array(columns[1] >= taken[columns[0]]))


class GroupParts(NamedTuple):
    """The parts of a key group."""

    keys: list[tuple[int, StatePart]]
    """With their numbers, the latest first; the whole one is -1."""
    runs: list[StatePart]


def by_group(parts: Iterable[StatePart]) -> dict[KeyGroup, GroupParts]:
    """The parts of each group. FormatError for one with another name."""
    found: dict[KeyGroup, GroupParts] = {}
    for part in parts:
        name = _NAME.fullmatch(part)
        if name is None:
            raise unknown_part(COMPUTATION_STATE.name, part, "kg:G, kg:G#N or kg:G#wN")
        group, is_run, number = name.groups()
        own = found.setdefault(KeyGroup(int(group)), GroupParts([], []))
        if is_run:
            own.runs.append(part)
        else:
            own.keys.append((int(number) if number else -1, part))
    for own in found.values():
        own.keys.sort(reverse=True)
    return found


def lacks_whole(parts: Sequence[tuple[int, StatePart]]) -> bool:
    """Whether of these, of one group, none is the whole one."""
    return bool(parts) and parts[-1][0] >= 0
