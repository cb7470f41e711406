"""Deletes by value: whatever the values, nulls among them, a row is gone if a later delete has all of its values."""

import subprocess
import sys
from itertools import groupby
from operator import itemgetter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.services.source.connectors.icebergdeletes import ManyKeys

KINDS = (pa.int64(), pa.string(), pa.bool_())
CELLS = (st.none() | st.integers(0, 3), st.none() | st.sampled_from(["", "a", "b"]), st.none() | st.booleans())


@given(width=st.integers(1, 3), data=st.data())
def test_a_row_is_deleted_at_the_last_delete_of_its_values(width: int, data: st.DataObject) -> None:
    """Of several columns, all have to be the same; null is the same as null."""
    row = st.tuples(*CELLS[:width])
    deletes = data.draw(st.lists(st.tuples(row, st.integers(1, 5)), min_size=1, max_size=30))
    rows = data.draw(st.lists(row, max_size=30))
    keys = ManyKeys()
    for at, some in groupby(deletes, key=itemgetter(1)):
        keys.add(columns([values for values, _ in some], width), at)
    expected = [max((at for values, at in deletes if values == each), default=-1) for each in rows]
    assert keys.whole().deleted_at(columns(rows, width)).tolist() == expected


GATHER = """
import resource, sys
import numpy as np
import pyarrow as pa
from tidemark.services.source.connectors.icebergdeletes import ManyKeys
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
numbers = np.random.default_rng(1).permutation(1 << 22)
cells = {"numbers": lambda some: [pa.array(some)], "pairs": lambda some: [pa.array(some >> 11), pa.array(some & 2047)]}[sys.argv[1]]
before, keys = peak(), ManyKeys()
for _ in range(3):
    for begin in range(0, 1 << 22, 1 << 18):
        keys.add(cells(numbers[begin : begin + (1 << 18)]), 1)
print(keys.whole().nbytes, peak() - before)
"""


@pytest.mark.parametrize("cells", ["numbers", "pairs"])
def test_many_values_take_little_more_memory_than_they_are(cells: str) -> None:
    """Also while they are read; and those that are deleted again take none."""
    done = subprocess.run([sys.executable, "-c", GATHER, cells], check=True, capture_output=True, text=True)
    kept, peak = map(int, done.stdout.split())
    assert kept < 17 << 22
    assert peak < 8 * kept


def columns(rows: list[tuple[object, ...]], width: int) -> list[pa.Array]:
    """Rows by columns."""
    return [pa.array([row[at] for row in rows], KINDS[at]) for at in range(width)]
