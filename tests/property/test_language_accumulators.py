"""Accumulators do not notice how their input was ordered, split, stored and merged (A1, A2)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.language.accumulators.parse import ACCUMULATOR_NAMES, parse_accumulator
from shared.language.accumulators.table import accumulator_input, implementation
from shared.language.expressions.environment import Environment
from shared.language.expressions.scope import Scope
from shared.language.problems import Problems
from shared.language.values import encode_value, sort_key
from tests.property.language_strategies import NUMBERS, VALUES

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


def _documents_only(name: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if name != "$mergeObjects":
        return rows
    return [row for row in rows if type(row.get("v")) in (dict, type(None))]


@pytest.mark.parametrize("name", [*ACCUMULATOR_NAMES, *_N_BY_KEY])
@settings(max_examples=60)
@given(rows=ROWS, random=st.randoms(use_true_random=False), parts=st.integers(1, 4))
def test_order_split_and_storage_do_not_show(name: str, rows: list[dict[str, Any]], random: Any, parts: int) -> None:
    """Any order, any split into stored partials and any order of merging finish as one pass in order does."""
    accumulator = _accumulator(name)
    how = implementation(accumulator)
    keyed = [(row, (i // 2, i % 2, i)) for i, row in enumerate(_documents_only(name, rows))]
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
