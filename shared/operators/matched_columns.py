"""`$regexFind` and the stages that read what it found, on columns: up to a `$project` that keeps nothing but what it computes.

What is found would be a document in each row. Behind such a `$project` nobody sees it, so it is never made: a match and its captures are
columns of their own. Where anything is not a column, or a document is left at the end, the stages have to be interpreted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from shared.language.expressions.ast import Call, Expr
from shared.language.kernels import expression_paths, predicate_paths
from shared.language.kernels.base import Column, Fallback, Path, Rows, Unvectorised, rows_of
from shared.language.kernels.expressions import column_of
from shared.language.kernels.patterns import found_in
from shared.language.kernels.predicates import mask_of
from shared.language.stages import AddFields, Branch, Computed, Keep, Match, Project, Stateless
from shared.operators.base import RAW, REST
from shared.operators.batches import engine_columns
from shared.operators.extracted import extracted, of_rows
from shared.operators.stage_columns import absent, declared

_FIND = "$regexFind"


@dataclass(slots=True)
class _Columns:
    """Rows, and the columns that stand for fields of their documents."""

    batch: pa.RecordBatch
    paths: dict[Path, Column] = field(default_factory=dict)
    items: dict[tuple[Path, int], Column] = field(default_factory=dict)

    def rows(self) -> Rows:
        return rows_of(self.batch, declared(self.batch), self.paths, self.items)


def reach(stages: Sequence[Stateless]) -> int:
    """How many stages, from the first, go together here; 0 for none."""
    first = stages[0]
    if not isinstance(first, AddFields) or not any(_finds(leaf) for _, leaf in first.fields.fields):
        return 0
    for number, stage in enumerate(stages):
        if isinstance(stage, Project) and stage.mode == "inclusion":
            return number + 1
        if not isinstance(stage, AddFields | Match):
            return 0
    return 0


def on_matches(stages: Sequence[Stateless], batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """The batch behind stages that `reach` counts; None if they have to be interpreted."""
    paths = _read(stages)
    found = None if paths is None else extracted(batch, paths)
    if found is None or bool(found.doubtful.any()):
        return None
    columns = _Columns(batch, dict(found.columns))
    try:
        for stage in stages:
            match stage:
                case AddFields(fields=tree):
                    _add(columns, tree)
                case Match(predicate=predicate):
                    mask = mask_of(predicate, columns.rows())
                    if not mask.all():
                        _keep(columns, pa.array(mask))
                case Project(fields=tree):
                    return _projected(columns, tree)
    except (Unvectorised, Fallback):
        return None
    return None


def _finds(leaf: object) -> bool:
    return isinstance(leaf, Computed) and isinstance(leaf.expr, Call) and leaf.expr.op == _FIND


def _read(stages: Sequence[Stateless]) -> set[Path] | None:
    """The paths of the documents that come which the stages read; None where something has no kernel at all."""
    made: set[str] = set()
    found: set[Path] = set()
    for stage in stages:
        read: list[set[Path] | None] = []
        if isinstance(stage, Match):
            read = [predicate_paths(stage.predicate)]
        elif isinstance(stage, AddFields | Project):
            read = [_leaf_paths(leaf.expr) for _, leaf in stage.fields.fields if isinstance(leaf, Computed)]
        for paths in read:
            if paths is None:
                return None
            found |= {path for path in paths if path[0] not in made}
        if isinstance(stage, AddFields):
            made |= {name for name, _ in stage.fields.fields}
    return found


def _leaf_paths(expr: Expr) -> set[Path] | None:
    if isinstance(expr, Call) and expr.op == _FIND:
        return None if expr.args[0] is None else expression_paths(expr.args[0])
    return expression_paths(expr)


def _add(columns: _Columns, tree: Branch) -> None:
    """New fields, all of them computed of the fields before; MISSING and null are told apart nowhere, so they are not made."""
    rows = columns.rows()
    new: dict[Path, Column] = {}
    items: dict[tuple[Path, int], Column] = {}
    for name, leaf in tree.fields:
        if not isinstance(leaf, Computed):
            raise Unvectorised
        if isinstance(leaf.expr, Call) and leaf.expr.op == _FIND and leaf.expr.args[0] is not None:
            match = found_in(leaf.expr, column_of(leaf.expr.args[0], rows), name)
            new.update(match.paths)
            items.update(match.items)
        else:
            new[name,] = _known(column_of(leaf.expr, rows))
    names = {name for name, _ in tree.fields}
    columns.paths = {path: c for path, c in columns.paths.items() if path[0] not in names} | new
    columns.items = {at: c for at, c in columns.items.items() if at[0][0] not in names} | items


def _known(column: Column) -> Column:
    """A column without nulls, which may be missing fields."""
    if column.missing and column.has_nulls:
        raise Fallback
    return replace(column, missing=False)


def _keep(columns: _Columns, mask: pa.BooleanArray) -> None:
    columns.batch = columns.batch.filter(mask)
    columns.paths = of_rows(columns.paths, mask)
    columns.items = {at: replace(c, values=c.values.filter(mask)) for at, c in columns.items.items()}


def _nowhere(batch: pa.RecordBatch, name: str) -> bool:
    """Whether no document has the field."""
    return name not in batch.schema.names and absent(batch, name)


def _projected(columns: _Columns, tree: Branch) -> pa.RecordBatch:
    """The computed fields as typed columns, and the engine's."""
    rows = columns.rows()
    named: dict[str, pa.Array] = {}
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep) and (name,) not in columns.paths and _nowhere(columns.batch, name):
            continue
        if not isinstance(leaf, Computed):
            raise Unvectorised
        column = column_of(leaf.expr, rows)
        if column.type in ("object", "null") or column.has_nulls:
            raise Fallback
        named[name] = column.values
    named.update(engine_columns(columns.batch, (RAW, REST)))
    return pa.RecordBatch.from_arrays(list(named.values()), names=list(named))
