"""Operators on objects, whose fields are taken apart and put together without an object a row.

Objects are encoded values, as in `arrays`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.language.expressions.ast import Call, Literal, ObjectExpr
from tidemark.shared.language.kernels import dates
from tidemark.shared.language.kernels.arrays import Arrays, Int64s, Of, bounded, given, of_cells
from tidemark.shared.language.kernels.base import Bools, Column, Rows, Unvectorised, either, nulls_of, without
from tidemark.shared.language.kernels.cells import encoded


def made(expr: ObjectExpr, rows: Rows, of: Of) -> Column:
    """An object that is written."""
    parts = [encoded(of(item, rows)) for _, item in expr.fields]
    found = values.objects(
        values.no_fields(rows.size), [name for name, _ in expr.fields], [cells for cells, _ in parts]
    )
    return bounded(found, "object", either(*(doubt for _, doubt in parts)), rows)


def _merge_objects(expr: Call, rows: Rows, of: Of) -> Column:
    """Later objects win; what is neither an object nor null is left to the interpreter."""
    if len(expr.args) < 2:  # noqa: PLR2004 - one array of objects
        raise Unvectorised
    found, unsure = values.no_fields(rows.size), None
    for arg in expr.args:
        assert arg is not None, "each is required"
        cells, doubt = encoded(of(arg, rows))
        _, odd = _nulls_and_odd(cells)
        found = values.merged(found, values.objects_of(cells)[0])
        unsure = either(unsure, doubt, odd)
    return bounded(found, "object", unsure, rows)


def _nulls_and_odd(cells: pa.BinaryArray) -> tuple[Bools, Bools]:
    """(the rows with null or nothing; the rows with neither these nor an object), shape (n,)."""
    kinds = values.read(cells).tags
    nulls = (kinds == tags.NULL) | (kinds == tags.MISSING)
    return nulls, ~nulls & (kinds != tags.OBJECT)


def _name(expr: Call) -> str:
    """The first operand, a field's name that is written."""
    name = given(expr, 0)
    if not isinstance(name, Literal) or type(name.value) is not str:
        raise Unvectorised
    return name.value


def _get_field(expr: Call, rows: Rows, of: Of) -> Column:
    """A field of an object, by a name that is written."""
    cells, unsure = encoded(of(given(expr, 1), rows))
    found = values.read_inside(cells, (_name(expr),))
    nulls = values.read(cells).tags == tags.NULL
    return of_cells(replace(found, tags=np.where(nulls, np.uint8(tags.NULL), found.tags)), unsure)


def _with_field(expr: Call, rows: Rows, of: Of) -> Column:
    """An object with a field, which a missing value takes away."""
    name, (cells, unsure) = _name(expr), encoded(of(given(expr, 1), rows))
    part, doubt = (pa.nulls(rows.size, pa.binary()), None)
    if expr.op == "$setField":
        part, doubt = encoded(of(given(expr, 2), rows))
    nulls, odd = _nulls_and_odd(cells)
    found = without(values.objects(values.objects_of(cells)[0], [name], [part]), either(nulls))
    return bounded(found, "object", either(unsure, doubt, odd), rows)


def _object_to_array(expr: Call, rows: Rows, of: Of) -> Column:
    cells, unsure = encoded(of(given(expr, 0), rows))
    counts, names, found = values.fields(cells)
    pairs = values.objects(values.no_fields(len(names)), ["k", "v"], [names, found])
    _, odd = _nulls_and_odd(cells)
    return bounded(values.arrays(np.maximum(counts, 0), pairs, counts >= 0), "array", either(unsure, odd), rows)


_CLOCK: Final = {name: dates.PARTS[f"${name}"] for name in ("hour", "minute", "second", "millisecond")}
_CALENDAR: Final = {"year": dates.PARTS["$year"], "month": dates.PARTS["$month"], "day": dates.PARTS["$dayOfMonth"]}
_WEEKS: Final = {
    "isoWeekYear": dates.part(pc.iso_year), "isoWeek": dates.PARTS["$isoWeek"], "isoDayOfWeek": dates.PARTS["$isoDayOfWeek"],
}  # fmt: skip


def _date_to_parts(expr: Call, rows: Rows, of: Of) -> Column:
    """A date's parts, in a constant zone."""
    _, zone, iso = expr.args
    if iso is not None and not (isinstance(iso, Literal) and type(iso.value) is bool):
        raise Unvectorised
    column = of(given(expr, 0), rows)
    wanted = {**(_WEEKS if iso is not None and iso.value is True else _CALENDAR), **_CLOCK}
    parts = [encoded(part(column, zone)) for part in wanted.values()]
    found = values.objects(values.no_fields(rows.size), list(wanted), [cells for cells, _ in parts])
    doubt = either(column.doubt, *(unsure for _, unsure in parts))
    return bounded(without(found, either(nulls_of(column))), "object", doubt, rows)


def _array_to_object(expr: Call, rows: Rows, of: Of) -> Column:
    source = Arrays(of(given(expr, 0), rows), rows)
    fields, pairs = values.fields(source.items)[0], _pairs(source.items)
    names = pc.coalesce(values.at(source.items, "k"), pairs[0])
    contents = pc.coalesce(values.at(source.items, "v"), pairs[1])
    text = values.read(names)
    right = (text.tags == tags.STRING) & (np.isin(fields, (-1, 2))) & contents.is_valid().to_numpy(zero_copy_only=False)
    right &= ~pc.fill_null(pc.match_substring(text.of("string"), "\0"), False).to_numpy(zero_copy_only=False)
    odd = either(source.by_row(~right), _both(source, fields >= 0))
    kept = np.ones(rows.size, np.bool_) if odd is None else ~odd
    mask = pa.array(kept[source.rows])
    counts = np.where(kept, source.counts, 0)
    found = values.paired(counts, names.filter(mask), contents.filter(mask), source.are)
    return bounded(found, "object", either(source.unsure, odd), rows)


def _pairs(cells: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """The first and the second item of arrays of two, null for any other value."""
    counts, inside = values.items(cells)
    begins: Int64s = np.cumsum(np.maximum(counts, 0)) - np.maximum(counts, 0)
    others = counts != 2  # noqa: PLR2004 - a pair
    return inside.take(pa.array(begins, mask=others)), inside.take(pa.array(begins + 1, mask=others))


def _both(source: Arrays, items: Bools) -> Bools:
    """The rows with items of both kinds."""
    some, others = source.by_row(items), source.by_row(~items)
    assert some is not None
    assert others is not None
    return some & others


CALLS: Final[Mapping[str, Callable[[Call, Rows, Of], Column]]] = {
    "$arrayToObject": _array_to_object,
    "$dateToParts": _date_to_parts,
    "$getField": _get_field,
    "$mergeObjects": _merge_objects,
    "$objectToArray": _object_to_array,
    "$setField": _with_field,
    "$unsetField": _with_field,
}
"""Operators on objects that have kernels."""
