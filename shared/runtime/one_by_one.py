"""Blocking work on a thing that takes one call at a time, such as a connection or an object of a plug-in."""

import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidemark.shared.ports.clock import Executor

T = TypeVar("T")


class OneByOne:
    """Calls of one thing, on an executor's threads.

    One whose wait was cancelled goes on upon its thread, and the thing is its own until it ends. So what lets go of the thing comes
    here, too.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._lock = threading.Lock()

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """See `Executor.blocking`."""
        return self._executor.blocking(self._alone, work, *args)

    def hand_over(self, work: Callable[..., T], *args: object) -> None:
        """The same, and nobody waits for its end."""
        _ = self.blocking(work, *args)

    def _alone(self, work: Callable[..., T], *args: object) -> T:
        with self._lock:
            return work(*args)
