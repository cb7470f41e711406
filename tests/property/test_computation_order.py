# ruff: noqa: N802 -- a test carries its rule's name
"""Keyed computations: the output is a function of the input, however records arrive, the watermark moves and the task restarts."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.cold_memory import MemoryColdKeys
from tidemark.shared.computation import Computation, NoConfig, Record, Timer, Timers, make_computation
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import KeyedComputation, Row, Yielded, row_of
from tidemark.shared.operators.computation_keys import Cooling, _entries, _KeySnapshot
from tidemark.shared.operators.computation_parts import by_group, waiting_rows

NAMES = "abc"
KEYS = 3


@dataclass
class Log:
    seen: list[str] = field(default_factory=list)


class Scripted(Computation[Log, NoConfig]):
    """Records and timers set and cancel timers as they say; every step yields all that the key has seen."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(f"r{record.timestamp}")
        for name, after in record.value["set"]:
            timers.set(name, record.timestamp + after)
        for name in record.value["cancel"]:
            timers.cancel(name)
        yield {"key": record.key, "seen": list(state.seen)}

    def on_timer(self, timer: Timer, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen.append(f"{timer.name}{timer.time}")
        if timer.name == "a" and len(state.seen) < 30:
            timers.set("b", timer.time + 3)
            timers.set("a", timer.time + len(state.seen) % 5)
        yield {"seen": list(state.seen)}


Event = tuple[int, int, list[tuple[str, int]], list[str]]
"""key, time, timers to set (name, how far ahead), timers to cancel."""

events = st.lists(
    st.tuples(
        st.integers(0, KEYS - 1),
        st.integers(0, 40),
        st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-8, 12)), max_size=2),
        st.lists(st.sampled_from(NAMES), max_size=1),
    ),
    max_size=25,
)


def rows_of(given_events: list[Event]) -> list[Row]:
    """One row an event, with its place in its split; behind them one for each key, so that each has a last record at the same time."""
    closing: list[Event] = [(k, 41, [], list(NAMES)) for k in range(KEYS)]
    return [
        row_of(key, {"set": [list(s) for s in sets], "cancel": cancels}, at, (0, i))
        for i, (key, at, sets, cancels) in enumerate([*given_events, *closing])
    ]


def plain(rows: list[Row]) -> list[tuple[int, Any, Document]]:
    """By the language's words alone: per key, all things in the order of time, records first; (time, key, document) sorted."""
    outputs = []
    for key in range(KEYS):
        state, script = Log(), Scripted(NoConfig())
        waiting = sorted((r.timestamp_ms, r.order, i) for i, r in enumerate(rows) if r.key_value == key)
        timers: dict[str, tuple[int, int]] = {}
        now = MIN_TIME

        class Fake:
            def set(self, name: str, time: int) -> None:
                timers[name] = (max(time, now), time)  # noqa: B023 - used within the round

            def cancel(self, name: str) -> None:
                timers.pop(name, None)  # noqa: B023

        fake: Any = Fake()
        while waiting:
            first = min(((due, time, name) for name, (due, time) in timers.items()), default=None)
            if first is not None and first[0] < waiting[0][0]:
                now, time, name = first
                del timers[name]
                found = list(script.on_timer(Timer(name, time), state, fake))
            else:
                now, _, index = waiting.pop(0)
                found = list(script.process(Record(key, rows[index].value, now), state, fake))
            outputs += [(now, row_of(key, {}, 0).key, n, d) for n, d in enumerate(found)]
    # Within one time of a key the order of application stands; sorted() is stable.
    return [(t, k, d) for t, k, _, d in sorted(outputs, key=lambda o: o[:2])]


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[Row], list[tuple[str, int]]]:
    """Rows and a valid course: any arrival order, watermarks between that never pass what is still to come, restarts."""
    rows = rows_of(draw(events))
    order = draw(st.permutations(range(len(rows))))
    course: list[tuple[str, int]] = []
    for place, index in enumerate(order):
        course.append(("row", index))
        if draw(st.integers(0, 2)) == 0:
            to_come = min((rows[i].timestamp_ms for i in order[place + 1 :]), default=41)
            course.append(("watermark", draw(st.one_of(st.just(to_come), st.integers(0, to_come)))))
        if draw(st.integers(0, 5)) == 0:
            course.append(("restart", 0))
    return rows, course


def run(
    rows: list[Row],
    course: list[tuple[str, int]],
    cooling: Cooling | None = None,
    items_max: int = MAX_TIME,
    *,
    restarts: bool = False,
    lives_on: bool = False,
) -> tuple[list[Yielded], list[dict[StatePart, bytes]]]:
    """(all that came out, the state at every restart); a watermark in pieces of so many items, perhaps with restarts between them.

    lives_on: the snapshots of restarts are taken, and the same task goes on.
    """

    def fresh() -> KeyedComputation:
        return KeyedComputation(make_computation(Scripted), groups=2, cooling=cooling)

    def restarted(task: KeyedComputation) -> KeyedComputation:
        for group, data in task.snapshot().items():
            if data is None:
                stored.pop(group, None)
            else:
                stored[group] = data
        if lives_on:
            return task
        again = fresh()
        again.restore(dict(stored), task.watermark_ms)
        return again

    task, stored, watermark = fresh(), dict[StatePart, bytes](), MIN_TIME
    outputs: list[Yielded] = []
    states = []
    for what, value in course:
        if what == "row":
            done = task.on_records([rows[value]])
            assert not done.late
            assert not done.outputs
        elif what == "watermark":
            watermark = max(watermark, value)
            while True:
                outputs += task.on_watermark(watermark, items_max).outputs
                if task.watermark_ms >= watermark:
                    break
                assert task.hold() >= task.output_watermark() == task.watermark_ms
                if restarts:
                    task = restarted(task)
            assert task.hold() >= watermark == task.output_watermark()
        else:
            task = restarted(task)
            states.append(dict(stored))
    outputs += task.on_watermark(MAX_TIME).outputs
    assert task.output_watermark() == MAX_TIME
    return outputs, states


@settings(deadline=None, max_examples=300)
@given(schedules())
def test_the_output_is_a_function_of_the_input(schedule: tuple[list[Row], list[tuple[str, int]]]) -> None:
    """Any arrival, any watermarks, any restarts: the outputs, in order, are those of the plain reading of the language."""
    rows, course = schedule
    assert [(o.timestamp_ms, o.key, o.value) for o in run(rows, course)[0]] == plain(rows)


@settings(deadline=None, max_examples=150)
@given(schedules(), st.integers(1, 4), st.lists(st.integers(0, 99), min_size=1, max_size=6))
def test_C6_a_task_that_lives_on_stores_what_a_restored_one_does(
    schedule: tuple[list[Row], list[tuple[str, int]]], items_max: int, once_more: list[int]
) -> None:
    """C6: it keeps the bytes of keys that have not changed since its last snapshot; a restored one has none of them.

    Which run a row lies in is no part of that.
    """
    rows, course = schedule
    count = len(rows)
    for number in once_more:  # some keys change, and behind them a snapshot, while no row waits
        course = [*course, ("watermark", 100 * len(rows)), ("restart", 0), ("row", len(rows))]
        rows = [*rows, rows[number % count]._replace(timestamp_ms=100 * len(rows))]
    lives_on, restored = (run(rows, course, None, items_max, lives_on=each) for each in (True, False))
    assert lives_on[0] == restored[0]
    assert list(map(told, lives_on[1])) == list(map(told, restored[1]))


def told(stored: dict[StatePart, bytes]) -> tuple[dict[StatePart, bytes], list[list[Any]]]:
    """The entries of keys, and the rows that wait."""
    waiting = []
    for names in by_group(stored).values():
        entries = [entry for _, part in reversed(names.keys) for entry in _entries(part, stored[part])]
        found = {entry.key: entry.taken_ms for entry in entries if isinstance(entry, _KeySnapshot)}
        waiting += [list(row.values()) for part in names.runs for row in waiting_rows(stored[part], found).to_pylist()]
    return {part: data for part, data in stored.items() if "#w" not in part}, sorted(waiting)


@settings(deadline=None, max_examples=150)
@given(schedules(), st.integers(1, 4), st.booleans())
def test_pieces_of_a_watermark_give_what_it_gives(
    schedule: tuple[list[Row], list[tuple[str, int]]], items_max: int, restarts: bool
) -> None:
    """Whatever comes due at once, and with a restart between any two of them: the same outputs in the same order."""
    rows, course = schedule
    outputs = run(rows, course, None, items_max, restarts=restarts)[0]
    assert [(o.timestamp_ms, o.key, o.value) for o in outputs] == plain(rows)


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 4), st.booleans())
def test_a_piece_applies_no_more_than_it_may(items_max: int, keys: int, each: int, together: bool) -> None:
    """Many keys at one time, one key at many times, and between: at most so many callbacks a piece, but for one key at one time."""
    task = KeyedComputation(make_computation(Scripted))
    content: Document = {"set": [], "cancel": []}
    rows = [row_of(key, content, 5 if together else n, (0, n)) for n in range(each) for key in range(keys)]
    task.on_records(rows)
    pieces = []
    while task.watermark_ms < 50:
        before = task.counters.records
        task.on_watermark(50, items_max)
        pieces.append(task.counters.records - before)
    assert sum(pieces) == keys * each
    assert max(pieces) <= items_max * (each if together else 1)


@settings(deadline=None, max_examples=150)
@given(schedules(), st.integers(1, 3))
def test_where_keys_lie_makes_no_difference(schedule: tuple[list[Row], list[tuple[str, int]]], kept: int) -> None:
    """With few keys in memory and the others packed: the same outputs, and the same bytes in every snapshot."""
    rows, course = schedule
    assert run(rows, course, Cooling(kept, MemoryColdKeys)) == run(rows, course)


@pytest.mark.parametrize("reverse", [False, True])
def test_records_that_nothing_tells_apart_but_their_content_have_one_order(reverse: bool) -> None:
    """Of one key, time and order key: applied in the order of their bytes, whoever came first."""
    rows = [row_of(1, {"set": [], "cancel": [], "n": n}, 5) for n in (2, 1)]
    seen = []

    class Seeing(Scripted):
        def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
            seen.append(record.value["n"])
            yield {}

    task = KeyedComputation(make_computation(Seeing))
    task.on_records(rows[::-1] if reverse else rows)
    task.on_watermark(6)
    assert seen == [1, 2]
