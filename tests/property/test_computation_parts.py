# ruff: noqa: N802 -- a test carries its rule's name
"""A computation's parts in the snapshot: drawn courses of changes, snapshots that are committed, aborted or lost, restores and rescales."""

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.harness.cold_memory import MemoryColdKeys
from tests.harness.worker_stand import JOB
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.virtual import InlineExecutor, VirtualWorld, run_virtual
from tidemark.shared.computation import Computation, NoConfig, Record, Timers, make_computation
from tidemark.shared.computation.problems import StateError
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.checkpoint import BlobRef, TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import Epoch, Generation, KeyGroup, StatePart, VertexId, groups_owned, owner_of
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.computation import KeyedComputation, Row, Yielded, row_of
from tidemark.shared.operators.computation_keys import Cooling
from tidemark.shared.operators.computation_parts import StateParts, by_group
from tidemark.shared.operators.keygroups import key_group
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.runtime.state import StateBounds, StateStore, blobs_of, load_parts, with_parts

GROUPS, KEYS, VERTEX = 2, 48, VertexId("marks")


@dataclass
class Log:
    seen: list[int] = field(default_factory=list)


class Remembering(Computation[Log, NoConfig]):
    """Tells all that a key has seen; 0 clears it, so that nothing is worth keeping."""

    State = Log

    def process(self, record: Record, state: Log, timers: Timers) -> Iterator[Document]:
        state.seen = [*state.seen, record.value["n"]] if record.value["n"] else []
        yield {"seen": list(state.seen)}


@dataclass
class Model:
    """What a computation is, in plain Python."""

    states: dict[int, list[int]] = field(default_factory=dict)
    waiting: list[Row] = field(default_factory=list)
    watermark_ms: int = 0

    def advance(self, watermark_ms: int) -> list[tuple[int, bytes, list[int]]]:
        """(time, key, all that it has seen) of the rows below the watermark."""
        self.watermark_ms = watermark_ms
        due = sorted((row for row in self.waiting if row.timestamp_ms < watermark_ms), key=lambda r: r[3:5])
        self.waiting = [row for row in self.waiting if row.timestamp_ms >= watermark_ms]
        given = []
        for row in due:
            n = row.value["n"]
            self.states[row.key_value] = [*self.states.get(row.key_value, []), n] if n else []
            given.append((row.timestamp_ms, row.key, self.states[row.key_value]))
        return sorted(given, key=lambda each: each[:2])


class Losing(MemoryBlobs):
    """A store whose next write fails where it is told to."""

    lose = False

    async def put(self, name: str, data: bytes) -> BlobRef:
        if self.lose:
            message = f"{name} was not written"
            raise BlobError(message)
        return await super().put(name, data)


class Tasks:
    """Some tasks of one computation."""

    def __init__(self, blobs: MemoryBlobs, generation: int, tasks: int, cold: int) -> None:
        numbers = itertools.count()
        self.count = tasks
        self.stores = [
            StateStore(
                blobs, JOB, VERTEX, Generation(generation), lambda: f"u{next(numbers)}",
                StateBounds(100, 3, 400, 2),
            ) for _ in range(tasks)
        ]  # fmt: skip
        cooling = Cooling(cold, MemoryColdKeys) if cold else None
        self.made = [
            KeyedComputation(make_computation(Remembering), groups=GROUPS, cooling=cooling) for _ in range(tasks)
        ]

    def owner(self, key: bytes) -> int:
        return owner_of(key_group(key, GROUPS), self.count, GROUPS)

    def take(self, rows: Sequence[Row]) -> None:
        for index, task in enumerate(self.made):
            task.on_records([row for row in rows if self.owner(row.key) == index])

    def advance(self, watermark_ms: int) -> list[Yielded]:
        found = [each for task in self.made for each in task.on_watermark(watermark_ms).outputs]
        return sorted(found, key=lambda each: each[:3])

    async def snapshot(self, epoch: Epoch) -> tuple[TaskHandle, ...]:
        handles = []
        for index, (task, store) in enumerate(zip(self.made, self.stores, strict=True)):
            parts = await store.store(epoch, task.snapshot())
            listed = await store.listed(epoch, parts)
            own = parts if listed is None else ()
            handles.append(TaskHandle(VERTEX, index, TaskProtocolState(), own, blobs_of(parts), listed=listed))
        return tuple(handles)

    async def restore(self, blobs: MemoryBlobs, committed: Sequence[TaskHandle], watermark_ms: int) -> None:
        handles = await with_parts(blobs, committed)
        for index, (task, store) in enumerate(zip(self.made, self.stores, strict=True)):
            owned = groups_owned(index, self.count, GROUPS)
            parts = await load_parts(blobs, handles, lambda part, owned=owned: next(iter(by_group([part]))) in owned)  # type: ignore[misc]
            store.restored(handles, parts)
            task.restore(parts, watermark_ms)
            assert not parts


async def bounded(blobs: MemoryBlobs, handles: Sequence[TaskHandle], model: Model) -> None:
    """CP2, CP3: so many parts a group, and so many entries a key that is there."""
    parts = await load_parts(blobs, await with_parts(blobs, handles), lambda _: True)
    for group, names in by_group(parts).items():
        sizes = [len(msgspec.msgpack.decode(parts[part])[1]) for _, part in reversed(names.keys)]
        assert len(sizes) <= 1 + math.log2(sizes[0])
        assert all(2 * later <= earlier for earlier, later in itertools.pairwise(sizes))
        rows = {row.key for row in model.waiting}
        keys = rows | {canonical_key(key) for key, seen in model.states.items() if seen}
        live = [key for key in keys if key_group(key, GROUPS) == group]
        lingering = len({*model.states} - {key for key, seen in model.states.items() if seen})
        assert sum(sizes) <= 3 * (len(live) + lingering)
    for names in by_group(parts).values():
        assert len(names.runs) <= 1 + math.log2(max(1, 2 * len(model.waiting)))


ACTIONS = st.one_of(
    st.tuples(
        st.just("rows"), st.lists(st.tuples(st.integers(0, KEYS - 1), st.integers(0, 3)), min_size=1, max_size=4)
    ),
    st.tuples(st.just("watermark"), st.integers(1, 3)),
    st.tuples(st.just("snapshot"), st.sampled_from(("committed",) * 6 + ("aborted", "lost"))),
    st.tuples(st.just("snapshot"), st.just("committed")),
    st.tuples(st.just("restore"), st.integers(1, GROUPS)),
)


def one(stored: dict[StatePart, bytes], watermark_ms: int, cold: int) -> KeyedComputation:
    cooling = Cooling(cold, MemoryColdKeys) if cold else None
    task = KeyedComputation(make_computation(Remembering), groups=1, cooling=cooling)
    task.restore(dict(stored), watermark_ms)
    return task


@pytest.mark.parametrize("cold", [0, 1], ids=["in memory", "packed"])
@pytest.mark.parametrize("restarts", [False, True], ids=["runs on", "restarts"])
def test_CP1_CP2_the_later_part_has_the_later_word(*, restarts: bool, cold: int) -> None:
    """CP1, CP2: of keys that change, go, come back and wait, over parts that are merged; whatever is in memory."""
    stored: dict[StatePart, bytes] = {}
    task, states, at = one(stored, 0, cold), dict[int, list[int]](), 0
    courses = [(key, 1) for key in range(40)], [(0, 2)], [(1, 0), (2, 2)], [(1, 3), (0, 0)], [(3, 2)], [(4, 2), (0, 1)]
    seen: list[int] = []
    for course in courses:
        task.on_records([row_of(key, {"n": n}, at, (0, key)) for key, n in course])
        before = task.snapshot()  # while the rows wait
        stored = {part: data for part, data in {**stored, **before}.items() if data is not None}
        if restarts:
            task = one(stored, at, cold)
        at += 1
        for key, n in course:
            states[key] = [*states.get(key, []), n] if n else []
        given = {o.key: o.value["seen"] for o in task.on_watermark(at).outputs}
        assert given == {canonical_key(key): states[key] for key, _ in course}
        stored = {part: data for part, data in {**stored, **task.snapshot()}.items() if data is not None}
        seen.append(len(stored))
        if restarts:
            task = one(stored, at, cold)
    assert max(seen) > 2, "several parts"
    task = one(stored, at, cold)
    task.on_records([row_of(key, {"n": 9}, at, (0, key)) for key in states])
    given = {o.key: o.value["seen"] for o in task.on_watermark(at + 1).outputs}
    assert given == {canonical_key(key): [*state, 9] for key, state in states.items()}


@settings(deadline=None, max_examples=60)
@given(st.lists(ACTIONS, min_size=4, max_size=40), st.integers(0, 3))
def test_CP1_CP2_CP3_state_is_that_of_the_last_commit_whatever_parts_it_lies_in(
    course: list[tuple[str, Any]], cold: int
) -> None:
    """CP1, CP2, CP3, C5: through aborted snapshots and lost writes, with other numbers of tasks, with keys in memory or packed."""

    async def story(_: VirtualWorld) -> None:
        blobs = Losing(InlineExecutor())
        tasks, model = Tasks(blobs, 1, 1, cold), Model()
        committed: tuple[tuple[TaskHandle, ...], Model] = (), copy.deepcopy(model)
        numbers = itertools.count()
        epochs = map(Epoch, itertools.count(1))
        generations = itertools.count(2)

        async def again(count: int) -> tuple[Tasks, Model]:
            made = Tasks(blobs, next(generations), count, cold)
            await made.restore(blobs, committed[0], committed[1].watermark_ms)
            return made, copy.deepcopy(committed[1])

        begun: list[tuple[str, Any]] = [("all", 1), ("watermark", 3), ("snapshot", "committed")]
        for action, told in [*begun, *course, ("snapshot", "committed"), ("restore", 1), ("watermark", 9), ("all", 1)]:
            match action, told:
                case "rows" | "all", _:
                    found = told if isinstance(told, list) else [(key, told) for key in range(KEYS)]
                    rows = [row_of(key, {"n": n}, model.watermark_ms + n % 2, (0, next(numbers))) for key, n in found]
                    model.waiting += rows
                    tasks.take(rows)
                case "watermark", int(step):
                    expected = model.advance(model.watermark_ms + step)
                    given = tasks.advance(model.watermark_ms)
                    assert [(o.timestamp_ms, o.key, o.value["seen"]) for o in given] == expected
                case "snapshot", "lost":
                    blobs.lose = True
                    try:
                        await tasks.snapshot(next(epochs))
                    except BlobError:
                        tasks, model = await again(tasks.count)
                    blobs.lose = False
                case "snapshot", fate:
                    handles = await tasks.snapshot(next(epochs))
                    if fate == "committed":
                        committed = handles, copy.deepcopy(model)
                        await bounded(blobs, handles, model)
                case "restore", int(count):
                    tasks, model = await again(count)
        expected = model.advance(model.watermark_ms + 9)
        assert [(o.timestamp_ms, o.key, o.value["seen"]) for o in tasks.advance(model.watermark_ms)] == expected
        await blobs.close()

    run_virtual(story)


def test_CP2_what_is_written_follows_what_changed() -> None:
    """Of 1,024 keys two change for each of 512 snapshots: on the average fewer than 32 entries are written, and 1 KiB is none of them."""
    parts, written, there = StateParts(), 0, set[StatePart]()
    group = KeyGroup(0)
    whole = parts.next(group, [b"%d" % key for key in range(1_024)])
    assert whole.keys is None
    parts.wrote(group, 1_024)
    for number in range(512):
        write = parts.next(group, [b"%d" % (2 * number % 1_024 + n) for n in range(2)])
        there = (there - set(write.gone)) | {write.part}
        written += 1_024 if write.keys is None else len(write.keys)
        if write.keys is None:
            parts.wrote(group, 1_024)
        assert len(there) <= 11
    assert written < 32 * 512


def test_CP3_the_whole_part_is_written_anew_where_changes_are_more_than_half_of_it() -> None:
    """Up to half there are parts of changes; beyond it there is the whole one alone, and what they said is said by it."""
    task, stored, at = one({}, 0, 0), dict[StatePart, bytes](), 0
    found: list[list[str]] = []
    for course in ([(key, 1) for key in range(8)], [(0, 2), (1, 0)], [(2, 2), (3, 2)], [(4, 2)]):
        task.on_records([row_of(key, {"n": n}, at, (0, key)) for key, n in course])
        at += 1
        task.on_watermark(at)
        stored = {part: data for part, data in {**stored, **task.snapshot()}.items() if data is not None}
        found.append(sorted(stored))
    assert found == [["kg:0"], ["kg:0", "kg:0#0"], ["kg:0", "kg:0#1"], ["kg:0"]]
    task = one(stored, at, 0)
    task.on_records([row_of(key, {"n": 3}, at, (0, key)) for key in range(6)])
    seen = [output.value["seen"] for output in task.on_watermark(at + 1).outputs]
    assert seen == [[1, 2, 3], [3], [1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 3]]


STEPS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 12), max_size=30), st.integers(0, 6), st.sampled_from(("", "stored", "restored"))
    ),
    max_size=60,
)
"""How far rows are ahead of the watermark; how far it moves; what follows."""


@settings(deadline=None)
@example([([12] * 24, 0, "stored"), ([], 3, "stored"), ([2], 0, "restored"), ([], 6, "stored")], 0)
@example([([12] * 24, 0, "stored"), ([], 3, "restored"), ([2], 0, "stored"), ([], 6, "stored")], 0)
@example([([0] * 6 + [12] * 18, 0, "stored"), ([], 1, ""), ([12] * 3, 0, "restored"), ([], 12, "stored")], 1)
@given(STEPS, st.integers(0, 1))
def test_CP4_RS1_RS2_runs_have_the_rows_that_wait_and_no_more_than_twice_as_many(
    steps: list[tuple[list[int], int, str]], cold: int
) -> None:
    """CP4, RS1, RS2: over drawn times, watermarks and restores. A key is soon forgotten and comes again beside rows that wait on."""
    task, stored, at, numbers = one({}, 0, cold), dict[StatePart, bytes](), 0, itertools.count()
    model = Model()
    for ahead, step, then in steps:
        rows = [
            row_of(n % 3, {"n": 1}, at + after, (0, next(numbers)))
            if n % 3
            else row_of(0, {"n": 0}, at + after % 3, (0, next(numbers)))
            for n, after in enumerate(ahead)
        ]
        task.on_records(rows)
        model.waiting += rows
        at += step
        expected = model.advance(at)
        given = [(o.timestamp_ms, o.key, o.value["seen"]) for o in task.on_watermark(at).outputs]
        assert given == expected
        if not then:
            continue
        stored = {part: data for part, data in {**stored, **task.snapshot()}.items() if data is not None}
        runs = sorted((p for p in stored if "#w" in p), key=lambda part: int(part.partition("#w")[2]))
        sizes = [len(msgspec.msgpack.decode(stored[part])[1][2]) for part in runs]
        assert sum(sizes) <= 2 * len(model.waiting)
        assert all(2 * later <= earlier for earlier, later in itertools.pairwise(sizes))
        if then == "restored":
            task = one(stored, at, cold)


def test_CP4_RS1_what_is_written_of_rows_that_wait_follows_what_came() -> None:
    """64 snapshots with 100 more rows each, while all of them wait: a row is written a few times, and not with each."""
    task, documents, written, numbers = one({}, 0, 0), 0, 0, itertools.count()
    for _ in range(64):
        rows = [row_of(0, {"n": 1, "text": "x" * 100}, n, (0, next(numbers))) for n in range(100)]
        task.on_records(rows)
        documents += sum(len(row.packed) for row in rows)
        written += sum(len(data) for data in task.snapshot().values() if data is not None)
    assert written < 8 * documents


def test_CP3_a_part_of_changes_needs_a_whole_one() -> None:
    """Without the part that it is a change of nothing can be restored: that is said, with the part that is missing."""
    task = KeyedComputation(make_computation(Remembering), groups=1)
    task.on_records([row_of(key, {"n": 1}, 0, (0, key)) for key in range(9)])
    task.on_watermark(1)
    task.snapshot()
    task.on_records([row_of(3, {"n": 2}, 1, (0, 10))])
    task.on_watermark(2)
    found = {part: data for part, data in task.snapshot().items() if data is not None}
    assert list(found) == ["kg:0#0"]
    again = KeyedComputation(make_computation(Remembering), groups=1)
    with pytest.raises(StateError, match="key group 0: expected kg:0 beside kg:0#0, found none"):
        again.restore(found, MIN_TIME)
