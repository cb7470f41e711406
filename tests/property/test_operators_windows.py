"""Windows under any schedule: batches, epochs, frames under way, tasks, restarts.

With `lateness: split` the result is the oracle's; with `merged` every record is in a result or late with a reason.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.window_world import World
from tests.oracle import windows as oracle
from tests.oracle.windows import Record
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.stages import Gathering, HoppingWindow, InnerStage
from tidemark.shared.language.stages.base import Passed, apply_stages
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


_ROOM = st.integers(1, 6)
_KEYS = st.dictionaries(st.sampled_from(["k", "v", "none"]), st.sampled_from([1, -1]), min_size=1, max_size=2)
_SORT = st.builds(lambda keys: {"$sort": keys}, _KEYS)
_LIMIT = st.builds(lambda count: {"$limit": count}, _ROOM)
_PASSING = st.one_of(
    _SORT,
    _LIMIT,
    st.builds(lambda count: {"$skip": count}, st.integers(0, 3)),
    st.builds(lambda count: {"$match": {"v": {"$mod": [count, 0]}}}, _ROOM),
    st.sampled_from([
        {"$unset": "k"}, {"$addFields": {"w": {"$add": ["$v", 1]}}}, {"$project": {"k": 1}}, {"$match": {"k": "a"}},
    ]),
)  # fmt: skip
_LAST = st.sampled_from([
    {"$count": "c"},
    {"$group": {"_id": "$k", "first": {"$first": "$v"}, "n": {"$sum": 1}}},
    {"$group": {"_id": {"is": "$k"}, "last": {"$last": "$ts"}, "whole": {"$first": "$$ROOT"}}},
    {"$group": {"_id": None, "checked": {"$max": {"$cond": [{"$eq": [{"$mod": ["$v", 2]}, 0]}, "$v", {"$sqrt": -1}]}}}},
])  # fmt: skip


@st.composite
def of_all(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Stages of a window, the last of which may gather its rows into new documents."""
    first = draw(st.sampled_from([[], [_LIMIT], [_SORT, _LIMIT], [_SORT]]))
    stages = [draw(each) for each in first] + draw(st.lists(_PASSING, max_size=2))
    return stages + draw(st.lists(_LAST, max_size=1))


_START = {"$addFields": {"start": {"$meta": "stream.window.start"}}}


def _by_start(documents: list[Document]) -> dict[int, list[Document]]:
    """The documents of each window, in their order."""
    found: dict[int, list[Document]] = {}
    for each in documents:
        found.setdefault(int(each["start"]), []).append({n: v for n, v in each.items() if n != "start"})
    return found


def _in_order(windows: dict[int, list[Document]]) -> dict[int, list[Document]]:
    """The groups of each window in one order: nothing says in which they come."""
    return {start: sorted(each, key=repr) if "_id" in each[0] else each for start, each in windows.items()}


@given(given_splits=splits(), grid=grids(), typed=st.booleans(), tasks=st.integers(1, 3), actions=ACTIONS,
       stages=of_all(), time=st.sampled_from(["end", "end", "earliest"]))  # fmt: skip
@settings(max_examples=150)
def test_windows_that_see_all_their_rows_give_what_their_stages_give_on_lists(
    given_splits: list[list[Record]], grid: tuple[int, int, int], typed: bool, tasks: int, actions: list[tuple[Any, ...]],
    stages: list[dict[str, Any]], time: str,
) -> None:  # fmt: skip
    """No schedule, and nothing that is left behind on the way, shows in what comes out, nor in the documents of dead letters."""
    size, hop, _ = grid
    window = {"$hoppingWindow": {"interval": ms(size), "hopSize": ms(hop), "outputTime": time}}
    doc = document(window, lateness="split", delay=1_000, typed=typed, order=False)
    (inside,) = (stage for stage in doc["pipeline"][1].values())
    records = [[raw(r) for r in split] for split in given_splits]
    found = []
    for pipeline in ([{"$group": {"_id": None, "all": {"$push": "$$ROOT"}}}], stages):
        inside["pipeline"] = [*pipeline, _START]
        world = World(doc, records, tasks)
        run(world, _within(actions, len(given_splits)))
        found.append(world)
    parsed = parse(doc).pipeline[1]
    assert isinstance(parsed, HoppingWindow)
    wanted: dict[int, list[Document]] = {}
    failing: set[str] = set()
    for each in found[0].documents():
        left, failed = _gathered(parsed.pipeline[: len(stages)], each["all"])
        failing.update(failed)
        if left:
            wanted[int(each["start"])] = left
    assert _in_order(_by_start(found[1].documents())) == _in_order(wanted)
    assert {repr(d["doc"]) for d in found[1].dead_letters()} == failing


def _gathered(stages: Sequence[InnerStage], documents: list[Document]) -> tuple[list[Document], list[str]]:
    """What stages make of the documents of a window, and those that they fail on."""
    failed: list[str] = []
    for stage in stages:
        if isinstance(stage, Gathering):
            try:
                documents = stage.gather(documents, Environment({}))
            except ExpressionError:
                bad = [d for d in documents if _fails(stage, d)]
                failed += map(repr, bad)
                documents = stage.gather([d for d in documents if not _fails(stage, d)], Environment({}))
        else:
            passed = [outcome for d in documents for outcome in apply_stages([stage], d, Environment({}))]
            documents = [d for outcome in passed if isinstance(outcome, Passed) for d in outcome.documents]
    return documents, failed


def _fails(stage: Gathering, document: Document) -> bool:
    try:
        stage.gather([document], Environment({}))
    except ExpressionError:
        return True
    return False


def _within(actions: list[tuple[Any, ...]], count: int) -> list[tuple[Any, ...]]:
    """Feeds name a split that there is."""
    return [(a[0], a[1] % count, a[2]) if a[0] == "feed" else a for a in actions]
