"""The year's alerts, written down: a change of the feed, the model or the thresholds shows line by line."""

import json
from pathlib import Path

from tests.oracle import departures as oracle
from tests.oracle.check_demo import settled_feed

GOLDEN = Path(__file__).parent / "departures_alerts.jsonl"


def test_the_year_s_alerts_are_those_written_down() -> None:
    """The oracle's alerts of the feed equal the file, in order; `python -m tests.golden.test_departures_golden` writes it anew."""
    assert _alerts() == [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _alerts() -> list[dict[str, object]]:
    return oracle.alerts(settled_feed().counts)


if __name__ == "__main__":
    GOLDEN.write_text("".join(json.dumps(alert) + "\n" for alert in _alerts()))
