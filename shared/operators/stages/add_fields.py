"""`$addFields` and `$set`."""

from typing import Any

from tidemark.shared.language.expressions.ast import Expr, ObjectExpr
from tidemark.shared.language.stages import AddFields
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, add_to_value, computes
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Named, Staged, frame_of, replaced, without_errors


def add_fields(stage: AddFields, staged: Staged, context: TaskContext) -> None:
    """Each field is computed from the rows as they came."""
    frame = frame_of(stage, staged, context, stage.paths())
    new: Named = {}
    errors: dict[int, Any] = {}
    for name, leaf in stage.fields.fields:
        cells = _leaf(name, leaf, frame)
        if cells is not None:
            new[name] = (cells.field.with_name(name), cells.array)
            errors = {**cells.errors, **errors}
            staged.interpreted += cells.interpreted_rows
    replaced(staged, new)
    without_errors(stage, staged, context, frame, errors)


def _leaf(name: str, leaf: Leaf, frame: Frame) -> Cells | None:
    """The new value of a field by `$addFields`; None where nothing is computed."""
    if isinstance(leaf, Computed):
        return frame.computed(leaf.expr)
    if isinstance(leaf, Branch) and computes(leaf):
        if frame.absent(name):
            return frame.computed(_object(leaf))
        return frame.each(lambda env: add_to_value(leaf, env.root.get(name, MISSING), env))
    return None


def _object(tree: Branch) -> ObjectExpr:
    """The new value of a branch where there was none: the object of the computed fields."""
    fields: list[tuple[str, Expr]] = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            fields.append((name, leaf.expr))
        elif isinstance(leaf, Branch) and computes(leaf):
            fields.append((name, _object(leaf)))
    return ObjectExpr(tuple(fields))
