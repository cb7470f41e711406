"""Constants where a value of the record belongs, and arguments that do nothing: each is told, and what may be meant is not."""

from typing import Any

import pytest

from tidemark.shared.language.documents import parse

_KAFKA = {"k": {"type": "kafka", "bootstrapServers": "localhost:9092"}}


def _warned(*stages: dict[str, Any], **source: Any) -> list[str]:
    """The warnings of a document of which nobody knows the records."""
    document = {
        "connections": _KAFKA,
        "pipeline": [{"$source": {"connectionName": "k", "topic": "t", **source}}, *stages],
    }
    return [str(warning) for warning in parse(document).warnings]


def _window(*inner: Any) -> dict[str, Any]:
    return {"$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": list(inner)}}


def _grouped(accumulator: Any = None, key: Any = "$user") -> dict[str, Any]:
    return _window({"$group": {"_id": key, "x": accumulator or {"$count": {}}}})


def _joined(**keys: Any) -> dict[str, Any]:
    right = [{"$source": {"connectionName": "k", "topic": "u"}}]
    within = {"before": 0, "after": {"size": 1, "unit": "minute"}}
    return {"$join": {"from": right, "leftKey": "$id", "rightKey": "$id", "within": within, "as": "r", **keys}}


def _computed(expression: Any) -> dict[str, Any]:
    return {"$addFields": {"x": expression}}


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"$project": {"a": "0"}}, '$project.a: is "0" for every document: 1 keeps the field, 0 leaves it out'),
        ({"$project": {"a": [1]}}, "$project.a: is [1] for every document"),
        ({"$project": {"b": 1, "a": {"c": "true"}}}, '$project.a.c: is "true" for every document'),
        ({"$project": {"a": None}}, "$project.a: is null for every document"),
        ({"$project": {"a": -1}}, "$project.a: -1 keeps the field, as any number but 0 does"),
        ({"$unset": '["a", "b"]'}, "is the name of a field: a list or document stands there without quotes"),
        ({"$match": {}}, "$match: each record goes through"),
        (_window(), "pipeline: without stages each record comes out as it came"),
        ({"$union": {"pipelines": []}}, "$union.pipelines: nothing flows in"),
        ({"$replaceRoot": {"newRoot": {}}}, "each document becomes the same one"),
        ({"$replaceWith": {"a": 1}}, "each document becomes the same one"),
        ({"$redact": {"$cond": ["$a", "$$KEEP", "PRUNE"]}}, "answers with none of $$DESCEND, $$PRUNE and $$KEEP"),
        (_grouped(key=["$user"]), "$group._id: the key is a list of one value"),
        (
            _grouped(key={"shop": "$shop", "user": "user"}),
            "user is the constant 'user' (the field is written $user) in every",
        ),
        (_joined(leftKey=7), "$join.leftKey: is a constant, 7: all documents of this side have one key"),
        (_joined(rightKey=["$id"]), "$join.rightKey: is a list, and the other side's key a field"),
        (_joined(rightKey={"rightKey": "$id"}), "$join.rightKey: is a document, and the other side's key a field"),
    ],
)
def test_a_stage_that_reads_nothing_is_told(stage: dict[str, Any], said: str) -> None:
    """Its place, and what it does as it is written."""
    (warning,) = _warned(stage)
    assert said in warning


@pytest.mark.parametrize(
    ("accumulator", "said"),
    [
        ({"$sum": None}, "$sum of a constant, null, which is no number, counts nothing"),
        (
            {"$median": {"input": ["$n"], "method": "approximate"}},
            "$median of a list, which is no number, counts nothing",
        ),
        ({"$avg": {"n": "$n"}}, "$avg of a document, which is no number, counts nothing"),
        ({"$sum": {"$cond": ["$a", "1", 0]}}, "$sum of the constant '1', which is no number, counts nothing"),
        ({"$max": 7}, "$max of a constant, 7: the same of every record"),
        ({"$first": {}}, "$first of a constant, {}: the same of every record"),
        ({"$push": None}, "$push of a constant, null: the same of every record"),
    ],
)
def test_an_accumulator_of_a_constant_is_told(accumulator: dict[str, Any], said: str) -> None:
    """It gives the same for every group."""
    (warning,) = _warned(_grouped(accumulator))
    assert said in warning


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"a": {"$gt": None}}, "$match.a: $gt null is true of no record"),
        ({"a": {"$gt": True}}, "$match.a: $gt true compares with truth values alone"),
        ({"a": {"$lt": [3]}}, "$match.a: $lt [3] compares with arrays alone"),
        ({"a": {"$in": ["$b"]}}, "$match.a.$in: compares with the text '$b'; two fields are compared by $expr"),
        ({"a": {"$in": [["b", "c"]]}}, "$match.a.$in: compares with the array"),
        ({"a": {"$in": ["b", {}]}}, "$match.a.$in: compares with an empty document"),
        ({"$or": [{"a": 1}, {}]}, "$match.$or: {} is true of each record, and so is the whole"),
        ({"$jsonSchema": {"required": ["$a"]}}, "'$a' is the name of no field"),
        ({"$jsonSchema": {"required": ["amuont"], "properties": {"amount": {}}}}, "did you mean amount?"),
    ],
)
def test_a_query_that_no_record_decides_is_told(query: dict[str, Any], said: str) -> None:
    """Or that compares with another type than is meant."""
    (warning,) = _warned({"$match": query})
    assert said in warning


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ({"$multiply": []}, "$multiply has no arguments: it is the same for every record"),
        ({"$multiply": "$a"}, "$multiply has one argument, and gives it back"),
        ({"$multiply": ["$a", None]}, "$multiply of null is null for every record"),
        ({"$toDate": None}, "$toDate of null is null for every record"),
        ({"$toUpper": ""}, "$toUpper of an empty text is the same for every record"),
        ({"$mergeObjects": None}, "an argument of $mergeObjects is null or {}, and adds nothing"),
        ({"$map": {"input": None, "in": "$$this.a"}}, "goes through null: it is null for every record"),
        ({"$map": {"input": ["$a"], "in": "$$this.a"}}, "goes through a list of one value"),
        ({"$eq": ["$a", {}]}, "$eq compares with an empty document"),
        ({"$mergeObjects": ["$a", {}]}, "an argument of $mergeObjects is null or {}, and adds nothing"),
        ({"$cond": [[{"$gt": ["$a", 1]}], 1, 2]}, "a condition is a list, which is true for every record"),
        ({"$cond": [{"if": {"$gt": ["$a", 1]}}, 1, 2]}, "a condition is a document, which is true for every record"),
        ({"$cond": [None, 1, 2]}, "a condition is a constant, null: it is false for every record"),
        ({"$switch": {"branches": [{"case": {}, "then": 1}], "default": 2}}, "{}: it is true for every record"),
        ({"$filter": {"input": "$a", "cond": ["$$this"]}}, "a condition is a list, which is true for every record"),
        ({"$gt": [["$a"], 3]}, "$gt compares with a list of one value"),
        ({"$gt": [7, 3]}, "$gt compares two constants"),
        ({"$gt": ["$a", True]}, "$gt compares with true, in the order of types"),
        ({"$eq": [{"a": "$a"}, "b"]}, "$eq compares a document with the constant 'b'"),
        ("$a.b ", "'b ' has a blank at its end; did you mean b?"),
        ("stream.source.ts", "what is known of it is told by {$meta: stream.source.ts}"),
        ('["a", "$b"]', "a list or document stands there without quotes"),
    ],
)
def test_an_expression_that_is_the_same_for_every_record_is_told(expression: Any, said: str) -> None:
    """Or an argument of it that does nothing."""
    (warning,) = _warned(_computed(expression))
    assert said in warning


def test_an_event_time_that_the_schema_lacks_is_told() -> None:
    """Each record would be a dead letter; two letters that changed places have a nearest name."""
    schema = {"id": "int", "at": "date"}
    assert "did you mean at?" in _warned(schema=schema, timeField="$ta")[0]
    assert (
        "reads when, which the schema does not declare (fields: at, id)" in _warned(schema=schema, timeField="$when")[0]
    )
    assert _warned(schema=schema, timeField="$at") == _warned(timeField={"$toDate": "$when"}) == []


@pytest.mark.parametrize(
    "stage",
    [
        {
            "$project": {
                "_id": 0,
                "a": 1,
                "b": True,
                "kind": "order",
                "c": ["$a"],
                "d": ["x", "y"],
                "e": {"f": 1},
                "g": {"$literal": "0"},
            }
        },
        {
            "$addFields": {
                "a": None,
                "b": "1",
                "c": [1],
                "d": {},
                "e": ["$x"],
                "f": {"$literal": []},
                "g": {"$ifNull": ["$a", None]},
            }
        },
        {
            "$match": {
                "a": None,
                "b": {"$gte": None, "$ne": None},
                "c": {"$gt": []},
                "d": {"$in": ["a", None]},
                "e": ["x"],
            }
        },
        {"$match": {"$expr": {"$and": [{"$gt": ["$a", None]}, {"$eq": ["$tags", ["x"]]}, {"$ne": ["$b", []]}]}}},
        _computed({"$cond": ["$a", {"$concat": ["a", "$b"]}, {"$multiply": ["$c", 1000]}]}),
        _computed({"$mergeObjects": "$a"}),
        _computed({"$and": ["$a"]}),
        _computed({"$switch": {"branches": [{"case": False, "then": 1}], "default": {"$add": ["$a", 1]}}}),
        {"$replaceRoot": {"newRoot": {"$mergeObjects": [{"a": 0}, "$$ROOT"]}}},
        {"$redact": {"$switch": {"branches": [{"case": "$a", "then": "$$KEEP"}], "default": "$$PRUNE"}}},
        _grouped({"$sum": 1}, key=None),
        _grouped({"$push": "order"}, key={"shop": "$shop"}),
        _grouped({"$sum": {"$cond": ["$a", 1, None]}}, key=["$shop", "$user"]),
        _joined(leftKey=["$a", "$b"], rightKey=["$a", "$b"]),
    ],
)
def test_what_may_be_meant_is_not_told(stage: dict[str, Any]) -> None:
    """Constants where they are usual, null where records are asked for it, and lists of several values."""
    assert _warned(stage) == []
