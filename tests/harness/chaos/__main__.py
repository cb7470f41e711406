"""Real processes under faults drawn from a seed, with two jobs side by side: nothing is lost, twice, or FAILED.

    python -m tests.harness.chaos --minutes 60 --seed 1
    python -m tests.harness.chaos --rounds 1

Pieces of some minutes, each a new installation with a seed of its own. Status 1 at the first thing that is wrong; its logs are then
kept beside the summary, in out/chaos/.
"""

import argparse
import asyncio
import logging
import math
import random
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import structlog

from tests.harness.chaos import disks
from tests.harness.chaos.ledger import Entry, code, enter, findings, summary
from tests.harness.chaos.rounds import Measure, Piece
from tests.harness.chaos.steps import ENDS_S_MAX, STARTS_S_MAX, Steps, Wrong
from tests.harness.chaos.world import world

PIECE_S = 600.0
WORKERS = {"coordinator": 2, "source": 2, "operator": 2, "spark": 1, "sink": 2, "control": 1}
KEPT = ("data/logs", "data/coordinator.db", "data/kafka/diagnostics")


async def piece(seed: int, measure: Measure, seconds: float, rounds: int | None, out: Path) -> Entry:
    """One installation: rounds until the time is over, or so many; its entry in the ledger. Wrong where it does not begin, or end."""
    around = Steps("the start of the installation", STARTS_S_MAX)
    return await around.followed(_piece(seed, measure, seconds, rounds, out, around))


async def _piece(seed: int, measure: Measure, seconds: float, rounds: int | None, out: Path, around: Steps) -> Entry:
    began, said = time.monotonic(), ""
    with tempfile.TemporaryDirectory(prefix="tidemark-chaos-") as name:
        folder = Path(name)
        async with world(folder, WORKERS, disks=disks.can_mount()) as of:
            run = Piece(of, seed, measure, _say)
            around.begin("rounds whose steps have their own time", math.inf)
            try:
                await run.run(seconds, rounds)
            except Wrong as wrong:
                said = str(wrong)
                _keep(folder, out / f"failed-{seed}")
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
                _keep(folder, out / f"failed-{seed}")
                raise
            finally:
                around.begin("the end of the installation", ENDS_S_MAX)
                await run.close()
                entry = Entry(
                    code(), seed, run.rounds, round(time.monotonic() - began), said, of.all_struck(), run.figures
                )
                enter(out, entry)
    return entry


def _keep(folder: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for each in KEPT:
        with suppress(OSError):
            here, there = folder / each, kept / Path(each).name
            shutil.copytree(here, there) if here.is_dir() else shutil.copy(here, there)


def _say(line: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
    sys.stdout.flush()


def main() -> int:
    """0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rounds", type=int, help="of one piece, instead of minutes")
    parser.add_argument("--faults", type=int, default=Measure.faults, help="of a round")
    parser.add_argument(
        "--striking-s", type=float, default=Measure.striking_s, help="of a round: then all has to come right"
    )
    parser.add_argument("--out", type=Path, default=Path("out/chaos"))
    options = parser.parse_args()
    disks.enter("tests.harness.chaos", sys.argv[1:])
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if not disks.can_mount():
        _say("no disk will be full: this machine lets nobody mount in a name space of their own")
    ends = time.monotonic() + options.minutes * 60
    entries: list[Entry] = []
    seed, measure = options.seed, Measure(options.faults, options.striking_s)
    while True:
        _say(f"seed {seed}")
        left_s = min(PIECE_S, ends - time.monotonic())
        entries.append(asyncio.run(piece(seed, measure, left_s, options.rounds, options.out)))
        seed += 1
        if entries[-1].wrong or options.rounds is not None or time.monotonic() >= ends:
            break
    text = summary(entries)
    (options.out / "summary.txt").write_text(text + "\n")
    _say(text)
    return 1 if findings(entries) else 0


if __name__ == "__main__":
    sys.exit(main())
