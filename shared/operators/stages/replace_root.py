"""`$replaceRoot` and `$replaceWith`."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.language.expressions.ast import ObjectExpr, fields_used
from tidemark.shared.language.expressions.environment import DEPTH_MAX, RESULT_UNITS_MAX
from tidemark.shared.language.fields import all_of, expression_paths
from tidemark.shared.language.stages import ReplaceRoot
from tidemark.shared.operators.batches import TAGGED_FIELD, empty_of, is_tagged, values_of
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.depth import may_be_deeper
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Named, Staged, frame_of, made_of, of_encoded, replaced, without_errors


def replace_root(stage: ReplaceRoot, staged: Staged, context: TaskContext) -> None:
    """A new root of told fields is made of columns; one that keeps the others writes over them; any other is encoded documents."""
    if stage.made is not None:
        frame = frame_of(stage, staged, context, expression_paths(stage.new_root))
        made_of(
            stage,
            staged,
            context,
            frame,
            {name: frame.computed(expr, stage.new_root) for name, expr in stage.made.fields},
        )
    elif (
        stage.added is None or _largest(staged.batch) > RESULT_UNITS_MAX or may_be_deeper(staged.batch, DEPTH_MAX).any()
    ):
        _encoded(stage, staged, context)
    else:
        _merged(stage, stage.added, staged, context)


def _encoded(stage: ReplaceRoot, staged: Staged, context: TaskContext) -> None:
    frame = frame_of(stage, staged, context, expression_paths(stage.new_root))
    cells = frame.computed(stage.new_root)
    found = encoded_cells(cells.array, cells.field)
    odd = values.read(found).tags != tags.OBJECT
    odd[list(cells.errors)] = False
    errors = dict(cells.errors)
    for row, value in zip(
        np.flatnonzero(odd).tolist(), values_of(found.filter(pa.array(odd)), TAGGED_FIELD), strict=True
    ):
        errors[row] = stage.refused(value)
    staged.interpreted += cells.interpreted_rows
    staged.batch = of_encoded(found, staged.batch)
    without_errors(stage, staged, context, frame, errors)


def _largest(batch: pa.RecordBatch) -> int:
    """Bytes that no row has more of."""
    total = 0
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            total += pc.max(pc.binary_length(column)).as_py() or 0
        elif pa.types.is_nested(column.type):
            total += column.nbytes
    return total


def _merged(stage: ReplaceRoot, added: ObjectExpr, staged: Staged, context: TaskContext) -> None:
    """Fields written over; one without a value stays as it was."""
    names = all_of([frozenset(name for name, _ in added.fields), *(fields_used(expr) for _, expr in added.fields)])
    frame = Frame(staged.batch, names, context.topic)
    frame.prepare(expression_paths(stage.new_root))
    new: Named = {}
    errors: dict[int, Any] = {}
    for name, expr in added.fields:
        cells = frame.computed(expr, stage.new_root)
        if cells.array.null_count and (is_tagged(cells.field) or empty_of(cells.field) != "null"):
            before = frame.field(name)
            either = pc.coalesce(encoded_cells(cells.array, cells.field), encoded_cells(before.array, before.field))
            cells = Cells(TAGGED_FIELD, either, cells.errors, cells.interpreted_rows)
        new[name] = (cells.field.with_name(name), cells.array)
        errors = {**cells.errors, **errors}
        staged.interpreted += cells.interpreted_rows
    replaced(staged, new)
    without_errors(stage, staged, context, frame, errors)
