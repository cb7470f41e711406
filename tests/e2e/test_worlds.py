"""Wrong clocks and bad networks under jobs of real processes: the short form of `make worlds`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


def test_a_wrong_clock_and_a_bad_network_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    """The broker is years behind, a service ahead, and ways are torn: all comes out once, and both audits agree."""
    story = ("--seed", "10", "--acts", "4", "--seconds", "6", "--settles-s", "400", "--out", str(tmp_path / "out"))
    kinds = ("clock broker behind", "clock sink ahead", "way coordinator torn", "way source flaps")
    log = tmp_path / "log.txt"
    with log.open("w") as out:
        command = [sys.executable, "-m", "tests.harness.worlds", *story, "--only", *kinds]
        try:
            done = subprocess.run(command, stdout=out, stderr=out, check=False, timeout=570)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end: {log.read_text()[-12_000:]}")
    assert done.returncode == 0, log.read_text()[-12_000:]
