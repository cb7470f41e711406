"""Pipelines, windows and joins that put values into each other (D21): no depth ends an operator, and all say the same of it."""

import inspect
import json
import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_depths import Depths
from tests.harness.drawn_world import accepted, ms, played, records_of, source
from tests.property import test_drawn_joins as joins
from tests.property import test_drawn_windows as windows
from tests.property.test_drawn_pipelines import SOURCE, interpreted, on_columns
from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.ast import ArrayExpr, FieldPath
from tidemark.shared.language.expressions.environment import Budget, Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.kernels import calls
from tidemark.shared.language.schema import NO_SCHEMA
from tidemark.shared.language.values.depth import DEPTH_MAX, is_deeper

SEEDS = st.integers(0, 2**64)


@given(SEEDS)
@settings(max_examples=150)
def test_a_pipeline_gives_on_columns_what_it_gives_of_each_deep_record(seed: int) -> None:
    """Documents, dead letters and their reasons."""
    chooser = random.Random(seed)
    depths = Depths(chooser)
    chain: Any = None
    while chain is None:
        stages = [depths.lookup() if chooser.random() < 0.15 else depths.stage() for _ in range(chooser.randint(1, 4))]
        try:
            chain = parse({"pipeline": [SOURCE, *stages]}).pipeline[1:]
        except InvalidDocument:
            continue
    texts = [depths.text() for _ in range(chooser.choice((1, 3, 8)))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(calls, "FEW_ROWS", chooser.choice((0, 0, calls.FEW_ROWS)))
        found, _ = on_columns(chooser, chain, texts, NO_SCHEMA)
    assert found.comparable() == interpreted(chain, texts, NO_SCHEMA).comparable()


@given(SEEDS)
@settings(max_examples=60)
def test_a_window_gives_what_the_interpreter_makes_of_deep_records(seed: int) -> None:
    """Groups of deep values, over states that were stored."""
    chooser = random.Random(seed)
    depths = Depths(chooser)
    document = None
    while document is None:
        stages = [depths.stage() for _ in range(chooser.choice((0, 0, 1)))]
        inner = [*depths.order(), depths.group(), *(depths.stage() for _ in range(chooser.choice((0, 0, 1))))]
        if not any("$unwind" in stage for stage in stages):
            window = {"$tumblingWindow": {"interval": ms(20), "pipeline": inner}}
            document = accepted({"pipeline": [source({}), *stages, window], "options": {"lateness": "split"}})
    splits = records_of(chooser, depths)
    assert played(chooser, document, splits) == windows.Interpreted(document, splits).told()


@given(SEEDS)
@settings(max_examples=60)
def test_two_streams_of_deep_records_give_what_their_records_give(seed: int) -> None:
    """A right document is a field of a pair."""
    chooser = random.Random(seed)
    depths = Depths(chooser)
    document = None
    while document is None:
        left, right, after = ([depths.stage() for _ in range(chooser.choice((0, 0, 1)))] for _ in range(3))
        within = {"before": ms(100), "after": ms(100)}
        keys = chooser.choice((("$k", "$k"), ("$k", "$n"), ({"$type": "$n"}, depths.deep())))
        kind = chooser.choice(("inner", "left", "right", "full"))
        both = {"from": [source({}), *right], "leftKey": keys[0], "rightKey": keys[1], "within": within, "type": kind}
        document = accepted(
            {"pipeline": [source({}), *left, {"$join": {**both, "as": "r"}}, *after], "options": {"lateness": "split"}}
        )
    sides = [records_of(chooser, depths) for _ in range(2)]
    assert played(chooser, document, *sides) == joins.Interpreted(document, *sides).told()


def _deep(depth: int) -> bytes:
    return b"[" * depth + b"1" + b"]" * depth


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param([{"$set": {"n.a": "$n"}}, {"$set": {"n.a.a": [["$x"]]}}], id="into itself, and behind it"),
        pytest.param([{"$set": {"n.a": "$x"}}, {"$set": {"b": "$n"}}], id="into arrays, and read again"),
        pytest.param([{"$project": {"n": {"a": "$n"}}}, {"$unset": "n.a.a"}], id="a projection"),
        pytest.param([{"$project": {"x": 1, "n": {"a": "$n"}}}], id="of documents in another order"),
        pytest.param([{"$set": {"n.a": "$n", "x.b": {"$add": ["$n", 1]}}}], id="an expression fails, too"),
        pytest.param([{"$set": {"b": "$$CURRENT"}}], id="a document in itself"),
        pytest.param([{"$replaceWith": "$$CURRENT"}], id="a document as it is"),
        pytest.param([{"$set": {"n" + ".a" * 199: "$x"}}], id="a long path in arrays"),
        pytest.param([{"$unset": "n" + ".a" * 199}], id="nothing at a long path"),
    ],
)
def test_a_document_is_no_deeper_behind_a_stage_than_as_it_is_read(stages: list[dict[str, Any]]) -> None:
    """D21, where operators on columns ended, or let pass what the interpreter refused."""
    chain: Any = parse({"pipeline": [SOURCE, *stages]}).pipeline[1:]
    for depth in (80, 88, 89, 90, 91, 148, 177, 178, 179):
        texts = [b'{"n":%b,"x":%d}' % (_deep(depth), row) for row in range(3)] + [b'{"x":1,"n":[{"a":2}]}']
        found, _ = on_columns(random.Random(depth), chain, texts, NO_SCHEMA)
        told = interpreted(chain, texts, NO_SCHEMA)
        assert found.comparable() == told.comparable()
        assert not any(is_deeper(document, DEPTH_MAX) for document in told.documents)


def test_the_deepest_through_the_longest_path_leaves_room_on_the_stack() -> None:
    """Arrays in arrays take no call each, in the interpreter as on columns: a worker's own calls lie below."""
    text = b'{"n":%b}' % _deep(179)
    for stage in (
        {"$set": {"n" + ".a" * 199: "$x"}},
        {"$project": {"n" + ".a" * 199: "$x"}},
        {"$unset": "n" + ".a" * 199},
    ):
        chain: Any = parse({"pipeline": [SOURCE, stage]}).pipeline[1:]
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(len(inspect.stack(0)) + 600)
        try:
            interpreted(chain, [text], NO_SCHEMA)
        finally:
            sys.setrecursionlimit(limit)


@pytest.mark.parametrize("room", [0, 1, 2])
def test_a_group_of_the_deepest_is_told_as_it_is(room: int) -> None:
    """D21: the group's own document, of a `$group` in front and one behind; an array around a value takes a level more."""
    group = {"$group": {"_id": None, "s": {"$push": "$n"}}}
    for inner in ([group], [{"$sort": {"ts": 1}}, group]):
        window = {"$tumblingWindow": {"interval": ms(20), "pipeline": inner}}
        document = {"pipeline": [source({}), window], "options": {"lateness": "split"}}
        text = b'{"ts":{"$date":{"$numberLong":"1"}},"i":0,"n":%b}' % _deep(DEPTH_MAX - 1 - room)
        documents, letters = played(random.Random(1), document, [[text]])
        assert (documents, letters) == windows.Interpreted(document, [[text]]).told()
        assert (len(documents), len(letters)) == ((1, 0) if room else (0, 1))


@pytest.mark.parametrize("kind", ["inner", "full"])
def test_a_right_document_has_room_to_be_a_field(kind: str) -> None:
    """D21: the left one keeps its own level."""
    both = {
        "from": [source({})],
        "leftKey": "$k",
        "rightKey": "$k",
        "within": {"before": ms(9), "after": ms(9)},
        "type": kind,
    }
    document = {"pipeline": [source({}), {"$join": {**both, "as": "r"}}], "options": {"lateness": "split"}}
    texts = [
        b'{"ts":{"$date":{"$numberLong":"1"}},"i":%d,"n":%b}' % (number, _deep(depth))
        for number, depth in enumerate((DEPTH_MAX - 1, DEPTH_MAX - 2, 3))
    ]
    found = played(random.Random(1), document, [texts], [texts])
    assert found == joins.Interpreted(document, [texts], [texts]).told()
    assert (len(found[0]), len(found[1])) == (6, 1)


@pytest.mark.parametrize(
    "stage",
    [
        {"$set": {"PATH": 1}}, {"$project": {"PATH": 1}}, {"$project": {"PATH": {"b": 1}}}, {"$unset": "PATH"}, {"$match": {"PATH": 1}},
        {"$set": {"b": "$PATH"}}, {"$unwind": "$PATH"}, {"$unwind": {"path": "$a", "includeArrayIndex": "PATH"}},
        {"$set": {"b": {"$sortArray": {"input": "$b", "sortBy": {"PATH": 1}}}}},
        {"$lookup": {"from": {"documents": []}, "localField": "a", "foreignField": "a", "as": "PATH"}},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("count", [201, 5_000])
def test_a_path_has_no_more_names_than_a_walk_has_room_for(stage: dict[str, Any], count: int) -> None:
    """D21: the text is refused, where reading it ended in Python's own bound."""
    text = json.dumps({"pipeline": [SOURCE, stage]}).replace("PATH", ".".join(["a"] * count))
    with pytest.raises(InvalidDocument, match="a path has at most 200 names"):
        parse(text)
    parse(text.replace(".a" * (count - 199), ""))


def test_a_field_is_no_result_whatever_its_size() -> None:
    """D21: on documents and on columns it takes nothing of what a stage may compute; what is made of it does."""
    document: Any = {"n": [list(range(100))] * 3}
    assert evaluate_bounded(FieldPath(("n",)), Environment(document, budget=Budget(200))) == document["n"]
    for expr in (ArrayExpr((FieldPath(("n",)),)), FieldPath(())):
        with pytest.raises(ExpressionError, match="the result has more than 200 characters and items"):
            evaluate_bounded(expr, Environment(document, budget=Budget(200)))
