"""`$unset`, and `$project` where it leaves fields out."""

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.stages.trees import Branch, ByFields
from tidemark.shared.operators import inside
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import TAGGED_FIELD
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.staged import Named, Staged, frame_of, of_field, replaced

_SOUGHT_MAX: Final = 4
"""Names that are sought in the documents, a pass each; of more columns each hides the documents' own field, whether there is one or not."""


def left_out(stage: ByFields, staged: Staged, context: TaskContext) -> None:
    """Fields left out: columns go, and a column without a value hides the documents' own fields."""
    frame = frame_of(stage, staged, context, stage.paths())
    batch = staged.batch
    columns = {
        name for name, leaf in stage.fields.fields if name in batch.schema.names and not isinstance(leaf, Branch)
    }
    new: Named = {}
    gone: list[str] = []
    for name, leaf in stage.fields.fields:
        if isinstance(leaf, Branch):
            cells = of_field(name, frame, staged)
            if cells.null_count < len(cells):
                new[name] = (TAGGED_FIELD.with_name(name), inside.without(leaf, cells))
        elif name in columns and len(columns) <= _SOUGHT_MAX and unwritten(batch, name):
            gone.append(name)
        else:
            new[name] = (TAGGED_FIELD.with_name(name), pa.nulls(batch.num_rows, pa.binary()))
    replaced(staged, new)
    if gone:
        staged.batch = staged.batch.drop_columns(gone)


def unwritten(batch: pa.RecordBatch, name: str) -> bool:
    """Whether the documents of a batch, its columns aside, have no field of this name, nor another that looks like it."""
    escaped = json.dumps(name, ensure_ascii=False)[1:-1] != name or "/" in name
    for column, wanted in ((RAW, (f'"{name}"', "\\u")), (REST, (name,))):
        if column not in batch.schema.names:
            continue
        texts = batch.column(column)
        if texts.null_count == len(texts):
            continue
        if escaped or any(pc.any(pc.match_substring(texts, text)).as_py() for text in wanted):
            return False
    return True
