"""The year's alerts, written down: a change of the feed, the model or the thresholds shows line by line."""

import json
from pathlib import Path
from typing import Any

from tests.oracle import departures as oracle
from tests.oracle.check_demo import SPIKES_BY_HAND, settled_feed

GOLDEN = Path(__file__).parent / "departures_alerts.jsonl"


def test_the_year_s_alerts_are_those_written_down() -> None:
    """The oracle's alerts of the feed equal the file, in order; `python -m tests.golden.test_departures_golden` writes it anew."""
    assert _alerts() == _written()


def test_what_was_checked_by_hand_is_written_down() -> None:
    """The spikes, as they were read off the raw table, and each of the year's 32 absences."""
    written = {(each["origin"], each["hour"]): each for each in _written()}
    assert {key: (written[key]["expected"], written[key]["actual"]) for key in SPIKES_BY_HAND} == SPIKES_BY_HAND
    absences = {(origin, oracle.iso(hour)) for origin, hour in oracle.absences(oracle.scheduled_flights())}
    assert len(absences) == 32
    assert {written[key]["cause"] for key in absences} == {"absent"}


def _written() -> list[dict[str, Any]]:
    return [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def _alerts() -> list[dict[str, object]]:
    return oracle.alerts(settled_feed().counts)


if __name__ == "__main__":
    GOLDEN.write_text("".join(json.dumps(alert) + "\n" for alert in _alerts()))
