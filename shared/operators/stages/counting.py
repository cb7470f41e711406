"""NTH: which of the rows of its record, and of which stream, a row is, for ids that `$createUUID` makes."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.stages.counting import Marked
from tidemark.shared.operators.base import NTH
from tidemark.shared.operators.batches import with_column
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.staged import Staged


def marked(stage: Marked, staged: Staged, context: TaskContext) -> None:
    """The rows of a stream that flows into another one."""
    del context
    staged.batch = _further(staged.batch, pa.repeat(pa.scalar(stage.mark, pa.binary()), staged.batch.num_rows))


def numbered(batch: pa.RecordBatch, ordinals: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows that are made of others; ordinals: of each among those of the same row, shape (n,)."""
    data: Any = pa.py_buffer(ordinals.astype(">i8"))
    return _further(
        batch, pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(ordinals), [None, data]).cast(pa.binary())
    )


def _further(batch: pa.RecordBatch, cells: pa.BinaryArray) -> pa.RecordBatch:
    if NTH in batch.schema.names:
        cells = pc.binary_join_element_wise(batch.column(NTH).fill_null(b""), cells, b"")
    return with_column(batch, NTH, cells)
