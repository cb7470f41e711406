"""Time and concurrency. Drivers reach both only through these two ports, so that a simulation can run them on virtual time."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """Wall time for event data, monotonic time for time-outs."""

    def now_ms(self) -> int:
        """Wall clock, UTC, ms since 1970; may jump."""
        ...

    def monotonic_ms(self) -> int:
        """Monotonic clock, ms; only differences mean something."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Return after this time, on the monotonic clock."""
        ...


class Handle(Protocol):
    """A spawned activity."""

    def cancel(self) -> None:
        """Ask it to stop: it sees `asyncio.CancelledError` at its next await."""
        ...

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    async def join(self) -> None:
        """Wait for the task's end. Raises the task's own error, but returns quietly after `cancel`."""
        ...


class Executor(Protocol):
    """Starts tasks that run beside the caller."""

    def spawn(
        self, activity: Coroutine[Any, Any, None], name: str, on_error: Callable[[BaseException], None]
    ) -> Handle:
        """Run a coroutine beside; an exception that escapes it goes to `on_error`, never into nothing."""
        ...

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run a function that blocks (file, SQL, Spark, Arrow at length) on a thread; inline in a simulation."""
        ...
