"""`python -m tests.harness.visits SEED COUNT STEPS [--browser]`: so many installations, a walk in each, by HTTP or in Chromium."""

import asyncio
import logging
import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.browser.chromium import Browser, chromium
from tests.harness.console import token_of
from tests.harness.visits.between import Between, between
from tests.harness.visits.browsing import browse
from tests.harness.visits.meeting import meet, meeting
from tests.harness.visits.sessions import sit
from tests.harness.visits.shapes import shape
from tests.harness.visits.stand import Stand, stand
from tests.harness.visits.walking import walk
from tests.integration.test_login import place_of
from tidemark.services.cli.process import quiet

ROOT: Final = Path(__file__).resolve().parents[3]
AXE: Final = ROOT / ".tidemark/axe/package/axe.min.js"
PICTURES: Final = ROOT / "out" / "visits"


@asynccontextmanager
async def in_chromium(there: Stand, folder: Path) -> AsyncIterator[tuple[Browser, Between]]:
    """An admin's browser, and what lies between it and the service."""
    async with between(there.port) as net:
        there.outer = net.url
        async with chromium(folder / "profile", token_of("admin"), there.url) as page:
            yield page, net


async def visit(seed: int, steps: int, *, browser: bool) -> list[str]:
    """One installation, one walk."""
    chooser = random.Random(seed)
    drawn = shape(chooser)
    with tempfile.TemporaryDirectory(prefix="visits-") as folder:
        async with stand(drawn, Path(folder)) as there:
            if browser:
                async with in_chromium(there, Path(folder)) as (page, net):
                    found = await browse(there, chooser, page, AXE.read_text(), net, steps, PICTURES)
            else:
                found = await walk(there, chooser, steps)
        async with meeting(chooser, Path(folder)) as several:
            found += await meet(several, steps // 2)
        (logins := Path(folder) / "logins").mkdir()
        async with place_of(logins, leeway_s=0) as place:
            found += await sit(place, chooser, steps // 2)
    return [f"seed {seed}, {drawn.title}: {each}" for each in found]


def main(words: list[str]) -> int:
    """The number of findings, at most 100."""
    if "LOUD" not in os.environ:
        quiet(logging.CRITICAL)
    steps = int(next(iter(words[2:3]), "60"))
    wrong = []
    for seed in range(int(words[0]), int(words[0]) + int(words[1])):
        found = asyncio.run(visit(seed, steps, browser="--browser" in words))
        wrong += found
        sys.stdout.write(f"seed {seed}: {len(found)} wrong\n" + "".join(f"  {each}\n" for each in found))
        sys.stdout.flush()
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
