"""The rows of a file of a table, with the columns that a version of the table has.

A file may have other names for them, narrower types, fewer or more of them (they came or went later), at every depth. How one is found
among the file's is the matter of the table's format. Some rows may be deleted by their place.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from tidemark.shared.adapters.deletionvectors import Places
from tidemark.shared.adapters.parquetpieces import Pieces
from tidemark.shared.adapters.tablebytes import watched

PARQUET: Final = ds.ParquetFileFormat(
    # Spark writes times of 96 bits, and the years 1 to 9999 do not fit 64 bits of nanoseconds.
    read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"),
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
)
ORC: Final = ds.OrcFileFormat()
_BATCH_ROWS: Final = 16_384
"""Read together at most: enough to make the work for each batch small."""
_READ_AHEAD: Final = 1
"""Batches, of the library's threads."""
_IDS: Final = (b"PARQUET:field_id", b"iceberg.id")
"""Where Arrow tells the id that a column has in a file: of Parquet, of ORC."""
Find = Callable[[pa.Field, Sequence[pa.Field]], int | None]
"""Which of a file's columns, or of an object's fields there, is one of the table's; None: the file is from before it."""


def id_of(column: pa.Field) -> bytes | None:
    """The id that a column has in a file."""
    told = column.metadata or {}
    return next((told[name] for name in _IDS if name in told), None)


@dataclass(frozen=True, slots=True)
class Columns:
    """Those of a version of a table."""

    schema: pa.Schema
    find: Find
    absent: Callable[[pa.Field], pa.Scalar | None] = lambda _: None
    """What a column is in rows of files that do not have it; None: null."""

    def shaped(self, cells: pa.Array, have: pa.DataType, kind: pa.DataType) -> pa.Array:
        """Cells of a file as the table has them. `have`: their type, as columns are found in it. ArrowInvalid."""
        if pa.types.is_struct(kind) and pa.types.is_struct(cells.type):
            fields = list(kind)
            inner = [self.column(each, list(have), cells.field, len(cells)) for each in fields]
            return (
                pa.StructArray.from_arrays(inner, fields=fields, mask=cells.is_null()) if fields else cells.cast(kind)
            )
        if pa.types.is_map(kind) and pa.types.is_map(cells.type):
            keys = self.shaped(cells.keys, have.key_type, kind.key_type)
            items = self.shaped(cells.items, have.item_type, kind.item_type)
            return _of(kind, cells, pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field]))
        if pa.types.is_list(kind) and pa.types.is_nested(cells.type):
            cells = cells if pa.types.is_list(cells.type) else cells.cast(pa.list_(cells.type.value_type))
            return _of(kind, cells, self.shaped(cells.values, have.value_type, kind.value_type))
        return _cast(cells, kind)

    def column(
        self, column: pa.Field, among: Sequence[pa.Field], cells: Callable[[str], pa.Array], rows: int
    ) -> pa.Array:
        """One of them, of so many rows; `cells` has those that the file has, by their names there."""
        place = self.find(column, among)
        if place is not None:
            return self.shaped(cells(among[place].name), among[place].type, column.type)
        value = self.absent(column)
        return pa.nulls(rows, column.type) if value is None else pa.repeat(value, rows)


def _of(kind: pa.DataType, cells: pa.Array, inner: pa.Array) -> pa.Array:
    """An array of arrays or maps with other elements, and the same bounds."""
    return pa.Array.from_buffers(kind, len(cells), cells.buffers()[:2], -1, cells.offset, [inner])


def _cast(cells: pa.Array, kind: pa.DataType) -> pa.Array:
    if cells.type == kind:
        return cells
    if isinstance(cells, pa.ExtensionArray):
        return _cast(cells.storage, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _cast(cells, kind.storage_type))
    return pc.cast(cells, options=pc.CastOptions(target_type=kind, allow_time_truncate=True))


def by_name(name: str, among: Sequence[pa.Field]) -> int | None:
    """Of a name, or if there is none of the only one that differs in its case."""
    names = [each.name for each in among]
    return names.index(name) if name in names else _only(each.lower() == name.lower() for each in names)


def by_id(number: bytes | None, among: Sequence[pa.Field]) -> int | None:
    """Of an id."""
    return None if number is None else _only(id_of(each) == number for each in among)


def _only(fits: Iterator[bool]) -> int | None:
    places = [place for place, fit in enumerate(fits) if fit]
    return places[0] if len(places) == 1 else None


@contextmanager
def opened(open_: Callable[[], object], format_: Any) -> Iterator[Any]:
    """Arrow's fragment of a file. Raises as `watched`."""
    with watched(open_) as file:
        yield format_.make_fragment(file)


def union(one: Iterator[Places], other: Iterator[Places]) -> Iterator[Places]:
    """The places of both, each in pieces that are in order."""
    sides = one, other
    held = [next(side, None) for side in sides]
    while (first := held[0]) is not None and (second := held[1]) is not None:
        if len(first) and len(second):
            end = min(int(first[-1]), int(second[-1])) + 1
            cuts = [int(np.searchsorted(places, end)) for places in (first, second)]
            yield np.union1d(first[: cuts[0]], second[: cuts[1]])
            first, second = first[cuts[0] :], second[cuts[1] :]
        held = [
            places if len(places) else next(side, None) for places, side in zip((first, second), sides, strict=True)
        ]
    for places, side in zip(held, sides, strict=True):
        if places is not None:
            yield places
            yield from side


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file with rows of a version. Functions raise as `opened`, and ValueError where it has other rows than it is told to have."""

    open: Callable[[], Any]
    """Its bytes."""
    format: Any
    """Arrow's: PARQUET or ORC."""
    columns: Columns
    divided: Mapping[str, pa.Scalar] = field(default_factory=dict)
    """What columns are for all of its rows, whatever the file has."""
    deleted: Callable[[int], Iterator[Places]] | None = None
    """Of a file of so many rows, those that are deleted, in pieces that are in order; None: none is."""
    known: Callable[[pa.Schema], pa.Schema] = lambda schema: schema
    """The file's columns as they are found, of those that it has."""
    told: int | None = None
    """Its rows, deleted ones too, where the table's metadata is believed in their number until they are read."""

    def count(self) -> int:
        """Its rows."""
        if self.deleted is None and self.told is not None and self.told >= 0:
            return self.told
        with opened(self.open, self.format) as fragment:
            rows = self._rows(fragment)
        return rows - (0 if self.deleted is None else sum(map(len, self.deleted(rows))))

    def _rows(self, fragment: Any) -> int:
        """By its footer."""
        rows = int(fragment.count_rows())
        if rows < 0 or self.told not in (None, rows):
            raise ValueError(f"it has {rows} rows, and is told to have {self.told}")
        return rows

    def rows(self) -> Iterator[pa.RecordBatch]:
        """In the order of the file."""
        if not len(self.columns.schema):
            raise ValueError("the table has no columns")
        with opened(self.open, self.format) as fragment:
            rows = self._rows(fragment)
            have = list(self.known(fragment.physical_schema))
            sought = [column for column in self.columns.schema if column.name not in self.divided]
            places = sorted({place for column in sought if (place := self.columns.find(column, have)) is not None})
            gone = None if self.deleted is None else _Gone(self.deleted(rows))
            begin = 0
            for batch in self._batches(fragment, [have[place].name for place in places]):
                left = batch if gone is None else gone.without(batch, begin)
                begin += batch.num_rows
                yield self._shaped(left, have)
            if begin != rows:
                raise ValueError(f"it has {begin} rows, and its footer counts {rows}")

    def _batches(self, fragment: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of it; of Parquet, by row groups."""
        read = {"schema": fragment.physical_schema, "columns": columns, "batch_readahead": _READ_AHEAD}
        if self.format is not PARQUET:
            yield from fragment.to_batches(batch_size=_BATCH_ROWS, **read)
            return
        with watched(self.open) as file:
            known = fragment.metadata
            pieces = Pieces(file, known)
            for group in range(known.num_row_groups):
                rows = pieces.rows(group, _BATCH_ROWS)
                yield from fragment.subset(row_group_ids=[group]).to_batches(batch_size=rows, **read)

    def _shaped(self, batch: pa.RecordBatch, have: Sequence[pa.Field]) -> pa.RecordBatch:
        rows, columns = batch.num_rows, self.columns
        arrays = [
            pa.repeat(self.divided[column.name], rows).cast(column.type)
            if column.name in self.divided
            else columns.column(column, have, batch.column, rows)
            for column in columns.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)


class _Gone:
    """Deleted places, taken in the order of rows."""

    def __init__(self, pieces: Iterator[Places]) -> None:
        self._pieces = pieces
        self._held: Places = np.zeros(0, np.int64)

    def without(self, batch: pa.RecordBatch, begin: int) -> pa.RecordBatch:
        """Rows from a place on that are left."""
        kept = np.ones(batch.num_rows, np.bool_)
        held: Places | None = self._held
        while held is not None:
            cut = int(np.searchsorted(held, begin + batch.num_rows))
            kept[held[:cut] - begin] = False
            self._held = held[cut:]
            held = None if len(self._held) else next(self._pieces, None)
        return batch if kept.all() else batch.filter(pa.array(kept))
