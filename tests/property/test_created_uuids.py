"""D18: `$createUUID` is the same for a row however the input is cut, and another one for each row and place."""

from typing import Any
from uuid import RFC_4122, UUID

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn import parse_drawn
from tests.property.test_operators_columns import batch_of_records, documents
from tidemark.services.cli.process import Runner, run_case
from tidemark.shared.language.stages import Stateless
from tidemark.shared.language.values import decode_value, encode_value
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.program import through

_ID: dict[str, Any] = {"$createUUID": {}}
_ARRAYS = st.lists(st.one_of(st.integers(0, 1), st.lists(st.integers(0, 1), max_size=2)), max_size=3)
steps = st.lists(
    st.sampled_from([
        {"$unwind": "$x"},
        {"$unwind": {"path": "$x", "preserveNullAndEmptyArrays": True}},
        {"$match": {"i": {"$ne": 1}}},
        {"$addFields": {"x": [1, 1, [2, 2]]}},
        {"$addFields": {"own": _ID}},
        {"$setStreamMeta": {"stream.own": _ID}},
    ]),
    max_size=4,
)  # fmt: skip
LAST = {
    "$project": {
        "a": _ID,
        "b": {"$cond": [{"$gt": ["$i", 0]}, _ID, {"$toUUID": {"$concat": [{"$toString": _ID}, ""]}}]},
    }
}


def _chain(stages: list[dict[str, Any]], name: str = "p") -> tuple[Stateless, ...]:
    source = {"$source": {"connectionName": "c", "topic": "t"}}
    return parse_drawn({"name": name, "pipeline": [source, *stages, LAST]}).pipeline[1:]  # type: ignore[return-value]


def _ids(chain: tuple[Stateless, ...], *batches: pa.RecordBatch) -> list[tuple[Any, Any]]:
    rows = [row for batch in batches for row in documents_of(through(chain, batch, NOWHERE).batch)]
    return [(row["a"], row["b"]) for row in rows]


@given(
    given_documents=st.lists(st.tuples(documents, _ARRAYS).map(lambda t: {**t[0], "x": t[1]}), min_size=1, max_size=5),
    stages=steps,
    cut=st.integers(0, 5),
)
@settings(max_examples=60)
def test_ids_are_of_rows_and_places(
    given_documents: list[dict[str, Any]], stages: list[dict[str, Any]], cut: int
) -> None:
    """Cut at any record, ids are the same; no two rows, places or processors have one in common; each has the form of version 4."""
    batch = batch_of_records(given_documents)
    found = _ids(_chain(stages), batch)
    assert found == _ids(_chain(stages), batch.slice(0, cut), batch.slice(cut))
    ids = [one for pair in (*found, *_ids(_chain(stages, "q"), batch)) for one in pair]
    assert len({bytes(one) for one in ids}) == len(ids)
    for one in ids:
        assert isinstance(one, Binary)
        assert one.subtype == 4
        assert (UUID(bytes=bytes(one)).version, UUID(bytes=bytes(one)).variant) == (4, RFC_4122)
        assert decode_value(encode_value(one)) == one


def _told(pipeline: list[dict[str, Any]]) -> list[str]:
    result = run_case(Runner("local"), {"id": "x", "pipeline": pipeline})
    assert (result["error"], result["dlq"]) == (None, [])
    return [row["id"] for row in result["output"]]


def test_streams_that_flow_together_share_no_id() -> None:
    """Their records have the same partitions and positions, and stages behind a `$union` run in each stream; they stay the same."""
    source: dict[str, Any] = {"$source": {"documents": [{"n": n} for n in range(2)]}}
    inner = {"$union": {"pipelines": [[source], [source, {"$unwind": "$n"}]]}}
    pipeline = [
        source,
        {"$union": {"pipelines": [[source, inner], [source]]}},
        {"$project": {"id": {"$toString": _ID}}},
    ]
    found = _told(pipeline)
    assert len(found) == len(set(found)) == 10
    assert sorted(_told(pipeline)) == sorted(found)
