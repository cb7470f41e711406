"""`python -m tests.harness.visits SEED COUNT [STEPS]`: so many installations, each visited on a walk."""

import asyncio
import logging
import os
import random
import sys
import tempfile
from pathlib import Path

from tests.harness.visits.shapes import shape
from tests.harness.visits.stand import stand
from tests.harness.visits.walking import walk
from tidemark.services.cli.process import quiet


async def visit(seed: int, steps: int) -> list[str]:
    """One installation, one walk."""
    chooser = random.Random(seed)
    drawn = shape(chooser)
    with tempfile.TemporaryDirectory(prefix="visits-") as folder:
        async with stand(drawn, Path(folder)) as there:
            found = await walk(there, chooser, steps)
    return [f"seed {seed}, {drawn.title}: {each}" for each in found]


def main(words: list[str]) -> int:
    """The number of findings, at most 100."""
    if "LOUD" not in os.environ:
        quiet(logging.CRITICAL)
    wrong = []
    for seed in range(int(words[0]), int(words[0]) + int(words[1])):
        found = asyncio.run(visit(seed, int(words[2]) if len(words) > 2 else 40))
        wrong += found
        sys.stdout.write(f"seed {seed}: {len(found)} wrong\n" + "".join(f"  {each}\n" for each in found))
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
