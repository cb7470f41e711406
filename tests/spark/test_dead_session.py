"""Spark's JVM may be killed, as by the kernel when memory is short: the next that asks for the session gets one that lives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemark.services.spark import service
from tidemark.services.spark.service import KeptSession
from tidemark.spark_stages.session import warm_up

pytestmark = pytest.mark.spark


@pytest.fixture
def kept() -> Iterator[KeptSession]:
    """A session of one core, kept by a process."""
    found = KeptSession("local[1]")
    yield found
    found.stop()


def kill(session: SparkSession) -> None:
    """End the JVM, and not what merely started it; return when it has ended."""
    process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
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
        kill(kept.get())


def test_a_session_whose_jvm_is_killed_while_it_starts_is_replaced(
    kept: KeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has it yet, and PySpark keeps it all the same: the next that asks gets one that lives."""

    def killed(session: SparkSession) -> None:
        kill(session)
        warm_up(session)

    monkeypatch.setattr(service, "warm_up", killed)
    with pytest.raises((Py4JError, OSError)):
        kept.get()
    monkeypatch.setattr(service, "warm_up", warm_up)
    assert kept.get().range(3).count() == 3
