"""Rows in pieces, where an operator copies them: windows that overlap, arrays that are unwound, documents that are found for many rows.

Copies that are made together stay few bytes, however often a row is copied: a column of Arrow's has room for 2 GiB.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Int64s = npt.NDArray[np.int64]

COPIED_BYTES: Final = 64 << 20
"""Of copies that are made together: small beside a process, large beside what a piece costs."""
_CELL_BYTES: Final = 8
"""Of a number; what a column takes for each row at the least."""


def row_bytes(batch: pa.RecordBatch) -> Int64s:
    """The bytes that each row takes in the columns of a batch, shape (n,)."""
    sizes = np.full(batch.num_rows, batch.num_columns * _CELL_BYTES, dtype=np.int64)
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            sizes += column.nbytes // max(batch.num_rows, 1)
        elif pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            sizes += pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    return sizes


def ranges(sizes: Int64s, most: int = COPIED_BYTES) -> list[tuple[int, int]]:
    """Consecutive ranges [begin, end) of elements that have at most so many bytes together, or are one; none for no elements."""
    ends = np.cumsum(sizes)
    found: list[tuple[int, int]] = []
    begin = 0
    while begin < len(sizes):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + most, side="right")), begin + 1)
        found.append((begin, end))
        begin = end
    return found
