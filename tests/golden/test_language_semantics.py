"""What the manual says of operators at their edges: `language/semantics/*.jsonl`, one statement a line, derived from the manual by hand.

`expression` (on `document`, {} by default) gives `value`, is `missing`, `fails` on the document, or is `refused` when it is read. `query`
is true of the documents `true` and not of those in `false`. `stages` make of `document` the documents `output`, or it `fails`, or they
are `refused`. A file is one test, which names all lines that do not hold: some thousand lines are read in a second.
"""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.process_cases import same
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import from_json
from tidemark.shared.model.values import MISSING

FILES: Final = sorted((Path(__file__).parent / "language" / "semantics").glob("*.jsonl"))


def _of_expression(line: dict[str, Any]) -> str | None:
    """What is wrong with a line, None if nothing is."""
    problems = Problems()
    expr = parse_expression(line["expression"], "e", Scope(problems))
    if problems.errors or line.get("refused"):
        return None if problems.errors and line.get("refused") else f"refused: {problems.errors}"
    try:
        value = evaluate(expr, Environment(from_json(line.get("document", {}))))
    except ExpressionError as e:
        return None if line.get("fails") else f"fails: {e.reason}"
    if line.get("missing") or value is MISSING:
        return None if line.get("missing") and value is MISSING else f"gives {value!r}"
    return None if "value" in line and same(from_json(line["value"]), value) else f"gives {value!r}"


def _through(stages: list[Any], document: Any) -> list[Any] | str:
    """The documents behind the stages, or what became of them."""
    try:
        parsed: Any = parse({"pipeline": [{"$source": {"documents": []}}, *stages]}).pipeline[1:]
    except InvalidDocument as e:
        return f"refused: {e}"
    document = from_json(document)
    outcomes = list(apply_stages(parsed, document, Environment(document)))
    if any(isinstance(outcome, Failure) for outcome in outcomes):
        return "fails"
    return [out for outcome in outcomes if isinstance(outcome, Passed) for out in outcome.documents]


def _of_query(line: dict[str, Any]) -> str | None:
    stages = [{"$match": line["query"]}]
    wrong = [doc for doc in line["true"] if _through(stages, doc) != [from_json(doc)] and not _nan(doc)]
    wrong += [doc for doc in line["true"] if _nan(doc) and len(_through(stages, doc)) != 1]
    wrong += [doc for doc in line["false"] if _through(stages, doc) != []]
    return f"wrong on {wrong}" if wrong else None


def _nan(document: Any) -> bool:
    """Whether a document differs from itself."""
    return "NaN" in json.dumps(document)


def _of_stages(line: dict[str, Any]) -> str | None:
    found = _through(line["stages"], line.get("document", {}))
    if isinstance(found, str):
        expected = "fails" if line.get("fails") else "refused" if line.get("refused") else "output"
        return None if found.startswith(expected) else found
    return None if "output" in line and same(from_json(line["output"]), found) else f"gives {found!r}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_what_the_manual_says_holds(path: Path) -> None:
    """Every statement of the file holds."""
    judge = {"expression": _of_expression, "query": _of_query, "stages": _of_stages}
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    assert len(lines) > 1
    wrong = [(line, why) for line in lines if (why := judge[next(iter(line))](line)) is not None]
    assert wrong == [], "\n".join(f"{json.dumps(line)}: {why}" for line, why in wrong[:20])
