"""Spark's JVM may be killed, as by the kernel when memory is short: the next that asks for the session gets one that lives."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemark.services.spark import service
from tidemark.services.spark.body import SparkUnavailable, outage_of
from tidemark.services.spark.service import KeptSession
from tidemark.spark_stages.session import end_application, warm_up

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


def test_an_application_that_has_ended_is_replaced(kept: KeptSession) -> None:
    """A cluster's master that was lost, or took all executors away, ends it, and not the JVM: the next that asks gets another."""
    first = kept.get()
    assert first.range(3).count() == 3
    end_application(first.sparkContext)
    with pytest.raises(Py4JError) as failed:
        first.range(3).count()
    assert isinstance(outage_of(failed.value), SparkUnavailable)
    assert kept.get() is not first
    assert kept.get().range(4).count() == 4


def test_an_application_without_executors_is_ended_at_the_second_look(
    kept: KeptSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs would wait for ever; one look may fall between an executor that is lost and the next."""
    first = kept.get()
    lost = [True, False, True, True]
    monkeypatch.setattr(service, "is_lost", lambda _: lost.pop(0))
    for _ in range(3):
        kept.look()
        assert first.range(3).count() == 3
    kept.look()
    assert kept.get() is not first
