"""The rows of a file of a Delta Lake table, with the columns that a version of the table has.

A file may have other names for them (column mapping), narrower types (type widening), fewer or more of them (they came or went later), at
every depth; those that divide the table it may not have. A deletion vector says which of its rows are no more.
(delta.io, PROTOCOL.md: Column Mapping, Type Widening, Deletion Vectors.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

_BATCH_ROWS: Final = 16_384
"""Read together at most: enough to make the work for each batch small."""
_READ_AHEAD: Final = 1
"""Batches, of the library's threads."""
_FILES: Final = ds.ParquetFileFormat(
    # Spark writes times of 96 bits, and the years 1 to 9999 do not fit 64 bits of nanoseconds.
    read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"),
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
)
_PHYSICAL: Final = b"delta.columnMapping.physicalName"
_ID: Final = b"delta.columnMapping.id"
_FILE_ID: Final = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Columns:
    """Those of a version of a table, as the library gives them: what the mapping says of each stands in its metadata."""

    schema: pa.Schema
    mapping: str
    """`delta.columnMapping.mode`: none, name or id."""

    def place(self, column: pa.Field, among: list[pa.Field]) -> int | None:
        """Which of a file's columns, or of an object's fields there, is this one; None: the file is from before it."""
        told = column.metadata or {}
        if self.mapping == "id":
            return _only(i for i, field in enumerate(among) if (field.metadata or {}).get(_FILE_ID) == told[_ID])
        name = told.get(_PHYSICAL, b"").decode() if self.mapping == "name" else column.name
        names = [field.name for field in among]
        if name in names:
            return names.index(name)
        return _only(i for i, each in enumerate(names) if each.lower() == name.lower())

    def shaped(self, cells: pa.Array, kind: pa.DataType) -> pa.Array:
        """Cells of a file as the table has them. ArrowInvalid where a value is none of the type."""
        if pa.types.is_struct(kind) and pa.types.is_struct(cells.type):
            return self._object(cells, kind)
        if pa.types.is_map(kind) and pa.types.is_map(cells.type):
            pairs = [self.shaped(cells.keys, kind.key_type), self.shaped(cells.items, kind.item_type)]
            entries = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
            return _of(kind, cells, entries)
        if pa.types.is_list(kind) and pa.types.is_nested(cells.type):
            cells = cells if pa.types.is_list(cells.type) else cells.cast(pa.list_(cells.type.value_type))
            return _of(kind, cells, self.shaped(cells.values, kind.value_type))
        return cells if cells.type == kind else cells.cast(kind)

    def _object(self, cells: pa.Array, kind: pa.StructType) -> pa.Array:
        have, fields = list(cells.type), list(kind)
        if not fields:
            return cells.cast(kind)
        places = [self.place(field, have) for field in fields]
        inner = [
            pa.nulls(len(cells), field.type) if place is None else self.shaped(cells.field(place), field.type)
            for field, place in zip(fields, places, strict=True)
        ]
        return pa.StructArray.from_arrays(inner, fields=fields, mask=cells.is_null())


def _only(found: Iterator[int]) -> int | None:
    places = list(found)
    return places[0] if len(places) == 1 else None


def _of(kind: pa.DataType, cells: pa.Array, inner: pa.Array) -> pa.Array:
    """An array of arrays or maps with other elements, and the same bounds."""
    return pa.Array.from_buffers(kind, len(cells), cells.buffers()[:2], -1, cells.offset, [inner])


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of a version."""

    filesystem: Any
    """Arrow's, of the table's folder."""
    path: str
    columns: Columns
    divided: dict[str, pa.Scalar]
    """What the columns that divide the table are for all of its rows."""
    kept: pa.BooleanArray | None
    """Of its first rows, those that are not deleted; None: of all."""

    def _fragment(self) -> Any:
        return _FILES.make_fragment(self.path, filesystem=self.filesystem)

    def count(self) -> int:
        """Its rows."""
        rows = int(self._fragment().count_rows())
        return rows if self.kept is None else rows - len(self.kept) + int(self.kept.true_count)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """In the order of the file."""
        fragment = self._fragment()
        have = list(fragment.physical_schema)
        if self.columns.mapping == "id" and have and not any(_FILE_ID in (field.metadata or {}) for field in have):
            raise pa.ArrowInvalid(
                "its columns have no ids, by which the table finds them (delta.columnMapping.mode: id)"
            )
        places = {
            column.name: self.columns.place(column, have)
            for column in self.columns.schema
            if column.name not in self.divided
        }
        names = [have[place].name for place in places.values() if place is not None]
        begin = 0
        for batch in fragment.to_batches(
            schema=fragment.physical_schema, columns=names, batch_size=_BATCH_ROWS, batch_readahead=_READ_AHEAD
        ):
            kept = None if self.kept is None else self.kept.slice(begin, batch.num_rows)
            begin += batch.num_rows
            yield self._shaped(batch, {name: have[at].name for name, at in places.items() if at is not None}, kept)

    def _shaped(self, batch: pa.RecordBatch, names: dict[str, str], kept: pa.BooleanArray | None) -> pa.RecordBatch:
        if kept is not None and len(kept):
            behind = pa.repeat(pa.scalar(value=True), batch.num_rows - len(kept))
            batch = batch.filter(pa.concat_arrays([kept, behind]))
        arrays = []
        for column in self.columns.schema:
            if column.name in self.divided:
                arrays.append(pa.repeat(self.divided[column.name], batch.num_rows).cast(column.type))
            elif column.name in names:
                arrays.append(self.columns.shaped(batch.column(names[column.name]), column.type))
            else:
                arrays.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.columns.schema)
