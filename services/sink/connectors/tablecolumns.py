"""Rows as a table takes them: its column types and its names.

A column has the type that its first rows gave it. Numbers go into a column of other numbers where it holds them exactly; one of single
precision takes the nearest. In a column of text, decimals and ids are their digits, other values that are no text relaxed extended JSON.
A value that its column does not take, or with a name that the format forbids, lies in the column `_rescued_data`, as an object of relaxed
extended JSON: nothing is lost, and no row depends on others. A row without a value for a column that takes no null is refused.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.services.sink.connectors.tables import as_text, table_of, table_of_documents
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import MISSING
from tidemark.shared.operators.batches import documents_of

FORBIDDEN: Final = frozenset(" ,;{}()\n\t=")
"""In names of columns, by the format without a mapping of names."""
RESCUED: Final = "_rescued_data"
"""The column of values that no other column takes, named as other writers of such tables name it."""
TAKES_NO_NULL: Final = "the column takes no null"
"""How messages say it."""
LEVELS_MAX: Final = 32
"""Of arrays and objects in a column. Libraries end in between: Delta's at some 40, Arrow's writer at 63, Iceberg's at 49 arrays. A table
with a deeper column cannot be opened any more."""
NUMBER: Final = b"PARQUET:field_id"
"""The key of a field's metadata that has its number, in Arrow and in its Parquet files."""
ITEM: Final = "element"
"""The name of a list's items, as Parquet has it."""
_LONG_DIGITS: Final = 19
"""Of the longest whole number of 64 bits."""
Agree = Callable[[pa.Schema], pa.Schema]
Path = tuple[str, ...]
"""Of a field, in columns, objects and arrays."""


class Fitted(NamedTuple):
    """Rows as a table takes them."""

    rows: pa.Table
    refused: Mapping[int, str]
    """Rows that it does not take, by their places, and why. Without them no column that takes no null has one."""
    known: pa.Schema
    """The table's columns."""


class TableColumns:
    """Fits batches to one table. `agree` adds columns to it and tells all that it has."""

    def __init__(
        self,
        agree: Agree,
        partition_by: tuple[str, ...],
        forbidden: frozenset[str] = FORBIDDEN,
        changed: Callable[[], int] = int,
    ) -> None:
        """`forbidden`: characters that no column's name has. `changed`: another number where others changed the table's columns."""
        self._agree = agree
        self._forbidden = forbidden
        self._partition_by = partition_by
        self._known: pa.Schema = pa.schema([])
        self._changed = changed
        self._seen = 0

    def fit(self, batch: pa.RecordBatch) -> Fitted:
        """The rows in the table's types, without the columns that divide it. Blocks where columns are new; raises as `agree`."""
        seen = self._changed()
        if seen != self._seen:
            self._seen, self._known = seen, pa.schema([])
        beyond: set[str] = set()
        read = table_of(batch)
        table = plain(read, beyond)
        table = table.drop_columns([name for name in self._partition_by if name in table.column_names])
        names = [name for name in table.column_names if self._may_be_named(name)]
        misfits: dict[int, list[str]] = {}
        self._learn(table.select(names).schema)
        names = [name for name in names if name in self._known.names]
        for name in sorted(set(table.column_names) - set(names)):
            _note(misfits, name, range(batch.num_rows))
        columns: dict[str, pa.ChunkedArray] = {}
        for name in names:
            target = self._known.field(name).type
            column = table.column(name)
            if name in beyond and not pa.types.is_string(target):
                at_once = _told(batch, name, target) if _is_untyped(read.column(name).type) else None
                columns[name] = self._each(batch, name, target, misfits) if at_once is None else at_once
            elif name not in beyond and column.type == target:
                columns[name] = column
            else:
                columns[name] = self._cast(batch, name, column, target, misfits)
        rescued = _rescued(batch, misfits) if misfits else None
        if rescued is not None and rescued.null_count < len(rescued):
            columns[RESCUED] = pa.chunked_array([rescued])
        elif not columns:
            columns[RESCUED] = pa.chunked_array([pa.nulls(batch.num_rows, pa.string())])
        if RESCUED in columns:
            self._learn(pa.schema([pa.field(RESCUED, pa.string())]))
        fields = [pa.field(name, column.type, self._known.field(name).nullable) for name, column in columns.items()]
        rows = pa.table([_without_hidden(column) for column in columns.values()], pa.schema(fields))
        return Fitted(rows, self._without(needed(self._known), rows), self._known)

    def _without(self, needs: Sequence[str], rows: pa.Table) -> Mapping[int, str]:
        """Rows without a value of one of these columns."""
        refused: dict[int, str] = {}
        for name in needs:
            if name in rows.column_names:
                empty = np.flatnonzero(rows.column(name).is_null().to_numpy()).tolist()
            else:
                empty = [] if name in self._partition_by else [*range(rows.num_rows)]
            for row in empty:
                refused.setdefault(row, f"{name}: {TAKES_NO_NULL}, and the document has no value that it takes")
        return refused

    def _may_be_named(self, name: str) -> bool:
        twins = [known for known in self._known.names if known != name and known.lower() == name.lower()]
        return bool(name) and not self._forbidden & set(name) and not twins

    def _learn(self, schema: pa.Schema) -> None:
        # The columns that divide the table are text, because any row may bring a value of any type.
        typed = [f for f in schema if not pa.types.is_null(f.type)]  # an object of nulls alone decides on no column
        wanted = [pa.field(f.name, f.type) for f in typed if f.name not in self._partition_by]
        wanted += [pa.field(name, pa.string()) for name in self._partition_by]
        if any(field.name not in self._known.names for field in wanted):
            self._known = self._agree(pa.schema(wanted))

    def _cast(
        self,
        batch: pa.RecordBatch,
        name: str,
        column: pa.ChunkedArray,
        target: pa.DataType,
        misfits: dict[int, list[str]],
    ) -> pa.ChunkedArray:
        if pa.types.is_string(target):
            return pa.chunked_array([_texts(batch, name, column)])
        try:
            return exact(column, target)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Values that agree on no type have become texts.
            return self._each(batch, name, target, misfits)

    def _each(
        self, batch: pa.RecordBatch, name: str, target: pa.DataType, misfits: dict[int, list[str]]
    ) -> pa.ChunkedArray:
        """Each value is looked at as it came."""
        values = [document.get(name) for document in documents_of(batch)]
        parts: list[pa.Array] = []
        for row, value in enumerate(values):
            try:
                parts.append(_cell(value, target))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                _note(misfits, name, [row])
                parts.append(pa.nulls(1, target))
        return pa.chunked_array(parts, target)


def _told(batch: pa.RecordBatch, name: str, target: pa.DataType) -> pa.ChunkedArray | None:
    """All values of a column with objects of nulls alone, as `_cell` makes each; None where one of them is to be looked at by itself."""
    values = [_texted(document.get(name), target) for document in documents_of(batch)]
    try:
        return exact(table_of_documents([{"": value} for value in values]).column(0), target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _texted(value: object, target: pa.DataType) -> object:
    """A value, of which what goes into text is text at any depth."""
    if value is None or value is MISSING:
        return None
    if pa.types.is_string(target):
        return as_text(value)
    if pa.types.is_struct(target) and type(value) is dict:
        kinds = {field.name: field.type for field in target}
        return {name: _texted(inner, kinds[name]) if name in kinds else inner for name, inner in value.items()}
    if pa.types.is_list(target) and type(value) is list:
        return [_texted(item, target.value_type) for item in value]
    return value


def _cell(value: object, target: pa.DataType) -> pa.Array:
    """A value by itself as a column's cell, shape (1,). ArrowInvalid, ArrowNotImplementedError if the column does not take it."""
    if value is None or value is MISSING:
        return pa.nulls(1, target)
    if pa.types.is_struct(target) and type(value) is dict:
        names = {field.name for field in target}
        if left := [name for name, inner in value.items() if inner is not None and name not in names]:
            raise pa.ArrowInvalid(f"{left[0]} is no field of the column")
        cells = [_within(value.get(field.name), field) for field in target]
        return pa.StructArray.from_arrays(cells, fields=list(target))
    if pa.types.is_list(target) and type(value) is list:
        items = [_within(item, target.value_field) for item in value]
        joined = pa.concat_arrays(items) if items else pa.array([], target.value_type)
        return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), joined, type=target)
    if pa.types.is_string(target):
        return pa.array([as_text(value)], target)
    if pa.types.is_decimal(target) and isinstance(value, Decimal):
        return pa.array([value], target)
    column = plain(table_of_documents([{"": value}]))
    if not column.num_columns:
        raise pa.ArrowInvalid(f"no column has {value!r:.80}")
    return exact(column.column(0), target).combine_chunks()


def _within(value: object, field: pa.Field) -> pa.Array:
    if not field.nullable and (value is None or value is MISSING):
        raise pa.ArrowInvalid(f"{field.name}: {TAKES_NO_NULL}")
    return _cell(value, field.type)


def _without_hidden(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values. Fields that take no null have none below a missing object either: Arrow's writer of Parquet looks there, too."""
    return pa.chunked_array(map(_filled, column.chunks), column.type) if _needs_within(column.type) else column


def _needs_within(kind: pa.DataType) -> bool:
    """Whether a field at any depth takes no null."""
    fields = list(kind) if pa.types.is_struct(kind) else [kind.value_field] if pa.types.is_list(kind) else []
    return any(not field.nullable or _needs_within(field.type) for field in fields)


def _filled(cells: pa.Array) -> pa.Array:
    kind = cells.type
    if cells.offset:
        cells = cells.take(pa.array(range(len(cells))))  # Arrow makes no array of objects or lists from a part of one
    if pa.types.is_struct(kind):
        inner = [_filled(cells.field(at)) for at in range(kind.num_fields)]
        whole = [each if field.nullable else _blanked(each) for field, each in zip(kind, inner, strict=True)]
        return pa.StructArray.from_arrays(whole, fields=list(kind), mask=cells.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(cells.offsets, _filled(cells.values), type=kind, mask=cells.is_null())
    return cells


def _blanked(cells: pa.Array) -> pa.Array:
    """With something in the place of each null."""
    if not cells.null_count:
        return cells
    places = np.where(cells.is_null().to_numpy(zero_copy_only=False), len(cells), np.arange(len(cells)))
    return pa.concat_arrays([cells, _blank(cells.type)]).take(pa.array(places))


def _blank(kind: pa.DataType) -> pa.Array:
    """Some value that is no null, shape (1,)."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_blank(field.type) for field in kind], fields=list(kind))
    if pa.types.is_list(kind):
        return pa.array([[]], kind)
    if pa.types.is_fixed_size_binary(kind):
        return pa.array([bytes(kind.byte_width)], kind)
    if pa.types.is_map(kind):
        return pa.array([[]], kind)
    texts = {pa.string(): "", pa.large_string(): "", pa.binary(): b"", pa.large_binary(): b"", pa.bool_(): False}
    return pa.array([texts.get(kind, 0)], kind)


def needed(known: pa.Schema) -> list[str]:
    """The columns of a table that take no null."""
    return [field.name for field in known if not field.nullable]


def numbered(rows: pa.Table, known: pa.Schema) -> pa.Table:
    """The same rows. Their fields, at any depth, have the numbers of the table's fields of these names, in a format that has numbers."""
    if not numbers_of(known):
        return rows
    fields = {field.name: field for field in known}
    return rows.cast(pa.schema([_numbered(field, fields.get(field.name)) for field in rows.schema]))


def _numbered(field: pa.Field, known: pa.Field | None) -> pa.Field:
    kind, others = field.type, {} if known is None else {each.name: each for each in _inner(known.type)}
    inner = [_numbered(each, others.get(each.name)) for each in _inner(kind)]
    if pa.types.is_struct(kind):
        kind = pa.struct(inner)
    elif pa.types.is_list(kind):
        kind = pa.list_(inner[0])
    elif pa.types.is_map(kind):
        kind = pa.map_(*inner)
    number = None if known is None else (known.metadata or {}).get(NUMBER)
    return pa.field(field.name, kind, field.nullable, None if number is None else {NUMBER: number})


def numbers_of(schema: pa.Schema) -> dict[Path, bytes]:
    """The numbers of fields, at any depth, that have one."""
    return {path: field.metadata[NUMBER] for path, field in _fields(schema) if NUMBER in (field.metadata or {})}


def paths_of(schema: pa.Schema) -> set[Path]:
    """The fields at any depth."""
    return {path for path, _ in _fields(schema)}


def _fields(inner: Iterable[pa.Field], above: Path = ()) -> Iterator[tuple[Path, pa.Field]]:
    for field in inner:
        path = (*above, field.name)
        yield path, field
        yield from _fields(_inner(field.type), path)


def _inner(kind: pa.DataType) -> list[pa.Field]:
    """The fields of an object, the item of a list, key and value of a map. An item has one name, whatever a file calls it."""
    if pa.types.is_struct(kind):
        return list(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [kind.value_field.with_name(ITEM)]
    return [kind.key_field, kind.item_field] if pa.types.is_map(kind) else []


def _note(misfits: dict[int, list[str]], name: str, rows: Iterable[int]) -> None:
    for row in rows:
        misfits.setdefault(row, []).append(name)


def _rescued(batch: pa.RecordBatch, misfits: Mapping[int, Sequence[str]]) -> pa.Array:
    """The values of each row that no column takes, as an object of relaxed extended JSON; null where there are none."""
    documents = documents_of(batch)
    texts: list[str | None] = [None] * batch.num_rows
    for row, names in misfits.items():
        left = {name: documents[row][name] for name in sorted(names) if documents[row].get(name) not in (None, MISSING)}
        texts[row] = render_json(left).decode() if left else None
    return pa.array(texts, pa.string())


def exact(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast without loss; ArrowInvalid."""
    if not _alike(column.type, target):
        raise pa.ArrowInvalid(f"{column.type} is no {target}")
    if pa.types.is_integer(column.type) and pa.types.is_decimal(target):
        column = column.cast(pa.decimal256(_LONG_DIGITS + max(target.scale, 0), max(target.scale, 0)))
    _keeps(column, target)
    # For a column of whole numbers the cast refuses 1.5, and takes 1.0, though its writer made it a double.
    return column.cast(target, safe=True)


def _keeps(column: pa.ChunkedArray, target: pa.DataType) -> None:
    """ArrowInvalid where Arrow's cast would leave a field out, or read a value within as one of another kind; at any depth.

    Or where it would make a null within that may not be there.
    """
    if pa.types.is_struct(column.type) and pa.types.is_struct(target):
        for field in column.type:
            inner = pc.struct_field(column, [field.name])
            if target.get_field_index(field.name) >= 0:
                _keeps(inner, target.field(field.name).type)
            elif inner.null_count < len(inner):
                raise pa.ArrowInvalid(f"{field.name} is no field of the column")
        for name in needed(pa.schema(list(target))):
            there = column.type.get_field_index(name) >= 0
            if not there or pc.struct_field(column, [name]).null_count > column.null_count:
                raise pa.ArrowInvalid(f"{name}: {TAKES_NO_NULL}")
    elif pa.types.is_list(column.type) and pa.types.is_list(target):
        items = pc.list_flatten(column)
        _keeps(items, target.value_type)
        if items.null_count and not target.value_field.nullable:
            raise pa.ArrowInvalid(f"an item: {TAKES_NO_NULL}")
    elif column.type != target:
        if not _alike(column.type, target):
            raise pa.ArrowInvalid(f"{column.type} is no {target}")
        _comes_back(column, target)


def _has_negative_zero(column: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.equal(pc.divide(pa.scalar(1.0), column.cast(pa.float64())), -math.inf)).as_py())


def _comes_back(column: pa.ChunkedArray, target: pa.DataType) -> None:
    """ArrowInvalid where Arrow's cast would round to a decimal or from one, drop a time or a zero's sign, or make a number infinite."""
    made = column.cast(target)
    if pa.types.is_floating(column.type) and not pa.types.is_floating(target) and _has_negative_zero(column):
        raise pa.ArrowInvalid(f"-0.0 is no {target}")
    if pa.types.is_decimal(target) or pa.types.is_decimal(column.type) or pa.types.is_date(target):
        same = made.cast(column.type).equals(column)
    else:
        same = not pa.types.is_float32(target) or pc.sum(pc.is_inf(made)).equals(
            pc.sum(pc.is_inf(column.cast(pa.float64())))
        )
    if not same:
        raise pa.ArrowInvalid(f"a value is no {target}")


def _alike(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast keeps a value's meaning: Arrow would also read numbers out of texts."""
    kinds = (
        lambda t: pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t),
        pa.types.is_boolean,
        pa.types.is_temporal,
        pa.types.is_nested,
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
    )
    return pa.types.is_null(source) or any(kind(source) and kind(target) for kind in kinds)


def _texts(batch: pa.RecordBatch, name: str, column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_large_string(column.type) or pa.types.is_dictionary(column.type):
        return column.cast(pa.string()).combine_chunks()
    values = [document.get(name, MISSING) for document in documents_of(batch)]
    return pa.array([as_text(value) for value in values], pa.string())


def plain(table: pa.Table, beyond: set[str] | None = None) -> pa.Table:
    """Columns in types that the format has; those without any value are left out: their type is not known yet. What takes no null stays so.

    beyond: takes the names of columns with a date that the format's type does not reach, or with objects of nulls alone, or of which values
    nest too deep or have fields that only case tells apart; these have no values then, and the latter are texts. Without it such a date is
    ArrowInvalid, and such an object null.
    """
    columns = {}
    for name in table.column_names:
        column = table.column(name)
        target = _storable(column.type)
        if target is not None and beyond is not None and _is_text(target):
            beyond.add(name)
            columns[name] = pa.chunked_array([pa.nulls(len(column), pa.string())])
        elif beyond is not None and _is_untyped(column.type):
            beyond.add(name)
            columns[name] = pa.chunked_array([pa.nulls(len(column), target or pa.null())])
        elif target is not None:
            try:
                columns[name] = column if column.type == target else column.cast(target)
            except pa.ArrowInvalid:
                if beyond is None:
                    raise
                beyond.add(name)
                columns[name] = pa.chunked_array([pa.nulls(len(column), target)])
    # Without metadata: numbers of fields would tie a file to columns that others may drop.
    fields = [pa.field(name, column.type, table.schema.field(name).nullable) for name, column in columns.items()]
    return pa.table(columns, pa.schema(fields)) if columns else table.select([])


def _is_text(kind: pa.DataType, levels: int = LEVELS_MAX) -> bool:
    """Whether it nests deeper than so many levels, or an object in it has two fields that only case tells apart."""
    if pa.types.is_list(kind):
        return not levels or _is_text(kind.value_type, levels - 1)
    if not pa.types.is_struct(kind):
        return False
    twins = len({field.name.lower() for field in kind}) < kind.num_fields
    return not levels or twins or any(_is_text(field.type, levels - 1) for field in kind)


def _is_untyped(kind: pa.DataType) -> bool:
    """Whether there is an object, at any depth, of which no field has a type yet."""
    if pa.types.is_list(kind):
        return _is_untyped(kind.value_type)
    if not pa.types.is_struct(kind):
        return False
    return all(pa.types.is_null(field.type) for field in kind) or any(_is_untyped(field.type) for field in kind)


def _storable_within(kind: pa.DataType) -> pa.DataType | None:
    """The same for a field of an object; one of nulls alone is text, as one without a field is."""
    found = _storable(kind)
    return pa.string() if found is None and pa.types.is_struct(kind) else found


def _storable(kind: pa.DataType) -> pa.DataType | None:
    """The format's type for one of Arrow's; None for one that only nulls have."""
    if pa.types.is_null(kind):
        return None
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC")
    if pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return pa.string()
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_unsigned_integer(kind):
        return pa.int64()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("item", _storable(kind.value_type) or pa.string(), kind.value_field.nullable))
    if pa.types.is_struct(kind):
        fields = [pa.field(f.name, of, f.nullable) for f in kind if (of := _storable_within(f.type)) is not None]
        return pa.struct(fields) if fields else None
    return kind
