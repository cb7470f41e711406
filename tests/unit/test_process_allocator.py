"""What a process has freed and wants again at once is not given back to the system in between (`shared/process/allocator.py`)."""

import subprocess
import sys

import pytest

from shared.process.settings import ProcessSettingsError, read_settings

ROUNDS = 20
WORK = f"""
import resource, sys
from shared.process.allocator import keep_freed
kept = keep_freed(int(sys.argv[1])) if len(sys.argv) > 1 else None
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[b"x" * (4 << 20) for _ in range(6)]
before = faults()
for _ in range({ROUNDS}):
    [b"x" * (4 << 20) for _ in range(6)]
print(kept, faults() - before)
"""
"""24 MiB, taken and let go of, time and again: prints whether it was tuned, and how many pages the system had to bring."""


def _worked(*arguments: str, **environment: str) -> tuple[str, int]:
    done = subprocess.run(
        [sys.executable, "-c", WORK, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_freed_memory_is_used_again() -> None:
    """Work that fits into what is kept brings no new pages, round after round; without it every round does."""
    kept, faults = _worked(str(64 << 20))
    _, given_back = _worked()
    assert kept == "True"
    assert faults * 10 < given_back


def test_what_is_above_the_bound_is_given_back() -> None:
    """The bound is one: with less kept than a round frees, pages come anew each round."""
    kept, faults = _worked(str(1 << 20))
    assert kept == "True"
    assert faults > ROUNDS * 100


def test_an_environment_that_tunes_the_allocator_is_left_alone() -> None:
    """Who has set glibc's own variables has decided."""
    assert _worked(str(64 << 20), MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"


@pytest.mark.parametrize("given", ["0", "-1", "64M", str(2**31), ""])
def test_a_wrong_bound_is_refused(given: str) -> None:
    """The message names the variable, what is expected and what was found."""
    environment = {"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "source-0", "TIDEMARK_KEPT_BYTES": given}
    with pytest.raises(ProcessSettingsError, match=r"TIDEMARK_KEPT_BYTES: expected bytes from 1 to 2147483647, found"):
        read_settings(environment)
