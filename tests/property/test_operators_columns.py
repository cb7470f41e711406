"""Keys, event times and conditions on columns are what they are on documents; pipelines of stages: `test_drawn_pipelines.py`."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn import parse_drawn
from tests.harness.interpreted import evaluate_rows
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import parse_schema
from tidemark.shared.language.stages import KafkaSource, Stateless
from tidemark.shared.language.values import canonical_key, encode_value, to_json
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.values import MISSING, Document
from tidemark.shared.operators import frame
from tidemark.shared.operators.base import ARRIVAL, KEY, PART, POS, TS, Out
from tidemark.shared.operators.batches import batch_of, documents_of, with_column
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.decode import decode
from tidemark.shared.operators.event_time import event_times
from tidemark.shared.operators.frame import evaluated, partial_documents
from tidemark.shared.operators.passing import KeyBy
from tidemark.shared.operators.program import through
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.specs import KeyBySpec
from tidemark.shared.operators.stages import judging

TYPES = {"s": "string", "i": "int", "l": "long?", "d": "double?", "b": "bool?", "t": "date"}
nested: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, 0, "a"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(st.tuples(st.sampled_from(["y", "z", "w", "é"]), inner), max_size=4).map(dict),
    ),
    max_leaves=8,
)
ordered = st.fixed_dictionaries(
    {"s": st.sampled_from(["", "a", "b", "é", "2013-01-01T00:00:00Z", "2013-13-01"]), "i": st.sampled_from([0, 1, -3, 2**31 - 1]),
     "t": st.integers(-(10**12), 2 * 10**12).map(lambda n: {"$date": {"$numberLong": str(n)}})},
    optional={"l": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), "d": st.one_of(st.none(), st.sampled_from([0.0, -0.0, 1.5])),
              "b": st.booleans(), "x": st.one_of(st.none(), st.integers(0, 3), st.just({"y": 1}), st.just([1, 2]), nested)},
)  # fmt: skip
documents = st.builds(lambda d, n: dict([*d.items()][n:] + [*d.items()][:n]), ordered, st.sampled_from([0, 0, 0, 1, 3]))
names = st.sampled_from([*TYPES, "x", "z"])
expressions: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        names.map(lambda n: f"${n}"),
        st.sampled_from([0, 1, 2.5, "a", True, None, "$x.y", "$x.y.z", "$$REMOVE", "$$ROOT", "$$CURRENT.x"]),
    ),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["$add", "$eq", "$gt", "$and", "$ifNull", "$multiply", "$concat"]), inner, inner).map(
            lambda t: {t[0]: [t[1], t[2]]}
        ),
        st.tuples(inner, inner, inner).map(lambda t: {"$cond": list(t)}),
        inner.map(lambda e: {"$toDate": e}),
        inner.map(lambda e: {"$hour": e}),
    ),
    max_leaves=4,
)  # fmt: skip


def _test(drawn: tuple[str, Any]) -> dict[str, Any]:
    """A test that is read, whatever its constant."""
    name, constant = drawn
    return {
        name: {"$exists": bool(constant), "$size": constant if type(constant) is int else 2, "$type": "array"}.get(
            name, constant
        )
    }


paths = st.sampled_from(["x", "x.y", "x.z.y", "x.w", "x.0", "x.y.0", "x.1.y", "z.y"])
constants = st.sampled_from([0, 1, "a", None, [], ["a"], [0, "a"], {"y": 1}])
ends: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.tuples(st.sampled_from(["$eq", "$gt", "$lte", "$ne", "$exists", "$size", "$type"]), constants).map(_test),
        st.lists(constants, max_size=3).map(lambda found: {"$in": found}),
    ),
    lambda inner: st.one_of(
        inner.map(lambda test: {"$not": test}),
        st.tuples(st.sampled_from(["y", "z", "y.z", "w", "0"]), inner).map(lambda t: {"$elemMatch": {t[0]: t[1]}}),
        inner.map(lambda test: {"$elemMatch": test}),
    ),
    max_leaves=2,
)
_keywords: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["object", "array", "string", "number", "int", "null", ["array", "null"]]).map(lambda kind: {"bsonType": kind}),
    st.sampled_from([
        {"minimum": 1}, {"maximum": 1, "exclusiveMaximum": True}, {"minLength": 1}, {"pattern": "^a"}, {"enum": [0, "a", None]},
        {"multipleOf": 2}, {"minItems": 1}, {"maxItems": 1}, {"uniqueItems": True}, {"required": ["y"]}, {"additionalProperties": False},
        {"minProperties": 1}, {"maxProperties": 1}, {"dependencies": {"y": ["z"]}},
        {"dependencies": {"y": {"minProperties": 2}, "w": ["z"]}}, {"additionalProperties": {"bsonType": "int"}},
        {"patternProperties": {"^y": {"bsonType": "int"}}},
    ]),
)  # fmt: skip
schemas: st.SearchStrategy[Any] = st.recursive(
    st.lists(_keywords, max_size=2).map(lambda parts: {name: value for part in parts for name, value in part.items()}),
    lambda inner: st.one_of(
        st.tuples(_keywords, st.dictionaries(st.sampled_from(["x", "y", "z", "w", "s", "i"]), inner, min_size=1, max_size=2)).map(
            lambda t: {**t[0], "properties": t[1]}
        ),
        st.tuples(_keywords, inner).map(lambda t: {**t[0], "items": t[1]}),
        st.lists(inner, min_size=1, max_size=2).map(lambda found: {"items": found}),
        st.tuples(st.sampled_from(["allOf", "anyOf", "oneOf"]), st.lists(inner, min_size=1, max_size=2)).map(lambda t: {t[0]: t[1]}),
        inner.map(lambda found: {"not": found}),
    ),
    max_leaves=5,
)  # fmt: skip
queries: st.SearchStrategy[Any] = st.one_of(
    schemas.map(lambda found: {"$jsonSchema": {"properties": {"x": found}}}),
    schemas.map(lambda found: {"$jsonSchema": found}),
    st.tuples(paths, ends).map(lambda t: {t[0]: t[1]}),
    st.tuples(names, st.sampled_from(["$eq", "$gt", "$lte", "$ne"]), st.sampled_from([0, 1, "a", None, 1.5, True])).map(
        lambda t: {t[0]: {t[1]: t[2]}}
    ),
    st.tuples(names, st.lists(st.sampled_from([0, 1, "a", "b", None]), max_size=3)).map(lambda t: {t[0]: {"$in": t[1]}}),
    st.tuples(names, st.booleans()).map(lambda t: {t[0]: {"$exists": t[1]}}),
    expressions.map(lambda e: {"$expr": e}),
)  # fmt: skip


def parsed(given_stages: Sequence[dict[str, Any]], **source: Any) -> tuple[KafkaSource, tuple[Stateless, ...]]:
    """The source and the stages of a document."""
    first = {"$source": {"connectionName": "c", "topic": "t", **source}}
    found = parse_drawn({"pipeline": [first, *given_stages]})
    assert isinstance(found.source, KafkaSource)
    return found.source, found.pipeline[1:]  # type: ignore[return-value]


def batch_of_records(given_documents: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """The records decoded: typed columns and RAW, with the engine's columns."""
    schema = parse_schema(TYPES, "schema", Problems({}))
    texts = [json.dumps(d).encode() for d in given_documents]
    batch = decode(pa.array(texts, type=pa.binary()), schema).batch
    for name, kind in ((TS, pa.int64()), (PART, pa.int32()), (POS, pa.int64()), (ARRIVAL, pa.int64())):
        batch = with_column(batch, name, pa.array(range(batch.num_rows), type=kind))
    return batch


def exact(found: Sequence[Document]) -> list[bytes]:
    """Documents to be compared, the order of their fields with them."""
    return [encode_value(d) for d in found]


def canonical(found: Sequence[Document]) -> list[bytes]:
    """Documents to be compared, in whatever order their fields are."""
    return exact([dict(sorted(d.items())) for d in found])


def told(letter: Document) -> list[bytes]:
    """A dead letter's document and the reason, to be compared."""
    return exact([letter["doc"]]) + canonical([letter["why"]])


def of(outs: Sequence[Out], port: str) -> list[Document]:
    return [d for o in outs if o.port == port for d in documents_of(o.batch)]


def test_many_rows_on_which_a_condition_fails_are_judged_by_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that it is true of go on, the others become letters with the interpreter's reasons; no row is taken as a whole."""
    whole = {"s": "a", "i": 1, "t": {"$date": "2024-01-01T00:00:00Z"}}
    given_documents = [{**whole, "k": 2**40 + i if i % 3 else i} for i in range(600)]
    (stage,) = parsed([{"$match": {"$expr": {"$gt": [{"$toInt": "$k"}, 300]}}}])[1]
    monkeypatch.setattr(judging, "matches", lambda predicate, _: pytest.fail(f"{predicate} is asked of a row"))
    staged = through([stage], batch_of_records(given_documents), NOWHERE)
    assert [d["k"] for d in documents_of(staged.batch)] == list(range(303, 600, 3))
    reasons = [d["errInfo"]["reason"] for d in of(staged.letters, DLQ)]
    assert reasons == [f"{2**40 + i} is out of the range of int" for i in range(600) if i % 3]


def test_an_array_without_objects_on_the_way_is_looked_at_as_a_column() -> None:
    """Of no items no test can be put; the rows stay on columns all the same."""
    _, chain = parsed([{"$match": {"x.y": {"$mod": [2, 0]}}}])
    batch = batch_of_records([{"s": "a", "i": 1, "t": {"$date": {"$numberLong": "0"}}, "x": [1, 2]}] * 300)
    staged = through(chain, batch, NOWHERE)
    assert (staged.batch.num_rows, staged.interpreted) == (0, 0)


@given(given_documents=st.lists(documents, max_size=6), expr=expressions)
@settings(max_examples=200)
def test_keys_are_the_canonical_bytes_of_the_interpreters_values(
    given_documents: list[dict[str, Any]], expr: Any
) -> None:
    """Vectorised or not, equal values have equal keys; a row on which the key fails is a dead letter."""
    key = parse_expression(expr, "e", Scope(Problems()))
    batch = batch_of_records(given_documents)
    outs = KeyBy(KeyBySpec(key, "pipeline[1].$compute.key")).on_batch(batch, "rows", "")
    values, failures = evaluate_rows(key, environments(batch, documents_of(batch)))
    bad = {f.row for f in failures}
    wanted = [canonical_key(v) for i, v in enumerate(values) if i not in bad]
    assert [k for o in outs if o.port == OUT for k in o.batch.column(KEY).to_pylist()] == wanted
    assert len(of(outs, DLQ)) == len(bad)


@given(given_documents=st.lists(documents, max_size=6),
       expr=st.one_of(expressions, names.map(lambda n: f"${n}"), names.map(lambda n: {"$toDate": f"${n}"})))  # fmt: skip
@settings(max_examples=200)
def test_event_times_are_the_interpreters(given_documents: list[dict[str, Any]], expr: Any) -> None:
    """Vectorised over columns as over the same documents without columns."""
    time_field = parse_expression(expr, "e", Scope(Problems()))
    batch = batch_of_records(given_documents)
    plain = batch_of(documents_of(batch), {n: batch.column(n) for n in (TS, PART, POS, ARRIVAL)})
    times, failures = event_times(batch, time_field)
    wanted, bad = event_times(plain, time_field)
    assert sorted((f.row, f.reason) for f in failures) == sorted((f.row, f.reason) for f in bad)
    assert times.tolist() == wanted.tolist()


@given(given_documents=st.lists(documents, max_size=3), others=st.lists(documents, max_size=3), expr=expressions,
       given_names=st.lists(names, min_size=1, max_size=3))  # fmt: skip
@settings(max_examples=200)
def test_what_few_different_rows_have_is_the_interpreters(
    given_documents: list[dict[str, Any]], others: list[dict[str, Any]], expr: Any, given_names: list[str]
) -> None:
    """Also where an expression without a kernel is interpreted once for each different row: same values, same errors in all rows."""
    added = {"$add": ["$$this", "$$value"]}
    source, _ = parsed(
        [],
        timeField={"$reduce": {"input": [f"${name}" for name in given_names], "initialValue": expr, "in": added}},
    )
    assert source.time_field is not None
    batch = batch_of_records(others + given_documents * 8)
    found = evaluated(source.time_field, batch)
    values, failures = evaluate_rows(source.time_field, environments(batch, documents_of(batch)))
    assert [(f.row, f.reason, f.path) for f in found.failures("")] == [(f.row, f.reason, f.path) for f in failures]
    bad = {f.row for f in failures}
    for row, (cell, wanted) in enumerate(zip(found.values(), values, strict=True)):
        assert row in bad or (cell is MISSING) == (wanted is MISSING)
        assert row in bad or cell is MISSING or encode_value(cell) == encode_value(wanted)


def test_an_expression_of_few_different_cells_is_interpreted_for_these_alone() -> None:
    """A hundred rows of two texts: twice."""
    source, _ = parsed([], timeField={"$getField": {"field": {"$concat": ["$s"]}, "input": {"abc": 1, "xby": 2}}})
    assert source.time_field is not None
    when = {"$date": {"$numberLong": "0"}}
    batch = batch_of_records([{"s": s, "i": i, "t": when} for i in range(50) for s in ("abc", "xby")])
    found = evaluated(source.time_field, batch)
    assert found.interpreted_rows == 2
    assert found.values() == [1, 2] * 50


def test_rows_are_told_apart_by_what_columns_have_of_undeclared_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many rows with few different values no more documents are made than there are different ones."""
    whole = {"s": "a", "i": 1, "t": {"$date": "2024-01-01T00:00:00Z"}}
    batch = batch_of_records([{**whole, "x": ["text", 7, {"y": [1]}][i % 3]} for i in range(600)])
    problems = Problems()
    expr = parse_expression({"$map": {"input": "$x", "as": "y", "in": "$$y"}}, "e", Scope(problems))
    problems.check()
    made: list[int] = []

    def counted(batch: pa.RecordBatch, names: frozenset[str]) -> list[Document]:
        made.append(batch.num_rows)
        return partial_documents(batch, names)

    monkeypatch.setattr(frame, "partial_documents", counted)
    reasons = {row: error.reason for row, error in evaluated(expr, batch).errors.items()}
    found = ["string", "int", "object"]
    assert reasons == {row: f"$map takes an array, found {found[row % 3]}" for row in range(600)}
    assert sum(made) <= 3


def test_common_stages_over_declared_fields_stay_on_columns() -> None:
    """What explain calls a kernel is one: no document is looked at; `$validate` looks only at those that are not valid."""
    _, chain = parsed([
        {"$validate": {"validator": {"i": {"$gte": -5}}}},
        {"$match": {"s": {"$in": ["a", "b"]}, "i": {"$gte": 0}}},
        {"$addFields": {"twice": {"$add": ["$i", "$i"]}, "at": {"$hour": "$t"}}},
        {"$project": {"s": 1, "twice": 1, "at": 1}},
    ])  # fmt: skip
    t = {"$date": {"$numberLong": "3600000"}}
    batch = batch_of_records([{"s": s, "i": i, "t": t} for s, i in (("a", 1), ("c", 1), ("b", -1), ("b", 2))])
    staged = through(chain, batch, NOWHERE)
    assert staged.interpreted == 0
    assert [to_json(d) for d in documents_of(staged.batch)] == [
        {"s": "a", "twice": 2, "at": 1},
        {"s": "b", "twice": 4, "at": 1},
    ]
