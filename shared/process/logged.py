"""Log lines of a process: a full disk stops nothing, and a warning that is said again and again is one line an interval."""

import sys
from collections.abc import MutableMapping
from typing import Any, Final, TextIO

import structlog

from tidemark.shared.ports.clock import Clock


def for_people(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    """Makes lines of events whose exceptions are text by then: its own form of a trace shows the values of variables, too.

    Not told so, an older structlog warns of it, and the line raises where a program takes warnings for errors.
    """
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


class Lines:
    """A text stream for loggers whose writes never fail.

    A service waits an outage out; if its own log raised then, the log would end the service.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """stream: None for standard error as the program has it at each write: it may put another there, close it, or have none."""
        self._own = stream
        self.lost = 0
        """Writes that were refused since the last that was not."""

    def write(self, text: str) -> int:
        """Write, after a note about lost text; the number of characters taken, all of them."""
        try:
            if self.lost:
                self._stream.write(f"{self.lost} log writes were lost: the disk was full or the stream closed\n")
                self._stream.flush()
                self.lost = 0
            self._stream.write(text)
        except (OSError, ValueError, AttributeError):  # ValueError: the stream is closed; AttributeError: there is none
            self.lost += 1
        return len(text)

    def flush(self) -> None:
        """Flush the stream's buffer, if possible."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self.lost += 1
        except AttributeError:  # what a program has put there need not have one
            return

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._own is None else self._own


def is_terminal(stream: object) -> bool:
    """Whether people look at a stream: not at one that is closed, or that a program has put there with writes alone."""
    try:
        return bool(stream.isatty())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        return False


_INTERVAL_MS: Final = 10_000
"""Of a repeated warning one line in so long, with the number that was held back: for people."""
# Warnings that are told apart, so that each is logged once in a while; beyond it counting begins anew, with the
# counts held back.
_KINDS_MAX: Final = 1_000


class Repeats:
    """A processor of structlog: the first passes, then one an interval, with `held`, how many were held back since the last."""

    def __init__(self, clock: Clock, interval_ms: int = _INTERVAL_MS, kinds_max: int = _KINDS_MAX) -> None:
        self._clock = clock
        self._interval_ms = interval_ms
        self._kinds_max = kinds_max
        self._seen: dict[str, tuple[int, int]] = {}
        """When a line passed, ms, and how many of its kind were held back since."""

    def __call__(self, _logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The event as it came, or structlog.DropEvent."""
        if method != "warning":
            return event
        kind = repr(sorted(event.items(), key=lambda item: item[0]))
        now_ms = self._clock.monotonic_ms()
        passed_ms, held = self._seen.get(kind, (None, 0))
        if passed_ms is not None and now_ms - passed_ms < self._interval_ms:
            self._seen[kind] = passed_ms, held + 1
            raise structlog.DropEvent
        if len(self._seen) >= self._kinds_max:
            held += sum(others for known, (_, others) in self._seen.items() if known != kind)
            self._seen.clear()
        self._seen[kind] = now_ms, 0
        if held:
            event["held"] = held
        return event
