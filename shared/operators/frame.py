"""Rows of a batch as stages read them: a path is a column, taken out once; an expression becomes a column, with a kernel or without.

- FR1 The interpreter defines the value of an expression. A kernel gives the same, and names rows that it cannot do (`kernels.base`, V3).
  Those rows, or all if there is neither a kernel nor a call (V4), are interpreted: many by the parts of the expression (`by_parts`), few,
  and forms without such parts, one by one, each on no more of its document than the stage reads.
- FR2 The result is a column again: of one type where the values have one, else tagged (batches, B6). So nothing behind an expression
  depends on whether it had a kernel.
- FR3 A row on which an expression fails is an error, and not a cell; the others go on (D1).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.expressions.ast import OF_ENGINE, Expr, FieldPath, Meta, Variable, fields_used
from tidemark.shared.language.expressions.ast import walk as nodes_of
from tidemark.shared.language.expressions.environment import DEPTH_MAX, RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate, evaluate_bounded
from tidemark.shared.language.fields import all_of, expression_paths
from tidemark.shared.language.kernels import Bools, Column, Path, Rows, Unvectorised, calls
from tidemark.shared.language.kernels.base import TIMESTAMP, UNITS_MAX, Kinds, doubted, either, gone_from, nulls_of
from tidemark.shared.language.kernels.cells import encoded, settled, tagged, tagged_column, taken, whole_column
from tidemark.shared.language.kernels.expressions import by_kernel
from tidemark.shared.language.values import encode_docs
from tidemark.shared.model.values import MISSING, Document, Value
from tidemark.shared.operators.base import ARRIVAL, EVENT, META, PART, REST, TS, WEND, WSTART
from tidemark.shared.operators.batches import (
    TAGGED_FIELD,
    Empty,
    column_field,
    documents_of,
    empty_of,
    is_loose,
    is_narrow,
    is_tagged,
    user_columns,
    values_of,
)
from tidemark.shared.operators.by_parts import LITTLE_UNITS, Asked, Unsure, by_parts, has_parts
from tidemark.shared.operators.cells import KINDS, column_of, encoded_cells, patched
from tidemark.shared.operators.context import Topics
from tidemark.shared.operators.dead_letters import Failures
from tidemark.shared.operators.encoded import encoded as encoded_rows
from tidemark.shared.operators.extracted import extracted, fields_of
from tidemark.shared.operators.grouping import Groups, groups_of
from tidemark.shared.operators.rows import until_abandoned, walk

Int64s = npt.NDArray[np.int64]
_NOTICED: Final = RESULT_UNITS_MAX - 65_536
"""A row with more than this left has spent so little that a stage's expressions together cannot exceed the limit."""
_FAILING: Final = 64
"""Where a part of an expression fails on so many rows in a row, the others are in doubt without a look: each would be looked at twice."""
DIFFERENT_PART: Final = 4
"""Rows are interpreted once for each different one where at most one in so many is different."""
_SAMPLE: Final = 256
"""So many rows tell whether it is worth to look at all."""
_METAS: Final[Mapping[Path, tuple[str, str]]] = {
    ("window", "start"): (WSTART, "date"),
    ("window", "end"): (WEND, "date"),
    ("source", "ts"): (TS, "date"),
}


@dataclass(frozen=True, slots=True)
class Cells:
    """The values of an expression, a row each, and the errors of the rows that have none (FR2, FR3)."""

    field: pa.Field
    """Without a name."""
    array: pa.Array
    errors: Mapping[int, ExpressionError] = field(default_factory=dict)
    """By row; the cells of these mean nothing."""
    interpreted_rows: int = 0
    """How many had to be interpreted."""

    def values(self) -> list[Value]:
        """The values as the language has them, MISSING included."""
        return values_of(self.array, self.field)

    def failures(self, path: str) -> Failures:
        """The errors as failures of rows; `path` where an error has no place of its own."""
        return Failures.of_errors(self.errors, path)


class Frame(Rows):
    """The rows of a batch. `names`: the top-level fields that are read of them, None for any."""

    def __init__(self, batch: pa.RecordBatch, names: Iterable[str] | None = None, topic: Topics = None) -> None:
        super().__init__(batch.num_rows)
        self.batch = batch
        self._names = None if names is None else frozenset(names)
        self._topic = topic
        self._user = frozenset(user_columns(batch))
        self._columns: dict[Path, Column] = {}
        self._nulls: dict[str, Kinds] = {}
        self._left: dict[int, int] = {}
        """The units left to rows that have spent many."""
        self._parts_left: list[int] = []
        """The units left to the parts of each row that are interpreted; empty before the first."""

    @property
    def before_row(self) -> Callable[[], None]:
        """Abandoned where the rows are not wanted any more."""
        return until_abandoned()

    # --- columns ------------------------------------------------------------------------------------------------------

    def prepare(self, paths: Iterable[Path]) -> None:
        """Take the columns of these paths out of the documents together."""
        wanted = {path for path in paths if path and path not in self._columns and path[0] not in self._user}
        if wanted:
            self._columns.update(extracted(self.batch, wanted))

    def at(self, names: Path) -> Column:
        """The column of a path."""
        found = self._columns.get(names)
        if found is None:
            if names[0] not in self._user:
                self.prepare([names])
                return self._columns[names]
            found = self._columns[names] = self._typed(names)
        return found

    def picked(self, names: Path) -> Column:
        """The same, where a number may be an index."""
        *inner, last = names
        lists = self._list_at(tuple(inner)) if inner and last.isdecimal() and last == str(int(last)) else None
        if lists is None:
            return self.at(names)
        found = self.item(tuple(inner), int(last))
        # A list that is too short has no value there for a query, and no list a missing one.
        lengths = pc.fill_null(pc.list_value_length(lists), 0)
        return doubted(found, pc.less_equal(lengths, int(last)).to_numpy(zero_copy_only=False))

    def item(self, names: Path, index: int) -> Column:
        """The items at an index, from the end where it is below 0, of lists of texts; a null cell where there is no such item."""
        lists = self._list_at(names)
        if lists is None:
            raise Unvectorised
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        places = index if index >= 0 else lengths + index
        there = (places >= 0) & (places < lengths)
        flat = pa.array(lists.offsets.to_numpy()[:-1] + places, mask=~there)
        beyond = ~there & lists.is_valid().to_numpy(zero_copy_only=False)
        return Column("string", lists.values.take(flat), missing=bool(beyond.any()))

    def _list_at(self, names: Path) -> pa.ListArray | None:
        """Lists of texts in a column of structs; None where there is something else."""
        if names[0] not in self._user:
            return None
        array = self.batch.column(names[0])
        for name in names[1:]:
            if not pa.types.is_struct(array.type) or array.type.get_field_index(name) < 0:
                return None
            array = pc.struct_field(array, name)
        return array if pa.types.is_list(array.type) and pa.types.is_string(array.type.value_type) else None

    def meta(self, names: Path) -> Column:
        """Bounds of windows, times, partitions and offsets of records, and what `$setStreamMeta` has set."""
        if names and names[0] not in OF_ENGINE:
            if META not in self.batch.schema.names:
                return Column("null", pa.nulls(self.size), missing=True, absent=True)
            return tagged_column(values.read_inside(self.batch.column(META), names))
        known = _METAS.get(names)
        if known is None or known[0] not in self.batch.schema.names:
            raise Unvectorised
        cells = self.batch.column(known[0])
        if names[0] == "source" and not self._all_records():
            raise Unvectorised
        return Column("date", cells.cast(pa.int64()).cast(TIMESTAMP), missing=bool(cells.null_count))

    def _all_records(self) -> bool:
        """Whether each row is a record of a source, at the time that TS has."""
        names = self.batch.schema.names
        if PART not in names or EVENT in names or self.batch.column(PART).null_count:
            return False
        least = pc.min(self.batch.column(PART)).as_py()
        return least is None or least >= 0

    def now(self) -> Column:
        """When the records arrived."""
        if ARRIVAL not in self.batch.schema.names:
            raise Unvectorised
        cells = self.batch.column(ARRIVAL)
        return Column("date", cells.cast(TIMESTAMP), missing=bool(cells.null_count))

    def root(self) -> Column:
        """The rows' documents."""
        found = self._columns.get(())
        if found is None:
            found = self._columns[()] = Column("object", encoded_rows(self.batch))
        return found

    def of_documents(self, cells: pa.BinaryArray) -> "Frame":
        """A batch that has nothing else."""
        return Frame(pa.RecordBatch.from_arrays([cells], names=[REST]))

    def interpreted(self, expr: Expr) -> Column:
        """The values of a part of an expression that has no kernel; doubt where it fails.

        All parts of a row share one budget. Behind it the row is in doubt: the interpreter, which passes over parts that do not count,
        decides with a budget of its own.
        """
        cells: list[Any] = [_FAILED] * self.size
        left = self._parts_left = self._parts_left or [RESULT_UNITS_MAX] * self.size
        rows = [row for row, units in enumerate(left) if units]
        some = self._rows(np.array(rows, np.int64))
        names = fields_used(expr)
        documents = documents_of(some) if names is None else partial_documents(some, names)
        failing = 0
        for row, env in zip(rows, walk(some, documents, [left[row] for row in rows], self._topic), strict=False):
            try:
                cells[row] = evaluate(expr, env)
                failing = 0
            except ExpressionError:
                failing += 1
                if failing == _FAILING:
                    break
            left[row] = max(0, env.budget.left)
        failed = np.array([cell is _FAILED for cell in cells], np.bool_)
        known = [MISSING if cell is _FAILED else cell for cell in cells]
        return tagged_column(values.read(tagged(known)), either(failed))

    def _typed(self, names: Path) -> Column:
        top = names[0]
        array, named = self.batch.column(top), self.batch.schema.field(top)
        if is_tagged(named):
            return tagged_column(values.read_inside(array, names[1:]) if names[1:] else values.read(array))
        marks = empty_of(named)
        like = Column(
            "null",
            pa.nulls(0),
            missing=marks != "null" and bool(array.null_count),
            absent=marks == "missing",
            told=partial(self._told, top) if marks is None else None,
        )
        for name in names[1:]:
            if not pa.types.is_struct(array.type):
                return Column("null", pa.nulls(self.size), missing=True, absent=True, doubt=_lists(array))
            at = array.type.get_field_index(name)
            if at < 0:
                return Column("null", pa.nulls(self.size), missing=True, absent=True)
            named = array.type.field(at)
            array = pc.struct_field(array, at)
            like = replace(like, missing=bool(array.null_count), absent=True, told=None)
        if is_narrow(named):
            return whole_column(array, "int", like)
        kind = KINDS.get(array.type)
        if kind is not None:
            return replace(like, type=kind, values=array)
        if pa.types.is_struct(array.type):
            return replace(like, type="object", values=array)
        cells = values.read(encoded_cells(array, named))
        nulls = array.is_null().to_numpy(zero_copy_only=False)
        gone = gone_from(replace(like, values=array))
        empty: Any = np.uint8(tags.SPREAD) if gone is None else gone()
        return tagged_column(replace(cells, tags=np.where(nulls, empty, cells.tags)))

    def _told(self, name: str) -> Kinds:
        """Of a declared field whose null cells the documents tell apart."""
        if name in self._nulls:
            return self._nulls[name]
        nulls = self.batch.column(name).is_null().to_numpy(zero_copy_only=False)
        cells = extracted(self.batch.filter(pa.array(nulls)), [(name,)])[name,].cells
        found = np.full(self.size, tags.SPREAD, np.uint8)
        if cells is not None:
            found[nulls] = np.where(np.isin(cells.tags, (tags.MISSING, tags.NULL)), cells.tags, np.uint8(tags.SPREAD))
        else:
            found[nulls] = tags.MISSING
        self._nulls[name] = found
        return found

    # --- documents ----------------------------------------------------------------------------------------------------

    def environments(self, rows: Int64s) -> Iterator[Environment]:
        """Where the stage's expressions are interpreted for some rows, each until the next is asked for.

        Units that a row spends here are spent for the later expressions of the stage, too.
        """
        some = self._rows(rows)
        documents = documents_of(some) if self._names is None else partial_documents(some, self._names)
        left = (
            [self._left.get(row, RESULT_UNITS_MAX) for row in rows.tolist()]
            if self._left
            else [RESULT_UNITS_MAX] * len(rows)
        )
        for row, env in zip(rows.tolist(), walk(some, documents, left, self._topic), strict=True):
            yield env
            if env.budget.left < _NOTICED:
                self._left[row] = env.budget.left

    def _rows(self, rows: Int64s) -> pa.RecordBatch:
        return self.batch if len(rows) == self.size else self.batch.take(pa.array(rows))

    # --- expressions --------------------------------------------------------------------------------------------------

    def computed(self, expr: Expr, root: Expr | None = None) -> Cells:
        """An expression's values; where a result nests deeper than the interpreter lets it, that says why.

        root: the expression that it is a field of, whose results are bounded.
        """
        cells = self._computed(expr)
        if not is_tagged(cells.field) or (root is None and isinstance(expr, FieldPath) and expr.names):
            return cells
        deep = values.deeper(cells.array, DEPTH_MAX if root is None else DEPTH_MAX - 1)
        for row, error in cells.errors.items():
            deep[row] = root is not None and error.code == SIZE
        if not deep.any():
            return cells
        return self.asked(cells, np.flatnonzero(deep), partial(evaluate_bounded, root or expr))

    def field(self, *names: str) -> Cells:
        """The values at a path as the documents have them: no results, and as deep as they are."""
        return self._computed(FieldPath(names))

    def _computed(self, expr: Expr) -> Cells:
        if isinstance(expr, FieldPath) and len(expr.names) == 1:
            whole = self.whole(expr.names[0])
            if whole is not None:
                return whole
        try:
            column = by_kernel(expr, self)
        except Unvectorised:
            return self._all_interpreted(expr)
        return self._completed(column, expr)

    def different(self, rows: Int64s, names: frozenset[str] | None) -> Groups | None:
        """Some rows by the values of these fields; None where more than one row in `DIFFERENT_PART` has values of its own."""
        if not names:
            return None
        groups = None
        for part in (rows[:_SAMPLE], rows) if len(rows) > _SAMPLE else (rows,):
            groups = groups_of(_told_apart(self._at(part), names), len(part))
            if len(groups.firsts) * DIFFERENT_PART > len(part):
                return None
        return groups if len(rows) else None

    def _by_different(self, expr: Expr, rows: Int64s) -> Cells | None:
        """The values of an expression for some rows, found once for each different one; None where most differ."""
        names = fields_used(expr)
        if self._left or not pure(expr):
            return None
        groups = self.different(rows, names)
        if groups is None:
            return None
        once = Frame(self.batch.take(pa.array(rows[groups.firsts])), names, self._topic)
        found = once._computed(expr)
        errors: dict[int, ExpressionError] = {}
        if found.errors or once._left:
            for at, (row, code) in enumerate(zip(rows.tolist(), groups.codes.tolist(), strict=True)):
                if code in found.errors:
                    errors[at] = found.errors[code]
                if code in once._left:
                    self._left[row] = once._left[code]
        return Cells(found.field, found.array.take(pa.array(groups.codes)), errors, found.interpreted_rows)

    def _all_interpreted(self, expr: Expr) -> Cells:
        """The interpreter's values for all rows."""
        rows = np.arange(self.size)
        if (found := self._by_different(expr, rows)) is not None:
            return found
        values, errors = self._each_interpreted(expr, rows)
        return Cells(*column_of(values), errors, self.size)

    def _interpreted(self, expr: Expr, rows: Int64s) -> tuple[list[Value], dict[int, ExpressionError]]:
        """The interpreter's values for some rows, MISSING for those that fail, and why these do."""
        found = self._by_different(expr, rows)
        if found is None:
            return self._each_interpreted(expr, rows)
        values = found.values()
        for row in found.errors:
            values[row] = MISSING
        return values, {int(rows[row]): error for row, error in found.errors.items()}

    def _each_interpreted(self, expr: Expr, rows: Int64s) -> tuple[list[Value], dict[int, ExpressionError]]:
        """The same, where most of the rows differ."""
        value_of = partial(evaluate if isinstance(expr, FieldPath) else evaluate_bounded, expr)
        return self.by_parts(expr, rows) or self.one_by_one(rows, value_of)

    def by_parts(self, expr: Expr, rows: Int64s) -> tuple[list[Value], dict[int, ExpressionError]] | None:
        """The interpreter's values for many rows, and why some fail, by the expression's parts; None where it must be taken as a whole."""
        if self._left or len(rows) <= calls.FEW_ROWS or not has_parts(expr):
            return None
        some = self._at(rows)
        try:
            values, errors = by_parts(expr, some.size, some.asked_part)
        except Unsure:
            return None
        return list(values()), {int(rows[row]): error for row, error in errors.items()}

    def asked_part(self, part: Expr, places: Int64s) -> Asked:
        """The values of a part of an expression in some rows; Unsure if it took much of the budget of one of them."""
        some = self._at(places)
        found = some.computed(part)
        if some.took_much:
            raise Unsure
        return Asked(found.values, found.errors)

    def _at(self, rows: Int64s) -> "Frame":
        """Some of the rows, with the columns that are known of them."""
        some = Frame(self._rows(rows), self._names, self._topic)
        if some.batch is self.batch:
            some._columns = dict(self._columns)
            return some
        for path, column in self._columns.items():
            known = taken(column, rows)
            some._columns[path] = known if known.cells is None else tagged_column(known.cells)
        return some

    @property
    def took_much(self) -> bool:
        """Whether what was computed here took more than a little of the budget of a row."""
        return bool(self._left) or bool((self.left < UNITS_MAX - LITTLE_UNITS).any())

    def whole(self, name: str) -> Cells | None:
        """A column of the batch as it is; None if it does not exist, or if REST decides the meaning of its null cells."""
        if name not in self._user:
            return None
        array, named = self.batch.column(name), self.batch.schema.field(name)
        if array.null_count and not is_tagged(named) and empty_of(named) is None:
            return None
        return Cells(named.with_name(""), array)

    def each(self, value_of: Callable[[Environment], Value]) -> Cells:
        """The value of a function for each row."""
        values, errors = self.one_by_one(np.arange(self.size), value_of)
        named, array = column_of(values)
        return Cells(named, array, errors, self.size)

    def asked(self, cells: Cells, rows: Int64s, value_of: Callable[[Environment], Value]) -> Cells:
        """Encoded cells, with the value of a function for some rows, or its error."""
        found, errors = self.one_by_one(rows, value_of)
        left = dict(cells.errors)
        for row in rows.tolist():
            left.pop(row, None)
        array = with_rows(cells.array, rows, tagged(found))
        return Cells(cells.field, array, left | errors, cells.interpreted_rows + len(rows))

    def one_by_one(
        self, rows: Int64s, value_of: Callable[[Environment], Value]
    ) -> tuple[list[Value], dict[int, ExpressionError]]:
        """The value of a function for each of some rows, MISSING where it failed, and the errors by row."""
        values: list[Value] = []
        errors: dict[int, ExpressionError] = {}
        known: dict[tuple[str, str, str], ExpressionError] = {}
        for row, env in zip(rows.tolist(), self.environments(rows), strict=True):
            try:
                values.append(value_of(env))
            except ExpressionError as error:
                # A traceback would keep the frames of its row.
                errors[row] = known.setdefault((error.reason, error.code, error.path), error.with_traceback(None))
                values.append(MISSING)
        return values, errors

    def _completed(self, column: Column, expr: Expr) -> Cells:
        """A kernel's column, with the interpreter's values for rows in doubt."""
        column = settled(column)
        unsure = either(column.doubt, nulls_of(column) if column.missing and not column.absent else None)
        encodes = column.type in ("object", "array") and not pa.types.is_struct(column.values.type)
        if encodes or (unsure is not None and column.cells is not None):
            return self._encoded(column, expr)
        if unsure is None:
            return self._sure(column, expr)
        rows = np.flatnonzero(unsure)
        if len(rows) == self.size:
            return self._all_interpreted(expr)
        values, errors = self._interpreted(expr, rows)
        named, array = patched(column, unsure, values, loose=not self.declares(expr))
        return Cells(named, array, errors, len(rows))

    def _encoded(self, column: Column, expr: Expr) -> Cells:
        """Values of any types, with the interpreter's for rows in doubt."""
        cells, unsure = encoded(column)
        if unsure is None:
            return Cells(TAGGED_FIELD, cells)
        rows = np.flatnonzero(unsure)
        found, errors = self._interpreted(expr, rows)
        return Cells(TAGGED_FIELD, with_rows(cells, rows, tagged(found)), errors, len(rows))

    def _sure(self, column: Column, expr: Expr) -> Cells:
        if column.type == "null":
            empty = MISSING if column.absent else None
            named, array = column_of([empty] * self.size)
            return Cells(named, array)
        empty_: Empty | None = None if not column.has_nulls else "missing" if column.absent else "null"
        return Cells(column_field(column.values.type, empty=empty_, loose=not self.declares(expr)), column.values)

    def declares(self, expr: Expr) -> bool:
        """Whether an expression reads only columns with a type that outlasts this batch (B7)."""
        names = fields_used(expr)
        return names is not None and all(
            name in self._user and not is_loose(self.batch.schema.field(name)) for name in names
        )


def evaluated(expr: Expr, batch: pa.RecordBatch, topic: Topics = None) -> Cells:
    """The values of one expression."""
    return frame_of([expr], batch, topic).computed(expr)


def frame_of(exprs: Sequence[Expr], batch: pa.RecordBatch, topic: Topics = None) -> Frame:
    """A frame for these expressions; the columns that they read are taken out of the documents together."""
    frame = Frame(batch, all_of(map(fields_used, exprs)), topic)
    frame.prepare(path for expr in exprs for path in expression_paths(expr))
    return frame


def pure(expr: Expr) -> bool:
    """Whether an expression reads nothing but the document: neither time nor metadata of the engine."""
    return not any(
        isinstance(node, Meta) or (isinstance(node, Variable) and node.name == "NOW") for node in nodes_of(expr)
    )


class _Failed:
    """The mark of a row on which an expression failed: of a type that no column has."""


_FAILED: Final = _Failed()


def _lists(array: pa.Array) -> Bools | None:
    """Behind lists, paths go into each item: of these a column cannot tell."""
    return array.is_valid().to_numpy(zero_copy_only=False) if pa.types.is_nested(array.type) else None


# --- documents of the paths read ---------------------------------------------------------------------------------------


def partial_documents(batch: pa.RecordBatch, names: frozenset[str]) -> list[Document]:
    """One document a row with these fields of it and no others."""
    known = [name for name in user_columns(batch) if name in names]
    unsure = [name for name in known if _asks(batch, name)]
    documents = fields_of(batch, sorted(names.difference(known).union(unsure)))
    for name in known:
        cells = values_of(batch.column(name), batch.schema.field(name))
        for document, value in zip(documents, cells, strict=True):
            if value is MISSING:
                document.pop(name, None)
            elif value is not None or name not in unsure:
                document[name] = value
            elif document.get(name) is not None:
                del document[name]
    return documents


def _told_apart(frame: Frame, names: frozenset[str]) -> list[pa.Array]:
    """Cells that differ where these fields of the rows do; documents are made where a field's column cannot tell all of it."""
    batch = frame.batch
    frame.prepare((name,) for name in names)
    found = []
    for name in sorted(names):
        if name in batch.schema.names and not _asks(batch, name) and not pa.types.is_nested(batch.column(name).type):
            found.append(batch.column(name))
            continue
        try:
            cells, unsure = encoded(frame.at((name,)))
        except Unvectorised:
            return [_texts(batch, names)]
        if unsure is not None:
            return [_texts(batch, names)]
        found.append(cells)
    return found


def _texts(batch: pa.RecordBatch, names: frozenset[str]) -> pa.BinaryArray:
    """These fields of each row, encoded."""
    return pa.array(encode_docs(partial_documents(batch, names)), pa.binary())


def _asks(batch: pa.RecordBatch, name: str) -> bool:
    """Whether RAW or REST decides the meaning of a column's null cells."""
    named = batch.schema.field(name)
    return not is_tagged(named) and empty_of(named) is None and bool(batch.column(name).null_count)
