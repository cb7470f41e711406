"""`$project`."""

from tidemark.shared.language.stages import Project
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, computes
from tidemark.shared.operators.branches import included, included_documents
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.field_order import document_order
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Staged, frame_of, made_of, of_encoded, without_errors
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
        without_errors(stage, staged, context, frame, documents.errors)
        return
    frame = frame_of(stage, staged, context, stage.paths())
    made_of(stage, staged, context, frame, {name: _included_leaf(name, leaves[name], frame) for name in order})


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
