"""Columns whose cells may differ in type: the type beside the value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import tags

Uint8s: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Path: TypeAlias = tuple[str, ...]
"""Names from a document inwards."""
CellType: TypeAlias = Literal["bool", "int", "long", "double", "string", "date"]
TAGS: Final[Mapping[CellType, int]] = {
    "bool": tags.BOOL, "int": tags.INT, "long": tags.LONG, "double": tags.DOUBLE, "string": tags.STRING, "date": tags.DATE,
}  # fmt: skip
ARROW: Final[Mapping[CellType, pa.DataType]] = {
    "bool": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(),
    "date": pa.timestamp("ms", "UTC"),
}  # fmt: skip


@dataclass(frozen=True)
class Tagged:
    """The values of n documents at one path."""

    tags: Uint8s
    """Shape (n,), see `tidemark.shared.compiled.tags`."""
    numbers: Int64s
    """Shape (n,): of BOOL 0 or 1, of INT and LONG the number, of DOUBLE its bits, of DATE UTC ms, of STRING its size in bytes."""
    begins: Int32s
    """Shape (n,): where the JSON of a value begins in `text`; without meaning for MISSING and SPREAD."""
    ends: Int32s
    """Shape (n,): and the place behind it."""
    text: Uint8s
    form: Literal["json", "packed"]
    """Of the values in `text`: JSON, or the compact codec's; there the place of a string is that of its characters."""
    _strings: Callable[["Tagged"], pa.StringArray]

    def __len__(self) -> int:
        return len(self.tags)

    @cached_property
    def counts(self) -> Int64s:
        """How many cells have each tag, shape (tags.COUNT,)."""
        return np.bincount(self.tags, minlength=tags.COUNT)

    def has(self, *some: int) -> bool:
        """Whether a cell has one of these tags."""
        return any(self.counts[tag] for tag in some)

    def all(self, *some: int) -> bool:
        """Whether each cell has one of these tags."""
        return int(sum(self.counts[tag] for tag in some)) == len(self)

    def is_(self, kind: CellType) -> Bools:
        """Which cells are of a type, shape (n,)."""
        there: Bools = self.tags == TAGS[kind]
        return there

    def of(self, kind: CellType) -> pa.Array:
        """The cells of a type in its Arrow type; all others are null."""
        if kind == "string":
            return self._strings(self)
        there = self.is_(kind)
        valid = None if self.counts[TAGS[kind]] == len(self) else bitmap(there)
        nulls = 0 if valid is None else len(self) - int(self.counts[TAGS[kind]])
        values: npt.NDArray[Any] = self.numbers
        if kind == "int":
            values = values.astype(np.int32)
        elif kind == "bool":
            values = np.packbits(values.astype(np.bool_), bitorder="little")
        return pa.Array.from_buffers(ARROW[kind], len(self), [valid, pa.py_buffer(values)], nulls)

    def piece(self, row: int) -> bytes | None:
        """The bytes of a cell's value, as `form` says; None where there is none (MISSING, SPREAD)."""
        if self.tags[row] in (tags.MISSING, tags.SPREAD):
            return None
        return self.text[self.begins[row] : self.ends[row]].tobytes()


def with_rows(cells: pa.Array, places: Int64s, others: pa.Array) -> pa.Array:
    """The cells, those at these places from others of the same type, which are as many as the places."""
    order = np.arange(len(cells))
    order[places] = len(cells) + np.arange(len(places))
    return pa.concat_arrays([cells, others]).take(pa.array(order))


def bitmap(mask: Bools) -> pa.Buffer:
    """A mask as a bitmap of Arrow's."""
    return pa.py_buffer(np.packbits(mask, bitorder="little"))
