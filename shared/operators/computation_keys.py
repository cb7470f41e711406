"""The keys of a keyed computation: the state of each, and its bytes in a snapshot.

A state part (`computation_parts`) is a version, then keys of one key group in the order of their bytes, so equal state has equal bytes.
A key without anything worth keeping (fresh state, no timer, no waiting record) is dropped, but its sequence stays while a document may yet
be yielded for the time of its last one. So no two documents share (time, key, sequence); those of a processing-time timer that fires again
while the watermark stands would.

Rows that wait lie apart (`computation_rows`). With `Cooling`, keys that have not been asked for lately lie packed in a store, as they would
in a snapshot (`settle`). A caller lets go of its `Key` objects before the next `settle`.

The store of the keys that have not been used lately: packed, outside the task's memory.

A store belongs to one task for its life. It is no durable state: a new store is filled from the snapshot.

Which keys of a task have something to apply, and when.

- DU1 A key is noted under one time or none; noting it again forgets the earlier time.
- DU2 Memory is bounded by the noted keys: at most as many forgotten entries wait to be thrown away.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec
import pyarrow as pa

from tidemark.shared.computation.problems import StateError
from tidemark.shared.computation.state import StateCodec
from tidemark.shared.computation.timers import PendingTimer, Timers
from tidemark.shared.language.values import decode_value, encode_value
from tidemark.shared.model.formats import COMPUTATION_STATE, WAITING_ROWS, Codec, FormatError
from tidemark.shared.model.ids import KeyGroup, StatePart, key_group_part
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.operators.computation_parts import Runs, StateParts, by_group, lacks_whole, waiting_rows
from tidemark.shared.operators.computation_rows import STORED, OrderKey, WaitingRows
from tidemark.shared.operators.keygroups import groups_of_keys, key_group


class ColdKeys(Protocol):
    """Bytes by key group and key. Every failure is an OperatorError that says what to do."""

    def put(self, group: KeyGroup, key: bytes, data: bytes) -> None:
        """Keep the bytes; they replace earlier ones."""
        ...

    def get(self, group: KeyGroup, key: bytes) -> bytes | None:
        """The bytes of a key; None if there are none."""
        ...

    def remove(self, group: KeyGroup, key: bytes) -> None:
        """Forget, if it is there."""
        ...

    def of_group(self, group: KeyGroup) -> Iterator[tuple[bytes, bytes]]:
        """Keys and bytes of a group, in the order of the keys. The store does not change meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class Cooling:
    """How many keys stay in memory, and the function that makes the store for the others."""

    keys_in_memory: int
    make: Callable[[], ColdKeys]

    def __post_init__(self) -> None:
        if self.keys_in_memory < 1:
            raise ValueError(f"keys_in_memory={self.keys_in_memory} must be at least 1")


_SLACK: Final = 64


class Due:
    """Keys by their times, ms."""

    __slots__ = ("_heap", "_times")

    def __init__(self) -> None:
        self._times: dict[bytes, int] = {}
        self._heap: list[tuple[int, bytes]] = []
        """Entries of a key that has another time by now are passed over."""

    def __len__(self) -> int:
        """Entries in memory, forgotten ones included."""
        return len(self._heap)

    def note(self, key: bytes, time_ms: int | None) -> None:
        """When the key next has something to apply; None for never."""
        if time_ms is None:
            if self._times.pop(key, None) is None:
                return
        elif self._times.get(key) != time_ms:
            self._times[key] = time_ms
            heapq.heappush(self._heap, (time_ms, key))
        self._compact()

    def _compact(self) -> None:
        """DU2."""
        if len(self._heap) > 2 * len(self._times) + _SLACK:
            self._heap = [(at_ms, noted) for noted, at_ms in self._times.items()]
            heapq.heapify(self._heap)

    def first_ms(self) -> int:
        """The earliest time; MAX_TIME where no key is noted."""
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else MAX_TIME

    def nth_ms(self, n: int) -> int:
        """The time of the key behind the `n` earliest; MAX_TIME where there are no more."""
        taken: list[tuple[int, bytes]] = []
        while len(taken) <= n and (time_ms := self.first_ms()) != MAX_TIME:
            taken.append(heapq.heappop(self._heap))
        for entry in taken:
            heapq.heappush(self._heap, entry)
        return time_ms if len(taken) > n else MAX_TIME

    def take(self, below_ms: int) -> dict[bytes, int]:
        """The keys noted for a time below this, and their times; they are noted no more."""
        taken: dict[bytes, int] = {}
        while self._heap and self._heap[0][0] < below_ms:
            time_ms, key = heapq.heappop(self._heap)
            if self._times.get(key) == time_ms:
                taken[key] = self._times.pop(key)
        self._compact()
        return taken

    def keys(self) -> set[bytes]:
        """All that are noted."""
        return set(self._times)


class _KeySnapshot(msgspec.Struct, array_like=True):
    key: bytes
    value: bytes
    state: bytes | None
    output_ms: int
    sequence: int
    timers: list[PendingTimer]
    waiting: list[tuple[int, OrderKey, bytes]] = []
    """Of rows that wait the time in ms, the order key and the encoded document: before version 4, which has them in runs."""
    highest: int = 0
    """Version 1 had none: its sequence stands for it."""
    taken_ms: int = MIN_TIME
    """Rows below it wait no more (CP4)."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_CODEC: Final[Codec[Sequence[msgspec.Raw | bytes]]] = Codec(COMPUTATION_STATE, list[msgspec.Raw])
"""Of a part: `_KeySnapshot` each, or (CP1, since version 3) the name of a key that is gone."""
_KEY_DECODER: Final = msgspec.msgpack.Decoder(_KeySnapshot)
_ENTRY_DECODER: Final[msgspec.msgpack.Decoder[_KeySnapshot | bytes]] = msgspec.msgpack.Decoder(_KeySnapshot | bytes)
_SETTLED_PART: Final = 8
"""A settling makes room for an eighth of the keys that may stay: so it is seldom due."""


class Key:
    """The state kept for one key."""

    __slots__ = (
        "_codec",
        "_packed",
        "_state",
        "data",
        "dirty_in",
        "entry",
        "group",
        "highest",
        "output_ms",
        "sequence",
        "taken_ms",
        "timers",
        "value",
    )

    def __init__(
        self, data: bytes, value: object, group: KeyGroup, codec: StateCodec, timers: Timers | None = None
    ) -> None:
        self.data = data
        """Canonical bytes."""
        self.value = value
        """As the computation sees it."""
        self.group = group
        self.output_ms = MIN_TIME
        """The latest time that the key has yielded for, and the last sequence given there."""
        self.sequence = 0
        self.highest = 0
        """The highest sequence given for any time."""
        self.timers = Timers() if timers is None else timers
        self.taken_ms = MIN_TIME
        """Its rows below this time wait no more."""
        self.entry: bytes | None = None
        """Its bytes in a snapshot, where it is kept for its state or timers, and has not changed since."""
        self.dirty_in = -1
        """The number of the snapshot that it is to be in, where `KeyedStates` knows that already."""
        self._codec = codec
        self._state: Any = None
        self._packed: bytes | None = None

    def hold_ms(self) -> int | None:
        """When its next event-time timer is due; None for none."""
        timer = self.timers.first("event")
        return None if timer is None else timer.due_ms

    def clock_ms(self) -> int | None:
        """When its next processing-time timer is due; None for none."""
        timer = self.timers.first("processing")
        return None if timer is None else timer.due_ms

    def next_sequence(self, time_ms: int) -> int:
        """The place of a document among those that the key yields for this time, from 0; where time goes back, a number never given."""
        if time_ms < self.output_ms:
            self.highest += 1
            return self.highest
        self.sequence = self.sequence + 1 if time_ms == self.output_ms else 0
        self.output_ms = time_ms
        self.highest = max(self.highest, self.sequence)
        return self.sequence

    def state(self) -> Any:
        """The state, to be changed by a callback: `pack` it before, and `restore` it if the callback raises."""
        if self._state is None:
            self._state = self._codec.fresh() if self._packed is None else self._codec.decode(self._packed)
        return self._state

    def before(self) -> bytes | None:
        """A callback is to run, and takes the state: its bytes, for `restore`."""
        if self._state is None:
            self.state()
        return self.pack() if self._packed is None else self._packed

    def pack(self) -> bytes | None:
        """The state's bytes as of now; None for a key with untouched state."""
        if self._packed is None and self._state is not None:
            self._packed = self._codec.encode(self._state)
        return self._packed

    def touched(self) -> None:
        """A callback has run: check that the state it left encodes. StateError otherwise."""
        if self._state is not None:
            self._packed = self._codec.encode(self._state)

    def restore(self, packed: bytes | None) -> None:
        """Back to these bytes; the object that a callback may have left half changed is thrown away."""
        self._state, self._packed = None, packed

    def is_worth_keeping(self, fresh: bytes) -> bool:
        """Whether a snapshot without this key would lose anything but its sequence and its waiting rows."""
        return len(self.timers) > 0 or self.pack() not in (None, fresh)

    def may_repeat(self, passed_ms: int) -> bool:
        """Whether it may yield once more for the time that it yielded for last, where nothing comes out below `passed_ms` any more."""
        return self.output_ms != MIN_TIME and self.output_ms >= passed_ms


class KeyedStates:
    """All keys of a task by key group, and which changed since the last snapshot."""

    def __init__(
        self,
        codec: StateCodec,
        groups: int,
        timers_max: int,
        waiting: WaitingRows,
        cooling: Cooling | None = None,
    ) -> None:
        self._codec = codec
        self._waiting = waiting
        self._timers_max = timers_max
        self._groups = groups
        self._keys: dict[bytes, Key] = {}
        """With cooling: those asked for lately, the latest last."""
        self._by_group: dict[KeyGroup, dict[bytes, Key]] = {}
        self._dirty: dict[KeyGroup, set[bytes]] = {}
        self._number = 0
        """Of the next snapshot."""
        self._parts = StateParts()
        self._runs = Runs()
        self._fresh = codec.encode(codec.fresh())
        self._cooling = cooling
        self._cold = None if cooling is None else cooling.make()
        self._passed_ms = MIN_TIME
        self._lingering: list[tuple[int, bytes]] = []
        """Heap of (time, key): kept for its sequence alone until the watermark is above the time. One entry a key."""
        self._lingering_keys: set[bytes] = set()

    def __len__(self) -> int:
        """Those in memory."""
        return len(self._keys)

    def all(self) -> list[Key]:
        """Those in memory, in the order of their bytes."""
        return [self._keys[data] for data in sorted(self._keys)]

    def find(self, data: bytes) -> Key | None:
        """The key of these bytes; None if it is not there."""
        key = self._keys.get(data)
        if self._cold is None:
            return key
        if key is not None:
            self._keys[data] = self._keys.pop(data)
            return key
        group = KeyGroup(key_group(data, self._groups))
        packed = self._cold.get(group, data)
        return None if packed is None else self._unpacked(group, _KEY_DECODER.decode(packed))

    def add(self, keys: Sequence[tuple[bytes, int]], values: pa.BinaryArray) -> None:
        """These keys, by their canonical bytes, are there from here on; each has its value, encoded, in a row of `values`."""
        new = [(data, row) for data, row in keys if self.find(data) is None]
        groups = groups_of_keys([data for data, _ in new], self._groups)
        encoded = values.take(pa.array([row for _, row in new], pa.int64())).to_pylist() if new else ()
        for (data, _), group, value in zip(new, groups, encoded, strict=True):
            key = Key(data, decode_value(value), KeyGroup(group), self._codec, Timers((), self._timers_max))
            key.taken_ms = self._passed_ms
            self._dirtied(self._added(key))

    def _dirtied(self, key: Key) -> None:
        if key.dirty_in != self._number:
            key.dirty_in = self._number
            self._dirty.setdefault(key.group, set()).add(key.data)

    def _added(self, key: Key) -> Key:
        self._keys[key.data] = key
        self._by_group.setdefault(key.group, {})[key.data] = key
        return key

    def changed(self, key: Key) -> None:
        """The key has to be in the next snapshot. To be called before state or timers change."""
        key.entry = None
        if key.dirty_in != self._number:
            self._dirtied(key)

    def settle(self) -> None:
        """Pack the keys that nobody has asked for longest, where more than may stay are in memory."""
        cooling, cold = self._cooling, self._cold
        if cooling is None or cold is None or len(self._keys) <= cooling.keys_in_memory:
            return
        staying = cooling.keys_in_memory - cooling.keys_in_memory // _SETTLED_PART
        for data in list(self._keys)[: len(self._keys) - staying]:
            key = self._forgotten(data)
            if self._stays(key):
                cold.put(key.group, data, _packed(key))
            else:
                cold.remove(key.group, data)

    def pass_over(self, passed_ms: int) -> None:
        """Nothing is yielded below this time any more: keys that lingered for it can go with the next snapshot."""
        self._passed_ms = passed_ms
        while self._lingering and self._lingering[0][0] < passed_ms:
            _, data = heapq.heappop(self._lingering)
            self._lingering_keys.discard(data)
            key = self.find(data)
            if key is not None and not self._stays(key):
                self._dirtied(key)
            self.settle()

    def _stays(self, key: Key) -> bool:
        """Whether the key is kept; one that is for its sequence alone is looked at again when the watermark has passed it."""
        if self._waiting.of_key(key.data) or key.is_worth_keeping(self._fresh):
            return True
        stays = key.may_repeat(self._passed_ms)
        if stays and key.data not in self._lingering_keys:
            self._lingering_keys.add(key.data)
            heapq.heappush(self._lingering, (key.output_ms, key.data))
        return stays

    def _forgotten(self, data: bytes) -> Key:
        key = self._keys.pop(data)
        del self._by_group[key.group][data]
        return key

    def snapshot(self) -> dict[StatePart, bytes | None]:
        """Parts with what changed since the last call; None for one that is gone."""
        parts: dict[StatePart, bytes | None] = {}
        writes = [(group, self._parts.next(group, keys)) for group, keys in sorted(self._dirty.items())]
        for group, write in writes:
            parts |= dict.fromkeys(write.gone)
            if write.keys is not None:
                parts[write.part] = _CODEC.encode(self._changed(group, write.keys))
                continue
            kept = self._whole(group)
            if self._parts.wrote(group, len(kept)):
                parts[write.part] = _CODEC.encode(kept) if kept else None
        self._dirty.clear()
        self._number += 1
        return parts | self._runs.snapshot(self._waiting, self._groups)

    def restore(self, parts: MutableMapping[StatePart, bytes], restored: Callable[[Key], None]) -> None:
        """Take the state from these parts, and show each key; StateError for bytes that no snapshot has.

        Part by part they are taken out of the mapping: their bytes go as their keys come.
        """
        runs: list[StatePart] = []
        try:
            groups = by_group(parts)
        except FormatError as e:
            raise StateError(str(e)) from e
        for group, names in groups.items():
            if lacks_whole(names.keys):
                raise StateError(
                    f"key group {group}: expected {key_group_part(group)} beside {names.keys[0][1]}, found none"
                )
            found: dict[bytes, _KeySnapshot] = {}
            looked, seen = False, set[bytes]()
            changes: dict[int, list[bytes]] = {}
            for number, part in names.keys:
                entries = _entries(part, parts.pop(part))
                found |= {e.key: e for e in entries if isinstance(e, _KeySnapshot) and e.key not in seen}
                changes[number] = [e.key if isinstance(e, _KeySnapshot) else e for e in entries]
                seen.update(changes[number])
            self._restore_rows(names.runs, parts, found)
            runs += names.runs
            for item in found.values():
                key = self._unpacked(group, item)
                if item.state is not None and not looked:
                    key.state()  # state of another version is found now, not hours later
                    looked = True
                if item.waiting or not self._stays(key):
                    self._dirtied(key)
                restored(key)
            if changes:
                self._parts.restored(group, len(changes.pop(-1)), changes)
            self.settle()
        self._runs.restored(runs)

    def _restore_rows(
        self, runs: Sequence[StatePart], parts: MutableMapping[StatePart, bytes], keys: Mapping[bytes, _KeySnapshot]
    ) -> None:
        taken_ms = {data: item.taken_ms for data, item in keys.items()}
        for part in runs:
            try:
                self._waiting.add(waiting_rows(parts.pop(part), taken_ms))
            except (FormatError, ValueError, IndexError) as e:
                raise StateError(f"{part}: {WAITING_ROWS.name}: {e}") from e
        rows = [(data, at, *order, packed) for data, item in keys.items() for at, order, packed in item.waiting]
        if rows:
            cells = zip(*rows, strict=True)
            columns = [pa.array(column, field.type) for column, field in zip(cells, STORED, strict=True)]
            self._waiting.add(pa.RecordBatch.from_arrays(columns, schema=STORED))

    def _whole(self, group: KeyGroup) -> list[msgspec.Raw]:
        """The entries of all keys of a group."""
        keys = self._by_group.get(group, {})
        cold = () if self._cold is None else self._cold.of_group(group)
        found = {data: packed for data, packed in cold if data not in keys}
        for data, key in list(keys.items()):
            entry = self._entry(key)
            if entry is not None:
                found[data] = entry
        return [msgspec.Raw(found[data]) for data in sorted(found)]

    def _changed(self, group: KeyGroup, names: Collection[bytes]) -> list[msgspec.Raw | bytes]:
        """The entries of some keys of a group; the names of those that are gone (CP1)."""
        keys = self._by_group.get(group, {})
        entries: list[msgspec.Raw | bytes] = []
        for data in sorted(names):
            key = keys.get(data)
            cold = None if self._cold is None or key is not None else self._cold.get(group, data)
            entry = cold if key is None else self._entry(key)
            entries.append(data if entry is None else msgspec.Raw(entry))
        return entries

    def _entry(self, key: Key) -> bytes | None:
        """The bytes of a key in memory; None for one that is not kept, and is forgotten."""
        if key.entry is not None:
            return key.entry
        if self._stays(key):
            packed = _packed(key)
            if key.is_worth_keeping(self._fresh):
                key.entry = packed
            return packed
        self._forgotten(key.data)
        if self._cold is not None:
            self._cold.remove(key.group, key.data)
        return None

    def _unpacked(self, group: KeyGroup, item: _KeySnapshot) -> Key:
        timers = Timers(item.timers, self._timers_max)
        own = KeyGroup(key_group(item.key, self._groups))
        key = Key(item.key, decode_value(item.value), own, self._codec, timers)
        if key.group != group:
            raise StateError(
                f"key group {group}: the snapshot has a key of group {key.group}; the number of groups is fixed for a job"
            )
        key.restore(item.state)
        key.output_ms, key.sequence = item.output_ms, item.sequence
        key.highest = max(item.highest, item.sequence)
        key.taken_ms = item.taken_ms
        return self._added(key)


def _packed(key: Key) -> bytes:
    value = encode_value(key.value)
    timers = key.timers.all()
    return _ENCODER.encode(
        _KeySnapshot(key.data, value, key.pack(), key.output_ms, key.sequence, timers, [], key.highest, key.taken_ms)
    )


def _entries(part: StatePart, data: bytes) -> list[_KeySnapshot | bytes]:
    """Those of a part; StateError for bytes that are none."""
    try:
        return [_ENTRY_DECODER.decode(raw) for raw in _CODEC.decode(data)]
    except (FormatError, msgspec.DecodeError) as e:
        raise StateError(f"{part}: {COMPUTATION_STATE.name}: {e}") from e
