"""Finds a few of a failing seed's faults that are enough: by leaving out ever smaller parts of them (delta debugging)."""

from collections.abc import Callable, Sequence

from tests.harness.simulation.story import run

RUNS_MAX = 200


def shrunk(seed: int, struck: Sequence[str], fails: Callable[[set[str]], bool] | None = None) -> list[str]:
    """Faults without any one part of which the seed no longer fails. `fails`: whether it does without these faults.

    What is left out lets other faults of the plan strike in other places; so the ids that strike are asked for anew at each step.
    """
    all_of_them = list(struck)
    decide = fails or (lambda left_out: bool(run(seed, left_out=left_out).breaches))
    needed, parts, runs = all_of_them, 2, 0
    while len(needed) > 1 and runs < RUNS_MAX:
        size = -(-len(needed) // parts)
        for begin in range(0, len(needed), size):
            rest = needed[:begin] + needed[begin + size :]
            runs += 1
            if decide(set(all_of_them) - set(rest)):
                needed, parts = rest, max(2, parts - 1)
                break
            if runs >= RUNS_MAX:
                break
        else:
            if size == 1:
                break
            parts = min(len(needed), parts * 2)
    return needed
