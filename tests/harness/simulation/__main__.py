"""`python -m tests.harness.simulation FROM-TO`: runs seeds, a line for each that fails, and says what was hit.

`--trace` replays each seed with what happened; `--shrink` finds a few of its faults that are enough; `--without 'ID;ID'` leaves some out.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.harness.simulation.faults import Side
from tests.harness.simulation.shrink import shrunk
from tests.harness.simulation.story import Verdict, quiet, run
from tests.harness.simulation.writes import WRITES

SEEDS_OF_A_PROCESS = 20


@dataclass(slots=True)
class Sweep:
    """What many seeds met."""

    seeds: int = 0
    faults: int = 0
    commits: int = 0
    in_flight: int = 0
    failed: list[int] = field(default_factory=list)
    crossed: Counter[str] = field(default_factory=Counter)
    crashed: Counter[tuple[str, Side]] = field(default_factory=Counter)

    def add(self, verdict: Verdict) -> None:
        """One more seed."""
        self.seeds += 1
        self.faults += len(verdict.struck)
        self.commits += verdict.commits
        self.in_flight += verdict.in_flight
        self.crossed.update(verdict.writes)
        self.crashed.update(verdict.crashed)
        if verdict.breaches:
            self.failed.append(verdict.seed)

    def unknown(self) -> list[str]:
        """Durable writes that the list does not name."""
        return sorted(set(self.crossed) - set(WRITES))

    def missed(self) -> list[str]:
        """Named writes, and their sides, at which no process has died."""
        sides: tuple[Side, Side] = ("before", "after")
        return [f"{side} {write}" for write in WRITES for side in sides if not self.crashed[write, side]]

    def report(self) -> str:
        """For people."""
        both = 2 * len(WRITES)
        lines = [
            f"{self.seeds} seeds, {self.faults} faults, {self.commits} commits; failed: {self.failed or 'none'}",
            f"commits with frames in flight: {self.in_flight}",
            f"durable writes: {len(WRITES)}, {both - len(self.missed())} of {both} sides crashed ({self.crashed.total()} crashes)",
        ]
        lines += [
            f"  not crashed: {name} (came by {self.crossed[name.partition(' ')[2]]} times)" for name in self.missed()
        ]
        lines += [f"  not named in writes.py: {name}" for name in self.unknown()]
        return "\n".join(lines)


def several(seeds: Sequence[int]) -> list[Verdict]:
    """Run seeds one after the other."""
    with quiet():
        return [run(seed) for seed in seeds]


def line(verdict: Verdict) -> str:
    """A seed in a line, and below it what was wrong."""
    said = "ok " if not verdict.breaches else "BAD"
    head = f"seed {verdict.seed} {said} {verdict.summary}: {len(verdict.struck)} faults, {verdict.commits} commits, {verdict.virtual_ms} ms"
    return "\n".join([head, *(f"    {breach[:1000]}" for breach in verdict.breaches)])


def sweep(first: int, last: int, processes: int, *, seconds: float = 1e9, verbose: bool = False) -> Sweep:
    """Run seeds first to last - 1, no new ones after so many seconds."""
    found, began = Sweep(), time.monotonic()
    chunks = [range(at, min(at + SEEDS_OF_A_PROCESS, last)) for at in range(first, last, SEEDS_OF_A_PROCESS)]
    with ProcessPoolExecutor(processes) as pool:
        for number in range(0, len(chunks), processes):
            for verdicts in pool.map(several, chunks[number : number + processes]):
                for verdict in verdicts:
                    found.add(verdict)
                    if verbose or verdict.breaches:
                        print(line(verdict), flush=True)
            if time.monotonic() - began > seconds:
                break
    return found


def main() -> int:
    """0 if every seed held."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.simulation", description=__doc__)
    parser.add_argument("seeds", help="FROM-TO, or one seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no seeds after so long")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--without", default="", help="ids of faults, with ; between them")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if options.trace or options.shrink or options.without:
        with quiet():
            return max(_closely(seed, options) for seed in seeds)
    found = sweep(seeds.start, seeds.stop, options.processes, seconds=options.seconds, verbose=options.verbose)
    print(found.report())
    return 1 if found.failed or found.unknown() else 0


def _closely(seed: int, options: argparse.Namespace) -> int:
    left_out = set(filter(None, options.without.split(";")))
    verdict = run(seed, left_out=left_out)
    if options.shrink and verdict.breaches:
        needed = shrunk(seed, verdict.struck)
        print(f"seed {seed} fails with {len(needed)} of {len(verdict.struck)} faults:")
        print("\n".join(f"    {fault}" for fault in needed))
        verdict = run(seed, left_out=set(verdict.struck) - set(needed))
    if options.trace:
        print("\n".join(verdict.trace))
    print(line(verdict))
    return 1 if verdict.breaches else 0


if __name__ == "__main__":
    sys.exit(main())
