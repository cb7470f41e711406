"""What is read with the declared fields is what would be read later, and only what operators read of the records is read."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.bench.line import Line
from tests.property import test_compiled_documents as texts
from tidemark.shared.language.documents import parse
from tidemark.shared.language.kernels import Column
from tidemark.shared.language.schema import NO_SCHEMA
from tidemark.shared.model.plan import Vertex
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.base import RAW
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.decode import decode
from tidemark.shared.operators.extracted import extracted
from tidemark.shared.operators.read_ahead import READ, without_read
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning import plan_processor

PATHS = [("a",), ("a", "b"), ("a", "b", "c"), ("b",), ("é",), ("a.b",)]


def told(column: Column) -> tuple[Any, ...]:
    """A column, to compare it."""
    doubt = None if column.doubt is None else column.doubt.tolist()
    # Milliseconds: Python has no dates beyond the year 9999.
    cells = column.values.cast(pa.int64()) if pa.types.is_timestamp(column.values.type) else column.values
    return column.type, [repr(cell) for cell in cells.to_pylist()], column.missing, column.absent, doubt


@given(records=st.lists(texts.texts(), min_size=1, max_size=8), data=st.data())
@settings(max_examples=300)
def test_what_was_read_ahead_is_what_the_text_says(records: list[bytes], data: st.DataObject) -> None:
    """Whatever the records are, and whichever rows are left, in whatever order."""
    ahead = data.draw(st.lists(st.sampled_from(PATHS), unique=True))
    batch = decode(pa.array(records, pa.binary()), NO_SCHEMA, sorted(ahead)).batch
    assert [name for name in batch.schema.names if name.startswith(READ)] == [
        READ + json.dumps(p) for p in sorted(ahead)
    ]
    rows = data.draw(st.lists(st.integers(0, max(0, batch.num_rows - 1)), max_size=8)) if batch.num_rows else []
    some = batch.take(pa.array(rows, pa.int64()))[data.draw(st.integers(0, len(rows))) :]
    for each in (batch, some):
        found, later = extracted(each, PATHS), extracted(without_read(each), PATHS)
        assert {path: told(column) for path, column in found.items()} == {p: told(c) for p, c in later.items()}


def pipeline(*stages: dict[str, Any], schema: dict[str, str] | None = None) -> dict[str, Any]:
    """A document with these stages behind a source whose time is `t`."""
    source = {
        "connectionName": "c",
        "topic": "t",
        "timeField": {"$toDate": "$t"},
        **({"schema": schema} if schema else {}),
    }
    return {
        "connections": {"c": {"type": "kafka", "bootstrapServers": "127.0.0.1:1"}},
        "pipeline": [{"$source": source}, *stages],
    }


def front_of(document: dict[str, Any]) -> FrontSpec:
    vertices: list[Vertex] = [*plan_processor(parse(document), engine="local", collects=True).vertices]
    return next(spec for vertex in vertices for spec in vertex.chain if isinstance(spec, FrontSpec))


GROUP = {"$group": {"_id": "$n.k", "s": {"$sum": "$v"}}}
WINDOW = {"$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": [GROUP]}}
SESSION = {
    "$sessionWindow": {
        "partitionBy": "$u",
        "gap": {"size": 1, "unit": "second"},
        "pipeline": [{"$match": {"m.x": 1}}, GROUP],
    }
}


@pytest.mark.parametrize(
    ("stages", "paths"),
    [
        ([WINDOW], [("n", "k"), ("t",), ("v",)]),
        ([SESSION], [("m", "x"), ("n", "k"), ("t",), ("u",), ("v",)]),
        (
            [{"$match": {"a.b": 1}}, {"$addFields": {"v": {"$add": ["$w", 1]}}}, WINDOW],
            [("a", "b"), ("n", "k"), ("t",), ("w",)],
        ),
        ([{"$project": {"v": {"$add": ["$w", 1]}, "n": 1}}, WINDOW], [("_id",), ("n",), ("t",), ("w",)]),
        ([{"$replaceRoot": {"newRoot": "$a"}}, WINDOW], [("t",)]),
    ],
)
def test_a_source_reads_ahead_what_its_operators_read_of_the_records(
    stages: list[dict[str, Any]], paths: list[tuple[str, ...]]
) -> None:
    """Neither what a stage has written before, nor what stands behind documents made anew, nor what is declared."""
    assert list(front_of(pipeline(*stages)).reads) == paths
    declared = front_of(pipeline(*stages, schema={"t": "long", "v": "int", "w": "int"})).reads
    assert list(declared) == [path for path in paths if path[0] not in ("t", "v", "w")]


def test_what_is_read_ahead_stays_in_its_task() -> None:
    """Rows leave the task as they would without it, and documents are the same."""
    records = [
        json.dumps({"t": 1_700_000_000_000 + i, "v": i % 7, "n": {"k": i % 3}, "w": "x" * (i % 5)}).encode()
        for i in range(50)
    ]
    positions = np.arange(len(records), dtype=np.int64)
    raw = RawBatch("events-0", 0, positions, positions, pa.array(records, pa.binary()))  # type: ignore[arg-type]
    stages: list[dict[str, Any]] = [
        {"$match": {"n.k": {"$ne": 1}}},
        {"$addFields": {"double": {"$multiply": ["$v", 2]}}},
    ]
    rows = Line(pipeline(*stages)).run(raw)
    assert all(RAW in batch.schema.names and without_read(batch) is batch for batch in rows)
    found = [document for batch in rows for document in documents_of(batch)]
    wanted = [{**json.loads(text), "double": 2 * (i % 7)} for i, text in enumerate(records) if i % 3 != 1]
    assert found == wanted
