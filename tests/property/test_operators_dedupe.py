# ruff: noqa: N802 -- a test carries its rule's name
"""Record ids: what is a repeat is exact, a function of the records, and the same however tasks and batches share them."""

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.interpreted import typed
from tidemark.services.operator.shelved import shelved
from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import Field, Schema
from tidemark.shared.language.stages import PositionHorizon, TimeHorizon
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.model.values import Document, long
from tidemark.shared.operators import frame
from tidemark.shared.operators import remembered as module
from tidemark.shared.operators.base import GROUP, KEY, POS, TS, WM, OperatorError
from tidemark.shared.operators.base import PART as PARTITION
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import NOWHERE, TaskContext
from tidemark.shared.operators.dedupe import BUCKET_MS, POSITIONS_A_BUCKET, Distinct, SplitIds
from tidemark.shared.operators.in_order import InOrder
from tidemark.shared.operators.keygroups import key_groups, murmur2_column
from tidemark.shared.operators.remembered import Bloom, Remembered
from tidemark.shared.operators.specs import DistinctSpec, InOrderSpec

PART = StatePart("split:s")
IDS = st.one_of(st.integers(0, 12), st.sampled_from(["0", "a", 1.0, 2.5, None]))
HORIZONS = st.one_of(
    st.builds(TimeHorizon, st.integers(0, 4).map(lambda n: n * BUCKET_MS + n)),
    st.builds(PositionHorizon, st.integers(0, 4).map(lambda n: n * POSITIONS_A_BUCKET)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[Any, int, int]]:
    """(id or nothing, event time, position) of a split's records; positions with holes, times out of order."""
    count = draw(st.integers(0, 40))
    position = 0
    found = []
    for _ in range(count):
        position += draw(st.sampled_from([1, 1, 1, POSITIONS_A_BUCKET // 2, POSITIONS_A_BUCKET]))
        found.append((draw(IDS), draw(st.integers(-4, 8)) * BUCKET_MS // 2 + draw(st.integers(0, 9)), position))
    return found


def batch(history: list[tuple[Any, int, int]]) -> pa.RecordBatch:
    documents: list[Document] = [{} if i is None else {"id": i} for i, _, _ in history]
    engine = {
        TS: pa.array([t for _, t, _ in history], type=pa.int64()),
        POS: pa.array([p for _, _, p in history], type=pa.int64()),
    }
    return batch_of(documents, engine)


def oracle(history: list[tuple[Any, int, int]], horizon: TimeHorizon | PositionHorizon) -> list[bool]:
    """Record by record: an id is known while the bucket of its first record counts."""
    by_time = isinstance(horizon, TimeHorizon)
    width = BUCKET_MS if by_time else POSITIONS_A_BUCKET
    span = horizon.duration_ms if isinstance(horizon, TimeHorizon) else horizon.positions
    highest: int | None = None
    known: dict[bytes, int] = {}
    fresh = []
    for identity, time, position in history:
        at = time if by_time else position
        oldest = None if highest is None else (highest - span) // width
        highest = at if highest is None else max(highest, at)
        if identity is None:
            fresh.append(True)
            continue
        key = canonical_key(identity)
        home = known.get(key)
        is_fresh = home is None or (oldest is not None and home < oldest)
        fresh.append(is_fresh)
        if is_fresh:
            known[key] = at // width
    return fresh


def restored(ids: SplitIds, parts: dict[StatePart, bytes]) -> SplitIds:
    """The same after a restart: `parts` is the store."""
    for name, data in ids.snapshot(PART).items():
        if data is None:
            del parts[name]
        else:
            parts[name] = data
    again = SplitIds(ids.record_id, ids.horizon)
    again.restore(parts)
    return again


@given(history=histories(), horizon=HORIZONS, cuts=st.lists(st.integers(0, 40), max_size=6),
       restarts=st.booleans(), many=st.booleans())  # fmt: skip
@settings(max_examples=150)
def test_DD1_DD3_RI1_repeats_are_found_wherever_batches_are_cut_and_whatever_restarts(
    history: list[tuple[Any, int, int]],
    horizon: TimeHorizon | PositionHorizon,
    cuts: list[int],
    restarts: bool,
    many: bool,
) -> None:
    """Within the horizon every repeat and nothing else is one, whatever runs the snapshot has (DD1, DD3)."""
    ids = SplitIds(FieldPath(("id",)), horizon)
    parts: dict[StatePart, bytes] = {}
    places = sorted({0, len(history), *(c for c in cuts if c <= len(history))})
    found: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ONE_RUN_BYTES_MAX", 40 if many else module.ONE_RUN_BYTES_MAX)
        for begin, end in itertools.pairwise(places):
            found += ids.told_apart(batch(history[begin:end]))[0].tolist()
            if restarts:
                ids = restored(ids, parts)
    assert found == oracle(history, horizon)


def test_DD1_the_horizon_ends_where_it_did_before_a_restart() -> None:
    """Two records of one id that are older than the horizon: a task that begins again remembers neither, as before."""
    horizon = TimeHorizon(2 * BUCKET_MS)
    history = [("a", 9 * BUCKET_MS, 0), ("b", 0, 1), ("b", 0, 2)]
    ids = SplitIds(FieldPath(("id",)), horizon)
    ids.told_apart(batch(history[:1]))
    found = restored(ids, {}).told_apart(batch(history[1:]))[0].tolist()
    assert found == oracle(history, horizon)[1:] == [True, True]


def test_RI1_a_false_positive_of_the_filter_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a filter that says yes to everything, only real repeats are repeats (RI1)."""
    ids = SplitIds(FieldPath(("id",)), TimeHorizon(BUCKET_MS))
    history = [(i % 7, 0, i) for i in range(50)]
    monkeypatch.setattr(Bloom, "hits", lambda _, hashes: np.ones(len(hashes), dtype=np.bool_))
    found = [bool(ids.told_apart(batch([record]))[0][0]) for record in history]
    assert found == [i < 7 for i in range(50)]


def test_RI1_ids_with_one_hash_are_two_ids() -> None:
    """What filter and hashes take for the same is compared by its bytes: a false positive drops nothing."""
    names = [f"{i}-{i * 2_654_435_761:x}" for i in range(200_000)]
    hashes = murmur2_column(pa.array([canonical_key(name) for name in names], type=pa.binary()))
    order = np.argsort(hashes, kind="stable")
    at = int(np.flatnonzero(hashes[order][1:] == hashes[order][:-1])[0])
    one, other = names[order[at]], names[order[at + 1]]
    ids = SplitIds(FieldPath(("id",)), TimeHorizon(BUCKET_MS))
    found = [bool(ids.told_apart(batch([(i, 0, n)]))[0][0]) for n, i in enumerate((one, other, one, other))]
    assert found == [True, True, False, False]


def test_RI1_the_filter_answers_yes_for_all_that_was_added_and_mostly_no_for_the_rest() -> None:
    """No false negatives; fewer than one false positive in a hundred, while there is room."""
    bloom = Bloom(100_000)
    added = np.arange(0, 200_000, 2, dtype=np.uint32) * np.uint32(2_654_435_761)
    for part in np.array_split(added, 17):
        bloom.add(part)
    others = np.arange(1, 200_000, 2, dtype=np.uint32) * np.uint32(2_654_435_761)
    assert bloom.hits(added).all()
    assert bloom.hits(others).mean() < 0.01


def test_RI2_a_snapshot_writes_what_is_new_and_forgets_what_expired() -> None:
    """Of many ids a checkpoint writes the new ones alone; a run goes when its buckets have expired."""
    ids = SplitIds(FieldPath(("id",)), TimeHorizon(10 * BUCKET_MS))
    ids.told_apart(batch([(f"{'x' * 50}{i}", 0, i) for i in range(2000)]))
    assert set(ids.snapshot(PART)) == {"split:s#0", "split:s#head"}
    ids.told_apart(batch([("y", BUCKET_MS, 2000)]))
    written = ids.snapshot(PART)
    assert set(written) == {"split:s#1", "split:s#head"}
    assert len(written[StatePart("split:s#1")] or b"") < 200
    assert ids.snapshot(PART) == {}
    ids.told_apart(batch([("z", 12 * BUCKET_MS, 2001)]))
    assert ids.snapshot(PART)[StatePart("split:s#0")] is None


def test_RI2_an_id_is_written_a_handful_of_times_however_many_checkpoints() -> None:
    """512 checkpoints of 100 new ids: each is written at most as often as there are levels, and few parts are kept."""
    ids = Remembered(groups=4)
    kept: dict[StatePart, bytes] = {}
    written = 0
    for epoch in range(512):
        names = pa.array([f"{epoch}-{n}".encode() for n in range(100)], type=pa.binary())
        ids.told_apart(names, murmur2_column(names), np.zeros(100, np.int64), np.zeros(100, np.int64))
        for part, data in ids.snapshot(lambda group: StatePart(f"kg:{group}")).items():
            if data is None:
                del kept[part]
            else:
                kept[part] = data
                written += len(data)
    assert written < 6 * sum(map(len, kept.values()))
    assert len(kept) <= 4 * 3 * 6


def test_RI2_what_expired_is_not_kept_in_a_run_that_still_counts() -> None:
    """A run most of whose ids have expired is written anew without them."""
    ids = Remembered()
    names = pa.array([b"%d" % n for n in range(10_000)], type=pa.binary())
    buckets = np.arange(10_000, dtype=np.int64) // 1_000
    ids.told_apart(names, murmur2_column(names), buckets, np.zeros(10_000, np.int64))
    ids.snapshot(lambda group: StatePart(f"kg:{group}"))
    before = ids.size_bytes
    ids.expire(9)
    assert ids.size_bytes < before / 5
    parts = ids.snapshot(lambda group: StatePart(f"kg:{group}"))
    assert [part for part, data in parts.items() if data is None] == ["kg:0#0"]


def test_RI4_ids_beyond_memory_lie_on_the_disk_and_are_found_there(tmp_path: Path) -> None:
    """Once an epoch ends memory has no more than it may; repeats are found in files without a name, over a restore in pieces, too."""
    kept: list[int] = []

    def shelve(rows: pa.RecordBatchReader) -> pa.Table:
        before = pa.total_allocated_bytes()
        found = shelved(tmp_path, rows)
        kept.append(pa.total_allocated_bytes() - before)
        return found

    def judged(ids: Remembered, names: pa.BinaryArray) -> list[bool]:
        zeros = np.zeros(len(names), np.int64)
        found: list[bool] = ids.told_apart(names, murmur2_column(names), zeros, zeros).tolist()
        return found

    names = pa.array([b"%050d" % n for n in range(20_000)], type=pa.binary())
    ids = Remembered(4, 10_000, shelve)
    assert all(judged(ids, names))
    parts = {part: data or b"" for part, data in ids.snapshot(lambda group: StatePart(f"kg:{group}")).items()}
    assert kept
    assert max(kept) < 10_000
    assert not list(tmp_path.iterdir())
    again = Remembered(4, 10_000, shelve)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RESTORED_BYTES", 100_000)
        again.restore(dict(parts))
    assert len(kept) > 3
    assert not any(judged(ids, names))
    assert not any(judged(again, names))
    assert again.snapshot(lambda group: StatePart(f"kg:{group}")) == {}


def test_RI4_a_disk_without_room_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    """A folder that cannot be made, as where the disk is full."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OperatorError, match=r"state beyond memory, in .*see that the disk has room"):
        shelved(tmp_path / "file" / "folder", pa.table({"a": [1]}))


# --- ids of a source ------------------------------------------------------------------------------------------------------

GROUPS = 8
HORIZON = TimeHorizon(2 * BUCKET_MS)


@st.composite
def epochs(draw: st.DrawFn) -> list[list[list[tuple[Any, int, int, int]]]]:
    """By epoch and split (id or nothing, event time, watermark before, position); a split's watermark never falls."""
    found = []
    positions, watermarks = [0] * 3, [-BUCKET_MS] * 3
    for _ in range(draw(st.integers(1, 5))):
        epoch = []
        for split in range(3):
            rows = []
            for _ in range(draw(st.integers(0, 6))):
                time = watermarks[split] + draw(st.integers(-2, 2)) * BUCKET_MS // 2
                rows.append((draw(IDS), time, watermarks[split], positions[split]))
                positions[split] += 1
                watermarks[split] += draw(st.sampled_from([0, 0, 1, BUCKET_MS]))
            epoch.append(rows)
        found.append(epoch)
    return found


def rows_of(split: int, rows: list[tuple[Any, int, int, int]]) -> pa.RecordBatch:
    """As a source sends them."""
    keys = pa.array([None if i is None else canonical_key(i) for i, *_ in rows], type=pa.binary())
    engine = {
        TS: pa.array([t for _, t, _, _ in rows], type=pa.int64()),
        WM: pa.array([w for _, _, w, _ in rows], type=pa.int64()),
        PARTITION: pa.array([split] * len(rows), type=pa.int32()),
        POS: pa.array([p for *_, p in rows], type=pa.int64()),
        KEY: keys,
        GROUP: pa.array(key_groups(keys, GROUPS)),
    }
    return batch_of([{} for _ in rows], engine)


def first_of_each(story: list[list[list[tuple[Any, int, int, int]]]]) -> list[set[tuple[int, int]]]:
    """By epoch (split, position) of what is no repeat: row by row, by the least late of an epoch first."""
    known: dict[bytes, int] = {}
    found = []
    for epoch in story:
        flat = [(w, split, p, i, t) for split, rows in enumerate(epoch) for i, t, w, p in rows]
        fresh = set()
        for watermark, split, position, identity, time in sorted(flat, key=lambda row: row[:3]):
            key = None if identity is None else canonical_key(identity)
            if key is None or known.get(key, -(2**60)) < (watermark - HORIZON.duration_ms) // BUCKET_MS:
                fresh.add((split, position))
                if key is not None:
                    known[key] = max(known.get(key, -(2**60)), time // BUCKET_MS)
        found.append(fresh)
    return found


class Tasks:
    """So many tasks of the vertex that looks for repeats, over one store of state."""

    def __init__(self, count: int, parts: dict[StatePart, bytes], *, on_disk: bool = False) -> None:
        self.parts = parts
        context = (
            TaskContext(ids_bytes_max=1, shelve=lambda rows: shelved(Path(tempfile.gettempdir()), rows))
            if on_disk
            else NOWHERE
        )
        self.each = [
            (InOrder(InOrderSpec("$source")), Distinct(DistinctSpec("", HORIZON, GROUPS), context))
            for _ in range(count)
        ]
        for number, (_, distinct) in enumerate(self.each):
            own = {
                p: data for p, data in parts.items() if int(p.split(":")[1].split("#")[0]) * count // GROUPS == number
            }
            distinct.restore(own)

    def epoch(self, batches: list[pa.RecordBatch], watermark_ms: int) -> list[tuple[int, int]]:
        """What comes out of an epoch, in order by task, and what the snapshot then has."""
        found: list[tuple[int, int]] = []
        for number, (order, distinct) in enumerate(self.each):
            for each in batches:
                owners = each.column(GROUP).to_numpy().astype(np.int64) * len(self.each) // GROUPS
                order.on_batch(each.filter(pa.array(owners == number)), "rows", "")
            outs = [out for held in order.before_barrier() for out in distinct.on_batch(held.batch, "rows", "")]
            distinct.on_watermark(watermark_ms)
            for out in outs:
                assert not {KEY, GROUP} & set(out.batch.schema.names)
                found += zip(out.batch.column(PARTITION).to_pylist(), out.batch.column(POS).to_pylist(), strict=True)
            for part, data in distinct.snapshot().items():
                if data is None:
                    del self.parts[part]
                else:
                    self.parts[part] = data
        return found


@given(story=epochs(), data=st.data(), many=st.booleans(), on_disk=st.booleans())
@settings(max_examples=150)
def test_DD2_RI3_an_id_counts_once_over_all_splits_whichever_task_was_faster_and_however_many_there_are(
    story: list[list[list[tuple[Any, int, int, int]]]], data: st.DataObject, many: bool, on_disk: bool
) -> None:
    """What is no repeat depends on epochs alone: not on how rows came, restarts, numbers of tasks, nor where ids lie (DD2, RI4)."""
    parts: dict[StatePart, bytes] = {}
    tasks = Tasks(data.draw(st.integers(1, 3)), parts, on_disk=on_disk)
    stands = [-BUCKET_MS] * 3
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ONE_RUN_BYTES_MAX", 40 if many else module.ONE_RUN_BYTES_MAX)
        for epoch in story:
            pieces = [(split, rows[at : at + 2]) for split, rows in enumerate(epoch) for at in range(0, len(rows), 2)]
            shuffled = data.draw(st.permutations(pieces))
            stands = [max([w for _, _, w, _ in rows], default=stand) for rows, stand in zip(epoch, stands, strict=True)]
            out = tasks.epoch([rows_of(split, rows) for split, rows in shuffled], min(stands))
            assert len(out) == len(set(out))
            found.append(set(out))
            if data.draw(st.booleans()):
                tasks = Tasks(data.draw(st.integers(1, 3)), parts, on_disk=on_disk)
    assert found == first_of_each(story)


def test_IO1_rows_of_other_columns_keep_their_places() -> None:
    """A batch with a column more than another is given out apart, in the order of all rows."""
    one, other = (
        batch_of([{}, {}], {name: pa.array([n, n + 2], type=pa.int64()) for name in (TS, WM, PARTITION, POS)})
        for n in (0, 1)
    )
    order = InOrder(InOrderSpec("$emit"))
    order.on_batch(other.append_column("more", pa.array([1, 2])), "rows", "")
    order.on_batch(one, "rows", "")
    assert order.held_rows(0) == 4
    assert [n for out in order.before_barrier() for n in out.batch.column(POS).to_pylist()] == [0, 1, 2, 3]
    assert order.held_rows(0) == 0


def test_IO2_the_watermark_waits_with_the_rows() -> None:
    """What is held is never behind the watermark that was said; the end of input gives it out."""
    order = InOrder(InOrderSpec("$emit"))
    order.on_watermark(5)
    assert order.output_watermark() == 5
    order.on_batch(rows_of(0, [("a", 7, 5, 0)]), "rows", "")
    order.on_watermark(9)
    assert order.output_watermark() == 5
    assert len(order.before_barrier()) == 1
    assert order.output_watermark() == 9
    order.on_batch(rows_of(0, [("b", 9, 9, 1)]), "rows", "")
    assert len(order.on_watermark(MAX_TIME)) == 1
    assert order.output_watermark() == MAX_TIME


def test_IO3_more_than_a_task_may_hold_goes_out_before_the_epoch_ends() -> None:
    """What is held is bounded by the setting."""
    order = InOrder(InOrderSpec("$emit"), TaskContext(ordered_bytes_max=1))
    assert len(order.on_batch(rows_of(0, [("a", 7, 5, 0)]), "rows", "")) == 1
    assert order.held_rows(0) == 0


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", ""]), st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=30
)
COMPUTED = [
    {"$concat": ["$k", {"$toString": "$t"}]},
    {"$add": ["$t", "$n"]},
    {"$toUpper": "$k"},
    {"$toDate": "$t"},
]


@given(rows=ROWS, tree=st.sampled_from(COMPUTED))
def test_ids_that_are_computed_of_declared_fields_are_those_of_the_documents(
    rows: list[tuple[str, int, int]], tree: dict[str, Any]
) -> None:
    """By kernels, a batch at a time, with the same bytes in the snapshot: no Python for each record."""
    record_id = parse_expression(tree, "recordId", Scope(Problems()))
    documents: list[Document] = [{"k": k, "t": long(t), "n": n} for k, t, n in rows]
    engine = {name: pa.array(range(len(rows)), type=pa.int64()) for name in (TS, POS)}
    plain = batch_of(documents, engine)
    schema = Schema((Field("k", "string", False), Field("t", "long", False), Field("n", "int", False)))
    by_row, by_column = (SplitIds(record_id, TimeHorizon(BUCKET_MS)) for _ in range(2))
    expected = by_row.told_apart(plain)[0].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "evaluate", None)
        assert by_column.told_apart(typed(plain, schema))[0].tolist() == expected
    assert by_column.snapshot(PART) == by_row.snapshot(PART)
