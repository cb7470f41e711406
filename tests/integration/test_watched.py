# ruff: noqa: N802 -- a test carries its rule's name
"""Workers as containers start them: with a process above each that vouches for it, on a real broker."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import psutil
import pytest

from tests.harness.sealing import KEY
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import WorkerIncarnation
from tidemark.shared.model.messages import Alive, Deregister, Report, Request
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.reading import followed
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_report

pytestmark = pytest.mark.kafka
START = Path(__file__).resolve().parents[2] / "deploy" / "images" / "start.sh"
NAMED = WorkerIncarnation("named")
SAYS_NOTHING = "import signal\nwhile True: signal.pause()"


async def _reports(bootstrap: str, prefix: str) -> AsyncGenerator[Report | Request, None]:
    log, topic = KafkaLog(KafkaSettings(bootstrap=bootstrap)), Topics(prefix).reports
    await log.create_topic(topic, 1)
    try:
        async for record in followed(log, SystemClock(), TopicPartition(topic, 0)):
            yield decode_report(record.value or b"")
    finally:
        await log.close()


async def test_R1_a_worker_that_says_nothing_is_vouched_for_until_it_has_ended(
    kafka_broker: str, unique_name: Callable[[str], str]
) -> None:
    """Who started it says that it runs, under the name that the process has; and how it ended, by whoever's hand, and ends so itself."""
    prefix = unique_name("watched")
    environment = {
        **os.environ,
        "TIDEMARK_KAFKA": kafka_broker,
        "TIDEMARK_PREFIX": prefix,
        "TIDEMARK_PLACE": "source-x",
        "TIDEMARK_SIGNING_KEYS": KEY,
        "TIDEMARK_SERVICE": "source",
        "TIDEMARK_INCARNATION": NAMED,
    }
    watched = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidemark.services.local.watched", sys.executable, "-c", SAYS_NOTHING, env=environment
    )
    reports = _reports(kafka_broker, prefix)
    assert await anext(reports) == Alive((NAMED,))
    assert await anext(reports) == Alive((NAMED,))
    (worker,) = psutil.Process(watched.pid).children()
    assert worker.environ()["TIDEMARK_INCARNATION"] == NAMED
    worker.kill()
    while (said := await anext(reports)) == Alive((NAMED,)):
        pass
    assert said == Deregister(NAMED, "has ended with status -9")
    assert await watched.wait() == 137
    await reports.aclose()


def test_R1_a_containers_worker_is_watched_and_nothing_else_is() -> None:
    """The coordinator counts workers alone; control and gateway have no tasks."""
    text = START.read_text(encoding="utf-8")
    watched = 'source|operator|spark|sink) exec python3 -m tidemark.services.local.watched python3 -m "tidemark.services.$TIDEMARK_SERVICE"'
    assert watched in text


async def test_a_signal_reaches_the_watched_process_and_its_status_comes_back(
    kafka_broker: str, unique_name: Callable[[str], str]
) -> None:
    """As the engine ends a container: in good order, with the worker's own status."""
    does = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\nprint(1, flush=True)\nwhile True: signal.pause()"
    given = {"TIDEMARK_KAFKA": kafka_broker, "TIDEMARK_PREFIX": unique_name("watched"), "TIDEMARK_PLACE": "source-x"}
    watched = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidemark.services.local.watched",
        sys.executable,
        "-c",
        does,
        env={**os.environ, **given, "TIDEMARK_SIGNING_KEYS": KEY},
        stdout=-1,
    )
    assert watched.stdout is not None
    await watched.stdout.readline()
    watched.terminate()
    assert await watched.wait() == 3
