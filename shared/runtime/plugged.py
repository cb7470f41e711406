"""A plug-in as connectors use it: opened when it is first asked, one call at a time, thrown away after any error."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import structlog

from tidemark.shared.language.forms import PluginFormat
from tidemark.shared.plugins.interface import Away, Format, Overtaken, Plugin, PluginError, PluginFailed, Refused
from tidemark.shared.ports.clock import Executor
from tidemark.shared.runtime.one_by_one import OneByOne

_report = structlog.get_logger()
P = TypeVar("P", bound=Plugin[Any, Any])
T = TypeVar("T")


@dataclass(slots=True)
class PluggedFormat:
    """A plug-in's format, or one with its interface; it is made when it is first loaded."""

    make: Callable[[], Format[Any]]
    form: PluginFormat
    _made: Format[Any] | None = None

    @property
    def place(self) -> str:
        """How messages name it."""
        return f"{self.form.path}, {'format' if self.form.own else 'plug-in'} {self.form.plugin}"

    def loaded(self) -> Format[Any]:
        """The format. Blocks; PluginError."""
        if self._made is None:
            self._made = self.make()
        return self._made


class _Object(Generic[P]):
    """An object of the plug-in, made and opened at its first call; its calls come one by one."""

    def __init__(self, make: Callable[[], P], place: str, executor: Executor) -> None:
        self._make = make
        self._place = place
        self._calls = OneByOne(executor)
        self._made: P | None = None

    def ask(self, call: Callable[[P], T]) -> Awaitable[T]:
        return self._calls.blocking(self._answer, call)

    def close(self) -> Awaitable[None]:
        return self._calls.blocking(self._close)

    def let_go(self) -> None:
        """Close it behind the call that runs."""
        self._calls.hand_over(self._close)

    def _answer(self, call: Callable[[P], T]) -> T:
        if self._made is None:
            self._made = self._make()
            self._made.open()
        return call(self._made)

    def _close(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            try:
                made.close()
            except Exception as error:  # noqa: BLE001 - of another package; what counts was said before
                _report.warning("plugin.close_failed", place=self._place, reason=f"{type(error).__name__}: {error}")


class Plugged(Generic[P]):
    """`make` gives a new object of a plug-in, and blocks. `away`, `refused`: what its user raises for Away and Refused."""

    def __init__(
        self,
        make: Callable[[], P],
        place: str,
        executor: Executor,
        away: Callable[[str], Exception],
        refused: Callable[[str], Exception],
    ) -> None:
        self.place = place
        self._executor = executor
        self._away = away
        self._refused = refused
        self._new_object = partial(_Object[P], make, place, executor)
        self._object = self._new_object()

    async def ask(self, doing: str, call: Callable[[P], T]) -> T:
        """The answer of an open object. Its errors as its user has them; Overtaken, PluginError; PluginFailed for all else."""
        try:
            return await self._object.ask(call)
        except asyncio.CancelledError:
            self.let_go()
            raise
        except BaseException as error:
            await self.close()
            self._say(doing, error)
            raise

    async def ask_apart(self, doing: str, call: Callable[..., T], *args: object) -> T:
        """The answer of a call that needs no open object, with its errors as `ask` has them."""
        try:
            return await self._executor.blocking(call, *args)
        except Exception as error:
            self._say(doing, error)
            raise

    def _say(self, doing: str, error: BaseException) -> None:
        """Raise the plug-in's error as its user has it; nothing for one that its user knows."""
        where = f"{self.place}, {doing}"
        match error:
            case Away():
                raise self._away(f"{where}: {error}") from error
            case Refused():
                raise self._refused(f"{where}: {error}") from error
            case Exception() if not isinstance(error, (Overtaken, PluginError)):
                raise PluginFailed(f"{where}: the plug-in raises {type(error).__name__}: {error}") from error

    def let_go(self) -> None:
        """Close it behind a call that was cancelled: that goes on, and may never end, so nobody waits for it."""
        self._thrown_away().let_go()

    async def close(self) -> None:
        """Close the plug-in's object, if there is one."""
        await self._thrown_away().close()

    def _thrown_away(self) -> _Object[P]:
        old, self._object = self._object, self._new_object()
        return old
