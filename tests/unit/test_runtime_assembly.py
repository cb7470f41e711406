"""What an assignment says to the protocol of a task."""

from types import SimpleNamespace
from typing import Any

from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, VertexId
from tidemark.shared.model.messages import EdgeBinding
from tidemark.shared.planning import plan_processor
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.assembly import _task_start


def test_all_but_sources_are_said_to_hear_the_same() -> None:
    """A window behind a join takes its tasks for one input; the join takes sources one by one (W3)."""
    source = {"$source": {"connectionName": "c", "topic": "t", "timeField": "$ts"}}
    second = {"size": 1, "unit": "second"}
    joined = {"from": [source], "leftKey": "$k", "rightKey": "$k", "within": {"before": second}, "as": "r"}
    window = {"$tumblingWindow": {"interval": second, "pipeline": [{"$count": "n"}]}}
    plan = plan_processor(parse({"pipeline": [source, {"$join": joined}, window]}), engine="local", collects=True)
    said = {}
    for vertex in plan.vertices:
        bindings = tuple(EdgeBinding(e.id, Incarnation("i"), "t", 2, 2) for e in plan.edges)
        running = SimpleNamespace(edges=bindings, tasks=dict.fromkeys((v.id for v in plan.vertices), 2))
        assign: Any = SimpleNamespace(
            plan=running,
            vertex=vertex.id,
            index=0,
            job=JobId("j"),
            generation=Generation(1),
            lineage=(),
            last=Epoch(0),
            handles=(),
        )
        outside = SimpleNamespace(settings=SimpleNamespace(limits=TaskLimits()))
        context: Any = SimpleNamespace(plan=plan, vertex=vertex, outside=outside, alignment_timeout_ms=None)
        start = _task_start(assign, context)
        said[vertex.id] = {sender: sender in start.sharing for _, sender in start.inputs}
    assert said[VertexId("join-1")] == {VertexId("source-1"): False, VertexId("source-2"): False}
    assert said[VertexId("window-1")] == {VertexId("join-1"): True}
