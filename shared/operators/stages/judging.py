"""Stages that keep rows as they are, by a predicate: `$match`, `$validate`."""

from typing import Final

import numpy as np

from tidemark.shared.language.fields import predicate_expressions, predicate_paths
from tidemark.shared.language.kernels import Bools, Unvectorised, verdict_of
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.stages import Match, Validate
from tidemark.shared.language.stages.base import Discarded, Failure, Outcome, Passed, Stateless, ValidationStop
from tidemark.shared.operators.batches import select
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.frame import Frame, pure
from tidemark.shared.operators.staged import Staged, add_letters, applied

_PASSED_OVER: Final = Passed(())


def match(stage: Match, staged: Staged, context: TaskContext) -> None:
    """`$match`."""
    keep(stage, stage.predicate, staged, context)


def validate(stage: Validate, staged: Staged, context: TaskContext) -> None:
    """`$validate`: what becomes of a row that it refuses does not depend on the row."""
    keep(stage, stage.validator, staged, context, stage.refused({}))


def judged(predicate: Predicate, frame: Frame) -> tuple[Bools, Bools]:
    """Which rows meet a predicate by its kernel, and of which only the interpreter can tell; shape (n,) each."""
    frame.prepare(predicate_paths(predicate))
    try:
        found, doubt = verdict_of(predicate, frame)
    except Unvectorised:
        return np.zeros(frame.size, dtype=np.bool_), np.ones(frame.size, dtype=np.bool_)
    return found, np.zeros(frame.size, dtype=np.bool_) if doubt is None else doubt


def keep(
    stage: Stateless, predicate: Predicate, staged: Staged, context: TaskContext, refused: Outcome = _PASSED_OVER
) -> None:
    """The rows that a predicate is true of, as they are. refused: what becomes of each other row."""
    batch = staged.batch
    frame = Frame(batch, stage.reads(), context.topic)
    kept, doubt = judged(predicate, frame)
    kept = kept & ~doubt
    if isinstance(refused, ValidationStop):
        doubt = ~kept  # it tells the document
    rows = np.flatnonzero(doubt)
    groups = (
        frame.different(rows, stage.reads()) if all(pure(expr) for expr in predicate_expressions(predicate)) else None
    )
    firsts, places = (rows, np.arange(len(rows))) if groups is None else (rows[groups.firsts], groups.codes)
    staged.interpreted += len(firsts)
    outcomes = [applied(stage, env.root, env) for env in frame.environments(firsts)]
    found = [(row, outcomes[place]) for row, place in zip(rows.tolist(), places.tolist(), strict=True)]
    if refused is not _PASSED_OVER:
        found += [(row, refused) for row in np.flatnonzero(~kept & ~doubt).tolist()]
    failed: list[tuple[int, Failure]] = []
    for row, outcome in found:
        match outcome:
            case Passed(documents):
                kept[row] = bool(documents)
            case Discarded():
                staged.discarded += 1
            case Failure():
                failed.append((row, outcome))
    add_letters(stage, staged, context, sorted(failed, key=lambda each: each[0]))
    staged.batch = select(batch, kept)
