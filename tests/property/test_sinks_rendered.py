"""Rows rendered a column at a time are the bytes that each would be alone; runs are held and divided without losing a record."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from services.sink.connectors.kafkaruns import Held, Run, decode_runs, encode_runs
from services.sink.connectors.rendered import rendered
from shared.language.values import render_json
from shared.operators.batches import TIMESTAMP, documents_of

COLUMNS = {
    "s": (pa.string(), st.text(max_size=5)),
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "b": (pa.bool_(), st.booleans()),
    "d": (pa.float64(), st.sampled_from([0.5, -0.0, 1e300, float("nan"), 3.0])),
    "t": (TIMESTAMP, st.sampled_from([0, 1, 1_700_000_000_000, -5, 2**45])),
    'odd "name"\n': (pa.int32(), st.just(1)),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of some declared fields, now and then with a missing one."""
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, unique=True))
    rows = draw(st.integers(1, 12))
    arrays = []
    for name in names:
        kind, cells = COLUMNS[name]
        optional = cells if draw(st.integers(0, 9)) else st.none() | cells
        values = draw(st.lists(optional, min_size=rows, max_size=rows))
        arrays.append(pa.array(values, pa.int64()).cast(kind) if kind == TIMESTAMP else pa.array(values, kind))
    return pa.RecordBatch.from_arrays(arrays, names=names)


@given(batches())
def test_what_is_rendered_at_once_is_what_each_is_alone(batch: pa.RecordBatch) -> None:
    """Byte for byte, or nothing is rendered at once."""
    found = rendered(batch)
    if found is not None:
        assert found.to_pylist() == [render_json(document) for document in documents_of(batch)]


def test_plain_rows_are_rendered_at_once() -> None:
    """Texts without escapes, numbers and times that repeat do not need rendering one by one."""
    times = pa.array([0, 0, 60_000, 60_000], pa.int64()).cast(TIMESTAMP)
    columns = [pa.array(["a", "b", "ü", ""]), pa.array([1, 2, 3, -4], pa.int64()), times]
    assert rendered(pa.RecordBatch.from_arrays(columns, names=["s", "n", "t"])) is not None


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=9), max_size=6),
    st.integers(1, 7),
    st.integers(1, 900),
)
def test_parts_have_every_record_once_and_in_order(texts: list[list[bytes]], records_max: int, bytes_max: int) -> None:
    """Within the bounds, but for a single record that exceeds them."""
    held = Held()
    for number, values in enumerate(texts):
        held.add(Run(f"t{number}", list(values), None, [None] * len(values), None))
    found: list[tuple[str, bytes | None]] = []
    while held.count:
        runs = held.first(records_max, bytes_max)
        held.drop(runs)
        part = [(run.topic, value) for run in decode_runs(encode_runs(runs)) for value in run.values]
        size = sum(int(run.sizes().sum()) for run in runs)
        assert 1 <= len(part) <= records_max
        assert size <= bytes_max or len(part) == 1
        found += part
    assert held.size_bytes == 0
    assert found == [(f"t{number}", value) for number, values in enumerate(texts) for value in values]
