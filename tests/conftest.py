"""What tests of several kinds share: a real broker, names that no other test uses; and their order, examples and memory.

A broker is a Kafka of one node on a free port of the loopback address, with its data in a folder of the test's.
``kafka_broker`` is one for the whole session: a test takes topics of its own (``unique_name``) and leaves the broker
alone. ``fresh_broker`` is for tests that kill, stop and restart: it is their own.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests.harness.clusters.broker import broker_for_tests
from tests.harness.mongodb.servers import Servers, mongodb
from tests.harness.share import CI
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import BrokerSettings

_numbers = itertools.count()

# How fast an example is drawn or run is the machine's affair. On a machine of many changes (CI) the examples are always the
# same, so that a change is judged by what it changed, and a part of those that a test asks for: more of the same find nothing
# new. At a desk they are all drawn, new each time (`make property`).
CI_EXAMPLES_OF: Final = 10
"""A CI run draws one of so many examples."""
CI_EXAMPLES_MIN: Final = 20
TIMES: Final = int(os.environ.get("EXAMPLES_TIMES", "1"))
"""At a desk, a long search draws so many times the examples that a test asks for (`make property TIMES=20`)."""
settings.register_profile("desk", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("desk"), derandomize=True)
os.environ.setdefault("TIDEMARK_ALLOW", '{"loopback": true}')  # where tests have their brokers and databases
settings.load_profile("ci" if CI else "desk")
# A traceback with the values of all names in it took seconds to draw, and one is logged for each try of an outage of hours.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# What waits for processes comes first: beside it, and behind it, the rest fills all cores to the end.
ORDER: Final = ("e2e", "spark", "kafka", "postgres", "mongodb", "slow")


def _place(item: pytest.Item) -> int:
    return next((n for n, mark in enumerate(ORDER) if item.get_closest_marker(mark)), len(ORDER))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of the tests, and their numbers of examples in CI and in a long search."""
    items.sort(key=_place)
    if not CI and TIMES == 1:
        return
    tests = {item.obj for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)}
    for test in tests:
        asked: settings | None = getattr(test, "_hypothesis_internal_use_settings", None)
        if asked is None:  # a state machine, which has settings of its own
            continue
        fewer = min(asked.max_examples, max(CI_EXAMPLES_MIN, asked.max_examples // CI_EXAMPLES_OF))
        drawn = fewer if CI else asked.max_examples * TIMES
        test._hypothesis_internal_use_settings = settings(asked, max_examples=drawn)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: a search for garbage that went through it each time took a tenth of a second."""
    gc.collect()
    gc.freeze()


_peaks: list[str] = []


def _peak_mib(whom: int) -> int:
    return resource.getrusage(whom).ru_maxrss // 1024


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells how much memory it took."""
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if told is not None:
        told["peaks_mib"] = _peak_mib(resource.RUSAGE_SELF), _peak_mib(resource.RUSAGE_CHILDREN)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Nothing of a worker that died."""
    own, child = getattr(node, "workeroutput", {}).get("peaks_mib", (0, 0))
    _peaks.append(f"{node.gateway.id} {own} MiB, the largest of its processes {child} MiB")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The peaks of memory, behind a run on several workers."""
    if _peaks:
        terminalreporter.write_line(f"Peak memory: {'; '.join(sorted(_peaks))}")


@pytest.fixture
def unique_name() -> Callable[[str], str]:
    """Names for topics, jobs and transactional ids: ``unique_name("orders")`` differs at each call."""
    return lambda stem: f"{stem}-{os.getpid()}-{next(_numbers)}"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """The bootstrap address of the session's broker. Not for tests that take it down."""
    broker = broker_for_tests(BrokerSettings(data_dir=tmp_path_factory.mktemp("kafka")))
    bootstrap = await broker.start()
    yield bootstrap
    await broker.stop()


@pytest_asyncio.fixture
async def fresh_broker(tmp_path: Path) -> AsyncIterator[LocalBroker]:
    """A started broker of the test's own, to kill and start again."""
    broker = broker_for_tests(BrokerSettings(data_dir=tmp_path / "kafka"))
    await broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def mongodb_servers() -> Iterator[Servers]:
    """MongoDB alone and as a replica set, for all tests of the session: each takes a database of its own."""
    with mongodb() as servers:
        yield servers


@contextmanager
def logging_restored() -> Iterator[None]:
    """What is said of logs within (a command sends them to a file, or none below an error) does not hold behind it."""
    root, raises = logging.getLogger(), logging.raiseExceptions
    before, configured = list(root.handlers), structlog.get_config()
    try:
        yield
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()
        logging.raiseExceptions = raises
        structlog.configure(**configured)


@pytest.fixture(autouse=True, scope="module")
def logging_of_a_module() -> Iterator[None]:
    """Fixtures of a module say it of its tests alone."""
    with logging_restored():
        yield


@pytest.fixture(autouse=True)
def logging_of_a_test(logging_of_a_module: None) -> Iterator[None]:
    """A test says it of itself alone."""
    with logging_restored():
        yield
