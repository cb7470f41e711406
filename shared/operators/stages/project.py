"""`$project`."""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.expressions.ast import FieldPath
from tidemark.shared.language.stages import Project
from tidemark.shared.language.stages.trees import Branch, Computed, Leaf, include_value
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import user_columns
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.staged import Staged, frame_of, made_of, whole
from tidemark.shared.operators.stages.unset import left_out


def project(stage: Project, staged: Staged, context: TaskContext) -> None:
    """Fields left out, or those that are told."""
    (left_out if stage.mode == "exclusion" else _included)(stage, staged, context)


def _included(stage: Project, staged: Staged, context: TaskContext) -> None:
    """The fields that are kept in the order of the documents, then those that are computed."""
    frame = frame_of(stage, staged, context, stage.paths())
    kept = [name for name, leaf in stage.fields.fields if not isinstance(leaf, Computed)]
    order = document_order(staged.batch, kept)
    if order is None:
        whole(stage, staged, context)
        return
    leaves = dict(stage.fields.fields)
    names = [*order, *(name for name, leaf in stage.fields.fields if isinstance(leaf, Computed))]
    made_of(stage, staged, context, frame, {name: _included_leaf(name, leaves[name], frame) for name in names})


def _included_leaf(name: str, leaf: Leaf, frame: Frame) -> Cells:
    match leaf:
        case Computed(expr):
            return frame.computed(expr)
        case Branch():
            return frame.each(lambda env: include_value(leaf, env.root.get(name, MISSING), env))
        case _:
            return frame.computed(FieldPath((name,)))


def document_order(batch: pa.RecordBatch, names: Sequence[str]) -> list[str] | None:
    """Names in the order in which the documents have these fields; None where they may have them in different ones."""
    user = user_columns(batch)
    source = next((name for name in (RAW, REST) if name in batch.schema.names), None)
    if source is None or len(names) < 2:  # noqa: PLR2004 - nothing to order
        return [*(name for name in user if name in names), *(name for name in names if name not in user)]
    texts = batch.column(source)
    found: list[tuple[Any, str]] = []
    for name in names:
        if source == REST and name in user:
            continue
        found.append((_places(texts, name, source), name))
    ordered = sorted(found, key=lambda each: _first(each[0]))
    highest = np.full(batch.num_rows, -1, dtype=np.int64)
    for places, _ in ordered:
        if bool(((places >= 0) & (places < highest)).any()):
            return None
        highest = np.maximum(highest, places)
    inside = [name for _, name in ordered]
    return [*inside, *(name for name in user if name in names and name not in inside)]


def _places(texts: pa.Array, name: str, source: str) -> Any:
    """Where a field's name stands first; -1 where it does not."""
    if source == RAW:
        pattern = re.escape(json.dumps(name, ensure_ascii=False)) + r"\s*:"  # a value may look like the name
        found = pc.find_substring_regex(texts, pattern)
    else:
        found = pc.find_substring(texts, encode_value(name))
    return pc.fill_null(found, -1).to_numpy(zero_copy_only=False)


def _first(places: Any) -> tuple[bool, int]:
    """Where the field stands in the first document that has it; those that none has come last."""
    there = np.flatnonzero(places >= 0)
    return (not len(there), int(places[there[0]]) if len(there) else 0)
