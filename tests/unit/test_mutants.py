"""The list of mutants does not rot: every clause is found where it stands, is tested by its name, and no rule is left out."""

import ast

import pytest

from tests.harness.mutants.catalogue import MUTANTS
from tests.harness.mutants.tree import changed as with_change
from tests.rule_names import rules_in_name, rules_of_the_protocol
from tests.tidy_rules import ROOT, functions
from tests.unit.protocol_task.mutations import MUTATIONS


@pytest.mark.parametrize("path", sorted({m.path for m in MUTANTS}))
def test_every_clause_is_found_once_and_can_be_taken_out(path: str) -> None:
    """The text before stands exactly once in its file; the file without it is another program that compiles."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for mutant in MUTANTS:
        if mutant.path == path:
            changed = mutant.applied(text)
            assert changed != text, mutant.name
            compile(changed, path, "exec")


def test_every_mutant_has_tests_that_carry_its_rule() -> None:
    """Each of the files is there, and in one at least a test is named after the rule."""
    named = {
        file: {rule for f in functions(ast.parse((ROOT / file).read_text())) for rule in rules_in_name(f.name)}
        for file in {file for mutant in MUTANTS for file in mutant.tests}
    }
    lost = [m.name for m in MUTANTS if not any(m.rule in named[file] for file in m.tests)]
    assert not lost


def test_every_rule_has_a_mutant() -> None:
    """Of all rules of the protocol; names of mutants are said once."""
    rules = {m.rule for m in MUTANTS} | {m.rule for m in MUTATIONS}
    assert rules_of_the_protocol() - rules == set()
    names = [m.name for m in MUTANTS]
    assert len(names) == len(set(names))


SOURCE = """
class A:
    async def f(self, x):
        # a comment
        if x.ready and not self.done:
            self.log(x)
            await self.go(
                x,
            )
        self.frames = deque(i for i in self.frames if i != x)

def g():
    return min(a, b)
"""


@pytest.mark.parametrize(
    ("where", "find", "becomes", "wanted"),
    [
        ("A.f", "x.ready and not self.done", "x.ready", "if x.ready:"),
        ("A.f", "if any_test:\n    ...", "", "        pass\n        self.frames"),
        ("A.f", "self.frames = any_new", "self.frames = [any_new]", "self.frames = [deque("),
        ("A.f", "await self.go(x)", "pass", "self.log(x)\n            pass"),
        ("A.f", "self.log(x)\nawait any_call", "", "(not self.done):\n            pass\n"),
        ("g", "min(any_a, b)", "any_a", "return a"),
    ],
)
def test_a_change_to_the_tree_finds_its_place_however_it_is_laid_out(
    where: str, find: str, becomes: str, wanted: str
) -> None:
    """Expressions and statements, with any expression or any statements in the place of some."""
    changed = with_change(SOURCE, where, find, becomes)
    assert wanted in changed
    assert changed != ast.unparse(ast.parse(SOURCE))


@pytest.mark.parametrize(("where", "find"), [("A.f", "x"), ("A.f", "min(a, b)"), ("A.g", "a"), ("g", "return a")])
def test_a_change_to_the_tree_that_finds_nothing_or_much_is_refused(where: str, find: str) -> None:
    """So that the list does not rot."""
    with pytest.raises(ValueError, match="expected on"):
        with_change(SOURCE, where, find, "None")
