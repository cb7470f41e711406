"""Clocks and networks drawn from a seed, around two jobs: nothing is lost, twice, or FAILED, and all goes on by itself.

python -m tests.harness.worlds --seed 1 --count 3
python -m tests.harness.worlds --only "clock broker" --acts 3
"""

import argparse
import asyncio
import logging
import math
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import structlog

from tests.harness.chaos.jobs import Job
from tests.harness.chaos.rounds import UNSAID, Measure, Piece, said_by
from tests.harness.chaos.steps import ENDS_S_MAX, STARTS_S_MAX, Steps, Wrong
from tests.harness.postgres import postgres
from tests.harness.worlds.acts import Acts
from tests.harness.worlds.clocks import Clocks, can_set
from tests.harness.worlds.watching import Watcher
from tests.harness.worlds.world import bad_world
from tidemark.shared.model.verdicts import ProgramVerdict

WORKERS = {"coordinator": 2, "source": 1, "operator": 1, "spark": 1, "sink": 1, "control": 1}
KEPT = ("data/logs", "data/coordinator.db", "data/kafka/diagnostics")


class Story(Piece):
    """One round."""

    async def _audited(self, job: Job) -> None:
        """By the program that control runs, where the store is no file that the command finds."""
        cluster = self._world.cluster
        if "TIDEMARK_STORE" not in cluster.settings.environment:
            await super()._audited(job)
            return
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemark.services.audit.program", "audit", job.name,
            stdout=asyncio.subprocess.PIPE, env=cluster.environment("audit-0", "audit"),
        )  # fmt: skip
        said = await said_by(process)
        verdict = msgspec.json.decode(said, type=ProgramVerdict)
        if verdict.outcome != "held" and UNSAID not in verdict.why:
            raise Wrong(f"audit of {job.name}: {verdict}")


async def story(seed: int, measure: Measure, only: list[str], out: Path) -> str:
    """One installation, one round; "" where nothing is wrong."""
    around = Steps("the start of the installation", STARTS_S_MAX)
    try:
        return await around.followed(_story(seed, measure, only, out, around))
    except Wrong as error:
        return str(error)


async def _story(seed: int, measure: Measure, only: list[str], out: Path, around: Steps) -> str:
    with tempfile.TemporaryDirectory(prefix="tidemark-worlds-") as name:
        folder = Path(name)
        clocks = Clocks(folder / "clocks")
        async with AsyncExitStack() as stack:
            # Of every second seed the coordinator's store is a database that is reached by a way, too.
            store = socket_of(stack.enter_context(postgres())) if seed % 2 else None
            of = await stack.enter_async_context(bad_world(folder, WORKERS, clocks, seed, store))
            acts = Acts(f"{seed} acts", WORKERS, clocks=can_set(), store=store is not None, only=only)
            run, watcher = Story(of, seed, measure, say, faults=acts), Watcher(of)
            watching = asyncio.ensure_future(watcher.run())
            around.begin("a story whose steps have their own time", math.inf)
            try:
                await run.run(0, 1)
                around.begin("asking for figures", ENDS_S_MAX)
                wrong = "; ".join(await watcher.judged())
            except Wrong as error:
                wrong = str(error)
                say(wrong)  # at once: an installation in which something hangs may not end either
            finally:
                around.begin("the end of the installation", ENDS_S_MAX)
                watching.cancel()
                _keep(folder, out / f"seed-{seed}")
                await run.close()
            say(f"looked {watcher.looks} times at figures")
    return wrong


def socket_of(url: str) -> Path:
    """Of a server of `postgres`."""
    return Path(parse_qs(urlsplit(url).query)["host"][0]) / ".s.PGSQL.5432"


def _keep(folder: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for each in KEPT:
        with suppress(OSError):
            here, there = folder / each, kept / Path(each).name
            shutil.copytree(here, there) if here.is_dir() else shutil.copy(here, there)


def say(line: str) -> None:
    """To who waits."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main() -> int:
    """The number of stories in which something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--acts", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--settles-s", type=float, default=120.0, help="until all has come right behind a story")
    parser.add_argument("--only", nargs="*", default=[], help="begins of acts: `clock broker`, `way sink torn`")
    parser.add_argument("--out", type=Path, default=Path("out/worlds"))
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if not can_set():
        say("clocks stay right: this machine has no compiler of C")
    wrong = []
    for seed in range(options.seed, options.seed + options.count):
        say(f"seed {seed}")
        said = asyncio.run(
            story(seed, Measure(options.acts, options.seconds, options.settles_s), options.only, options.out)
        )
        if said:
            say(f"WRONG {said}")
            wrong.append(said)
    say(f"{len(wrong)} wrong")
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main())
