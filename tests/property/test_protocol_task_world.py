"""Random histories of several task machines on one log: exactly once, in order, never too early, never stuck.

`tests/harness/task_world` runs them and checks every event. A history that fails names its seed and how to run it alone.
"""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.share import share
from tests.harness.task_world.world import World, explore
from tests.tidy_rules import ROOT
from tests.unit.protocol_task.mutant import Mutation, applied
from tests.unit.protocol_task.mutations import MUTATIONS

SEEDS = 40
STEPS = 4000
NOTICED_WITHIN = 60
"""Histories in which a rule taken out has to show."""

NOTICED_BY = {("R4", "no introduction"): 23}
"""Seeds to begin with, where those before them show nothing."""

# Rules whose absence shows only in what the whole does: each of them loses, repeats, tears a snapshot or stops for ever.
SHOWN = (
    ("F1", "repeats count"),
    ("F1", "what ran ahead counts in the snapshot"),
    ("F1", "seq begins anew"),
    ("F3", "epochs do not go on"),
    ("F4", "every frame says the newest watermark"),
    ("L1", "everything counts"),
    ("C3", "later epochs are applied"),
    ("C3", "one partition is enough"),
    ("C4", "no seek back"),
    ("C4", "a partition is paused"),
    ("C13", "what waits counts as taken"),
    ("C13", "every channel is at the snapshot's barrier"),
    ("C5", "an ended barrier blocks"),
    ("C5", "an abort ends nothing"),
    ("C5", "frames are put off while a snapshot is taken"),
    ("C7", "not at the broker"),
    ("W1", "the watermark goes first"),
    ("E1", "no END"),
    ("R4", "no introduction"),
    ("R4", "old channels live on"),
    ("S2", "the marker stands still"),
)


@pytest.mark.parametrize("seed", share(range(SEEDS), 12))
def test_a_history_releases_every_record_exactly_once(seed: int) -> None:
    """Whatever is aborted, killed, repeated, rescaled or written by zombies: commits release exactly the prefix of their positions."""
    explore(seed, STEPS)


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(10**6, 10**9), steps=st.integers(0, 600))
def test_any_history_settles(seed: int, steps: int) -> None:
    """From wherever faults left it, a processor without faults reaches its end: nothing waits for ever."""
    explore(seed, steps)


def test_the_histories_meet_what_they_are_for() -> None:
    """Seeks, zombies that stop, discarded frames, repeats, aborts, commits, rescales: all of them happen."""
    worlds: list[World] = []
    for seed in range(12):
        explore(seed, STEPS, worlds.append)
    lines = [line for world in worlds for line in world.lines]
    for words in (" seeks ", " stops", "aborts ", "commits ", "repeats", " releases ", " has ended", ", unaligned, "):
        assert any(words in line for line in lines), words
    drops = {reason for world in worlds for actor in world.actors for reason in actor.machine.drops}
    assert {"discarded_by_lineage", "repeated"} <= drops.union(*(world.met for world in worlds))
    assert any(
        len(set(world.layout.incarnations.values()) - {f"{e}#0" for e in world.layout.incarnations}) for world in worlds
    )


def test_a_seed_gives_the_same_history_in_every_process() -> None:
    """What a failure names can be run alone: nothing that is drawn depends on how a process hashes or on what ran before."""
    script = "import sys; from tests.harness.task_world.world import explore; sys.stdout.write(chr(10).join(explore(7).lines))"
    histories = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
        for hashing in ("1", "4")
    ]
    assert histories[0]
    assert histories[0] == histories[1]


def _explore_many(first: int) -> None:
    for seed in (first, *range(NOTICED_WITHIN)):
        explore(seed, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation", share([m for m in MUTATIONS if (m.rule, m.what) in SHOWN], 3), ids=lambda m: f"{m.rule}, {m.what}"
)
def test_a_history_shows_a_rule_taken_out(mutation: Mutation) -> None:
    """The histories are rich enough: without the rule one of them fails."""
    with applied(mutation), pytest.raises(AssertionError, match="seed"):
        _explore_many(NOTICED_BY.get((mutation.rule, mutation.what), 0))
