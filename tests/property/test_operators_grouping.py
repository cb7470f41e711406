"""Groups of rows by columns are what comparing the rows gives; what is reduced by group is what Python's functions give."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.operators.closing import sorted_by
from tidemark.shared.operators.grouping import groups_of, together

CELLS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-2, 2) | st.sampled_from([2**63 - 1, -(2**63)]),
    pa.int32(): st.integers(-2, 2),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.5, math.inf]),
    pa.timestamp("ms", "UTC"): st.integers(-2, 2),
    pa.string(): st.sampled_from(["", "a", "b", "é", "12345678", "123456789", "12345678\0", "x" * 30]),
    pa.binary(): st.binary(max_size=2) | st.just(b"\0" * 9),
}


@st.composite
def columns(draw: st.DrawFn, kinds: list[pa.DataType]) -> list[pa.Array]:
    """Up to three columns of up to forty rows, some with nulls, some in the middle of larger buffers."""
    rows = draw(st.integers(0, 40))
    found = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(kinds))
        cells = CELLS[kind] if draw(st.booleans()) else st.none() | CELLS[kind]
        values = draw(st.lists(cells, min_size=rows + 1, max_size=rows + 1))
        found.append(pa.array(values, kind)[1:])
    return found


def keys_of(given_columns: list[pa.Array]) -> list[tuple[str, ...]]:
    """What tells the rows apart; doubles by their bits."""
    plain = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in given_columns]
    return list(zip(*([repr(cell) for cell in column.to_pylist()] for column in plain), strict=True))


@given(columns(list(CELLS)))
def test_rows_are_of_one_group_iff_their_cells_are_equal(given_columns: list[pa.Array]) -> None:
    """Groups are numbered as they come first, and their rows stand together in the order that was asked for."""
    rows = len(given_columns[0]) if given_columns else 7
    keys = keys_of(given_columns) or [()] * rows
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    groups = groups_of(given_columns, rows)
    assert groups.codes.tolist() == [numbers[key] for key in keys]
    assert groups.firsts.tolist() == [keys.index(key) for key in numbers]
    order = list(range(rows))[::-1]
    out, bounds = together(groups, np.array(order, dtype=np.int64))
    assert [out[b:e].tolist() for b, e in pairwise(bounds)] == [
        [row for row in order if keys[row] == key] for key in numbers
    ]


@given(columns([pa.int64(), pa.string()]), st.data())
def test_what_is_reduced_by_group_is_what_python_gives(given_columns: list[pa.Array], data: st.DataObject) -> None:
    """Sums, and the least and greatest cells, null where a group has none."""
    rows = len(given_columns[0]) if given_columns else 7
    groups = groups_of(given_columns, rows)
    kind = data.draw(st.sampled_from([pa.int64(), pa.int32(), pa.string(), pa.timestamp("ms", "UTC")]))
    cells = data.draw(st.lists(st.none() | CELLS[kind], min_size=rows, max_size=rows))
    column = pa.array(cells, kind)
    rows_of = [[row for row, code in enumerate(groups.codes) if code == g] for g in range(len(groups.firsts))]
    for how, function in (("min", min), ("max", max)):
        wanted: list[list[Any]] = [[cells[row] for row in some if cells[row] is not None] for some in rows_of]
        found = groups.reduced(column, how)  # type: ignore[arg-type]
        assert found.equals(pa.array([function(some) if some else None for some in wanted], kind))
    numbers = pa.array([number % 100 for number in range(rows)], pa.int64())
    assert groups.reduced(numbers, "sum").to_pylist() == [sum(row % 100 for row in some) for some in rows_of]
    assert groups.counts().to_pylist() == [len(some) for some in rows_of]


@given(columns([pa.int64(), pa.int32(), pa.bool_(), pa.string(), pa.binary(), pa.timestamp("ms", "UTC")]))
def test_rows_are_sorted_as_arrow_sorts_them(given_columns: list[pa.Array]) -> None:
    """Ascending, nulls first."""
    if not given_columns or not len(given_columns[0]):
        return
    names = [f"c{i}" for i in range(len(given_columns))]
    batch = pa.RecordBatch.from_arrays(given_columns, names=names)
    wanted = pc.sort_indices(batch, sort_keys=[(name, "ascending", "at_start") for name in names])
    assert batch.take(sorted_by(batch, names)).equals(batch.take(wanted))
