"""`$sort`."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.sorting import sort_items
from tidemark.shared.language.kernels import Unvectorised
from tidemark.shared.language.kernels.cells import encoded
from tidemark.shared.language.stages import Sort
from tidemark.shared.language.values.ranks import are_empty, counted, sort_order
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.frame import Frame, partial_documents
from tidemark.shared.operators.whole_windows import ORDER, Int64s, Windows


def sort(stage: Sort, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    """The rows, window after window, in the order of the keys."""
    return found.ordered(_order(stage, found.batch, found.runs)), []


def _order(stage: Sort, batch: pa.RecordBatch, runs: Int64s) -> Int64s:
    """The rows, window after window, in the order of a `$sort`; equal ones as they stood."""
    names = frozenset(key.names[0] for key in stage.keys)
    frame = Frame(batch, names)
    frame.prepare(key.names for key in stage.keys)
    found = [_key_of(frame, key) for key in stage.keys]
    if None not in found:
        ranked = [part for each in reversed(found) if each is not None for part in reversed(each)]
        return np.lexsort((*ranked, runs))
    documents = [{**d, ORDER: i} for i, d in enumerate(partial_documents(batch, names - {ORDER}))]
    order = np.array([d[ORDER] for d in sort_items(documents, stage.keys)], dtype=np.int64)
    return order[np.argsort(runs[order], kind="stable")]


def _key_of(frame: Frame, key: SortKey) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Numbers in the order of a sort key, those of the types first; None where only the documents can tell."""
    try:
        cells, unsure = encoded(frame.at(key.names))
    except Unvectorised:
        return None
    if unsure is not None:
        return None
    return sort_order(counted(cells, greatest=key.descending), are_empty(cells), descending=key.descending)
