# ruff: noqa: N802 -- a test carries its rule's name
"""The source's front: watermarks of splits, idleness, jumps, dead letters, and what a restart keeps."""

import itertools
import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from tests.harness.fronted import Fronted
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import BoundedDisorder, MaxSeen, Percentile, Perfect, Watermark
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import EdgeId, Epoch, SplitId
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Binary, Date
from tidemark.shared.operators.base import AWAY, GROUP, KEY, TS, WM, OperatorError, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.keygroups import key_group
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.operators.watermarks import SplitClock, accept, advance, watermark_of

A, B = SplitId("t-0"), SplitId("t-1")


def records(split: SplitId, *times: int, at: int = 0, texts: list[bytes | None] | None = None) -> RawBatch:
    """Records of a split with these event times (or these texts), that arrive at 1000, 1001 and so on."""
    lines = (
        texts if texts is not None else [json.dumps({"t": {"$date": {"$numberLong": str(t)}}}).encode() for t in times]
    )
    positions = np.arange(at, at + len(lines), dtype=np.int64)
    return RawBatch(split, int(split[-1]), positions, positions + 1000, pa.array(lines, type=pa.binary()))


def front(splits: dict[SplitId, int] | None = None, **options: Any) -> Fronted:
    given = {"connectionName": "c", "topic": "t", "timeField": "$t", "schema": {"t": "date?"}, **options}
    source = {name: value for name, value in given.items() if value is not None}
    processor = parse({"pipeline": [{"$source": source}]})
    made = Fronted(FrontSpec(processor.source), TaskContext("p", "i", "t"))
    made.assign(splits if splits is not None else {A: 0, B: 1})
    return made


def rows(outs: list[Out]) -> pa.Table:
    return pa.Table.from_batches([o.batch for o in outs if o.port == OUT])


def letters(outs: list[Out]) -> list[dict[str, Any]]:
    return [d for o in outs if o.port == DLQ for d in documents_of(o.batch)]


# --- strategies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [MaxSeen(), BoundedDisorder(7), Percentile(0.1, 40)])
@pytest.mark.parametrize("cut", [0, 1, 3, 9])
def test_W2_watermarks_do_not_depend_on_where_batches_are_cut(strategy: Watermark, cut: int) -> None:
    """A split's watermark before each record is a function of the records before it."""
    times = np.array([5, 3, 30, 29, 8, 31, 60, 2, 61, 90], dtype=np.int64)
    whole, parts = SplitClock(), SplitClock()
    expected = advance(whole, times, strategy)
    found = np.concatenate([advance(parts, times[:cut], strategy), advance(parts, times[cut:], strategy)])
    assert found.tolist() == expected.tolist()
    assert watermark_of(parts, strategy) == watermark_of(whole, strategy)
    assert found[0] == MIN_TIME
    assert found.tolist() == sorted(found.tolist())


def test_W2_bounded_disorder_is_the_highest_time_less_the_delay() -> None:
    """W2: nothing else moves it."""
    clock = SplitClock()
    assert advance(clock, np.array([10, 5, 20], dtype=np.int64), BoundedDisorder(7)).tolist() == [MIN_TIME, 3, 3]
    assert watermark_of(clock, BoundedDisorder(7)) == 13


STRATEGIES: tuple[Watermark, ...] = (MaxSeen(), BoundedDisorder(500), BoundedDisorder(20), Percentile(0.1, 1_000))


@pytest.mark.parametrize(("first", "then"), list(itertools.permutations(STRATEGIES, 2)))
def test_W1_a_watermark_does_not_fall_where_its_strategy_is_modified(first: Watermark, then: Watermark) -> None:
    """It waits until the new strategy has come as far, by whatever was kept of the first."""
    draw = np.random.default_rng(7)
    times = np.arange(0, 5_000, 5, dtype=np.int64) + draw.integers(0, 300, 1_000)
    clock = SplitClock()
    advance(clock, times[:500], first)
    clock = msgspec.json.decode(msgspec.json.encode(clock), type=SplitClock)
    given = watermark_of(clock, first)
    assert given <= watermark_of(clock, then)
    before = advance(clock, times[500:], then)
    assert given <= int(before.min())
    assert (np.diff(before) >= 0).all()
    assert watermark_of(clock, then) > given


def test_a_promise_of_order_that_is_broken_is_an_error() -> None:
    """`perfect` gives no late data but stops, naming both times."""
    with pytest.raises(OperatorError, match=r"event time 5 ms follows 10 ms"):
        advance(SplitClock(), np.array([10, 5], dtype=np.int64), Perfect())


@pytest.mark.parametrize("fraction", [0.01, 0.05, 0.2])
def test_the_percentile_strategy_keeps_to_its_fraction(fraction: float) -> None:
    """Of a long, steady disorder at most about the declared fraction comes behind the watermark, and it does not wait for all."""
    random = np.random.default_rng(7)
    sent = np.arange(20_000, dtype=np.int64) * 10
    times = (sent - random.exponential(500, len(sent))).astype(np.int64)
    clock = SplitClock()
    advance(clock, times, Percentile(fraction, 20_000))
    assert clock.late / clock.seen <= fraction
    assert watermark_of(clock, Percentile(fraction, 20_000)) > int(times.max()) - 500 * 12


def test_a_jump_is_believed_when_three_more_agree() -> None:
    """`maxEventTimeJump`: one wild time moves nothing; a true gap is taken with the third that agrees; one that does not begins anew."""
    clock = SplitClock()
    times = [10, 900, 11, 900, 901, 902, 12, 900, 905, 903, 904, 906]
    taken = accept(clock, np.array(times, dtype=np.int64), 50)
    assert [t for t, ok in zip(times, taken, strict=True) if ok] == [10, 11, 12, 904, 906]


@pytest.mark.parametrize("cut", range(1, 11))
def test_a_jump_is_judged_alike_wherever_batches_are_cut(cut: int) -> None:
    """The suspicion lies in the split's state."""
    times = np.array([10, 900, 11, 900, 901, 902, 903, 950, 20, 5000, 960], dtype=np.int64)
    whole = accept(SplitClock(), times, 50)
    clock = SplitClock()
    found = []
    for part in (times[:cut], times[cut:]):
        taken = accept(clock, part, 50)
        advance(clock, part[taken], MaxSeen())
        found += taken.tolist()
    assert found == whole.tolist()


# --- over splits ------------------------------------------------------------------------------------------------------


def test_W2_the_slowest_split_holds_the_watermark_and_one_without_data_holds_it_all() -> None:
    """W2, W3: the minimum over splits; MIN_TIME until each has had data."""
    source = front()
    source.on_records(records(A, 50))
    assert source.output_watermark() == MIN_TIME
    source.on_records(records(B, 20))
    assert source.output_watermark() == 20


def test_W2_a_new_split_holds_the_watermark_and_does_not_lower_it() -> None:
    """Until it has said more than all have said, nothing moves; then the least of all splits counts again."""
    source = front({A: 0})
    source.on_records(records(A, 50))
    source.assign({B: 1})
    assert source.output_watermark() == 50
    source.on_records(records(A, 90, at=1))
    assert source.output_watermark() == 50
    source.on_records(records(B, 40))
    assert source.output_watermark() == 50
    source.on_records(records(B, 70, at=1))
    assert source.output_watermark() == 70


def test_W2_strategies_are_in_the_snapshot() -> None:
    """A restored split goes on from the watermark that its strategy had reached, whatever its next records are."""
    source = front({A: 0}, watermark={"strategy": "boundedDisorder", "maxDelay": {"size": 7, "unit": "ms"}})
    source.on_records(records(A, 50))
    again = Fronted(source.spec, source.context)
    again.restore({p: d for p, d in source.snapshot().items() if d is not None}, source.output_watermark())
    again.assign({A: 0})
    assert rows(again.on_records(records(A, 10, 20, at=1))).column(WM).to_pylist() == [43, 43]
    assert again.split_watermarks() == {A: (43, "active", False)}


def test_W3_an_idle_split_is_left_out_and_its_return_lowers_nothing() -> None:
    """W3: the output never falls, also when the one that returns is behind."""
    source = front()
    source.on_records(records(A, 50))
    source.on_status(B, "idle")
    assert source.output_watermark() == 50
    source.on_records(records(B, 20))
    assert source.output_watermark() == 50
    source.on_records(records(A, 70, at=1))
    assert source.output_watermark() == 50
    source.on_records(records(B, 60, at=1))
    assert source.output_watermark() == 60


def test_W3_E1_all_idle_takes_the_highest_and_all_ended_the_end_of_time() -> None:
    """W3, E1."""
    source = front()
    source.on_records(records(A, 50))
    source.on_records(records(B, 20))
    source.on_status(A, "idle")
    assert source.output_watermark() == 20
    source.on_status(B, "idle")
    assert source.output_watermark() == 50
    assert source.idle()
    source.on_status(A, "finished")
    assert not source.ended()
    source.on_status(B, "finished")
    assert source.ended()
    assert not source.idle()
    assert source.output_watermark() == MAX_TIME


def test_W3_a_task_without_splits_is_idle_and_has_no_watermark() -> None:
    """W3."""
    source = front({})
    assert source.idle()
    assert not source.ended()
    assert source.output_watermark() == MIN_TIME


def test_a_split_that_returns_is_away_until_it_has_caught_up_with_the_receivers() -> None:
    """Its rows are marked, so that the receiver judges them (SF2); also over a restart."""
    source = front()
    source.input.places = frozenset({(EdgeId("e"), 0)})
    source.on_records(records(A, 50))
    source.on_status(B, "idle")
    back = rows(source.on_records(records(B, 20)))
    assert back.column(AWAY).to_pylist() == [True]
    source.input.taken(Epoch(3), rows=True)
    source.input.heard(EdgeId("e"), 0, Epoch(3), 60, full=False)
    again = Fronted(source.spec, source.context)
    again.restore({p: d for p, d in source.snapshot().items() if d is not None}, source.output_watermark())
    again.assign({A: 0, B: 1})
    for one in (source, again):
        assert rows(one.on_records(records(B, 59, at=1))).column(AWAY).to_pylist() == [True]
        assert rows(one.on_records(records(B, 60, at=2))).column(AWAY).to_pylist() == [True]
        assert AWAY not in rows(one.on_records(records(B, 61, at=3))).column_names
        assert one.split_watermarks()[B] == (61, "active", False)


def test_F5_the_brokers_timestamp_is_not_the_event_time() -> None:
    """Event time, order and watermark come from the document's field alone: a record that is sent again later changes nothing."""
    first, later = front({A: 0}), front({A: 0})
    once = records(A, 50, 20, 60)
    again = RawBatch(once.split, once.partition, once.positions, once.timestamps_ms + 86_400_000, once.values)
    outs, resent = rows(first.on_records(once)), rows(later.on_records(again))
    assert outs.column(TS).to_pylist() == resent.column(TS).to_pylist() == [50, 20, 60]
    assert outs.column(WM).to_pylist() == resent.column(WM).to_pylist() == [MIN_TIME, 50, 50]
    assert first.output_watermark() == later.output_watermark() == 60


# --- records ----------------------------------------------------------------------------------------------------------


def test_dead_letters_say_what_was_wrong_and_move_nothing() -> None:
    """Undecodable bytes, a time that is none, a jump: each a letter with its place; the watermark is the good records' (SF1)."""
    source = front({A: 0}, maxEventTimeJump={"size": 100, "unit": "ms"})
    good = json.dumps({"t": {"$date": {"$numberLong": "10"}}}).encode()
    wild = json.dumps({"t": {"$date": {"$numberLong": "5000"}}}).encode()
    outs = source.on_records(records(A, texts=[good, b"\xff{", None, b'{"x":1}', b'{"t":"soon"}', wild]))
    assert rows(outs).column(TS).to_pylist() == [10]
    found = {d["_stream_meta"]["source"]["offset"]: d for d in letters(outs)}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert found[1]["doc"] == Binary(b"\xff{")
    assert found[2]["doc"] == Binary(b"")
    assert found[3]["doc"] == {"x": 1}
    assert found[4]["errInfo"]["path"] == "t"
    assert found[5]["doc"] == {"t": Date(5000)}
    assert all(d["_stream_meta"]["source"]["topic"] == "t" and d["operatorName"] == "$source" for d in found.values())
    assert [int(found[n]["dlqTime"]) for n in sorted(found)] == [1001, 1002, 1003, 1004, 1005]
    assert source.output_watermark() == 10
    assert source.counters()["undecoded"] + source.counters()["noEventTime"] + source.counters()["eventTimeJumps"] == 5


def test_a_record_of_a_topic_without_a_timestamp_has_no_event_time() -> None:
    """Without `timeField`: one that Kafka has no time of (-1), or one beyond all event times, is no moment of 1969, and moves nothing."""
    made = front(timeField=None)
    batch = replace(records(A, 1, 2, 3, 4), timestamps_ms=np.array([50, -1, 2**63 - 1, 60], dtype=np.int64))
    outs = made.on_records(batch)
    assert rows(outs).column(TS).to_pylist() == [50, 60]
    assert [(letter["errInfo"]["code"], letter["errInfo"]["reason"]) for letter in letters(outs)] == [
        ("NoEventTime", "The record has no timestamp of its own; name its time in timeField."),
        ("NoEventTime", "The event time 9223372036854775807 ms is beyond ±2^61."),
    ]


def test_repeats_are_dropped_before_they_move_anything() -> None:
    """A repeated record counts once: not in the rows, not in the late ones."""
    source = front({A: 0}, recordId="$t")
    assert rows(source.on_records(records(A, 10, 50, 10, 50, 9))).column(WM).to_pylist() == [MIN_TIME, 10, 50]
    assert source.counters()["duplicates"] == 2
    assert source.counters()["behindWatermark"] == 1


def test_W2_a_repeat_that_may_come_in_any_split_is_a_record_of_its_own_split() -> None:
    """It is looked for behind the watermarks, by its key. Without an id it goes anywhere; what fails is a letter."""
    spec = replace(front(recordId={"$divide": [1, "$n"]}, schema={"t": "date?", "n": "int?"}).spec, key_groups=8)
    source = Fronted(spec, TaskContext("p", "i", "t"))
    source.assign({A: 0, B: 1})
    source.on_records(records(A, texts=[line(10, 2), line(50, 4)]))
    outs = source.on_records(records(B, texts=[line(50, 4), line(20, None), line(30, None), line(99, 0)]))
    found = rows(outs)
    assert found.column(WM).to_pylist() == [MIN_TIME, 50, 50]
    assert found.column(KEY).to_pylist() == [canonical_key(0.25), None, None]
    assert found.column(GROUP).to_pylist() == [key_group(canonical_key(0.25), 8), 1, 2]
    assert [letter["_stream_meta"]["source"]["offset"] for letter in letters(outs)] == [3]
    assert source.output_watermark() == 50
    assert source.counters()["duplicates"] == 0


def line(time_ms: int, number: int | None) -> bytes:
    return json.dumps({"t": {"$date": {"$numberLong": str(time_ms)}}, "n": number}).encode()


def test_C6_a_restart_goes_on_as_if_there_had_been_none() -> None:
    """Clock, ids and status of each split are in its own parts; a second snapshot writes only what changed."""
    source = front({A: 0, B: 1}, recordId="$t")
    source.on_records(records(A, 10, 50))
    source.on_records(records(B, 30))
    parts = {p: d for p, d in source.snapshot().items() if d is not None}
    source.on_records(records(A, 70, at=2))
    assert {p.partition("#")[0] for p in source.snapshot()} == {"split:t-0"}
    again = Fronted(source.spec, source.context)
    again.restore(parts, 30)
    again.assign({A: 0, B: 1})
    assert again.output_watermark() == 30
    assert rows(again.on_records(records(A, 10, 60, at=2))).column(WM).to_pylist() == [50]
    assert again.split_watermarks() == {A: (60, "active", False), B: (30, "active", False)}


def test_a_script_raises_the_watermark_and_never_lowers_it() -> None:
    """D2; and what comes is judged by it."""
    source = front({A: 0})
    for time_ms in (40, 30):
        source.front.raise_to([A], time_ms)
    assert source.front.watermarks([A]) == {A: 40}
    assert rows(source.on_records(records(A, 41, 60))).column(WM).to_pylist() == [40, 41]
    assert source.output_watermark() == 60


def test_records_of_a_split_that_is_not_the_tasks_are_refused() -> None:
    """A driver's mistake is named, not swallowed."""
    with pytest.raises(OperatorError, match="t-1"):
        front({A: 0}).front.on_records(records(B, 1))
