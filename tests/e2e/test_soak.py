"""Hundreds of kills and pauses over all services and phases: outputs are those of a run without faults, each time (`make soak`).

TIDEMARK_SOAK_FAULTS: how many in all, half of them on each job (default 200); TIDEMARK_SOAK_SEED: which (default 1). What struck lies in
out/soak/; `python -m tests.e2e.ledger` sums it up, and says what was never struck.
"""

import asyncio
import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.faults import Kill
from tests.e2e.jobs import Contents, Job, departures_job, meters_job, run_job, same
from tests.e2e.ledger import Entry, code, enter, summary
from tests.e2e.soaking import Pause, Round, Rounds, Striking, Struck, Sudden, Watcher
from tidemark.services.audit.check import audit_local
from tidemark.services.cli.installation import Installation
from tidemark.services.local.supervisor import BROKER

pytestmark = pytest.mark.timeout(0)

FAULTS = int(os.environ.get("TIDEMARK_SOAK_FAULTS", "200"))
SEED = int(os.environ.get("TIDEMARK_SOAK_SEED", "1"))
KILLS_OF_A_RUN, OUTERS_OF_A_RUN = 15, 8
"""A run strikes every phase of every service, but for those that it misses; two runs every service from outside."""


async def _struck(job: Job, of: Round, folder: Path, expected: Contents | None) -> tuple[list[Struck], list[Kill]]:
    """One run with a round of faults, checked; what struck, and what missed its phase."""
    folder.mkdir(parents=True)
    striking = Striking(of, job, folder)
    watcher = Watcher(job, folder / "out")

    async def beside(installed: Installation) -> None:
        watching = asyncio.create_task(watcher.run(installed))
        try:
            await striking(installed)
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    ran = await run_job(
        job,
        folder / "data",
        folder / "out",
        seconds=3.0,
        environment=striking.environment,
        beside=beside,
        hold=striking.hold,
    )
    if expected is not None:
        same(expected, ran.contents)
    watcher.check(ran.contents)
    audited = await audit_local(job.name, folder / "data")
    assert (audited.records, audited.waiting) == (len(job.order), ())
    return striking.records(), striking.missed()


def _soak(job: Job, faults: int, folder: Path) -> list[Entry]:
    """Runs until so many faults have struck, each entered into the ledger."""
    rounds = Rounds(job, SEED)
    control = asyncio.run(run_job(job, folder / "control" / "data", folder / "control" / "out", seconds=3.0))
    entered: list[Entry] = []
    again: list[Kill] = []
    while (struck := sum(len(entry.struck) for entry in entered)) < faults:
        number, began = len(entered) + 1, time.monotonic()
        of = rounds.next(KILLS_OF_A_RUN, OUTERS_OF_A_RUN)
        asked = {(k.place, k.phase) for k in of.kills}
        of = replace(of, kills=[*of.kills, *(k for k in again if (k.place, k.phase) not in asked)])
        wrong, found, missed = "", list[Struck](), list[Kill]()
        try:
            found, missed = asyncio.run(_struck(job, of, folder / f"run-{number}", control.contents))
        except BaseException as error:
            wrong = str(error) or type(error).__name__
            raise
        finally:
            entered.append(Entry(code(), job.name, SEED, number, round(time.monotonic() - began), wrong, found))
            enter(entered[-1])
        again = [replace(kill, nth=1) for kill in missed]
        print(f"{job.name} {SEED}: run {number}, {struck + len(found)} of {faults} faults, {len(missed)} missed")  # noqa: T201 - a long run says how far it is
    return entered


@pytest.mark.e2e
def test_a_few_faults_chosen_by_a_seed(tmp_path: Path) -> None:
    """The keyed job under kills at phases, a kill and a pause at random moments: the audit finds each epoch's outputs as they must be."""
    job = meters_job(6_000, SEED)
    of = Round(
        [
            Kill("source-0", "state-durable", 3),
            Kill("coordinator-0", "commit-stored", 4),
            Kill("sink-0", "releasing", 5),
        ],
        [Sudden("operator-0", 7), Sudden(BROKER, 9), Pause("sink-0", 5)],
    )
    struck, missed = asyncio.run(_struck(job, of, tmp_path / "run", None))
    assert missed == []
    assert len(struck) == of.count


@pytest.mark.soak
@pytest.mark.parametrize("name", ["departures", "meters"])
def test_a_job_under_hundreds_of_faults(name: str, tmp_path: Path) -> None:
    """Whatever is killed or paused, wherever, the outputs are those of the control run, and readers saw nothing else."""
    keyed = replace(
        meters_job(20_000, SEED, workers=2), workers={"coordinator": 2, "source": 2, "operator": 2, "sink": 2}
    )
    entered = _soak({"departures": departures_job(45), "meters": keyed}[name], FAULTS // 2, tmp_path)
    print(summary(entered))  # noqa: T201 - what was hit belongs into the test's output
    assert sum(len(entry.struck) for entry in entered) >= FAULTS // 2
