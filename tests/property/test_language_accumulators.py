"""Accumulators do not notice how their input was ordered, split, stored and merged (A1, A2)."""

import math
from decimal import Decimal
from itertools import pairwise
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.language_strategies import NUMBERS, VALUES
from tidemark.shared.compiled import keys
from tidemark.shared.language.accumulators import bulk, bulk_base, bulk_sketches, sketches
from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES, parse_accumulator
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.values import canonical_key, decode_value, encode_value, sort_key
from tidemark.shared.language.values.totals import Deviation, Total
from tidemark.shared.model.values import MIN_KEY, MISSING, Binary, Date, long

_ARGUMENTS: dict[str, Any] = {
    "$count": {},
    "$top": {"output": "$v", "sortBy": {"k": 1}},
    "$bottom": {"output": "$v", "sortBy": {"k": -1}},
    "$topN": {"output": "$v", "sortBy": {"k": -1, "v": 1}, "n": 2},
    "$bottomN": {"output": "$v", "sortBy": {"k": 1}, "n": 2},
    "$percentile": {"input": "$v", "p": [0.0, 0.3, 1.0], "method": "approximate"},
    "$median": {"input": "$v", "method": "approximate"},
    **{name: {"input": "$v", "n": 2} for name in ("$firstN", "$lastN", "$minN", "$maxN")},
}
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={"v": NUMBERS | VALUES, "k": st.integers(0, 2) | VALUES}), max_size=8
)


_BY_KEY = " by key"
_N_BY_KEY = [name + _BY_KEY for name, argument in _ARGUMENTS.items() if "n" in argument]


def _accumulator(name: str) -> Any:
    problems = Problems()
    op = name.removesuffix(_BY_KEY)
    argument = _ARGUMENTS.get(op, "$v")
    if op != name:
        argument = {**argument, "n": {"$add": [1, 1]}}
    found = parse_accumulator({op: argument}, "a", Scope(problems))
    problems.check()
    return found


def _stored(how: Any, state: Any) -> Any:
    return how.decode(how.encode(state))


def _taken(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that the accumulator takes."""
    if name in ("$concatArrays", "$setUnion"):
        return [row for row in rows if type(row.get("v", [])) is list]
    if name == "$mergeObjects":
        return [row for row in rows if type(row.get("v")) in (dict, type(None))]
    return rows


@pytest.mark.parametrize("name", [*ACCUMULATOR_NAMES, *_N_BY_KEY])
@settings(max_examples=60)
@given(rows=ROWS, random=st.randoms(use_true_random=False), parts=st.integers(1, 4))
def test_order_split_and_storage_do_not_show(name: str, rows: list[dict[str, Any]], random: Any, parts: int) -> None:
    """Any order, any split into stored partials and any order of merging finish as one pass in order does."""
    accumulator = _accumulator(name)
    how = implementation(accumulator)
    keyed = [(row, (i // 2, i % 2, i)) for i, row in enumerate(_taken(name, rows))]
    whole = how.init()
    for row, key in keyed:
        whole = how.add(whole, accumulator_input(accumulator, Environment(row)), key)
    wanted = encode_value([how.finish(whole)])

    random.shuffle(keyed)
    states = [how.init() for _ in range(parts)]
    for row, key in keyed:
        i = random.randrange(parts)
        states[i] = how.add(states[i], accumulator_input(accumulator, Environment(row)), key)
    random.shuffle(states)
    merged = _stored(how, states[0])
    for state in states[1:]:
        merged = _stored(how, how.merge(merged, _stored(how, state)))
    assert encode_value([how.finish(merged)]) == wanted


@given(st.lists(st.integers(0, 10**6) | st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_percentiles_of_few_numbers_are_exact(numbers: list[Any]) -> None:
    """While there are few distinct numbers, the percentiles 0 and 1 are the least and the greatest."""
    how = implementation(_accumulator("$percentile"))
    state = how.init()
    for number in numbers:
        state = how.add(state, number, (0, 0, 0))
    least = how.finish(state)[0]
    assert least == min(numbers, key=sort_key)
    assert how.finish(state)[2] == max(numbers)


_ALIKE = st.sampled_from(
    [
        st.integers(-5, 5),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(-(2**62), 2**62),
        st.integers(-9, 9).map(long),
        st.sampled_from([0.0, -0.0, 1.5, -2.5, 1e300, -1e-300]),
        st.floats(),
        st.sampled_from(["", "a", "b", "é"]),
        st.integers(-3, 3).map(Date),
        st.booleans(),
        st.sampled_from(
            [0, 0.0, -0.0, long(0), Decimal("0.00"), Decimal("-0"), math.nan, Decimal("NaN"), 0.5, Decimal("0.50")]
        ),
        st.sampled_from(
            [[], [1], [1.0], {"a": 1}, {"a": long(1)}, {"b": 0, "a": 1}, [[]], "", 2**53, 2.0**53, 2**53 + 1, MIN_KEY]
        ),
        NUMBERS | VALUES,
    ]
)
_COLUMNS = st.tuples(_ALIKE, st.booleans()).flatmap(
    lambda t: st.lists(t[0] | st.none() | st.just(MISSING) if t[1] else t[0], min_size=1, max_size=60)
)


def _encoded(values: list[Any]) -> pa.BinaryArray:
    return pa.array([None if value is MISSING else encode_value(value) for value in values], pa.binary())


@pytest.mark.parametrize("name", [*ACCUMULATOR_NAMES, *_N_BY_KEY])
@settings(max_examples=60)
@given(values=_COLUMNS, ties=st.integers(1, 4), cuts=st.lists(st.integers(1, 59), max_size=4),
       whole=st.lists(st.integers(1, 4), max_size=2))  # fmt: skip
@example(values=[Decimal("-0")], ties=1, cuts=[], whole=[])
@example(values=[Decimal(1), Decimal(-1), 0.5], ties=1, cuts=[2], whole=[1])
def test_values_in_bulk_are_values_one_by_one(
    name: str, values: list[Any], ties: int, cuts: list[int], whole: list[int]
) -> None:
    """Group by group the same states, byte for byte, merged and finished too, whatever types the values have."""
    accumulator = _accumulator(name)
    how = implementation(accumulator)
    rows = _taken(name, [{} if value is MISSING else {"v": value, "k": value} for value in values]) or [{}]
    inputs = [accumulator_input(accumulator, Environment(row)) for row in rows]
    bounds = sorted({0, len(inputs), *(cut for cut in cuts if cut < len(inputs))})
    orders = [(i // 3, 0, i // ties) for i in range(len(inputs))]
    places = [np.array(part) for part in zip(*orders, strict=True)]
    found = bulk.states(how, bulk_base.Given(_encoded(inputs), np.array(bounds), places))
    alone = [_alone(how, inputs, orders, begin, end) for begin, end in pairwise(bounds)]
    assert found.to_pylist() == list(map(how.encode, alone))
    assert _finished(how, found) == [encode_value(how.finish(state)) for state in alone]
    together = sorted({0, len(alone), *(place for place in whole if place < len(alone))})
    wanted = []
    for begin, end in pairwise(together):
        first, *others = found[begin:end].to_pylist()
        state = how.decode(first)
        for other in others:
            state = how.merge(state, how.decode(other))
        wanted.append(state)
    merged = bulk.merged(how, found, np.array(together))
    assert merged.to_pylist() == list(map(how.encode, wanted))
    assert _finished(how, merged) == [encode_value(how.finish(state)) for state in wanted]


_SMALL_LEVELS = tuple((shift, most) for (shift, _), most in zip(sketches.LEVELS, (4, 5, 5, 6, 6), strict=True))


@pytest.mark.parametrize("name", ["$percentile", "$approxCountDistinct"])
@settings(max_examples=150)
@given(
    parts=st.lists(
        st.lists(st.integers(-9, 9) | st.floats(-1e9, 1e9) | st.floats(1, 2), min_size=1, max_size=12),
        min_size=1,
        max_size=5,
    )
)
def test_sketches_in_bulk_grow_coarse_as_one_by_one(name: str, parts: list[list[Any]]) -> None:
    """Beyond the first level, and with registers; where states of several levels merge, the order of their buckets is left open."""
    how = implementation(_accumulator(name))
    flat, bounds = [value for part in parts for value in part], np.cumsum([0, *map(len, parts)])
    places = [np.zeros(len(flat), np.int64)] * 3
    with pytest.MonkeyPatch.context() as patched:
        for module in (sketches, bulk_sketches):
            patched.setattr(module, "LEVELS", _SMALL_LEVELS)
            patched.setattr(module, "EXACT_MAX", 4)
        found = bulk.states(how, bulk_base.Given(_encoded(flat), bounds, places))
        alone = [_alone(how, part, [(0, 0, 0)] * len(part), 0, len(part)) for part in parts]
        assert found.to_pylist() == list(map(how.encode, alone))
        first, *others = found.to_pylist()
        state = how.decode(first)
        for other in others:
            state = how.merge(state, how.decode(other))
        merged = bulk.merged(how, found, np.array([0, len(parts)]))
        assert how.decode(merged[0].as_py()) == state
        assert _finished(how, merged) == [encode_value(how.finish(state))]


def _alone(how: Any, values: list[Any], orders: list[Any], begin: int, end: int) -> Any:
    state = how.init()
    for value, order in zip(values[begin:end], orders[begin:end], strict=True):
        state = how.add(state, value, order)
    return state


def _finished(how: Any, states: pa.BinaryArray) -> list[bytes]:
    """As they are finished in columns; the states decode to the same."""
    found: list[bytes] = bulk.finished(how, states).to_pylist()
    assert found == [encode_value(how.finish(how.decode(state))) for state in states.to_pylist()]
    return found


@given(st.lists(VALUES | NUMBERS, min_size=1, max_size=20))
def test_canonical_bytes_of_encoded_values(values: list[Any]) -> None:
    """Where they are sure they are those of the values."""
    found, sure = keys.canonical(_encoded(values))
    told = zip(found.to_pylist(), values, sure, strict=True)
    assert all(bytes(cell) == canonical_key(value) for cell, value, s in told if s)


@given(count=st.integers(0, 2**40), wide=st.integers(0, 3), whole=st.integers(), units=st.integers(-(2**2200), 2**2200),
       decimal=st.decimals(allow_nan=False, places=3), special=st.sampled_from([0.0, float("inf"), float("-inf")]))  # fmt: skip
def test_a_total_is_stored_as_the_codec_stores_its_fields(
    count: int, wide: int, whole: int, units: int, decimal: Any, special: float
) -> None:
    """Byte for byte: states that were stored before are read, and what reads them with the codec does."""
    how = implementation(_accumulator("$sum"))
    state = Total(count, wide, whole, units, decimal, special)
    assert how.encode(state) == encode_value([long(count), wide, _digits(whole), _digits(units), decimal, special])
    assert how.decode(how.encode(state)) == state


@given(
    count=st.integers(0, 2**40),
    units=st.integers(-(2**2200), 2**2200),
    squares=st.integers(0, 2**4400),
    special=st.booleans(),
)
def test_a_deviation_is_stored_as_the_codec_stores_its_fields(
    count: int, units: int, squares: int, special: bool
) -> None:
    """The same."""
    how = implementation(_accumulator("$stdDevPop"))
    state = Deviation(count, units, squares, special)
    assert how.encode(state) == encode_value([long(count), _digits(units), _digits(squares), special])
    assert how.decode(how.encode(state)) == state


_NEAR = st.tuples(st.floats(-1e300, 1e300), st.lists(st.floats(-1e-9, 1e-9), min_size=1, max_size=4)).map(
    lambda drawn: [drawn[0] * (1 + part) for part in drawn[1]]
)


@pytest.mark.parametrize("name", ["$stdDevPop", "$stdDevSamp"])
@settings(max_examples=300)
@given(
    groups=st.lists(
        st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=5) | _NEAR, min_size=1, max_size=9
    )
)
@example(
    groups=[
        [],
        [0.1],
        [0.1] * 7,
        [5e-324, 0.0],
        [5e-324] * 3 + [1e-323],
        [1.7976931348623157e308, -1.7976931348623157e308],
    ]
)
@example(groups=[[1e-162, 3e-162], [2.2250738585072014e-308, -5e-324], [2.0**53, 1.0], [1e300, 1e-300, 1.0]])
def test_deviations_are_rounded_without_an_object_a_group(name: str, groups: list[list[float]]) -> None:
    """To the same double, the least and the largest included; the plain implementation is asked for none."""
    how = implementation(_accumulator(name))
    states = []
    for group in groups:
        states.append(Deviation())
        for value in group:
            states[-1].add(value)
    cells = pa.array([how.encode(state) for state in states], pa.binary())
    wanted = [encode_value(how.finish(state)) for state in states]
    with mock.patch.object(type(how), "decode", side_effect=AssertionError("an object for a group")):
        assert bulk.finished(how, cells).to_pylist() == wanted


def _digits(value: int) -> Binary:
    return Binary(value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


@pytest.mark.parametrize(
    ("name", "first", "second"), [("$setUnion", [1, 2], [2]), ("$mergeObjects", {"a": 1, "b": 2}, {"b": 3})]
)
def test_what_comes_of_one_record_stands_in_its_order(name: str, first: Any, second: Any) -> None:
    """Also where a later record with some of it was added, or merged, before (A1)."""
    how = implementation(_accumulator(name))
    late, early = how.add(how.init(), second, (1, 0, 0)), how.add(how.init(), first, (0, 0, 0))
    wanted = list(how.finish(how.add(how.add(how.init(), first, (0, 0, 0)), second, (1, 0, 0))))
    assert list(how.finish(how.merge(_stored(how, late), _stored(how, early)))) == wanted == list(first)
    assert list(how.finish(how.add(_stored(how, late), first, (0, 0, 0)))) == wanted
    states = pa.array([how.encode(late), how.encode(early)], pa.binary())
    (found,) = bulk.finished(how, bulk.merged(how, states, np.array([0, 2]))).to_pylist()
    assert list(decode_value(found)) == wanted
