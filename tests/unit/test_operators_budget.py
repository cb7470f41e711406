"""The budget of work holds where an expression is a column and its parts are interpreted."""

from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from tests.harness.drawn import parse_drawn
from tidemark.shared.language.expressions.errors import SIZE
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import OPERATORS
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.stages import Stateless
from tidemark.shared.operators import frame
from tidemark.shared.operators.base import TS
from tidemark.shared.operators.batches import batch_of, documents_of, with_column
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.frame import Cells, Frame
from tidemark.shared.operators.program import through

PARTS = 300
READ = {"$ne": [{"$type": {"$setEquals": ["$a", "$a"]}}, "zz"]}
ROWS = [{"a": list(range(100_000))}, {"a": [1]}]


def computed(tree: Any) -> Cells:
    problems = Problems()
    expr = parse_expression(tree, "e", Scope(problems))
    problems.check()
    return Frame(batch_of(ROWS), None).computed(expr)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the arrays that $setEquals went through."""
    found: list[int] = []
    before = OPERATORS["$setEquals"]

    def counted(*args: Any) -> Any:
        found.append(len(args[0]))
        return len(args) == 2

    monkeypatch.setitem(OPERATORS, "$setEquals", replace(before, function=counted))
    return found


def test_interpreted_parts_of_a_row_share_one_budget(calls: list[int]) -> None:
    """Many parts that go through a long array end by the budget, once for the parts and once for the whole; the other row has its value."""
    found = computed({"$and": [READ] * PARTS})
    assert {row: error.code for row, error in found.errors.items()} == {0: SIZE}
    assert found.values()[1] is True
    assert calls.count(100_000) < PARTS


@pytest.mark.parametrize(
    "stage",
    [
        {"$addFields": {"items.text": "$text"}},
        {"$addFields": {"items": {"deep": {"text": ["$text"]}}}},
        {"$project": {"items": {"text": "$text"}}},
    ],
)
def test_what_is_written_into_each_item_of_an_array_takes_of_the_budget(stage: dict[str, Any]) -> None:
    """A text of 10 kB in each of 20,000 items would be 200 MB; the other row goes on."""
    rows: list[dict[str, Any]] = [{"items": [{}] * 20_000, "text": "x" * 10_000}, {"items": [{}, 1], "text": "y"}]
    (parsed,) = parse_drawn({"pipeline": [{"$source": {"connectionName": "c", "topic": "t"}}, stage]}).pipeline[1:]
    staged = through([cast("Stateless", parsed)], with_column(batch_of(rows), TS, pa.array([1, 2])), NOWHERE)
    assert [len(document["items"]) for document in documents_of(staged.batch)] == [2]
    (letter,) = (document for out in staged.letters for document in documents_of(out.batch))
    assert letter["errInfo"]["code"] == SIZE


def test_parts_that_do_not_count_spend_nothing_of_the_whole(calls: list[int]) -> None:
    """Behind the parts' budget the interpreter decides, and passes over what it need not know."""
    found = computed({"$and": [{"$eq": [{"$size": "$a"}, 1]}, *[READ] * PARTS]})
    assert not found.errors
    assert found.values() == [False, True]
    assert calls.count(100_000) < PARTS


def test_rows_behind_their_budget_are_not_read_again(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts that are left do not make the long row's document, which takes as long as going through it."""
    made: list[int] = []
    whole = frame.partial_documents

    def counted(batch: Any, names: Any) -> Any:
        made.append(batch.num_rows)
        return whole(batch, names)

    monkeypatch.setattr(frame, "partial_documents", counted)
    computed({"$and": [READ] * PARTS})
    assert made.count(len(ROWS)) < PARTS
