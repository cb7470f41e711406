"""`python -m tests.harness.lasting SEED COUNT`: drawn cases; `python -m tests.harness.lasting every [KIND …]`: each one."""

import asyncio
import logging
import os
import sys
import tempfile
from pathlib import Path

import structlog

from tests.harness.lasting.running import run_all, say


def main(words: list[str]) -> int:
    """The number of cases in which something is wrong."""
    if "LOUD" not in os.environ:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        logging.disable(logging.ERROR)
    seeds = [] if words[:1] == ["every"] else list(range(int(words[0]), int(words[0]) + int(words[1])))
    with tempfile.TemporaryDirectory(prefix="lasting-") as folder:
        wrong = asyncio.run(run_all(Path(folder), seeds, words[1:] if not seeds else []))
    say(f"{len(wrong)} wrong")
    for line in wrong:
        say(f"  {line}")
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
