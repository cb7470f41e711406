"""Deletes by value of an Iceberg table, as Flink's upserts write them: which rows of a data file they take away.

A delete file has values of some columns. Rows with these values are no more in data files that are older, by their sequence numbers, and of
its partition; or of any, if it has none. Null is equal to null. (iceberg.apache.org, Table Spec: Scan Planning, Equality Delete Files.)
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import NestedField, StructType

from tidemark.services.source.connectors.deletionvectors import Places

_KEPT_BYTES_MAX: Final = 1 << 28
"""Of values that are kept for the next file. Files come by age, so those of several partitions take turns."""
_PIECE_ROWS: Final = 1 << 20
"""Looked for together: each time all deleted values are put into a hash table."""
_PIECE_BYTES: Final = 1 << 26
"""Less rows, where values are long."""
_SEQUENCE: Final = "sequence"
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
        last = pa.table({"key": number, _SEQUENCE: sequences}).group_by("key").aggregate([(_SEQUENCE, "max")])
        return Keys(stages, last.sort_by("key")[f"{_SEQUENCE}_max"].combine_chunks())

    def deleted_at(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Of each row, the number of the last delete of its values, or null."""
        if not self.stages:
            return pa.nulls(len(columns[0]), pa.int64())
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
        self._kept: OrderedDict[int, Keys] = OrderedDict()
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
                deleted = known.deleted_at([_column(piece, path) for path in found])
                gone |= pc.greater(pc.fill_null(deleted, -1), sequence).to_numpy(zero_copy_only=False)
            yield np.flatnonzero(gone) + begin
            begin += piece.num_rows

    def _paths(self, ids: Sequence[int], asked: list[NestedField]) -> list[list[Any]]:
        """Where columns are among those that are asked for, each added there as one of its own. ValueError where nothing has them."""
        found = []
        for number in ids:
            schema, path = next(((s, p) for s in self._schemas if (p := _path(s.fields, number))), (None, []))
            if schema is None:
                raise ValueError(f"rows are deleted by the values of column {number}, which the table never had")
            only = prune_columns(schema, {number}, select_full_types=False).find_field(path[0].field_id)
            found.append([len(asked), *(inner.name for inner in path[1:])])
            asked.append(NestedField(only.field_id, f"key {len(asked)}", only.field_type, required=False))
        if not found:
            raise ValueError("rows are deleted by the values of no column")
        return found

    def _keys(self, scope: _Scope) -> Keys:
        """The values of its files."""
        kept = self._kept.pop(id(scope), None) or self._read_keys(scope)
        while self._kept and sum(keys.nbytes for keys in self._kept.values()) + kept.nbytes > _KEPT_BYTES_MAX:
            self._kept.popitem(last=False)
        self._kept[id(scope)] = kept
        return kept

    def _read_keys(self, scope: _Scope) -> Keys:
        asked: list[NestedField] = []
        paths = self._paths(scope.ids, asked)
        parts: list[list[pa.Array]] = [[] for _ in paths]
        sequences = []
        for sequence, file in scope.entries:
            for batch in self._read(file, Schema(*asked)):
                sequences.append(pa.repeat(pa.scalar(sequence, pa.int64()), batch.num_rows))
                for part, path in zip(parts, paths, strict=True):
                    part.append(_column(batch, path))
        if not sequences:
            return Keys([], pa.array([], pa.int64()))
        return Keys.of([pa.concat_arrays(part) for part in parts], pa.concat_arrays(sequences))


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


def _column(batch: pa.RecordBatch, path: Sequence[Any]) -> pa.Array:
    cells = batch.column(path[0])
    for name in path[1:]:
        cells = pc.struct_field(cells, name)
    return cells.storage if isinstance(cells, pa.ExtensionArray) else cells
