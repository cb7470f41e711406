"""A computation's course in another process: with another seed of `hash`, on another day of the clock.

    python -m tidemark.services.library.elsewhere < order > course

Order and course are pickled. The plug-in is imported after the clock is set, so its own imports see that clock. The clock of
`datetime.now(UTC)` is not set: what it tells to the second differs, for the processes run at different times; its date does not.
"""

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from operator import attrgetter
from typing import Any, Final

import msgspec

from tidemark.shared.computation.base import Computation
from tidemark.shared.computation.folder import import_path
from tidemark.shared.computation.harness import Harness
from tidemark.shared.language.values import render_json
from tidemark.shared.model.values import Document

Came = tuple[Document, int]
"""A document, and its event time, ms."""
Course = dict[tuple[str, str], str]
"""What was seen, in order: where, and of what."""
SEEDS: Final = ("1", "2", "3")
"""For `hash` in other processes, which take a second each. Two texts in a set have the same order with all three in one of four cases."""
_DAY_S: Final = 86_400
"""Seconds."""
_ON_S: Final = 7 * _DAY_S
"""By which `time.time` is ahead in another process: `date.today` asks it, too, so the time zone's day may not take it back."""
_WAIT_S: Final = 60.0
"""For another process: its imports take a second, several where a machine is busy."""
_SAID_MAX: Final = 2_000
"""Letters of what a process says that fails: an error stands at the end."""


@dataclass(frozen=True)
class Order:
    """What is to run: by names, which another process finds."""

    module: str
    file: str | None
    kind: str
    key: str
    config: Mapping[str, Any]
    records: Sequence[Came]


def order_of(
    kind: type[Computation[Any, Any]], key: str, config: Mapping[str, object], records: Sequence[Came]
) -> Order:
    """The order for a class. AssertionError for one that no other process can import."""
    assert "<locals>" not in kind.__qualname__, (
        f"{kind.__qualname__} is made in a function, where no other process finds it: write it at the top of its module"
    )
    file = getattr(sys.modules[kind.__module__], "__file__", None)
    return Order(kind.__module__, file, kind.__qualname__, key, dict(config), tuple(records))


def course_elsewhere(order: Order, seed: str) -> Course:
    """The course in another process with this seed. AssertionError with what the process says if it fails."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidemark.services.library.elsewhere"],
        env={**os.environ, "PYTHONPATH": import_path(), "PYTHONHASHSEED": seed, "TZ": _another_day()},
        input=pickle.dumps(order),
        capture_output=True,
        timeout=_WAIT_S,
        check=False,
    )
    said = done.stderr.decode(errors="replace")[-_SAID_MAX:]
    assert done.returncode == 0, f"it fails in another process:\n{said}"
    found: Course = pickle.loads(done.stdout)  # noqa: S301 - our own process
    return found


def course(kind: type[Computation[Any, Any]], order: Order) -> Course:
    """Behind each record, and at the end: documents that came out, and each key's state and timers. Then all records at once."""
    seen: Course = {}
    harness = Harness(kind, key=order.key, config=order.config)
    for place, (document, at) in enumerate(order.records):
        known = len(harness.records)
        harness.record(document, at)
        harness.watermark(min((later for _, later in order.records[place + 1 :]), default=at))
        _see(seen, f"behind record {place}", harness, known)
    known = len(harness.records)
    harness.end()
    _see(seen, "at the end", harness, known)
    harness = Harness(kind, key=order.key, config=order.config)
    harness.record_all(order.records)
    harness.end()
    _see(seen, "where all records came at once", harness, 0)
    return seen


def _see(seen: Course, where: str, harness: Harness, known: int) -> None:
    for place, each in enumerate(harness.records[known:], known):
        seen[where, f"document {place}"] = (
            f"{render_json(each.value, canonical=True).decode()} of the time {each.timestamp}"
        )
    for key in harness.task.all_keys():
        packed = key.pack()
        state = None if packed is None else msgspec.msgpack.decode(packed)[1]
        seen[where, f"the state of key {key.value!r}"] = f"{state!r}"
        timers = [f"{each.name!r} at {each.time_ms} ({each.domain} time)" for each in key.timers.all()]
        seen[where, f"the timers of key {key.value!r}"] = ", ".join(timers)


def _another_day() -> str:
    """A time zone, in the words of POSIX, in which it is the same hour of another day."""
    here = time.localtime().tm_gmtoff
    west = abs(here - _DAY_S if here >= 0 else here + _DAY_S)
    sign = "" if here >= 0 else "-"
    return f"AWAY{sign}{west // 3600}:{west // 60 % 60:02}:{west % 60:02}"


def _imported(order: Order) -> type[Computation[Any, Any]]:
    """By the name of its module; where only the tests' process has one of that name, from its file."""
    if order.file is None or (order.module != "__main__" and find_spec(order.module) is not None):
        module: Any = import_module(order.module)
    else:
        spec = spec_from_file_location("elsewhere", order.file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules["elsewhere"] = module_from_spec(spec)
        spec.loader.exec_module(module)
    found: type[Computation[Any, Any]] = attrgetter(order.kind)(module)
    return found


def _clock_goes_ahead() -> None:
    """For whoever counts days from the epoch; the time zone is for whoever asks for a date."""
    seconds, nanoseconds = time.time, time.time_ns
    time.time = lambda: seconds() + _ON_S
    time.time_ns = lambda: nanoseconds() + _ON_S * 10**9


def main() -> None:
    """What the plug-in prints goes where errors go."""
    out, sys.stdout = sys.stdout, sys.stderr
    order: Order = pickle.loads(sys.stdin.buffer.read())  # noqa: S301 - as above
    _clock_goes_ahead()
    out.buffer.write(pickle.dumps(course(_imported(order), order)))


if __name__ == "__main__":
    main()
