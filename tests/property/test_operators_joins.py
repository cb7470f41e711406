"""`$join` and `$union` under any schedule: batches, epochs, frames under way, tasks, restarts, other numbers of tasks.

With `lateness: split` the result is the oracle's, whatever the schedule; with `merged`, or where splits were idle, it is the oracle's of
the rows that were not late. The harness holds every row against the watermark that its task has sent (W1).
"""

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.plan_world import CONTEXT, PlanWorld
from tests.oracle import joins as oracle
from tests.oracle.joins import JoinType, Pair, Row
from tidemark.shared.model.values import Document
from tidemark.shared.operators.context import TaskContext

KEYS: list[tuple[Any, Any]] = [("a", "a"), (1, 1), (1, 1.0), (None, None), (None, ...), ("b", "b")]
"""(the key for the oracle, as it stands in the document); `...`: the field is missing."""
MEMORY = st.sampled_from([1, 600, 3_000, 1 << 30])
TYPES = st.sampled_from(["inner", "left", "right", "full"])
ACTION = st.one_of(
    st.tuples(st.just("feed"), st.integers(0, 3), st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.just("feed"), st.integers(0, 1), st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.just("deliver"), st.integers(0, 30), st.integers(1, 5)),
    st.tuples(st.just("epoch")),
    st.tuples(st.just("restart"), st.sampled_from([0, 0, 1, 2, 3])),
)
ACTIONS = st.lists(ACTION, min_size=8, max_size=40)
IDLE = st.tuples(st.just("idle"), st.integers(0, 1), st.integers(0, 1))
Side = list[list[tuple[Row, bytes]]]


@st.composite
def sides(draw: st.DrawFn, first_value: int) -> Side:
    """One or two splits of rows, with keys that are equal in several forms, out of order by chance; maybe none."""
    found = []
    for split in range(draw(st.integers(1, 2))):
        times = draw(st.lists(st.integers(0, 30), min_size=draw(st.sampled_from([0, 8])), max_size=16))
        times = draw(st.sampled_from([times, sorted(times), sorted(times)]))
        rows = []
        for position, time in enumerate(times):
            key, written = draw(st.sampled_from(KEYS))
            value = first_value + 100 * split + position
            document = {"ts": {"$date": {"$numberLong": str(time)}}, "v": value}
            if written is not ...:
                document["k"] = written
            rows.append((Row(split, position, time, key, value), json.dumps(document).encode()))
        found.append(rows)
    return found


def kept_in(memory_bytes: int) -> TaskContext:
    """A join keeps so many bytes of rows in memory, and lays others aside."""
    return replace(CONTEXT, join_bytes_max=memory_bytes, shelve=pa.RecordBatchReader.read_all)


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def source(delay: int) -> dict[str, Any]:
    strategy = {"strategy": "boundedDisorder", "maxDelay": ms(delay)}
    return {"$source": {"connectionName": "c", "topic": "t", "timeField": "$ts", "watermark": strategy}}


def join(within: tuple[int, int], kind: str, delay: int, *, name: str = "r") -> dict[str, Any]:
    options = {"before": ms(within[0]), "after": ms(within[1])}
    return {
        "$join": {
            "from": [source(delay)],
            "leftKey": "$k",
            "rightKey": "$k",
            "within": options,
            "type": kind,
            "as": name,
        }
    }


def records(*given_sides: Side) -> dict[str, list[list[bytes]]]:
    return {f"source-{i + 1}": [[data for _, data in split] for split in side] for i, side in enumerate(given_sides)}


def rows(side: Side) -> list[list[Row]]:
    return [[row for row, _ in split] for split in side]


def pairs(documents: list[Document]) -> Counter[tuple[int | None, int | None]]:
    """(left, right) values; a row that stands alone has None."""
    return Counter((d.get("v"), None if d["r"] is None else d["r"]["v"]) for d in documents)


def expected(found: list[Pair]) -> Counter[tuple[int | None, int | None]]:
    return Counter((p.left, p.right) for p in found)


def run(world: PlanWorld, actions: list[tuple[Any, ...]]) -> None:
    for name, *arguments in actions:
        getattr(world, name)(*arguments)
    world.finish()


@given(left=sides(0), right=sides(1000), within=st.tuples(st.integers(0, 8), st.integers(0, 8)), kind=TYPES,
       delay=st.sampled_from([0, 0, 5, 20]), tasks=st.integers(1, 3), memory_bytes=MEMORY, actions=ACTIONS)  # fmt: skip
@settings(max_examples=250)
def test_split_lateness_gives_the_oracles_pairs_under_any_schedule(
    left: Side, right: Side, within: tuple[int, int], kind: JoinType, delay: int, tasks: int, memory_bytes: int,
    actions: list[tuple[Any, ...]],
) -> None:  # fmt: skip
    """Pairs, rows that stand alone and late rows are a function of the rows of each split alone, and nothing comes out behind W1."""
    document = {
        "pipeline": [source(delay), join(within, kind, delay), {"$addFields": {"n": 1}}],
        "options": {"lateness": "split"},
    }
    counts = {"source-1": 1 + tasks % 2, "source-2": 2 - tasks % 2, "join-1": tasks}
    world = PlanWorld(document, records(left, right), counts, kept_in(memory_bytes))
    run(world, actions)
    (taken_left, late_left), (taken_right, late_right) = (oracle.on_time(rows(s), delay) for s in (left, right))
    found = oracle.joined(taken_left, taken_right, *within, kind)
    assert pairs(world.documents()) == expected(found)
    assert Counter(d["doc"]["v"] for d in world.dead_letters()) == Counter(r.value for r in late_left + late_right)


@given(left=sides(0), right=sides(1000), within=st.tuples(st.integers(0, 8), st.integers(0, 8)), kind=TYPES,
       delay=st.sampled_from([0, 5, 20]), lateness=st.sampled_from(["merged", "split"]), tasks=st.integers(1, 3),
       memory_bytes=MEMORY, actions=st.lists(ACTION | IDLE, min_size=8, max_size=40))  # fmt: skip
@settings(max_examples=150)
def test_no_row_is_lost_whatever_is_late(  # noqa: PLR0917 -- hypothesis passes them by name
    left: Side, right: Side, within: tuple[int, int], kind: JoinType, delay: int, lateness: str, tasks: int, memory_bytes: int,
    actions: list[tuple[Any, ...]],
) -> None:  # fmt: skip
    """With merged lateness or splits that idle, a row is in the dead letters or in the result, which is the oracle's of the others."""
    document = {"pipeline": [source(delay), join(within, kind, delay)], "options": {"lateness": lateness}}
    world = PlanWorld(document, records(left, right), {"join-1": tasks}, kept_in(memory_bytes))
    run(world, actions)
    letters = world.dead_letters()
    assert {d["errInfo"]["reason"] for d in letters} <= {"Input document arrived late."}
    late = Counter(d["doc"]["v"] for d in letters)
    assert max(late.values(), default=1) == 1
    a, b = ([row for split in rows(side) for row in split if not late[row.value]] for side in (left, right))
    assert pairs(world.documents()) == expected(oracle.joined(a, b, *within, kind))


@given(left=sides(0), right=sides(1000), within=st.tuples(st.integers(0, 8), st.integers(0, 8)), delay=st.sampled_from([0, 5]),
       size=st.integers(2, 15), lateness=st.sampled_from(["merged", "split"]), tasks=st.integers(1, 3),
       actions=st.lists(ACTION | IDLE, min_size=8, max_size=40))  # fmt: skip
@settings(max_examples=150)
def test_a_window_behind_a_join_loses_no_row_however_idle_the_splits(
    left: Side, right: Side, within: tuple[int, int], delay: int, size: int, lateness: str, tasks: int,
    actions: list[tuple[Any, ...]],
) -> None:  # fmt: skip
    """What one task of the join still holds is in time for the window behind it, whatever the others have said."""
    group = {"$group": {"_id": None, "values": {"$addToSet": "$v"}}}
    window = {"$tumblingWindow": {"interval": ms(size), "allowedLateness": ms(0), "pipeline": [group]}}
    pipeline = [source(delay), join(within, "left", delay), window]
    counts = {"source-1": 2, "source-2": 1, "join-1": tasks}
    world = PlanWorld({"pipeline": pipeline, "options": {"lateness": lateness}}, records(left, right), counts)
    run(world, actions)
    letters = world.dead_letters()
    assert {d["errInfo"]["path"].split(".")[0] for d in letters} <= {"pipeline[0]", "pipeline[1]"}
    late = {d["doc"]["v"] for d in letters}
    came = {v for d in world.documents() for v in d["values"]}
    assert came | late >= {row.value for split in rows(left) for row in split}


@given(streams=st.lists(sides(0), min_size=3, max_size=3), within=st.tuples(st.integers(0, 8), st.integers(0, 8)),
       kinds=st.tuples(TYPES, TYPES), delay=st.sampled_from([0, 5, 20]), tasks=st.integers(1, 3), actions=ACTIONS)  # fmt: skip
@settings(max_examples=100)
def test_a_join_behind_a_join_behind_a_window_takes_what_they_give(
    streams: list[Side], within: tuple[int, int], kinds: tuple[JoinType, JoinType], delay: int, tasks: int,
    actions: list[tuple[Any, ...]],
) -> None:  # fmt: skip
    """Held watermarks carry on: nothing that a join gives is late for the next join, nor for a window behind both."""
    window = {"$tumblingWindow": {
        "interval": ms(10), "allowedLateness": 0, "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}],
    }}  # fmt: skip
    document = {
        "pipeline": [
            source(delay),
            join(within, kinds[0], delay, name="first"),
            {"$addFields": {"k": {"$ifNull": ["$k", "$first.k"]}}},
            join(within, kinds[1], delay, name="second"),
            window,
        ],
        "options": {"lateness": "split"},
    }
    world = PlanWorld(document, records(*streams), {"join-1": tasks, "join-2": 1 + tasks % 3})
    run(world, actions)
    taken = [oracle.on_time(rows(side), delay)[0] for side in streams]
    first = oracle.joined(taken[0], taken[1], *within, kinds[0])
    # The rows of both streams have numbers of their own only within their stream. Keys of a pair are equal: either has it.
    lefts, rights = ({r.value: r.key for r in side} for side in taken[:2])
    keys = [rights[p.right] if p.right is not None else lefts[p.left or 0] for p in first]
    middle = [Row(9, i, p.time_ms, key, i) for i, (p, key) in enumerate(zip(first, keys, strict=True))]
    second = oracle.joined(middle, taken[2], *within, kinds[1])
    counted = Counter(p.time_ms // 10 for p in second)
    assert Counter(d["n"] for d in world.documents()) == Counter(counted.values())
    late = [r.value for side in streams for r in oracle.on_time(rows(side), delay)[1]]
    assert Counter(d["doc"]["v"] for d in world.dead_letters()) == Counter(late)


@given(
    streams=st.lists(sides(0), min_size=3, max_size=3),
    delay=st.sampled_from([0, 5, 20]),
    tasks=st.integers(1, 2),
    actions=ACTIONS,
)
@settings(max_examples=100)
def test_a_union_of_three_is_one_stream_to_a_window(
    streams: list[Side], delay: int, tasks: int, actions: list[tuple[Any, ...]]
) -> None:
    """A window holds the rows of all streams, in the order of (time, partition, stream, position), under any schedule."""
    window = {"$tumblingWindow": {
        "interval": ms(10), "allowedLateness": 0,
        "pipeline": [{"$group": {"_id": None, "rows": {"$push": {"$concatArrays": [["$stream", "$v"]]}}}},
                     {"$addFields": {"start": {"$meta": "stream.window.start"}}}],
    }}  # fmt: skip
    branches = [[source(delay), {"$addFields": {"stream": number}}] for number in (1, 2)]
    document = {
        "pipeline": [source(delay), {"$addFields": {"stream": 0}}, {"$union": {"pipelines": branches}}, window],
        "options": {"lateness": "split"},
    }
    world = PlanWorld(document, records(*streams), {f"source-{i}": tasks for i in (1, 2, 3)})
    run(world, actions)
    found: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for stream, side in enumerate(streams):
        for split in rows(side):
            highest = None
            for row in split:
                if highest is None or highest - delay < row.time_ms // 10 * 10 + 10:
                    key = (row.time_ms, row.split, stream, row.position, row.value)
                    found.setdefault(row.time_ms // 10 * 10, []).append(key)
                highest = row.time_ms if highest is None else max(highest, row.time_ms)
    wanted = {start: [[k[2], k[4]] for k in sorted(keys)] for start, keys in found.items()}
    assert {int(d["start"]): d["rows"] for d in world.documents()} == wanted
