"""No two documents that a computation yields share (time, key, sequence), whatever is forgotten meanwhile."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.harness.cold_memory import MemoryColdKeys
from tidemark.shared.computation import Computation, NoConfig, Record, Timer, Timers, make_computation
from tidemark.shared.language.values import encode_doc
from tidemark.shared.model.ids import KeyGroup, StatePart
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import CallResults, KeyedComputation, row_of
from tidemark.shared.operators.computation_keys import Cooling, Key


class Passing(Computation[Any, NoConfig]):
    """Keeps nothing; a record may set a timer, `{domain: time}`; both yield."""

    def process(self, record: Record, state: Any, timers: Timers) -> Iterator[Document]:
        for domain in ("event", "processing"):
            if domain in record.value:
                timers.set(domain, record.value[domain], domain)
        yield {}

    def on_timer(self, timer: Timer, state: Any, timers: Timers) -> Iterator[Document]:
        yield {}


def made(order: Any, *, cold: bool) -> KeyedComputation:
    cooling = Cooling(1, MemoryColdKeys) if cold else None
    return KeyedComputation(make_computation(Passing), order=order, groups=1, cooling=cooling)


class Run:
    """A task that takes a snapshot behind each call, and starts from its snapshots anew where asked to."""

    def __init__(self, order: Any, *, cold: bool, restarts: bool) -> None:
        self.order, self.cold, self.restarts = order, cold, restarts
        self.task = made(order, cold=cold)
        self.parts: dict[StatePart, bytes] = {}
        self.ids: list[tuple[int, bytes, int]] = []
        self.watermark_ms: int | None = None

    def done(self, applied: CallResults) -> None:
        self.ids += [output[:3] for output in applied.outputs]
        for group, data in self.task.snapshot().items():
            self.parts.pop(group, None)
            if data is not None:
                self.parts[group] = data
        if self.restarts:
            self.task = made(self.order, cold=self.cold)
            self.task.restore(dict(self.parts))
            if self.watermark_ms is not None:
                self.ids += [output[:3] for output in self.task.on_watermark(self.watermark_ms).outputs]

    def records(self, documents: list[Document], at: int) -> None:
        self.done(self.task.on_records([row_of(k, d, at) for k, d in enumerate(documents)]))

    def watermark(self, at: int) -> None:
        self.watermark_ms = at
        self.done(self.task.on_watermark(at))

    def clock(self, at: int) -> None:
        self.done(self.task.on_processing_time(at))


@pytest.mark.parametrize("cold", [False, True], ids=["in memory", "cold"])
@pytest.mark.parametrize("restarts", [False, True], ids=["runs on", "restarts"])
@pytest.mark.parametrize("order", ["eventTime", "arrival"])
def test_timers_of_the_clock_give_new_numbers_while_the_watermark_stands(
    order: str, *, restarts: bool, cold: bool
) -> None:
    """Keys that keep nothing yield for the watermark's own time, are forgotten, and yield for it again: under other numbers."""
    run = Run(order, cold=cold, restarts=restarts)
    run.records([{"processing": 5}] * 4, at=50)
    run.watermark(100)
    run.clock(10)
    run.records([{"processing": 20}] * 4, at=100)
    run.clock(30)
    run.watermark(101)
    run.clock(40)
    assert len(run.ids) == 4 * 4
    assert len(set(run.ids)) == len(run.ids)
    run.watermark(102)
    assert run.parts == {}, "nothing can come for those times any more"


@pytest.mark.parametrize("order", ["eventTime", "arrival"])
def test_a_time_that_comes_again_at_the_end_gives_new_numbers(order: str) -> None:
    """At the end a timer of the clock yields for the watermark before it, behind what later records have yielded."""
    run = Run(order, cold=False, restarts=False)
    run.records([{"processing": 5_000}], at=5)
    run.watermark(10)
    run.records([{}], at=10)
    run.records([{}], at=20)
    run.watermark(MAX_TIME)
    assert sorted(time for time, _, _ in run.ids) == [5, 10, 10, 20]
    assert len(set(run.ids)) == len(run.ids)


def test_numbers_go_on_wherever_time_goes() -> None:
    """From 0 for each later time; for an earlier one above all that were given."""
    key = Key(b"k", "k", KeyGroup(0), None)  # type: ignore[arg-type]
    assert [key.next_sequence(at) for at in (10, 10, 10, 20, 10, 20, 10, 30, 20)] == [0, 1, 2, 0, 3, 1, 4, 0, 5]


def test_a_snapshot_of_the_format_before_is_restored() -> None:
    """One without the highest number: the last one stands for it."""
    task = made("arrival", cold=False)
    task.on_records([row_of("k", {"processing": 9}, 10)] * 3)
    ((group, data),) = task.snapshot().items()
    assert data is not None
    number, keys = msgspec.msgpack.decode(data)
    assert number == 4
    old = msgspec.msgpack.encode([1, [key[:-2] for key in keys]])
    again = made("arrival", cold=False)
    again.restore({group: old})
    assert [o.sequence for o in again.on_processing_time(9).outputs] == [3]
    assert [o.sequence for o in again.on_records([row_of("k", {}, 5)]).outputs] == [4]


def test_rows_that_wait_in_their_keys_entries_are_restored_and_stored_anew() -> None:
    """Versions before 4 have them there: they are applied once, also over the snapshots that follow."""
    task = made("eventTime", cold=False)
    task.on_records([row_of("k", {}, 10)])
    stored = {part: data for part, data in task.snapshot().items() if data is not None and "#w" not in part}
    ((group, data),) = stored.items()
    _, ((*key, _, highest, _),) = msgspec.msgpack.decode(data)
    waiting = [(at, (0, n), encode_doc({})) for n, at in enumerate((10, 10, 20))]
    stored[group] = msgspec.msgpack.encode([3, [[*key, waiting, highest]]])
    given = []
    for watermark_ms in (5, 15, 16, 25):
        task = made("eventTime", cold=False)
        task.restore(dict(stored))
        given.append(len(task.on_watermark(watermark_ms).outputs))
        stored = {part: data for part, data in {**stored, **task.snapshot()}.items() if data is not None}
    assert given == [0, 2, 0, 1]
