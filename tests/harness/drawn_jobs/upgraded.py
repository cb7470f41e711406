"""Drawn jobs that an older version of the product began: what they hold then goes on in this one, to the same rows.

`python -m tests.harness.drawn_jobs.upgraded COMMIT [SEED] [JOBS] [AT ONCE] [back]` checks the commit out, compiles it (some minutes), and
has its `tidemark up` run so many jobs until each has released something; then it ends, or is killed, and this version goes on with its
folder. `back`: this one ends, too, and the older one goes on to the end, which it can where no format has changed between them.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.harness.drawn_jobs.drawing import drawn
from tests.harness.drawn_jobs.job import Job, say
from tests.harness.drawn_jobs.running import SETTINGS, WORKERS, begin, finish, servers
from tidemark.services.cli.installation import Installation, attached, installation, stays
from tidemark.services.local.jars import default_cache
from tidemark.shared.model.ids import ProcessorName

_ROOT: Final = Path(__file__).parents[3]
_STARTS_S: Final = 120.0
_POLL_S: Final = 0.2
_HOLDS_S: Final = 20.0
"""A job that releases nothing until its windows close has taken up its records by then."""


def checked_out(commit: str, folder: Path) -> Path:
    """The product as it was, its readers compiled."""
    old = folder / "old"
    old.mkdir()
    packed = subprocess.run(["git", "archive", commit], cwd=_ROOT, check=True, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x"], cwd=old, input=packed.stdout, check=True)
    subprocess.run([sys.executable, "-m", "tidemark.shared.compiled"], cwd=old, env=_environment(old), check=True)
    return old


def _environment(old: Path) -> dict[str, str]:
    return {**os.environ, **SETTINGS, "PYTHONPATH": str(old), "TIDEMARK_CACHE": str(default_cache().parent)}


@contextlib.asynccontextmanager
async def older(old: Path, data: Path, ending: signal.Signals) -> AsyncIterator[None]:
    """Its `tidemark up` on a folder, until this signal."""
    command = [sys.executable, "-m", "tidemark.services.cli", "up", "--data", str(data)]
    process = await asyncio.create_subprocess_exec(*command, cwd=old, env=_environment(old))
    try:
        async with asyncio.timeout(_STARTS_S):
            while not stays(data):  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(_POLL_S)
        yield
    finally:
        process.send_signal(ending)
        await process.wait()


async def _committed(there: Installation, job: Job) -> None:
    """Until the job has released more than one epoch from here on, or ends, or has nothing to release."""
    first = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HOLDS_S):
            async for status in there.client.watch(ProcessorName(job.name)):
                first = status.commits if first is None else first
                if status.commits > first + 1 or status.state in ("FINISHED", "FAILED"):
                    return


async def upgraded(
    old: Path, folder: Path, seeds: range, ending: signal.Signals, *, back: bool
) -> dict[int, list[str]]:
    """What differs, of the jobs of these seeds where something does. back: the older version has the last word."""
    targets, data = folder / "targets", folder / "data"
    targets.mkdir(parents=True)
    async with servers(targets) as places:
        drawn_jobs = {seed: drawn(seed, places) for seed in seeds}
        if back:  # whose processes are not this one's to kill
            drawn_jobs = {seed: replace(job, last="") for seed, job in drawn_jobs.items()}
        async with older(old, data, ending), attached(data) as there:

            async def held(job: Job) -> None:
                await begin(there, job, disturbed=False)
                await _committed(there, job)

            await asyncio.gather(*map(held, drawn_jobs.values()))
        say(f"the older version was ended by {ending.name}")
        async with contextlib.AsyncExitStack() as stack:
            there = await stack.enter_async_context(installation(data, SETTINGS, WORKERS))
            if back:
                await asyncio.gather(*(_committed(there, job) for job in drawn_jobs.values()))
                await stack.aclose()
                say("back to the older version")
                await stack.enter_async_context(older(old, data, ending))
                there = await stack.enter_async_context(attached(data))
            found = await asyncio.gather(*(finish(there, data, job) for job in drawn_jobs.values()))
        for job in drawn_jobs.values():
            await asyncio.to_thread(job.clear)
    wrong = {seed: each for seed, each in zip(drawn_jobs, found, strict=True) if each}
    for seed, each in wrong.items():
        say("\n  ".join([f"drawn-{seed} differs:", *each, json.dumps(drawn_jobs[seed].document())]))
    return wrong


def main(commit: str, seed: int, count: int, at_once: int, *, back: bool) -> int:
    """1 if a job differs."""
    wrong: dict[int, list[str]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        old = checked_out(commit, folder)
        for first in range(seed, seed + count, at_once):
            seeds = range(first, min(first + at_once, seed + count))
            ending = random.Random(first).choice([signal.SIGTERM, signal.SIGKILL])
            wrong |= asyncio.run(upgraded(old, folder / str(first), seeds, ending, back=back))
    say(f"{count} jobs begun by {commit}, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:5]]
    seed, count, at_once = [*numbers, *(1, 8, 4)[len(numbers) :]]
    sys.exit(main(sys.argv[1], seed, count, at_once, back=sys.argv[5:] == ["back"]))
