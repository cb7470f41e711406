"""Slips of the fingers that leave a valid document: names that nothing writes, and dollars that were forgotten."""

from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.stages.base import ValidationStop
from tidemark.shared.model.failures import is_lasting
from tidemark.shared.operators.staged import InvalidInput, stopped

_ROWS = [{"at": {"$date": "2026-01-01T00:00:00Z"}, "user": "ann", "amount": 3}]
_TOTALS = {"$group": {"_id": "$user", "total": {"$sum": "$amount"}}}


def _window(*inner: Any) -> dict[str, Any]:
    return {"$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": list(inner)}}


def _closed(*stages: Any) -> list[str]:
    """The warnings of a document whose records are known."""
    return [
        str(w) for w in parse({"pipeline": [{"$source": {"documents": _ROWS, "timeField": "$at"}}, *stages]}).warnings
    ]


def _looked(foreign: str, *stages: Any) -> dict[str, Any]:
    table = {"documents": [{"name": "ann", "age": 3}]}
    return {
        "$lookup": {"from": table, "localField": "user", "foreignField": foreign, "pipeline": list(stages), "as": "b"}
    }


def _topic(*stages: Any, **source: Any) -> dict[str, Any]:
    kafka = {"type": "kafka", "bootstrapServers": "localhost:9092"}
    return {
        "connections": {"k": kafka, "s": {"type": "sql", "url": "sqlite:///x"}},
        "pipeline": [{"$source": {"connectionName": "k", "topic": "orders", **source}}, *stages],
    }


_SCHEMA = {"id": "int", "amount": "decimal", "at": "string", "paid": "bool?"}


def _open(*stages: Any) -> list[str]:
    """The warnings of a document of which some fields are declared."""
    return [str(w) for w in parse(_topic(*stages, schema=_SCHEMA, timeField={"$toDate": "$at"})).warnings]


@pytest.mark.parametrize(
    ("stage", "name", "near"),
    [
        ({"$match": {"uesr": "ann"}}, "uesr", "user"),
        ({"$addFields": {"x": {"$add": ["$amout", 1]}}}, "amout", "amount"),
        ({"$unset": "Amount"}, "Amount", "amount"),
        ({"$project": {"usr": 1}}, "usr", "user"),
        (_window({"$group": {"_id": "$usr"}}), "usr", "user"),
        (_window(_TOTALS, {"$sort": {"totals": -1}}), "totals", "total"),
        ({"$lookup": {"from": {"documents": []}, "localField": "usr", "foreignField": "a", "as": "b"}}, "usr", "user"),
        ({"$compute": {"class": "a:B", "key": "$usr"}}, "usr", "user"),
        (_looked("nmae"), "nmae", "name"),
        (_looked("name", {"$project": {"nam": 1}}), "nam", "name"),
    ],
)
def test_a_field_that_no_document_has_is_named_with_the_nearest(stage: dict[str, Any], name: str, near: str) -> None:
    """Where the text tells all fields, a stage that reads another one hears so."""
    (warning,) = _closed(stage)
    assert f"reads {name}, which no document has here" in warning
    assert warning.endswith(f"did you mean {near}?")


def test_each_side_of_a_join_is_judged_by_its_own_fields() -> None:
    """The right key is of the right stream, and `as` is there behind it."""
    right = [{"$source": {"documents": [{"at": {"$date": 0}, "owner": "ann"}], "timeField": "$at"}}]
    join = {"from": right, "leftKey": "$user", "rightKey": "$owner", "within": {"before": 0, "after": 0}, "as": "r"}
    assert _closed({"$join": join}, {"$addFields": {"o": "$r.owner"}}) == []
    (warning,) = _closed({"$join": {**join, "rightKey": "$user"}})
    assert "$join.rightKey: reads user, which no document has here (fields: at, owner)" in warning


def test_a_target_that_is_found_by_a_field_of_no_document_is_an_error() -> None:
    """Each document would become a dead letter."""
    merge = {"$merge": {"into": {"connectionName": "s", "table": "t"}, "on": ["_id", "minut"]}}
    shaped = {"$project": {"minute": {"$meta": "stream.window.start"}, "total": 1}}
    with pytest.raises(InvalidDocument, match=r"\$merge.on: no document has minut here.*did you mean minute\?"):
        parse(_topic(_window(_TOTALS, shaped), merge))
    parse(_topic(merge))  # of a topic others may come


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (
            {"$match": {"amoutn": {"$gt": 3}}},
            "reads 'amoutn', which is neither declared nor written in front of it; did you mean amount?",
        ),
        ({"$addFields": {"x": "$amount "}}, "did you mean amount?"),
        ({"$addFields": {"x": "$Paid"}}, "did you mean paid?"),
        ({"$redact": {"$cond": ["$shop ", "$$KEEP", "$$PRUNE"]}}, "reads 'shop ', a name with a blank at its end"),
        (
            {"$match": {"$expr": {"$let": {"vars": {"a": 1}, "in": {"$eq": ["amount", "$$a"]}}}}},
            "(the field is written $amount)",
        ),
        ({"$addFields": {"x": "$shop "}}, "reads 'shop ', a name with a blank at its end; did you mean shop?"),
        ({"$match": {"amount": "3"}}, "amount is declared decimal, and none is equal to, above or below '3'"),
        ({"$match": {"$expr": {"$gt": ["$amount", "3"]}}}, "amount is declared decimal"),
        ({"$addFields": {"x": "amount"}}, "is the constant 'amount' (the field is written $amount)"),
        (_window({"$group": {"_id": None, "all": {"$push": {"n": "amount"}}}}), "the field is written $amount"),
    ],
)
def test_a_name_that_is_nearly_a_known_one_is_doubtful(stage: dict[str, Any], said: str) -> None:
    """Records may have other fields than those declared, but hardly one so like them."""
    (warning,) = _open(stage)
    assert said in warning


@pytest.mark.parametrize(
    "stage",
    [
        {"$match": {"shop": "north", "price1": {"$gt": 3}, "id": 3, "amount": None, "paid": True}},
        {
            "$addFields": {
                "x": "$amounts",
                "y": "$idx",
                "kind": "order",
                "z": {"hour": "$h", "max": "$m", "size": [1, 2]},
            }
        },
        {"$project": {"_id": 0, "amount": 1}},
        _window({"$group": {"_id": {"hour": "$h"}, "n": {"$push": "order"}}}),
    ],
)
def test_what_may_be_meant_is_not_doubted(stage: dict[str, Any]) -> None:
    """Fields that are not declared, constants, and fields with the names of operators."""
    assert _open(stage) == []
    assert _closed({"$project": {"_id": 0, "user": 1}}) == []


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"$match": {"shop": {"in": ["a"]}}}, "the operator is written $in"),
        ({"$match": {"amount": {"gt": 0}}}, "the operator is written $gt"),
        ({"$match": {"amount": {"$gt": {"$gt": 0}}}}, "in which $gt is no operator"),
        ({"$match": {"shop": {"shop": {"$in": ["a"]}}}}, "in which $in is no operator"),
        ({"$match": {"shop": [{"$in": ["a"]}]}}, "in which $in is no operator"),
        ({"$match": {"shop": {}}}, "compares with an empty document"),
        ({"$match": {"shop": '{"$in": ["a"]}'}}, "an operator stands there without quotes"),
        ({"$match": {"or": [{"a": 1}, {"b": 1}]}}, "the operator is written $or"),
        ({"$match": {"shop": {"$in": []}}}, "$in of no values is true of no record"),
        ({"$match": {"$expr": {"gt": ["$amount", 3]}}}, "each record goes through"),
        ({"$match": {"$expr": "amount"}}, "each record goes through"),
        ({"$match": {"$expr": None}}, "no record goes through"),
        ({"$validate": {"validator": {"required": ["a"]}}}, "a JSON Schema stands under $jsonSchema"),
        ({"$validate": {"validator": {"jsonSchema": {"required": ["a"]}}}}, "the operator is written $jsonSchema"),
        ({"$addFields": {"x": {"toUpper": "$shop"}}}, "the operator is written $toUpper"),
        ({"$addFields": {"x": {"multiply": ["$a", 2]}}}, "the operator is written $multiply"),
        ({"$addFields": {"x": {"cond": ["$a", 1, 2]}}}, "the operator is written $cond"),
        ({"$addFields": {"x": {"map": {"input": "$a", "in": 1}}}}, "the operator is written $map"),
        ({"$addFields": {"x": {"meta": "stream.window.start"}}}, "the operator is written $meta"),
        ({"$addFields": {"x": '{"$toUpper": "$shop"}'}}, "an expression stands there without quotes"),
    ],
)
def test_an_operator_without_its_dollar_is_doubtful(stage: dict[str, Any], said: str) -> None:
    """It is a field, a constant, or a test that is the same for every record."""
    assert any(said in warning for warning in _open(stage)), _open(stage)


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (["$at"], "timeField is an array, which is no date"),
        ({"$toDate": None}, r"timeField is \$toDate of null, which is no date"),
        ({"toDate": "$at"}, "timeField is a document, which is no date"),
        ("$at", r"timeField is \$at, which schema declares as string, and no date; {\$toDate: \$at} makes one of it"),
        ("$id", r"timeField is \$id, which schema declares as int, and no date$"),
    ],
)
def test_an_event_time_that_is_never_a_date_is_an_error(time: Any, said: str) -> None:
    """Each record would become a dead letter."""
    with pytest.raises(InvalidDocument, match=said):
        parse(_topic(schema=_SCHEMA, timeField=time))


def test_a_new_root_that_is_an_array_is_an_error() -> None:
    """As one that is a text: each record would become a dead letter."""
    with pytest.raises(InvalidDocument, match="the new root must be a document, found array"):
        parse(_topic({"$replaceRoot": {"newRoot": ["$a", {"b": 1}]}}))


def test_a_format_is_not_doubted_because_no_sample_has_it() -> None:
    """Samples of texts are none of a log's times."""
    time = {"$dateFromString": {"dateString": "$at", "format": "%d/%b/%Y:%H:%M:%S %z"}}
    assert parse(_topic(timeField=time)).warnings == ()


def test_a_refused_document_ends_the_processor() -> None:
    """It comes again with each generation, so trying again never ends."""
    error = stopped(ValidationStop("no", "pipeline[1].$validate", {}))
    assert isinstance(error, InvalidInput)
    assert is_lasting(error)


@pytest.mark.parametrize(
    ("source", "doubted"),
    [
        ({"timeField": "$at"}, True),
        ({"timeField": "$meta.at"}, True),
        ({"timeField": "$at", "schema": {"at": "date"}}, False),
        ({"timeField": {"$toDate": "$at"}}, False),
        ({"timeField": "$at", "format": "messagePack"}, False),
        ({"timeField": "$$ROOT"}, False),
        ({}, False),
    ],
)
def test_a_time_that_json_has_as_a_text_is_told(source: dict[str, Any], doubted: bool) -> None:
    """Every record would be a dead letter, and a processor that runs would give nothing."""
    told = [str(w) for w in parse(_topic({"$emit": {"connectionName": "k", "topic": "t"}}, **source)).warnings]
    assert any("$toDate" in line and "timeField" in line for line in told) == doubted, told
