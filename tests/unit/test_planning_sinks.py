"""What one key's rows do at a target happens in their order: they reach one sink task."""

import json
from typing import Any

import pytest

from tidemark.shared.language.documents import parse
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.operators.specs import KeyBySpec, TapSpec
from tidemark.shared.planning import plan_processor

SOURCE = {"$source": {"connectionName": "broker", "topic": "in"}}
WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 1, "unit": "minute"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    }
}
MERGE = {"$merge": {"into": {"connectionName": "table", "table": "t"}, "on": ["_id"]}}
FILES = {"$emit": {"path": "out", "format": "json"}}


def _emit(**config: Any) -> dict[str, Any]:
    return {"$emit": {"connectionName": "broker", "topic": "out", "config": config}}


def _plan(*stages: dict[str, Any]) -> PhysicalPlan:
    connections = {
        "broker": {"type": "kafka", "bootstrapServers": "a:1"},
        "table": {"type": "sql", "url": "sqlite:///t.db"},
    }
    return plan_processor(parse(json.dumps({"connections": connections, "pipeline": list(stages)})))


@pytest.mark.parametrize(
    ("stages", "partitioning"),
    [
        ([SOURCE, MERGE], "key"),
        ([SOURCE, _emit(key="$k")], "key"),
        ([SOURCE, _emit(key={"$toUpper": "$k"})], "key"),
        ([SOURCE, _emit()], "spread"),
        ([SOURCE, FILES], "spread"),
        ([SOURCE, WINDOW, MERGE], "single"),
        ([SOURCE, WINDOW, _emit(key="$_id")], "single"),
        ([SOURCE, WINDOW, FILES], "spread"),
        ([SOURCE, MERGE, FILES], "key"),
        ([SOURCE, _emit(key="$k"), FILES], "key"),
        ([SOURCE, _emit(key={"$toUpper": "$k"}), FILES], "spread"),
    ],
)
def test_rows_with_a_key_go_by_key(stages: list[dict[str, Any]], partitioning: str) -> None:
    """A table's rows and records with a key, but for taps whose key can fail; from a Spark stage to one task."""
    plan = _plan(*stages)
    (edge,) = [edge for edge in plan.edges if edge.receiver == "emit-1"]
    assert edge.partitioning == partitioning
    sender = next(vertex for vertex in plan.vertices if vertex.id == edge.sender)
    kinds = [type(spec) for spec in sender.chain]
    if partitioning == "key":
        assert KeyBySpec in kinds
        assert TapSpec not in kinds or kinds.index(KeyBySpec) < kinds.index(TapSpec)
