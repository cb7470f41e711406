# ruff: noqa: N802 -- a test carries its rule's name
"""Keyed computations: the order of records and timers, lateness, the end of input, snapshots, failures."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from tidemark.shared.computation import Computation, NoConfig, Record, StateError, Timer, Timers, make_computation
from tidemark.shared.computation.harness import Harness
from tidemark.shared.computation.records import Order
from tidemark.shared.language.limits import Limits
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Date, Document
from tidemark.shared.operators.base import OperatorError
from tidemark.shared.operators.computation import KeyedComputation, row_of


@dataclass
class Log:
    seen: list[str] = field(default_factory=list)


class Scripted(Computation[Log, NoConfig]):
    """Does what records say: set [[name, time, domain?], …], cancel [name, …], raise; yields what it has seen so far."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(record.value["n"])
        for spec in record.value.get("set", []):
            timers.set(*spec)
        for name in record.value.get("cancel", []):
            timers.cancel(name)
        if record.value.get("raise"):
            raise ValueError("no")
        yield {"k": record.key, "by": record.value["n"], "seen": list(state.seen)}

    def on_timer(self, timer: Timer, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(timer.name)
        if timer.name == "chain":
            timers.set("chain", timer.time + 10)
        if timer.name == "again":
            timers.set("again", timer.time)
        yield {"by": timer.name, "seen": list(state.seen)}


def harness(**options: Any) -> Harness:
    return Harness(Scripted, key="k", raises=False, **options)


def by(h: Harness) -> list[tuple[str, int]]:
    return [(r.value["by"], r.timestamp) for r in h.records]


def test_records_wait_for_the_watermark_and_come_in_event_time_order() -> None:
    """With order eventTime a record is applied once the watermark is above its time, in order of time; one at the watermark waits."""
    h = harness()
    for n, at in (("c", 30), ("a", 10), ("b", 20)):
        h.record({"k": 1, "n": n}, at)
    assert h.documents == []
    h.watermark(30)
    assert by(h) == [("a", 10), ("b", 20)]
    h.watermark(31)
    assert by(h) == [("a", 10), ("b", 20), ("c", 30)]


def test_arrival_order_applies_at_once() -> None:
    """With order arrival a record is applied as it comes, also behind the watermark, and is never late."""
    h = harness(order="arrival")
    h.watermark(100)
    h.record({"k": 1, "n": "b"}, 20)
    h.record({"k": 1, "n": "a"}, 10)
    assert by(h) == [("b", 20), ("a", 10)]
    assert h.late == []


def test_on_a_tie_records_come_before_timers() -> None:
    """A timer of the time of a record is applied behind it, and a timer fires only when the watermark is above its time."""
    h = harness()
    h.record({"k": 1, "n": "a", "set": [["t", 20]]}, 10)
    h.record({"k": 1, "n": "b"}, 20)
    h.watermark(20)
    assert by(h) == [("a", 10)]
    h.watermark(21)
    assert by(h) == [("a", 10), ("b", 20), ("t", 20)]


def test_a_timer_set_for_a_passed_time_fires_at_once_with_its_setter_s_time() -> None:
    """Passed means before the record that sets it; the watermark's position plays no part with order eventTime."""
    for steps in ([15, 16, 40], [40]):
        h = harness()
        h.record({"k": 1, "n": "a", "set": [["t", 5]]}, 15)
        h.record({"k": 1, "n": "b"}, 16)
        for w in steps:
            h.watermark(w)
        assert by(h) == [("a", 15), ("t", 15), ("b", 16)]


def test_arrival_order_fires_a_passed_timer_at_once() -> None:
    """With order arrival passed means that the watermark is above the timer's time already."""
    h = harness(order="arrival")
    h.watermark(50)
    h.record({"k": 1, "n": "a", "set": [["t", 40], ["u", 50]]}, 60)
    assert by(h) == [("a", 60), ("t", 60)]
    h.watermark(51)
    assert by(h)[2:] == [("u", 50)]


def test_a_name_stands_for_one_timer_and_can_be_cancelled() -> None:
    """Setting a name again replaces the timer before; cancelling forgets it."""
    h = harness()
    h.record({"k": 1, "n": "a", "set": [["t", 20], ["u", 20]]}, 10)
    h.record({"k": 1, "n": "b", "set": [["t", 30]], "cancel": ["u"]}, 11)
    h.watermark(100)
    assert by(h) == [("a", 10), ("b", 11), ("t", 30)]


def test_keys_do_not_see_one_another() -> None:
    """State and timers belong to a key; the outputs of all keys are in order of time, then key."""
    h = harness()
    for k, n, at in ((2, "x", 10), (1, "y", 10), (1, "z", 11)):
        h.record({"k": k, "n": n}, at)
    h.watermark(50)
    assert [(d["k"], d["seen"]) for d in h.documents] == [(1, ["y"]), (2, ["x"]), (1, ["y", "z"])]


def test_equal_keys_are_one_key() -> None:
    """1 and 1.0 are one key, as they are for $group."""
    h = harness()
    h.record({"k": 1, "n": "a"}, 1)
    h.record({"k": 1.0, "n": "b"}, 2)
    h.watermark(3)
    assert h.documents[-1]["seen"] == ["a", "b"]


def test_late_records_are_handed_back() -> None:
    """With order eventTime a record behind the watermark, or behind its split's watermark, is late and not applied."""
    h = harness()
    h.watermark(10)
    h.record({"k": 1, "n": "a"}, 9)
    h.record({"k": 1, "n": "b"}, 10)
    h.record({"k": 1, "n": "c"}, 11, late_below=12)
    h.watermark(MAX_TIME)
    assert [r.value["n"] for r in h.late] == ["a", "c"]
    assert by(h) == [("b", 10)]
    assert h.task.counters.late == 2


@pytest.mark.parametrize("order", ["eventTime", "arrival"])
def test_E1_pending_timers_fire_once_at_the_end(order: Order) -> None:
    """E1: pending event-time timers fire once, then processing-time ones; what is set meanwhile is discarded and counted."""
    h = harness(order=order)
    h.record({"k": 1, "n": "a", "set": [["chain", 20], ["p", 5, "processing"], ["z", 90]]}, 10)
    h.watermark(15)
    h.end()
    assert h.task.counters.timers_discarded == 1
    assert (h.task.output_watermark(), h.task.next_processing_time()) == (MAX_TIME, MAX_TIME)
    assert max((d["seen"] for d in h.documents), key=len) == ["a", "chain", "z", "p"]
    h.end()
    assert h.task.counters.timers_fired == 3


def test_E1_a_timer_that_sets_itself_for_its_own_time_fires_once_at_the_end() -> None:
    """E1: what it sets is discarded, though it is equal to what was pending; nothing holds the watermark."""
    task = KeyedComputation(make_computation(Scripted))
    task.on_records([row_of(1, {"n": "a", "set": [["again", 5]]}, 5)])
    assert [o.value["by"] for o in task.on_watermark(MAX_TIME).outputs] == ["a", "again"]
    assert (task.output_watermark(), task.counters.timers_discarded) == (MAX_TIME, 1)


def test_E1_a_timer_that_sets_the_next_goes_on_while_records_follow() -> None:
    """E1: whether the watermark came in steps or at once to the end, the chain of timers up to the last record is the same."""
    results = []
    for steps in ([], [25], [5, 15, 25, 35, 55]):
        h = harness()
        h.record({"k": 1, "n": "a", "set": [["chain", 20]]}, 10)
        h.record({"k": 1, "n": "b"}, 60)
        for w in steps:
            h.watermark(w)
        h.end()
        results.append(by(h))
    assert results[0] == [
        ("a", 10),
        ("chain", 20),
        ("chain", 30),
        ("chain", 40),
        ("chain", 50),
        ("b", 60),
        ("chain", 60),
    ]
    assert results[1] == results[2] == results[0]


def test_W5_processing_time_timers_fire_when_the_clock_has_reached_them() -> None:
    """W5: in the order of time; their output takes the later of the output watermark and the setter's time."""
    h = harness()
    h.record({"k": 1, "n": "a", "set": [["p", 1000, "processing"], ["q", 900, "processing"]]}, 10)
    h.watermark(11)
    assert h.task.next_processing_time() == 900
    h.processing_time(950)
    assert by(h) == [("a", 10), ("q", 11)]
    h.watermark(70)
    h.processing_time(1000)
    assert by(h)[2:] == [("p", 70)]
    assert h.task.next_processing_time() == MAX_TIME


def test_W1_the_output_watermark_is_held_by_what_waits() -> None:
    """W1: the output watermark is the input's, never above a waiting record or timer."""
    h = harness()
    assert h.task.output_watermark() == MIN_TIME
    h.record({"k": 1, "n": "a", "set": [["t", 40]]}, 20)
    assert h.task.hold() == 20
    h.watermark(30)
    assert (h.task.hold(), h.task.output_watermark()) == (40, 30)
    h.watermark(50)
    assert (h.task.hold(), h.task.output_watermark()) == (MAX_TIME, 50)


def test_a_callback_that_raises_changes_nothing_and_is_reported() -> None:
    """State and timers are as before the callback; the record and its error are reported once; the rest goes on."""
    h = harness(attempts=3)
    h.record({"k": 1, "n": "a"}, 10)
    h.record({"k": 1, "n": "bad", "set": [["t", 11]], "raise": True}, 11)
    h.record({"k": 1, "n": "c"}, 12)
    h.watermark(50)
    assert h.documents[-1]["seen"] == ["a", "c"]
    (failure,) = h.failures
    assert failure.record is not None
    assert failure.record.value["n"] == "bad"
    assert isinstance(failure.error, ValueError)
    assert h.task.counters.failures == 1


def test_a_callback_is_tried_again_before_it_fails() -> None:
    """A computation that succeeds on a later attempt leaves no failure, and its effect is there once."""

    class Shaky(Scripted):
        tries = 0

        def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
            yield from super().process(record, state, timers)
            Shaky.tries += 1
            if Shaky.tries < 3:
                raise OSError("once more")

    h = Harness(Shaky, key="k", attempts=3, raises=False)
    h.record({"k": 1, "n": "a"}, 10)
    h.watermark(11)
    assert h.failures == []
    assert [d["seen"] for d in h.documents] == [["a"]]


def test_an_endless_timer_fails_instead_of_hanging() -> None:
    """A timer that sets itself for a passed time for ever is given up with an error that says so."""
    h = harness(limits=Limits(passed_timers_max=200))
    h.record({"k": 1, "n": "a", "set": [["again", 10]]}, 10)
    h.watermark(11)
    assert "without an end" in str(h.failures[0].error)
    h.record({"k": 1, "n": "b"}, 20)
    h.watermark(21)
    assert h.documents[-1]["by"] == "b"


def _deep(depth: int) -> Any:
    return {"x": _deep(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    "wrong", [5, {"x": object()}, _deep(181), _deep(900)], ids=["no document", "no value", "too deep", "far too deep"]
)
def test_a_yield_must_be_a_document(wrong: Any) -> None:
    """What is no document of the language's values, or a deeper one (D21), is that record's failure, not a later surprise."""

    class Wrong(Computation[Any, NoConfig]):
        def process(self, record: Record, state: Any, timers: Timers) -> Iterator[Document]:
            yield _deep(180)
            yield wrong

    h = Harness(Wrong, key="k", raises=False)
    h.record({"k": 1}, 1)
    h.watermark(2)
    assert len(h.failures) == 1
    assert h.documents == []


def test_waiting_records_are_bounded() -> None:
    """Beyond the bound the task fails with what holds it; what was applied makes room, also over a restore."""

    def fresh() -> KeyedComputation:
        return KeyedComputation(make_computation(Scripted), waiting_max=2)

    task = fresh()
    task.on_records([row_of(1, {"n": "a"}, 10), row_of(1, {"n": "b"}, 20)])
    task.on_watermark(11)
    task.on_records([row_of(1, {"n": "c"}, 30)])
    restored = fresh()
    restored.restore({g: d for g, d in task.snapshot().items() if d is not None}, 11)
    for each in (task, restored):
        with pytest.raises(OperatorError, match="2 records wait for the watermark, which stands at 11"):
            each.on_records([row_of(1, {"n": "d"}, 40)])


# --- snapshots ---------------------------------------------------------------------------------------------


def test_C6_a_snapshot_holds_state_timers_and_waiting_records() -> None:
    """C6: a task restored from its snapshot goes on exactly as the one that was lost."""
    straight, broken = harness(), harness()
    for h in (straight, broken):
        h.record({"k": "x", "n": "a", "set": [["t", 20], ["p", 7, "processing"]]}, 10)
        h.record({"k": "x", "n": "c", "d": Date(5)}, 30)
        h.watermark(15)
        if h is broken:
            h.restart()
        h.record({"k": "x", "n": "b"}, 25)
        h.processing_time(9)
        h.watermark(40)
    assert broken.records == straight.records
    assert by(broken) == [("a", 10), ("p", 15), ("t", 20), ("b", 25), ("c", 30)]


def test_a_snapshot_has_only_what_changed() -> None:
    """Only key groups touched since the last snapshot are in it, and a group without anything left is named as gone."""
    task = KeyedComputation(make_computation(Scripted), groups=64)
    task.on_records([row_of(k, {"n": "a"}, 10) for k in range(40)])
    task.on_watermark(11)
    assert len(task.snapshot()) > 20
    assert task.snapshot() == {}
    task.on_records([row_of(3, {"n": "b"}, 20)])
    assert len(task.snapshot()) == 1


def test_a_key_with_nothing_to_keep_is_forgotten() -> None:
    """A key whose state is fresh again, without timers and waiting records, leaves the snapshot."""

    class Passing(Computation[Any, NoConfig]):
        def process(self, record: Record, state: Any, timers: Timers) -> Iterator[Document]:
            yield record.value

    h = Harness(Passing, key="k", raises=False)
    h.record({"k": 1}, 1)
    assert len(h.checkpoint()) == 2, "the key, and its row"
    h.watermark(2)
    assert h.checkpoint() == {}


def test_equal_state_has_equal_bytes() -> None:
    """The bytes of a snapshot do not depend on the order in which records came."""
    rows = [row_of(k, {"n": n}, at) for k, n, at in ((1, "a", 10), (2, "b", 11), (1, "c", 12), (9, "d", 13))]
    taken = []
    for order in (rows, rows[::-1]):
        task = KeyedComputation(make_computation(Scripted), groups=1)
        task.on_records(order)
        task.on_watermark(12)
        taken.append(task.snapshot())
    assert taken[0] == taken[1]


def test_a_record_that_nothing_tells_from_one_restored_waits_beside_it() -> None:
    """Equal in time, order key and content: both are applied, whichever came before the restart; not-a-number is equal to nothing."""
    same = row_of(1, {"n": "a", "x": math.nan}, 10)
    task = KeyedComputation(make_computation(Scripted), groups=1)
    task.on_records([same, same])
    snapshot = {group: data for group, data in task.snapshot().items() if data is not None}
    task = KeyedComputation(make_computation(Scripted), groups=1)
    task.restore(snapshot)
    task.on_records([same, same])
    assert len(task.on_watermark(11).outputs) == 4


def test_state_of_another_version_is_migrated_or_refused() -> None:
    """Old state goes through `migrate`; without one the restore is refused with what to do, before any record."""

    @dataclass
    class Count:
        n: int = 0

    class V2(Computation[Count, NoConfig]):
        State = Count
        state_version = 2

        def process(self, record: Record, state: Count, timers: Timers) -> Iterator[Document]:
            yield {"n": state.n}

    class V2Migrating(V2):
        @classmethod
        def migrate(cls, version: int, state: Any) -> Count:
            assert version == 1
            return Count(len(state["seen"]))

    old = harness()
    old.record({"k": 1, "n": "a"}, 1)
    old.watermark(2)
    snapshot = old.checkpoint()
    with pytest.raises(StateError, match=r"version 1.*--without-state"):
        KeyedComputation(make_computation(V2), groups=16).restore(dict(snapshot))
    task = KeyedComputation(make_computation(V2Migrating), groups=16)
    task.restore(snapshot, 2)
    task.on_records([row_of(1, {}, 5)])
    assert task.on_watermark(6).outputs[0].value == {"n": 1}


def test_broken_state_is_refused() -> None:
    """Bytes that no snapshot has, or of another number of groups, are an error that names the group."""
    old = harness()
    old.record({"k": 1, "n": "a"}, 1)
    (group, data), (run, rows) = old.checkpoint().items()
    with pytest.raises(StateError, match="the state of a computation"):
        KeyedComputation(make_computation(Scripted)).restore({group: data[:-3], run: rows})
    with pytest.raises(StateError, match="number of groups"):
        KeyedComputation(make_computation(Scripted), groups=1999).restore({group: data, run: rows})
    for broken in (rows[:-3], rows.replace(b"\x01", b"\x02")):
        with pytest.raises(StateError, match=f"{run}: rows that wait"):
            KeyedComputation(make_computation(Scripted)).restore({group: data, run: broken})


def test_state_under_a_name_of_a_later_version_is_refused() -> None:
    """What a later version adds beside known parts is state, too: who goes back to this one reads what to do."""
    old = harness()
    old.record({"k": 1, "n": "a"}, 1)
    (group, data), _ = old.checkpoint().items()
    with pytest.raises(StateError, match=f"found {group}#z1: a later version of Tidemark wrote it"):
        KeyedComputation(make_computation(Scripted)).restore({group: data, StatePart(f"{group}#z1"): b""})


# --- the batch form ---------------------------------------------------------------------------------------


@dataclass
class Total:
    total: int = 0


class Sums(Computation[Any, NoConfig]):
    """A running sum, by columns."""

    State = Total
    batch_schema = pa.schema([("v", pa.int64()), ("d", pa.timestamp("ms", "UTC"))])

    def process_batch(self, batch: pa.RecordBatch, state: Any, timers: Timers) -> pa.RecordBatch | None:
        sums = []
        for v in batch.column("v").to_pylist():
            if v < 0:
                raise ValueError("negative")
            state.total += v
            sums.append(state.total)
        return pa.RecordBatch.from_arrays(
            [pa.array(sums), batch.column("d"), batch.column("timestamp")], names=["total", "d", "timestamp"]
        )


def test_the_batch_form_gives_what_one_at_a_time_gives() -> None:
    """However many records come together, the result is the same; a record that raises fails alone; dates stay dates."""
    results = []
    for steps in ([100], [12, 14, 100], list(range(10, 30))):
        h = Harness(Sums, key="k", raises=False)
        for i, v in enumerate([3, 4, -1, 5]):
            h.record({"k": 1, "v": v, "d": Date(i)}, 10 + i)
        for w in steps:
            h.watermark(w)
        assert [f.record.value["v"] for f in h.failures if f.record] == [-1]
        results.append(h.records)
    assert [(r.value, r.timestamp) for r in results[0]] == [
        ({"total": 3, "d": Date(0)}, 10),
        ({"total": 7, "d": Date(1)}, 11),
        ({"total": 12, "d": Date(3)}, 13),
    ]
    assert results[0] == results[1] == results[2]
    assert type(results[0][0].value["d"]) is Date


def test_records_of_one_batch_are_records_one_by_one() -> None:
    """The harness' `record_all` gives what `record` gives for each, ties in the order of their coming."""
    rows = [({"k": n % 3, "n": str(n)}, 10 * (n % 4)) for n in range(20)]
    one_by_one, together = harness(), harness()
    for document, at in rows:
        one_by_one.record(document, at)
    together.record_all(rows)
    for h in (one_by_one, together):
        h.end()
    assert together.records == one_by_one.records
    assert len(together.records) == len(rows)
