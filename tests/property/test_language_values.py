"""Promises of the value model for all values: codec, extended JSON, order, keys, exact totals."""

import operator
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.language_strategies import DOCUMENTS, NUMBERS, VALUES
from tidemark.shared.compiled import values as compiled_values
from tidemark.shared.compiled.ordered import DEPTH_MAX, ordered
from tidemark.shared.language.accumulators.extremes import sort_values
from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.sorting import key_of
from tidemark.shared.language.values import (
    canonical_key,
    compare,
    decode_doc,
    decode_own_doc,
    decode_value,
    encode_doc,
    encode_value,
    equal,
    parse_json,
    render_json,
    sort_key,
    type_name,
)
from tidemark.shared.language.values.ranks import are_empty, counted, order_of, sort_order, total_order
from tidemark.shared.language.values.totals import Deviation, Total
from tidemark.shared.model.values import MISSING, Long, long


def identical(a: Any, b: Any) -> bool:
    """The same type, sign of zero, digits and order of fields: stricter than equal."""
    if type_name(a) != type_name(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, Long | int) and isinstance(b, int):
        return int(a) == int(b)
    return type(a) is type(b) and repr(a) == repr(b)


@given(VALUES)
def test_codec_returns_every_value_as_it_was(value: Any) -> None:
    """The compact form comes back identical, type and all."""
    assert identical(decode_value(encode_value(value)), value)


@given(DOCUMENTS)
def test_codec_returns_every_document_as_it_was(document: dict[str, Any]) -> None:
    """Documents come back with their fields in order."""
    assert identical(decode_doc(encode_doc(document)), document)
    assert identical(decode_own_doc(encode_doc(document)), document)


@given(VALUES)
def test_canonical_extended_json_returns_every_value_as_it_was(value: Any) -> None:
    """Canonical extended JSON keeps every type (signs of NaN aside)."""
    assert identical(parse_json(render_json(value, canonical=True)), value)


@given(VALUES)
def test_relaxed_extended_json_keeps_what_is_equal(value: Any) -> None:
    """Relaxed extended JSON gives an equal value: it may forget which numeric type it was."""
    assert equal(parse_json(render_json(value)), value)


@given(VALUES, VALUES)
def test_equal_values_have_equal_keys_and_others_do_not(a: Any, b: Any) -> None:
    """K1: canonical bytes agree exactly where the values are equal."""
    assert (canonical_key(a) == canonical_key(b)) == equal(a, b)


@given(NUMBERS, NUMBERS)
def test_equal_numbers_have_equal_keys_and_others_do_not(a: Any, b: Any) -> None:
    """K1 for numbers of mixed types, which collide more often than values at large."""
    assert (canonical_key(a) == canonical_key(b)) == equal(a, b)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.floats(-100, 100).map(lambda x: round(x, 3)))
def test_a_double_has_the_key_of_its_exact_decimal(number: float) -> None:
    """All its digits, whatever its size: the keys lie in stores."""
    assert canonical_key(number) == canonical_key(Decimal(number))


@given(VALUES, VALUES, VALUES)
def test_order_is_total(a: Any, b: Any, c: Any) -> None:
    """The order is antisymmetric and transitive, and agrees with the sort keys."""
    assert compare(a, b) == -compare(b, a)
    ordered = sorted([a, b, c], key=sort_key)
    assert compare(ordered[0], ordered[1]) <= 0
    assert compare(ordered[1], ordered[2]) <= 0
    assert compare(ordered[0], ordered[2]) <= 0


@given(VALUES)
def test_missing_is_below_all_but_min_key(value: Any) -> None:
    """Missing stands below null and above MinKey."""
    assert compare(MISSING, value) == (1 if type_name(value) == "minKey" else -1)


def _totals(numbers: list[Any], cut: int) -> list[str]:
    left, right = Total(), Total()
    spread_left, spread_right = Deviation(), Deviation()
    for i, number in enumerate(numbers):
        (left if i < cut else right).add(number)
        (spread_left if i < cut else spread_right).add(number)
    left.merge(right)
    spread_left.merge(spread_right)
    return [repr(left.sum()), repr(left.average()), repr(spread_left.population()), repr(spread_left.sample())]


@given(st.lists(NUMBERS, max_size=8), st.randoms(use_true_random=False), st.integers(0, 8))
def test_totals_do_not_depend_on_order_or_split(numbers: list[Any], random: Any, cut: int) -> None:
    """T1: sums, averages and deviations are functions of the multiset, to the last bit."""
    shuffled = list(numbers)
    random.shuffle(shuffled)
    assert _totals(shuffled, cut) == _totals(numbers, len(numbers))


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_totals_of_doubles_do_not_depend_on_order_or_split(numbers: list[Any], random: Any, cut: int) -> None:
    """T1 where it is hardest: doubles alone, whose running sums round."""
    shuffled = list(numbers)
    random.shuffle(shuffled)
    assert _totals(shuffled, cut) == _totals(numbers, len(numbers))


@given(
    st.lists(NUMBERS | VALUES | st.sampled_from([None, 0.0, -0.0, 2**53 + 1, float(2**53), float("nan")]), max_size=12)
)
def test_numbers_of_a_column_stand_in_the_order_of_its_values(values: list[Any]) -> None:
    """Two cells compare as their values do, or the column says that it cannot tell."""
    found = order_of(compiled_values.read(pa.array([encode_value(value) for value in values], pa.binary())))
    if found is not None:
        told = list(zip(*(part.tolist() for part in found), strict=True))
        keys = [sort_key(value) for value in values]
        assert all((a < b) == (x < y) for a, x in zip(told, keys, strict=True) for b, y in zip(told, keys, strict=True))


_CLOSE: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0.0, -0.0, 2**53 + 1, float(2**53), long(2**63 - 1), 2.0**63, long(-(2**63)), float("nan"), float("-inf"),
     "", "a", "a\0", "a\0b", "\uffff", "\U00010000", [], {}, [None], [[]], {"": None}, {"a": 1}, {"a\0": 1}, {"a": 1.0, "b": []}]
)  # fmt: skip
"""Values between which little lies."""


@given(st.lists(NUMBERS | VALUES | _CLOSE | st.lists(_CLOSE, max_size=3), max_size=12))
def test_bytes_and_numbers_of_values_of_any_types_stand_in_their_order(values: list[Any]) -> None:
    """Two values compare as their bytes do, where these are sure, and always as their numbers do; none is below all."""
    cells = pa.array([*map(encode_value, values), None], pa.binary())
    texts, sure = ordered(cells)
    keys = [*map(sort_key, values), (-1,)]
    known = [(bytes(text), key) for text, key, s in zip(texts.to_pylist(), keys, sure, strict=True) if s]
    assert all((a < b) == (x < y) and (a == b) == (x == y) for a, x in known for b, y in known)
    numbers = zip(*(part.tolist() for part in total_order(cells, compiled_values.read(cells))), strict=True)
    told = list(zip(numbers, [key if key[0] >= 0 else sort_key(None) for key in keys], strict=True))
    told = [(number, key) for number, key in told if key[0] > 0]  # a MinKey stands where null does
    assert all((a < b) == (x < y) and (a == b) == (x == y) for a, x in told for b, y in told)


@given(st.lists(st.lists(_CLOSE | NUMBERS, max_size=3) | NUMBERS | VALUES | _CLOSE, max_size=8), st.booleans())
def test_an_array_counts_in_a_sort_by_one_of_its_items(values: list[Any], descending: bool) -> None:
    """The item that counts is the one that documents tell, and rows stand as `$sort` has them (a MinKey where null does)."""
    key = SortKey(("k",), descending)
    cells = pa.array([encode_value(value) for value in values], pa.binary())
    told = counted(cells, greatest=descending)
    assert told.to_pylist() == [encode_value(sort_values({"k": value}, (key,))[0]) for value in values]
    order = list(
        zip(*(part.tolist() for part in sort_order(told, are_empty(cells), descending=descending)), strict=True)
    )
    keys = [key_of({"k": value}, key) for value in values]
    plain = [(place, found) for place, found in zip(order, keys, strict=True) if found[0] >= 0]
    before = operator.gt if descending else operator.lt
    assert all((a < b) == before(x, y) for a, x in plain for b, y in plain)


def test_values_that_lie_too_deep_in_each_other_are_not_sure() -> None:
    """One level more than there is room for is said, not written."""
    within: Any = None
    for _ in range(DEPTH_MAX):
        within = [within]
    _, sure = ordered(pa.array([encode_value(within), encode_value([within]), encode_value({"a": [within]})]))
    assert sure.tolist() == [True, False, False]


def test_values_for_whose_bytes_there_is_no_room_are_not_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are put into order by themselves, and those in front of them by their bytes."""
    cells = pa.array([encode_value([row % 7, row]) for row in range(50)], pa.binary())
    wanted = np.lexsort(total_order(cells, compiled_values.read(cells))[::-1])
    monkeypatch.setattr(sys.modules[ordered.__module__], "BYTES_MAX", 600)
    found, sure = ordered(cells)
    assert found.nbytes <= 600 + 4 * 51
    assert 0 < np.count_nonzero(sure) < 50
    assert np.lexsort(total_order(cells, compiled_values.read(cells))[::-1]).tolist() == wanted.tolist()
