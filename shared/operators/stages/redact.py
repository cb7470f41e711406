"""`$redact`: of a document that it looks into, the objects inside are rows of their own, level by level."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.expressions.ast import Call, Expr, Variable, walk
from tidemark.shared.language.fields import expression_paths
from tidemark.shared.language.kernels import Bools, Column, Path, Rows, Unvectorised, column_of
from tidemark.shared.language.kernels.arrays import Bound, Int64s
from tidemark.shared.language.kernels.base import constant, either, filled, without
from tidemark.shared.language.query.ast import All, Always, AnyOf, ExprTrue, Not, Predicate
from tidemark.shared.language.stages import Redact
from tidemark.shared.language.stages.base import Failure, Passed
from tidemark.shared.language.stages.redact import DESCEND, KEEP, PRUNE, VARIABLES
from tidemark.shared.language.values import encode_doc
from tidemark.shared.operators.batches import documents_of, select
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.staged import Staged, add_letters, applied, frame_of, of_encoded, whole
from tidemark.shared.operators.stages.judging import keep


def redact(stage: Redact, staged: Staged, context: TaskContext) -> None:
    """One that does not look inside keeps rows as they are."""
    predicate = _decided(stage.expr)
    if predicate is not None:
        keep(stage, predicate, staged, context)
        return
    try:
        _looked_into(stage, staged, context)
    except Unvectorised:
        whole(stage, staged, context)


def _decided(expr: Expr) -> Predicate | None:
    """Of which documents a `$redact` keeps all, where it keeps all or nothing of each; None where it may look inside."""
    match expr:
        case Variable("KEEP" | "PRUNE" as name, ()):
            return Always(name == "KEEP")
        case Call("$cond", (condition, then, other)) if (
            condition is not None and then is not None and other is not None
        ):
            kept, otherwise = _decided(then), _decided(other)
            if kept is None or otherwise is None:
                return None
            truth = ExprTrue(condition)
            return AnyOf((All((truth, kept)), All((Not(truth), otherwise))))
        case _:
            return None


def _looked_into(stage: Redact, staged: Staged, context: TaskContext) -> None:
    if any(isinstance(node, Variable) and node.name == "ROOT" for node in walk(stage.expr)):
        raise Unvectorised  # inside it is not where paths begin
    frame = frame_of(stage, staged, context, expression_paths(stage.expr))
    cells, doubt = _objects(
        stage.expr, frame, np.arange(frame.size), frame.root().values, Bound(frame, None, _variables(frame.size))
    )
    rows = np.flatnonzero(doubt)
    failed: list[tuple[int, Failure]] = []
    kept: list[bytes | None] = []
    some = staged.batch.take(pa.array(rows))
    for row, env in zip(rows.tolist(), environments(some, documents_of(some), context.topic), strict=True):
        outcome = applied(stage, env.root, env)
        kept.append(encode_doc(outcome.documents[0]) if isinstance(outcome, Passed) and outcome.documents else None)
        if isinstance(outcome, Failure):
            failed.append((row, outcome))
    staged.interpreted += len(rows)
    cells = with_rows(cells, rows, pa.array(kept, pa.binary()))
    before = staged.batch
    add_letters(stage, staged, context, failed)
    staged.batch = select(of_encoded(cells, before), cells.is_valid().to_numpy(zero_copy_only=False))


def _variables(count: int) -> dict[str, Column | pa.BinaryArray]:
    return {name: constant(value, count) for name, value in VARIABLES.items()}


class _Inside(Bound):
    """Objects inside documents: paths begin at them, and the rest is that of their rows."""

    def __init__(self, above: Rows, places: Int64s, cells: pa.BinaryArray) -> None:
        super().__init__(above, places, _variables(len(cells)))
        self._documents = above.of_documents(cells)

    def at(self, names: Path) -> Column:
        """The objects' column."""
        return self._documents.at(names)

    def root(self) -> Column:
        """The objects."""
        return self._documents.root()


def _objects(
    expr: Expr, above: Rows, places: Int64s, cells: pa.BinaryArray, rows: Rows | None = None
) -> tuple[pa.BinaryArray, Bools]:
    """(what is left of some objects, null for nothing; those of which only the interpreter can tell), shape (n,) each.

    above: the documents' rows. places: of each object its document. rows: the objects, where they are the documents.
    """
    answers = column_of(expr, rows or _Inside(above, places, cells))
    if answers.type != "string":
        raise Unvectorised
    kept, pruned, open_ = (_equal(answers, each) for each in (KEEP, PRUNE, DESCEND))
    doubt = ~(kept | pruned | open_)
    if answers.doubt is not None:
        doubt |= answers.doubt
    into = np.flatnonzero(open_ & ~doubt)
    if len(into):
        counts, names, inside = values.fields(cells.take(pa.array(into)))
        of = values.rows_of(counts)
        found, unsure = _values(expr, above, places[into][of], inside)
        left, found, there = _left(found, of, len(into))
        made = values.paired(left, names.filter(there), found, np.ones(len(into), np.bool_))
        doubt[into[of[unsure]]] = True
        cells = with_rows(cells, into, made)
    return without(cells, either(pruned)), doubt


def _values(expr: Expr, above: Rows, places: Int64s, cells: pa.BinaryArray) -> tuple[pa.BinaryArray, Bools]:
    """The same of values of any types; places: the rows of their documents."""
    kinds, doubt = values.read(cells).tags, np.zeros(len(cells), np.bool_)
    objects = np.flatnonzero(kinds == tags.OBJECT)
    if len(objects):
        found, doubt[objects] = _objects(expr, above, places[objects], cells.take(pa.array(objects)))
        cells = with_rows(cells, objects, found)
    arrays = np.flatnonzero(kinds == tags.ARRAY)
    if len(arrays):
        counts, items = values.items(cells.take(pa.array(arrays)))
        of = values.rows_of(counts)
        found, unsure = _values(expr, above, places[arrays][of], items)
        doubt[arrays[of[unsure]]] = True
        left, found, _ = _left(found, of, len(arrays))
        cells = with_rows(cells, arrays, values.arrays(left, found, np.ones(len(arrays), np.bool_)))
    return cells, doubt


def _left(found: pa.BinaryArray, of: Int64s, count: int) -> tuple[Int64s, pa.BinaryArray, pa.BooleanArray]:
    """(how many values are left to each of so many objects or arrays; these values; which they are)."""
    there = found.is_valid()
    return np.bincount(of[there.to_numpy(zero_copy_only=False)], minlength=count), found.drop_null(), there


def _equal(column: Column, text: str) -> Bools:
    return filled(pc.equal(column.values, text))
