"""`python -m tests.harness.drawn_jobs [SEED] [JOBS] [AT ONCE]`: see the package."""

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.harness.drawn_jobs.job import say
from tests.harness.drawn_jobs.running import jobs


def main(seed: int = 1, count: int = 20, at_once: int = 3) -> int:
    """1 if a job differs."""
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(jobs(range(seed, seed + count), Path(folder), at_once))
    say(f"{count} jobs, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))
