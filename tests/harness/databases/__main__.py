"""`python -m tests.harness.databases [SEED] [COUNT] [PART] [VERSION]`: drawn stories of databases."""

import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.harness.databases.changes import Story
from tests.harness.databases.targets import Target
from tests.harness.drawn_jobs.job import say
from tests.harness.postgres import postgres_server
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.executor import AsyncExecutor

SERVER = {"wal_level": "logical", "max_prepared_transactions": "20", "logical_decoding_work_mem": "64kB", "fsync": "off",
          "max_replication_slots": "20"}  # fmt: skip
PARTS = ("changes", "targets")


async def told(part: str, seeds: range, server: Any, folder: Path) -> list[int]:
    """The seeds of a part's stories that went wrong; each is told as it does."""
    wrong = []
    traits = Counter[str]()
    executor = AsyncExecutor()
    for seed in seeds:
        story = Story(seed, server, executor) if part == "changes" else Target(seed, server, executor, folder)
        try:
            why = await story.run()
        except Exception:  # noqa: BLE001 - whatever ends a story is told with its seed
            why = f"after {getattr(story, 'last', '')}: {traceback.format_exc()[-2500:]}"
        traits.update(story.traits)
        if why:
            wrong.append(seed)
            say(f"{part} {seed}: {why}")
    await executor.close()
    say(f"{part}: {len(seeds)} stories, {dict(traits)}")
    return wrong


def main(first: int, count: int, part: str = "all", version: int = 16) -> int:
    """1 if a story went wrong."""
    began, wrong = time.monotonic(), []
    with postgres_server(SERVER, version) as server, tempfile.TemporaryDirectory() as folder:
        for each in PARTS if part == "all" else (part,):
            wrong += [
                (each, seed) for seed in asyncio.run(told(each, range(first, first + count), server, Path(folder)))
            ]
    say(f"{len(wrong)} wrong: {wrong}, {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    quiet(logging.CRITICAL)
    given = sys.argv[1:5]
    first, count, part, version = [*given, *["1", "20", "all", "16"][len(given) :]]
    sys.exit(main(int(first), int(count), part, int(version)))
