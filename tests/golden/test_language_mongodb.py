"""What MongoDB itself gives: `language/mongodb.jsonl.gz`, cases with the results that a server of version 8.2 gave.

They were recorded from the project documentdb/functional-tests (MIT licence, commit 935605ab): inputs and results, in a form of our own.
Left out are geometry, JavaScript, `$$NOW`, and what asks for a server. `expression` gives the only output's `result`; `stages` make of
`documents` the `output`, or `fails`: refused when it is read, or a failure on a document. `language/mongodb_differences.jsonl` lists the
cases in which this language differs, by reason; each of them has to differ still, so that the list tells the truth.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tests.harness.process_cases import same, unpaired
from tests.harness.share import share
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.stages import InlineTable, Lookup
from tidemark.shared.language.stages.base import Failure, Gathering, Passed
from tidemark.shared.language.stages.looking_up import apply_lookup
from tidemark.shared.language.values import encode_value, from_json

FOLDER: Final = Path(__file__).parent / "language"
_WINDOWED: Final = ("$group", "$sort", "$limit", "$count")
_SOURCE: Final[dict[str, Any]] = {"$source": {"documents": []}}


class Fails(Exception):
    """The stages are refused, or fail on a document."""


def _stages(case: dict[str, Any]) -> list[Any]:
    if "expression" in case:
        return [{"$project": {"_id": 0, "result": case["expression"]}}]
    stages: list[Any] = case["stages"]
    return stages


def _parsed(stage: Any) -> Any:
    inside = type(stage) is dict and next(iter(stage), "") in _WINDOWED
    window = {"interval": {"size": 1, "unit": "hour"}, "pipeline": [stage]}
    try:
        found: Any = parse({"pipeline": [_SOURCE, {"$tumblingWindow": window} if inside else stage]}).pipeline[1]
    except InvalidDocument as e:
        raise Fails(str(e)) from e
    return found.pipeline[0] if inside else found


def _behind(stage: Any, documents: Sequence[Any]) -> list[Any]:
    if isinstance(stage, Gathering):
        return stage.gather(documents, Environment({}))
    found: list[Any] = []
    for document in documents:
        env = Environment(document)
        if isinstance(stage, Lookup):
            assert isinstance(stage.from_, InlineTable)
            outcome: Any = apply_lookup(stage, document, stage.from_.documents, env)
        else:
            outcome = stage.apply(document, env)
        if isinstance(outcome, Failure):
            raise Fails(outcome.reason)
        found += outcome.documents if isinstance(outcome, Passed) else ()
    return found


def _output(case: dict[str, Any]) -> list[Any]:
    documents = [from_json(document) for document in case.get("documents", [{}])]
    try:
        for stage in [_parsed(stage) for stage in _stages(case)]:
            documents = _behind(stage, documents)
    except ExpressionError as e:
        raise Fails(e.reason) from e
    return documents


def _alike(wanted: Any, found: Any) -> bool:
    """Whether two results are the same; bytes tell where equality does not, as of NaN and of zeros."""
    return encode_value(wanted) == encode_value(found) or same(wanted, found)


def difference(case: dict[str, Any]) -> str | None:
    """What is not as MongoDB has it; None if nothing is."""
    try:
        found = _output(case)
    except Fails as e:
        return None if case.get("fails") else f"fails: {e}"
    if case.get("fails"):
        return f"gives {found!r}"
    wanted = [from_json(document) for document in case["output"]]
    sets = case.get("sets", ())
    if sets:
        wanted, found = [_sorted(d, sets) for d in wanted], [_sorted(d, sets) for d in found]
    if case.get("any_order"):
        fits = len(wanted) == len(found) and unpaired(wanted, found, _alike) is None
    else:
        fits = len(wanted) == len(found) and all(_alike(w, f) for w, f in zip(wanted, found, strict=True))
    return None if fits else f"gives {found!r}"


def _sorted(document: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    inside = {n: sorted(document[n], key=lambda v: encode_value([v])) for n in names if type(document.get(n)) is list}
    return {**document, **inside}


@lru_cache(maxsize=1)
def cases() -> tuple[dict[str, Any], ...]:
    """All of them, in the file's order."""
    lines = gzip.decompress((FOLDER / "mongodb.jsonl.gz").read_bytes()).split(b"\n")
    return tuple(json.loads(line) for line in lines if line)


def accepted() -> dict[str, str]:
    """The reason of each case that differs, by what it is about."""
    lines = (FOLDER / "mongodb_differences.jsonl").read_text(encoding="utf-8").splitlines()
    return {about: line["reason"] for line in map(json.loads, lines) for about in line["cases"]}


def test_the_interpreter_gives_what_mongodb_gives() -> None:
    """Each case that differs is listed with its reason, and each that is listed differs; in CI a third of those that are not."""
    known = accepted()
    assert len(cases()) > 25_000
    listed = [case for case in cases() if case["about"] in known]
    found = {case["about"]: difference(case) for case in [*listed, *share(cases(), 3)]}
    wrong = [f"{about}: {why}" for about, why in found.items() if why is not None and about not in known]
    assert wrong == [], "\n".join(wrong[:40])
    assert [about for about in known if found.get(about) is None] == []
