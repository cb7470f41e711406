"""Rows that nest too deep (`language.values.depth`)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import documents, values
from tidemark.shared.language.stages.base import too_deep
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper
from tidemark.shared.operators.base import RAW, REST, Out
from tidemark.shared.operators.batches import documents_of, is_tagged, select
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failures, dead_letters

Bools = npt.NDArray[np.bool_]


def may_be_deeper(batch: pa.RecordBatch, most: int) -> Bools:
    """In which rows more than so many arrays and objects may lie in each other, the document among them; shape (n,)."""
    found = np.zeros(batch.num_rows, np.bool_)
    for field, cells in zip(batch.schema, batch.columns, strict=True):
        if field.name == RAW:
            found |= documents.deeper(cells, most)
        elif field.name == REST:
            found |= values.deeper(cells, most)
        elif is_tagged(field):
            found |= values.deeper(cells, most - 1)
    return found


def deeper(batch: pa.RecordBatch, most: int) -> list[int]:
    """The rows in which more than so many surely do."""
    rows = np.flatnonzero(may_be_deeper(batch, most))
    if not len(rows):
        return []
    some = documents_of(batch.take(pa.array(rows)))
    return [row for row, document in zip(rows.tolist(), some, strict=True) if is_deeper(document, most)]


def without_deep(batch: pa.RecordBatch, path: str, name: str, context: TaskContext) -> tuple[pa.RecordBatch, list[Out]]:
    """The documents that a stage has made of others, and dead letters of those that nest too deep."""
    deep = deeper(batch, DEPTH_MAX)
    if not deep:
        return batch, []
    kept = np.ones(batch.num_rows, np.bool_)
    kept[deep] = False
    failures = Failures.of_errors(dict.fromkeys(deep, too_deep()), path)
    return select(batch, kept), dead_letters(batch, failures, name, context)


def with_too_deep(errors: Mapping[int, object], made: Sequence[pa.BinaryArray], most: int) -> Mapping[int, Any]:
    """The errors of rows, and those of other rows in which a stage has made a value of more than so many levels."""
    found = dict(errors)
    for cells in made:
        for row in np.flatnonzero(values.deeper(cells, most)).tolist():
            found.setdefault(row, too_deep())
    return found
