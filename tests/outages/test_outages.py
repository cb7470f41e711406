# ruff: noqa: N802 -- a test carries its rule's name
"""Whatever a processor needs may be away for a while: it runs again by itself, with every row once (C10)."""

from pathlib import Path

import pytest

from tests.harness.outages import endure, outages
from tests.harness.share import share

HALF_A_MINUTE_MS, TEN_MINUTES_MS, THREE_HOURS_MS = 30_000, 600_000, 3 * 3_600_000
FIFTEEN_MINUTES_MS = 900_000
"""Above `topics_kept_ms`."""


@pytest.mark.parametrize("what", share(list(outages()), 3))
def test_C10_half_a_minute_is_waited_out(what: str, tmp_path: Path) -> None:
    """Nothing has timed out by then."""
    endure(outages()[what], HALF_A_MINUTE_MS, tmp_path)


@pytest.mark.parametrize("what", ["broker: send", "store", "files, begins", "spark", "full: blobs"])
def test_C10_ten_minutes_are_waited_out(what: str, tmp_path: Path) -> None:
    """Checkpoints and restores have timed out, oftener than would make it FAILED if they counted."""
    endure(outages()[what], TEN_MINUTES_MS, tmp_path)


@pytest.mark.parametrize("what", ["broker", "broker: fetch"])
def test_C10_an_outage_longer_than_topics_are_kept_is_waited_out(what: str, tmp_path: Path) -> None:
    """Commands and positions that a worker was still to read are gone: it goes on behind them, and does not end."""
    endure(outages()[what], FIFTEEN_MINUTES_MS, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("away_ms", [TEN_MINUTES_MS, THREE_HOURS_MS])
@pytest.mark.parametrize("what", outages())
def test_C10_ten_minutes_and_three_hours_of_everything_are_waited_out(what: str, away_ms: int, tmp_path: Path) -> None:
    """Every queue has come to its bound by then."""
    endure(outages()[what], away_ms, tmp_path)
