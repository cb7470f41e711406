"""What a run does now, and until when: a step that does not end is told of, whatever it waits for, and though it cannot be cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
STARTS_S_MAX = 600.0
"""For an installation to begin, on a machine that may be busy."""
ENDS_S_MAX = 300.0
"""For an installation to end: each of its processes has some seconds, then it is killed."""
_LOOK_S = 0.5
"""Between two looks: a step may have ended, and the next begun."""
GIVES_S = 120.0
"""For words on how things stand, of whoever may be what hangs; then for what was cancelled to end: processes are stopped meanwhile."""


class Wrong(Exception):
    """What must not be: lost, twice, FAILED, stuck, or an audit that finds something."""


async def _nothing() -> str:
    return ""


class Steps:
    """Begun one after the other by what is followed; each ends in its time."""

    def __init__(
        self,
        what: str,
        within_s: float,
        tells: Callable[[], Coroutine[Any, Any, str]] = _nothing,
        *,
        gives_s: float = GIVES_S,
    ) -> None:
        """The first step. tells: how things stand, asked when a step does not end."""
        self._tells, self._gives_s = tells, gives_s
        self.begin(what, within_s)

    def begin(self, what: str, within_s: float) -> None:
        """The step before has ended."""
        self._what, self._within_s = what, within_s
        self._due = asyncio.get_running_loop().time() + within_s

    async def followed(self, work: Coroutine[Any, Any, T]) -> T:
        """Its result. Wrong where a step does not end."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        try:
            while not task.done():
                if loop.time() > self._due:
                    raise Wrong(
                        f"{self._what} takes more than {self._within_s:g} s: {_where(task)}; {await self._words()}"
                    )
                await asyncio.wait({task}, timeout=_LOOK_S)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait({task}, timeout=self._gives_s)

    async def _words(self) -> str:
        asking = asyncio.ensure_future(self._tells())
        await asyncio.wait({asking}, timeout=self._gives_s)
        if not asking.done():
            asking.cancel()
            return f"how things stand was not answered within {self._gives_s:g} s"
        error = asking.exception()
        return asking.result() if error is None else repr(error)


def _where(task: "asyncio.Task[Any]") -> str:
    """The lines at which it waits, the outermost first."""
    found: list[str] = []
    at: Any = task.get_coro()
    while (frame := getattr(at, "cr_frame", None)) is not None:
        found.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}")
        at = getattr(at, "cr_await", None)
    return "it waits at " + " > ".join(found)
