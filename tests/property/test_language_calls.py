"""Every operator and every query, on columns and on documents: the same values and errors, and the documents are not read again."""

import json
import random
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.every_operator import asked_of_a_field, call, expression
from tests.harness.interpreted import evaluate_rows
from tests.harness.share import CI, share
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.interpreter import evaluate_bounded
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.registry import OPERATORS
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.kernels import calls, verdict_of
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.query.parse import parse_predicate
from tidemark.shared.language.schema import parse_schema
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.values import MISSING, Value
from tidemark.shared.operators import frame
from tidemark.shared.operators.base import ARRIVAL
from tidemark.shared.operators.batches import documents_of, with_column
from tidemark.shared.operators.decode import decode
from tidemark.shared.operators.frame import Frame, evaluated
from tidemark.shared.operators.rows import environments

TYPES: Final = {"s": "string", "i": "int", "l": "long?", "d": "double?", "b": "bool?", "t": "date", "m": "decimal?"}
"""The declared fields; `x`, `a`, `p`, `o` and `n` are not."""
FIELDS: Final = ["$s", "$i", "$l", "$d", "$b", "$t", "$m", "$x", "$a", "$p", "$o", "$o.n", "$a.n", "$n", "$$NOW"]
CONSTANTS: Final = [0, 1, 3, 2.5, "a", "", True, None, {"$literal": {"$numberDecimal": "1.50"}}, {"$literal": [1, "a"]}]
_OF: Final[dict[str, list[Any]]] = {
    "s": ["", "a", "b 1", "é", "2013-01-01T00:00:00Z", "17", "-0.5"], "i": [0, 1, -3, 2**31 - 1], "l": [None, 0, -(2**63), 2**53 + 1, 12],
    "d": [None, 0.0, -0.0, 1.5, 1e300, 0.1, -7.25, 4.0], "b": [None, True, False], "t": [0, 1_362_441_600_123, -86_400_000],
    "m": [None, "0", "1.10", "-7E+3", "NaN"],
    "x": [None, 0, 3, 2.5, "a", True, [1, 2], {"y": 1}, {"$date": "2020-02-29T12:00:00Z"}, {"$numberDecimal": "3"}, {"$numberLong": "5"}],
    "a": [None, [], [1, "a", None], [[1], [2.5]], [{"n": 1}, {"n": "b"}], [3, 1, 2], ["b", "a"], "no array"],
    "p": [None, [], [{"k": "a", "v": 1}, {"k": "b", "v": [2]}], [["a", 1], ["b", 2], ["a", None]], [{"k": "a", "v": 1}, ["b", 2]],
          [["", {}]], [{"k": 1, "v": 2}], [{"k": "a\0", "v": 2}], [["a"]], [{"v": 1, "k": "é"}, {"k": "é", "v": "x", "z": 0}], [None],
          {"k": "a", "v": 1}],
    "o": [{}, {"n": 1, "y": [1]}, {"y": None}, {"n": "a"}, None, 5],
}  # fmt: skip


def _record(chooser: random.Random, kinds: dict[str, Any]) -> bytes:
    """A record; of each field the values that `kinds` has, a field without them or, here and there, all fields missing."""
    record: dict[str, Any] = {}
    for name, values in kinds.items():
        value = chooser.choice(values)
        if TYPES.get(name, "?").endswith("?") and chooser.random() < 0.1:
            continue
        if name == "t":
            value = {"$date": {"$numberLong": str(value)}}
        elif name == "m" and value is not None:
            value = {"$numberDecimal": value}
        elif name == "l" and value is not None:
            value = {"$numberLong": str(value)}
        record[name] = value
    return json.dumps(record).encode()


def _batch(chooser: random.Random, rows: int) -> pa.RecordBatch:
    """Records as a source has them; each field of few values or of all, so that columns have one type, or many."""
    kinds = {
        n: values if chooser.random() < 0.4 else chooser.sample(values, chooser.randint(1, 2))
        for n, values in _OF.items()
    }
    texts = [_record(chooser, kinds) for _ in range(rows)]
    decoded = decode(pa.array(texts, pa.binary()), parse_schema(TYPES, "schema", Problems({})))
    assert decoded.batch.num_rows == rows
    return with_column(decoded.batch, ARRIVAL, pa.array(range(rows), pa.int64()))


def _parsed(tree: Any) -> Any:
    problems = Problems()
    expr = parse_expression(tree, "e", Scope(problems))
    return None if problems.errors else expr


def _good(expr: Any, batch: pa.RecordBatch) -> list[tuple[int, Any, Any]]:
    """(row, its value on columns, on documents) of the rows that do not fail: which do, and why, is the same for both."""
    found = evaluated(expr, batch)
    wanted, failures = evaluate_rows(expr, environments(batch, documents_of(batch)))
    assert [(f.row, f.reason, f.path) for f in found.failures("")] == [(f.row, f.reason, f.path) for f in failures], (
        expr
    )
    bad = {f.row for f in failures}
    pairs = enumerate(zip(found.values(), wanted, strict=True))
    return [(row, cell, value) for row, (cell, value) in pairs if row not in bad]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_an_operator_gives_on_columns_what_it_gives_on_documents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside of branches, loops and variables, in batches of one row up, which are called as many rows are."""
    monkeypatch.setattr(calls, "FEW_ROWS", 0)
    chooser = random.Random(name)
    checked = 0
    for _ in range(8 if CI else 120):
        batch = _batch(chooser, chooser.choice((1, 3, 12, 70)))
        expr = _parsed(expression(chooser, name, chooser.sample([*FIELDS, *CONSTANTS], 4)))
        if expr is None:
            continue
        for row, cell, value in _good(expr, batch):
            assert (cell is MISSING) == (value is MISSING), (expr, row)
            assert cell is MISSING or encode_value(cell) == encode_value(value), (expr, row, cell, value)
        checked += 1
    assert checked


@pytest.mark.parametrize("name", share(sorted(name for name, operator in OPERATORS.items() if not operator.lazy), 6))
def test_documents_are_read_again_for_rows_that_fail_alone(name: str) -> None:
    """Of what an operator is asked on columns no row without an error goes to the interpreter as a whole."""
    chooser = random.Random(name)
    for _ in range(3 if CI else 60):
        batch = _batch(chooser, 400)
        known = [
            each for each in (*FIELDS, *CONSTANTS) if each != "$a.n"
        ]  # through an array, of which the documents tell
        expr = _parsed(call(chooser, name, chooser.sample(known, 4)))
        if expr is None:
            continue
        found = evaluated(expr, batch)
        assert found.interpreted_rows <= len(found.errors) + calls.FEW_ROWS, expr


@pytest.mark.parametrize(
    "tree",
    [
        {"$arrayElemAt": ["$a", {"$mod": [{"$toInt": "$k"}, 2]}]},
        {"$toUpper": {"$concat": ["$s", "$k"]}},
        {"$cond": [{"$gt": ["$i", 0]}, {"$toInt": "$k"}, "$i"]},
        {"$and": [{"$ne": ["$i", 1]}, {"$gt": [{"$toInt": "$k"}, 2]}]},
        {"$ifNull": ["$y", {"$toInt": "$k"}]},
        {"$switch": {"branches": [{"case": "$b", "then": {"$toInt": "$k"}}], "default": {"$toDate": "$s"}}},
        {"x": {"$size": "$k"}, "y": ["$s", {"$toInt": "$k"}]},
        [{"$add": [{"$size": "$a"}, {"$toInt": "$k"}]}],
    ],
)
def test_rows_on_which_an_expression_fails_are_called_in_the_part_that_fails(
    tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of many rows that differ has the interpreter's value or error, and it is interpreted as a whole for none of them."""
    batch = with_column(_batch(random.Random(3), 700), "k", pa.array(range(2**40, 2**40 + 700), pa.int64()))
    expr = _parsed(tree)
    values, failures = evaluate_rows(expr, environments(batch, documents_of(batch)))
    assert len(failures) > calls.FEW_ROWS
    whole: list[Any] = []

    def counted(expr: Any, env: Environment) -> Value:
        whole.append(expr)
        return evaluate_bounded(expr, env)

    monkeypatch.setattr(frame, "evaluate_bounded", counted)
    found = evaluated(expr, batch)
    assert [(f.row, f.reason, f.path) for f in found.failures("")] == [(f.row, f.reason, f.path) for f in failures]
    bad = {f.row for f in failures}
    good = [row for row in range(700) if row not in bad]
    assert [found.values()[row] for row in good] == [values[row] for row in good]
    assert len(whole) <= calls.FEW_ROWS


def test_a_batch_of_long_arrays_is_not_held_as_a_whole() -> None:
    """Beyond so many items rows are worked on one behind the other, with the same results."""
    batch = with_column(_batch(random.Random(1), 300), "k", pa.array(range(10_000, 10_300), pa.int32()))
    expr = _parsed({"$size": {"$range": [0, {"$toDouble": "$k"}]}})
    found = evaluated(expr, batch)
    assert 300 - 2 * calls.ITEMS_MAX // 10_000 < found.interpreted_rows < 300
    values, failures = evaluate_rows(expr, environments(batch, documents_of(batch)))
    assert found.values() == values
    assert not failures


def test_numbers_of_a_range_are_not_made_for_more_rows_than_there_is_room_for() -> None:
    """Those behind are interpreted, one by one, with the same results."""
    batch = with_column(_batch(random.Random(1), 300), "k", pa.array(range(20_000, 20_300), pa.int32()))
    expr = _parsed({"$size": {"$range": [0, "$k"]}})
    found = evaluated(expr, batch)
    assert 0 < found.interpreted_rows < 300
    assert found.values() == list(range(20_000, 20_300))


_FAR: Final = {"$date": {"$numberLong": "253402300800000"}}
_OLD: Final = {"$date": {"$numberLong": str(-(2**63))}}


@pytest.mark.parametrize(
    ("tree", "rows"),
    [
        pytest.param({"$strcasecmp": ["$t", "$s"]}, [{"t": _FAR, "s": "a"}], id="a date that has no text"),
        pytest.param(
            {"$toBool": "$x"}, [{"x": {"y": {"$numberDecimal": "1"}}}, {"x": []}], id="an object that is not read"
        ),
        pytest.param(
            {"$convert": {"input": "$x", "to": "bool"}},
            [{"x": [{"$numberDecimal": "1"}]}, {"x": {}}],
            id="an array that is not read",
        ),
        pytest.param(
            {"$regexMatch": {"input": "$s", "regex": "$p"}}, [{"s": "a"}, {"s": "b", "p": None}], id="no pattern"
        ),
        pytest.param(
            {"$regexFind": {"input": "$s", "regex": "$p"}}, [{"s": "a"}, {"s": "b", "p": None}], id="no pattern to find"
        ),
        pytest.param(
            {"$regexFindAll": {"input": "$s", "regex": "$p"}},
            [{"s": "a"}, {"s": "b", "p": None}],
            id="no pattern to find all of",
        ),
        pytest.param(
            {"$dateDiff": {"startDate": "$t", "endDate": "$e", "unit": "millisecond"}},
            [{"t": _OLD, "e": _FAR}],
            id="too many ms",
        ),
    ],
)
def test_a_batch_of_rows_that_are_hard_to_tell_is_the_interpreters(
    tree: Any, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values and errors, in a batch of many such rows whose texts differ."""
    monkeypatch.setattr(calls, "FEW_ROWS", 0)
    many = [rows[at % len(rows)] | ({"s": f"a{at}"} if "s" in rows[0] else {}) for at in range(200)]
    texts = [json.dumps(row).encode() for row in many]
    batch = decode(pa.array(texts, pa.binary()), parse_schema({}, "schema", Problems({}))).batch
    for row, cell, value in _good(_parsed(tree), batch):
        assert encode_value(cell) == encode_value(value), (row, cell, value)


_FEW: Final[dict[str, list[Any]]] = {
    "zone": ["UTC", "Europe/Berlin", "America/New_York"],
    "unit": ["hour", "day", "week"],
    "find": ["1", "ab", "."],
    "form": ["%Y", "%H:%M"],
    "place": [0, 1, 2],
}
"""Fields of few values; `text` and `at` have another one in each row."""


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize(
    "tree",
    [
        {"$hour": {"date": "$at", "timezone": "$zone"}},
        {"$dateToString": {"date": "$at", "format": "$form", "timezone": "$zone"}},
        {"$dateTrunc": {"date": "$at", "unit": "$unit"}},
        {"$dateAdd": {"startDate": "$at", "unit": "$unit", "amount": 3}},
        {"$dateDiff": {"startDate": "$at", "endDate": "$$NOW", "unit": "$unit"}},
        {"$regexMatch": {"input": "$text", "regex": "$find"}},
        {"$regexFind": {"input": "$text", "regex": "$find"}},
        {"$regexFindAll": {"input": "$text", "regex": "$find"}},
        {"$split": ["$text", "$find"]},
        {"$replaceAll": {"input": "$text", "find": "$find", "replacement": "$unit"}},
        {"$indexOfCP": ["$text", "$find"]},
        {"$trim": {"input": "$text", "chars": "$find"}},
        {"$round": ["$value", "$place"]},
        {"$getField": {"field": "$unit", "input": {"hour": "$at", "day": "$text", "week": "$value"}}},
    ],
)
def test_an_argument_of_few_values_is_a_constant_in_passes_of_their_own(
    tree: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter's values, and no row is called or interpreted by itself. most: values, also the same one in all rows."""
    chooser = random.Random(7)
    texts = [
        json.dumps(
            {name: chooser.choice(some[:most]) for name, some in _FEW.items()}
            | {
                "text": f"ab {row} 1ab.",
                "at": {"$date": {"$numberLong": str(10**12 + row * 12_345_678)}},
                "value": row / 7,
            }
        ).encode()
        for row in range(3_000)
    ]
    decoded = decode(pa.array(texts, pa.binary()), parse_schema({}, "schema", Problems({})))
    batch = with_column(decoded.batch, ARRIVAL, pa.array(range(10**12, 10**12 + 3_000), pa.int64()))
    expr = _parsed(tree)
    wanted, failures = evaluate_rows(expr, environments(batch, documents_of(batch)))
    assert not failures
    called: list[Any] = []
    monkeypatch.setattr(calls, "applied", lambda *each: called.append(each))
    found = evaluated(expr, batch)
    assert not called
    assert not found.interpreted_rows
    assert [encode_value(each) for each in found.values()] == [encode_value(each) for each in wanted]


@pytest.mark.parametrize(
    "tree",
    [
        {"$regexMatch": {"input": "$text", "regex": "$odd"}},
        {"$regexFindAll": {"input": "$text", "regex": "$odd"}},
        {"$split": ["$text", "$odd"]},
        {"$hour": {"date": "$at", "timezone": "$odd"}},
        {"$dateToString": {"date": "$at", "format": "$odd", "timezone": "$zone", "onNull": "$odd"}},
        {"$replaceAll": {"input": "$text", "find": "$odd", "replacement": "$zone"}},
        {"$getField": {"field": "$odd", "input": {"a": "$at"}}},
        {"$convert": {"input": "$text", "to": "$odd", "onError": "$zone"}},
    ],
)
def test_a_constant_of_some_rows_that_an_operator_does_not_take_fails_there_alone(tree: Any) -> None:
    """As in the interpreter: null, values of other types, patterns that do not compile, zones that nobody knows."""
    odd, zones = ["(", "a", None, 5, "b+", {"x": 1}, "UTC"], ["UTC", "nowhere", None, "Europe/Berlin", 7]
    rows = [{"odd": odd[row % 7], "zone": zones[row % 5], "text": f"ab{row}"} for row in range(2_100)]
    times = [{"at": {"$date": {"$numberLong": str(10**12 + row)}}} for row in range(2_100)]
    texts = [json.dumps(row | time).encode() for row, time in zip(rows, times, strict=True)]
    batch = decode(pa.array(texts, pa.binary()), parse_schema({}, "schema", Problems({}))).batch
    pairs = _good(_parsed(tree), batch)
    assert pairs
    assert all(
        cell is value if value is MISSING else encode_value(cell) == encode_value(value) for _, cell, value in pairs
    )


def test_the_remainder_of_infinity_is_the_interpreters() -> None:
    """Bit for bit: the processor's own has another sign."""
    texts = [b'{"x": {"$numberDouble": "-Infinity"}}', b'{"x": {"$numberDouble": "Infinity"}}'] * 100
    batch = decode(pa.array(texts, pa.binary()), parse_schema({}, "schema", Problems({}))).batch
    expr = _parsed({"$mod": ["$x", 5]})
    values, _ = evaluate_rows(expr, environments(batch, documents_of(batch)))
    assert [encode_value(each) for each in evaluated(expr, batch).values()] == [encode_value(each) for each in values]


@pytest.mark.parametrize(
    "asked", [{"$eq": None}, {"$ne": None}, {"$in": [None, "a"]}, {"$all": [None]}, {"$type": "null"}]
)
def test_a_place_behind_the_end_of_a_list_has_no_value(asked: dict[str, Any]) -> None:
    """Of a column of lists, too; a field that is no list has a missing one."""
    lists = pa.array([None, [], ["a"], [None], ["b", "a"]], pa.list_(pa.string()))
    batch = pa.record_batch({"ls": lists, "k": pa.array(range(5), pa.int32())})
    for index in ("0", "1"):
        problems = Problems()
        predicate = parse_predicate({f"ls.{index}": asked}, "q", Scope(problems))
        assert predicate is not None
        assert not problems.errors
        found, doubt = verdict_of(predicate, Frame(batch))
        sure = np.ones(5, np.bool_) if doubt is None else ~doubt
        wanted = np.array([matches(predicate, env) for env in environments(batch, documents_of(batch))])
        assert found[sure].tolist() == wanted[sure].tolist()


@pytest.mark.parametrize("seed", range(8 if CI else 80))
def test_a_query_holds_on_columns_where_it_holds_on_documents(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked of a field; only a row with an array on the way to the field is left to its document."""
    monkeypatch.setattr(calls, "FEW_ROWS", 0)
    chooser = random.Random(seed)
    constants = [*CONSTANTS[:8], {"$numberDecimal": "1.10"}, [1, 2], {"n": "a"}, {"$date": "2020-02-29T12:00:00Z"}]
    fields = [each.removeprefix("$") for each in FIELDS if each != "$$NOW"] + ["a.0", "a.1.n", "o.y.0"]
    for _ in range(25):
        batch = _batch(chooser, chooser.choice((1, 3, 12, 70)))
        query = {chooser.choice(fields): asked_of_a_field(chooser, constants) for _ in range(chooser.randint(1, 2))}
        problems = Problems()
        predicate = parse_predicate(query, "q", Scope(problems))
        if predicate is None or problems.errors:
            continue
        found, doubt = verdict_of(predicate, Frame(batch))
        wanted = [matches(predicate, env) for env in environments(batch, documents_of(batch))]
        sure = np.ones(batch.num_rows, np.bool_) if doubt is None else ~doubt
        assert found[sure].tolist() == np.array(wanted)[sure].tolist(), query
        assert sure.all() or any("." in name for name in query), query


@pytest.mark.parametrize("depth", [149, 150, 151, 170])
def test_what_is_compared_nests_no_deeper_than_the_interpreter_goes(depth: int) -> None:
    """Equal arrays are equal on columns as far as they are on documents, and fail behind it."""
    nested = "[" * depth + "1" + "]" * depth
    text = f'{{"a": {nested}, "x": {nested}}}'.encode()
    batch = decode(pa.array([text] * 300, pa.binary()), parse_schema({}, "schema", Problems({}))).batch
    expr = _parsed({"$eq": ["$a", "$x"]})
    wanted, failures = evaluate_rows(expr, environments(batch, documents_of(batch)))
    found = evaluated(expr, batch)
    assert found.values() == wanted
    assert len(found.errors) == len(failures)
