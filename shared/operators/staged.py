"""The rows of a batch on their way through stages, and what the stages' programs have in common."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.language.fields import Path
from tidemark.shared.language.stages.base import Discarded, Failure, Passed, Stateless, ValidationStop
from tidemark.shared.model.failures import Lasting
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import RAW, REST, OperatorError, Out
from tidemark.shared.operators.batches import (
    NO_FIELDS,
    batch_of,
    documents_of,
    engine_columns,
    is_tagged,
    select,
    user_columns,
)
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Failures, RowFailure, dead_letters
from tidemark.shared.operators.encoded import encoded
from tidemark.shared.operators.field_order import moves
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.rows import environments

Named = dict[str, tuple[pa.Field, pa.Array]]
Errors: TypeAlias = Mapping[int, Any]
"""Why rows failed, by row."""


@dataclass(slots=True)
class Staged:
    """Rows behind some stages, the dead letters on the way, and how many rows `$validate` discarded."""

    batch: pa.RecordBatch
    letters: list[Out] = field(default_factory=list)
    failed: int = 0
    discarded: int = 0
    interpreted: int = 0
    """How many values the interpreter gave, a row and an expression each."""


def frame_of(stage: Stateless, staged: Staged, context: TaskContext, paths: set[Path]) -> Frame:
    """The rows as a stage reads them."""
    frame = Frame(staged.batch, stage.reads(), context.topic)
    frame.prepare(paths)
    return frame


def of_field(name: str, frame: Frame, staged: Staged) -> pa.BinaryArray:
    """The values of a field, encoded; null for a missing one."""
    cells = frame.field(name)
    staged.interpreted += cells.interpreted_rows
    return encoded_cells(cells.array, cells.field)


def applied(stage: Stateless, document: Document, env: Any) -> Passed | Discarded | Failure:
    """The result of a stage for one document; OperatorError if that stops the processor."""
    outcome = stage.apply(document, env)
    if isinstance(outcome, ValidationStop):
        raise stopped(outcome)
    return outcome


class InvalidInput(OperatorError, Lasting):
    """A document that `validationAction: error` refuses: it comes again with each generation."""


def stopped(stop: ValidationStop) -> InvalidInput:
    """The end of the processor."""
    return InvalidInput(
        f"{stop.path}: {stop.reason} validationAction is error: mend the document's source or the validator"
    )


def whole(stage: Stateless, staged: Staged, context: TaskContext) -> None:
    """Each document by itself, all of it: the output is encoded."""
    batch = staged.batch
    places: list[int] = []
    documents: list[Document] = []
    failed: list[tuple[int, Failure]] = []
    for row, env in enumerate(environments(batch, documents_of(batch), context.topic)):
        match applied(stage, env.root, env):
            case Passed(found):
                places += [row] * len(found)
                documents += found
            case Failure() as failure:
                failed.append((row, failure))
    add_letters(stage, staged, context, failed)
    staged.interpreted += batch.num_rows
    taken = batch.take(pa.array(places, pa.int64()))
    staged.batch = batch_of(documents, engine_columns(taken))


def made_of(
    stage: Stateless,
    staged: Staged,
    context: TaskContext,
    frame: Frame,
    cells: Mapping[str, Cells],
    judged: Callable[[Errors], Errors] = dict,
) -> None:
    """Rows that have these fields and no others. judged: the errors of the fields, with those of whole rows."""
    errors: Errors = {}
    for each in cells.values():
        errors = {**each.errors, **errors}
        staged.interpreted += each.interpreted_rows
    named = {name: (each.field.with_name(name), each.array) for name, each in cells.items() if not _nowhere(each)}
    staged.batch = batch_with(named, engine_columns(staged.batch, (RAW, REST)), staged.batch)
    without_errors(stage, staged, context, frame, judged(errors))


def _nowhere(cells: Cells) -> bool:
    """Whether no row has a value."""
    return is_tagged(cells.field) and cells.array.null_count == len(cells.array)


def replaced(staged: Staged, new: Named) -> None:
    """Columns take the place of those of their names, or come behind the others; a field that a row had lost comes last in that row."""
    batch = staged.batch
    if moves(batch, new):
        batch = of_encoded(encoded(batch), batch)
    named = {name: new.get(name) or (batch.schema.field(name), batch.column(name)) for name in user_columns(batch)}
    staged.batch = batch_with({**named, **new}, engine_columns(batch), batch)


def batch_with(named: Named, engine: Mapping[str, pa.Array], like: pa.RecordBatch) -> pa.RecordBatch:
    """A batch of these columns; `like` has the engine's fields."""
    fields = [f for f, _ in named.values()] + [like.schema.field(n) for n in engine]
    return pa.RecordBatch.from_arrays([*(a for _, a in named.values()), *engine.values()], schema=pa.schema(fields))


def of_encoded(documents: pa.BinaryArray, like: pa.RecordBatch) -> pa.RecordBatch:
    """An untyped batch (B3) of encoded documents; `like` has the engine's columns."""
    engine = engine_columns(like, (RAW, REST))
    rest = pc.if_else(pc.equal(documents, NO_FIELDS), pa.nulls(len(documents), pa.binary()), documents)
    return pa.RecordBatch.from_arrays([rest, *engine.values()], names=[REST, *engine])


def without_errors(stage: Stateless, staged: Staged, context: TaskContext, frame: Frame, errors: Errors) -> None:
    """The rows on which nothing failed; the others are dead letters, with the document as it came to the stage."""
    if not errors:
        return
    kept = np.ones(frame.size, dtype=np.bool_)
    kept[list(errors)] = False
    behind = staged.batch
    staged.batch = frame.batch
    add_failures(stage, staged, context, Failures.of_errors(errors, stage.path))
    staged.batch = select(behind, kept)


def add_letters(stage: Stateless, staged: Staged, context: TaskContext, failed: Sequence[tuple[int, Failure]]) -> None:
    """Dead letters of rows of the batch as it came to the stage."""
    add_failures(stage, staged, context, Failures.of([RowFailure(row, f.reason, f.code, f.path) for row, f in failed]))


def add_failures(stage: Stateless, staged: Staged, context: TaskContext, failures: Failures) -> None:
    """The same of failures as columns."""
    letters = dead_letters(staged.batch, failures, stage.name, context)
    staged.failed += sum(out.batch.num_rows for out in letters)
    staged.letters += letters
