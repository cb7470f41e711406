"""`python -m tests.harness.brokers [SEED] [STORIES] [ACT]`: see the package."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.brokers.running import stories
from tests.harness.clusters.jobs import say


def main(seed: int, count: int, act: str) -> int:
    """1 if something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(stories(range(seed, seed + count), Path(folder), act))
    for each, found in wrong.items():
        say("\n  ".join([f"seed {each}:", *found]))
    say(f"{count} stories, {len(wrong)} wrong: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers, act = [int(word) for word in sys.argv[1:3]], "".join(sys.argv[3:4])
    seed, count = numbers + [1, 10][len(numbers) :]
    sys.exit(main(seed, count, act))
