"""The ledger of soak runs: what struck in each, on which code, and whether the outputs were those of the run without faults.

`python -m tests.e2e.ledger` sums up out/soak/ledger.jsonl: faults by job, service and phase; status 1 if a run was not equal, a phase
of a job was never hit, or no broker was killed. Runs of several seeds add up, so that a long soak may be cut into short ones; `make
clean` begins the ledger anew.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.e2e.soaking import PHASES, Struck
from tidemark.services.cli.demo import NAME
from tidemark.services.local.supervisor import BROKER

LEDGER = Path("out/soak/ledger.jsonl")
OUTSIDE = ("random", "paused")


@dataclass(frozen=True)
class Entry:
    """A run under faults that came to its end."""

    code: str
    """The commit, `-dirty` with changes."""
    job: str
    seed: int
    run: int
    seconds: int
    wrong: str
    """What was not as it must be; empty: the outputs are equal, and the audit agrees."""
    struck: Sequence[Struck]


def code() -> str:
    """The commit that runs."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def enter(entry: Entry) -> None:
    """Append it."""
    LEDGER.parent.mkdir(parents=True, exist_ok=True)
    with LEDGER.open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(entry)) + "\n")


def entries(path: Path = LEDGER) -> list[Entry]:
    """All that were entered."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Entry) for line in path.read_text(encoding="utf-8").splitlines()]


def findings(of: Sequence[Entry]) -> list[str]:
    """What keeps these runs from being a whole soak, each as a line."""
    found = [f"{e.job}, seed {e.seed}, run {e.run} on {e.code}: {e.wrong}" for e in of if e.wrong]
    for job in sorted({entry.job for entry in of}):
        hit = _hits(of, job)
        services = [service for service in PHASES if service != "spark" or job == NAME]
        due = [(s, phase) for s in services for phase in (*PHASES[s], *OUTSIDE)]
        found += [f"{job}: {service} was never struck at {phase}" for service, phase in due if not hit[service, phase]]
        if not hit[BROKER, "random"]:
            found.append(f"{job}: the broker was never killed")
    return found


def _hits(of: Sequence[Entry], job: str) -> Counter[tuple[str, str]]:
    places = ((s.place, s.phase) for entry in of if entry.job == job for s in entry.struck)
    return Counter((place.rpartition("-")[0] or place, phase) for place, phase in places)


def summary(of: Sequence[Entry]) -> str:
    """For people: sums, then a line for each job and service."""
    struck = sum(len(entry.struck) for entry in of)
    minutes = sum(entry.seconds for entry in of) / 60
    equal = sum(1 for entry in of if not entry.wrong)
    lines = [f"{struck} faults in {len(of)} runs, {equal} of them equal; {minutes:.0f} minutes; seeds {_seeds(of)}"]
    lines.append("on " + ", ".join(f"{code} ({n})" for code, n in Counter(e.code for e in of).items()))
    for job in sorted({entry.job for entry in of}):
        hit = _hits(of, job)
        lines.append(f"{job}: {hit.total()}")
        for service in sorted({service for service, _ in hit}):
            phases = ", ".join(f"{phase} {n}" for (s, phase), n in sorted(hit.items()) if s == service)
            lines.append(f"  {service:12} {phases}")
    return "\n".join([*lines, *findings(of)])


def _seeds(of: Sequence[Entry]) -> str:
    found: dict[str, Any] = {}
    for entry in of:
        found.setdefault(entry.job, set()).add(entry.seed)
    return "; ".join(f"{job} {', '.join(map(str, sorted(seeds)))}" for job, seeds in sorted(found.items()))


def main() -> int:
    """0 if all of it is as it must be."""
    of = entries()
    sys.stdout.write(summary(of) + "\n")
    return 1 if findings(of) or not of else 0


if __name__ == "__main__":
    sys.exit(main())
