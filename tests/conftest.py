"""What tests of several kinds share: a real broker, names that no other test uses.

A broker is a Kafka of one node on a free port of the loopback address, with its data in a folder of the test's.
``kafka_broker`` is one for the whole session: a test takes topics of its own (``unique_name``) and leaves the broker
alone. ``fresh_broker`` is for tests that kill, stop and restart: it is their own.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, settings

from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings

_numbers = itertools.count()

# How fast an example is drawn or run is the machine's affair. On a machine of many changes (CI) the examples are always the
# same, so that a change is judged by what it changed; at a desk they are new each time.
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True)
os.environ.setdefault("TIDEMARK_ALLOW", '{"loopback": true}')  # where tests have their brokers and databases
settings.load_profile("ci" if os.environ.get("CI") else "desk")
# A traceback with the values of all names in it took seconds to draw, and one is logged for each try of an outage of hours.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """Names for topics, jobs and transactional ids: ``unique_name("orders")`` differs at each call."""
    return lambda stem: f"{stem}-{os.getpid()}-{next(_numbers)}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The bootstrap address of the session's broker. Not for tests that take it down."""
    broker = LocalBroker(BrokerSettings(data_dir=tmp_path_factory.mktemp("kafka")))
    bootstrap = await broker.start()
    yield bootstrap
    await broker.stop()


@pytest_asyncio.fixture
async def fresh_broker(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    """A started broker of the test's own, to kill and start again."""
    broker = LocalBroker(BrokerSettings(data_dir=tmp_path / "kafka"))
    await broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """What a command of this process sends to a file goes nowhere afterwards."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    before, configured = list(root.handlers), structlog.get_config()
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    logging.raiseExceptions = raises
    structlog.configure(**configured)
