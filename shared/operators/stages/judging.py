"""Stages that keep rows as they are, by a predicate: `$match`, `$validate`."""

import numpy as np

from tidemark.shared.language.fields import predicate_expressions, predicate_paths
from tidemark.shared.language.kernels import Bools, Unvectorised, verdict_of
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.stages import Match, Validate
from tidemark.shared.language.stages.base import Discarded, Failure, Passed, Stateless
from tidemark.shared.operators.batches import select
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.frame import Frame, pure
from tidemark.shared.operators.staged import Staged, add_letters, applied


def match(stage: Match, staged: Staged, context: TaskContext) -> None:
    """`$match`."""
    keep(stage, stage.predicate, staged, context, tells_refused=False)


def validate(stage: Validate, staged: Staged, context: TaskContext) -> None:
    """`$validate`: it says of each row that it refuses what becomes of it."""
    keep(stage, stage.validator, staged, context, tells_refused=True)


def judged(predicate: Predicate, frame: Frame) -> tuple[Bools, Bools]:
    """Which rows meet a predicate by its kernel, and of which only the interpreter can tell; shape (n,) each."""
    frame.prepare(predicate_paths(predicate))
    try:
        found, doubt = verdict_of(predicate, frame)
    except Unvectorised:
        return np.zeros(frame.size, dtype=np.bool_), np.ones(frame.size, dtype=np.bool_)
    return found, np.zeros(frame.size, dtype=np.bool_) if doubt is None else doubt


def keep(stage: Stateless, predicate: Predicate, staged: Staged, context: TaskContext, *, tells_refused: bool) -> None:
    """The rows that a predicate is true of, as they are. tells_refused: the stage itself says what becomes of each other row."""
    batch = staged.batch
    frame = Frame(batch, stage.reads(), context.topic)
    kept, doubt = judged(predicate, frame)
    kept = kept & ~doubt
    rows = np.flatnonzero(~kept if tells_refused else doubt)
    groups = (
        frame.different(rows, stage.reads()) if all(pure(expr) for expr in predicate_expressions(predicate)) else None
    )
    firsts, places = (rows, np.arange(len(rows))) if groups is None else (rows[groups.firsts], groups.codes)
    staged.interpreted += len(firsts)
    outcomes = [applied(stage, env.root, env) for env in frame.environments(firsts)]
    failed: list[tuple[int, Failure]] = []
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        match outcomes[place]:
            case Passed(documents):
                kept[row] = bool(documents)
            case Discarded():
                kept[row] = False
                staged.discarded += 1
            case Failure() as failure:
                kept[row] = False
                failed.append((row, failure))
    add_letters(stage, staged, context, failed)
    staged.batch = select(batch, kept)
