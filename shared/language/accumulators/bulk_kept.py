"""Accumulators that keep some of their values, of many groups at once: a state is an array of entries.

They differ in what an entry is made of, in the order of the entries, and in which of them are kept. The rest is one mechanism: rows become
entries; those of a group are put in order and chosen from, the same for values and for the entries of states that merge; the chosen ones
become an array. So a state has the bytes that one value after the other would give it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.language.accumulators.base import bounded
from tidemark.shared.language.accumulators.bulk_base import (
    NULL,
    Form,
    Given,
    Int64s,
    Sure,
    alone,
    behind,
    fields,
    groups_of,
    lists,
    orders,
    parts_of,
    places_of,
    runs_of,
    told_apart,
    tuples,
)
from tidemark.shared.language.accumulators.extremes import Extremes, Top
from tidemark.shared.language.accumulators.ordered import AddToSet, ConcatArrays, Ends, MergeObjects, Push, SetUnion
from tidemark.shared.language.values.ranks import are_empty, sort_order, total_order

_Ranked: TypeAlias = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class EntryColumns:
    """What may be kept, group after group; n of them."""

    groups: Int64s
    """Shape (n,), ascending."""
    values: pa.BinaryArray
    places: Sequence[Int64s] = ()
    """The parts of the order keys, shape (n,) each."""
    keys: pa.BinaryArray | None = None
    """Arrays of the sort values, or names of fields."""
    lasts: Sequence[Int64s] = ()
    """Of fields: the parts of the order keys where they were last seen."""
    whole: pa.BinaryArray | None = None
    """The entries themselves, where states had them."""

    @property
    def unordered(self) -> Sequence[Int64s]:
        """The parts of the order keys where entries may stand otherwise; rows come in that order."""
        return () if self.whole is None else self.places

    def take(self, rows: Int64s) -> "EntryColumns":
        """The entries of these rows."""
        at = pa.array(rows)
        return EntryColumns(
            self.groups[rows], self.values.take(at), [place[rows] for place in self.places],
            None if self.keys is None else self.keys.take(at), [last[rows] for last in self.lasts],
            None if self.whole is None else self.whole.take(at),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeptForm:
    """How one accumulator keeps entries."""

    enter: Callable[[Any, Given], EntryColumns | None]
    """The entries of rows; None where a row is not taken."""
    pack: Callable[[EntryColumns], pa.BinaryArray]
    """The bytes of entries in a state."""
    unpack: Callable[[pa.BinaryArray, Int64s], EntryColumns]
    """Entries of their bytes, with their groups."""
    choose: Callable[[Any, EntryColumns, int], EntryColumns]
    """Those that are kept, of so many groups, as a state has them."""
    finish: Callable[[Any, Int64s, EntryColumns], pa.BinaryArray]
    """The values of states that have so many entries each."""

    def form(self) -> Form:
        """The accumulator's form in columns."""
        return Form(self._add, self._merge, self._finish)

    def _add(self, accumulator: Any, given: Given) -> Sure | None:
        found = self.enter(accumulator, given)
        count = len(given.bounds) - 1
        return None if found is None else self._state(self.choose(accumulator, found, count), count)

    def _merge(self, accumulator: Any, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
        counts, found = values.items(cells)
        count = len(bounds) - 1
        entries = self.unpack(found, np.repeat(groups_of(bounds), counts))
        return self._state(self.choose(accumulator, replace(entries, whole=found), count), count)

    def _state(self, entries: EntryColumns, count: int) -> Sure:
        whole = self.pack(entries) if entries.whole is None else entries.whole
        return lists(np.bincount(entries.groups, minlength=count), whole), None

    def _finish(self, accumulator: Any, cells: pa.BinaryArray) -> Sure:
        counts, found = values.items(cells)
        return self.finish(accumulator, counts, self.unpack(found, np.repeat(np.arange(len(cells)), counts))), None


# --- the order of entries ---------------------------------------------------------------------------------------------


def _ordered(entries: EntryColumns, *columns: _Ranked) -> Int64s:
    """The entries, group after group, in the order of these columns; equal ones as they stood."""
    told = [column for column in columns if len(column) and (column != column[0]).any()]
    if not told:
        return np.arange(len(entries.groups))
    return np.lexsort((*told[::-1], entries.groups))


def _in_groups(groups: Int64s, count: int) -> tuple[Int64s, Int64s]:
    """(the place of each row in its group, how many stand behind it), of groups that stand together."""
    counts = np.bincount(groups, minlength=count)
    place = np.arange(len(groups)) - (np.cumsum(counts) - counts)[groups]
    return place, counts[groups] - 1 - place


def _first(rows: Int64s, entries: EntryColumns, count: int, most: int) -> EntryColumns:
    """The first of each group."""
    return entries.take(rows[_in_groups(entries.groups[rows], count)[0] < most])


def _last(rows: Int64s, entries: EntryColumns, count: int, most: int) -> EntryColumns:
    return entries.take(rows[_in_groups(entries.groups[rows], count)[1] < most])


def _sorted_outputs(accumulator: Any, counts: Int64s, entries: EntryColumns) -> pa.BinaryArray:
    """The values in the order of their keys."""
    found = entries.values.take(pa.array(_ordered(entries, *entries.places)))
    return alone(counts, found) if getattr(accumulator, "alone", False) else lists(counts, found)


def _outputs(accumulator: Any, counts: Int64s, entries: EntryColumns) -> pa.BinaryArray:
    """The values as they stand."""
    return alone(counts, entries.values) if accumulator.alone else lists(counts, entries.values)


# --- the least and the greatest ---------------------------------------------------------------------------------------


def _entered_extremes(_: Extremes, given: Given) -> EntryColumns:
    kinds = given.tagged.tags
    rows = np.flatnonzero((kinds != tags.MISSING) & (kinds != tags.NULL))
    if len(rows) == len(kinds):
        return EntryColumns(given.groups, given.cells)
    return EntryColumns(given.groups[rows], given.cells.take(pa.array(rows)))


def _extremes(accumulator: Extremes, entries: EntryColumns, count: int) -> EntryColumns:
    column = values.read(entries.values)
    classes, numbers = total_order(entries.values, column)
    if accumulator.greatest:
        classes, numbers = ~classes, ~numbers
    if accumulator.most == 1 and len(classes):  # all but equal ones are left out without being sorted
        rows = _leading(entries.groups, classes, numbers)
        entries = entries.take(rows)
        found = _ordered(entries, _of_bytes(entries.values, values.read(entries.values)))
    else:
        found = _ordered(entries, classes, numbers, _of_bytes(entries.values, column))
    return _first(found, entries, count, accumulator.most)


def _leading(groups: Int64s, *columns: _Ranked) -> Int64s:
    """The rows of each group with the least of the columns, one column after the other."""
    rows = np.arange(len(groups))
    for column in columns:
        found = column[rows]
        if bool((found == found[0]).all()):
            continue
        starts = runs_of(groups[rows])
        least = np.repeat(np.minimum.reduceat(found, starts), np.diff(np.append(starts, len(rows))))
        rows = rows[found == least]
    return rows


def _of_bytes(cells: pa.BinaryArray, column: Tagged) -> Int64s:
    """Numbers in the order of the encodings, where equal values may have several."""
    if column.all(tags.BOOL, tags.STRING, tags.DATE, tags.INT) or column.all(tags.LONG):
        return np.zeros(len(cells), np.int64)
    doubles = column.numbers.view(np.float64)
    if column.all(tags.DOUBLE) and not (np.isnan(doubles) | (doubles == 0)).any():
        return np.zeros(len(cells), np.int64)
    told = cells.dictionary_encode()
    places = np.empty(len(told.dictionary), np.int64)
    places[pc.array_sort_indices(told.dictionary).to_numpy()] = np.arange(len(places))
    found: Int64s = places[told.indices.to_numpy()]
    return found


# --- the first and last of a sort -------------------------------------------------------------------------------------


def _entered_top(_: Top, given: Given) -> EntryColumns:
    sort_values, outputs = parts_of(given.cells, 2)
    return EntryColumns(given.groups, outputs, given.places, sort_values)


def _top(accumulator: Top, entries: EntryColumns, count: int) -> EntryColumns:
    assert entries.keys is not None
    parts = parts_of(entries.keys, len(accumulator.keys))
    columns = [
        column
        for part, key in zip(parts, accumulator.keys, strict=True)
        for column in sort_order(part, are_empty(part), descending=key.descending)
    ]
    rows = _ordered(entries, *columns, *entries.unordered)
    return (_last if accumulator.bottom else _first)(rows, entries, count, accumulator.most)


def _packed_top(entries: EntryColumns) -> pa.BinaryArray:
    assert entries.keys is not None
    return tuples(entries.keys, orders(entries.places), entries.values)


def _unpacked_top(cells: pa.BinaryArray, groups: Int64s) -> EntryColumns:
    sort_values, order, outputs = parts_of(cells, 3)
    return EntryColumns(groups, outputs, places_of(order), sort_values)


# --- by the order key -------------------------------------------------------------------------------------------------


def _packed_orders(entries: EntryColumns) -> pa.BinaryArray:
    return tuples(orders(entries.places), entries.values)


def _unpacked_orders(cells: pa.BinaryArray, groups: Int64s) -> EntryColumns:
    order, found = parts_of(cells, 2)
    return EntryColumns(groups, found, places_of(order))


def _entered_ends(_: Ends, given: Given) -> EntryColumns:
    return EntryColumns(given.groups, given.cells.fill_null(NULL), given.places)


def _ends(accumulator: Ends, entries: EntryColumns, count: int) -> EntryColumns:
    rows = _ordered(entries, *entries.unordered)
    return (_last if accumulator.last else _first)(rows, entries, count, accumulator.most)


def _entered(accumulator: Any, given: Given) -> EntryColumns | None:
    """All values but the missing ones; the items of arrays where the accumulator takes such."""
    found = EntryColumns(given.groups, given.cells, given.places)
    if not accumulator.of_items:
        return found if not given.cells.null_count else found.take(_there(given.cells))
    counts, items = values.items(given.cells)
    if bool((counts < 0).any()) and len(_there(given.cells)) > np.count_nonzero(counts >= 0):
        return None
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    return EntryColumns(given.groups[rows], items, [place[rows] for place in given.places])


def _there(cells: pa.BinaryArray) -> Int64s:
    return np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False))


def refusable(accumulator: Any, cells: pa.BinaryArray) -> Int64s:
    """The rows with a value that `add` may refuse: of another type, or with more items or fields than a group may keep."""
    kinds = values.read(cells).tags
    counts, taken = (
        (fields(cells)[0], (tags.MISSING, tags.NULL, tags.OBJECT))
        if isinstance(accumulator, MergeObjects)
        else (values.items(cells)[0], (tags.MISSING, tags.ARRAY))
    )
    return np.flatnonzero(~np.isin(kinds, taken) | (counts > accumulator.values_max))


def _within(accumulator: Any, entries: EntryColumns, count: int) -> EntryColumns:
    """The entries. TooManyValues where a group has too many."""
    kept = np.bincount(entries.groups, minlength=count)
    bounded(int(kept.max(initial=0)), accumulator.values_max, accumulator.name)
    return entries


def _different(accumulator: AddToSet, entries: EntryColumns, count: int) -> EntryColumns:
    """Of equal values the one with the least order key."""
    codes = told_apart(entries.values).dictionary_encode().indices.to_numpy()
    rows = np.lexsort((*entries.unordered[::-1], codes, entries.groups))
    return _within(accumulator, entries.take(np.sort(rows[runs_of(entries.groups[rows], codes[rows])])), count)


# --- fields -----------------------------------------------------------------------------------------------------------


def _entered_fields(_: MergeObjects, given: Given) -> EntryColumns | None:
    if not given.tagged.all(tags.MISSING, tags.NULL, tags.OBJECT):
        return None
    counts, names, found = fields(given.cells)
    rows = np.repeat(np.arange(len(counts)), np.maximum(counts, 0))
    places = [place[rows] for place in given.places]
    return EntryColumns(given.groups[rows], found, places, names, places)


def _fields(accumulator: MergeObjects, entries: EntryColumns, count: int) -> EntryColumns:
    """Of the fields of one name: the first and the last place, and the value at the last, where the field of the first place stands."""
    assert entries.keys is not None
    codes = entries.keys.dictionary_encode().indices.to_numpy()
    rows = np.lexsort((*entries.unordered[::-1], codes, entries.groups))
    starts = runs_of(entries.groups[rows], codes[rows])
    by_last = rows if entries.whole is None else np.lexsort((*entries.lasts[::-1], codes, entries.groups))
    ends = np.append(starts[1:], len(rows)) - 1 if len(rows) else rows
    kept, firsts = entries.take(by_last[ends]), [place[rows[starts]] for place in entries.places]
    return _within(accumulator, replace(kept, places=firsts, whole=None).take(np.argsort(rows[starts])), count)


def _packed_fields(entries: EntryColumns) -> pa.BinaryArray:
    assert entries.keys is not None
    return tuples(entries.keys, orders(entries.places), orders(entries.lasts), entries.values)


def _unpacked_fields(cells: pa.BinaryArray, groups: Int64s) -> EntryColumns:
    names, firsts, lasts, found = parts_of(cells, 4)
    return EntryColumns(groups, found, places_of(firsts), names, places_of(lasts))


def _object(_: MergeObjects, counts: Int64s, entries: EntryColumns) -> pa.BinaryArray:
    """Objects of the fields, in the order in which they were first seen."""
    assert entries.keys is not None
    rows = pa.array(_ordered(entries, *entries.places))
    pairs = tuples(entries.keys.take(rows), entries.values.take(rows))
    bodies = pa.repeat(pa.scalar(b"", pa.binary()), len(counts))
    if len(pairs):
        text, bounds = buffers(behind(pairs, np.ones(len(pairs), np.int64)))
        bodies = values.binary_of(bounds[np.concatenate(([0], np.cumsum(counts)))], text, None)
    different, at = np.unique(counts, return_inverse=True)
    heads = pa.array([_head(int(count)) for count in different], pa.binary()).take(pa.array(at))
    return pc.binary_join_element_wise(heads, bodies, b"")


def _head(count: int) -> bytes:
    if count < 16:  # noqa: PLR2004 - the forms of a map's header
        return bytes([0x80 | count])
    return b"\xde" + count.to_bytes(2) if count < 2**16 else b"\xdf" + count.to_bytes(4)


def _value_alone(cells: pa.BinaryArray, groups: Int64s) -> EntryColumns:
    return EntryColumns(groups, cells)


_BY_ORDER: Final = (_packed_orders, _unpacked_orders)
_PUSH: Final = KeptForm(_entered, *_BY_ORDER, _within, _sorted_outputs)
_SET: Final = KeptForm(_entered, *_BY_ORDER, _different, _sorted_outputs)
KEPT: Final[Mapping[type, Form]] = {
    Extremes: KeptForm(_entered_extremes, lambda e: e.values, _value_alone, _extremes, _outputs).form(),
    Top: KeptForm(_entered_top, _packed_top, _unpacked_top, _top, _outputs).form(),
    Ends: KeptForm(_entered_ends, *_BY_ORDER, _ends, _sorted_outputs).form(),
    Push: _PUSH.form(),
    ConcatArrays: _PUSH.form(),
    AddToSet: _SET.form(),
    SetUnion: _SET.form(),
    MergeObjects: KeptForm(_entered_fields, _packed_fields, _unpacked_fields, _fields, _object).form(),
}
