"""What `validate` says of constants is true, and what it passes does not fail for a reason that the text shows."""

import copy
from collections.abc import Iterator
from typing import Any, Final

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import tidemark
from tests.property.language_strategies import DOCUMENTS, SCALARS
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Budget, Environment
from tidemark.shared.language.expressions.errors import SIZE, ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.library import OPERATORS
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import Positional
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.values import to_json

_SOURCE: Final[dict[str, Any]] = {"$source": {"documents": [{"a": 1}]}}
_LEAVES: Final = st.sampled_from(["$a", "$b", "$a.b"]) | SCALARS.map(lambda value: {"$literal": to_json(value)})


@st.composite
def _calls(draw: st.DrawFn) -> dict[str, Any]:
    operator = OPERATORS[draw(st.sampled_from(sorted(OPERATORS)))]
    signature = operator.signature
    if isinstance(signature, Positional):
        most = signature.least + 2 if signature.most is None else signature.most
        return {operator.name: draw(st.lists(_LEAVES, min_size=signature.least, max_size=most))}
    names = [name for name in signature.names if name in signature.required or draw(st.booleans())]
    return {operator.name: {name: draw(_LEAVES) for name in names}}


def _parsed(tree: Any) -> Any:
    problems = Problems()
    expr = parse_expression(tree, "", Scope(problems))
    assume(not problems.errors)
    return expr


def _refused(tree: Any) -> bool:
    try:
        parse({"pipeline": [_SOURCE, {"$addFields": {"x": tree}}]})
    except InvalidDocument:
        return True
    return False


@given(_calls(), st.lists(DOCUMENTS, min_size=4, max_size=4))
def test_what_is_said_to_fail_for_every_record_does(tree: Any, documents: list[Any]) -> None:
    """An error of a constant is no guess: the interpreter fails on whatever comes."""
    expr = _parsed(tree)
    if _refused(tree):
        for document in documents:
            with pytest.raises(ExpressionError):
                evaluate(expr, Environment(document))


@given(_calls())
@example({"$range": [0, 1_001]})
@example({"$range": [0, 2_147_483_648.0]})
def test_a_call_of_constants_that_fails_is_said_to(tree: Any) -> None:
    """Where nothing is read from a record, validation knows what will come out, unless it would have to make too much."""
    assume("$a" not in str(tree) and "'$b'" not in str(tree))
    expr = _parsed(tree)
    failed = False
    try:
        evaluate(expr, Environment({}, budget=Budget(1_000)))
    except ExpressionError as error:
        failed = error.code != SIZE
    assert not failed or _refused(tree) or next(iter(tree)) in ("$and", "$or", "$cond", "$ifNull"), tree


_ROWS: Final = [
    {"ts": f"2024-01-01T00:0{n}:00Z", "user": f"u{n % 2}", "amount": n, "tags": ["x", "y"], "at": {"lat": n, "lon": -n}}
    for n in range(6)
]
_WINDOW: Final = {"size": 1, "unit": "minute"}
_STAGES: Final[dict[str, list[Any]]] = {
    "match": [{"$match": {"amount": {"$gte": 0}, "$expr": {"$lt": ["$amount", 100]}}}],
    "arithmetic": [{"$addFields": {"x": {"$add": ["$amount", 1]}, "y": {"$multiply": ["$at.lat", {"$abs": "$at.lon"}]}}}],
    "text": [{"$addFields": {"x": {"$concat": [{"$toUpper": "$user"}, "-", {"$toString": "$amount"}]}}}],
    "dates": [{"$addFields": {"x": {"$dateTrunc": {"date": {"$toDate": "$ts"}, "unit": "hour"}}}}],
    "project": [{"$project": {"user": 1, "x": {"$cond": [{"$gt": ["$amount", 2]}, "much", "$user"]}}}],
    "arrays": [{"$unwind": {"path": "$tags"}}, {"$addFields": {"n": {"$strLenCP": "$tags"}}}],
    "maps": [{"$addFields": {"x": {"$map": {"input": "$tags", "as": "t", "in": {"$concat": ["$$t", "!"]}}}}}],
    "root": [{"$replaceRoot": {"newRoot": {"u": "$user", "in": "$at"}}}],
    "lookup": [{"$lookup": {"from": {"documents": [{"k": "u0", "v": 1}]}, "localField": "user", "foreignField": "k", "as": "found"}}],
    "window": [{"$tumblingWindow": {"interval": _WINDOW, "pipeline": [
        {"$group": {"_id": "$user", "n": {"$count": {}}, "s": {"$sum": "$amount"}, "m": {"$max": {"$abs": "$amount"}}}}]}}],
    "session": [{"$sessionWindow": {"partitionBy": "$user", "gap": _WINDOW, "pipeline": [
        {"$group": {"_id": "$user", "a": {"$avg": "$amount"}}}]}}],
    "hopping": [{"$hoppingWindow": {"interval": {"size": 2, "unit": "minute"}, "hopSize": _WINDOW, "pipeline": [
        {"$match": {"amount": {"$gt": 1}}}, {"$count": "n"}]}}],
}  # fmt: skip


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield from _places(item, (*path, key))


_OTHERS: Final[tuple[Any, ...]] = (17, "17", [], {}, None, True)


def _mutants(tree: Any) -> Iterator[tuple[str, Any]]:
    """A dollar dropped, a key misspelt, a value of a wrong type: each once, everywhere."""
    for path in list(_places(tree))[1:]:
        *above, last = path
        outer = tree
        for key in above:
            outer = outer[key]
        value = outer[last]
        others: list[tuple[str, Any, Any]] = []
        if isinstance(value, str) and value.startswith("$"):
            others.append(("without $", last, value.lstrip("$")))
        if isinstance(last, str):
            others.append(("misspelt", last[:-1] + "q" + last[-1:], value))
            others.append(("without its $" if last.startswith("$") else "shorter", last[1:] or "z", value))
        others += [("of another type", last, other) for other in _OTHERS if other != value]
        for kind, key, new in others:
            copied = copy.deepcopy(tree)
            inner = copied
            for step in above:
                inner = inner[step]
            if isinstance(inner, list):
                inner[last] = new
            else:
                copied_items = [
                    (key if name == last else name, new if name == last else item) for name, item in inner.items()
                ]
                inner.clear()
                inner.update(copied_items)
            yield f"{'.'.join(map(str, path))} {kind}: {new!r:.60}", copied


@pytest.mark.parametrize("name", _STAGES)
def test_what_validate_passes_without_a_word_does_not_fail_for_what_the_text_shows(name: str) -> None:
    """Mutants of a right document: refused, warned of, or run without a failure and without every record becoming a dead letter."""
    source = {"$source": {"documents": _ROWS, "timeField": {"$toDate": "$ts"}}}
    right = {"pipeline": [source, *_STAGES[name]]}
    assert parse(right).warnings == ()
    assert not tidemark.try_out(right).dead_letters
    wrong: list[str] = []
    for what, stages in _mutants(_STAGES[name]):
        try:
            found = parse({"pipeline": [source, *stages]})
        except InvalidDocument:
            continue
        if found.warnings:
            continue
        try:
            result = tidemark.try_out({"pipeline": [source, *stages]})
        except tidemark.TryOutFailed as failed:
            wrong.append(f"{what}: fails: {failed}")
            continue
        if len(result.dead_letters) >= len(_ROWS):
            wrong.append(f"{what}: every record a dead letter: {result.dead_letters[0]['errInfo']['reason']}")
    assert not wrong, "\n" + "\n".join(wrong)
