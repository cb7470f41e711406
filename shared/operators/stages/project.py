"""`$project`."""

from collections.abc import Sequence

import pyarrow as pa

from tidemark.shared.language.stages import Project
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, computes, deepens
from tidemark.shared.language.values.depth import DEPTH_MAX
from tidemark.shared.operators.branches import included, included_documents
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.depth import with_too_deep
from tidemark.shared.operators.field_order import document_order
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Errors, Staged, frame_of, made_of, of_encoded, without_errors
from tidemark.shared.operators.stages.unset import left_out


def project(stage: Project, staged: Staged, context: TaskContext) -> None:
    """Fields left out, or those that are told."""
    (left_out if stage.mode == "exclusion" else _included)(stage, staged, context)


def _included(stage: Project, staged: Staged, context: TaskContext) -> None:
    """The fields that are kept in the order of the documents, then those that are computed; encoded documents where these orders differ."""
    leaves = dict(stage.fields.fields)
    computed = [name for name, leaf in leaves.items() if isinstance(leaf, Computed) or _computes_inside(leaf)]
    kept = [name for name, leaf in leaves.items() if not isinstance(leaf, Computed)]
    order = document_order(staged.batch, kept, computed)
    if order is None:
        frame = Frame(
            staged.batch, topic=context.topic
        )  # the interpreter may be asked for whole documents, in their order
        frame.prepare(stage.paths())
        documents = included_documents(stage.fields, frame)
        staged.interpreted += documents.interpreted_rows
        staged.batch = of_encoded(documents.array, staged.batch)
        without_errors(stage, staged, context, frame, _errors(stage, documents.errors, [documents.array], DEPTH_MAX))
        return
    frame = frame_of(stage, staged, context, stage.paths())
    cells = {name: _included_leaf(name, leaves[name], frame) for name in order}
    inside = [cells[name].array for name in order if isinstance(leaves[name], Branch)]
    made_of(stage, staged, context, frame, cells, lambda errors: _errors(stage, errors, inside, DEPTH_MAX - 1))


def _errors(stage: Project, found: Errors, inside: Sequence[pa.BinaryArray], most: int) -> Errors:
    return with_too_deep(found, inside, most) if deepens(stage.fields) else found


def _computes_inside(leaf: Leaf) -> bool:
    return isinstance(leaf, Branch) and computes(leaf)


def _included_leaf(name: str, leaf: Leaf, frame: Frame) -> Cells:
    match leaf:
        case Computed(expr):
            return frame.computed(expr)
        case Branch():
            return included(name, leaf, frame)
        case _:
            return frame.field(name)
