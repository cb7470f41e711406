"""A pipeline run from Python, on processes of its own."""

from pathlib import Path
from typing import NoReturn

import pytest

import tidemark
from tidemark.services.local.folder_lock import FolderLock

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
    # A number for a service of which the pipeline needs nothing is as good as none.
    with tidemark.run(document, tmp_path / "run", tasks={"spark": 2}) as running:
        status = running.wait(timeout_s=240)
        assert (status.state, running.status().commits > 0) == ("FINISHED", True)
        assert running.stats()["status"] == "FINISHED"
    written = [path for path in (tmp_path / "out").glob("*.jsonl") if path.is_file()]
    assert sum(len(path.read_text().splitlines()) for path in written) == 500
    with pytest.raises(tidemark.RunEnded, match="nothing runs"):
        running.status()
    with pytest.raises(tidemark.RunEnded, match="one `with` block"):
        running.__enter__()


def test_an_interrupt_while_it_starts_or_stops_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C reaches the caller, and another run takes the folder at once; a wait that is over says how far it is."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"n": 1}\n', encoding="utf-8")
    source = {"$source": {"path": str(tmp_path / "in" / "*.json"), "format": "json", "follow": True}}
    document = {"pipeline": [source, {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}]}

    starts = tidemark.run(document, tmp_path / "run")
    monkeypatch.setattr(starts._ready, "wait", _interrupted)  # as a signal in the middle of it
    with pytest.raises(KeyboardInterrupt), starts:
        pytest.fail("the block is not entered")
    with pytest.raises(KeyboardInterrupt), tidemark.run(document, tmp_path / "run") as running:  # noqa: PT012 - in the block
        with pytest.raises(TimeoutError, match=r"pipeline: .* after 0\.01 s"):
            running.wait(0.01)
        monkeypatch.setattr(running, "stop", _interrupted)
    with tidemark.run(document, tmp_path / "run") as running:
        assert running.stop(drain=True).state == "FINISHED"


def _interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


def test_a_folder_that_cannot_be_taken_is_named_in_the_words_of_python(tmp_path: Path) -> None:
    """Who writes `tidemark.run` has no `--data`: somebody else works on the folder, or it is a file."""
    document = {"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "out", "format": "json"}}]}
    held = FolderLock(tmp_path)
    held.take()
    (tmp_path / "file").write_text("")
    try:
        for folder, why in ((tmp_path, "nobody works on"), (tmp_path / "file", "a place for one")):
            with (
                pytest.raises(tidemark.RunEnded, match=rf"{why}.*`folder` in Python, names another"),
                tidemark.run(document, folder),
            ):
                pass
    finally:
        held.release()


def test_what_cannot_run_is_said_before_the_block_begins(tmp_path: Path) -> None:
    """A document that is refused leaves no process behind."""
    with pytest.raises(tidemark.RunEnded, match="stage"), tidemark.run({"pipeline": [{"$nonsense": 1}]}, tmp_path):
        pass
    document = {"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "out", "format": "json"}}]}
    misspelt = tidemark.run(document, tmp_path, tasks={"sorce": 2})
    with (
        pytest.raises(tidemark.RunEnded, match=r"no vertex or service sorce in this pipeline; did you mean source\?"),
        misspelt,
    ):
        pass
    assert list(tmp_path.iterdir()) == []
