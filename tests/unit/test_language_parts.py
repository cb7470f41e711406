"""Schemas, lookups, constant arguments, patterns: the smaller parts of the language."""

from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.patterns import BadPattern, compile_pattern
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import SchemaMismatch, fit, parse_schema
from tidemark.shared.language.stages.base import Failure, Passed
from tidemark.shared.language.stages.looking_up import apply_lookup, lookup_keys
from tidemark.shared.language.values import (
    CodecError,
    ExtendedJsonError,
    codec,
    decode_doc,
    encode_value,
    parse_json,
    type_name,
)
from tidemark.shared.model.values import Date, Long

DOCUMENTS: dict[str, Any] = {"$source": {"documents": []}}


def _stages(*trees: dict[str, Any]) -> Any:
    return parse({"pipeline": [DOCUMENTS, *trees]}).pipeline[1:]


def _schema(tree: dict[str, str]) -> Any:
    problems = Problems()
    schema = parse_schema(tree, "schema", problems)
    problems.check()
    return schema


def test_documents_are_fitted_to_their_schema() -> None:
    """What loses nothing is converted, undeclared fields and the document that came stay as they are."""
    came = {"l": 5, "d": 2, "x": [1]}
    fitted = fit(came, _schema({"l": "long", "d": "double", "o": "string?"}))
    assert isinstance(fitted, dict)
    assert (type(fitted["l"]), type(fitted["d"]), fitted["x"]) == (Long, float, [1])
    assert type_name(came["l"]) == "int"


@pytest.mark.parametrize(
    "document", [{}, {"a": None}, {"a": "5"}, {"a": 2**40}, {"a": 1, "b": "x"}, {"a": 1, "b": 1.5}], ids=str
)
def test_what_does_not_fit_says_why(document: dict[str, Any]) -> None:
    """A missing, null or mistyped field is named; a question mark allows null and missing, not another type."""
    found = fit(document, _schema({"a": "int", "b": "int?"}))
    assert isinstance(found, SchemaMismatch)
    assert found.path in found.reason
    assert isinstance(fit({"a": 1, "b": None}, _schema({"a": "int", "b": "int?"})), dict)


def test_schemas_refuse_unknown_types_and_names() -> None:
    """Types are those of the language; names are top-level ones."""
    for tree in ({"a": "strin"}, {"a.b": "int"}, {"$a": "int"}, {"__ts": "long"}):
        with pytest.raises(InvalidDocument, match="schema"):
            _schema(tree)


def test_lookup_finds_by_equality_and_pipeline() -> None:
    """Foreign documents match by a field, through arrays, and by a pipeline that sees the variables."""
    table = {"connectionName": "c", "table": "t"}
    (stage,) = _stages(
        {
            "$lookup": {
                "from": table, "localField": "k", "foreignField": "id", "let": {"least": "$min"},
                "pipeline": [{"$match": {"$expr": {"$gte": ["$v", "$$least"]}}}, {"$project": {"_id": 0, "v": 1}}], "as": "f.g",
            }
        }
    )  # fmt: skip
    foreign: list[dict[str, Any]] = [
        {"id": 1, "v": 5},
        {"id": 1.0, "v": 7},
        {"id": [2, 1], "v": 9},
        {"id": 3, "v": 9},
        {"v": 9},
    ]
    outcome = apply_lookup(stage, {"k": 1, "min": 6, "f": {"x": 1}}, foreign, Environment({}))
    assert outcome == Passed(({"k": 1, "min": 6, "f": {"x": 1, "g": [{"v": 7}, {"v": 9}]}},))
    assert lookup_keys({}, ("id",)) == lookup_keys({"id": None}, ("id",))


def test_lookup_that_fails_is_a_failure() -> None:
    """An expression of the pipeline that fails sends the document to the dead letters."""
    tree = {"from": {"documents": []}, "let": {"x": {"$divide": [1, "$z"]}}, "pipeline": [], "as": "f"}
    (stage,) = _stages({"$lookup": tree})
    outcome = apply_lookup(stage, {"z": 0}, [{}], Environment({}))
    assert isinstance(outcome, Failure)
    assert (outcome.code, outcome.path) == ("DivisionByZero", "pipeline[1].$lookup.let.x.$divide")


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ({"$dateTrunc": {"date": "$t", "unit": "hours"}}, "$dateTrunc.unit"),
        (
            {"$dateAdd": {"startDate": "$t", "unit": "day", "amount": 1, "timezone": "Europe/Berln"}},
            "$dateAdd.timezone",
        ),
        (
            {"$dateDiff": {"startDate": "$t", "endDate": "$t", "unit": "week", "startOfWeek": "mo"}},
            "$dateDiff.startOfWeek",
        ),
        ({"$dateToString": {"date": "$t", "format": "%Q"}}, "$dateToString.format"),
        ({"$dateFromString": {"dateString": "$t", "format": "%Y-%Q"}}, "$dateFromString.format"),
        ({"$convert": {"input": "$t", "to": "integer"}}, "$convert.to"),
        ({"$regexMatch": {"input": "$t", "regex": "(?<=a)b"}}, "$regexMatch.regex"),
        ({"$let": {"vars": {"X": 1}, "in": 1}}, "$let.vars.X"),
        ({"$map": {"input": "$a", "as": "x", "in": "$$this"}}, "$map.in"),
        ({"$add": [1], "$subtract": [1, 2]}, "f"),
        ({"$divide": [1]}, "$divide"),
        ({"$function": {"body": "x"}}, "$function"),
        ({"$zip": {"inputs": []}}, "$zip"),
        ({"$zip": {"inputs": ["$a"], "defaults": [0]}}, "$zip"),
        ({"$percentile": {"input": "$a", "p": [2], "method": "approximate"}}, "$percentile"),
        ({"$median": {"input": "$a", "method": "exact"}}, "$median"),
        ({"$regexMatch": {"input": "$t", "regex": "a", "options": "q"}}, "$regexMatch.regex"),
        ({"$dateFromParts": {"year": 2024, "isoWeek": 2}}, "$dateFromParts"),
        ({"$meta": "textScore"}, "$meta"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_constant_arguments_are_checked_in_the_document(expression: Any, place: str) -> None:
    """What would be wrong for every record is an error of the document, at its place."""
    with pytest.raises(InvalidDocument) as refused:
        _stages({"$project": {"f": expression}})
    assert place in str(refused.value)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ({"$dateAdd": {"startDate": "$t", "unit": "days", "amount": 1}}, "did you mean day? Accepted: year, "),
        (
            {"$dateTrunc": {"date": "$t", "unit": "week", "startOfWeek": "mondy"}},
            "did you mean monday? Accepted: sunday, ",
        ),
        ({"$convert": {"input": "$t", "to": "doubel"}}, "did you mean double? Accepted: int, "),
        ({"$topN": {"n": 1}}, "belongs into $group"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_words_among_constants_are_met_with_the_nearest(expression: Any, hint: str) -> None:
    """A constant that is none of the known words is answered with those, and with the nearest."""
    with pytest.raises(InvalidDocument) as refused:
        _stages({"$project": {"f": expression}})
    assert hint in str(refused.value)


def test_patterns_run_in_linear_time() -> None:
    """A pattern that explodes in a backtracking engine answers at once; what needs backtracking is refused."""
    assert compile_pattern("(a*)*b").search("a" * 50_000) is None
    with pytest.raises(BadPattern, match="look-around"):
        compile_pattern(r"(a)\1")
    assert compile_pattern("a b\\ c [ #] # comment", "x").search("ab c#") is not None


@pytest.mark.parametrize(
    "text",
    [
        '{"a": {"$date": "yesterday"}}',
        '{"a": {"$numberInt": "3000000000"}}',
        '{"a": {"$oid": "xyz"}}',
        '{"a": {"$oid": "5a b9cbfa31c2ab715d4212"}}',
        '{"a": {"$numberLong": "1_000"}}',
        '{"a": {"$numberLong": " 1"}}',
        '{"a": {"$numberDouble": "1_0"}}',
        "{",
        "[" * 500 + "]" * 500,
    ],
)
def test_wrong_extended_json_is_refused(text: str) -> None:
    """Malformed types, malformed text and deep nesting are errors with a reason."""
    with pytest.raises(ExtendedJsonError):
        parse_json(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (b"\xef\xbb\xbf{}", "a byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-be"), "UTF-16"),
        (b"\x00\x00\x00\x00\x07\x02ab", "a record of a schema registry"),
    ],
)
def test_what_producers_write_in_the_place_of_json_is_told_by_its_name(text: bytes, hint: str) -> None:
    """The first bytes tell it; the place alone would say nothing to who wrote them."""
    with pytest.raises(ExtendedJsonError, match=hint):
        parse_json(text)


def test_extended_json_types() -> None:
    """Integers take the type that their size asks for, dates come in three forms."""
    found = parse_json(
        '[1, 3000000000, 1.0, 123456789012345678901, {"$date": 5}, {"$date": "2024-03-05T12:00:00+01:00"}]'
    )
    assert [type_name(v) for v in found] == ["int", "long", "double", "double", "date", "date"]
    assert found[4:] == [Date(5), Date(1_709_636_400_000)]


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x81\xa1a\xc4\x01Q", b"\x81\xa1a\xc4\x00", b"\x93\x01\x02\x03", b"\x81\x01\x02", b"\xd4\x01\x00"],
)
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    """Truncated, unknown and foreign bytes are an error of the codec, never something else."""
    with pytest.raises(CodecError):
        decode_doc(data)


def test_codec_bounds_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value beyond the bound is refused on both sides."""
    data = encode_value(["x" * 1000])
    monkeypatch.setattr(codec, "SIZE_MAX_BYTES", 100)
    with pytest.raises(CodecError, match="at most 100"):
        encode_value(["x" * 1000])
    with pytest.raises(CodecError, match="at most 100"):
        decode_doc(data)
