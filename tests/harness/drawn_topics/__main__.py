"""`python -m tests.harness.drawn_topics [SEED] [STORIES] [AT ONCE] [ACT]`: see the package."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.drawn_topics.running import stories
from tests.harness.drawn_topics.story import say


def main(seed: int, count: int, at_once: int, act: str) -> int:
    """1 if something is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(stories(range(seed, seed + count), Path(folder), at_once, act))
    for each, found in wrong.items():
        say("\n  ".join([f"seed {each}:", *found]))
    say(f"{count} stories, {len(wrong)} wrong: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers, act = [int(word) for word in sys.argv[1:4]], "".join(sys.argv[4:5])
    seed, count, at_once = numbers + [1, 20, 2][len(numbers) :]
    sys.exit(main(seed, count, at_once, act))
