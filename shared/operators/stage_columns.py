"""Stages on columns: what can be done to typed columns without looking at documents.

`on_columns` gives the changed batch, or None where only the documents can tell (then the stage is interpreted). It takes `$match`,
`$validate` of rows that are all valid and, of whole fields, `$project`, `$addFields` and `$unset`, with the language's kernels, window
bounds and constants; not where a null would have to be told from a missing field, or an undeclared field looked at.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shared.language.expressions.ast import Expr, FieldPath, Literal, Meta
from shared.language.kernels import Column, expression_paths, match_batch, predicate_paths, values_of
from shared.language.kernels.base import Doubtful, Fallback, Path, rows_of
from shared.language.query.ast import Predicate
from shared.language.schema import Field, FieldTypeName, Schema
from shared.language.stages import AddFields, Branch, Computed, Drop, Keep, Match, Project, Stateless, Unset, Validate
from shared.model.values import INT32_MAX, INT32_MIN
from shared.operators.base import RAW, REST, WEND, WSTART
from shared.operators.batches import ARROW_TYPES, TIMESTAMP, engine_columns, materialise, select, user_columns
from shared.operators.extracted import Extracted, extracted, of_rows

Bools = npt.NDArray[np.bool_]
_Named = list[tuple[pa.Field, pa.Array]]
_DECLARED: Final[Mapping[pa.DataType, FieldTypeName]] = {kind: name for name, kind in ARROW_TYPES.items()}
DOUBTS_MAX: Final = 4
"""How often a kernel may find rows that it cannot tell before all are interpreted."""
_BOUNDS = {("window", "start"): WSTART, ("window", "end"): WEND}


def on_columns(stage: Stateless, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """The batch behind a stage, or None if it has to be interpreted."""
    match stage:
        case Project(mode="inclusion", fields=tree):
            return _included(batch, tree)
        case AddFields(fields=tree):
            return _added(batch, tree)
        case Project(mode="exclusion", fields=tree) | Unset(fields=tree):
            return _without(batch, tree)
        case Match(predicate=predicate):
            found = judged(predicate, batch)
            return None if found is None or bool(found.doubtful.any()) else select(batch, found.passes)
        case Validate(validator=predicate):
            found = judged(predicate, batch)
            return batch if found is not None and bool((found.passes & ~found.doubtful).all()) else None
        case _:
            return None


def computes_of_undeclared(stage: Stateless, batch: pa.RecordBatch) -> bool:
    """Whether a stage that is done on columns computes something of fields that are no columns of the batch."""
    if not isinstance(stage, AddFields | Project):
        return False
    known = set(user_columns(batch))
    read = [expression_paths(leaf.expr) or () for _, leaf in stage.fields.fields if isinstance(leaf, Computed)]
    return any(path[0] not in known for paths in read for path in paths)


@dataclass(frozen=True, slots=True)
class Judged:
    """Which rows meet a predicate, and of which only the documents can tell; shape (n,) each."""

    passes: Bools
    doubtful: Bools


def judged(predicate: Predicate, batch: pa.RecordBatch) -> Judged | None:
    """What the predicate's kernel says; None if the documents have to tell."""
    schema = declared(batch)
    mask = match_batch(predicate, batch, schema)
    if mask is not None:
        return Judged(mask, np.zeros(batch.num_rows, dtype=np.bool_))
    paths = predicate_paths(predicate)
    if not paths:
        return None
    for exact in (False, True):
        found = extracted(batch, paths, exact=exact)
        if found is None:
            return None
        sure, columns = _sure(batch, found)
        mask = match_batch(predicate, sure, schema, columns)
        if mask is not None:
            passes: Bools = np.zeros(batch.num_rows, dtype=np.bool_)
            passes[~found.doubtful] = mask
            return Judged(passes, found.doubtful)
    return None


def _sure(batch: pa.RecordBatch, found: Extracted) -> tuple[pa.RecordBatch, Mapping[Path, Column]]:
    """The rows of which columns speak, and these."""
    if not found.doubtful.any():
        return batch, found.columns
    mask = pa.array(~found.doubtful)
    return batch.filter(mask), of_rows(found.columns, mask)


def evaluated(expr: Expr, batch: pa.RecordBatch) -> pa.Array | None:
    """An expression's values by its kernel, none of them null or missing; None where the interpreter has to give them."""
    found = evaluated_mostly(expr, batch)
    return None if found is None or bool(found[1].any()) else found[0]


def evaluated_mostly(expr: Expr, batch: pa.RecordBatch) -> tuple[pa.Array, Bools] | None:
    """An expression's values by its kernel, and the rows, shape (n,), of which only the interpreter can tell: their cells are null."""
    schema = declared(batch)
    paths = expression_paths(expr)
    if paths is None:
        return None
    doubtful: Bools = np.zeros(batch.num_rows, dtype=np.bool_)
    found = extracted(batch, paths)
    if found is None:
        return None
    doubtful |= found.doubtful
    for _ in range(DOUBTS_MAX):
        sure, columns = _sure(batch, Extracted(found.columns, doubtful))
        try:
            array = values_of(expr, rows_of(sure, schema, columns))
        except Doubtful as doubt:
            doubtful[np.flatnonzero(~doubtful)[doubt.rows]] = True
        except Fallback:
            return None
        else:
            return None if array is None else _spread(array, doubtful)
    return None


def _spread(array: pa.Array, doubtful: Bools) -> tuple[pa.Array, Bools]:
    """Values of the rows that are not doubtful as values of all rows; which are null."""
    if doubtful.any():
        array = array.take(pa.array(np.cumsum(~doubtful) - 1, mask=doubtful))
    return array, array.is_null().to_numpy(zero_copy_only=False)


def declared(batch: pa.RecordBatch) -> Schema:
    """The fields that are columns of this batch, as the kernels want to know them."""
    fields = []
    for name in user_columns(batch):
        kind = _DECLARED.get(batch.schema.field(name).type)
        if kind is not None:
            fields.append(Field(name, kind, optional=True))
    return Schema(tuple(fields))


def _included(batch: pa.RecordBatch, tree: Branch) -> pa.RecordBatch | None:
    named: _Named = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep):
            found = _column(batch, name)
            if found is None and (name in batch.schema.names or not absent(batch, name)):
                return None
        elif isinstance(leaf, Computed):
            found = _computed(batch, leaf.expr)
            if found is None:
                return None
        else:
            return None
        if found is not None:
            named.append((found[0].with_name(name), found[1]))
    return _batch(named, batch, without=(RAW, REST))


def _without(batch: pa.RecordBatch, tree: Branch) -> pa.RecordBatch | None:
    """Whole fields left out; RAW becomes REST where it would still speak of them, else fields keep their places in it."""
    names = [name for name, leaf in tree.fields if isinstance(leaf, Drop)]
    if len(names) < len(tree.fields):
        return None
    if not all(absent(batch, name) for name in names):
        batch = materialise(batch)
        if not all(absent(batch, name) for name in names):
            return None
    gone = [name for name in names if name in batch.schema.names]
    return batch.drop_columns(gone) if gone else batch


def absent(batch: pa.RecordBatch, name: str) -> bool:
    """Whether no document has an undeclared field of this name: it stands nowhere in what is not columns, or only elsewhere in it."""
    if _unwritten(batch, name):
        return True
    found = extracted(batch, [(name,)])
    if found is None or bool(found.doubtful.any()):
        return False
    column = found.columns.get((name,))
    return column is not None and column.type == "null" and column.absent


def _unwritten(batch: pa.RecordBatch, name: str) -> bool:
    escaped = json.dumps(name, ensure_ascii=False)[1:-1] != name or "/" in name
    for column, wanted in ((RAW, (f'"{name}"', "\\u")), (REST, (name,))):
        if column not in batch.schema.names:
            continue
        texts = batch.column(column)
        if escaped or any(pc.any(pc.match_substring(texts, text)).as_py() for text in wanted):
            return False
    return True


def _added(batch: pa.RecordBatch, tree: Branch) -> pa.RecordBatch | None:
    new: dict[str, tuple[pa.Field, pa.Array]] = {}
    for name, leaf in tree.fields:
        found = _computed(batch, leaf.expr) if isinstance(leaf, Computed) else None
        if found is None:
            return None
        new[name] = (found[0].with_name(name), found[1])
    named: _Named = [
        new.pop(name) if name in new else (batch.schema.field(name), batch.column(name)) for name in user_columns(batch)
    ]
    return _batch([*named, *new.values()], batch, without=())


def _computed(batch: pa.RecordBatch, expr: Expr) -> tuple[pa.Field, pa.Array] | None:
    match expr:
        case FieldPath((name,)) if name in batch.schema.names:
            return _column(batch, name)
        case Meta(names) if names in _BOUNDS and _BOUNDS[names] in batch.schema.names:
            array = batch.column(_BOUNDS[names]).cast(TIMESTAMP)
            return pa.field("", TIMESTAMP), array
        case Literal(value):
            return _constant(value, batch.num_rows)
        case _:
            array = evaluated(expr, batch)
            return None if array is None else (pa.field("", array.type), array)


def _column(batch: pa.RecordBatch, name: str) -> tuple[pa.Field, pa.Array] | None:
    at = batch.schema.get_field_index(name)
    if at < 0 or batch.column(at).null_count:
        return None
    return batch.schema.field(at), batch.column(at)


def _constant(value: object, rows: int) -> tuple[pa.Field, pa.Array] | None:
    if type(value) is str:
        return pa.field("", pa.string()), pa.array([value] * rows, type=pa.string())
    if type(value) is int and INT32_MIN <= value <= INT32_MAX:
        return pa.field("", pa.int32()), pa.array(np.full(rows, value, dtype=np.int32))
    return None


def _batch(named: _Named, batch: pa.RecordBatch, without: Iterable[str]) -> pa.RecordBatch:
    engine = engine_columns(batch, without)
    fields = [f for f, _ in named] + [batch.schema.field(n) for n in engine]
    return pa.RecordBatch.from_arrays([*(a for _, a in named), *engine.values()], schema=pa.schema(fields))
