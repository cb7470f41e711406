"""States of many groups at once, encoded: with the result that `add`, `merge` and `finish`, one value after the other, would give (A1).

An accumulator has a form in columns here, or its values are added one by one. A form says of which groups it is not sure: those are added
one by one, too.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.shared.compiled import keys, tags, totals, values
from tidemark.shared.compiled.columns import Tagged
from tidemark.shared.compiled.documents import cells_of
from tidemark.shared.language.accumulators.base import AnyImplementation, bounded
from tidemark.shared.language.accumulators.extremes import Extremes
from tidemark.shared.language.accumulators.numbers import Count, DeviationOf, TotalOf
from tidemark.shared.language.accumulators.ordered import AddToSet, Ends, Push
from tidemark.shared.language.accumulators.sketches import ApproxCountDistinct, Percentiles, hash_of
from tidemark.shared.language.values.codec import decode_value, encode_docs
from tidemark.shared.language.values.ranks import ranks
from tidemark.shared.language.values.totals import Total
from tidemark.shared.model.values import MISSING, Long, Value

Bools: TypeAlias = npt.NDArray[np.bool_]
Int64s: TypeAlias = npt.NDArray[np.int64]
Sure: TypeAlias = tuple[pa.BinaryArray, Bools | None]
"""Cells of groups, and of which of them a form is sure, shape (m,); None for all."""
_NULL: Final = b"\xc0"
_SMALL: Final = 16
"""Groups of so few values are counted one by one: arrays would be slower."""


@dataclass(frozen=True)
class Given:
    """The values that rows add, group after group, with their order keys."""

    cells: pa.BinaryArray
    """Encoded, null for a missing one."""
    bounds: Int64s
    """Where groups begin, and, last, where the last one ends: group i has the rows from bounds[i] to bounds[i + 1], at least one."""
    places: Sequence[Int64s]
    """The parts of the order keys, shape (n,) each; rows of a group come in their order if the accumulator asks for it."""

    @cached_property
    def tagged(self) -> Tagged:
        """The values as a column."""
        return values.read(self.cells)

    @cached_property
    def groups(self) -> Int64s:
        """The group of each row, shape (n,)."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def any_row(self, rows: Bools) -> Bools:
        """The groups that have one of these rows, shape (m,)."""
        found: Bools = np.bincount(self.groups[rows], minlength=len(self.bounds) - 1) > 0
        return found

    def listed(self, begin: int, end: int) -> list[Value]:
        """The values of some rows, MISSING included."""
        return [MISSING if cell is None else decode_value(cell) for cell in self.cells[begin:end].to_pylist()]


def states(accumulator: AnyImplementation, given: Given) -> pa.BinaryArray:
    """The encoded states of the groups, shape (m,). TooManyValues where one would keep too many."""
    form = _FORMS.get(type(accumulator))
    found = None if form is None or not len(given.bounds[1:]) else form.add(accumulator, given)
    count = len(given.bounds) - 1
    return _completed(found, count, lambda groups: (_added(accumulator, given, group) for group in groups))


def merged(accumulator: AnyImplementation, cells: pa.BinaryArray, bounds: Int64s) -> pa.BinaryArray:
    """One encoded state for each of consecutive groups of encoded states, shape (m,). bounds: as in `Given`."""

    def one(group: int) -> bytes:
        first, *others = cells[bounds[group] : bounds[group + 1]].to_pylist()
        state = accumulator.decode(first)
        for other in others:
            state = accumulator.merge(state, accumulator.decode(other))
        return accumulator.encode(state)

    form = _FORMS.get(type(accumulator))
    found = None if form is None or not len(bounds[1:]) else form.merge(accumulator, cells, bounds)
    return _completed(found, len(bounds) - 1, lambda groups: map(one, groups))


def finished(accumulator: AnyImplementation, cells: pa.BinaryArray) -> pa.BinaryArray:
    """The encoded values of encoded states, shape (n,)."""
    form = _FORMS.get(type(accumulator))
    found = None if form is None or form.finish is None or not len(cells) else form.finish(accumulator, cells)

    def by_hand(rows: Sequence[int]) -> list[bytes]:
        return encode_docs(accumulator.finish(accumulator.decode(cells[row].as_py())) for row in rows)

    return _completed(found, len(cells), by_hand)


def _completed(found: Sure | None, count: int, by_hand: Callable[[Sequence[int]], Iterable[bytes]]) -> pa.BinaryArray:
    """The cells of a form, with those of which it is not sure made one by one."""
    if found is None:
        return pa.array(list(by_hand(range(count))), pa.binary())
    cells, sure = found
    if sure is None or bool(sure.all()):
        return cells
    rows = np.flatnonzero(~sure)
    order = np.arange(count)
    order[rows] = count + np.arange(len(rows))
    return pa.concat_arrays([cells, pa.array(list(by_hand(rows.tolist())), pa.binary())]).take(pa.array(order))


def _added(accumulator: AnyImplementation, given: Given, group: int) -> bytes:
    """The state of one group, its values added one by one."""
    begin, end = int(given.bounds[group]), int(given.bounds[group + 1])
    listed = given.listed(begin, end)
    many = _MANY.get(type(accumulator))
    state = None if many is None or end - begin < _SMALL else many(accumulator, listed)
    if state is None:
        state = accumulator.init()
        orders = zip(*(place[begin:end].tolist() for place in given.places), strict=True)
        for value, order in zip(listed, orders, strict=True):
            state = accumulator.add(state, value, order)
    return accumulator.encode(state)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _whole(numbers: Int64s) -> pa.BinaryArray:
    """Whole numbers, encoded: ints, and longs beyond 32 bits."""
    zeros = np.zeros(len(numbers), np.int32)
    kinds = np.full(len(numbers), tags.INT, np.uint8)
    return values.write(cells_of(kinds, numbers, zeros, zeros, zeros.view(np.uint8), "packed"))[0]


def _total(_: Any, given: Given) -> Sure:
    return totals.add(given.tagged, given.bounds, deviation=False)


def _total_finished(accumulator: TotalOf, cells: pa.BinaryArray) -> Sure:
    found, sure = totals.finish(cells, average=accumulator.rounds is Total.average)
    return values.write(found)[0], sure


def _counted(_: Any, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    return _whole(np.add.reduceat(values.read(cells).numbers, bounds[:-1])), None


# --- extremes ---------------------------------------------------------------------------------------------------------

_COMPARED: Final = (tags.BOOL, tags.INT, tags.LONG, tags.DOUBLE, tags.STRING, tags.DATE)
"""Types whose equal values are the same, but for zeros of doubles."""


def _extreme(accumulator: Extremes, given: Given) -> Sure | None:
    """The least or greatest value of groups with values of one type."""
    if accumulator.most != 1:
        return None
    cells, starts = given.tagged, given.bounds[:-1]
    there = (cells.tags != tags.MISSING) & (cells.tags != tags.NULL)
    most = np.maximum.reduceat(np.where(there, cells.tags, 0), starts)
    least = np.minimum.reduceat(np.where(there, cells.tags, 255), starts)
    some = most > 0
    sure = ~some | ((most == least) & np.isin(most, _COMPARED))
    places = ranks(cells)
    first, none = (np.maximum, np.iinfo(np.int64).min) if accumulator.greatest else (np.minimum, np.iinfo(np.int64).max)
    best = first.reduceat(np.where(there, places, none), starts)
    if cells.has(tags.DOUBLE):
        sure &= ~((most == tags.DOUBLE) & ((best == 0) | (best == -1)))  # both zeros
        sure &= ~given.any_row((cells.tags == tags.DOUBLE) & np.isnan(cells.numbers.view(np.float64)))
    rows = np.flatnonzero(there & (places == best[given.groups]))
    groups, firsts = np.unique(given.groups[rows], return_index=True)
    found = given.cells.take(pa.array(rows[firsts]))
    counts = np.zeros(len(starts), np.int64)
    counts[groups] = 1
    return values.arrays(counts, found, np.ones(len(starts), np.bool_)), sure


def _extreme_of(accumulator: Extremes, cells: pa.BinaryArray, bounds: Int64s) -> Sure | None:
    """The extremes of states: of the values in them."""
    counts, items = values.items(cells)
    ends = np.concatenate(([0], np.cumsum(counts)))[bounds]
    filled = np.flatnonzero(np.diff(ends) > 0)
    empty = np.diff(ends) == 0
    if accumulator.most != 1 or not len(filled):
        return None
    found = _extreme(accumulator, Given(items, np.append(ends[:-1][filled], ends[-1]), ()))
    assert found is not None
    some, some_sure = found
    order, sure = np.full(len(empty), len(filled)), np.ones(len(empty), np.bool_)
    order[filled], sure[filled] = np.arange(len(filled)), some_sure
    return pa.concat_arrays([some, pa.array([b"\x90"], pa.binary())]).take(pa.array(order)), sure


def _extreme_finished(accumulator: Extremes, cells: pa.BinaryArray) -> Sure | None:
    return None if accumulator.most != 1 else (_alone(*values.items(cells)) if accumulator.alone else cells, None)


def _alone(counts: Int64s, items: pa.BinaryArray) -> pa.BinaryArray:
    """The item of each array of one, null of an empty one."""
    places = pa.array(np.cumsum(counts) - counts, mask=counts == 0)
    return items.take(places).fill_null(_NULL)


# --- values with order keys -------------------------------------------------------------------------------------------


def _packed(counts: Int64s, places: Sequence[Int64s], cells: pa.BinaryArray) -> pa.BinaryArray:
    """States of so many entries each (`ordered.pack_entries`)."""
    rows = len(cells)
    every = np.ones(rows, np.bool_)
    orders = values.arrays(np.full(rows, 3), _whole(np.column_stack(places).astype(np.int64).ravel()), every)
    both = pa.concat_arrays([orders, cells]).take(pa.array(np.arange(2 * rows).reshape(2, rows).T.ravel()))
    return values.arrays(counts, values.arrays(np.full(rows, 2), both, every), np.ones(len(counts), np.bool_))


def _unpacked(cells: pa.BinaryArray) -> tuple[Int64s, list[Int64s], pa.BinaryArray]:
    """(how many entries each state has, the parts of their order keys, their values)."""
    counts, entries = values.items(cells)
    both = values.items(entries)[1]
    rows = np.arange(0, 2 * len(entries), 2)
    numbers = values.read(values.items(both.take(pa.array(rows)))[1]).numbers.reshape(-1, 3)
    return counts, [np.ascontiguousarray(part) for part in numbers.T], both.take(pa.array(rows + 1))


def _entries(accumulator: Any, given: Given) -> Sure:
    """Entries of the rows that count, in the order of the rows."""
    cells = given.cells.fill_null(_NULL) if isinstance(accumulator, Ends) else given.cells
    rows, sure = _chosen(accumulator, cells, given.groups, len(given.bounds) - 1)
    counts = np.bincount(given.groups[rows], minlength=len(given.bounds) - 1)
    return _packed(counts, [place[rows] for place in given.places], cells.take(pa.array(rows))), sure


def _entries_of(accumulator: Any, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    counts, places, found = _unpacked(cells)
    groups = np.repeat(np.repeat(np.arange(len(bounds) - 1), np.diff(bounds)), counts)
    order = np.lexsort((*places[::-1], groups))
    found, groups = found.take(pa.array(order)), groups[order]
    rows, sure = _chosen(accumulator, found, groups, len(bounds) - 1)
    kept = [place[order][rows] for place in places]
    return _packed(np.bincount(groups[rows], minlength=len(bounds) - 1), kept, found.take(pa.array(rows))), sure


def _chosen(
    accumulator: Ends | Push | AddToSet, cells: pa.BinaryArray, groups: Int64s, count: int
) -> tuple[Int64s, Bools | None]:
    """The rows that a state keeps, of groups with rows that stand together and in order; and of which groups that is sure."""
    if isinstance(accumulator, Ends):
        starts = np.searchsorted(groups, np.arange(count + 1))
        rank = np.arange(len(groups)) - starts[groups]
        if accumulator.last:
            rank = np.diff(starts)[groups] - 1 - rank
        return np.flatnonzero(rank < accumulator.most), None
    rows = (
        np.flatnonzero(cells.is_valid().to_numpy(zero_copy_only=False)) if cells.null_count else np.arange(len(cells))
    )
    sure: Bools | None = None
    if isinstance(accumulator, AddToSet):
        found, known = keys.canonical(cells.take(pa.array(rows)), lasting=False)
        sure = np.ones(count, np.bool_)
        sure[groups[rows[~known]]] = False
        codes = found.dictionary_encode().indices.to_numpy().astype(np.int64)
        firsts = np.unique(groups[rows] * (int(codes.max(initial=0)) + 1) + codes, return_index=True)[1]
        rows = rows[np.sort(firsts)]
    kept = np.bincount(groups[rows], minlength=count)
    bounded(int((kept if sure is None else kept[sure]).max(initial=0)), accumulator.values_max, accumulator.name)
    return rows, sure


def _entries_finished(accumulator: Any, cells: pa.BinaryArray) -> Sure:
    counts, places, found = _unpacked(cells)
    groups = np.repeat(np.arange(len(counts)), counts)
    found = found.take(pa.array(np.lexsort((*places[::-1], groups))))
    if isinstance(accumulator, Ends) and accumulator.alone:
        return _alone(counts, found), None
    return values.arrays(counts, found, np.ones(len(counts), np.bool_)), None


# --- sketches ---------------------------------------------------------------------------------------------------------


def _quantiles(accumulator: Percentiles, listed: Sequence[Value]) -> Any:
    if not set(map(type, listed)) <= {int, float, Long}:
        return None
    numbers = np.array(listed, dtype=np.float64) + 0.0
    if bool(np.isnan(numbers).any()):
        return None
    found, counts = np.unique(numbers, return_counts=True)
    bits = found.view(np.int64)
    ordered = np.where(bits >= 0, bits, -(bits & 0x7FFF_FFFF_FFFF_FFFF) - 1)
    state = accumulator.init()
    state.put_all(found.tolist(), counts.tolist(), ordered.tolist())
    return state


def _distinct(accumulator: ApproxCountDistinct, listed: Sequence[Value]) -> Any:
    if set(map(type, listed)) not in ({str}, {int}):
        return None
    state = accumulator.init()
    for value in set(listed):
        state.put(hash_of(value))
    return state


_MANY: Final[dict[type, Callable[[Any, Sequence[Value]], Any]]] = {
    Percentiles: _quantiles,
    ApproxCountDistinct: _distinct,
}
"""How many values of one group are added at once; None where they are odd."""


@dataclass(frozen=True, slots=True)
class _Form:
    """An accumulator in columns; each function gives None where it has no form, `finish` is None where states are always decoded."""

    add: Callable[[Any, Given], Sure | None]
    merge: Callable[[Any, pa.BinaryArray, Int64s], Sure | None]
    finish: Callable[[Any, pa.BinaryArray], Sure | None] | None


_ENTRIES: Final = _Form(_entries, _entries_of, _entries_finished)
_FORMS: Final[dict[type, _Form]] = {
    Count: _Form(lambda _, given: (_whole(np.diff(given.bounds)), None), _counted, lambda _, cells: (cells, None)),
    TotalOf: _Form(_total, lambda _, cells, bounds: totals.merge(cells, bounds, deviation=False), _total_finished),
    DeviationOf: _Form(
        lambda _, given: totals.add(given.tagged, given.bounds, deviation=True),
        lambda _, cells, bounds: totals.merge(cells, bounds, deviation=True),
        None,
    ),
    Extremes: _Form(_extreme, _extreme_of, _extreme_finished),
    Ends: _ENTRIES,
    Push: _ENTRIES,
    AddToSet: _ENTRIES,
}
