"""Which processes `tidemark run` starts for a document."""

import json
from typing import Any

import pytest

from tidemark.services.cli.installation import workers_of
from tidemark.shared.language.documents import parse
from tidemark.shared.planning import plan_processor

SOURCE: dict[str, Any] = {"$source": {"connectionName": "c", "topic": "in", "schema": {"k": "string"}}}
WINDOW: dict[str, Any] = {
    "$tumblingWindow": {
        "interval": {"size": 1, "unit": "hour"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$sum": 1}}}],
    }
}
EMIT: dict[str, Any] = {"$emit": {"connectionName": "c", "topic": "out"}}


@pytest.mark.parametrize(
    ("stages", "engine", "tasks", "expected"),
    [
        ([SOURCE, EMIT], "spark", {}, {"source": 1, "operator": 0, "spark": 0, "sink": 1}),
        ([SOURCE, WINDOW, EMIT], "spark", {}, {"source": 1, "operator": 0, "spark": 1, "sink": 1}),
        ([SOURCE, WINDOW, EMIT], "local", {}, {"source": 1, "operator": 1, "spark": 0, "sink": 1}),
        ([SOURCE, EMIT], "spark", {"source": 3, "sink": 9}, {"source": 3, "operator": 0, "spark": 0, "sink": 4}),
    ],
)
def test_services_without_a_vertex_are_not_started_and_tasks_have_processes_up_to_the_cores(
    stages: list[dict[str, Any]], engine: Any, tasks: dict[str, int], expected: dict[str, int]
) -> None:
    """Four cores; a window has its task on Spark, or, with the local engine, among the operators."""
    connections = {"c": {"type": "kafka", "bootstrapServers": "b:1"}}
    plan = plan_processor(parse(json.dumps({"connections": connections, "pipeline": stages})), engine=engine)
    assert workers_of(plan, tasks, 4) == expected
