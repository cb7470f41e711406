"""Drawn jobs that an older version of the product began: what they hold then goes on in this one, to the same rows.

`python -m tests.harness.drawn_jobs.upgraded COMMIT [SEED] [JOBS] [AT ONCE] [back|staged]` checks the commit out, compiles it (minutes), and
has its `tidemark up` run so many jobs until each has released something; then it ends, or is killed, and this version goes on with its
folder. `back`: this one ends, too, and the older one goes on to the end, which it can where no format has changed between them.
`staged`: jobs into databases and files alone; the databases take nothing (`held`), so that commits wait there with what is staged for them,
and the older version is killed when files are staged, too: this one has to release what the other has staged.
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
import threading
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from tests.harness.drawn_jobs.drawing import drawn
from tests.harness.drawn_jobs.held import HELD, held, staged_files, until_staged
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
_RELEASED_S: Final = 0.2
"""From files that are staged to their release, at the most."""
How: TypeAlias = Literal["", "back", "staged"]


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


async def _staged(there: Installation, jobs: Iterable[Job], holds: contextlib.ExitStack, wait_s: float) -> list[Job]:
    """Begin the jobs; those for whose databases a commit waits. Behind it some files are staged, since wait_s. holds: of the databases."""
    waiting = [job for job in jobs if job.target in HELD]
    filed = [job for job in jobs if job.target not in HELD]
    found: list[Job] = []
    together = threading.Barrier(max(1, len(filed)), timeout=_STARTS_S)

    async def wait(job: Job) -> None:
        await begin(there, job, disturbed=False, running=lambda: holds.enter_context(held(job)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HOLDS_S):
                async for status in there.client.watch(ProcessorName(job.name)):
                    if status.last > status.released:
                        found.append(job)
                    if status.last > status.released or status.state in ("FINISHED", "FAILED"):
                        return

    await asyncio.gather(*map(wait, waiting))
    ended = threading.Event()
    seen = asyncio.create_task(asyncio.to_thread(until_staged, filed, ended))
    # Their records come when all of them run: soon behind the last, the first files are staged.
    await asyncio.gather(*(begin(there, job, disturbed=False, running=together.wait) for job in filed))
    await asyncio.wait([seen], timeout=_HOLDS_S if filed else 0)
    ended.set()
    await seen
    await asyncio.sleep(wait_s)
    return found


async def upgraded(
    old: Path, folder: Path, seeds: range, ending: signal.Signals, how: How = ""
) -> tuple[dict[int, list[str]], int]:
    """What differs, of the jobs of these seeds where something does; and how many had staged what was not released, if how is "staged".

    how: "back": the older version has the last word; "staged": it is killed while rows are staged.
    """
    targets, data = folder / "targets", folder / "data"
    targets.mkdir(parents=True)
    staged: list[Job] = []
    async with servers(targets) as places:
        drawn_jobs = {seed: drawn(seed, places, "staged" if how == "staged" else "") for seed in seeds}
        if how == "back":  # whose processes are not this one's to kill
            drawn_jobs = {seed: replace(job, last="") for seed, job in drawn_jobs.items()}
        with contextlib.ExitStack() as holds:
            async with older(old, data, ending), attached(data) as there:

                async def begun(job: Job) -> None:
                    await begin(there, job, disturbed=False)
                    await _committed(there, job)

                if how == "staged":
                    wait_s = _RELEASED_S * random.Random(seeds.start).random()
                    staged = await _staged(there, drawn_jobs.values(), holds, wait_s)
                else:
                    await asyncio.gather(*map(begun, drawn_jobs.values()))
        staged += [job for job in drawn_jobs.values() if job.target not in HELD and staged_files(job)]
        told = ", ".join(f"{job.name} {job.target}" for job in staged)
        say(f"the older version was ended by {ending.name}" + (f"; staged, not released: {told}" if told else ""))
        async with contextlib.AsyncExitStack() as stack:
            there = await stack.enter_async_context(installation(data, SETTINGS, WORKERS))
            if how == "back":
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
    return wrong, len(staged)


def main(commit: str, seed: int, count: int, at_once: int, how: How) -> int:
    """1 if a job differs."""
    wrong: dict[int, list[str]] = {}
    staged = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        old = checked_out(commit, folder)
        for first in range(seed, seed + count, at_once):
            seeds = range(first, min(first + at_once, seed + count))
            ending = random.Random(first).choice([signal.SIGTERM, signal.SIGKILL])
            if how == "staged":
                ending = signal.SIGKILL
            found, more = asyncio.run(upgraded(old, folder / str(first), seeds, ending, how))
            wrong |= found
            staged += more
    behind = f", {staged} with staged rows" if how == "staged" else ""
    say(f"{count} jobs begun by {commit}{behind}, {len(wrong)} differ: {', '.join(map(str, wrong)) or 'none'}")
    return 1 if wrong or (how == "staged" and not staged) else 0


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:5]]
    seed, count, at_once = [*numbers, *(1, 8, 4)[len(numbers) :]]
    sys.exit(main(sys.argv[1], seed, count, at_once, cast("How", "".join(sys.argv[5:6]))))
