"""What the readers and writers of many records by one schema share: the names that compiled code looks up, and the room that it fills."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled.documents import buffers

Bools: TypeAlias = npt.NDArray[np.bool_]
Row: TypeAlias = tuple[int, ...]
"""Of a table that compiled code reads."""


class Names(bytearray):
    """Names one behind the other."""

    def put(self, name: bytes) -> tuple[int, int]:
        """Where a name begins and ends, now that it stands there."""
        self += name
        return len(self) - len(name), len(self)

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes, as compiled code takes them."""
        return np.frombuffer(bytes(self), np.uint8)


def table(rows: list[Row], width: int) -> npt.NDArray[np.int64]:
    """Rows of numbers, shape (n, width)."""
    return np.array(rows, np.int64).reshape(-1, width)


@dataclass(frozen=True, slots=True)
class Made:
    """How compiled code makes a column of another."""

    call: Callable[..., int]
    tables: tuple[npt.NDArray[Any], ...]
    work: Callable[[int], tuple[npt.NDArray[Any], ...]]
    """The memory that it works in, by the longest cell's bytes."""
    growth: int
    """How many times as long as what it is made of a cell may be."""
    cell_bytes: int
    """How many bytes more each cell may have."""

    def of(self, cells: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
        """What is made of cells, shape (n,), and which of it counts: the others are left to code that takes one at a time."""
        count = len(cells)
        text, bounds = buffers(cells.fill_null(b"") if cells.null_count else cells)
        room = self.growth * int(bounds[-1] - bounds[0]) + (count + 1) * self.cell_bytes
        out, offsets, sure = np.empty(room, np.uint8), np.empty(count + 1, np.int64), np.ones(count, np.bool_)
        work = self.work(int(np.diff(bounds).max(initial=0)))
        size = self.call(text, bounds, *self.tables, out, offsets, sure, *work)
        out.resize(size, refcheck=False)
        found = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(out)]
        )
        return found.cast(pa.binary()), sure
