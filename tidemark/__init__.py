"""Tidemark: event-time stream processing with watermarks, snapshots and exactly-once output.

`validate`, `explain`, `try_out` and `run` take a pipeline's document (services/library/README.md); `Computation` and what goes with it is
what keyed computations are written against (shared/computation/README.md), `tidemark.testing` what they are tested with. Everything is
loaded when it is first used.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.services.library.documents import DocumentWarning, explain, validate
    from tidemark.services.library.running import Run, RunEnded, run
    from tidemark.services.library.trying import TryOutFailed, TryOutResult, try_out
    from tidemark.shared.computation import (
        Computation,
        ComputationError,
        ConfigError,
        Date,
        Document,
        NoConfig,
        NoState,
        Record,
        StateError,
        Timer,
        TimerError,
        Timers,
    )

__all__ = [
    "Computation",
    "ComputationError",
    "ConfigError",
    "Date",
    "Document",
    "DocumentWarning",
    "NoConfig",
    "NoState",
    "Record",
    "Run",
    "RunEnded",
    "StateError",
    "Timer",
    "TimerError",
    "Timers",
    "TryOutFailed",
    "TryOutResult",
    "explain",
    "run",
    "try_out",
    "validate",
]
_LIBRARY = {
    "DocumentWarning": "documents",
    "explain": "documents",
    "validate": "documents",
    "Run": "running",
    "RunEnded": "running",
    "run": "running",
    "TryOutFailed": "trying",
    "TryOutResult": "trying",
    "try_out": "trying",
}


@contextmanager
def _no_closed_output() -> Iterator[None]:
    """While libraries are loaded: structlog asks standard output whether it is a terminal, and one that is closed raises at that."""
    closed = sys.stdout
    if not getattr(closed, "closed", False):
        yield
        return
    sys.stdout = None
    try:
        yield
    finally:
        sys.stdout = closed


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'tidemark' has no attribute {name!r}; it has {', '.join(__all__)}")
    place = f"tidemark.services.library.{_LIBRARY[name]}" if name in _LIBRARY else "tidemark.shared.computation"
    try:
        with _no_closed_output():
            found = getattr(import_module(place), name)
    except ImportError as error:
        told: str = import_module("tidemark.services.cli.packages").advice()
        if told:
            error.add_note(told)
        raise
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
