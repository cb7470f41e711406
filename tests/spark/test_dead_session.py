"""Spark's JVM may be killed, as by the kernel when memory is short: the next that asks for the session gets one that lives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidemark.services.spark.service import KeptSession

pytestmark = pytest.mark.spark


@pytest.fixture
def kept() -> Iterator[KeptSession]:
    """A session of one core, kept by a process."""
    found = KeptSession("local[1]")
    yield found
    found.stop()


def kill(kept: KeptSession) -> None:
    """End the JVM, and not what merely started it; return when it has ended."""
    process = kept.get().sparkContext._gateway.proc  # type: ignore[union-attr]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in [process.pid, *map(int, children)]:
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            os.kill(pid, signal.SIGKILL)
    process.wait()


def test_a_session_whose_jvm_was_killed_is_replaced(kept: KeptSession) -> None:
    """It works like the first, again and again, and is one for all that ask; one that died last can be stopped."""
    for rows in (3, 4):
        assert kept.get().range(rows).count() == rows
        assert kept.get() is kept.get()
        kill(kept)
