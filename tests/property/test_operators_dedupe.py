# ruff: noqa: N802 -- a test carries its rule's name
"""Record ids: what is a repeat is a function of the split's records alone, and exact."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import Field, Schema
from tidemark.shared.language.stages import PositionHorizon, TimeHorizon
from tidemark.shared.language.values import canonical_key
from tidemark.shared.model.ids import StatePart
from tidemark.shared.model.values import Document, long
from tidemark.shared.operators import dedupe as module
from tidemark.shared.operators import frame
from tidemark.shared.operators.base import POS, TS
from tidemark.shared.operators.batches import batch_of, typed
from tidemark.shared.operators.bloom import Bloom
from tidemark.shared.operators.dedupe import BUCKET_MS, POSITIONS_A_BUCKET, Dedupe
from tidemark.shared.operators.keygroups import murmur2_column

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


def restored(ids: Dedupe, parts: dict[StatePart, bytes]) -> Dedupe:
    """The same after a restart: `parts` is the store."""
    for name, data in ids.snapshot(PART).items():
        if data is None:
            del parts[name]
        else:
            parts[name] = data
    again = Dedupe(ids.record_id, ids.horizon)
    again.restore(parts)
    return again


@given(history=histories(), horizon=HORIZONS, cuts=st.lists(st.integers(0, 40), max_size=6),
       restarts=st.booleans(), many=st.booleans())  # fmt: skip
@settings(max_examples=300)
def test_DD1_DD2_DD4_repeats_are_found_wherever_batches_are_cut_and_whatever_restarts(
    history: list[tuple[Any, int, int]],
    horizon: TimeHorizon | PositionHorizon,
    cuts: list[int],
    restarts: bool,
    many: bool,
) -> None:
    """Within the horizon every repeat and nothing else is one, also by buckets of their own in the snapshot (DD1 to DD4)."""
    ids = Dedupe(FieldPath(("id",)), horizon)
    parts: dict[StatePart, bytes] = {}
    places = sorted({0, len(history), *(c for c in cuts if c <= len(history))})
    found: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ONE_PART_BYTES_MAX", 40 if many else module.ONE_PART_BYTES_MAX)
        for begin, end in itertools.pairwise(places):
            found += ids.told_apart(batch(history[begin:end]))[0].tolist()
            if restarts:
                ids = restored(ids, parts)
    assert found == oracle(history, horizon)


def test_DD2_a_false_positive_of_the_filter_drops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a filter that says yes to everything, only real repeats are repeats (DD2)."""
    ids = Dedupe(FieldPath(("id",)), TimeHorizon(BUCKET_MS))
    history = [(i % 7, 0, i) for i in range(50)]
    monkeypatch.setattr(Bloom, "hits", lambda _, hashes: np.ones(len(hashes), dtype=np.bool_))
    found = [bool(ids.told_apart(batch([record]))[0][0]) for record in history]
    assert found == [i < 7 for i in range(50)]


def test_DD2_ids_with_one_hash_are_two_ids() -> None:
    """What filter and hashes take for the same is compared by its bytes: a false positive drops nothing."""
    names = [f"{i}-{i * 2_654_435_761:x}" for i in range(200_000)]
    hashes = murmur2_column(pa.array([canonical_key(name) for name in names], type=pa.binary()))
    order = np.argsort(hashes, kind="stable")
    at = int(np.flatnonzero(hashes[order][1:] == hashes[order][:-1])[0])
    one, other = names[order[at]], names[order[at + 1]]
    ids = Dedupe(FieldPath(("id",)), TimeHorizon(BUCKET_MS))
    found = [bool(ids.told_apart(batch([(i, 0, n)]))[0][0]) for n, i in enumerate((one, other, one, other))]
    assert found == [True, True, False, False]


def test_DD2_the_filter_answers_yes_for_all_that_was_added_and_mostly_no_for_the_rest() -> None:
    """No false negatives; about one false positive in a hundred, however it grew."""
    bloom = Bloom()
    added = np.arange(0, 200_000, 2, dtype=np.uint32) * np.uint32(2_654_435_761)
    for part in np.array_split(added, 17):
        bloom.add(part)
    others = np.arange(1, 200_000, 2, dtype=np.uint32) * np.uint32(2_654_435_761)
    assert bloom.hits(added).all()
    assert bloom.hits(others).mean() < 0.03


def test_DD3_a_snapshot_writes_only_buckets_that_changed() -> None:
    """Many ids lie by bucket, and an old bucket is not written again (DD3)."""
    ids = Dedupe(FieldPath(("id",)), TimeHorizon(10 * BUCKET_MS))
    ids.told_apart(batch([(f"{'x' * 50}{i}", 0, i) for i in range(2000)]))
    assert set(ids.snapshot(PART)) == {"split:s#0", "split:s#head"}
    ids.told_apart(batch([("y", BUCKET_MS, 2000)]))
    assert set(ids.snapshot(PART)) == {"split:s#1", "split:s#head"}
    assert ids.snapshot(PART) == {}
    ids.told_apart(batch([("z", 12 * BUCKET_MS, 2001)]))
    assert ids.snapshot(PART)[StatePart("split:s#0")] is None


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
    by_row, by_column = (Dedupe(record_id, TimeHorizon(BUCKET_MS)) for _ in range(2))
    expected = by_row.told_apart(plain)[0].tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frame, "evaluate", None)
        assert by_column.told_apart(typed(plain, schema))[0].tolist() == expected
    assert by_column.snapshot(PART) == by_row.snapshot(PART)
