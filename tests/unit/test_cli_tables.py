"""What commands print fits a terminal, and is JSON where it is asked for."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.services.cli import control
from tidemark.services.cli.__main__ import app
from tidemark.services.cli.remote import Remote

REASON = (
    "waits for a worker of service sink with a free slot, for three minutes: `tidemark ps` lists those that are there"
)
PROCESSOR = {
    "name": "departures-by-hour", "state": "STARTING", "watermark": "2013-02-08T12:00:00.000Z", "lagMillis": 3_599_999,
    "epoch": 123_456, "releasedEpoch": 123_455, "reason": REASON,
}  # fmt: skip
OPERATOR = {
    "name": "operator-12", "service": "operator", "inputMessageCount": 330_066_123_456, "outputMessageCount": 330_066_123_456,
    "dlqMessageCount": 12_345_678, "stateSize": 123_456_789_012, "executionTimeSecs": 1_234_567.8,
    "executionMicrosPerMessage": 1_234_567.89, "quotaBytesPerSecond": 123_456_789.0, "heldByQuotaSecs": 1_234_567.8,
}  # fmt: skip
STEP = {
    "vertex": "source-1", "task": 0, "split": "orders-11", "watermark": PROCESSOR["watermark"], "keepsMillis": 18_000_000,
    "why": REASON, "lastEvent": PROCESSOR["watermark"], "since": "2026-11-22T16:37:25.784Z",
}  # fmt: skip
ANSWERS = {
    "/v1/processors": {"processors": [PROCESSOR]},
    "/v1/processors/p/stats?verbose=true": {"stats": {"status": "RUNNING", "operatorStats": [OPERATOR]}},
    "/v1/processors/p/watermark": {
        "watermark": {"watermark": PROCESSOR["watermark"], "summary": REASON, "steps": [STEP], "culprit": 0}
    },
    "/v1/connections": {"connections": {"broker": {"type": "kafka", "bootstrapServers": "a:9092," * 20}}},
}


@pytest.mark.parametrize("words", ["processors", "stats p", "explain-watermark p", "connections"])
def test_lines_are_no_wider_than_a_terminal(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 characters, however long the reasons and the figures; what does not fit goes below."""
    monkeypatch.setattr(Remote, "get", lambda _, path: ANSWERS[path])
    monkeypatch.setattr(control, "find", lambda _: Remote("http://h", ""))
    said = CliRunner().invoke(app, words.split())
    assert said.exit_code == 0, said.output
    assert max(map(len, said.stdout.splitlines())) <= control.WIDTH, said.stdout
    as_json = CliRunner().invoke(app, [*words.split(), "--json"])
    assert json.loads(as_json.stdout) in ANSWERS.values()


@pytest.mark.parametrize(
    ("told", "lines", "new"),
    [
        ([], ["a", "b"], ["a", "b"]),
        (["a", "b"], ["a", "b"], []),
        (["a", "b"], ["b", "c"], ["c"]),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
    ],
)
def test_following_a_log_tells_each_line_once(told: list[str], lines: list[str], new: list[str]) -> None:
    """Of two looks the second's lines behind those of the first; equal lines are counted."""
    assert list(control.unseen(told, lines)) == new


@pytest.mark.parametrize("command", ["validate", "check"])
def test_errors_of_a_document_are_json_for_programs(command: str, tmp_path: Path) -> None:
    """Place, message and nearest name of each, and the status, as the text has them."""
    file = tmp_path / "p.json"
    file.write_text('{"pipeline": [{"$sauce": {}}]}')
    said = CliRunner().invoke(app, [command, str(file), "--json"])
    found = json.loads(said.stdout)
    assert (said.exit_code, found["valid"]) == (1, False)
    assert "$source" in [error["nearest"] for error in found["errors"]]
    file.write_text(
        json.dumps({"pipeline": [{"$source": {"documents": [{}]}}, {"$emit": {"path": "o", "format": "json"}}]})
    )
    said = CliRunner().invoke(app, [command, str(file), "--json"])
    assert (said.exit_code, json.loads(said.stdout)["errors"]) == (0, [])


def test_a_plan_is_json_for_programs(tmp_path: Path) -> None:
    """Vertices with their operators, and edges between them."""
    file = tmp_path / "p.json"
    file.write_text(
        json.dumps({"pipeline": [{"$source": {"documents": [{}]}}, {"$emit": {"path": "o", "format": "json"}}]})
    )
    found = json.loads(CliRunner().invoke(app, ["explain", str(file), "--json"]).stdout)
    services = {vertex["id"]: vertex["service"] for vertex in found["vertices"]}
    assert ("source", "sink") in {(services[edge["from"]], services[edge["to"]]) for edge in found["edges"]}
