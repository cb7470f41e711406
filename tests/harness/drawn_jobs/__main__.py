"""`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE] [FOCUS]`: see the package."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.drawn_jobs.job import say
from tests.harness.drawn_jobs.running import jobs


def main(seed: int, count: int, at_once: int, focus: str) -> int:
    """1 if a job differs."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(jobs(range(seed, seed + count), Path(folder), at_once, focus))
    say(f"{count} jobs, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers, focus = [int(word) for word in sys.argv[1:4]], "".join(sys.argv[4:5])
    seed, count, at_once = numbers + [1, 20, 3][len(numbers) :]
    sys.exit(main(seed, count, at_once, focus))
