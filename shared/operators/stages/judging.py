"""Stages that keep rows as they are, by a predicate: `$match`, `$validate`."""

from typing import Final

import numpy as np

from tidemark.shared.language.fields import predicate_expressions, predicate_paths
from tidemark.shared.language.kernels import Bools, Unvectorised, verdict_of
from tidemark.shared.language.query.ast import ExprTrue, Predicate
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages import Match, Validate
from tidemark.shared.language.stages.base import Discarded, Failure, Outcome, Passed, Stateless, ValidationStop
from tidemark.shared.language.values.types import truth
from tidemark.shared.operators.batches import select
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import Cause, Failures
from tidemark.shared.operators.frame import Frame, pure
from tidemark.shared.operators.staged import Staged, add_failures, stopped

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
    frame = Frame(staged.batch, stage.reads(), context.topic)
    kept, doubt = judged(predicate, frame)
    kept = kept & ~doubt
    rows = np.flatnonzero(doubt)
    groups = (
        frame.different(rows, stage.reads()) if all(pure(expr) for expr in predicate_expressions(predicate)) else None
    )
    firsts, places = (rows, np.arange(len(rows))) if groups is None else (rows[groups.firsts], groups.codes)
    staged.interpreted += len(firsts)
    by_parts = frame.by_parts(predicate.expr, rows) if groups is None and isinstance(predicate, ExprTrue) else None
    verdicts, errors = by_parts or frame.one_by_one(firsts, lambda env: matches(predicate, env))
    kept[rows] = np.array([truth(verdict) for verdict in verdicts], np.bool_)[places]
    if groups is not None and errors:
        alike = zip(rows.tolist(), firsts[places].tolist(), strict=True)
        errors = {row: errors[first] for row, first in alike if first in errors}
    failures = Failures.of_errors(errors, stage.path)
    others = np.setdiff1d(np.flatnonzero(~kept), failures.rows, assume_unique=True)
    match refused:
        case Discarded():
            staged.discarded += len(others)
        case Failure() if len(others):
            cause = Cause(refused.reason, refused.code, refused.path)
            failures = Failures.joined([failures, Failures.alike(others, cause)])
        case ValidationStop() if len(others):
            raise stopped(refused)
    add_failures(stage, staged, context, failures)
    staged.batch = select(staged.batch, kept)
