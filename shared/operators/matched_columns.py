"""`$regexFind` and the stages that read what it found, on columns: up to a `$project` that keeps nothing but what it computes.

What is found would be a document in each row. Behind such a `$project` nobody sees it, so it is never made: a match and its captures are
columns of their own. Where anything is not a column, or a document is left at the end, the stages have to be interpreted.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.shared.language.expressions.ast import Call
from tidemark.shared.language.fields import expression_paths, predicate_paths
from tidemark.shared.language.kernels.base import Bools, Column, Path, Rows, Unvectorised
from tidemark.shared.language.kernels.expressions import column_of
from tidemark.shared.language.kernels.predicates import verdict_of
from tidemark.shared.language.kernels.texts import found_in
from tidemark.shared.language.stages import AddFields, Branch, Computed, Keep, Match, Project, Stateless
from tidemark.shared.operators.base import RAW, REST
from tidemark.shared.operators.batches import column_field, engine_columns
from tidemark.shared.operators.frame import Frame, column_filtered

_FIND = "$regexFind"


class _Columns(Rows):
    """Rows, and the columns that stand for fields of their documents."""

    def __init__(self, frame: Frame) -> None:
        super().__init__(frame.size)
        self.frame = frame
        self.paths: dict[Path, Column] = {}
        self.items: dict[tuple[Path, int], Column] = {}
        self.made: set[str] = set()
        """Fields of which these alone tell."""

    def at(self, names: Path) -> Column:
        """What was found, or what the rows have; nothing of which there is doubt."""
        found = self.paths.get(names)
        if found is None and names[0] in self.made:
            raise Unvectorised
        found = self.frame.at(names) if found is None else found
        if found.doubt is not None:
            raise Unvectorised
        return found

    def picked(self, names: Path) -> Column:
        """The same, where a number may be an index."""
        *inner, last = names
        found = self.items.get((tuple(inner), int(last))) if last.isdecimal() and last == str(int(last)) else None
        return self.at(names) if found is None else found

    def item(self, names: Path, index: int) -> Column:
        """A capture."""
        found = self.items.get((names, index))
        if found is None:
            raise Unvectorised
        return found

    def keep(self, mask: Bools) -> None:
        """Some of the rows."""
        cells = pa.array(mask)
        self.frame, self.size = self.frame.filtered(mask), int(mask.sum())
        self.paths = {path: column_filtered(c, mask, cells) for path, c in self.paths.items()}
        self.items = {at: column_filtered(c, mask, cells) for at, c in self.items.items()}


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
    """The batch behind stages that `reach` counts; None if anything is in doubt."""
    frame = Frame(batch)
    frame.prepare(_read(stages))
    columns = _Columns(frame)
    try:
        for stage in stages:
            match stage:
                case AddFields(fields=tree):
                    _add(columns, tree)
                case Match(predicate=predicate):
                    mask, doubt = verdict_of(predicate, columns)
                    if doubt is not None:
                        return None
                    if not mask.all():
                        columns.keep(mask)
                case Project(fields=tree):
                    return _projected(columns, tree)
    except Unvectorised:
        return None
    return None


def _finds(leaf: object) -> bool:
    return isinstance(leaf, Computed) and isinstance(leaf.expr, Call) and leaf.expr.op == _FIND


def _read(stages: Sequence[Stateless]) -> set[Path]:
    """The paths of the documents that come which the stages read."""
    made: set[str] = set()
    found: set[Path] = set()
    for stage in stages:
        read: list[set[Path]] = []
        if isinstance(stage, Match):
            read = [predicate_paths(stage.predicate)]
        elif isinstance(stage, AddFields | Project):
            read = [expression_paths(leaf.expr) for _, leaf in stage.fields.fields if isinstance(leaf, Computed)]
        found |= {path for paths in read for path in paths if path[0] not in made}
        if isinstance(stage, AddFields):
            made |= {name for name, _ in stage.fields.fields}
    return found


def _add(columns: _Columns, tree: Branch) -> None:
    """New fields, all of them computed of the fields before; MISSING and null are told apart nowhere, so they are not made."""
    new: dict[Path, Column] = {}
    items: dict[tuple[Path, int], Column] = {}
    for name, leaf in tree.fields:
        if not isinstance(leaf, Computed):
            raise Unvectorised
        if isinstance(leaf.expr, Call) and leaf.expr.op == _FIND and leaf.expr.args[0] is not None:
            match = found_in(leaf.expr, column_of(leaf.expr.args[0], columns), name)
            new.update(match.paths)
            items.update(match.items)
        else:
            new[name,] = _known(column_of(leaf.expr, columns))
    names = {name for name, _ in tree.fields}
    columns.paths = {path: c for path, c in columns.paths.items() if path[0] not in names} | new
    columns.items = {at: c for at, c in columns.items.items() if at[0][0] not in names} | items
    columns.made |= names


def _known(column: Column) -> Column:
    """A column without doubt, nor nulls that may be missing fields."""
    if column.doubt is not None or (column.missing and column.has_nulls):
        raise Unvectorised
    return replace(column, missing=False)


def _nowhere(columns: _Columns, name: str) -> bool:
    """Whether no document has the field."""
    return name not in columns.made and columns.frame.absent(name)


def _projected(columns: _Columns, tree: Branch) -> pa.RecordBatch:
    """The computed fields as columns, and the engine's."""
    named: dict[str, tuple[pa.Field, pa.Array]] = {}
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep) and _nowhere(columns, name):
            continue
        if not isinstance(leaf, Computed):
            raise Unvectorised
        column = _known(column_of(leaf.expr, columns))
        if column.type in ("object", "null") or column.has_nulls:
            raise Unvectorised
        named[name] = column_field(column.values.type, loose=True).with_name(name), column.values
    for name, array in engine_columns(columns.frame.batch, (RAW, REST)).items():
        named[name] = columns.frame.batch.schema.field(name), array
    return pa.RecordBatch.from_arrays([a for _, a in named.values()], schema=pa.schema([f for f, _ in named.values()]))
