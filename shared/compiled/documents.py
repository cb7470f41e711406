"""Columns out of JSON documents: of any paths, in one pass over the texts that also says which of them are strict JSON documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import json, packed, tags
from tidemark.shared.compiled.columns import Bools, Int32s, Int64s, Path, Tagged, Uint8s, bitmap
from tidemark.shared.compiled.name_tables import name_table

SIZE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a document; the plain interpreter says why a larger one is none."""
_UTF8_ERRORS: Final = "surrogatepass"


@dataclass(frozen=True, slots=True)
class Documents:
    """The values of documents at some paths."""

    sure: Bools
    """Shape (n,): which are documents, and are read (J1); the others are the plain interpreter's, their cells are MISSING."""
    columns: Mapping[Path, Tagged]


def read(values: pa.BinaryArray, paths: Sequence[Path], *, trusted: bool = False) -> Documents:
    """Read JSON texts, shape (n,). Paths: from a document inwards, each of at least one name.

    trusted: the plain interpreter rendered the texts, canonical (J4).
    """
    tree = _tree(tuple(sorted(set(paths))))
    text, bounds = buffers(values)
    sure = np.diff(bounds) <= SIZE_MAX_BYTES
    if values.null_count:
        sure &= values.is_valid().to_numpy(zero_copy_only=False)
    cells = _cells(tree, len(values))
    room = np.empty((3, json.DEPTH_MAX + 1), dtype=np.int64), np.empty(json.UNESCAPED_BYTES, dtype=np.uint8)
    json.read(text, bounds, *tree.arrays, *cells, sure, trusted, *room)
    return Documents(sure, _columns(tree, cells, text, "json"))


def read_packed(values: pa.BinaryArray, paths: Sequence[Path]) -> Mapping[Path, Tagged]:
    """As `read`, of documents in the compact codec; null and nothing is a document without fields."""
    tree = _tree(tuple(sorted(set(paths))))
    text, bounds = buffers(values.fill_null(b"") if values.null_count else values)
    cells = _cells(tree, len(values))
    packed.read(text, bounds, *tree.arrays, *cells, np.empty((2, tree.size + 1), dtype=np.int64))
    return _columns(tree, cells, text, "packed")


_Cells = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]


def _cells(tree: "Tree", count: int) -> _Cells:
    shape = (tree.size, count)
    return (
        np.zeros(shape, dtype=np.uint8), np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.int32),
    )  # fmt: skip


def _columns(tree: "Tree", cells: _Cells, text: Uint8s, form: Literal["json", "packed"]) -> dict[Path, Tagged]:
    kinds, numbers, begins, ends = cells
    return {
        path: cells_of(kinds[node], numbers[node], begins[node], ends[node], text, form)
        for path, node in tree.nodes.items()
    }


def cells_of(
    kinds: Uint8s, numbers: Int64s, begins: Int32s, ends: Int32s, text: Uint8s, form: Literal["json", "packed"] = "json"
) -> Tagged:
    """Cells with values that stand in a text."""
    return Tagged(kinds, numbers, begins, ends, text, form, _strings)


def numeric(kinds: npt.NDArray[np.integer], numbers: Int64s) -> Tagged:
    """Cells whose numbers are all of them: null and missing ones, bools, whole numbers, the bits of doubles, dates; shape (n,) both."""
    none = np.zeros(len(numbers), np.int32)
    return cells_of(kinds.astype(np.uint8), numbers, none, none, none.view(np.uint8), "packed")


def buffers(values: pa.BinaryArray) -> tuple[Uint8s, Int64s]:
    """(all bytes, n + 1 bounds of the texts in them) of a binary array."""
    _, offsets, data = values.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
    return (np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)), bounds


def _strings(cells: Tagged) -> pa.StringArray:
    there = cells.tags == tags.STRING
    offsets = np.zeros(len(cells) + 1, dtype=np.int32)
    np.cumsum(np.where(there, cells.numbers, 0), out=offsets[1:])
    out = np.empty(int(offsets[-1]), dtype=np.uint8)
    json.strings(cells.text, cells.tags, cells.numbers, cells.begins, cells.ends, offsets, out)
    nulls = len(cells) - int(cells.counts[tags.STRING])
    valid = bitmap(there) if nulls else None
    return pa.StringArray.from_buffers(len(cells), pa.py_buffer(offsets), pa.py_buffer(out), valid, nulls)


def deeper(texts: pa.BinaryArray, most: int) -> Bools:
    """In which JSON texts more than so many brackets stand in each other, those of typed values among them; shape (n,)."""
    text, bounds = buffers(texts)
    found = np.zeros(len(texts), dtype=np.bool_)
    json.deeper(text, bounds, most, found)
    return found


def instants(texts: pa.StringArray) -> tuple[Int64s, Bools]:
    """(UTC ms, whether they surely are) of ISO 8601 texts, shape (n,) each; of others, and of nulls, the interpreter has to tell."""
    text, bounds = buffers(texts)
    found, known = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    json.instants(text, bounds, found, known)
    if texts.null_count:
        known &= texts.is_valid().to_numpy(zero_copy_only=False)
    return found, known


@dataclass(frozen=True, slots=True)
class Tree:
    """Paths as a tree of names: the document is node 0, and the nodes below a node come right behind it."""

    nodes: Mapping[Path, int]
    arrays: tuple[Uint8s, Int64s, Int64s, Int64s, Int64s]
    """The table of the nodes' names, and the last node below each."""

    @property
    def size(self) -> int:
        """Nodes, with the document's."""
        return len(self.arrays[1])


@lru_cache(maxsize=256)
def _tree(paths: tuple[Path, ...]) -> Tree:
    every = sorted({path[:length] for path in paths for length in range(len(path) + 1)} | {()})
    numbers = {path: node for node, path in enumerate(every)}
    above = [numbers[path[:-1]] for path in every[1:]]
    last = np.arange(len(every))
    for node in range(len(every) - 1, 0, -1):
        last[above[node - 1]] = max(last[above[node - 1]], last[node])
    table = name_table(tuple(path[-1].encode("utf-8", _UTF8_ERRORS) for path in every[1:]), tuple(above))
    return Tree({path: numbers[path] for path in paths}, (*table, last))
