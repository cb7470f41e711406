"""Stages on columns: what can be done to typed columns without looking at documents.

`on_columns` gives the changed batch, or None where only the documents can tell (then the stage is interpreted). It takes: `$project` and
`$addFields` of whole fields with field paths, window bounds and constants, where neither a null cell nor an undeclared field would have to
be told from a missing one.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from shared.language.expressions.ast import Expr, FieldPath, Literal, Meta
from shared.language.stages import AddFields, Branch, Computed, Keep, Project, Stateless
from shared.model.values import INT32_MAX, INT32_MIN
from shared.operators.base import RAW, REST, WEND, WSTART
from shared.operators.batches import TIMESTAMP, engine_columns, user_columns

_Named = list[tuple[pa.Field, pa.Array]]
_BOUNDS = {("window", "start"): WSTART, ("window", "end"): WEND}


def on_columns(stage: Stateless, batch: pa.RecordBatch) -> pa.RecordBatch | None:
    """The batch behind a stage, or None if it has to be interpreted."""
    match stage:
        case Project(mode="inclusion", fields=tree):
            return _included(batch, tree)
        case AddFields(fields=tree):
            return _added(batch, tree)
        case _:
            return None


def _included(batch: pa.RecordBatch, tree: Branch) -> pa.RecordBatch | None:
    if REST in batch.schema.names and batch.column(REST).null_count != batch.num_rows:
        return None
    named: _Named = []
    for name, leaf in tree.fields:
        if isinstance(leaf, Keep):
            found = _column(batch, name)
            if found is None and (RAW in batch.schema.names or name in batch.schema.names):
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
        case FieldPath((name,)):
            return _column(batch, name)
        case Meta(names) if names in _BOUNDS and _BOUNDS[names] in batch.schema.names:
            array = batch.column(_BOUNDS[names]).cast(TIMESTAMP)
            return pa.field("", TIMESTAMP), array
        case Literal(value):
            return _constant(value, batch.num_rows)
        case _:
            return None


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
