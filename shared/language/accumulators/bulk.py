"""States of many groups at once, encoded: with the result that `add`, `merge` and `finish`, one value after the other, would give (A1).

An accumulator has a form in columns here, or its values are added one by one. A form says of which groups it is not sure: those are added
one by one, too.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tidemark.shared.compiled import totals, values
from tidemark.shared.compiled.columns import with_rows
from tidemark.shared.language.accumulators.base import AnyImplementation
from tidemark.shared.language.accumulators.bulk_base import Bools, Form, Given, Int64s, Sure, groups_of, numbered
from tidemark.shared.language.accumulators.bulk_kept import KEPT
from tidemark.shared.language.accumulators.bulk_sketches import SKETCHES
from tidemark.shared.language.accumulators.extremes import CountedByKey
from tidemark.shared.language.accumulators.numbers import CountOf, DeviationOf, TotalOf
from tidemark.shared.language.values.codec import decode_value, encode_docs
from tidemark.shared.language.values.totals import Deviation, Total
from tidemark.shared.model.values import Binary


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
        asked = cells.take(pa.array(rows, pa.int64())).to_pylist()
        return encode_docs(accumulator.finish(accumulator.decode(cell)) for cell in asked)

    return _completed(found, len(cells), by_hand)


def _completed(found: Sure | None, count: int, by_hand: Callable[[Sequence[int]], Iterable[bytes]]) -> pa.BinaryArray:
    """The cells of a form, with those of which it is not sure made one by one."""
    if found is None:
        return pa.array(list(by_hand(range(count))), pa.binary())
    cells, sure = found
    if sure is None or bool(sure.all()):
        return cells
    rows = np.flatnonzero(~sure)
    return with_rows(cells, rows, pa.array(list(by_hand(rows.tolist())), pa.binary()))


def _added(accumulator: AnyImplementation, given: Given, group: int) -> bytes:
    """The state of one group, its values added one by one."""
    begin, end = int(given.bounds[group]), int(given.bounds[group + 1])
    listed = given.listed(begin, end)
    state = accumulator.init()
    orders = zip(*(place[begin:end].tolist() for place in given.places), strict=True)
    for value, order in zip(listed, orders, strict=True):
        state = accumulator.add(state, value, order)
    return accumulator.encode(state)


# --- numbers ----------------------------------------------------------------------------------------------------------


def _total(_: object, given: Given) -> Sure:
    return totals.add(given.tagged, given.bounds, deviation=False)


def _total_finished(accumulator: TotalOf, cells: pa.BinaryArray) -> Sure:
    found, sure = totals.finish(cells, average=accumulator.rounds is Total.average)
    return values.write(found)[0], sure


def _deviation_finished(accumulator: DeviationOf, cells: pa.BinaryArray) -> Sure:
    found, sure = totals.deviations(cells, sample=accumulator.rounds is Deviation.sample)
    return values.write(found)[0], sure


def _counted(_: object, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    return numbered(np.add.reduceat(values.read(cells).numbers, bounds[:-1])), None


# --- an n of the key --------------------------------------------------------------------------------------------------

_SMALL: Final = 64
"""Fewer rows of an n are faster one by one."""


def _each_n(
    ns: Int64s, bounds: Int64s, call: Callable[[int, Int64s, Int64s], Iterable[bytes]]
) -> tuple[pa.BinaryArray, Bools]:
    """What a call gives for the groups of each n, by its rows and their bounds; not sure where a group has several, or an n few rows."""
    first, sizes, groups = ns[bounds[:-1]], np.diff(bounds), groups_of(bounds)
    alike = (np.minimum.reduceat(ns, bounds[:-1]) == np.maximum.reduceat(ns, bounds[:-1])) & (first > 0)
    found, sure = [b""] * len(first), np.zeros(len(first), np.bool_)
    for n in np.unique(first[alike]).tolist():
        chosen = alike & (first == n)
        rows = np.flatnonzero(chosen[groups])
        if len(rows) >= _SMALL:
            sure |= chosen
            cells = call(n, rows, np.concatenate(([0], np.cumsum(sizes[chosen]))))
            for group, cell in zip(np.flatnonzero(chosen).tolist(), cells, strict=True):
                found[group] = cell
    return pa.array(found, pa.binary()), sure


def _with_n(n: int, found: pa.BinaryArray) -> list[bytes]:
    return encode_docs([n, Binary(cell)] for cell in found.to_pylist())  # type: ignore[misc]


def _without_n(cells: pa.BinaryArray) -> tuple[Int64s, pa.BinaryArray]:
    """(the n of states, 0 of one without; the states of the accumulators with it)."""
    decoded = [decode_value(cell) or (0, b"") for cell in cells.to_pylist()]
    return np.array([n for n, _ in decoded]), pa.array([bytes(state) for _, state in decoded], pa.binary())


def _of_key(accumulator: CountedByKey, given: Given) -> Sure:
    counts, items = values.items(given.cells)
    at = np.cumsum(counts) - counts
    inner = items.take(pa.array(at + 1, mask=counts == 1))

    def add(n: int, rows: Int64s, bounds: Int64s) -> list[bytes]:
        own = Given(inner.take(pa.array(rows)), bounds, [place[rows] for place in given.places])
        return _with_n(n, states(accumulator.of(n), own))

    return _each_n(values.read(items.take(pa.array(at))).numbers, given.bounds, add)


def _of_key_merged(accumulator: CountedByKey, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    ns, inner = _without_n(cells)
    return _each_n(
        ns, bounds, lambda n, rows, of: _with_n(n, merged(accumulator.of(n), inner.take(pa.array(rows)), of))
    )


def _of_key_finished(accumulator: CountedByKey, cells: pa.BinaryArray) -> Sure:
    ns, inner = _without_n(cells)
    one_each = np.arange(len(cells) + 1)
    return _each_n(ns, one_each, lambda n, rows, _: finished(accumulator.of(n), inner.take(pa.array(rows))).to_pylist())


_FORMS: Final[Mapping[type, Form]] = {
    CountOf: Form(lambda _, given: (numbered(np.diff(given.bounds)), None), _counted, lambda _, cells: (cells, None)),
    TotalOf: Form(_total, lambda _, cells, bounds: totals.merge(cells, bounds, deviation=False), _total_finished),
    DeviationOf: Form(
        lambda _, given: totals.add(given.tagged, given.bounds, deviation=True),
        lambda _, cells, bounds: totals.merge(cells, bounds, deviation=True),
        _deviation_finished,
    ),
    CountedByKey: Form(_of_key, _of_key_merged, _of_key_finished),
    **KEPT,
    **SKETCHES,
}
