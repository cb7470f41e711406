"""`$replaceRoot` and `$replaceWith`."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import ObjectExpr, fields_used
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.fields import all_of, expression_paths
from tidemark.shared.language.stages import ReplaceRoot
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.batches import empty_of, is_tagged
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.frame import Frame
from tidemark.shared.operators.staged import Named, Staged, frame_of, made_of, replaced, whole, without_errors


def replace_root(stage: ReplaceRoot, staged: Staged, context: TaskContext) -> None:
    """A new root of told fields is made of columns; one that keeps the others writes over them; any other takes documents."""
    if stage.made is not None:
        frame = frame_of(stage, staged, context, expression_paths(stage.new_root))
        made_of(stage, staged, context, frame, {name: frame.computed(expr) for name, expr in stage.made.fields})
    elif stage.added is None or _largest(staged.batch) > RESULT_UNITS_MAX:
        whole(stage, staged, context)
    else:
        _merged(stage, stage.added, staged, context)


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
        cells = frame.computed(expr)
        if cells.array.null_count and (is_tagged(cells.field) or empty_of(cells.field) != "null"):
            cells = frame.each(lambda env, expr=expr, name=name: _or_as_it_was(evaluate(expr, env), name, env))  # type: ignore[misc]
        new[name] = (cells.field.with_name(name), cells.array)
        errors = {**cells.errors, **errors}
        staged.interpreted += cells.interpreted_rows
    replaced(staged, new)
    without_errors(stage, staged, context, frame, errors)


def _or_as_it_was(value: Value, name: str, env: Environment) -> Value:
    return env.root.get(name, MISSING) if value is MISSING else value
