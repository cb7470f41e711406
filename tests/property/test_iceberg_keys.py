"""Deletes by value: whatever the values, nulls among them, a row is gone if a later delete has all of its values."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidemark.services.source.connectors.icebergdeletes import Keys

KINDS = (pa.int64(), pa.string(), pa.bool_())
CELLS = (st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"]), st.none() | st.booleans())


@given(width=st.integers(1, 3), data=st.data())
def test_a_row_is_deleted_at_the_last_delete_of_its_values(width: int, data: st.DataObject) -> None:
    """Of several columns, all have to be the same; null is the same as null."""
    row = st.tuples(*CELLS[:width])
    deletes = data.draw(st.lists(st.tuples(row, st.integers(1, 5)), min_size=1, max_size=30))
    rows = data.draw(st.lists(row, max_size=30))
    keys = Keys.of(columns([values for values, _ in deletes], width), pa.array([at for _, at in deletes], pa.int64()))
    expected = [max((at for values, at in deletes if values == each), default=None) for each in rows]
    assert keys.deleted_at(columns(rows, width)).to_pylist() == expected


def columns(rows: list[tuple[object, ...]], width: int) -> list[pa.Array]:
    """Rows by columns."""
    return [pa.array([row[at] for row in rows], KINDS[at]) for at in range(width)]
