"""Stages on the rows of a batch: each is a program from columns to columns (`stages`).

A computed field becomes a column, by a kernel or interpreted (frame.py); an unchanged one stays where it lies, in a column or in the text
or encoded document of its row. Where a stage makes whole documents anew (a `$replaceRoot` by any expression, a `$project` of documents
whose fields are in different orders, a `$redact` that looks inside) they are encoded behind it. Only a `$redact` whose expression has no
kernel goes through documents one by one.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidemark.shared.language.stages import Stateless
from tidemark.shared.operators.batches import is_engine
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.pieces import COPIED_BYTES
from tidemark.shared.operators.staged import Staged, whole
from tidemark.shared.operators.stages import IN_PIECES, PROGRAMS


def through(stages: Sequence[Stateless], batch: pa.RecordBatch, context: TaskContext) -> Staged:
    """Rows through stages."""
    (staged,) = _behind(stages, Staged(batch), context, None)
    return staged


def through_in_pieces(
    stages: Sequence[Stateless], batch: pa.RecordBatch, context: TaskContext, most: int = COPIED_BYTES
) -> Iterator[Staged]:
    """Rows through stages; where arrays are unwound, the items go on in pieces of so many bytes."""
    return _behind(stages, Staged(batch), context, most)


def _behind(stages: Sequence[Stateless], staged: Staged, context: TaskContext, most: int | None) -> Iterator[Staged]:
    for number, stage in enumerate(stages):
        if not staged.batch.num_rows:
            break
        if any(map(is_engine, stage.named())):  # a field named as an engine's column can be none (B5)
            whole(stage, staged, context)
        elif (in_pieces := IN_PIECES.get(type(stage))) is not None:
            for piece in in_pieces(stage, staged, context, most):
                staged.batch = piece
                yield from _behind(stages[number + 1 :], staged, context, most)
                staged = Staged(piece)
            return
        else:
            PROGRAMS.get(type(stage), whole)(stage, staged, context)
    yield staged
