"""What a page costs as an installation grows: bytes, questions to the brokers, and lines of the service's code that run for it."""

import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from aiohttp import ClientSession

from tests.harness.visits.shapes import Shape, document, letter, processor, window
from tests.harness.visits.stand import FOREVER_MS, stand
from tests.harness.visits.walking import VIEWS, Walk

TIMES: Final = 4
STEEP: Final = 1.5 * TIMES
"""Four times as much of one thing, and more than so many times the work: it grows faster than what is there."""
SMALL: Final = 2_000
"""Lines of code, and bytes, that do not count: what each page costs anyway."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a page."""

    bytes_: int
    asked: int
    lines: int


def _shape(count: int, what: str) -> Shape:
    """With so many of one thing, and one of all else."""
    chooser, found = random.Random(0), Shape(what)
    stages = [window(number) for number in range(count if what == "vertices" else 1)]
    for number in range(count if what == "processors" else 1):
        made = document(*stages)
        status, beats = processor(
            chooser, f"p{number:04}", made, splits=count if what == "splits" else 1, state="RUNNING"
        )
        found.statuses.append(status)
        found.beats += beats
    found.letters["refused"] = [letter("p0000", number) for number in range(10 * count if what == "letters" else 10)]
    return found


DIMENSIONS: Final = {"processors": 40, "vertices": 12, "splits": 50, "letters": 60}
"""What grows, and from how many on."""


async def costs(count: int, what: str) -> dict[str, Cost]:
    """Of each page, by its path."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="visits-") as folder:
        async with stand(_shape(count, what), Path(folder), FOREVER_MS) as there, ClientSession() as session:
            walk = Walk(there, random.Random(0), session)
            paths = [f"/console/processors/p0000{view}" for view in VIEWS]
            for path in ("/", "/console/connections", "/console/workers", *paths):
                await walk.ask("GET", path)  # A plan is made once.
                # What waits in a busy moment looks more often: the least is what the page takes.
                found[path] = min([await _cost(walk, path) for _ in range(3)], key=lambda cost: cost.lines)
    return found


async def _cost(walk: Walk, path: str) -> Cost:
    before, counter = walk.there.faults.asked, _Counter()
    sys.settrace(counter)
    try:
        status, _, text = await walk.ask("GET", path)
    finally:
        sys.settrace(None)
    assert status == 200, (path, status)
    return Cost(len(text), walk.there.faults.asked - before, counter.lines)


class _Counter:
    """Lines of the service that run, whatever waits between them."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, frame: FrameType, event: str, _about: Any) -> Callable[..., Any] | None:
        """Of the interpreter: a function begins, or a line."""
        if "tidemark" not in frame.f_code.co_filename and "services" not in frame.f_code.co_filename:
            return None
        self.lines += event == "line"
        return self


async def steep(what: str) -> list[str]:
    """Pages whose costs grow faster than what is there."""
    few, many = await costs(DIMENSIONS[what], what), await costs(TIMES * DIMENSIONS[what], what)
    found = []
    for path, cost in many.items():
        for kind in ("bytes_", "asked", "lines"):
            before, now = getattr(few[path], kind), getattr(cost, kind)
            if now > STEEP * before + (SMALL if kind != "asked" else 3):
                found.append(
                    f"{TIMES} times as many {what}: {path} takes {now:,} {kind.rstrip('_')}, {before:,} before"
                )
    return found
