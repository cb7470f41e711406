"""A pipeline run from Python, on processes of its own."""

from pathlib import Path

import pytest

import tidemark

pytestmark = [pytest.mark.kafka, pytest.mark.e2e]


def test_a_run_ends_with_its_result_and_its_processes(tmp_path: Path) -> None:
    """It finishes, its counts can be read, and what it wrote is there; a second run on the folder has nothing left to read."""
    rows = [{"n": n} for n in range(1000)]
    document = {
        "pipeline": [
            {"$source": {"documents": rows}},
            {"$match": {"n": {"$gte": 500}}},
            {"$emit": {"path": str(tmp_path / "out"), "format": "json"}},
        ]
    }
    with tidemark.run(document, tmp_path / "run") as running:
        status = running.wait(timeout_s=240)
        assert (status.state, running.status().commits > 0) == ("FINISHED", True)
        assert running.stats()["status"] == "FINISHED"
    written = [path for path in (tmp_path / "out").glob("*.jsonl") if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in written) == 500
    with pytest.raises(tidemark.RunEnded, match="nothing runs"):
        running.status()


def test_what_cannot_run_is_said_before_the_block_begins(tmp_path: Path) -> None:
    """A document that is refused leaves no process behind."""
    with pytest.raises(tidemark.RunEnded, match="stage"), tidemark.run({"pipeline": [{"$nonsense": 1}]}, tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
