"""What `explain` says of expressions: by a kernel, row by row, or interpreted."""

from typing import Any

import pytest

from tidemark.shared.language.documents import parse
from tidemark.shared.planning.describe import logical

SCHEMA = {"k": "string", "v": "long", "d": "double", "t": "date"}


def how(stage: dict[str, Any]) -> dict[str, str]:
    """The word on each expression of a stage, and of the stages inside of it."""
    source = {"$source": {"connectionName": "c", "topic": "t", "schema": SCHEMA}}
    text = logical(parse({"pipeline": [source, stage]}))[1]
    return dict(text.expressions) | {name: word for inner in text.inner for name, word in inner.expressions}


@pytest.mark.parametrize(
    ("expr", "word"),
    [
        ({"$round": ["$d", 1]}, "kernel"),
        ({"$dateTrunc": {"date": "$t", "unit": "month", "timezone": "Europe/Berlin"}}, "kernel"),
        ({"$toLong": {"$meta": "stream.window.start"}}, "kernel"),
        ({"$add": ["$undeclared", 1]}, "kernel"),
        (["$k", {"$add": ["$v", 1]}], "kernel"),
        ({"$add": ["$k", 1]}, "row by row"),
        ({"$pow": ["$d", {"$ln": "$undeclared"}]}, "kernel"),
        ({"$toUpper": {"$substr": ["$v", 0, 2]}}, "kernel"),
        ({"$dateFromString": {"dateString": "$k", "onError": None}}, "kernel"),
        ({"$toUpper": "$x"}, "kernel"),
        ({"$dateToParts": {"date": "$t"}}, "kernel"),
        ({"$regexFindAll": {"input": "$k", "regex": "a"}}, "kernel"),
        ({"$toObjectId": "$k"}, "row by row"),
        ({"$reduce": {"input": "$x", "initialValue": 0, "in": {"$add": ["$$value", "$$this.n"]}}}, "kernel"),
        ({"$add": [1, {"$size": "$x"}]}, "kernel"),
        ({"$map": {"input": "$x", "in": {"$reverseArray": "$$this"}}}, "kernel"),
        ({"$map": {"input": "$x", "in": {"$objectToArray": "$$this"}}}, "kernel"),
        ({"$map": {"input": "$x", "in": {"$range": [0, "$$this"]}}}, "kernel"),
        ({"$map": {"input": "$x", "in": {"$toDecimal": "$$this"}}}, "row by row"),
        ({"$let": {"vars": {"CURRENT": "$x"}, "in": "$y"}}, "interpreted"),
    ],
)
def test_each_expression_has_its_word(expr: Any, word: str) -> None:
    """By its own types and operators, whatever stands beside it."""
    assert how({"$addFields": {"new": expr, "other": "$v"}}) == {"new": word, "other": "kernel"}


def test_predicates_and_stages_inside_of_windows_have_theirs() -> None:
    """Also keys and inputs of groups, and how a group is merged."""
    assert how({"$match": {"v": {"$gte": 1}}}) == {"predicate": "kernel"}
    assert how({"$match": {"x": {"$elemMatch": {"$gt": 1}}}}) == {"predicate": "row by row"}
    inner = [{"$match": {"v": 1}}, {"$group": {"_id": "$k", "n": {"$sum": "$v"}}}]
    window = {"$tumblingWindow": {"interval": {"size": 1, "unit": "second"}, "pipeline": inner}}
    assert how(window) == {"predicate": "kernel", "_id": "kernel", "n": "kernel", "partial aggregation": "columns"}


def test_declared_fields_are_known_behind_stages_that_pass_documents_on() -> None:
    """Their order and number change, and no field of theirs: a sum of a declared text has no kernel."""
    inner = [{"$sort": {"v": -1}}, {"$skip": 1}, {"$limit": 3}, {"$addFields": {"new": {"$add": ["$k", 1]}}}]
    window = {"$tumblingWindow": {"interval": {"size": 1, "unit": "second"}, "pipeline": inner}}
    assert how(window) == {"new": "row by row"}
