"""Fields inside fields, as `$addFields` and `$project` change them, on encoded values; each with the result of `language.stages.trees`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.values import at, objects_of, through_arrays
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.fields import Path
from tidemark.shared.language.kernels.cells import lengths
from tidemark.shared.language.stages.trees import (
    Branch,
    Computed,
    TreeValues,
    add_to_value,
    computes,
    include_value,
)
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators.batches import TAGGED_FIELD
from tidemark.shared.operators.cells import encoded_cells
from tidemark.shared.operators.frame import Cells, Frame

_Computed: TypeAlias = Mapping[Path, pa.BinaryArray]
"""The values of a tree's expressions, by their places in it."""
Int64s = npt.NDArray[np.int64]
_WRITTEN_MAX: Final = RESULT_UNITS_MAX // 4
"""Bytes that may be written into a value, if each of its bytes was an item: a fourth of the budget, whose units are not quite bytes."""
_Change: TypeAlias = Callable[[Branch, pa.BinaryArray, _Computed], pa.BinaryArray]


def added(name: str, tree: Branch, frame: Frame) -> Cells:
    """A field with what `$addFields` computes into it."""
    before = _field(name, frame)
    return _changed(
        before, tree, frame, _added, lambda env: add_to_value(tree, env.root.get(name, MISSING), TreeValues(env))
    )


def included(name: str, tree: Branch, frame: Frame) -> Cells:
    """A field with what `$project` keeps of it and computes into it."""
    before = _field(name, frame)
    return _changed(
        before, tree, frame, _included, lambda env: include_value(tree, env.root.get(name, MISSING), TreeValues(env))
    )


def included_documents(tree: Branch, frame: Frame) -> Cells:
    """Whole documents, with what `$project` keeps of them and computes into them."""
    return _changed(
        frame.root().values, tree, frame, _included, lambda env: include_value(tree, env.root, TreeValues(env))
    )


def _field(name: str, frame: Frame) -> pa.BinaryArray:
    cells = frame.field(name)
    return encoded_cells(cells.array, cells.field)


def _changed(
    before: pa.BinaryArray, tree: Branch, frame: Frame, change: _Change, value_of: Callable[[Environment], Value]
) -> Cells:
    """The interpreter tells where several expressions of a row fail, or an array on the way may be empty and so evaluate none.

    It tells, too, where so much would be written into each item of arrays that the budget of a row may not reach.
    """
    computed: dict[Path, pa.BinaryArray] = {}
    errors: dict[int, ExpressionError] = {}
    asked = np.zeros(frame.size, np.bool_)
    written = np.zeros(frame.size, np.int64)
    interpreted = 0
    for path, expr in _expressions(tree):
        cells = frame.computed(expr)
        computed[path] = encoded_cells(cells.array, cells.field)
        asked[[row for row in cells.errors if row in errors]] = True
        errors |= cells.errors
        interpreted += cells.interpreted_rows
        written += lengths(computed[path])
    kinds = values.read(before).tags
    deep = any(isinstance(leaf, Branch) for _, leaf in tree.fields)
    may_hold_arrays = (kinds == tags.ARRAY) | (deep & (kinds == tags.OBJECT))
    beyond = may_hold_arrays & (lengths(before) * written > _WRITTEN_MAX)
    if beyond.any():
        asked |= beyond
        before = pc.if_else(pa.array(beyond), pa.nulls(frame.size, pa.binary()), before)
    made = change(tree, before, computed)
    if errors:
        failed = np.zeros(frame.size, np.bool_)
        failed[list(errors)] = True
        asked |= failed & may_hold_arrays
    found = Cells(TAGGED_FIELD, made, errors, interpreted)
    if not asked.any():
        return found
    return frame.asked(found, np.flatnonzero(asked), value_of)


def _expressions(tree: Branch, above: Path = ()) -> Iterator[tuple[Path, Expr]]:
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            yield (*above, name), leaf.expr
        elif isinstance(leaf, Branch):
            yield from _expressions(leaf, (*above, name))


def _added(tree: Branch, cells: pa.BinaryArray, computed: _Computed) -> pa.BinaryArray:
    def change(some: pa.BinaryArray, rows: Int64s | None) -> pa.BinaryArray:
        base, _ = objects_of(some)
        known = _of_rows(computed, rows)
        inner: dict[str, pa.BinaryArray] = {}
        for name, leaf in tree.fields:
            if isinstance(leaf, Branch) and computes(leaf):
                inner[name] = _added(leaf, at(base, name), _below(known, name))
        return _over(base, tree, known, inner)

    return through_arrays(cells, change)


def _included(tree: Branch, cells: pa.BinaryArray, computed: _Computed) -> pa.BinaryArray:
    def change(some: pa.BinaryArray, rows: Int64s | None) -> pa.BinaryArray:
        base, objects = objects_of(some)
        known = _of_rows(computed, rows)
        missing = pa.nulls(
            len(some), pa.binary()
        )  # where a null scalar is chosen, Arrow may leave bytes in a null cell
        inner: dict[str, pa.BinaryArray] = {}
        inside: dict[str, pa.BinaryArray] = {}
        for name, leaf in tree.fields:
            if isinstance(leaf, Branch):
                there = at(base, name)
                inner[name] = _included(leaf, there, _below(known, name))
                inside[name] = pc.if_else(there.is_valid(), inner[name], missing)
        made = values.objects(base, list(inside), list(inside.values())) if inside else base
        kept = values.only(made, [name for name, leaf in tree.fields if not isinstance(leaf, Computed)])
        return _over(kept, tree, known, inner) if computes(tree) else pc.if_else(objects, kept, missing)

    return through_arrays(cells, change)


def _over(
    base: pa.BinaryArray, tree: Branch, computed: _Computed, inner: Mapping[str, pa.BinaryArray]
) -> pa.BinaryArray:
    """Objects with the computed fields of a tree in place of those of their names, or behind the others."""
    parts: dict[str, pa.BinaryArray] = {}
    for name, leaf in tree.fields:
        if isinstance(leaf, Computed):
            parts[name] = computed[name,]
        elif isinstance(leaf, Branch) and computes(leaf):
            parts[name] = inner[name]
    return values.objects(base, list(parts), list(parts.values()))


def _below(computed: _Computed, name: str) -> _Computed:
    return {path[1:]: cells for path, cells in computed.items() if path[0] == name}


def _of_rows(computed: _Computed, rows: Int64s | None) -> _Computed:
    if rows is None:
        return computed
    taken = pa.array(rows)
    return {path: cells.take(taken) for path, cells in computed.items()}
