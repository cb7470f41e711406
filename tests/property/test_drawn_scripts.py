"""Scripts of both times drawn at random, through the whole system in one process, beside what they give step by step in plain Python."""

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn_scripts import difference, script, since, source
from tests.oracle.scripts import Data, computed
from tidemark.services.cli.process import Runner, run_case
from tidemark.shared.language.values import from_json


@given(st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_windows_over_a_script_give_what_its_steps_say(seed: int) -> None:
    """Rows and late records, with both kinds of lateness, windows on processing time, timers of idleness and lookups inside."""
    assert difference(seed, Runner("local")) is None


@given(st.integers(0, 2**64))
@settings(max_examples=60, deadline=None)
def test_computations_over_a_script_give_what_its_steps_say(seed: int) -> None:
    """What each key has had, in order: records by their times or as they came, timers of both times; and late records."""
    chooser = random.Random(seed)
    steps, order = script(chooser), chooser.choice(("arrival", "arrival", "eventTime"))
    lateness, delay_ms = chooser.choice(("merged", "split")), chooser.choice((0, 3, 8))
    if (
        order == "eventTime"
    ):  # a record that waits may set one that has passed, which may fire between two pieces of a watermark
        steps = [replace(step, clock_ms=None) if isinstance(step, Data) else step for step in steps]
    compute = {"$compute": {"class": "tests.harness.computations:Remembers", "key": "$k", "order": order}}
    text = {"pipeline": [source(steps, delay_ms), compute], "options": {"lateness": lateness}}
    result = run_case(Runner("local"), {"id": "drawn", **text})
    assert result["error"] is None, text
    keys, late = computed(steps, lateness, delay_ms, arrival=order == "arrival")  # type: ignore[arg-type]
    based = [tuple(map(since, row["seen"])) for row in map(from_json, result["output"])]
    assert sorted(based) == sorted(told for each in keys.values() for told in each), text
    assert sorted(int(from_json(letter)["doc"]["v"]) for letter in result["dlq"]) == sorted(late), text
