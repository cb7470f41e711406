"""Columns of undeclared fields: what they say is what the documents say, in JSON and encoded, whatever stands beside."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.property.test_operators_columns import canonical, exact, of, parsed
from tidemark.shared.language.expressions.ast import Expr
from tidemark.shared.language.expressions.environment import RESULT_UNITS_MAX, Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.expressions.parse import parse_expression
from tidemark.shared.language.expressions.paths import read_path
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages import Match
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import encode_value, parse_json
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import MISSING, Document
from tidemark.shared.operators.base import ARRIVAL, PART, POS, RAW, TS
from tidemark.shared.operators.batches import (
    batch_of,
    declared_columns,
    documents_of,
    user_columns,
    values_of,
    with_column,
)
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.event_time import event_times
from tidemark.shared.operators.extracted import extracted
from tidemark.shared.operators.frame import Frame, evaluated
from tidemark.shared.operators.program import through
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.stages.judging import judged

_ODD = st.sampled_from(
    [
        None,
        True,
        "a",
        "2024-03-05T12:00:00Z",
        0,
        -0.0,
        1.5,
        2**31,
        -(2**31) - 1,
        2**70,
        [],
        [1, "a"],
        [{"p": 1}],
        {},
        {"p": 2},
        {"$date": {"$numberLong": "5"}},
        {"$numberLong": "7"},
        {"$numberDecimal": "1.5"},
        {"$oid": "0" * 24},
        {"$odd": 1},
        {"p": {"$date": 3}},
    ]
)
_USUAL = {
    "s": st.sampled_from(["", "a", "b", "é", "12", "2024-03-05T12:00:00Z"]),
    "i": st.integers(-3, 3),
    "d": st.sampled_from([0.0, 0.5, -1.5]),
    "b": st.booleans(),
    "l": st.just(2**40),
    "t": st.just({"$date": {"$numberLong": "86400000"}}),
    "n": st.fixed_dictionaries(
        {"p": st.integers(0, 3)}, optional={"q": st.sampled_from(["x", "y"]), "m": st.just({"p": 1})}
    ),
}
NAMES = [*_USUAL, "n.p", "n.q", "n.m.p", "i.p", "z"]


@st.composite
def rows_of_documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Documents most of whose fields have their usual type."""
    found = []
    for _ in range(draw(st.integers(1, 7))):
        document = {name: draw(usual) for name, usual in _USUAL.items()}
        for name in draw(st.lists(st.sampled_from(list(_USUAL)), max_size=2)):
            document[name] = draw(_ODD)
        for name in draw(st.lists(st.sampled_from(list(_USUAL)), max_size=2)):
            document.pop(name, None)
        found.append(document)
    return found


def batch(documents: Sequence[dict[str, Any]], *, encoded: bool) -> pa.RecordBatch:
    """The documents as they came, or encoded, with the engine's columns."""
    texts = [json.dumps(document).encode() for document in documents]
    made = (
        batch_of([parse_json(text) for text in texts])
        if encoded
        else pa.RecordBatch.from_arrays([pa.array(texts, pa.binary())], names=[RAW])
    )
    for name, kind in ((TS, pa.int64()), (PART, pa.int32()), (POS, pa.int64()), (ARRIVAL, pa.int64())):
        made = with_column(made, name, pa.array(range(made.num_rows), type=kind))
    return made


expressions: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.sampled_from(NAMES).map(lambda n: f"${n}"), st.sampled_from([0, 1, 2.5, "a", True, None])),
    lambda inner: st.one_of(
        st.tuples(
            st.sampled_from(["$add", "$eq", "$gt", "$and", "$ifNull", "$subtract", "$concat", "$cmp"]), inner, inner
        ).map(lambda t: {t[0]: [t[1], t[2]]}),
        st.tuples(inner, inner, inner).map(lambda t: {"$cond": list(t)}),
        st.tuples(st.sampled_from(["$toDate", "$toInt", "$toLong", "$not", "$abs", "$toString"]), inner).map(
            lambda t: {t[0]: t[1]}
        ),
        inner.map(lambda e: {"$arrayElemAt": [{"$split": [e, "T"]}, 1]}),
        inner.map(lambda e: {"$regexMatch": {"input": e, "regex": "^[a2]"}}),
        inner.map(lambda e: {"$dateFromString": {"dateString": e, "format": "%Y-%m-%dT%H:%M:%SZ"}}),
        st.tuples(inner, inner, inner).map(
            lambda t: {"$switch": {"branches": [{"case": t[0], "then": t[1]}], "default": t[2]}}
        ),
    ),
    max_leaves=4,
)
computed = expressions.filter(lambda e: isinstance(e, dict) or (isinstance(e, str) and e.startswith("$")))
_SCHEMAS: st.SearchStrategy[Any] = st.deferred(
    lambda: st.fixed_dictionaries(
        {},
        optional={
            "bsonType": st.lists(
                st.sampled_from(["object", "string", "int", "long", "double", "null", "number", "date"]),
                min_size=1,
                unique=True,
            ),
            "required": st.lists(st.sampled_from(["s", "i", "n", "p", "q", "z"]), min_size=1, unique=True),
            "properties": st.dictionaries(
                st.sampled_from(["s", "i", "d", "n", "p", "q", "t", "l"]), _SCHEMAS, max_size=2
            ),
            "enum": st.lists(st.sampled_from([None, "a", "x", 1, 0, True]), min_size=1, unique_by=repr),
            "minimum": st.sampled_from([0, -1.5, 2]),
            "maximum": st.sampled_from([0, 1.5]),
            "pattern": st.sampled_from(["^a", "[0-9]", "é$"]),
            "minLength": st.just(1),
            "maxLength": st.just(1),
            "not": st.sampled_from([{"bsonType": "string"}, {"required": ["s"]}]),
            "anyOf": st.just([{"bsonType": "int"}, {"required": ["p"]}, {"properties": {"i": {"minimum": 1}}}]),
        },
    )
)
predicates: st.SearchStrategy[Any] = st.one_of(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from(["$eq", "$gt", "$lte", "$ne"]),
        st.sampled_from([0, 1, "a", None, 1.5, {"p": 1}]),
    ).map(lambda t: {t[0]: {t[1]: t[2]}}),
    st.tuples(st.sampled_from(NAMES), st.booleans()).map(lambda t: {t[0]: {"$exists": t[1]}}),
    st.tuples(st.sampled_from(NAMES), st.lists(st.sampled_from([0, 1, "a", None]), max_size=3)).map(
        lambda t: {t[0]: {"$in": t[1]}}
    ),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["string", "object", "null", "number", "array"])).map(
        lambda t: {t[0]: {"$type": t[1]}}
    ),
    expressions.map(lambda e: {"$expr": e}),
    _SCHEMAS.map(lambda s: {"$jsonSchema": s}),
)


@given(
    documents=rows_of_documents(),
    encoded=st.booleans(),
    names=st.lists(st.sampled_from(NAMES), min_size=1),
)
@settings(max_examples=200)
def test_a_column_says_what_the_documents_say(documents: list[dict[str, Any]], encoded: bool, names: list[str]) -> None:
    """Value for value, type for type; a null cell is null or missing as the column says."""
    rows = batch(documents, encoded=encoded)
    paths = [tuple(name.split(".")) for name in names]
    for path, column in extracted(rows, paths).items():
        kind = column.values.type
        cells = [None] * rows.num_rows if column.type == "null" else values_of(column.values, pa.field("", kind))
        doubt = [False] * rows.num_rows if column.doubt is None else column.doubt.tolist()
        for cell, document, doubtful in zip(cells, documents_of(rows), doubt, strict=True):
            wanted = read_path(document, path)
            if doubtful:
                continue
            if cell is None:
                assert (wanted is None and not column.absent) or (wanted is MISSING and column.missing)
            elif column.type == "object":
                assert type(wanted) is dict
            else:
                assert encode_value(cell) == encode_value(wanted)


@given(documents=rows_of_documents(), encoded=st.booleans(), query=predicates)
@settings(max_examples=400)
def test_a_query_is_judged_as_by_the_interpreter(documents: list[dict[str, Any]], encoded: bool, query: Any) -> None:
    """Schemas among them; of doubtful rows nothing is said."""
    _, (stage,) = parsed([{"$match": query}])
    assert isinstance(stage, Match)
    rows = batch(documents, encoded=encoded)
    passes, doubt = judged(stage.predicate, Frame(rows))
    for document, passed, doubtful in zip(documents_of(rows), passes.tolist(), doubt.tolist(), strict=True):
        assert doubtful or passed == matches(stage.predicate, Environment(document))


@given(documents=rows_of_documents(), encoded=st.booleans(), tree=expressions)
@settings(max_examples=400)
def test_an_expression_is_what_the_interpreter_gives(documents: list[dict[str, Any]], encoded: bool, tree: Any) -> None:
    """Values of the same types, missing ones too, and the same errors, whatever had a kernel."""
    expr = parse_expression(tree, "e", Scope(Problems()))
    rows = batch(documents, encoded=encoded)
    found = evaluated(expr, rows)
    for row, (document, cell) in enumerate(zip(documents_of(rows), found.values(), strict=True)):
        wanted, error = _evaluated(expr, document)
        failed = found.errors.get(row)
        assert (failed and (failed.reason, failed.path)) == (error and (error.reason, error.path))
        assert failed or (cell is MISSING) == (wanted is MISSING)
        assert failed or cell is MISSING or encode_value(cell) == encode_value(wanted)


def _evaluated(expr: Expr, document: Document) -> tuple[Any, ExpressionError | None]:
    try:
        return evaluate(expr, Environment(document)), None
    except ExpressionError as error:
        return MISSING, error


@given(documents=rows_of_documents(), encoded=st.booleans(), tree=expressions)
@settings(max_examples=150)
def test_event_times_are_the_interpreters(documents: list[dict[str, Any]], encoded: bool, tree: Any) -> None:
    """The same times, and the same failures in the same words, row by row or together."""
    source, _ = parsed([], timeField={"$toDate": tree})
    assert source.time_field is not None
    rows = batch(documents, encoded=encoded)
    times, failures = event_times(rows, source.time_field)
    alone = [event_times(batch_of([d], {TS: pa.array([0])}), source.time_field) for d in documents_of(rows)]
    assert times.tolist() == [t.tolist()[0] for t, _ in alone]
    assert sorted((f.row, f.reason, f.code) for f in failures) == [
        (i, f.reason, f.code) for i, (_, fs) in enumerate(alone) for f in fs
    ]


stages = st.lists(
    st.one_of(
        predicates.map(lambda q: {"$match": q}),
        st.tuples(predicates, st.sampled_from(["dlq", "discard"])).map(
            lambda t: {"$validate": {"validator": t[0], "validationAction": t[1]}}
        ),
        st.dictionaries(st.sampled_from(["s", "i", "new"]), expressions, min_size=1, max_size=2).map(
            lambda f: {"$addFields": f}
        ),
        st.dictionaries(st.sampled_from(["i", "new"]), computed, min_size=1, max_size=2).map(lambda f: {"$project": f}),
        st.dictionaries(st.sampled_from([*NAMES, "n.new"]), st.just(1) | computed, min_size=1, max_size=3)
        .filter(lambda f: not any(a != b and b.startswith(f"{a}.") for a in f for b in f))
        .map(lambda f: {"$project": f}),
        st.dictionaries(st.sampled_from(["n.p", "n.new", "i.new", "n.m.p"]), expressions, min_size=1, max_size=2).map(
            lambda f: {"$addFields": f}
        ),
        st.sampled_from(["s", "n", "n.p", "n.m.p", "t.x"]).map(lambda n: {"$unset": n}),
        st.sampled_from(["s", "n", "n.p", "d"]).map(lambda n: {"$unwind": f"${n}"}),
        st.sampled_from(["s", "n", "n.p", "i"]).map(
            lambda n: {"$unwind": {"path": f"${n}", "includeArrayIndex": "at", "preserveNullAndEmptyArrays": True}}
        ),
        st.dictionaries(st.sampled_from(["a", "s", "o"]), expressions, min_size=1, max_size=2).map(
            lambda f: {"$replaceRoot": {"newRoot": f}}
        ),
        st.dictionaries(
            st.sampled_from(["a", "s", "i", "new", "n"]), st.sampled_from(["$z", "$n.q"]) | expressions, max_size=3
        ).map(lambda f: {"$replaceWith": {"$mergeObjects": ["$$ROOT", f]}}),
        st.tuples(
            expressions,
            *[st.sampled_from(["$$KEEP", "$$PRUNE", "$$DESCEND", "$i", {"$cond": ["$b", "$$KEEP", "$$PRUNE"]}])] * 2,
        ).map(lambda t: {"$redact": {"$cond": list(t)}}),
        st.sampled_from(
            ["$n", "$n.m", {"$mergeObjects": ["$$ROOT", "$n"]}, {"$mergeObjects": ["$n", {"z": "$i"}]}]
        ).map(lambda e: {"$replaceWith": e}),
        st.sampled_from(
            [
                {"$addFields": {"o": {"a": "$i", "b": {"$toString": "$i"}}, "l": ["$i", "$s"]}},
                {"$addFields": {"o": {"$map": {"input": "$d", "as": "x", "in": {"$toString": "$$x"}}}}},
                {"$addFields": {"m": {"$cond": [{"$gt": ["$i", 0]}, "$i", "$$REMOVE"]}}},
                {"$addFields": {"m": {"$cond": [{"$gt": ["$i", 0]}, "$i", "$s"]}}},
            ]
        ),
    ),
    min_size=1,
    max_size=4,
)
_LINES = st.sampled_from(["a 1 x", "bé 22 y", "a 1", "", "c 333 crawler", "a  1 x", "1 a 1 x 2 y"])
_FINDS = st.sampled_from(
    [
        r"^(\w+) (\d+) (\w*)$",
        r"(\d+) (\w)",
        r"(?i)A (\d)(.*)",
        r"(\w)|(\d)",
        r"(x)?y",
        r"(é)",
        r"[(](\w)",
        r"a (?:(\d) )+x",
        r"\((a)",
    ]
)
finding = st.tuples(
    _FINDS,
    st.lists(
        st.sampled_from([{"f": {"$ne": None}}, {"f.captures.1": {"$ne": "x"}}, {"f.match": {"$gt": "b"}}, {"f": None}]),
        max_size=2,
    ),
    st.dictionaries(
        st.sampled_from(["u", "v"]),
        st.one_of(
            st.sampled_from(
                [
                    "$f.match",
                    {"$arrayElemAt": ["$f.captures", 1]},
                    {"$toInt": {"$arrayElemAt": ["$f.captures", 0]}},
                    "$f.idx",
                    "$f.captures",
                ]
            ),
            computed,
        ),
        min_size=1,
    ),
).map(
    lambda t: [
        {"$addFields": {"f": {"$regexFind": {"input": "$line", "regex": t[0]}}}},
        *({"$match": m} for m in t[1]),
        {"$project": t[2]},
    ]
)


@given(
    documents=rows_of_documents(),
    lines=st.lists(_LINES, min_size=1),
    encoded=st.booleans(),
    given_stages=stages | finding,
)
@settings(max_examples=500)
def test_stages_on_undeclared_fields_give_what_they_give_on_documents(
    documents: list[dict[str, Any]], lines: list[str], encoded: bool, given_stages: list[dict[str, Any]]
) -> None:
    """Same documents in the same order, same dead letters; matches of patterns that are never made among them."""
    _, chain = parsed(given_stages)
    rows = batch([{**d, "line": lines[i % len(lines)]} for i, d in enumerate(documents)], encoded=encoded)
    staged = through(chain, rows, NOWHERE)
    passed: list[Document] = []
    failed: list[tuple[bytes, str]] = []
    for env in environments(rows, documents_of(rows)):
        for outcome in apply_stages(chain, env.root, env):
            if isinstance(outcome, Passed):
                passed += outcome.documents
            elif isinstance(outcome, Failure):
                failed.append((canonical([outcome.document])[0], outcome.reason))
    assert exact(documents_of(staged.batch)) == exact(passed)
    letters = of(staged.letters, DLQ)
    assert sorted((canonical([d["doc"]])[0], d["errInfo"]["reason"]) for d in letters) == sorted(failed)


def test_what_is_computed_of_undeclared_fields_is_loose() -> None:
    """Which type a batch has of them is nobody's to see: their columns are loose, and no file has columns of that type for them."""
    rows = batch([{"i": 1, "line": "a 1 x"}], encoded=False)
    trees: list[list[dict[str, Any]]] = [
        [{"$addFields": {"j": {"$add": ["$i", 1]}}}],
        [{"$project": {"j": "$i"}}],
        [{"$addFields": {"f": {"$regexFind": {"input": "$line", "regex": "(1)"}}}}, {"$project": {"j": "$f.match"}}],
    ]
    for tree in trees:
        _, chain = parsed(tree)
        behind = through(chain, rows, NOWHERE).batch
        assert (user_columns(behind), declared_columns(behind)) == (["j"], [])


def test_a_field_that_only_doubtful_rows_have_is_not_absent() -> None:
    """Values of two types that no column takes, in a few of the rows: they are kept, and they are taken away."""
    found: list[dict[str, Any]] = [{"x": [1], "y": 1}, {"x": {"$oid": "0" * 24}, "y": 1}, *({"y": i} for i in range(3))]
    for given_stage, left in (({"$project": {"x": 1}}, ["x"]), ({"$unset": "x"}, ["y"])):
        _, chain = parsed([given_stage])
        for encoded in (False, True):
            rows = batch(found, encoded=encoded)
            staged = through(chain, rows, NOWHERE)
            wanted = [{k: v for k, v in d.items() if k in left} for d in documents_of(rows)]
            assert canonical(documents_of(staged.batch)) == canonical(wanted)


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    "tree",
    [
        {"s": {"$add": ["$i", 1]}, "n.new": {"$add": ["$i", 2]}},
        {"n.new": {"$add": ["$i", 2]}, "s": {"$add": ["$i", 1]}},
        {"s": {"$toUpper": {"$toDate": "$i"}}, "n.new": {"$add": ["$s", 1]}},
        {"i": 1, "n.new": {"$add": ["$i", 2]}, "new": {"$add": ["$i", 1]}},
        {"z": 1, "n.new": {"$add": ["$i", 2]}, "m.new": {"$add": ["$i", 1]}},
    ],
)
def test_fields_inside_one_that_some_documents_lack_stand_where_the_interpreter_has_them(
    tree: dict[str, Any], encoded: bool
) -> None:
    """Among the computed ones where it is not there: also the first of two that fail."""
    there = [{"n": {"p": i}, "i": i, "s": "a", "m": {"p": 1}, "z": 1} for i in range(6)]
    rows = batch(
        [{k: v for k, v in d.items() if k != "nm"[i % 3 : i % 3 + 1]} for i, d in enumerate(there)], encoded=encoded
    )
    _, chain = parsed([{"$project": tree}])
    staged = through(chain, rows, NOWHERE)
    told = [o for env in environments(rows, documents_of(rows)) for o in apply_stages(chain, env.root, env)]
    assert exact(documents_of(staged.batch)) == exact([d for o in told if isinstance(o, Passed) for d in o.documents])
    assert [d["errInfo"]["reason"] for d in of(staged.letters, DLQ)] == [
        o.reason for o in told if isinstance(o, Failure)
    ]


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize(
    "chain",
    [
        [{"$project": {"a": 1, "b": 1}}, {"$set": {"a": {"$ifNull": ["$a", 0]}}}],
        [{"$set": {"a": {"$cond": ["$b", "$a", "$$REMOVE"]}}}, {"$set": {"c": 1, "a": {"$ifNull": ["$a", 0]}}}],
        [{"$unset": "a"}, {"$set": {"c": 1, "a": "$b"}}],
        [{"$project": {"a": 1, "b": 1}}, {"$replaceWith": {"$mergeObjects": ["$$ROOT", {"a": "$b"}]}}],
        [{"$project": {"a": 1, "b": 1}}, {"$unwind": {"path": "$b", "includeArrayIndex": "a"}}],
        [{"$project": {"a": 1, "b": 1}}, {"$set": {"a.x": "$b"}}],
        [{"$set": {"a": "$b"}}, {"$project": {"b": 1, "a": 1}}],
        [{"$set": {"a": 1}}, {"$project": {"b": 1, "a": 1}}],
    ],
)
def test_a_field_that_a_row_lost_and_gets_again_comes_last_in_it(chain: list[dict[str, Any]], encoded: bool) -> None:
    """Whatever the other rows of its batch have: a document is the same alone and among them."""
    found: list[dict[str, Any]] = [{"a": 1, "b": 1}, {"b": 1}, {"a": 3}, {"a": 4, "b": 2}]
    rows = batch(found, encoded=encoded)
    _, stages_of = parsed(chain)
    alone = [
        d for each in found for d in documents_of(through(stages_of, batch([each], encoded=encoded), NOWHERE).batch)
    ]
    passed = [
        d
        for env in environments(rows, documents_of(rows))
        for o in apply_stages(stages_of, env.root, env)
        if isinstance(o, Passed)
        for d in o.documents
    ]
    together = documents_of(through(stages_of, rows, NOWHERE).batch)
    assert exact(together) == exact(passed) == exact(alone)


@given(name=st.text(min_size=1, max_size=3).filter(lambda n: "." not in n and "\0" not in n and n[0] != "$"))
@settings(max_examples=100)
@example(name='a"b')
@example(name="a\\b")
@example(name="a\nb")
def test_a_field_may_have_any_name(name: str) -> None:
    """Also one that no field of a struct can have, on top and below."""
    _, chain = parsed([{"$match": {name: {"$gte": 1}, f"n.{name}": {"$lt": 2}}}])
    for encoded in (False, True):
        rows = batch([{name: i, "n": {name: i}} for i in range(4)], encoded=encoded)
        if name != "n":
            assert canonical(documents_of(through(chain, rows, NOWHERE).batch)) == canonical([documents_of(rows)[1]])


@pytest.mark.parametrize(
    "tree",
    [
        {"$concat": ["$s", "$s"]},
        {"$concat": [{"$toUpper": "$half"}, {"$toLower": "$half"}]},
        {"$toUpper": "$s"},
        {"$toString": "$s"},
        {"$arrayElemAt": [{"$split": ["$s", "T"]}, 0]},
    ],
)
def test_texts_beyond_what_an_evaluation_may_produce_fail_on_columns_too(tree: Any) -> None:
    """With the interpreter's words, in the row that has them; the others go on."""
    _, chain = parsed([{"$project": {"u": tree}}])
    long = {"s": "y" * (RESULT_UNITS_MAX + 1), "half": "y" * (RESULT_UNITS_MAX // 3)}
    staged = through(chain, batch([{"s": "a", "half": "a"}, long, {"s": "b", "half": "b"}], encoded=False), NOWHERE)
    assert staged.batch.num_rows == 2
    assert ["more than" in d["errInfo"]["reason"] for d in of(staged.letters, DLQ)] == [True]


@pytest.mark.parametrize("stage", [{"$unset": "new"}, {"$unset": "zz"}, {"$project": {"p": 0}}])
def test_a_field_that_is_written_over_keeps_its_place(stage: dict[str, Any]) -> None:
    """Also where another is taken away behind it: a document with its fields in another order is another one."""
    over = {"$addFields": {"i": {"$add": ["$i", 1]}, "new": {"$add": ["$i", 2]}}}
    _, chain = parsed([over, stage])
    rows = batch([{"z": 1, "i": 1, "n": {"p": 1}}] * 3, encoded=False)
    wanted = ["z", "i", "n", *(["new"] if stage != {"$unset": "new"} else [])]
    assert [list(d) for d in documents_of(through(chain, rows, NOWHERE).batch)] == [wanted] * 3


def test_rows_are_changed_in_columns_however_large_their_batch_is() -> None:
    """What one evaluation may produce bounds a row: many rows together are not interpreted for being many."""
    rows = batch([{"i": i, "s": "x" * 65_536} for i in range(300)], encoded=False)
    _, stages = parsed([{"$replaceWith": {"$mergeObjects": ["$$ROOT", {"z": "$i"}]}}])
    assert rows.nbytes > RESULT_UNITS_MAX
    assert through(stages, rows, NOWHERE).interpreted == 0
