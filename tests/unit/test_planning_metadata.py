"""`options.streamMetaFieldName`: where in a plan the field is added, and to whose rows."""

from typing import Any

import pyarrow as pa

from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import AddFields
from tidemark.shared.model.plan import OUT, PhysicalPlan
from tidemark.shared.model.values import Binary, long
from tidemark.shared.operators.base import PART, POS, SRCKEY
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.context import TaskContext, Topics
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.specs import StatelessSpec, TapSpec
from tidemark.shared.planning import StepHead, plan_processor

SOURCE = {"$source": {"connectionName": "c", "topic": "t", "timeField": "$ts"}}
WINDOW = {
    "$tumblingWindow": {"interval": {"size": 1, "unit": "minute"}, "pipeline": [{"$group": {"_id": "$k"}}]},
}
EMIT = {"$emit": {"connectionName": "c", "topic": "o"}}


def plan(*stages: dict[str, Any], field: str | None = "m") -> PhysicalPlan:
    options = {} if field is None else {"options": {"streamMetaFieldName": field}}
    return plan_processor(parse({"pipeline": list(stages), **options}), collects=True)


def rows() -> pa.RecordBatch:
    engine = {
        PART: pa.array([3], pa.int32()),
        POS: pa.array([7], pa.int64()),
        SRCKEY: pa.array([b"key"], pa.binary()),
    }
    return batch_of([{"k": 1}], engine)


def test_a_tap_tells_without_the_rows_that_go_on() -> None:
    """An `$emit` before the end has the field in its own documents; what later stages see is as it was."""
    source = plan(SOURCE, EMIT, {"$match": {"k": 1}}, WINDOW, EMIT).vertices[0]
    chain = build_chain([s for s in source.chain if isinstance(s, TapSpec)], TaskContext(topic="t"))
    found = {out.port: documents_of(out.batch) for out in chain.on_batch(rows(), "rows", "")}
    told = {"topic": "t", "partition": 3, "offset": long(7), "key": Binary(b"key")}
    assert found == {OUT: [{"k": 1}], "tap-emit-1": [{"k": 1, "m": {"source": told}}]}


def test_behind_a_window_the_field_is_added_in_its_step() -> None:
    """On Spark the window's own pipeline adds it; nothing else runs there."""
    head = plan(SOURCE, WINDOW, EMIT).vertices[1].head
    assert isinstance(head, StepHead)
    assert isinstance(head.step.window.stage.pipeline[-1], AddFields)


def test_a_window_whose_rows_go_on_is_told_at_the_tap_alone() -> None:
    """An `$emit` between two windows gets the field; the second window's input has none."""
    found = plan(SOURCE, WINDOW, EMIT, WINDOW, EMIT)
    head = found.vertices[1].head
    assert isinstance(head, StepHead)
    assert not any(isinstance(stage, AddFields) for stage in head.step.window.stage.pipeline)
    relay = next(v for v in found.vertices if v.id.startswith("relay"))
    assert any(isinstance(spec, TapSpec) and spec.stages for spec in relay.chain)


def test_what_the_document_sets_is_told_too() -> None:
    """Beside the source; behind a window only what is set there."""
    told = {"$setStreamMeta": {"stream.kind": "$k"}}
    source = plan(SOURCE, told, EMIT, WINDOW, EMIT)
    chain = build_chain([s for s in source.vertices[0].chain if isinstance(s, StatelessSpec | TapSpec)], TaskContext())
    outs = chain.on_batch(rows(), "rows", "")
    (found,) = [documents_of(out.batch) for out in outs if out.port == "tap-emit-1"]
    assert found[0]["m"]["kind"] == 1
    assert found[0]["m"].keys() == {"source", "kind"}
    (head,) = [vertex.head for vertex in source.vertices if isinstance(vertex.head, StepHead)]
    (added,) = [stage for stage in head.step.window.stage.pipeline if isinstance(stage, AddFields)]
    assert "kind" not in str(added)


def test_a_computation_has_nothing_to_tell() -> None:
    """What a computation yields comes from many documents: no field is added."""
    compute = {"$compute": {"class": "tests.harness.computations:Count", "key": "$k"}}
    stages = [s for v in plan(SOURCE, compute, EMIT).vertices for s in v.chain if isinstance(s, StatelessSpec)]
    assert stages == []


def test_several_topics_are_told_apart() -> None:
    """Of a source with a list of topics, a split's ordinal gives topic and partition."""

    def source(topics: Topics) -> Any:
        return environments(rows(), [{}], topics)[0].meta["source"]

    assert (source(("a", "b"))["topic"], source(("a", "b"))["partition"]) == ("b", 1)
    assert (source("a")["topic"], source("a")["partition"]) == ("a", 3)
    assert "topic" not in source(None)
