"""`$project`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.stages import Project
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, computes
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import user_columns
from tidemark.shared.operators.branches import included, included_documents
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.extracted import places_of
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Staged, frame_of, made_of, of_encoded, without_errors
from tidemark.shared.operators.stages.unset import left_out


def project(stage: Project, staged: Staged, context: TaskContext) -> None:
    """Fields left out, or those that are told."""
    (left_out if stage.mode == "exclusion" else _included)(stage, staged, context)


def _included(stage: Project, staged: Staged, context: TaskContext) -> None:
    """The fields that are kept in the order of the documents, then those that are computed; encoded documents where these orders differ."""
    frame = frame_of(stage, staged, context, stage.paths())
    leaves = dict(stage.fields.fields)
    new = [name for name, leaf in leaves.items() if _is_new(name, leaf, frame)]
    order = document_order(staged.batch, [name for name in leaves if name not in new])
    if order is None or _moves(order, leaves, frame):
        documents = included_documents(stage.fields, frame)
        staged.interpreted += documents.interpreted_rows
        staged.batch = of_encoded(documents.array, staged.batch)
        without_errors(stage, staged, context, frame, documents.errors)
        return
    names = [*order, *new]
    made_of(stage, staged, context, frame, {name: _included_leaf(name, leaves[name], frame) for name in names})


def _is_new(name: str, leaf: Leaf, frame: Frame) -> bool:
    return isinstance(leaf, Computed) or (isinstance(leaf, Branch) and computes(leaf) and frame.absent(name))


def _moves(order: Sequence[str], leaves: Mapping[str, Leaf], frame: Frame) -> bool:
    """Whether a field may stand at another place in documents without it, which get it among the computed ones (`trees.include`)."""
    late = [n for n in order if isinstance(leaf := leaves[n], Branch) and computes(leaf) and frame.may_lack(n)]
    computed = [name for name in leaves if name in late or name not in order]
    return bool(late) and not late == order[-1:] == computed[:1]


def _included_leaf(name: str, leaf: Leaf, frame: Frame) -> Cells:
    match leaf:
        case Computed(expr):
            return frame.computed(expr)
        case Branch():
            return included(name, leaf, frame)
        case _:
            return frame.computed(FieldPath((name,)))


def document_order(batch: pa.RecordBatch, names: Sequence[str]) -> list[str] | None:
    """Names in the order in which the documents have these fields; None where they may have them in different ones."""
    user = user_columns(batch)
    source = next((name for name in (RAW, REST) if name in batch.schema.names), None)
    if source is None or len(names) < 2:  # noqa: PLR2004 - nothing to order
        return [*(name for name in user if name in names), *(name for name in names if name not in user)]
    asked = [name for name in names if source == RAW or name not in user]
    found = [(places, name) for name, places in places_of(batch, asked).items()]
    ordered = sorted(found, key=lambda each: _first(each[0]))
    highest = np.full(batch.num_rows, -1, dtype=np.int64)
    for places, _ in ordered:
        if bool(((places >= 0) & (places < highest)).any()):
            return None
        highest = np.maximum(highest, places)
    inside = [name for _, name in ordered]
    return [*inside, *(name for name in dict.fromkeys([*user, *names]) if name in names and name not in inside)]


def _first(places: Any) -> tuple[bool, int]:
    """Where the field stands in the first document that has it; those that none has come last."""
    there = np.flatnonzero(places >= 0)
    return (not len(there), int(places[there[0]]) if len(there) else 0)
