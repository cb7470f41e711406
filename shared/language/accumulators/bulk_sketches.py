"""`$percentile`, `$median` and `$approxCountDistinct` of many groups at once (`sketches`).

A level is left where the union has too many buckets for it, so the level of a group follows from all its numbers; a hash is made once for
each different value of all groups.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.shared.compiled import tags, values
from tidemark.shared.compiled.documents import buffers
from tidemark.shared.language.accumulators.bulk_base import (
    NULL,
    Form,
    Given,
    Int64s,
    Sure,
    behind,
    groups_of,
    lists,
    numbered,
    parts_of,
    runs_of,
    told_apart,
    tuples,
)
from tidemark.shared.language.accumulators.sketches import (
    EXACT_MAX,
    LEVELS,
    REGISTERS,
    REST_BITS,
    REST_MASK,
    ApproxCountDistinct,
    Percentiles,
    digest,
    estimate,
)
from tidemark.shared.language.values.codec import decode_value, encode_value
from tidemark.shared.language.values.ranks import rank_of_bits
from tidemark.shared.language.values.types import is_number
from tidemark.shared.model.values import Binary

_SHIFTS: Final = np.array([shift for shift, _ in LEVELS])
_Doubles = npt.NDArray[np.float64]
_Hashes = npt.NDArray[np.uint64]


# --- quantiles --------------------------------------------------------------------------------------------------------


def _doubles(given: Given) -> tuple[Int64s, _Doubles]:
    """(the rows with numbers but NaN, these as doubles)."""
    kinds, numbers = given.tagged.tags, given.tagged.numbers
    found = np.where(kinds == tags.DOUBLE, numbers.view(np.float64), np.nan)
    whole = (kinds == tags.INT) | (kinds == tags.LONG)
    found[whole] = numbers[whole].astype(np.float64)
    odd = np.flatnonzero(kinds == tags.OTHER)
    if len(odd):
        told = given.cells.take(pa.array(odd)).dictionary_encode()
        decoded = [decode_value(cell) for cell in told.dictionary.to_pylist()]
        as_doubles = np.array([float(value) if is_number(value) else np.nan for value in decoded])
        found[odd] = as_doubles[told.indices.to_numpy()]
    rows = np.flatnonzero(~np.isnan(found))
    return rows, found[rows] + 0.0


def _quantiles(_: Percentiles, given: Given) -> Sure:
    rows, doubles = _doubles(given)
    count = len(given.bounds) - 1
    return _buckets(given.groups[rows], np.ones(len(rows), np.int64), doubles, np.zeros(count, np.int64)), None


def _quantiles_merged(_: Percentiles, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    levels, counts, weights, least = _unpacked(cells)
    groups = np.repeat(groups_of(bounds), counts)
    return _buckets(groups, weights, least, np.maximum.reduceat(levels, bounds[:-1])), None


def _buckets(groups: Int64s, weights: Int64s, doubles: _Doubles, levels: Int64s) -> pa.BinaryArray:
    """States of numbers that count so often, at these levels of the groups or coarser ones; buckets as their first numbers stand."""
    places = rank_of_bits(doubles.view(np.int64))
    rows = np.lexsort((places, groups))
    sorted_groups, sorted_places = groups[rows], places[rows]
    for level, (_, most) in enumerate(LEVELS[:-1]):
        starts = runs_of(sorted_groups, sorted_places >> LEVELS[level][0])
        levels = levels + ((levels == level) & (np.bincount(sorted_groups[starts], minlength=len(levels)) > most))
    starts = runs_of(sorted_groups, sorted_places >> _SHIFTS[levels[sorted_groups]])
    if not len(starts):
        return tuples(numbered(levels), lists(np.zeros(len(levels), np.int64), pa.array([], pa.binary())))
    order = np.lexsort((np.minimum.reduceat(rows, starts), sorted_groups[starts]))
    counts, least = np.add.reduceat(weights[rows], starts)[order], doubles[rows[starts]][order]
    pairs = tuples(numbered(counts, tags.LONG), numbered(least.view(np.int64), tags.DOUBLE))
    return tuples(numbered(levels), lists(np.bincount(sorted_groups[starts], minlength=len(levels)), pairs))


def _unpacked(cells: pa.BinaryArray) -> tuple[Int64s, Int64s, Int64s, _Doubles]:
    """(levels, number of buckets by state; how often each bucket counts, its least number)."""
    levels, buckets = parts_of(cells, 2)
    counts, pairs = values.items(buckets)
    weights, least = (values.read(part).numbers for part in parts_of(pairs, 2))
    return values.read(levels).numbers, counts, weights, least.view(np.float64)


def _quantiles_finished(accumulator: Percentiles, cells: pa.BinaryArray) -> Sure:
    _, counts, weights, least = _unpacked(cells)
    states = np.repeat(np.arange(len(cells)), counts)
    order = np.lexsort((least, states))
    ends, seen = np.cumsum(counts), np.concatenate(([0], np.cumsum(weights[order])))
    begins = ends - counts
    totals = seen[ends] - seen[begins]
    points = []
    for p in accumulator.points:
        ranks = np.maximum(1, np.ceil(p * totals)).astype(np.int64)
        at = np.minimum(np.searchsorted(seen, seen[begins] + ranks) - 1, ends - 1)
        found = np.where(totals > 0, np.append(least[order], 0.0)[np.where(totals > 0, at, 0)], 0.0)
        points.append(
            pc.if_else(pa.array(totals > 0), numbered(found.view(np.int64), tags.DOUBLE), pa.scalar(NULL, pa.binary()))
        )
    return points[0] if accumulator.alone else tuples(*points), None


# --- distinct counts --------------------------------------------------------------------------------------------------


def _distinct(_: ApproxCountDistinct, given: Given) -> Sure:
    there = given.cells.is_valid().to_numpy(zero_copy_only=False)
    told = given.cells.filter(pa.array(there)).dictionary_encode()
    keys = told_apart(told.dictionary, lasting=True).to_pylist()
    hashes = np.frombuffer(b"".join(map(digest, keys)), ">u8").astype(np.uint64)
    count = len(given.bounds) - 1
    return _hashed(given.groups[there], hashes[told.indices.to_numpy()], np.empty(0, np.int64), (), count), None


def _distinct_merged(_: ApproxCountDistinct, cells: pa.BinaryArray, bounds: Int64s) -> Sure:
    counts, hashes, spilled, registers = _contents(cells)
    groups = groups_of(bounds)
    return _hashed(np.repeat(groups, counts), hashes, groups[spilled], registers, len(bounds) - 1), None


def _hashed(groups: Int64s, hashes: _Hashes, spilled: Int64s, registers: Any, count: int) -> pa.BinaryArray:
    """States of hashes and, of some groups, of registers."""
    order = np.lexsort((hashes, groups))
    groups, hashes = groups[order], hashes[order]
    starts = runs_of(groups, hashes)
    groups, hashes = groups[starts], hashes[starts]
    counts = np.bincount(groups, minlength=count)
    many = counts > EXACT_MAX
    many[spilled] = True
    estimated = []
    for group in np.flatnonzero(many).tolist():
        found = np.zeros(REGISTERS, np.uint8)
        for at in np.flatnonzero(spilled == group).tolist():
            np.maximum(found, registers[at], out=found)
        begin, end = np.searchsorted(groups, [group, group + 1])
        np.maximum.at(found, *_in_registers(hashes[begin:end]))
        estimated.append(encode_value(Binary(found.tobytes(), 1)))
    kept = ~many[groups]
    small = _packed(counts[~many], hashes[kept])
    places = np.empty(count, np.int64)
    places[~many], places[many] = np.arange(len(small)), len(small) + np.arange(len(estimated))
    return pa.concat_arrays([small, pa.array(estimated, pa.binary())]).take(pa.array(places))


def _in_registers(hashes: _Hashes) -> tuple[Int64s, npt.NDArray[np.uint8]]:
    """(the register, what it is at least) of each hash."""
    index, rest = hashes >> np.uint64(REST_BITS), hashes & np.uint64(REST_MASK)
    return index.astype(np.int64), (REST_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)


def _packed(counts: Int64s, hashes: _Hashes) -> pa.BinaryArray:
    """States of so many hashes each."""
    bounds = np.concatenate(([0], 8 * np.cumsum(counts)))
    bodies = values.binary_of(bounds, hashes.astype(">u8").view(np.uint8), None)
    different, at = np.unique(counts, return_inverse=True)
    heads = [encode_value(Binary(bytes(8 * int(count)), 0))[: -8 * int(count) or None] for count in different]
    return pc.binary_join_element_wise(pa.array(heads, pa.binary()).take(pa.array(at)), bodies, b"")


def _contents(cells: pa.BinaryArray) -> tuple[Int64s, _Hashes, Int64s, list[npt.NDArray[np.uint8]]]:
    """(number of hashes by state, all of them; the states that have registers, these)."""
    text, bounds = buffers(cells)
    begins = bounds[:-1] + np.where(text[bounds[:-1]] == _SHORT, 2, 3) + 1  # behind the codec's tag
    of_registers = text[begins] == 1
    spilled = np.flatnonzero(of_registers)
    registers = [text[begins[at] + 1 : bounds[at + 1]] for at in spilled.tolist()]
    counts = np.where(of_registers, 0, (bounds[1:] - begins - 1) // 8)
    hashed = cells.filter(pa.array(~of_registers))
    flat, inner = buffers(behind(hashed, (begins + 1 - bounds[:-1])[~of_registers]))
    return counts, flat[inner[0] : inner[-1]].view(">u8").astype(np.uint64), spilled, registers


_SHORT: Final = 0xC4
"""First byte of binary of less than 256 bytes; the longer ones here have 3 bytes of header."""


def _distinct_finished(_: ApproxCountDistinct, cells: pa.BinaryArray) -> Sure:
    counts, _hashes, spilled, registers = _contents(cells)
    for at, found in zip(spilled.tolist(), registers, strict=True):
        counts[at] = estimate(np.bincount(found, minlength=65).tolist())
    return numbered(counts, tags.LONG), None


SKETCHES: Final[Mapping[type, Form]] = {
    Percentiles: Form(_quantiles, _quantiles_merged, _quantiles_finished),
    ApproxCountDistinct: Form(_distinct, _distinct_merged, _distinct_finished),
}
