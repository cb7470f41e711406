"""Keys of a computation that nobody asks for leave the memory, and come back as they were."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.harness.cold_memory import MemoryColdKeys
from tidemark.shared.computation import Computation, NoConfig, Record, Timer, Timers, make_computation
from tidemark.shared.model.ids import KeyGroup, key_group_part
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import KeyedComputation, row_of
from tidemark.shared.operators.computation_keys import Cooling

KEYS = 100
GROUPS = 4


@dataclass
class Log:
    seen: list[str] = field(default_factory=list)


class Remembering(Computation[Log, NoConfig]):
    """Tells all that a key has seen; a record may set a timer."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(record.value["n"])
        if "at" in record.value:
            timers.set("t", record.value["at"], record.value["domain"])
        yield {"seen": list(state.seen)}

    def on_timer(self, timer: Timer, state: Log, timers: Timers) -> Iterator[Document]:
        yield {"seen": [*state.seen, timer.name]}


class Counting(MemoryColdKeys):
    """Notes how many keys are in memory whenever one is looked for here."""

    def __init__(self) -> None:
        super().__init__()
        self.task: KeyedComputation | None = None
        self.in_memory_max = 0

    def get(self, group: KeyGroup, key: bytes) -> bytes | None:
        if self.task is not None:
            self.in_memory_max = max(self.in_memory_max, len(self.task._keys))
        return super().get(group, key)


class Stand:
    def __init__(self) -> None:
        self.store = Counting()
        cooling = Cooling(16, lambda: self.store)
        self.task = KeyedComputation(make_computation(Remembering), order="arrival", groups=GROUPS, cooling=cooling)
        self.store.task = self.task

    def cold(self) -> int:
        return sum(1 for group in range(GROUPS) for _ in self.store.of_group(KeyGroup(group)))


def test_no_more_keys_than_the_setting_says_stay_in_memory() -> None:
    """After each call; the others are found again where they were put."""
    stand = Stand()
    stand.task.on_records([row_of(k, {"n": "a"}, k) for k in range(KEYS)])
    assert stand.cold() >= KEYS - 16
    outputs = stand.task.on_records([row_of(k, {"n": "b"}, 100 + k) for k in range(KEYS)]).outputs
    assert [o.value["seen"] for o in outputs] == [["a", "b"]] * KEYS


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_a_cold_key_s_timer_fires_when_it_is_due(domain: str) -> None:
    """Of either kind, once; what has something due is known without a look into the store."""
    stand = Stand()
    stand.task.on_records([row_of(k, {"n": "a", "at": 1_000 + k, "domain": domain}, k) for k in range(KEYS)])
    assert stand.cold() >= KEYS - 16
    fire = stand.task.on_watermark if domain == "event" else stand.task.on_processing_time
    assert len(fire(1_010).outputs) in (10, 11)
    assert len(fire(2_000).outputs) == KEYS - (10 if domain == "event" else 11)
    assert fire(3_000).outputs == []


@pytest.mark.parametrize("domain", ["event", "processing"])
def test_keys_whose_time_has_come_do_not_all_come_to_memory(domain: str) -> None:
    """Nor those that once were due then: timers that were moved, as of who was quiet and is no more, are looked through."""
    stand = Stand()
    for moved in (1_000, 2_000):
        for k in range(KEYS):
            stand.task.on_records([row_of(k, {"n": "a", "at": moved + k, "domain": domain}, k)])
    asked = stand.task.hold if domain == "event" else stand.task.next_processing_time
    assert asked() == 2_000
    fire = stand.task.on_watermark if domain == "event" else stand.task.on_processing_time
    assert len(fire(3_000).outputs) == KEYS
    assert 0 < stand.store.in_memory_max <= 16 + 1


def test_a_timer_that_another_sets_for_the_same_time_fires_in_the_next_call() -> None:
    """Also of a key that was away between the two."""

    class Setting(Remembering):
        def on_timer(self, timer: Timer, state: Log, timers: Timers) -> Iterator[Document]:
            if timer.name == "t":
                timers.set("again", timer.time, "processing")
            yield {"name": timer.name}

    cooling = Cooling(2, MemoryColdKeys)
    task = KeyedComputation(make_computation(Setting), order="arrival", groups=GROUPS, cooling=cooling)
    task.on_records([row_of(k, {"n": "a", "at": 1_000, "domain": "processing"}, k) for k in range(10)])
    for expected in ("t", "again"):
        assert [o.value["name"] for o in task.on_processing_time(2_000).outputs] == [expected] * 10
    assert task.on_processing_time(3_000).outputs == []


def test_a_key_with_nothing_to_keep_is_not_put_away() -> None:
    """Nor does it stay where it was put before, once the watermark has passed what it yielded."""

    class Passing(Remembering):
        def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
            state.seen = [] if record.value["n"] == "clear" else ["a"]
            yield {}

    store = MemoryColdKeys()
    task = KeyedComputation(make_computation(Passing), order="arrival", groups=1, cooling=Cooling(1, lambda: store))
    task.on_records([row_of(k, {"n": "a"}, k) for k in range(3)])
    assert len(list(store.of_group(KeyGroup(0)))) >= 2
    task.on_records([row_of(k, {"n": "clear"}, k) for k in range(3)])
    assert task.snapshot()[key_group_part(0)] is not None
    assert len(list(store.of_group(KeyGroup(0)))) >= 2
    task.on_watermark(3)
    assert task.snapshot() == {key_group_part(0): None}
    assert list(store.of_group(KeyGroup(0))) == []
