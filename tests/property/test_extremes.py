"""`$minN`, `$maxN`, `$topN` and `$bottomN`, a value at a time: what all values together give, for a few comparisons a value."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.shared.language.accumulators import extremes
from tidemark.shared.language.accumulators.extremes import Extremes, Top
from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.values import encode_value
from tidemark.shared.language.values.order import sort_key

VALUES = st.one_of(
    st.integers(-9, 9), st.floats(-9, 9).map(round).map(float), st.sampled_from(["", "a", "b", True, [1], {"a": 1}])
)
KEYS = (SortKey(("a",), descending=True), SortKey(("b",), descending=False))


@given(st.lists(VALUES, max_size=40), st.integers(1, 20), st.booleans())
def test_the_least_and_greatest_are_those_of_all(values: list[Any], n: int, greatest: bool) -> None:
    """Numbers of two types that are equal stand in one order."""
    of = Extremes(n, greatest=greatest, alone=False)
    state: list[Any] = []
    for at, value in enumerate(values):
        state = of.add(state, value, (0, 0, at))
    assert [encode_value(v) for v in of.finish(state)] == [
        encode_value(v) for v in of.finish(of.merge([], list(values)))
    ]


@given(st.lists(st.tuples(st.integers(0, 3), VALUES), max_size=40), st.integers(1, 20), st.booleans())
def test_the_first_and_last_rows_are_those_of_all(rows: list[tuple[int, Any]], n: int, bottom: bool) -> None:
    """In the order of the sort, then in that of the rows."""
    of = Top(n, KEYS, bottom=bottom, alone=False)
    state: list[Any] = []
    alone: list[Any] = []
    for at, values in enumerate(rows):
        state = of.add(state, [list(values), at], (0, 0, at))
        alone += of.add([], [list(values), at], (0, 0, at))
    assert of.finish(state) == of.finish(of.merge([], alone))


@pytest.mark.parametrize("greatest", [False, True])
def test_a_value_is_compared_with_few_of_many(monkeypatch: pytest.MonkeyPatch, greatest: bool) -> None:
    """The values that are kept are not sorted anew for each that comes."""
    of, keys = Extremes(1_000, greatest=greatest, alone=False), 0

    def counted(value: Any) -> Any:
        nonlocal keys
        keys += 1
        return sort_key(value)

    state = of.merge([], list(range(0, 4_000, 2)))
    monkeypatch.setattr(extremes, "sort_key", counted)
    of.add(state, 999 if not greatest else 3_001, (0, 0, 0))
    assert len(state) == 1_000
    assert keys < 30
