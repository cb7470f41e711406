"""`python -m tests.harness.drawn_audits [SEED] [STORIES]`: see the package."""

import logging
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.harness.drawn_audits.drawing import drawn
from tests.harness.drawn_audits.running import Verdict, judged
from tests.harness.drawn_jobs.job import say
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.virtual import run_virtual


def cause(why: str) -> str:
    """A reason without the names of vertices, stages and epochs."""
    return re.sub(r"\d+", "N", re.sub(r"^[^:]*: [^:]*?(\$\w+)?(\.\w+)?: ", r"\1\2: ", why))


def verdict_of(seed: int, folder: Path) -> Verdict:
    """The story of a seed, run and audited."""
    story = drawn(seed, folder)
    found: Verdict = run_virtual(lambda world: judged(world, story, folder))
    return found


def main(first: int, count: int) -> int:
    """1 if an audit accused a job, or passed over a forgery."""
    causes, refusals, said, jobs = Counter[str](), Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    wrong = []
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            verdict = verdict_of(seed, Path(folder))
        passed = [name for name, what in verdict.forgeries.items() if what == "passed"]
        if verdict.accused or passed:
            wrong.append(seed)
            say(f"{seed}: {verdict.accused[:600] or 'passed over: ' + ', '.join(passed)} {verdict.traits}")
        elif verdict.unchecked:
            say(f"{seed}: not checked: {'; '.join(verdict.unchecked)} {verdict.traits}")
        jobs[verdict.sort] += 1
        refusals.update({re.sub(r"\d+", "N", verdict.refused)[:150]} if verdict.refused else ())
        causes.update({cause(why) for why in verdict.unchecked})
        said.update((re.sub(r" \d+$", "", name), what) for name, what in verdict.forgeries.items())
    say(f"{count} jobs: {dict(jobs)}")
    for title, table in (("not checked", causes), ("refused", refusals)):
        for why, times in table.most_common():
            say(f"{title}: {times}: {why}")
    for (name, what), times in sorted(said.items()):
        say(f"{name}: {what}: {times}")
    say(f"{len(wrong)} wrong: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    quiet(logging.CRITICAL)
    given = [int(word) for word in sys.argv[1:3]]
    sys.exit(main(*(given + [1, 40][len(given) :])))
