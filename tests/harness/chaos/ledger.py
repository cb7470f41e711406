"""What struck in runs under faults, on which code, and what was wrong: a line of JSON a piece, and a summary for people."""

import json
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from tests.harness.chaos.faults import Fault


@dataclass(frozen=True)
class Entry:
    """A piece: one installation under faults."""

    code: str
    """The commit, `-dirty` with changes."""
    seed: int
    rounds: int
    seconds: int
    wrong: str
    """Empty: nothing lost, nothing twice, audits agree, nobody FAILED."""
    struck: Sequence[Fault]
    figures: Mapping[str, float]


def code() -> str:
    """The commit that runs."""
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def enter(folder: Path, entry: Entry) -> None:
    """Append it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "ledger.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps(asdict(entry)) + "\n")


def entries(folder: Path) -> list[Entry]:
    """All that were entered."""
    lines = (folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Entry) for line in lines]


def findings(of: Sequence[Entry]) -> list[str]:
    """What was wrong, a line each."""
    return [f"seed {entry.seed}, on {entry.code}: {entry.wrong}" for entry in of if entry.wrong]


def summary(of: Sequence[Entry]) -> str:
    """For people: sums, then a line for each kind of fault."""
    struck = Counter(fault.kind for entry in of for fault in entry.struck)
    figures: Counter[str] = Counter()
    for entry in of:
        for name, value in entry.figures.items():
            figures[name] = max(figures[name], value) if name.startswith("longest") else figures[name] + value  # type: ignore[assignment]
    minutes = sum(entry.seconds for entry in of) / 60
    seeds, codes = ", ".join(str(e.seed) for e in of), ", ".join(sorted({e.code for e in of}))
    rounds = sum(e.rounds for e in of)
    lines = [
        f"{struck.total()} faults in {rounds} rounds, {len(of)} installations, {minutes:.0f} minutes; seeds {seeds}; on {codes}",
        ", ".join(f"{name} {value:g}" for name, value in sorted(figures.items())),
    ]
    by_what: dict[tuple[str, str], list[str]] = {}
    for (what, where, how), count in sorted(struck.items()):
        by_what.setdefault((what, where), []).append(f"{how} {count}")
    lines += [f"  {what:6} {where:12} {', '.join(hows)}" for (what, where), hows in by_what.items()]
    return "\n".join([*lines, *(findings(of) or ["nothing was lost, twice or FAILED; all audits agree"])])
