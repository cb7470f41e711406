# ruff: noqa: N802 -- a test carries its rule's name
"""Which tasks wait for barriers, and how long: rule C13."""

from typing import Any

import pytest

from tidemark.shared.language.documents import InvalidDocument, parse
from tidemark.shared.planning import Engine, plan_processor
from tidemark.shared.planning.alignment import alignment_text, alignment_timeout_ms

KAFKA = {"$source": {"connectionName": "k", "topic": "t"}}
WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 1, "unit": "second"},
        "pipeline": [{"$group": {"_id": "$k", "n": {"$count": {}}}}],
    }
}
EMIT = {"$emit": {"connectionName": "k", "topic": "out"}}


def document(timeout_ms: int | None, source: dict[str, Any] | None = None) -> dict[str, Any]:
    """A window between a source and a sink."""
    timeout = {} if timeout_ms is None else {"alignmentTimeout": {"size": timeout_ms, "unit": "ms"}}
    return {
        "name": "p",
        "connections": {"k": {"type": "kafka", "bootstrapServers": "b:1"}},
        "pipeline": [source or KAFKA, WINDOW, EMIT],
        "options": {"checkpoint": timeout},
    }


def told(made: dict[str, Any], engine: Engine) -> dict[str, tuple[int | None, str]]:
    """By service: how long its tasks wait, and what `explain` says of it."""
    processor = parse(made)
    vertices = plan_processor(processor, 8, engine).vertices
    return {v.service: (alignment_timeout_ms(processor, v), alignment_text(processor, v)) for v in vertices}


@pytest.mark.parametrize(
    ("timeout_ms", "text"), [(0, ", does not wait for barriers"), (70, ", waits at most 70 ms for barriers")]
)
def test_C13_operators_wait_as_the_document_says(timeout_ms: int, text: str) -> None:
    """Sinks always wait; sources have no barriers to wait for."""
    found = told(document(timeout_ms), "local")
    assert found == {"source": (None, ""), "operator": (timeout_ms, text), "sink": (None, ", waits for barriers")}


def test_C13_Spark_stages_always_wait() -> None:
    """They work an epoch at a time (P1)."""
    assert told(document(0), "spark")["spark"] == (None, ", waits for barriers")


def test_C13_without_the_option_all_wait() -> None:
    """And nothing is said of it."""
    assert set(told(document(None), "local").values()) == {(None, "")}


def test_C13_behind_a_script_all_wait() -> None:
    """Its steps come one behind the other."""
    script = {"$source": {"script": [{"data": {"k": 1}}]}}
    assert told(document(0, script), "local")["operator"][0] is None


def test_a_time_out_below_nothing_is_refused() -> None:
    """By its place in the document."""
    with pytest.raises(InvalidDocument, match=r"options\.checkpoint\.alignmentTimeout"):
        parse(document(-1))
