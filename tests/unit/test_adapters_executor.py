"""Executors: errors of activities surface, cancelling is quiet, blocking work runs and is bounded."""

import asyncio
import threading

import pytest

from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.virtual import InlineExecutor
from tidemark.shared.ports.clock import Clock, Executor

ERRORS: list[BaseException] = []


async def _fail() -> None:
    await asyncio.sleep(0)
    raise ValueError("broken")


async def _wait_forever() -> None:
    await asyncio.Event().wait()


@pytest.fixture(params=["async", "inline"])
def executor(request: pytest.FixtureRequest) -> AsyncExecutor | InlineExecutor:
    made = AsyncExecutor(threads=2, waiting_max=2) if request.param == "async" else InlineExecutor()
    port: Executor = made
    assert port is made
    return made


async def test_error_of_activity_reaches_on_error_and_join(executor: AsyncExecutor | InlineExecutor) -> None:
    """An exception that escapes a spawned activity goes to `on_error`, and `join` raises it."""
    seen: list[BaseException] = []
    handle = executor.spawn(_fail(), "failing", seen.append)
    with pytest.raises(ValueError, match="broken"):
        await handle.join()
    assert [str(e) for e in seen] == ["broken"]
    assert handle.done()
    assert executor.running() == []


async def test_cancel_is_quiet(executor: AsyncExecutor | InlineExecutor) -> None:
    """A cancelled activity ends without an error, and `join` returns."""
    seen: list[BaseException] = []
    handle = executor.spawn(_wait_forever(), "waiting", seen.append)
    assert executor.running() == ["waiting"]
    handle.cancel()
    await handle.join()
    assert seen == []
    assert handle.done()


async def test_cancelling_the_joiner_leaves_the_activity(executor: AsyncExecutor | InlineExecutor) -> None:
    """Who waits in `join` can be cancelled without taking the activity with him."""
    handle = executor.spawn(_wait_forever(), "waiting", ERRORS.append)
    joiner = asyncio.ensure_future(handle.join())
    await asyncio.sleep(0)
    joiner.cancel()
    await asyncio.wait({joiner})
    assert not handle.done()
    await executor.cancel_all()
    assert handle.done()


async def test_blocking_returns_and_raises(executor: AsyncExecutor | InlineExecutor) -> None:
    """Blocking work gives its result, or raises its error, to who awaits it."""
    assert await executor.blocking(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await executor.blocking(divmod, 7, 0)


async def test_blocking_is_bounded_and_off_the_loop() -> None:
    """Blocking work runs on threads of the pool; more calls than `waiting_max` are refused by name."""
    executor = AsyncExecutor(threads=1, waiting_max=2)
    gate = threading.Event()
    first = executor.blocking(gate.wait)
    second = executor.blocking(threading.current_thread)
    with pytest.raises(RuntimeError, match="waiting_max"):
        await executor.blocking(gate.wait)
    gate.set()
    assert await first
    assert (await second).name.startswith("blocking")
    await executor.close()


async def test_system_clock_goes_forward() -> None:
    """The system's clock sleeps at least as long as asked, on the monotonic clock."""
    clock: Clock = SystemClock()
    before = clock.monotonic_ms()
    await clock.sleep_ms(2)
    assert clock.monotonic_ms() - before >= 1
    assert clock.now_ms() > 1_600_000_000_000
