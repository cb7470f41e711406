"""Arrays that are unwound: the same documents as one at a time, whatever their size, and however few go on together."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.test_operators_columns import batch_of_records, of, parsed
from tidemark.shared.language.stages.base import Failure, Passed, apply_stages
from tidemark.shared.language.values import encode_value
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import PART, POS, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.program import through_in_pieces
from tidemark.shared.operators.rows import environments

ITEMS = st.one_of(st.integers(-3, 3), st.sampled_from([None, "x", {"p": 1}, {"p": "a", "q": [1, 2]}, [], [1], 2.5]))
ARRAYS = st.one_of(
    st.lists(ITEMS, max_size=3),
    st.lists(ITEMS, min_size=1, max_size=2).map(lambda items: items * 20),
    st.sampled_from([None, 7, "text", {"p": 1}, {}]),
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "before": st.integers(0, 9),
        "list": ARRAYS,
        "deep": st.one_of(
            ARRAYS, st.fixed_dictionaries({}, optional={"a": st.just(1), "list": ARRAYS, "z": st.just(2)})
        ),
        "at": ITEMS,
        "behind": st.text(max_size=9),
    },
)
STAGES = st.tuples(
    st.sampled_from(["$list", "$deep.list", "$deep", "$none", "$list.p"]),
    st.sampled_from([None, "at", "deep.at", "new", "list"]),
    st.booleans(),
    st.lists(
        st.sampled_from(
            [
                {"$match": {"list": {"$ne": 1}}},
                {"$addFields": {"sum": {"$add": ["$list", 1]}}},
                {"$unwind": "$deep.list"},
                {"$unwind": {"path": "$list", "preserveNullAndEmptyArrays": True}},
                {"$unset": "list"},
                {"$project": {"list": 1, "behind": 1}},
            ]
        ),
        max_size=2,
    ),
).map(
    lambda t: [
        {
            "$unwind": {
                "path": t[0],
                "preserveNullAndEmptyArrays": t[2],
                **({"includeArrayIndex": t[1]} if t[1] else {}),
            }
        },
        *t[3],
    ]
)


@given(st.lists(DOCUMENTS, max_size=5), STAGES, st.booleans(), st.integers(1, 5_000))
@settings(max_examples=300)
def test_documents_are_unwound_as_one_at_a_time(
    documents: list[dict[str, Any]], stages: list[dict[str, Any]], encoded: bool, most: int
) -> None:
    """With the fields in the same order, and the same dead letters."""
    _, chain = parsed(stages)
    batch = batch_of_records(documents)
    if encoded:
        batch = batch_of(documents_of(batch), {name: batch.column(name) for name in (TS, PART, POS)})
    passed: list[Document] = []
    failed: list[Document] = []
    for env in environments(batch, documents_of(batch)):
        for outcome in apply_stages(chain, env.root, env):
            if isinstance(outcome, Passed):
                passed += outcome.documents
            elif isinstance(outcome, Failure):
                failed.append(outcome.document)
    pieces = list(through_in_pieces(chain, batch, NOWHERE, most))
    assert [encode_value(d) for piece in pieces for d in documents_of(piece.batch)] == [encode_value(d) for d in passed]
    letters = [encode_value(d["doc"]) for piece in pieces for d in of(piece.letters, DLQ)]
    assert sorted(letters) == sorted(encode_value(d) for d in failed)
    assert sum(piece.failed for piece in pieces) == len(failed)


@pytest.mark.parametrize("path", ["$list", "$deep.list"])
def test_a_long_array_is_not_copied_with_each_of_its_items(path: str) -> None:
    """Its items would take more bytes than a column has room for: 2 GiB."""
    _, chain = parsed([{"$unwind": path}, {"$match": {path[1:]: {"$gte": 69_999}}}])
    items = list(range(70_000))
    batch = batch_of(
        [{"list": items, "deep": {"list": items}, "n": 1}] if path == "$list" else [{"deep": {"list": items}}]
    )
    found = [d for piece in through_in_pieces(chain, batch, NOWHERE) for d in documents_of(piece.batch)]
    assert found == (
        [{"list": 69_999, "deep": {"list": items}, "n": 1}] if path == "$list" else [{"deep": {"list": 69_999}}]
    )


def test_items_of_a_large_document_go_on_in_pieces() -> None:
    """Together they would take more bytes than a column has room for."""
    _, chain = parsed([{"$unwind": "$list"}, {"$match": {"list": 49_999}}])
    batch = batch_of([{"list": list(range(50_000)), "text": "x" * 50_000}], {TS: pa.array([0])})
    pieces = [piece for piece in through_in_pieces(chain, batch, NOWHERE) if piece.batch.num_rows]
    assert [len(d["text"]) for piece in pieces for d in documents_of(piece.batch)] == [50_000]
