"""A round of faults on real processes: the short form of `make chaos` (`tests/harness/chaos`)."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.chaos.ledger import entries
from tests.harness.share import CI

pytestmark = pytest.mark.e2e
FAULTS, STRIKING_S = (3, 5) if CI else (5, 8)
ROUND = ("--rounds", "1", "--faults", str(FAULTS), "--striking-s", str(STRIKING_S), "--seed", "22")


def test_a_round_of_faults_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    """Kills, pauses, cuts and a full disk while two jobs run and one is drained: all comes out once, and both audits agree."""
    command = [sys.executable, "-m", "tests.harness.chaos", *ROUND, "--out", str(tmp_path / "out")]
    log = tmp_path / "log.txt"
    with log.open("w") as out:
        try:
            done = subprocess.run(command, stdout=out, stderr=out, check=False, timeout=570)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end: {log.read_text()[-12_000:]}")
    assert done.returncode == 0, log.read_text()[-12_000:]
    (entry,) = entries(tmp_path / "out")
    assert (entry.wrong, entry.rounds) == ("", 1)
    assert len(entry.struck) >= FAULTS - 1
