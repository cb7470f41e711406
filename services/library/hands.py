"""The threads on which the contracts call plug-ins: in turns, as workers do, and not for ever."""

import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from tidemark.shared.adapters.executor import Spawner
from tidemark.shared.ports.clock import T

WAIT_S: Final = 20.0
"""For one call: one of a plug-in that works on a file takes milliseconds, also where a machine is busy."""
_Call = Callable[[], None]


class Hands(Spawner):
    """An executor of two threads that take turns: what is bound to the thread that made it fails at the next call."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = [_Hand(), _Hand()]
        self._turn = 0

    def blocking(self, work: Callable[..., T], *args: object) -> Awaitable[T]:
        """See `Executor.blocking`."""

        async def in_turn() -> T:
            return self.call(work, *args)

        return in_turn()

    def call(self, work: Callable[..., T], *args: object) -> T:
        """The result of a call by the next thread. AssertionError if it has not come back in time."""
        done: queue.Queue[tuple[T] | BaseException] = queue.Queue(1)

        def answered() -> None:
            try:
                done.put((work(*args),))
            except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
                done.put(error)

        self._turn = 1 - self._turn
        if not self._calls[self._turn].thread.is_alive():  # this is a fork of the process that began it
            self._calls[self._turn] = _Hand()
        self._calls[self._turn].calls.put(answered)
        try:
            answer = done.get(timeout=WAIT_S)
        except queue.Empty:
            self._calls[self._turn] = _Hand()  # the other one may never be free again
            raise AssertionError(f"a call has not come back after {WAIT_S:.0f} s") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer[0]


class _Hand:
    """A thread, and its calls."""

    def __init__(self) -> None:
        self.calls: queue.Queue[_Call] = queue.Queue(1)
        self.thread = threading.Thread(target=self._work_through, daemon=True)
        self.thread.start()

    def _work_through(self) -> None:
        while True:
            self.calls.get()()


HANDS: Final = Hands()
"""Those of all contracts of a process: their threads end with it."""
