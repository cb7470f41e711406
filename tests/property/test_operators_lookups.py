"""`$lookup` of generated documents: what narrows the question changes no answer, and equality is as MongoDB has it."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.interpreted import typed
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.schema import NO_SCHEMA, Schema, parse_schema
from tidemark.shared.language.stages import Lookup
from tidemark.shared.language.stages.base import Passed
from tidemark.shared.language.stages.looking_up import apply_lookup, by_own_tables, key_of
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import Document, Found
from tidemark.shared.operators.base import PART, POS, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.lookup import LookupRows, sorted_out

SCALARS: st.SearchStrategy[Any] = st.sampled_from([None, 1, 1.0, 2, "a", "b", True, {"x": 1}])
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
INNER = st.dictionaries(st.sampled_from(["a", "b"]), VALUES, max_size=2)
DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES | INNER | st.lists(INNER, max_size=2), max_size=3)
PATHS = st.sampled_from(["a", "b", "c", "a.b", "c.a"])
EQUALITIES = st.lists(
    st.one_of(
        st.tuples(PATHS, st.just("$$x")).map(lambda t: {"$expr": {"$eq": [f"${t[0]}", t[1]]}}),
        st.tuples(PATHS, PATHS).map(lambda t: {"$expr": {"$and": [{"$eq": ["$$x", f"${t[0]}"]}, {"$eq": [f"${t[1]}", 1]}]}}),
        st.tuples(PATHS, VALUES).map(lambda t: {t[0]: t[1]}),
        st.tuples(PATHS, SCALARS).map(lambda t: {"$or": [{t[0]: t[1]}, {"a": 1}]}),
    ),
    max_size=2,
)  # fmt: skip


def stage(local: str, foreign: str, matches: list[dict[str, Any]], *, fields: bool) -> Lookup:
    given_fields = {"localField": local, "foreignField": foreign} if fields else {}
    options = {
        "from": {"documents": []},
        "as": "found",
        "let": {"x": f"${local}"},
        "pipeline": [{"$match": m} for m in matches],
        **given_fields,
    }
    found = parse({"pipeline": [{"$source": {"documents": []}}, {"$lookup": options}]}).pipeline[1]
    assert isinstance(found, Lookup)
    return found


def looked_up(
    what: Lookup, documents: list[Document], foreign: list[Document], schema: Schema = NO_SCHEMA, most: int = 100
) -> list[Document]:
    """By the operator, from a table that gives exactly what was asked for."""
    n = len(documents)
    engine = {
        TS: pa.array([0] * n, pa.int64()),
        PART: pa.array([0] * n, pa.int32()),
        POS: pa.array(range(n), pa.int64()),
    }
    operator = LookupRows(what)
    looking = operator.begin(typed(batch_of(documents, engine), schema))
    table = [Found(place, document) for place, document in enumerate(foreign)]
    buckets = sorted_out(operator.looker.narrowing, table, [key_of(wanted) for wanted in looking.wanted.values()])
    outs = by_own_tables(operator.finish(looking, buckets, most))
    assert all(out.port == OUT for out in outs)
    return [document for out in outs for document in documents_of(out.batch)]


@given(documents=st.lists(DOCUMENTS, max_size=4), foreign=st.lists(DOCUMENTS, max_size=6), local=PATHS, other=PATHS,
       matches=EQUALITIES, fields=st.booleans(), most=st.integers(1, 1_000))  # fmt: skip
def test_what_narrows_a_lookup_changes_no_answer(
    documents: list[Document],
    foreign: list[Document],
    local: str,
    other: str,
    matches: list[dict[str, Any]],
    fields: bool,
    most: int,
) -> None:
    """The rows with what was found among candidates are those with what would be found in the whole table."""
    what = stage(local, other, matches, fields=fields)
    wanted: list[Document] = []
    for document in documents:
        outcome = apply_lookup(what, document, foreign, Environment(document))
        assert isinstance(outcome, Passed)
        wanted += outcome.documents
    assert repr(looked_up(what, documents, foreign, most=most)) == repr(wanted)


def at(value: Any, names: list[str]) -> list[Any]:
    """The values at a path through documents and arrays of documents; None for a document that lacks it."""
    if not names:
        return [value]
    if isinstance(value, dict):
        return at(value.get(names[0]), names[1:]) if names[0] in value else [None]
    if isinstance(value, list):
        return [found for item in value if isinstance(item, dict) for found in at(item, names)]
    return [None]


def sought(document: Document, path: str) -> list[Any]:
    """What a document looks for: an array stands for its items, and nothing at all for null."""
    values = at(document, path.split("."))
    return [i for value in values for i in (value if isinstance(value, list) else [value])] or [None]


def reach(document: Document, path: str) -> list[Any]:
    """What a document is found by: its values, and the items of arrays."""
    values = at(document, path.split("."))
    return [*values, *(item for value in values if isinstance(value, list) for item in value)]


def alike(a: Any, b: Any) -> bool:
    """1 and 1.0 are equal, 1 and true are not."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    return (type(a) in (int, float) and type(b) in (int, float) and a == b) or (type(a) is type(b) and a == b)


@given(document=DOCUMENTS, foreign=st.lists(DOCUMENTS, max_size=6), local=PATHS, other=PATHS)
def test_fields_are_equal_as_in_mongodb(document: Document, foreign: list[Document], local: str, other: str) -> None:
    """A value or an item of an array that is looked for equals a value, or an item, of the other side; missing counts as null."""
    (found,) = looked_up(stage(local, other, [], fields=True), [document], foreign)
    wanted = [f for f in foreign if any(alike(a, b) for a in sought(document, local) for b in reach(f, other))]
    assert repr(found["found"]) == repr(wanted)


VALUES = st.sampled_from(["a", "b", "", "é"])
KNOWN = st.fixed_dictionaries(
    {"s": VALUES, "i": st.integers(0, 3)}, optional={"found": st.integers(0, 1), "x": st.none(), "b": st.booleans()}
)


@given(documents=st.lists(KNOWN, max_size=6), foreign=st.lists(DOCUMENTS | KNOWN, max_size=6),
       local=st.sampled_from(["s", "i", "b", "x"]), other=st.sampled_from(["s", "i", "a", "x"]))  # fmt: skip
def test_a_declared_field_finds_what_a_document_finds(
    documents: list[Document], foreign: list[Document], local: str, other: str
) -> None:
    """Worked out once for each value, beside the columns, it is what each document finds by itself."""
    given_stage = {"from": {"documents": []}, "localField": local, "foreignField": other, "as": "found"}
    what = parse({"pipeline": [{"$source": {"documents": []}}, {"$lookup": given_stage}]}).pipeline[1]
    assert isinstance(what, Lookup)
    schema = parse_schema({"s": "string", "i": "int", "b": "bool?"}, "schema", Problems({}))
    plain = looked_up(what, documents, foreign)
    assert looked_up(what, documents, foreign, schema) == [dict(d) for d in plain]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    ("local", "values"), [("s", ["a", "b", None]), ("s.x", [{"x": 1}, {"x": [1, 2]}, {"y": 1}]), ("s", [1.5, "x", [1]])]
)
def test_a_field_is_asked_for_once_a_value(local: str, values: list[Any], *, declared: bool) -> None:
    """Declared or not, at the top or inside, of one type or of several; also where the field for what is found is there already."""
    given_stage = {"from": {"documents": []}, "localField": local, "foreignField": "a", "as": "found"}
    what = parse({"pipeline": [{"$source": {"documents": []}}, {"$lookup": given_stage}]}).pipeline[1]
    assert isinstance(what, Lookup)
    schema = parse_schema({"n": "int"} if declared else {}, "schema", Problems({}))
    rows: list[Document] = [{"n": i, "s": values[i % 3], **({"found": i} if i % 2 else {})} for i in range(9)]
    batch = typed(batch_of(rows), schema)
    looking = LookupRows(what).begin(batch)
    assert (len(looking.rows), looking.count) == (3, 9)
    (out,) = by_own_tables(LookupRows(what).finish(looking, {key: [] for key in looking.wanted}))
    assert documents_of(out.batch) == [{"n": d["n"], "s": d["s"], "found": []} for d in rows]
