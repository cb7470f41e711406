"""Stages on documents, for the rows of a batch: the interpreted form of what `stage_columns` does on columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.language.apply import Discarded, Failure, Passed, ValidationStop, apply_stage
from shared.language.expressions.environment import Environment
from shared.language.stages import Match, Stateless, Validate
from shared.model.values import Document
from shared.operators import dead_letters
from shared.operators.base import RAW, REST, Out
from shared.operators.batches import batch_of, documents_of, engine_columns, select
from shared.operators.context import TaskContext
from shared.operators.errors import OperatorError
from shared.operators.matched_columns import on_matches, reach
from shared.operators.rows import environments
from shared.operators.stage_columns import computes_of_undeclared, judged, on_columns


@dataclass(slots=True)
class Staged:
    """Rows behind some stages, the dead letters on the way, and how many rows `$validate` discarded."""

    batch: pa.RecordBatch
    letters: list[Out] = field(default_factory=list)
    failed: int = 0
    discarded: int = 0


def through(
    stages: Sequence[Stateless], batch: pa.RecordBatch, context: TaskContext, *, inside: bool = False
) -> Staged:
    """Rows through stages: on columns as long as that can be, then document by document.

    inside: an operator of this task takes them. Otherwise what was computed of undeclared fields travels as these do, in documents:
    which type a batch happens to have of them must not be seen, for instance in the columns of a file.
    """
    staged = Staged(batch)
    i, undeclared = 0, False
    while i < len(stages) and staged.batch.num_rows:
        stage, together = stages[i], reach(stages[i:])
        if together and (behind := on_matches(stages[i : i + together], staged.batch)) is not None:
            staged.batch, i, undeclared = behind, i + together, True
            continue
        if isinstance(stage, Match | Validate):
            _kept(stage, staged, context)
        elif (on := on_columns(stage, staged.batch)) is not None:
            undeclared = undeclared or computes_of_undeclared(stage, staged.batch)
            staged.batch = on
        else:
            _interpreted(stages[i:], staged, context)
            return staged
        i += 1
    if undeclared and not inside:
        staged.batch = batch_of(documents_of(staged.batch), engine_columns(staged.batch, (RAW, REST)))
    return staged


def _kept(stage: Match | Validate, staged: Staged, context: TaskContext) -> None:
    """`$match` and `$validate` keep rows as they are, so that their columns stay typed."""
    batch = staged.batch
    found = judged(stage.predicate if isinstance(stage, Match) else stage.validator, batch)
    kept: npt.NDArray[np.bool_] = np.ones(batch.num_rows, dtype=np.bool_)
    if found is None:
        rows, looked = list(range(batch.num_rows)), batch
    else:
        kept = found.passes.copy()
        places = np.flatnonzero(found.doubtful if isinstance(stage, Match) else found.doubtful | ~found.passes)
        rows, looked = places.tolist(), batch.take(pa.array(places))
    failures: list[dead_letters.Failure] = []
    envs = environments(looked, documents_of(looked), context.topic) if rows else []
    for row, env in zip(rows, envs, strict=True):
        match _applied(stage, env.root, env):
            case Passed(documents):
                kept[row] = bool(documents)
            case Discarded():
                kept[row] = False
                staged.discarded += 1
            case Failure() as failure:
                kept[row] = False
                failures.append(_letter(row, failure))
    _add_letters(staged, batch, failures, stage.name, context)
    staged.batch = select(batch, kept)


def _applied(stage: Stateless, document: Document, env: Environment) -> Passed | Discarded | Failure:
    """What a stage does to a document; OperatorError where that stops the processor."""
    outcome = apply_stage(stage, document, env)
    if isinstance(outcome, ValidationStop):
        raise OperatorError(
            f"{outcome.path}: {outcome.reason} validationAction is error: mend the document's source or the validator"
        )
    return outcome


def _interpreted(stages: Sequence[Stateless], staged: Staged, context: TaskContext) -> None:
    batch = staged.batch
    items = [(row, env.root, env) for row, env in enumerate(environments(batch, documents_of(batch), context.topic))]
    for stage in stages:
        items = _one_stage(stage, items, staged, batch, context)
    engine = engine_columns(batch)
    rows = pa.array([row for row, _, _ in items], type=pa.int64())
    staged.batch = batch_of([d for _, d, _ in items], {n: c.take(rows) for n, c in engine.items()})


_Item = tuple[int, Document, Environment]


def _one_stage(
    stage: Stateless, items: list[_Item], staged: Staged, batch: pa.RecordBatch, context: TaskContext
) -> list[_Item]:
    following: list[_Item] = []
    failures: list[dead_letters.Failure] = []
    for row, document, env in items:
        match _applied(stage, document, env):
            case Passed(documents):
                following += [(row, d, env) for d in documents]
            case Discarded():
                staged.discarded += 1
            case Failure() as failure:
                failures.append(_letter(row, failure))
    _add_letters(staged, batch, failures, stage.name, context)
    return following


def _letter(row: int, outcome: Failure) -> dead_letters.Failure:
    return dead_letters.Failure(row, outcome.reason, outcome.code, outcome.path, document=outcome.document)


def _add_letters(
    staged: Staged, batch: pa.RecordBatch, failures: Sequence[dead_letters.Failure], operator: str, context: TaskContext
) -> None:
    staged.failed += len(failures)
    staged.letters += dead_letters.dead_letters(batch, failures, operator, context)
