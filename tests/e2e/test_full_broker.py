"""A full disk below a broker: nothing is lost or twice, and nothing that time mends ends in FAILED (`tests/harness/full_broker.py`)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.full_broker import BEFORE, DURING

pytestmark = pytest.mark.e2e
FULL_S = 6


def test_a_full_disk_of_the_broker_is_waited_out(tmp_path: Path) -> None:
    """The broker takes nothing and ends; with room again a new one takes all, each record comes out once, and the audit agrees."""
    command = [sys.executable, "-m", "tests.harness.full_broker", str(tmp_path), str(FULL_S)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6_000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["refused"] > 0.9 * DURING, seen
    assert (seen["lost"], seen["twice"], seen["missing"]) == (0, 0, 0), seen
    assert seen["acknowledged"] == BEFORE + DURING, seen
    assert seen["audited"] >= BEFORE + DURING, seen
    assert seen["states"][-1] == "FINISHED: ", seen
    assert not [state for state in seen["states"] if state.startswith("FAILED")], seen
