"""`$addFields` and `$set`."""

from collections.abc import Mapping
from typing import Any

from tidemark.shared.language.stages import AddFields
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, computes
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.operators.branches import added
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.depth import with_too_deep
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Named, Staged, frame_of, replaced, without_errors


def add_fields(stage: AddFields, staged: Staged, context: TaskContext) -> None:
    """Each field is computed from the rows as they came."""
    frame = frame_of(stage, staged, context, stage.paths())
    new: Named = {}
    errors: Mapping[int, Any] = {}
    for name, leaf in stage.fields.fields:
        cells = _leaf(name, leaf, frame)
        if cells is not None:
            new[name] = (cells.field.with_name(name), cells.array)
            errors = {**cells.errors, **errors}
            staged.interpreted += cells.interpreted_rows
    inside = [new[name][1] for name, leaf in stage.fields.fields if isinstance(leaf, Branch) and name in new]
    errors = with_too_deep(errors, inside, DEPTH_MAX - 1)
    replaced(staged, new)
    without_errors(stage, staged, context, frame, errors)


def _leaf(name: str, leaf: Leaf, frame: Frame) -> Cells | None:
    """The new value of a field by `$addFields`; None where nothing is computed."""
    if isinstance(leaf, Computed):
        return frame.computed(leaf.expr)
    return added(name, leaf, frame) if isinstance(leaf, Branch) and computes(leaf) else None
