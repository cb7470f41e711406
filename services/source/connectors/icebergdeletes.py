"""Deletes by value of an Iceberg table, as Flink's upserts write them: which rows of a data file they take away.

A delete file has values of some columns. Rows with these values are no more in data files that are older, by their sequence numbers, and of
its partition; or of any, if it has none. Null is equal to null. (iceberg.apache.org, Table Spec: Scan Planning, Equality Delete Files.)
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import NestedField, StructType

from tidemark.shared.adapters.deletionvectors import Places

_KEPT_BYTES_MAX: Final = 1 << 28
"""Of values that are kept for the next file. Files come by age, so those of several partitions take turns."""
_PIECE_ROWS: Final = 1 << 20
"""Looked for together: each time all deleted values are put into a hash table."""
_PIECE_BYTES: Final = 1 << 26
"""Less rows, where values are long."""
_PARTS: Final = 64
"""Of the values, by hashes: Arrow's hash tables take ten times their bytes, so one part is worked on at a time. Of 10 million values a part
takes some 30 MiB."""
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number with irregular bits, 2^64 over the golden ratio: a product's upper bits depend on all bits."""
_INTEGERS: Final = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_HASHED_ROWS: Final = 1 << 16
"""Python's values of a column together."""
Read = Callable[[DataFile, Schema], Iterable[pa.RecordBatch]]
"""Rows of a file with the columns of a schema, found by their ids."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Values that are deleted, with the number of the last delete of each. Of several columns each is numbered with those before it."""

    stages: Sequence[tuple[pa.Array, pa.Array | None]]
    """Of each column, its values, and the numbers of those of the pairs (of the columns before it, of it) that are there."""
    newest: pa.Array
    """By the number of a key."""

    @staticmethod
    def of(columns: Sequence[pa.Array], sequences: pa.Array) -> "Keys":
        """All of some delete files."""
        stages: list[tuple[pa.Array, pa.Array | None]] = []
        number = None
        for column in columns:
            values = column.unique()
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            pairs: pa.Array | None = None if number is None else _pairs(number, own, values)
            kinds: pa.Array | None = None if pairs is None else pairs.unique()
            number = own if pairs is None else pc.index_in(pairs, value_set=kinds).cast(pa.int64())
            stages.append((values, kinds))
        assert number is not None, "values of no column are refused"
        newest = np.full(pc.max(number).as_py() + 1 if len(number) else 0, -1, np.int64)
        np.maximum.at(newest, number.to_numpy(), sequences.to_numpy())
        return Keys(stages, pa.array(newest))

    def columns(self) -> list[pa.Array]:
        """The values of each key, as `of` has them."""
        number, found = pa.array(np.arange(len(self.newest))), []
        for values, kinds in reversed(self.stages):
            if kinds is None:
                found.append(values.take(number))
            else:
                pair = kinds.take(number).to_numpy()
                found.append(values.take(pa.array(pair % len(values))))
                number = pa.array(pair // len(values))
        return found[::-1]

    def deleted_at(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Of each row, the number of the last delete of its values, or null."""
        number = None
        for column, (values, kinds) in zip(columns, self.stages, strict=True):
            own = pc.index_in(column, value_set=values).cast(pa.int64())
            number = (
                own
                if number is None
                else pc.index_in(_pairs(number, own, values), value_set=kinds, skip_nulls=True).cast(pa.int64())
            )
        return self.newest.take(number)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, about."""
        return sum(int(array.nbytes) for array in (self.newest, *chain(*self.stages)) if array is not None)


def _pairs(before: pa.Array, own: pa.Array, values: pa.Array) -> pa.Array:
    """Numbers of pairs: fewer than 2^31 of each, so none overflows."""
    return pc.add(pc.multiply(before, len(values)), own)


class ManyKeys:
    """Any number of them, in parts by the hashes of their values. Of values that are deleted again and again one is kept."""

    def __init__(self) -> None:
        self._parts: list[Keys | None] = [None] * _PARTS
        self._added: list[list[tuple[Sequence[pa.Array], pa.Array]]] = [[] for _ in range(_PARTS)]
        """Behind them, not yet looked through: less than there are of them, so that the work for each is bounded."""

    def add(self, columns: Sequence[pa.Array], sequence: int) -> None:
        """Values that are deleted at a number."""
        for part, (places, cells) in enumerate(_divided(columns)):
            if len(places):
                added = self._added[part]
                added.append((cells, pa.array(np.full(len(places), sequence, np.int64))))
                known = self._parts[part]
                if sum(len(each) for _, each in added) > (0 if known is None else len(known.newest)):
                    self._fold(part)

    def _fold(self, part: int) -> None:
        known = self._parts[part]
        pieces = [*([] if known is None else [(known.columns(), known.newest)]), *self._added[part]]
        self._added[part] = []
        columns = [pa.concat_arrays(cells) for cells in zip(*(columns for columns, _ in pieces), strict=True)]
        self._parts[part] = Keys.of(columns, pa.concat_arrays([sequences for _, sequences in pieces]))

    def whole(self) -> "ManyKeys":
        """The same, when all are there."""
        for part, added in enumerate(self._added):
            if added:
                self._fold(part)
        return self

    def deleted_at(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
        """Of each row, the number of the last delete of its values, or -1."""
        found = np.full(len(columns[0]), -1, np.int64)
        for known, (places, cells) in zip(self._parts, _divided(columns), strict=True):
            if known is not None and len(places):
                found[places] = pc.fill_null(known.deleted_at(cells), -1).to_numpy()
        return found

    @property
    def nbytes(self) -> int:
        """What they take in memory, about."""
        return sum(known.nbytes for known in self._parts if known is not None)


def _divided(columns: Sequence[pa.Array]) -> Iterator[tuple[npt.NDArray[np.int64], list[pa.Array]]]:
    """Of each part, the places of its rows and their cells."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed = (mixed ^ _hashes(column)) * _MIX
    part = (mixed >> np.uint64(32)) % np.uint64(_PARTS)
    order = np.argsort(part, kind="stable")
    bounds = np.searchsorted(part[order], np.arange(_PARTS + 1, dtype=np.uint64))
    sorted_ = [column.take(pa.array(order)) for column in columns]
    for begin, end in pairwise(bounds.tolist()):
        yield order[begin:end], [column.slice(begin, end - begin) for column in sorted_]


def _hashes(column: pa.Array) -> npt.NDArray[np.uint64]:
    """The same for the same values; of floats, as Arrow tells them apart, by their bits."""
    kind = column.type
    if pa.types.is_primitive(kind) and kind.bit_width in _INTEGERS:
        numbers = column.view(_INTEGERS[kind.bit_width]).fill_null(0).to_numpy()
        return np.asarray(numbers.astype(np.int64).view(np.uint64))
    slices = (column.slice(begin, _HASHED_ROWS).to_pylist() for begin in range(0, len(column), _HASHED_ROWS))
    found = (hash(value) for cells in slices for value in cells)
    return np.fromiter(found, np.int64, len(column)).view(np.uint64)


@dataclass(slots=True)
class _Scope:
    """Deletes of the same columns and partition."""

    ids: tuple[int, ...]
    entries: list[tuple[int, DataFile]] = field(default_factory=list)
    """With their sequence numbers."""

    def newest(self) -> int:
        return max(sequence for sequence, _ in self.entries)


class ValueDeletes:
    """Those of a snapshot. `everywhere`: partition specs without a field; `schemas`: the snapshot's, then those that had other columns."""

    def __init__(
        self, entries: Iterable[ManifestEntry], everywhere: Iterable[int], schemas: Sequence[Schema], read: Read
    ) -> None:
        self._schemas = schemas
        self._read = read
        specs = frozenset(everywhere)
        self._scopes: dict[tuple[Any, ...], _Scope] = {}
        self._kept: OrderedDict[int, ManyKeys] = OrderedDict()
        """By scope, the one that was used last at the end."""
        for entry in entries:
            file = entry.data_file
            ids = tuple(sorted(file.equality_ids or ()))
            place = () if file.spec_id in specs else (file.spec_id, file.partition)
            self._scopes.setdefault((ids, *place), _Scope(ids)).entries.append((entry.sequence_number or 0, file))

    def of(self, file: DataFile, sequence: int) -> "Sequence[_Scope]":
        """Those that may take away rows of a data file."""
        places = ((), (file.spec_id, file.partition))
        return [scope for key, scope in self._scopes.items() if key[1:] in places and scope.newest() > sequence]

    def deleted(
        self, scopes: Sequence[_Scope], sequence: int, read: Callable[[Schema], Iterable[pa.RecordBatch]]
    ) -> Iterator[Places]:
        """Of a data file's rows, those that they take away. `read`: all of its rows, with columns of a schema. ValueError."""
        asked: list[NestedField] = []
        paths = [self._paths(scope.ids, asked) for scope in scopes]
        keys = [self._keys(scope) for scope in scopes]
        begin = 0
        for piece in _pieces(read(Schema(*asked))):
            gone = np.zeros(piece.num_rows, np.bool_)
            for known, found in zip(keys, paths, strict=True):
                gone |= known.deleted_at([_column(piece, path) for path in found]) > sequence
            yield np.flatnonzero(gone) + begin
            begin += piece.num_rows

    def _paths(self, ids: Sequence[int], asked: list[NestedField]) -> list[list[Any]]:
        """Where columns are among those that are asked for, each added there as one of its own. ValueError where nothing has them."""
        found = []
        for number in ids:
            schema, path = next(((s, p) for s in self._schemas if (p := _path(s.fields, number))), (None, []))
            if schema is None:
                raise ValueError(f"rows are deleted by the values of column {number}, which the table never had")
            if not path[-1].field_type.is_primitive:
                raise ValueError(
                    f"rows are deleted by column {number}, {path[-1].field_type}; expected one of single values"
                )
            only = prune_columns(schema, {number}, select_full_types=False).find_field(path[0].field_id)
            found.append([len(asked), *(inner.name for inner in path[1:])])
            asked.append(NestedField(only.field_id, f"key {len(asked)}", only.field_type, required=False))
        if not found:
            raise ValueError("rows are deleted by the values of no column")
        return found

    def _keys(self, scope: _Scope) -> ManyKeys:
        """The values of its files."""
        kept = self._kept.pop(id(scope), None) or self._read_keys(scope)
        while self._kept and sum(keys.nbytes for keys in self._kept.values()) + kept.nbytes > _KEPT_BYTES_MAX:
            self._kept.popitem(last=False)
        self._kept[id(scope)] = kept
        return kept

    def _read_keys(self, scope: _Scope) -> ManyKeys:
        asked: list[NestedField] = []
        paths = self._paths(scope.ids, asked)
        found = ManyKeys()
        for sequence, file in scope.entries:
            for piece in _pieces(self._read(file, Schema(*asked))):
                found.add([_column(piece, path) for path in paths], sequence)
        return found.whole()


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put together."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.num_rows for each in held) >= _PIECE_ROWS or sum(each.nbytes for each in held) >= _PIECE_BYTES:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _path(fields: Iterable[NestedField], number: int) -> list[NestedField]:
    """A column of a number and the objects that it is in, from the top down; empty where there is none."""
    for each in fields:
        if each.field_id == number:
            return [each]
        if isinstance(each.field_type, StructType) and (inner := _path(each.field_type.fields, number)):
            return [each, *inner]
    return []


def _column(batch: pa.RecordBatch, path: Sequence[object]) -> pa.Array:
    cells = batch.column(path[0])
    for name in path[1:]:
        cells = pc.struct_field(cells, name)
    return cells.storage if isinstance(cells, pa.ExtensionArray) else cells
