"""Windows under any schedule: batches, epochs, frames under way, tasks, restarts.

With `lateness: split` the result is the oracle's; with `merged` every record is in a result or late with a reason.
"""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.window_world import World
from tests.oracle import windows as oracle
from tests.oracle.windows import Record
from tidemark.shared.model.values import Document

HOUR_MS = 3_600_000
SCHEMA = {"ts": "date", "k": "string?", "v": "int"}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(0, 2), st.integers(1, 6)),
        st.tuples(st.just("deliver"), st.integers(0, 2), st.integers(1, 4)),
        st.tuples(st.just("flush"), st.integers(0, 2)),
        st.tuples(st.just("epoch")),
        st.tuples(st.just("restart")),
    ),
    min_size=4,
    max_size=50,
)


@st.composite
def splits(draw: st.DrawFn) -> list[list[Record]]:
    """One to three splits of records, within some windows of each other, out of order by chance."""
    found = []
    for split in range(draw(st.integers(1, 3))):
        times = draw(st.lists(st.integers(-20, 60), min_size=draw(st.sampled_from([0, 5])), max_size=20))
        keys = draw(st.lists(st.sampled_from(["a", "b", None]), min_size=len(times), max_size=len(times)))
        rows = zip(times, keys, strict=True)
        found.append([Record(split, i, t, k, 100 * split + i) for i, (t, k) in enumerate(rows)])
    return found


@st.composite
def grids(draw: st.DrawFn) -> tuple[int, int, int]:
    """(size, hop, offset), ms: tumbling, overlapping, with gaps."""
    size = draw(st.integers(1, 20))
    hop = draw(st.one_of(st.just(size), st.integers(1, 25)))
    return size, hop, draw(st.integers(-5, 30))


def raw(record: Record) -> bytes:
    document: dict[str, Any] = {"ts": {"$date": {"$numberLong": str(record.time_ms)}}, "v": record.value}
    if record.key is not None:
        document["k"] = record.key
    return json.dumps(document).encode()


def document(window: dict[str, Any], *, lateness: str, delay: int, typed: bool, order: bool) -> dict[str, Any]:
    """A source and one window; `order`: with an accumulator that looks at the order, which no typed column does."""
    fields: dict[str, Any] = {"n": {"$sum": 1}, "sum": {"$sum": "$v"}, "low": {"$min": "$v"}, "mean": {"$avg": "$v"}}
    if order:
        fields["values"] = {"$push": "$v"}
    stages = [
        {"$group": {"_id": "$k", **fields}},
        {"$addFields": {"start": {"$meta": "stream.window.start"}, "end": {"$meta": "stream.window.end"}}},
    ]
    name, options = next(iter(window.items()))
    source = {
        "connectionName": "c", "topic": "t", "timeField": "$ts",
        "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": delay, "unit": "ms"}},
        **({"schema": SCHEMA} if typed else {}),
    }  # fmt: skip
    return {
        "pipeline": [{"$source": source}, {name: {**options, "pipeline": stages}}],
        "options": {"lateness": lateness},
    }


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def run(world: World, actions: list[tuple[Any, ...]]) -> None:
    for name, *arguments in actions:
        getattr(world, name)(*arguments)
    world.finish()


def seen(documents: list[Document], *, order: bool) -> Counter[Any]:
    """Results as the oracle's `expected` counts them."""
    return Counter(
        (
            int(d["start"]), int(d["end"]), d["_id"], d["n"], d["sum"], d["low"], d["mean"],
            tuple(d["values"]) if order else None,
        )
        for d in documents
    )  # fmt: skip


def expected(results: list[oracle.Result], *, order: bool) -> Counter[Any]:
    return Counter(
        (
            r.start_ms, r.end_ms, r.key, len(r.values), sum(r.values), min(r.values), sum(r.values) / len(r.values),
            r.values if order else None,
        )
        for r in results
    )  # fmt: skip


def letters(documents: list[Document]) -> Counter[Any]:
    """(value, starts of missed windows) of late documents; every letter is one."""
    assert {d["errInfo"]["reason"] for d in documents} <= {"Input document arrived late."}
    return Counter((d["doc"]["v"], tuple(sorted(map(int, d.get("missedWindowStartTimes", ()))))) for d in documents)


@pytest.mark.parametrize("typed", [True, False])
@given(given_splits=splits(), grid=grids(), delay=st.sampled_from([0, 0, 3, 15]), lateness=st.sampled_from([0, 0, 2, 10]),
       tasks=st.integers(1, 3), actions=ACTIONS, order=st.booleans())  # fmt: skip
@settings(max_examples=100)
def test_split_lateness_gives_the_oracles_windows_under_any_schedule(
    typed: bool, given_splits: list[list[Record]], grid: tuple[int, int, int], delay: int, lateness: int,
    tasks: int, actions: list[tuple[Any, ...]], order: bool,
) -> None:  # fmt: skip
    """Tumbling and hopping windows and late documents are a function of the data in each split alone."""
    size, hop, offset = grid
    window = {"$hoppingWindow": {
        "interval": ms(size), "hopSize": ms(hop), "offset": {"offsetFromUtc": offset, "unit": "ms"},
        "allowedLateness": ms(lateness),
    }}  # fmt: skip
    doc = document(window, lateness="split", delay=delay, typed=typed, order=order)
    world = World(doc, [[raw(r) for r in split] for split in given_splits], tasks)
    run(world, _within(actions, len(given_splits)))
    results, late = oracle.hopping(given_splits, delay, size, hop, offset, lateness)
    assert seen(world.documents(), order=order) == expected(results, order=order)
    assert letters(world.dead_letters()) == Counter((x.record.value, x.missed) for x in late)


@given(given_splits=splits(), gap=st.integers(1, 20), delay=st.sampled_from([0, 0, 3, 15]), lateness=st.sampled_from([0, 0, 2, 10]),
       tasks=st.integers(1, 3), actions=ACTIONS, order=st.booleans())  # fmt: skip
@settings(max_examples=120)
def test_split_lateness_gives_the_oracles_sessions_under_any_schedule(
    given_splits: list[list[Record]], gap: int, delay: int, lateness: int,
    tasks: int, actions: list[tuple[Any, ...]], order: bool,
) -> None:  # fmt: skip
    """Sessions, and which documents are late for them, are a function of the data in each split alone."""
    window = {"$sessionWindow": {"partitionBy": "$k", "gap": ms(gap), "allowedLateness": ms(lateness)}}
    doc = document(window, lateness="split", delay=delay, typed=True, order=order)
    world = World(doc, [[raw(r) for r in split] for split in given_splits], tasks)
    run(world, _within(actions, len(given_splits)))
    results, late = oracle.sessions(given_splits, delay, gap, lateness)
    assert seen(world.documents(), order=order) == expected(results, order=order)
    assert Counter(v for v, _ in letters(world.dead_letters())) == Counter(x.record.value for x in late)


@given(given_splits=splits(), gap=st.integers(1, 20), kept=st.integers(2, 3), fails=st.booleans(), tasks=st.integers(1, 3),
       actions=ACTIONS)  # fmt: skip
@settings(max_examples=80)
def test_sessions_reach_as_far_as_what_is_dropped_inside_them(
    given_splits: list[list[Record]], gap: int, kept: int, fails: bool, tasks: int, actions: list[tuple[Any, ...]]
) -> None:
    """Documents that the window's own `$match` drops, or its `$group` fails on, are activity: they open, join and merge sessions."""
    document_of = document({"$sessionWindow": {"partitionBy": "$k", "gap": ms(gap)}}, lateness="split", delay=1_000,
                           typed=True, order=True)  # fmt: skip
    (inside,) = (stage["pipeline"] for stage in document_of["pipeline"][1].values())
    if fails:
        inside[0]["$group"]["checked"] = {"$max": {"$cond": [{"$eq": [{"$mod": ["$v", kept]}, 0]}, 1, {"$sqrt": -1}]}}
    else:
        inside.insert(0, {"$match": {"v": {"$mod": [kept, 0]}}})
    world = World(document_of, [[raw(r) for r in split] for split in given_splits], tasks)
    run(world, _within(actions, len(given_splits)))
    results, _ = oracle.sessions(given_splits, 1_000, gap, 0)
    left = [replace(r, values=tuple(v for v in r.values if v % kept == 0)) for r in results]
    assert seen(world.documents(), order=True) == expected([r for r in left if r.values], order=True)
    dropped = [r.value for split in given_splits for r in split if r.value % kept]
    assert Counter(d["doc"]["v"] for d in world.dead_letters()) == Counter(dropped if fails else ())


@given(given_splits=splits(), grid=grids(), delay=st.sampled_from([0, 0, 3, 15]), lateness=st.sampled_from([0, 0, 2, 10]),
       tasks=st.integers(1, 3), actions=ACTIONS)  # fmt: skip
@settings(max_examples=120)
def test_merged_lateness_loses_no_record(
    given_splits: list[list[Record]], grid: tuple[int, int, int], delay: int, lateness: int,
    tasks: int, actions: list[tuple[Any, ...]],
) -> None:  # fmt: skip
    """Every record is once in each of its windows, or a dead letter names the window as missed; no partial comes late."""
    size, hop, offset = grid
    window = {"$hoppingWindow": {
        "interval": ms(size), "hopSize": ms(hop), "offset": {"offsetFromUtc": offset, "unit": "ms"},
        "allowedLateness": ms(lateness),
    }}  # fmt: skip
    doc = document(window, lateness="merged", delay=delay, typed=True, order=True)
    world = World(doc, [[raw(r) for r in split] for split in given_splits], tasks)
    run(world, _within(actions, len(given_splits)))
    in_windows = Counter((v, int(d["start"])) for d in world.documents() for v in d["values"])
    missed = Counter((v, s) for v, starts in letters(world.dead_letters()).elements() for s in starts)
    wanted = Counter(
        (r.value, s) for split in given_splits for r in split for s in oracle.starts_of(r.time_ms, size, hop, offset)
    )
    assert in_windows + missed == wanted
    assert world.step_counters()["latePartials"] == 0
    late_by_split = {
        x.record.value: x.missed for x in oracle.hopping(given_splits, delay, size, hop, offset, lateness)[1]
    }
    assert all(s in late_by_split.get(v, ()) for v, s in missed), "merged found late what its own split would not"


@given(given_splits=splits(), gap=st.integers(1, 20), delay=st.sampled_from([0, 0, 3, 15]), lateness=st.sampled_from([0, 0, 2, 10]),
       tasks=st.integers(1, 3), actions=ACTIONS)  # fmt: skip
@settings(max_examples=120)
def test_merged_sessions_lose_no_record(
    given_splits: list[list[Record]], gap: int, delay: int, lateness: int, tasks: int, actions: list[tuple[Any, ...]]
) -> None:
    """Every record is in one session or late, and each session is one: without a gap, from its first record to its last and the gap.

    Two sessions of a key may overlap: one that has closed is forgotten, and what then comes opens another (D6).
    """
    window = {"$sessionWindow": {"partitionBy": "$k", "gap": ms(gap), "allowedLateness": ms(lateness)}}
    doc = document(window, lateness="merged", delay=delay, typed=True, order=True)
    world = World(doc, [[raw(r) for r in split] for split in given_splits], tasks)
    run(world, _within(actions, len(given_splits)))
    late = Counter(v for v, _ in letters(world.dead_letters()).elements())
    by_value = {r.value: r for split in given_splits for r in split}
    assert late + Counter(v for d in world.documents() for v in d["values"]) == Counter(by_value.keys())
    for found in world.documents():
        rows = [by_value[v] for v in found["values"]]
        assert {r.key for r in rows} == {found["_id"]}
        assert seen([found], order=True) == expected(oracle.grouped_by_gap(found["_id"], rows, gap), order=True)


def _within(actions: list[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """Feeds name a split that there is."""
    return [(a[0], a[1] % count, a[2]) if a[0] == "feed" else a for a in actions]
