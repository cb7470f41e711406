"""The list of mutants does not rot: every clause is found where it stands, is tested by its name, and no rule is left out."""

import ast

import pytest

from tests.harness.mutants.catalogue import MUTANTS
from tests.harness.mutants.run import without
from tests.rule_names import rules_in_name, rules_of_the_protocol
from tests.tidy_rules import ROOT, functions
from tests.unit.protocol_task.mutations import MUTATIONS


@pytest.mark.parametrize("path", sorted({m.path for m in MUTANTS}))
def test_every_clause_is_found_once_and_can_be_taken_out(path: str) -> None:
    """The text before stands exactly once in its file; the file without it is another program that compiles."""
    text = (ROOT / path).read_text(encoding="utf-8")
    for mutant in MUTANTS:
        if mutant.path == path:
            changed = without(mutant, text)
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
    """Of all rules of the protocol but the one that is not built; names of mutants are said once."""
    rules = {m.rule for m in MUTANTS} | {m.rule for m in MUTATIONS}
    assert rules_of_the_protocol() - rules - {"C13"} == set()
    names = [m.name for m in MUTANTS]
    assert len(names) == len(set(names))
