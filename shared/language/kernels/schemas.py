"""`$jsonSchema` on columns: which documents conform, keyword by keyword; schemas of properties that it does not name take documents."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.language.kernels.base import (
    NUMERIC,
    Column,
    Path,
    Rows,
    Unvectorised,
    as_doubles,
    either,
    filled,
    inexact,
    nulls_of,
)
from tidemark.shared.language.kernels.calls import is_few
from tidemark.shared.language.kernels.cells import encoded, items_of, taken, values_of
from tidemark.shared.language.kernels.expressions import is_in
from tidemark.shared.language.query.ast import SchemaNode
from tidemark.shared.language.query.json_schema import conforms
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import MISSING

Mask = npt.NDArray[np.bool_]
_EXACT: Final = 2**53
_ITEM: Final = "item"
"""The field in which an item stands as a document of its own."""


def has_kernel(schema: SchemaNode, *, nested: bool = False) -> bool:
    """Whether all keywords of a schema have kernels."""
    if not is_by_fields(schema, nested=nested) or schema.multiple_of is not None or schema.items is not None:
        return False
    return all(has_kernel(part, nested=nested) for part in _of_the_same(schema)) and all(
        has_kernel(part, nested=True) for _, part in schema.properties
    )


def is_by_fields(schema: SchemaNode, *, nested: bool = False) -> bool:
    """Whether all fields of which a schema asks have names that it has: those without kernels are looked at one by one."""
    if schema.pattern_properties or isinstance(schema.additional_properties, SchemaNode):
        return False
    return (nested or schema.enum is None) and all(is_by_fields(part, nested=nested) for part in _of_the_same(schema))


def _of_the_same(schema: SchemaNode) -> list[SchemaNode]:
    """The schemas in it that are of the same value."""
    needed = [needs for _, needs in schema.dependencies if isinstance(needs, SchemaNode)]
    return [
        *schema.all_of,
        *schema.any_of,
        *schema.one_of,
        *needed,
        *(() if schema.negated is None else (schema.negated,)),
    ]


def conforming(schema: SchemaNode, rows: Rows) -> tuple[Mask, Mask | None]:
    """Which documents conform, and where there is doubt; Unvectorised where the interpreter has to say."""
    if not is_by_fields(schema):
        raise Unvectorised
    seen = _Seen(rows)
    found = _whole(schema, seen)
    return found, either(*seen.doubts)


class _Seen(Rows):
    """Rows, and the doubt of all columns that were looked at."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(rows.size)
        self.rows = rows
        self.doubts: list[Mask | None] = []

    def at(self, names: Path) -> Column:
        """A column; where nulls may be missing fields there is doubt."""
        column = self.rows.at(names)
        unsure = nulls_of(column) if column.missing and not column.absent else None
        self.doubts += [column.doubt, unsure]
        return column

    def has(self, names: Path) -> Mask:
        """Where a field is, be it null."""
        column = self.rows.at(names)
        if column.cells is None:
            return _present(self.at(names))
        self.doubts.append(either(column.cells.tags == tags.SPREAD))
        return np.asarray(column.cells.tags != tags.MISSING)


def _whole(schema: SchemaNode, rows: _Seen) -> Mask:
    everywhere: Mask = np.ones(rows.size, dtype=np.bool_)
    if schema.types is not None and "object" not in schema.types:
        return ~everywhere
    return _document(schema, (), rows) & _combined(schema, (), rows, everywhere)


def _present(column: Column) -> Mask:
    """Where a field is, be it null."""
    nulls = nulls_of(column)
    return ~nulls if column.missing else np.ones(len(nulls), dtype=np.bool_)


def _document(schema: SchemaNode, path: Path, rows: _Seen) -> Mask:
    good: Mask = np.ones(rows.size, dtype=np.bool_)
    for name in schema.required:
        good &= rows.has((*path, name))
    for name, inner in schema.properties:
        good &= _at(inner, (*path, name), rows)
    for name, needs in schema.dependencies:
        met: Mask = np.ones(rows.size, dtype=np.bool_)
        if isinstance(needs, SchemaNode):
            met = _same(needs, path, rows)
        else:
            for need in needs:
                met &= rows.has((*path, need))
        good &= ~rows.has((*path, name)) | met
    counted = schema.min_properties is not None or schema.max_properties is not None
    return good & _named(schema, path, rows) if counted or schema.additional_properties is False else good


def _named(schema: SchemaNode, path: Path, rows: _Seen) -> Mask:
    """Where an object has as many fields as it may, and none that it may not."""
    cells, unsure = encoded(rows.at(path) if path else rows.rows.root())
    rows.doubts.append(unsure)
    counts, names, _ = values.fields(cells)
    good: Mask = counts >= (schema.min_properties or 0)
    if schema.max_properties is not None:
        good &= counts <= schema.max_properties
    if schema.additional_properties is False:
        known = pa.array([encode_value(name) for name, _ in schema.properties], pa.binary())
        good[values.rows_of(counts)[filled(pc.invert(pc.is_in(names, value_set=known)))]] = False
    return good | (counts < 0)


def _at(schema: SchemaNode, path: Path, rows: _Seen) -> Mask:
    """Where a field conforms, or is not there; where no kernel can tell, its value is looked at, and nothing else of the document."""
    before_row = rows.rows.before_row
    good: Mask = np.zeros(rows.size, dtype=np.bool_)
    doubt: Mask | None = np.ones(rows.size, dtype=np.bool_)
    try:
        alone = _Seen(rows.rows)
        good = _by_kernel(schema, path, alone)
        doubt = either(*alone.doubts)
    except Unvectorised:
        if before_row is None:
            raise
    if doubt is not None and before_row is not None:
        doubt = either(_of_arrays(schema, path, rows.rows, good, doubt))
    if doubt is not None and before_row is not None and not is_few(int(np.count_nonzero(doubt)), rows.rows):
        places = np.flatnonzero(doubt)
        found, unknown = values_of(taken(rows.rows.at(path), places))
        for place, value in zip(places.tolist(), found, strict=True):
            before_row()
            good[place] = value is MISSING or conforms(schema, value)
        doubt[places] = False if unknown is None else unknown
    rows.doubts.append(doubt)
    return good


def _of_arrays(schema: SchemaNode, path: Path, rows: Rows, good: Mask, doubt: Mask) -> Mask:
    """Doubt without that of arrays, whose items are looked at as columns; `good` tells of them then."""
    column = rows.at(path)
    if not isinstance(schema.items, SchemaNode | None) or schema.unique_items or schema.enum is not None:
        return doubt
    if column.cells is None or _of_the_same(schema) or not column.cells.has(tags.ARRAY):
        return doubt
    arrays, counts, items = items_of(column, np.asarray(column.cells.tags == tags.ARRAY))
    fine = np.full(rows.size, schema.types is None or "array" in schema.types)
    fine &= (counts >= (schema.min_items or 0)) & (schema.max_items is None or counts <= schema.max_items)
    unsure: Mask = np.zeros(rows.size, dtype=np.bool_)
    if schema.items is not None and len(items):
        seen = _Seen(rows.of_documents(values.objects(values.no_fields(len(items)), [_ITEM], [items])))
        conform = _at(schema.items, (_ITEM,), seen)
        every = values.rows_of(counts)
        odd = either(*seen.doubts)
        if odd is not None:
            unsure[every[odd]] = True
            conform = conform | odd
        fine[every[~conform]] = False
    good[arrays] = fine[arrays]
    return np.where(arrays, unsure & fine, doubt)


def _by_kernel(schema: SchemaNode, path: Path, rows: _Seen) -> Mask:
    if not is_by_fields(schema, nested=True) or schema.multiple_of is not None:
        raise Unvectorised
    column = rows.at(path)
    there = _present(column)
    valid = ~nulls_of(column)
    if schema.types is not None and not _has_type(column, schema.types):
        good: Mask = np.zeros(rows.size, dtype=np.bool_)
    else:
        good = _content(schema, path, column, rows)
    of_null = conforms(schema, None)
    return np.where(valid, good, of_null | ~there)


def _has_type(column: Column, types: tuple[str, ...]) -> bool:
    return column.type in types or (column.type in NUMERIC and "number" in types)


def _content(schema: SchemaNode, path: Path, column: Column, rows: _Seen) -> Mask:
    """Where a value that is not null conforms, given that its type does."""
    good: Mask = np.ones(rows.size, dtype=np.bool_)
    if schema.enum is not None:
        items = [item for item in schema.enum if item is not None]
        good &= np.asarray(is_in(column, items), dtype=np.bool_)
    if column.type == "string":
        good &= _string(schema, column)
    elif column.type in NUMERIC:
        good &= _number(schema, column)
    elif column.type == "object":
        good &= _document(schema, path, rows)
    return good & _combined(schema, path, rows, good)


def _same(schema: SchemaNode, path: Path, rows: _Seen) -> Mask:
    """Where the value at a path, or the document, conforms to a schema in that of its own."""
    return _at(schema, path, rows) if path else _whole(schema, rows)


def _combined(schema: SchemaNode, path: Path, rows: _Seen, good: Mask) -> Mask:
    def holds(part: SchemaNode) -> Mask:
        return _same(part, path, rows)

    for part in schema.all_of:
        good = good & holds(part)
    if schema.any_of:
        good = good & np.logical_or.reduce([holds(part) for part in schema.any_of])
    if schema.one_of:
        good = good & (np.sum([holds(part) for part in schema.one_of], axis=0) == 1)
    return good if schema.negated is None else good & ~holds(schema.negated)


def _string(schema: SchemaNode, column: Column) -> Mask:
    good: Mask = np.ones(len(column.values), dtype=np.bool_)
    if schema.min_length is not None or schema.max_length is not None:
        lengths = pc.fill_null(pc.utf8_length(column.values), 0).to_numpy(zero_copy_only=False)
        good &= lengths >= (schema.min_length or 0)
        if schema.max_length is not None:
            good &= lengths <= schema.max_length
    if schema.pattern is not None:
        found = pc.match_substring_regex(column.values, schema.pattern.pattern)
        good &= np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), dtype=np.bool_)
    return good


def _number(schema: SchemaNode, column: Column) -> Mask:
    good: Mask = np.ones(len(column.values), dtype=np.bool_)
    bounds = (schema.minimum, schema.maximum)
    if bounds == (None, None):
        return good
    if any(bound is not None and not _exact(bound) for bound in bounds):
        raise Unvectorised
    if inexact(column) is not None:
        raise Unvectorised
    cells = pc.fill_null(as_doubles(column), 0.0).to_numpy(zero_copy_only=False)
    low, high = (None if bound is None else float(bound) for bound in bounds)
    with np.errstate(invalid="ignore"):  # NaN meets no bound, and compares as false
        if low is not None:
            good &= cells > low if schema.exclusive_minimum else cells >= low
        if high is not None:
            good &= cells < high if schema.exclusive_maximum else cells <= high
    return good


def _exact(bound: object) -> bool:
    """Whether a bound is the same as a double: whole numbers up to 2⁵³, and doubles that are numbers."""
    if isinstance(bound, float):
        return not math.isnan(bound)
    return isinstance(bound, int) and -_EXACT <= bound <= _EXACT
