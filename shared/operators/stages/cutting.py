"""`$limit`, `$skip` and `$count`: by a row's place in its window alone."""

import numpy as np
import pyarrow as pa

from tidemark.shared.language.stages import Count, Limit
from tidemark.shared.language.stages.skip import Skip
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import batch_of, select
from tidemark.shared.operators.whole_windows import Windows


def limit(stage: Limit, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    """The first rows of each window."""
    return select(found.batch, found.places < stage.limit), []


def skip(stage: Skip, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    """The rows behind the first ones of each window."""
    return select(found.batch, found.places >= stage.skip), []


def count(stage: Count, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    """A row a window."""
    counts = pa.array(np.diff(found.starts, append=found.batch.num_rows).astype(np.int32))
    documents = [{stage.field: number} for number in counts.to_pylist()]
    return batch_of(documents, found.made(np.arange(len(documents)))), []
