"""A virtual loop whose steps belong to processes: those of a process that is frozen wait, those of one that died never come.

So a process ends as by SIGKILL: no `finally` of its runs, nothing of its memory is seen again. Which process a step belongs to is
told by the context in which it was started.
"""

import asyncio
import random
import weakref
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from tidemark.shared.adapters.virtual import VirtualLoop

T = TypeVar("T")


class Life:
    """Whether a process runs, is frozen or is dead; and its tasks, which nothing collects while the simulation goes on."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.frozen = 0
        """How many hold it: two pauses of one process overlap."""
        self.dead = False
        self._held: list[asyncio.Handle] = []
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._buried: list[asyncio.Task[Any]] = []

    def add(self, task: "asyncio.Task[Any]") -> None:
        """A task of this process."""
        self._tasks.add(task)

    def hold(self, handle: asyncio.Handle) -> None:
        """A step that waits until the process is thawed."""
        self._held.append(handle)

    def freeze(self) -> None:
        """Stand still, as on SIGSTOP."""
        self.frozen += 1

    def thaw(self, loop: "SimLoop") -> None:
        """Go on."""
        self.frozen -= 1
        if not self.frozen and not self.dead:
            held, self._held = self._held, []
            loop.give_back(held)

    def die(self) -> None:
        """End, as on SIGKILL. The tasks are kept: collecting them would run their `finally`."""
        self.dead = True
        self._buried = list(self._tasks)


LIFE: ContextVar[Life | None] = ContextVar("life", default=None)
"""Of the step that runs; None: the world's own."""


def outside(start: Callable[[], T]) -> T:
    """Do something for no process: what is on its way over a network does not die with its sender."""
    return Context().run(start)


class SimLoop(VirtualLoop):
    """See the module."""

    def __init__(self, chooser: random.Random, *, limit_ms: int) -> None:
        super().__init__(chooser, shuffle=False, limit_ms=limit_ms, still_steps_max=200_000)
        self.filters = True
        self.turns = 0
        self._draw = chooser.random
        self.set_task_factory(_make_task)

    def give_back(self, handles: list[asyncio.Handle]) -> None:
        """Steps that waited for a thaw are ready, in their order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]

    def _check_closed(self) -> None:
        """What is collected behind the end may say what it likes: nobody hears it."""

    def select(self, timeout: float | None) -> list[Any]:
        """Take out what must not run, and draw an order for the rest."""
        found = super().select(timeout)
        ready: Any = self._ready  # type: ignore[attr-defined]
        if ready and self.filters:
            self._sift(ready)
        return found

    def _sift(self, ready: Any) -> None:
        self.turns += 1
        kept: list[asyncio.Handle] = []
        places: list[int] = []
        for handle in ready:
            life = handle._context.get(LIFE)
            if life is not None:
                if life.dead:
                    continue
                if life.frozen:
                    life.hold(handle)
                    continue
            if isinstance(getattr(handle._callback, "__self__", None), asyncio.Task):
                places.append(len(kept))
            kept.append(handle)
        for last in range(len(places) - 1, 0, -1):
            other = int(self._draw() * (last + 1))
            if other != last:
                one, two = places[last], places[other]
                kept[one], kept[two] = kept[two], kept[one]
        ready.clear()
        ready.extend(kept)


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
    context: Context | None = options.get("context")
    life = LIFE.get() if context is None else context.get(LIFE)
    if life is not None:
        life.add(task)
    return task
