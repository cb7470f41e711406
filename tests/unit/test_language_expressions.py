"""Single operators on single values, where the golden cases do not reach."""

from decimal import Decimal
from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Budget, Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.stages.base import Discarded, Failure, Outcome, Passed, ValidationStop
from tidemark.shared.language.values import equal, from_json, type_name
from tidemark.shared.model.values import MISSING, Binary, Date, Long


def run(tree: Any, document: dict[str, Any] | None = None, **env: Any) -> Any:
    problems = Problems()
    expr = parse_expression(tree, "e", Scope(problems))
    problems.check()
    return evaluate(expr, Environment(document if document is not None else {}, **env))


def at(text: str) -> dict[str, str]:
    return {"$date": text}


EQUALITIES: list[tuple[Any, Any]] = [
    ({"$dateTrunc": {"date": at("2024-03-31T10:00:00Z"), "unit": "day", "timezone": "Europe/Berlin"}}, at("2024-03-30T23:00:00Z")),
    ({"$dateTrunc": {"date": at("2024-03-07T10:00:00Z"), "unit": "week", "startOfWeek": "mon"}}, at("2024-03-04T00:00:00Z")),
    ({"$dateTrunc": {"date": at("2024-08-07T10:00:00Z"), "unit": "quarter"}}, at("2024-07-01T00:00:00Z")),
    ({"$dateTrunc": {"date": at("2024-03-07T10:47:00Z"), "unit": "minute", "binSize": 15}}, at("2024-03-07T10:45:00Z")),
    ({"$dateTrunc": {"date": at("1969-12-31T23:59:59.999Z"), "unit": "year", "binSize": 10}}, at("1960-01-01T00:00:00Z")),
    ({"$dateAdd": {"startDate": at("2024-01-31T00:00:00Z"), "unit": "month", "amount": 1}}, at("2024-02-29T00:00:00Z")),
    ({"$dateAdd": {"startDate": at("2024-03-30T12:00:00Z"), "unit": "day", "amount": 1, "timezone": "Europe/Berlin"}},
     at("2024-03-31T11:00:00Z")),
    ({"$dateAdd": {"startDate": at("2024-03-30T12:00:00Z"), "unit": "hour", "amount": 24, "timezone": "Europe/Berlin"}},
     at("2024-03-31T12:00:00Z")),
    ({"$dateSubtract": {"startDate": at("2024-02-29T00:00:00Z"), "unit": "year", "amount": 1}}, at("2023-02-28T00:00:00Z")),
    ({"$dateDiff": {"startDate": at("2023-12-31T23:59:59Z"), "endDate": at("2024-01-01T00:00:00Z"), "unit": "year"}}, 1),
    ({"$dateDiff": {"startDate": at("2024-01-01T00:00:00Z"), "endDate": at("2023-12-01T00:00:00Z"), "unit": "month"}}, -1),
    ({"$dateFromParts": {"year": 2024, "month": 14, "day": 0}}, at("2025-01-31T00:00:00Z")),
    ({"$dateFromParts": {"isoWeekYear": 2020, "isoWeek": 53, "isoDayOfWeek": 5}}, at("2021-01-01T00:00:00Z")),
    ({"$dateFromParts": {"year": 2024, "hour": 12, "timezone": "America/New_York"}}, at("2024-01-01T17:00:00Z")),
    ({"$dateToParts": {"date": at("2021-01-01T01:02:03.004Z"), "iso8601": True}},
     {"isoWeekYear": 2020, "isoWeek": 53, "isoDayOfWeek": 5, "hour": 1, "minute": 2, "second": 3, "millisecond": 4}),
    ({"$dateFromString": {"dateString": "05/03/24", "format": "%d/%m/%Y", "onError": "bad"}}, "bad"),
    ({"$dateFromString": {"dateString": "5 Mar 2024 12h", "format": "%d %b %Y %Hh"}}, at("2024-03-05T12:00:00Z")),
    ({"$dateFromString": {"dateString": "2024-03-05 12:00", "timezone": "Asia/Tokyo"}}, at("2024-03-05T03:00:00Z")),
    ({"$dateFromString": {"dateString": "March 5, 2024"}}, at("2024-03-05T00:00:00Z")),
    ({"$dateFromString": {"dateString": "Tue, 05 Mar 2024 12:00:00 +0100"}}, at("2024-03-05T11:00:00Z")),
    ({"$dateToString": {"date": at("2024-03-05T12:00:00Z"), "timezone": "+02"}}, "2024-03-05T14:00:00.000"),
    ({"$toDate": {"$numberLong": "-1"}}, at("1969-12-31T23:59:59.999Z")),
    ({"$toDate": {"$oid": "65e70a400000000000000000"}}, at("2024-03-05T12:04:16Z")),
    ({"$add": [at("1970-01-01T00:00:00Z"), 1.5, 1]}, at("1970-01-01T00:00:00.003Z")),
    ({"$add": [0.1, 0.2, 0.3]}, 0.6),
    ({"$multiply": [2147483647, 2]}, {"$numberLong": "4294967294"}),
    ({"$round": [{"$numberInt": "15"}, -1]}, 20),
    ({"$round": [2.675, 2]}, 2.67),
    ({"$trunc": [{"$numberDecimal": "-1.29"}, 1]}, {"$numberDecimal": "-1.2"}),
    ({"$pow": [3, 40]}, {"$numberLong": "12157665459056928801"} if 3**40 < 2**63 else float(3**40)),
    ({"$pow": [3619184, 50]}, float("inf")),
    ({"$pow": [-3619184, 51]}, float("-inf")),
    ({"$multiply": [3619184] * 50}, float("inf")),
    ({"$pow": [-1, -3]}, -1),
    ({"$bitNot": 5}, -6),
    ({"$bitXor": [5, {"$numberLong": "1"}]}, {"$numberLong": "4"}),
    ({"$divide": [{"$numberDecimal": "1"}, 3]}, {"$numberDecimal": "0.3333333333333333333333333333333333"}),
    ({"$mod": [{"$numberDecimal": "-7.5"}, 2]}, {"$numberDecimal": "-1.5"}),
    ({"$toString": 2.0}, "2"),
    ({"$toString": {"$numberLong": "5"}}, "5"),
    ({"$toInt": "  5"}, None),
    ({"$convert": {"input": "x", "to": "int", "onError": "no", "onNull": "null"}}, "no"),
    ({"$convert": {"input": None, "to": "int", "onNull": "null"}}, "null"),
    ({"$convert": {"input": 1.9, "to": 16}}, 1),
    ({"$replaceAll": {"input": "a.b.c", "find": ".", "replacement": "-"}}, "a-b-c"),
    ({"$regexFindAll": {"input": "a1b22", "regex": "[a-z](\\d+)"}},
     [{"match": "a1", "idx": 0, "captures": ["1"]}, {"match": "b22", "idx": 2, "captures": ["22"]}]),
    ({"$regexMatch": {"input": "aB", "regex": "a b # blanks", "options": "ix"}}, True),
    ({"$strcasecmp": ["a", "B"]}, -1),
    ({"$zip": {"inputs": [[1, 2], ["a"]], "useLongestLength": True, "defaults": [0, "z"]}}, [[1, "a"], [2, "z"]]),
    ({"$sortArray": {"input": [3, 1, 2], "sortBy": -1}}, [3, 2, 1]),
    ({"$sortArray": {"input": [{"a": 2}, {"a": 1, "b": 1}, {"a": 1}], "sortBy": {"a": 1, "b": 1}}}, [{"a": 1}, {"a": 1, "b": 1}, {"a": 2}]),
    ({"$filter": {"input": [1, 2, 3, 4], "cond": {"$gt": ["$$this", 1]}, "limit": 2}}, [2, 3]),
    ({"$reduce": {"input": [1, 2, 3], "initialValue": 10, "in": {"$subtract": ["$$value", "$$this"]}}}, 4),
    ({"$map": {"input": [1, 2], "as": "x", "in": {"$add": ["$$x", 1]}}}, [2, 3]),
    ({"$setField": {"field": "a.b", "input": {"x": 1}, "value": 2}}, None),
    ({"$getField": {"field": "a.b", "input": {"$setField": {"field": "a.b", "input": {"x": 1}, "value": 2}}}}, 2),
    ({"$firstN": {"n": 2, "input": [1, 2, 3]}}, [1, 2]),
    ({"$maxN": {"n": 2, "input": [1, None, 3]}}, [3, 1]),
    ({"$percentile": {"input": [3, 1, 2], "p": [0.5], "method": "approximate"}}, [2.0]),
    ({"$stdDevPop": [1, 3]}, 1.0),
    ({"$avg": [[1, 2]]}, 1.5),
    ({"$allElementsTrue": [[True, 0]]}, False),
    ({"$tsSecond": {"$timestamp": {"t": 5, "i": 1}}}, {"$numberLong": "5"}),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "wanted"), EQUALITIES, ids=lambda v: str(v)[:60])
def test_operator_gives(tree: Any, wanted: Any) -> None:
    """An operator gives what MongoDB's reference says (None here stands for: an error, or a name with a dot)."""
    if wanted is None:
        if "$toInt" in tree:
            with pytest.raises(ExpressionError):
                run(tree)
        else:
            assert run(tree) == {"x": 1, "a.b": 2}
        return
    assert equal(run(tree), from_json(wanted)), run(tree)


@pytest.mark.parametrize(
    ("tree", "code"),
    [
        ({"$divide": [1, 0]}, "DivisionByZero"),
        ({"$add": ["a", 1]}, "TypeMismatch"),
        ({"$log": [{"$numberDecimal": "NaN"}, "a"]}, "TypeMismatch"),
        ({"$toDate": 5}, "ConversionFailure"),
        ({"$toInt": "2.5"}, "ConversionFailure"),
        ({"$toInt": {"$numberLong": "3000000000"}}, "ConversionFailure"),
        ({"$substrBytes": ["é", 0, 1]}, "BadValue"),
        ({"$range": [0, 2000000000]}, "ResultTooLarge"),
        ({"$switch": {"branches": [{"case": False, "then": 1}]}}, "NoBranch"),
        ({"$dateFromString": {"dateString": "nonsense"}}, "ConversionFailure"),
        (
            {"$dateToString": {"date": {"$date": "2024-01-01T00:00:00Z"}, "timezone": {"$concat": ["Mars", "/Base"]}}},
            "BadValue",
        ),
        ({"$regexMatch": {"input": "a", "regex": {"$concat": ["(?=", "a)"]}}}, "BadValue"),
    ],
    ids=lambda v: str(v)[:50],
)
def test_operator_fails(tree: Any, code: str) -> None:
    """What has no value fails with a code and the operator's place."""
    with pytest.raises(ExpressionError) as failed:
        run(tree)
    assert failed.value.code == code
    assert failed.value.path.startswith("e.$")


def test_types_of_results() -> None:
    """Whole results keep the narrowest type that the operands allow."""
    assert type_name(run({"$add": [1, 1]})) == "int"
    assert type_name(run({"$add": [1, {"$numberLong": "1"}]})) == "long"
    assert type(run({"$add": [1, {"$numberLong": "1"}]})) is Long
    assert type_name(run({"$add": [1, 1.0]})) == "double"
    assert type(run({"$sum": [{"$numberDecimal": "1"}, 1.5]})) is Decimal
    assert type(run({"$toUUID": "00112233-4455-6677-8899-aabbccddeeff"})) is Binary


def test_system_variables() -> None:
    """`$$NOW` and `$meta` come from the environment, and are missing where it has none."""
    assert run("$$NOW", now=Date(5)) == Date(5)
    assert run({"$currentDate": {}}, now=Date(5)) == Date(5)
    assert run("$$NOW") is MISSING
    assert run({"$meta": "stream.window.start"}, meta={"window": {"start": Date(7)}}) == Date(7)
    assert run({"$meta": "stream.window.start"}) is MISSING
    assert run("$$CURRENT.a.b", {"a": {"b": 1}}) == 1


def test_evaluation_is_bounded() -> None:
    """Loops inside loops stop when the budget is used up, long before memory is."""
    thousand = {"$range": [0, 1000]}
    nested = {"$map": {"input": thousand, "in": {"$map": {"input": thousand, "in": thousand}}}}
    with pytest.raises(ExpressionError, match="characters and items"):
        run(nested, budget=Budget(100_000))


def test_loops_are_bounded_by_their_steps() -> None:
    """A loop in a loop that makes nothing large still ends: each step takes what it costs, so few millions are too many."""
    two_thousand = {"$range": [0, 2_000]}
    inner = {"$reduce": {"input": two_thousand, "initialValue": 0, "in": {"$add": ["$$value", 1]}}}
    nested = {"$reduce": {"input": two_thousand, "initialValue": 0, "in": {"$add": ["$$value", inner]}}}
    with pytest.raises(ExpressionError, match="characters and items"):
        run(nested)


THOUSAND = "$a"


@pytest.mark.parametrize(
    "body",
    [
        {"$add": [{"$multiply": ["$$this", "$n"]}] * 300},
        {"$eq": [THOUSAND, THOUSAND]},
        {"$in": [-1, THOUSAND]},
        {"$sum": THOUSAND},
        {"$setEquals": [THOUSAND, THOUSAND]},
        {"$size": [[THOUSAND] * 50]},
        {"$indexOfCP": ["$s", "z"]},
        {"$eq": [{"x": {"y": THOUSAND}}, 1]},
        {"$switch": {"branches": [{"case": "$no", "then": 1}] * 500, "default": 2}},
        {"$size": "$objects.x.y"},
        {"$let": {"vars": {"v": THOUSAND}, "in": {"$max": "$$v"}}},
    ],
    ids=["wide", "eq", "in", "sum", "sets", "array", "text", "deep", "switch", "path", "let"],
)
def test_what_a_step_of_a_loop_reads_and_calls_counts(body: Any) -> None:
    """A step that makes nothing large, but goes through much, ends by the budget after few of them."""
    document = {"n": 1, "a": list(range(1000)), "s": "x" * 100_000, "objects": [{"x": {"y": 1}}] * 1000}
    with pytest.raises(ExpressionError, match="characters and items"):
        run(
            {"$reduce": {"input": {"$range": [0, 60_000]}, "initialValue": 0, "in": body}},
            document,
            budget=Budget(1_000_000),
        )


@pytest.mark.parametrize(
    "read",
    [
        {"$eq": ["$a", "$a"]},
        {"$ne": [{"x": {"y": "$a"}}, "$n"]},
        {"$in": [-1, "$a"]},
        {"$sum": "$a"},
        {"$stdDevPop": "$a"},
        {"$setEquals": ["$a", "$a"]},
        {"$indexOfArray": ["$a", -1]},
        {"$indexOfCP": ["$s", "z"]},
        {"$regexMatch": {"input": "$s", "regex": "z"}},
        {"$mergeObjects": "$objects"},
        {"$size": "$objects.x.y"},
        {"$isArray": [["$objects.x"]]},
    ],
    ids=["eq", "deep", "in", "sum", "deviation", "sets", "index", "text", "regex", "merge", "path", "inner-path"],
)
def test_what_calls_outside_of_loops_read_counts(read: Any) -> None:
    """A document that goes through much a thousand times, and makes nothing large, ends by the budget after few of them."""
    document = {"n": 1, "a": list(range(1000)), "s": "x" * 100_000, "objects": [{"x": {"y": 1}}] * 1000}
    with pytest.raises(ExpressionError, match="characters and items"):
        run({"$concat": [{"$toString": {"$eq": [read, 0]}}] * 1000}, document, budget=Budget(500_000))


@pytest.mark.parametrize(
    "look", [{"$size": "$a"}, {"$arrayElemAt": ["$a", 3]}, {"$first": "$a"}, {"$isArray": ["$a"]}, {"$type": "$a"}]
)
def test_a_look_at_an_array_is_no_reading_of_it(look: Any) -> None:
    """Outside of loops an operator that takes one item, or none, costs no more for a longer array."""
    assert run({"$sum": [{"$size": [[look]]}] * 1000}, {"a": list(range(1000))}, budget=Budget(50_000)) == 1000


def test_values_that_bind_forms_have_made_are_bounded_before_anyone_goes_through_them() -> None:
    """A value of 2 to the power of 40 parts, each a part of the next, is refused where a loop has made it, not where it is compared."""
    doubling = {"$reduce": {"input": {"$range": [0, 40]}, "initialValue": [1], "in": ["$$value", "$$value"]}}
    with pytest.raises(ExpressionError, match="characters and items"):
        run({"$eq": [doubling, doubling]}, budget=Budget(1_000_000))


def test_documents_that_share_parts_are_bounded() -> None:
    """A value that doubles at each level is refused by its full size, which sharing hides."""
    tree: Any = "$$x"
    for _ in range(40):
        tree = {"$let": {"vars": {"x": ["$$x", "$$x"]}, "in": tree}}
    tree = {"$let": {"vars": {"x": ["a"]}, "in": tree}}
    stage: Any = parse({"pipeline": [{"$source": {"documents": []}}, {"$addFields": {"big": tree}}]}).pipeline[1]
    outcome = stage.apply({"a": 1}, Environment({}, budget=Budget(1_000_000)))
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.document) == ("ResultTooLarge", {"a": 1})


@pytest.mark.parametrize(("action", "kind"), [("discard", Discarded), ("dlq", Failure), ("error", ValidationStop)])
def test_validation_actions(action: str, kind: type) -> None:
    """`$validate` says what becomes of a wrong document, with Atlas's reason."""
    tree = {"$validate": {"validator": {"a": 1}, "validationAction": action}}
    stage: Any = parse({"pipeline": [{"$source": {"documents": []}}, tree]}).pipeline[1]
    assert stage.apply({"a": 1}, Environment({})) == Passed(({"a": 1},))
    outcome: Outcome = stage.apply({"a": 2}, Environment({}))
    assert isinstance(outcome, kind)
    if not isinstance(outcome, Discarded | Passed):
        assert outcome.reason == "Input document found to be invalid in $validate stage."


QUERIES: list[tuple[Any, Any, bool]] = [
    ({"a": {"$gt": 5}}, {"a": [1, 6]}, True),
    ({"a": {"$gt": 5, "$lt": 3}}, {"a": [1, 6]}, True),
    ({"a": {"$elemMatch": {"$gt": 5, "$lt": 3}}}, {"a": [1, 6]}, False),
    ({"a": {"$elemMatch": {"$not": {"$gt": 5}}}}, {"a": [6, 1]}, True),
    ({"a": {"$ne": 1}}, {"a": [1, 2]}, False),
    ({"a": {"$not": {"$gt": 5}}}, {}, True),
    ({"a": {"$nin": [1, None]}}, {}, False),
    ({"a": None}, {}, True),
    ({"a.b": None}, {"a": 5}, True),
    ({"a.b": {"$exists": False}}, {"a": [1]}, True),
    ({"a.0": 7}, {"a": [7, 8]}, True),
    ({"a.1.b": 2}, {"a": [1, {"b": 2}]}, True),
    ({"a": {"$lt": 5}}, {"a": {"$numberDouble": "NaN"}}, False),
    ({"a": {"$gte": {"$numberDouble": "NaN"}}}, {"a": {"$numberDouble": "NaN"}}, True),
    ({"a": {"$lt": "5"}}, {"a": 4}, False),
    ({"a": {"$lte": None}}, {}, True),
    ({"a": {"$regex": "^x", "$options": "i"}}, {"a": ["b", "Xy"]}, True),
    ({"a": {"$in": [{"$regularExpression": {"pattern": "^x", "options": ""}}, 3]}}, {"a": "xy"}, True),
    ({"a": {"$mod": [4, -3]}}, {"a": -7}, True),
    ({"a": {"$bitsAllSet": [0, 2]}}, {"a": 5}, True),
    ({"a": {"$bitsAnyClear": 6}}, {"a": 6}, False),
    ({"a": {"$bitsAllSet": [200]}}, {"a": -1}, True),
    ({"a": {"$type": ["number", "string"]}}, {"a": 1.5}, True),
    ({"a": {"$type": 4}}, {"a": [1]}, True),
    ({"a": {"$all": []}}, {"a": []}, False),
    ({"a": {"$size": 1}}, {"a": [[1, 2]]}, True),
    ({"a": {"$gt": {"$minKey": 1}}}, {"a": "x"}, True),
    ({"$nor": [{"a": 1}, {"b": 1}]}, {"a": 2}, True),
    ({"$jsonSchema": {"properties": {"a": {"type": "number", "maximum": 5, "exclusiveMaximum": True}}}}, {"a": 5}, False),
    ({"$jsonSchema": {"patternProperties": {"^x": {"bsonType": "int"}}, "additionalProperties": False}}, {"x1": 1}, True),
    ({"$jsonSchema": {"properties": {"a": {"items": [{"bsonType": "int"}], "additionalItems": False}}}}, {"a": [1, 2]}, False),
    ({"$jsonSchema": {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}}, {"a": 1, "b": 1}, False),
    ({"$jsonSchema": {"properties": {"a": {"uniqueItems": True}}}}, {"a": [1, 1.0]}, False),
    ({"$jsonSchema": {"dependencies": {"a": ["b"]}, "not": {"required": ["c"]}}}, {"a": 1, "b": 2}, True),
    ({"$jsonSchema": {"properties": {"a": {"multipleOf": 0.5}}}}, {"a": 1.75}, False),
]  # fmt: skip


@pytest.mark.parametrize(("query", "document", "wanted"), QUERIES, ids=lambda v: str(v)[:50])
def test_query_matches(query: Any, document: Any, wanted: bool) -> None:
    """A query is true of a document, or not, as MongoDB's reference says."""
    stage: Any = parse({"pipeline": [{"$source": {"documents": []}}, {"$match": query}]}).pipeline[1]
    outcome = stage.apply(from_json(document), Environment({}))
    assert isinstance(outcome, Passed)
    assert bool(outcome.documents) is wanted


@pytest.mark.parametrize(
    "query",
    [
        {"a": {"$gt": 1, "b": 2}},
        {"$text": {}},
        {"a": {"$foo": 1}},
        {"a": {"$mod": [0, 1]}},
        {"a": {"$regex": "("}},
        {"a": {"$regex": "(?=a)"}},
        {"a": {"$options": "i"}},
        {"$jsonSchema": {"type": "integer"}},
        {"$jsonSchema": {"requird": []}},
        {"$and": []},
        [],
    ],
    ids=str,
)
def test_wrong_queries_are_refused(query: Any) -> None:
    """A query that means nothing is an error of the document."""
    with pytest.raises(InvalidDocument, match=r"pipeline\[1\]\.\$match"):
        parse({"pipeline": [{"$source": {"documents": []}}, {"$match": query}]})
