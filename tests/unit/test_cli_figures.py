"""The figures of a run: each counts what its name says, wherever it was seen."""

from msgspec.structs import replace

from tidemark.services.cli.view import SeenReports
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName, VertexId
from tidemark.shared.model.messages import TaskBeat


def beat(vertex: str, **counters: int) -> TaskBeat:
    return TaskBeat(
        ProcessorName("p"), JobId("j"), Generation(1), VertexId(vertex), 0, "running", Epoch(1), 0, 0, counters
    )


def test_late_documents_count_wherever_they_were_seen() -> None:
    """At the source, or in a window behind a join or a lookup."""
    seen = SeenReports(
        beats={"source-1/0": beat("source-1", late=2), "window-1/0": beat("window-1", late=3, latePartials=1)}
    )
    assert seen.late() == 6


def test_what_a_target_refuses_is_not_written() -> None:
    """Nor what was passed over by order; dead letters are counted elsewhere."""
    beats = {
        "emit-1/0": beat("emit-1", inRows=436, rows=410, rejected=26),
        "emit-2/0": beat("emit-2", inRows=5, rows=5, skipped=2),
        "dlq/0": beat("dlq", inRows=26, rows=26),
    }
    services = {VertexId(vertex): "sink" for vertex in ("emit-1", "emit-2", "dlq")}
    assert SeenReports(beats=beats, services=services).written() == 413


def test_figures_are_of_one_generation_and_say_so() -> None:
    """Tasks count from 0 after a failure: what older ones said is neither added nor called the whole run's."""
    seen = SeenReports()
    seen.hear(beat("source-1", records=5, late=2))
    assert (seen.since(), seen.late()) == ("in this run", 2)
    seen.hear(replace(beat("window-1", late=1), generation=Generation(2)))
    seen.hear(beat("source-1", records=9, late=7))
    assert (seen.since(), seen.late(), seen.total("records")) == ("since the last start (generation 2)", 1, 0)
