"""A stage is added by its module and its line in a table: nothing else of the product knows the stages one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidemark
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import VALUE, ExpressionError
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kinds import PATH, Option, StageSpec, made_of
from tidemark.shared.language.schema_json import document_schema
from tidemark.shared.language.stages.base import Gathering, Outcome, Passed, Stateless, written
from tidemark.shared.language.stages.inner import GATHERING
from tidemark.shared.language.stages.table import STAGES
from tidemark.shared.language.stages.windows import INSIDE
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.stages import GATHERING as PROGRAMS_OF_WINDOWS
from tidemark.shared.operators.whole_windows import Windows

AT = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubled(Stateless):
    """A field of numbers twice as large; the stage says no more of itself than it must."""

    of: tuple[str, ...]

    def _apply(self, document: Document, env: Environment) -> Outcome:
        (name,) = self.of
        if type(document[name]) is not int:
            raise ExpressionError("no whole number", VALUE)
        return Passed(({**document, name: 2 * document[name]},))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversed(Gathering):
    """A window's documents, the last one first."""

    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """The last one first."""
        return list(documents[::-1])


def _reversed(tree: Any, path: str, scope: Scope) -> Reversed:
    assert tree == {}
    return Reversed(path=path)


def _reversed_rows(_: Reversed, found: Windows) -> tuple[pa.RecordBatch, list[Out]]:
    return found.ordered(np.lexsort((-found.places, found.runs))), []


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines in the tables."""
    double = made_of("Twice as much.", (Option("of", PATH, "the field", required=True),), Doubled)
    for table in (STAGES, INSIDE):
        monkeypatch.setitem(table, "$double", double)
    backwards = StageSpec("The last one first.", _reversed, {"type": "object"})
    for table in (GATHERING, INSIDE):
        monkeypatch.setitem(table, "$reverse", backwards)
    programs: dict[Any, Any] = PROGRAMS_OF_WINDOWS
    monkeypatch.setitem(programs, Reversed, _reversed_rows)


def document(*stages: dict[str, Any]) -> dict[str, Any]:
    """A pipeline over a caller's rows."""
    source = {"connectionName": "c", "topic": "t", "timeField": "$at", "schema": {"n": "int?", "at": "date"}}
    return {"pipeline": [{"$source": source}, *stages, {"$emit": {"connectionName": "c", "topic": "out"}}]}


def window(*stages: dict[str, Any]) -> dict[str, Any]:
    """A window with these stages."""
    return {"$tumblingWindow": {"interval": {"size": 1, "unit": "hour"}, "pipeline": list(stages)}}


def test_a_stateless_stage_runs_at_the_top_and_inside_windows() -> None:
    """On rows of a batch as on one document; a row on which it fails is a dead letter with the stage's place."""
    rows = [{"at": AT, "n": 1}, {"at": AT, "n": 20}, {"at": AT, "n": None}]
    group = {"$group": {"_id": None, "n": {"$sum": "$n"}}}
    top = tidemark.try_out(document({"$double": {"of": "n"}}, window(group)), rows)
    inside = tidemark.try_out(document(window({"$double": {"of": "n"}}, group)), rows)
    behind = tidemark.try_out(document(window({"$match": {"n": {"$gt": 0}}}, group, {"$double": {"of": "n"}})), rows)
    assert [found.documents for found in (top, inside, behind)] == [[{"_id": None, "n": 42}]] * 3
    assert [letter["errInfo"]["path"] for letter in top.dead_letters] == ["pipeline[1].$double"]
    assert [letter["errInfo"]["path"] for letter in inside.dead_letters] == [
        "pipeline[1].$tumblingWindow.pipeline[0].$double"
    ]


def test_it_is_explained_and_declared_to_editors_and_nothing_is_assumed_of_its_fields() -> None:
    """It may read and write any field; what nobody declares behind it travels untyped."""
    told = tidemark.explain(document({"$double": {"of": "n"}}, {"$addFields": {"m": {"$add": ["$n", 1]}}}))
    assert "pipeline[1].$double" in str(told)
    assert "$double" in document_schema()["$defs"]["stage"]["properties"]
    assert written([Doubled(path="p", of=("n",))]) is None


def test_an_error_in_it_is_told_as_of_every_stage() -> None:
    """With place, expectation and finding; and where it does not belong."""
    with pytest.raises(InvalidDocument, match=r"\$double needs of"):
        parse(document({"$double": {}}))
    with pytest.raises(InvalidDocument, match=r"\$reverse belongs inside the pipeline of a window"):
        parse(document({"$reverse": {}}))


def test_a_stage_that_gathers_runs_inside_windows() -> None:
    """In the order of the rows, and in front of a group, which sees what it gives."""
    rows = [{"at": AT, "n": n} for n in (1, 2, 3)]
    group = {"$group": {"_id": None, "ns": {"$push": "$n"}}}
    found = tidemark.try_out(document(window({"$reverse": {}}, group)), rows)
    assert found.documents == [{"_id": None, "ns": [3, 2, 1]}]
