"""Windows behind windows under any schedule: batches, epochs, frames under way, tasks, restarts.

With `lateness: split` the chain's result is the oracle's, composed; with `merged` every record is in it or late with a reason. What
the first window gives is never late for the second.
"""

import json
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.plan_world import PlanWorld
from tests.oracle import windows as oracle
from tests.oracle.windows import Record

ACTION = st.one_of(
    st.tuples(st.just("feed"), st.just(0), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("deliver"), st.integers(0, 8), st.integers(1, 4)),
    st.tuples(st.just("epoch")),
    st.tuples(st.just("restart"), st.integers(0, 3)),
)
ACTIONS = st.lists(ACTION, min_size=4, max_size=40)
IDLE = st.tuples(st.just("idle"), st.just(0), st.integers(0, 2))
IDLING = st.lists(ACTION | IDLE, min_size=4, max_size=40)
OUTPUT_TIMES = st.sampled_from(["end", "earliest", "latest"])


@st.composite
def splits(draw: st.DrawFn) -> list[list[Record]]:
    """One to three splits of records, out of order by chance."""
    found = []
    for split in range(draw(st.integers(1, 3))):
        times = draw(st.lists(st.integers(-20, 60), max_size=16))
        keys = draw(st.lists(st.sampled_from(["a", "b"]), min_size=len(times), max_size=len(times)))
        rows = zip(times, keys, strict=True)
        found.append([Record(split, i, t, k, 100 * split + i) for i, (t, k) in enumerate(rows)])
    return found


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def raw(record: Record) -> bytes:
    return json.dumps(
        {"ts": {"$date": {"$numberLong": str(record.time_ms)}}, "k": record.key, "v": record.value}
    ).encode()


def document(first: dict[str, Any], size: int, *, lateness: str, delay: int) -> dict[str, Any]:
    """A window, and behind it one of `size` that collects what the first gave."""
    source = {
        "connectionName": "c", "topic": "t", "timeField": "$ts",
        "watermark": {"strategy": "boundedDisorder", "maxDelay": ms(delay)},
    }  # fmt: skip
    name, options = next(iter(first.items()))
    inner = [{"$group": {"_id": "$k", "n": {"$sum": 1}, "values": {"$push": "$v"}}}]
    outer = [
        {"$group": {"_id": None, "windows": {"$sum": 1}, "n": {"$sum": "$n"}, "all": {"$push": "$values"}}},
        {"$addFields": {"start": {"$meta": "stream.window.start"}}},
    ]
    return {
        "pipeline": [
            {"$source": source},
            {name: {**options, "pipeline": inner}},
            {"$tumblingWindow": {"interval": ms(size), "allowedLateness": ms(0), "pipeline": outer}},
        ],
        "options": {"lateness": lateness},
    }


def played(
    doc: dict[str, Any], given_splits: list[list[Record]], tasks: int, actions: list[tuple[Any, ...]]
) -> PlanWorld:
    world = PlanWorld(doc, {"source-1": [[raw(r) for r in split] for split in given_splits]}, {"source-1": tasks})
    for name, *arguments in actions:
        getattr(world, name)(*arguments)
    world.finish()
    return world


def found(world: PlanWorld) -> Counter[Any]:
    """(start, how many first windows, how many records, their values as a multiset)."""
    return Counter(
        (int(d["start"]), d["windows"], d["n"], tuple(sorted(v for values in d["all"] for v in values)))
        for d in world.documents()
    )


def composed(
    results: list[oracle.Result], times: dict[int, int], size: int, output_time: str, behind: int | None = None
) -> Counter[Any]:
    """What the second window makes of the first one's results; `times`: event times by value, of the elements that were on time.

    `behind`: how long before a window the end of the one before it is, where they overlap (W6).
    """
    held: dict[int, list[oracle.Result]] = defaultdict(list)
    for result in results:
        chosen = [times[v] for v in result.values if v in times]
        if output_time == "end" or not chosen:
            at = result.end_ms - 1
        elif output_time == "earliest":
            at = max(min(chosen), result.start_ms if behind is None else result.end_ms - behind)
        else:
            at = max(chosen)
        held[at // size * size].append(result)
    return Counter(
        (start, len(rows), sum(len(r.values) for r in rows), tuple(sorted(v for r in rows for v in r.values)))
        for start, rows in held.items()
    )


def on_time(given_splits: list[list[Record]], delay: int, lateness: int) -> dict[int, int]:
    """Event times by value, without elements that lay behind their split's watermark less the lateness when they came."""
    found = {}
    for split in given_splits:
        for record, before in zip(split, oracle.watermarks_before(split, delay), strict=True):
            if before is None or record.time_ms >= before - lateness:
                found[record.value] = record.time_ms
    return found


def late_values(world: PlanWorld) -> Counter[int]:
    """Every dead letter is a late record, of the first window."""
    letters = world.dead_letters()
    assert {d["errInfo"]["reason"] for d in letters} <= {"Input document arrived late."}
    assert {d["errInfo"]["path"].split(".")[0] for d in letters} <= {"pipeline[1]"}
    return Counter(d["doc"]["v"] for d in letters)


@given(given_splits=splits(), grid=st.tuples(st.integers(2, 20), st.integers(2, 20)), second=st.integers(2, 40),
       delay=st.sampled_from([0, 3, 15]), lateness=st.sampled_from([0, 2, 10]),
       tasks=st.integers(1, 3), actions=ACTIONS, output_time=OUTPUT_TIMES)  # fmt: skip
@settings(max_examples=60)
def test_a_chain_gives_the_oracles_windows_under_any_schedule(
    given_splits: list[list[Record]], grid: tuple[int, int], second: int, delay: int, lateness: int, tasks: int,
    actions: list[tuple[Any, ...]], output_time: str,
) -> None:  # fmt: skip
    """Hopping windows and what a tumbling one makes of them are a function of the data in each split alone."""
    size, hop = grid
    first = {
        "$hoppingWindow": {
            "interval": ms(size),
            "hopSize": ms(hop),
            "allowedLateness": ms(lateness),
            "outputTime": output_time,
        }
    }
    world = played(document(first, second, lateness="split", delay=delay), given_splits, tasks, actions)
    results, late = oracle.hopping(given_splits, delay, size, hop, 0, lateness)
    times = on_time(given_splits, delay, lateness)
    assert found(world) == composed(results, times, second, output_time, hop if hop < size else None)
    assert late_values(world) == Counter(x.record.value for x in late)


@given(given_splits=splits(), gap=st.integers(1, 20), second=st.integers(2, 40), delay=st.sampled_from([0, 3, 15]),
       lateness=st.sampled_from([0, 2, 10]), tasks=st.integers(1, 3), actions=ACTIONS, output_time=OUTPUT_TIMES)  # fmt: skip
@settings(max_examples=60)
def test_a_chain_of_sessions_gives_the_oracles_windows_under_any_schedule(
    given_splits: list[list[Record]], gap: int, second: int, delay: int, lateness: int, tasks: int,
    actions: list[tuple[Any, ...]], output_time: str,
) -> None:  # fmt: skip
    """Sessions by output time, too."""
    first = {
        "$sessionWindow": {
            "partitionBy": "$k",
            "gap": ms(gap),
            "allowedLateness": ms(lateness),
            "outputTime": output_time,
        }
    }
    world = played(document(first, second, lateness="split", delay=delay), given_splits, tasks, actions)
    results, late = oracle.sessions(given_splits, delay, gap, lateness)
    times = {r.value: r.time_ms for split in given_splits for r in split}
    assert found(world) == composed(results, times, second, output_time)
    assert late_values(world) == Counter(x.record.value for x in late)


@given(given_splits=splits(), size=st.integers(2, 20), second=st.integers(2, 40), delay=st.sampled_from([0, 3, 15]),
       lateness=st.sampled_from([0, 2, 10]), tasks=st.integers(1, 3), actions=ACTIONS, output_time=OUTPUT_TIMES)  # fmt: skip
@settings(max_examples=60)
def test_a_chain_with_merged_lateness_loses_no_record(
    given_splits: list[list[Record]], size: int, second: int, delay: int, lateness: int, tasks: int,
    actions: list[tuple[Any, ...]], output_time: str,
) -> None:  # fmt: skip
    """Every record is once in the second window's result or late for the first; the windows are the oracle's for those in time."""
    first = {"$tumblingWindow": {"interval": ms(size), "allowedLateness": ms(lateness), "outputTime": output_time}}
    world = played(document(first, second, lateness="merged", delay=delay), given_splits, tasks, actions)
    late = late_values(world)
    every = Counter(r.value for split in given_splits for r in split)
    assert late + Counter(v for _, _, _, values in found(world).elements() for v in values) == every
    in_time = [[r for r in split if not late[r.value]] for split in given_splits]
    results, _ = oracle.hopping(in_time, 1_000, size, size, 0, 0)
    if output_time == "end":  # by elements, which were on time depends on how splits interleave
        assert found(world) == composed(results, {}, second, output_time)
