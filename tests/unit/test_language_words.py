"""What is said of documents that people really write: the meant form is shown, and nothing hides anything else."""

from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse

_SOURCE: dict[str, Any] = {"$source": {"documents": [{"a": 1}]}}
_WINDOW = {"size": 1, "unit": "minute"}


def _said(document: Any) -> str:
    with pytest.raises(InvalidDocument) as caught:
        parse(document)
    return str(caught.value)


def _warned(*stages: dict[str, Any]) -> list[str]:
    return [str(warning) for warning in parse({"pipeline": [_SOURCE, *stages]}).warnings]


def _grouped(group: dict[str, Any]) -> dict[str, Any]:
    return {"$tumblingWindow": {"interval": _WINDOW, "pipeline": [{"$group": group}]}}


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nname: b\npipeline: [{$source: {documents: []}}, {$nowhere: 1}]",
        '{"name": "a", "name": "b", "pipeline": [{"$source": {"documents": []}}, {"$nowhere": 1}]}',
    ],
)
def test_a_name_written_twice_hides_no_other_error(text: str) -> None:
    """Both are told, in YAML and in JSON."""
    said = _said(text)
    assert "written twice" in said
    assert "$nowhere" in said


def test_a_number_with_leading_zeros_is_refused_with_both_readings() -> None:
    """YAML 1.1 and 1.2 read it differently, so it is asked what is meant; other errors are told beside it."""
    said = _said("pipeline:\n - $source: {documents: []}\n - $addFields: {a: 010, b: 09, c: -007}\n - $nowhere: 1")
    assert "pipeline[1].$addFields.a (line 3): 010 is 8-based" in said
    assert "0o10" in said
    assert "b (line 3): 09 is 8-based" in said
    assert "c (line 3): -007" in said
    assert "$nowhere" in said
    assert parse('pipeline: [{$source: {documents: [{a: "010", b: 0, c: 0.5}]}}]').pipeline


@pytest.mark.parametrize(
    ("wrote", "meant"),
    [
        ("5m", "{size: 5, unit: minute}"),
        ("10 sec", "{size: 10, unit: second}"),
        ("250ms", "{size: 250, unit: ms}"),
        ("2 Hours", "{size: 2, unit: hour}"),
        ("1d", "{size: 1, unit: day}"),
        (300, "{size: 5, unit: minute}"),
        ("soon", "{size: 5, unit: minute}"),
    ],
)
def test_a_short_duration_is_shown_as_the_object_that_is_meant(wrote: Any, meant: str) -> None:
    """Who writes 5m sees what to write."""
    said = _said({"pipeline": [_SOURCE, {"$tumblingWindow": {"interval": wrote, "pipeline": []}}]})
    assert f"interval is an object such as {meant}, found {wrote!r}" in said


def test_an_expression_as_a_query_is_told_to_be_wrapped() -> None:
    """`$match` with an operator of expressions names `$expr`."""
    said = _said({"pipeline": [_SOURCE, {"$match": {"$gt": ["$a", 3]}}]})
    assert "wrap it in $expr, {$expr: {$gt: …}}" in said


@pytest.mark.parametrize(
    ("stage", "meant"),
    [
        (_grouped({"_id": None, "n": {"$total": 1}}), "did you mean $sum?"),
        (_grouped({"_id": None, "n": {"$mean": "$a"}}), "did you mean $avg?"),
        ({"$addFields": {"n": {"$exists": "$a"}}}, "did you mean $ifNull?"),
        ({"$addFields": {"n": {"$coalesce": ["$a", 0]}}}, "did you mean $ifNull?"),
        ({"$match": {"a": {"$exits": True}}}, "did you mean $exists?"),
        ({"$filter": {"a": 1}}, "did you mean $match?"),
        ({"$sink": {}}, "did you mean $emit?"),
    ],
)
def test_a_name_of_another_language_is_known(stage: dict[str, Any], meant: str) -> None:
    """The nearest name is the one that is meant, not the one with the most letters in common."""
    assert meant in _said({"pipeline": [_SOURCE, stage]})


@pytest.mark.parametrize(("wrote", "meant"), [("yes", "true"), ("On", "true"), ("no", "false"), ("off", "false")])
def test_a_truth_of_old_yaml_is_shown_as_the_new_one(wrote: str, meant: str) -> None:
    """`yes` is a text in YAML 1.2; where true is expected, that is said."""
    stage = {"$unwind": {"path": "$a", "preserveNullAndEmptyArrays": wrote}}
    assert f"{wrote} is a text here, as in YAML 1.2; write {meant}" in _said({"pipeline": [_SOURCE, stage]})


@pytest.mark.parametrize(("option", "value"), [("timeField", "ts"), ("timeField", 5), ("recordId", "id")])
def test_a_constant_that_can_only_fail_is_an_error(option: str, value: Any) -> None:
    """Without its dollar a field's name would make a dead letter of each record."""
    said = _said({"pipeline": [{"$source": {"documents": [], option: value}}]})
    assert f"pipeline[0].$source.{option}" in said
    assert "constant" in said
    assert type(value) is not str or f"the field is written ${value}" in said


@pytest.mark.parametrize(
    ("group", "place"),
    [
        ({"_id": "user"}, "$group._id: the key is the constant 'user' (the field is written $user)"),
        (
            {"_id": None, "n": {"$sum": "amount"}},
            "$group.n.$sum: $sum of the constant 'amount' (the field is written $amount)",
        ),
    ],
)
def test_a_constant_that_is_hardly_meant_is_a_warning(group: dict[str, Any], place: str) -> None:
    """The document runs, and its reader is told."""
    (warning,) = _warned(_grouped(group))
    assert place in warning


@pytest.mark.parametrize("group", [{"_id": None, "n": {"$sum": 1}}, {"_id": "$a", "n": {"$push": "x"}}])
def test_constants_that_are_meant_are_none(group: dict[str, Any]) -> None:
    """Counting by `$sum: 1`, one group by null, and pushing a text warn nobody."""
    assert _warned(_grouped(group)) == []


@pytest.mark.parametrize("word", ["yes", "No", "ON", "off"])
def test_a_truth_value_of_another_yaml_is_a_warning(word: str) -> None:
    """It is a text, as in YAML 1.2, and who wrote it hears so; in quotes nobody does."""
    text = "pipeline:\n - $source: {documents: []}\n - $match: {a: %s}"
    (warning,) = parse(text % word).warnings
    assert f"{word} is a text here, as in YAML 1.2: write" in str(warning)
    assert "(line 3)" in str(warning)
    assert parse(text % f"'{word}'").warnings == ()


@pytest.mark.parametrize(
    ("path", "meta"),
    [
        ("$_ts", "stream.source.ts"),
        ("$_stream_meta.source.topic", "stream.source.topic"),
        ("$_stream_meta.sourc.topik", "stream.source.topic"),
        ("$_stream_meta.windw.start", "stream.window.start"),
        ("$$ROOT._streamMeta.window.end", "stream.window.end"),
        ("$_stream_meta", "stream"),
    ],
)
def test_what_no_record_has_is_a_warning_with_its_meta(path: str, meta: str) -> None:
    """`_ts` and `_stream_meta` are null: the name by which it is asked for is shown, also of a misspelt one."""
    (warning,) = _warned({"$addFields": {"x": {"$ifNull": [path, 1]}}})
    assert f"{path.replace('$ROOT.', '')} is null unless" in warning
    assert f"{{$meta: {meta}}}" in warning


def test_what_the_document_itself_makes_or_declares_is_there() -> None:
    """A `_ts` that a stage computes, a schema declares, or the own documents have, warns nobody."""
    assert _warned({"$addFields": {"_ts": "$a"}}, {"$match": {"$expr": {"$gt": ["$_ts", 1]}}}) == []
    source = {"$source": {"documents": [{"_ts": 1}]}}
    assert parse({"pipeline": [source, {"$addFields": {"x": "$_ts"}}]}).warnings == ()


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"$addFields": {"x": {"$add": ["amount", 1]}}}, "$x.$add: fails for every record: $add takes"),
        ({"$addFields": {"x": {"$dateTrunc": {"date": "ts", "unit": "hour"}}}}, "(the field is written $ts)"),
        ({"$addFields": {"x": {"$map": {"input": "tags", "in": 1}}}}, "$map takes an array, found string"),
        ({"$redact": "KEEP"}, "expected $$DESCEND, $$PRUNE or $$KEEP"),
    ],
)
def test_a_call_that_can_only_fail_is_an_error(stage: dict[str, Any], said: str) -> None:
    """A forgotten dollar makes no stream of dead letters."""
    assert said.removeprefix("$x.") in _said({"pipeline": [_SOURCE, stage]})


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ({"$match": {"$expr": {"$gt": ["amount", 2]}}}, "is the same for every record; the constant 'amount'"),
        ({"$match": {"a": "$b"}}, "{$expr: {$eq: ['$a', '$b']}}"),
        ({"$addFields": {"x": {"$add": ["$a", "b"]}}}, "fails for every record that has a value there"),
        ({"$addFields": {"x": {"$cond": ["$a", {"$toInt": "no"}, 1]}}}, "fails for every record that comes to it"),
        (
            {"$sessionWindow": {"partitionBy": "user", "gap": _WINDOW, "pipeline": [{"$limit": 1}]}},
            "all records are one session",
        ),
        ({"$compute": {"class": "a:B", "key": "user"}}, "all records have one state"),
        (_grouped({"_id": None, "n": {"$max": "amount"}}), "$max of the constant 'amount'"),
    ],
)
def test_a_constant_that_may_be_meant_is_a_warning(stage: dict[str, Any], said: str) -> None:
    """What some records may not come to, or somebody may want, is told and runs."""
    (warning,) = _warned(stage)
    assert said in warning
