"""Concurrency on asyncio: activities as tasks, blocking work on a bounded pool of threads.

Rules: a spawned activity is referenced strongly until it ends (asyncio itself keeps only weak references); an
exception that escapes it reaches `on_error`; the pool's queue has a bound, and running into it is an error,
not a wait.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

BLOCKING_THREADS: Final = 8
"""Threads for blocking work, by default."""
BLOCKING_WAITING_MAX: Final = 1024
"""Calls of blocking work that may be running or waiting for a thread, by default."""


class SpawnedTask:
    """`Handle` on an asyncio task."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task
        self._cancelled = False

    def cancel(self) -> None:
        """Ask it to stop: it sees `asyncio.CancelledError` at its next await."""
        self._cancelled = True
        self._task.cancel()

    def done(self) -> bool:
        """Whether it has ended."""
        return self._task.done()

    async def join(self) -> None:
        """Wait for its end; raises its error, but returns quietly after `cancel`.

        Cancelling the waiting task does not cancel the activity.
        """
        await asyncio.wait({self._task})
        if self._cancelled or self._task.cancelled():
            return
        error = self._task.exception()
        if error is not None:
            raise error


class Spawner:
    """The half of an executor that starts activities on the running loop."""

    def __init__(self) -> None:
        # A dict for its order: the same program cancels in the same order.
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(
        self, activity: Coroutine[Any, Any, None], name: str, on_error: Callable[[BaseException], None]
    ) -> SpawnedTask:
        """Run a coroutine beside; an exception that escapes it goes to `on_error`, never into nothing."""
        task = asyncio.get_running_loop().create_task(activity, name=name)
        self._tasks[task] = None

        def ended(task: "asyncio.Task[None]") -> None:
            self._tasks.pop(task, None)
            if not task.cancelled():
                error = task.exception()
                if error is not None:
                    on_error(error)

        task.add_done_callback(ended)
        return SpawnedTask(task)

    def running(self) -> list[str]:
        """Names of the activities that have not ended, sorted."""
        return sorted(task.get_name() for task in self._tasks)

    async def cancel_all(self) -> None:
        """Cancel every activity and wait for their ends; their errors go to their `on_error`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class AsyncExecutor(Spawner):
    """`Executor` of a real process."""

    def __init__(self, threads: int = BLOCKING_THREADS, waiting_max: int = BLOCKING_WAITING_MAX) -> None:
        super().__init__()
        if threads < 1 or waiting_max < threads:
            raise ValueError(
                f"executor: expected threads ≥ 1 and waiting_max ≥ threads, found {threads} and {waiting_max}"
            )
        self._waiting_max = waiting_max
        self._pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="blocking")
        self._pending: set[concurrent.futures.Future[Any]] = set()

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """Run a function that blocks on a thread. Cancelling the wait does not stop one that has begun.

        Raises:
            RuntimeError: as many calls as `waiting_max` are running or waiting.
        """
        if len(self._pending) >= self._waiting_max:
            raise RuntimeError(
                f"executor: {len(self._pending)} blocking calls are running or waiting, which is waiting_max;"
                " await results before handing over more, or raise waiting_max"
            )
        future = self._pool.submit(work, *args)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return asyncio.wrap_future(future)

    async def close(self) -> None:
        """Cancel every activity; let running blocking work end and drop the calls that wait for a thread."""
        await self.cancel_all()
        # The wait for the threads' ends is itself blocking: it gets a thread of its own so that the loop goes
        # on.
        await asyncio.to_thread(self._pool.shutdown, wait=True, cancel_futures=True)
