"""What a process has freed and wants again at once is not given back to the system in between (`shared/process/allocator.py`)."""

import subprocess
import sys

import pytest

from tidemark.shared.process.settings import ProcessSettingsError, read_settings

ROUNDS = 20
WORK = f"""
import resource, sys
from tidemark.shared.process.allocator import keep_freed
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


THREADS = """
import ctypes, os, sys, threading
import pyarrow as pa
from tidemark.shared.process.allocator import arrow_on_heaps, few_heaps
few = few_heaps(int(sys.argv[1])) if len(sys.argv) > 1 else None
arrow = arrow_on_heaps() if len(sys.argv) > 1 else None
held, let_go = threading.Barrier(9), threading.Barrier(9)
def work():
    kept = [b"x" * 2_000 for _ in range(50)]
    held.wait(); let_go.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
held.wait()
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
out, into = os.pipe()
stream = ctypes.c_void_p(libc.fdopen(into, b"w"))
libc.malloc_info(0, stream); libc.fclose(stream)
heaps = os.fdopen(out).read().count("<heap nr=")
let_go.wait()
print(few, arrow, heaps, pa.default_memory_pool().backend_name)
"""
"""Eight threads that allocate at the same time: prints what was changed, on how many heaps they are, and where Arrow's columns lie."""


def _heaps(*arguments: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", THREADS, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_threads_share_few_heaps_and_arrow_is_on_them() -> None:
    """What a process keeps does not grow with its threads; without the setting each has a heap, and Arrow its own."""
    few, arrow, heaps, pool = _heaps("2")
    assert (few, arrow, pool) == ("True", "True", "system")
    assert int(heaps) <= 2
    _, _, heaps, pool = _heaps()
    assert int(heaps) > 2
    assert pool != "system"


def test_an_environment_that_says_where_memory_lies_is_left_alone() -> None:
    """Who has set the libraries' own variables has decided."""
    assert _heaps("2", MALLOC_ARENA_MAX="7")[0] == "False"
    assert _heaps("2", ARROW_DEFAULT_MEMORY_POOL="mimalloc")[1::2] == ["False", "mimalloc"]


@pytest.mark.parametrize("given", ["0", "-1", "two", "1025", ""])
def test_a_wrong_number_of_heaps_is_refused(given: str) -> None:
    """The message names the variable, what is expected and what was found."""
    environment = {"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "source-0", "TIDEMARK_HEAPS": given}
    with pytest.raises(ProcessSettingsError, match=r"TIDEMARK_HEAPS: expected a number from 1 to 1024, found"):
        read_settings(environment)


@pytest.mark.parametrize("given", ["0", "-1", "64M", str(2**31), ""])
def test_a_wrong_bound_is_refused(given: str) -> None:
    """The message names the variable, what is expected and what was found."""
    environment = {"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "source-0", "TIDEMARK_KEPT_BYTES": given}
    with pytest.raises(ProcessSettingsError, match=r"TIDEMARK_KEPT_BYTES: expected bytes from 1 to 2147483647, found"):
        read_settings(environment)
