"""Cases of the language: documents in, documents and dead letters out, or the words of an error.

`language/cases.jsonl` has one case a line. `stages` are applied to each document; `window` is the pipeline of one window that holds all
of them, in this order. Whole numbers and decimals must be equal as numbers, a double within 1e-9; outputs are compared as multisets.
"""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tidemark.shared.language.accumulators.parse import ACCUMULATOR_NAMES
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.forms import FORMS
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query.parse import QUERY_OPERATORS
from tidemark.shared.language.stages import (
    AddFields,
    Branch,
    Computed,
    Stateless,
    TumblingWindow,
)
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import from_json, is_number
from tidemark.shared.model.values import Document

CASES = [
    json.loads(line) for line in (Path(__file__).parent / "language" / "cases.jsonl").read_text("utf-8").splitlines()
]
_WINDOW = {"size": 1, "unit": "hour"}


def _same(wanted: Any, got: Any) -> bool:
    if is_number(wanted) and is_number(got):
        if float in (type(wanted), type(got)):
            a, b = float(wanted), float(got)
            return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
        return Decimal(wanted) == Decimal(got)
    if type(wanted) is not type(got):
        return False
    if isinstance(wanted, dict):
        return wanted.keys() == got.keys() and all(_same(wanted[k], got[k]) for k in wanted)
    if isinstance(wanted, list):
        return len(wanted) == len(got) and all(map(_same, wanted, got))
    return bool(wanted == got)


def _assert_multiset(wanted: list[Any], got: list[Any]) -> None:
    left = list(got)
    for item in wanted:
        found = next((i for i, other in enumerate(left) if _same(item, other)), None)
        assert found is not None, f"missing {item!r} in {left!r}"
        del left[found]
    assert not left, f"not expected: {left!r}"


def _through(stages: tuple[Stateless, ...], document: Document) -> Iterator[Document | Failure]:
    for outcome in apply_stages(stages, document, Environment(document)):
        if isinstance(outcome, Passed):
            yield from outcome.documents
        elif isinstance(outcome, Failure):
            yield outcome


def _in_window(window: TumblingWindow, documents: list[Document]) -> list[Document]:
    rows = documents
    for stage in window.pipeline:
        env = Environment({})
        if isinstance(stage, Stateless):
            rows = [out for row in rows for out in _through((stage,), row) if not isinstance(out, Failure)]
        else:
            rows = stage.gather(rows, env)
    return rows


@pytest.mark.parametrize("case", [c for c in CASES if "error" in c], ids=lambda c: str(c["name"]))
def test_error_says_place_and_names(case: dict[str, Any]) -> None:
    """A document with an error is refused, and the message has the place, what was found and what is accepted."""
    with pytest.raises(InvalidDocument) as refused:
        parse({"pipeline": case["pipeline"]})
    text = str(refused.value).lower()
    assert [word for word in case["error"] if word.lower() not in text] == [], text


@pytest.mark.parametrize("case", [c for c in CASES if "stages" in c], ids=lambda c: str(c["name"]))
def test_stages_give_what_is_expected(case: dict[str, Any]) -> None:
    """Stateless stages give the expected documents, and the expected dead letters."""
    source = {"$source": {"documents": case["documents"]}}
    stages: Any = parse({"pipeline": [source, *case["stages"]]}).pipeline[1:]
    outcomes = [out for tree in case["documents"] for out in _through(stages, from_json(tree))]
    _assert_multiset(from_json(case["expected"]), [out for out in outcomes if not isinstance(out, Failure)])
    if "letters" in case:
        _assert_multiset(from_json(case["letters"]), [out.document for out in outcomes if isinstance(out, Failure)])


def _unordered(document: Document, paths: list[str]) -> Document:
    return {k: sorted(v, key=repr) if k in paths else v for k, v in document.items()}


@pytest.mark.parametrize("case", [c for c in CASES if "window" in c], ids=lambda c: str(c["name"]))
def test_window_pipelines_give_what_is_expected(case: dict[str, Any]) -> None:
    """The pipeline of a window gives the expected documents of all that the window holds."""
    window = {"$tumblingWindow": {"interval": _WINDOW, "pipeline": case["window"]}}
    parsed = parse({"pipeline": [{"$source": {"documents": case["documents"]}}, window]}).pipeline[1]
    assert isinstance(parsed, TumblingWindow)
    paths = case.get("unordered", [])
    got = [_unordered(d, paths) for d in _in_window(parsed, from_json(case["documents"]))]
    _assert_multiset([_unordered(d, paths) for d in from_json(case["expected"])], got)


OPERATOR_CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "language" / "operators.jsonl").read_text("utf-8").splitlines()
]


def _one_stage(tree: dict[str, Any]) -> Any:
    return parse({"pipeline": [{"$source": {"documents": []}}, tree]}).pipeline[1]


@pytest.mark.parametrize("case", [c for c in OPERATOR_CASES if "expression" in c], ids=lambda c: str(c["expression"]))
def test_operator_gives_value_or_error(case: dict[str, Any]) -> None:
    """One operator on constants gives the expected value, no field at all, or the expected error, which its document foretells."""
    tree = {"pipeline": [{"$source": {"documents": []}}, {"$addFields": {"x": case["expression"]}}]}
    problems = Problems()
    expr = parse_expression(case["expression"], "x", Scope(problems))
    problems.check()
    (outcome,) = _through((AddFields(path="x", fields=Branch((("x", Computed(expr)),))),), {})
    if "error" in case:
        with pytest.raises(InvalidDocument):
            parse(tree)
        assert isinstance(outcome, Failure)
        assert outcome.code == case["error"]
    else:
        parse(tree)
        assert _same({} if case.get("missing") else {"x": from_json(case["value"])}, outcome), outcome


@pytest.mark.parametrize("case", [c for c in OPERATOR_CASES if "accumulator" in c], ids=lambda c: str(c["accumulator"]))
def test_accumulator_gives_value(case: dict[str, Any]) -> None:
    """One accumulator over the values of one group gives the expected value."""
    group = {"$group": {"_id": None, "x": case["accumulator"]}}
    window = _one_stage({"$tumblingWindow": {"interval": _WINDOW, "pipeline": [group]}})
    (document,) = _in_window(window, [{"v": from_json(value)} for value in case["values"]])
    assert _same(from_json(case["value"]), document["x"]), document


@pytest.mark.parametrize("case", [c for c in OPERATOR_CASES if "query" in c], ids=lambda c: str(c["query"]))
def test_query_is_true_or_not(case: dict[str, Any]) -> None:
    """One query is true of a document, or not."""
    stage = _one_stage({"$match": case["query"]})
    assert bool(list(_through((stage,), from_json(case["document"])))) is case["value"]


def test_every_operator_and_accumulator_has_a_case() -> None:
    """What the language has is shown: each expression operator, query operator and accumulator occurs in a case."""
    folder = Path(__file__).parents[1]
    files = [
        *sorted((folder / "golden" / "language").glob("*.jsonl")),
        folder / "golden" / "process" / "cases.jsonl",
        folder / "unit" / "test_language_expressions.py",
    ]
    shown = "".join(file.read_text("utf-8") for file in files)
    names = {*OPERATORS, *FORMS, *ACCUMULATOR_NAMES, *QUERY_OPERATORS}
    assert sorted(name for name in names if f'"{name}"' not in shown) == []
