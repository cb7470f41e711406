"""Every rule of the task machine is guarded: with the rule taken out, a test that carries its name fails."""

import importlib
import inspect
from collections.abc import Callable
from functools import cache, partial
from itertools import product

import pytest

from tests.unit.protocol_task.mutant import Mutation, applied
from tests.unit.protocol_task.mutations import MUTATIONS

Failed = pytest.fail.Exception
FILES = ("frames", "lineage", "checkpoints", "time", "restore", "pace", "unaligned")
RULES = (
    *("F1", "F2", "F3", "F4", "F7", "F8", "F9", "L1", "L2", "C2", "C3", "C4", "C5", "C6", "C7", "C9", "C13"),
    *("W1", "W3", "W5", "E1", "R4", "S2"),
)


@cache
def _tests(rule: str) -> list[tuple[str, Callable[[], None]]]:
    """The tests named after a rule, one entry for each of their parameters."""
    found = []
    for file in FILES:
        module = importlib.import_module(f"tests.unit.protocol_task.test_task_{file}")
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith(f"test_{rule}_"):
                found += [(name, call) for call in _calls(test)]
    return found


def _calls(test: Callable[..., None]) -> list[Callable[[], None]]:
    marks = getattr(test, "pytestmark", [])
    tables = []
    for mark in marks:
        names, values = mark.args
        names = [names] if isinstance(names, str) else list(names)
        tables.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
    return [partial(test, **_merged(choice)) for choice in product(*tables)]


def _merged(choice: tuple[dict[str, object], ...]) -> dict[str, object]:
    return {name: value for table in choice for name, value in table.items()}


def _failing(rule: str) -> list[str]:
    failed = []
    for name, test in _tests(rule):
        try:
            test()
        except (Exception, Failed) as error:  # noqa: BLE001 -- a mutant may fail in any way
            failed.append(f"{name}: {type(error).__name__}")
    return failed


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.rule}, {m.what}")
def test_a_rule_taken_out_is_noticed(mutation: Mutation) -> None:
    """A test named after the rule fails without it."""
    with applied(mutation):
        assert _failing(mutation.rule), f"no test of {mutation.rule} notices: {mutation.what}"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_guarded(rule: str) -> None:
    """A rule that concerns the task machine has tests, which pass, and at least one mutation."""
    assert _tests(rule)
    assert not _failing(rule)
    assert any(m.rule == rule for m in MUTATIONS)
