"""`$all`, `$in` and `$nin` of many values: what few of them mean, and no more work than values and items together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.language_strategies import VALUES
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query import match
from tidemark.shared.language.query.parse import parse_predicate
from tidemark.shared.model.values import Value

MANY = match._MANY


def holds(field: str, operator: str, wanted: list[Value], document: dict[str, Value]) -> bool:
    problems = Problems()
    tree: Any = {field: {operator: wanted}}
    predicate = parse_predicate(tree, "q", Scope(problems))
    problems.check()
    assert predicate is not None
    return match.matches(predicate, Environment(root=document))


FEW = st.sampled_from([None, 0, 1.0, True, "x", "y", [], [1], [None], 2, 3])
"""Values that a test and a document are likely to share."""


@given(
    wanted=st.lists(FEW, min_size=1, max_size=5),
    items=st.lists(FEW, max_size=4),
    others=st.lists(VALUES, min_size=MANY, max_size=MANY),
    nested=st.booleans(),
)
def test_many_values_mean_what_few_mean(
    wanted: list[Value], items: list[Value], others: list[Value], *, nested: bool
) -> None:
    """A test of few values holds iff that of the same values, repeated until they are many, does; at any field and in any array."""
    value = [*items, *others]
    document: dict[str, Value] = {"a": [{"b": value}, {"b": others}, {}, 7]} if nested else {"a": value}
    field = "a.b" if nested else "a"
    repeated = wanted * MANY
    for operator in ("$all", "$in", "$nin"):
        assert holds(field, operator, repeated, document) == holds(field, operator, wanted, document)
        alone: dict[str, Value] = {"a": items[0]} if items else {}
        assert holds(field, operator, repeated, alone) == holds(field, operator, wanted, alone)
        assert holds("a.0", operator, repeated, document) == holds("a.0", operator, wanted, document)


@pytest.mark.parametrize("operator", ["$all", "$in", "$nin"])
def test_each_value_and_each_item_is_looked_at_once(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not each beside each: keys are made of as many values as there are on both sides, and next to nothing is compared."""
    n, counts = 500, {"canonical_key": 0, "equal": 0}

    def counted(name: str) -> None:
        function = getattr(match, name)

        def call(*values: Value) -> Any:
            counts[name] += 1
            return function(*values)

        monkeypatch.setattr(match, name, call)

    counted("canonical_key")
    counted("equal")
    items = [f"v{i}" for i in range(n)]
    wanted = items[::-1] if operator == "$all" else [f"w{i}" for i in range(n)]
    assert holds("a", operator, wanted, {"a": items}) == (operator != "$in")
    assert counts["canonical_key"] <= 2 * n + MANY
    assert counts["equal"] <= MANY


def test_null_is_missing_among_many() -> None:
    """As among few: a document without the field has null there, and in an array only null itself counts."""
    wanted: list[Value] = [None] * MANY
    assert holds("a", "$all", wanted, {})
    assert holds("a", "$in", wanted, {})
    assert not holds("a", "$nin", wanted, {})
    assert not holds("a", "$all", wanted, {"a": [1] * MANY})
    assert holds("a", "$all", wanted, {"a": [*range(MANY), None]})
