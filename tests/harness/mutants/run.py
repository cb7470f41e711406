"""Runs mutants: each in a copy of the tree, with the tests that carry its rule's name, of which one must fail.

`python -m tests.harness.mutants [RULE or words …] [--reals]`; with `--reals` the tests that need a broker, Spark or a database take part;
`--table` shows which tests and mutants each rule has.
The task machine's own mutants are quick, and run with the tests (`tests/unit/protocol_task/test_task_mutations.py`).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.harness.mutants.catalogue import MUTANTS
from tests.harness.mutants.model import Mutant
from tests.rule_names import rules_in_name, rules_of_the_protocol
from tests.tidy_rules import ROOT, TOP_FOLDERS, functions, sources
from tests.unit.protocol_task.mutations import MUTATIONS

_FAILED, _NOTHING_COLLECTED = 1, 5
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis")
_TIMEOUT_S = 240
_REAL = "not (kafka or spark or postgres or mongodb or e2e or bench or long)"
_ALL = "not (e2e or bench or long)"


class Copy:
    """A copy of the tree that mutants may change."""

    def __init__(self, root: Path, *, reals: bool) -> None:
        self.root = root
        self._marks = _ALL if reals else _REAL
        for folder in TOP_FOLDERS:
            shutil.copytree(ROOT / folder, root / folder, ignore=_NOT_COPIED)
        machine_code = Path("shared/compiled/__pycache__")
        if (ROOT / machine_code).exists():  # else it is compiled in the copy: minutes
            shutil.copytree(ROOT / machine_code, root / machine_code)
        shutil.copytree(ROOT / "tidemark", root / "tidemark", symlinks=True, ignore=_NOT_COPIED)
        shutil.copy(ROOT / "pyproject.toml", root)
        jars = ROOT / ".tidemark"
        if jars.exists():
            (root / ".tidemark").symlink_to(jars)

    def tests(self, rule: str, files: Sequence[str]) -> tuple[int, str]:
        """Pytest's exit code for the tests of a rule, and the end of what it said."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", self._marks]
        command += ["-k", f"{rule}_", "--timeout", "120", *files]
        environment = {**os.environ, "CI": "1", "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return _FAILED, f"FAILED all of them: no end within {_TIMEOUT_S} s"
        lines = done.stdout.splitlines()
        named = (at for at, line in enumerate(lines) if line.startswith(("FAILED ", "ERROR ")))
        return done.returncode, "\n".join(lines[next(named, -15) :])

    def changed(self, mutant: Mutant) -> tuple[int, str]:
        """The tests of the mutant's rule, without the clause."""
        path = self.root / mutant.path
        text = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied(text), encoding="utf-8")
        try:
            return self.tests(mutant.rule, mutant.tests)
        finally:
            path.write_text(text, encoding="utf-8")


def chosen(words: Sequence[str], *, reals: bool) -> list[Mutant]:
    """Those whose rule or name is asked for; all without words."""
    wanted = (m for m in MUTANTS if not words or any(w == m.rule or w.lower() in m.name.lower() for w in words))
    return [m for m in wanted if reals or not m.real]


def survivors(mutants: Iterable[Mutant], *, reals: bool) -> list[str]:
    """Those that no test noticed, and what is wrong with the list, each as a line; tells how it goes."""
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="tidemark-mutants-") as folder:
        copy = Copy(Path(folder), reals=reals)
        sound: dict[tuple[str, tuple[str, ...]], bool] = {}
        for mutant in mutants:
            key = (mutant.rule, mutant.tests)
            if key not in sound:
                code, said = copy.tests(*key)
                sound[key] = code == 0
                if code == _NOTHING_COLLECTED:
                    found.append(f"{mutant.rule}: none of its tests in {', '.join(mutant.tests)} runs here")
                elif code != 0:
                    found.append(f"{mutant.rule}: its tests fail without a mutant:\n{said}")
            if not sound[key]:
                continue
            code, said = copy.changed(mutant)
            by = f"\n            by {_by(said)}" if code == _FAILED else ""
            sys.stdout.write(f"{'noticed ' if by else 'SURVIVED'}  {mutant.name}{by}\n")
            sys.stdout.flush()
            if code != _FAILED:
                found.append(f"{mutant.name}: pytest ended with {code}:\n{said}")
    return found


def _by(said: str) -> str:
    """The test that failed and its error, from the end of what pytest said."""
    return said.partition("\n")[0].removeprefix("FAILED ")


def table() -> str:
    """A line a rule: how many tests carry its name, in which files; how many mutants take a clause out, of which files."""
    tests: dict[str, Counter[str]] = {}
    for source in sources():
        if source.is_python and source.within("tests/"):
            for function in functions(source.tree):
                for rule in rules_in_name(function.name):
                    tests.setdefault(rule, Counter())[source.path] += 1
    guards: dict[str, Counter[str]] = {}
    for mutant in MUTANTS:
        guards.setdefault(mutant.rule, Counter())[mutant.path] += 1
    for mutation in MUTATIONS:
        guards.setdefault(mutation.rule, Counter())[mutation.module.replace(".", "/") + ".py"] += 1
    order = sorted(rules_of_the_protocol(), key=lambda rule: (rule[0], int(rule[1:])))
    return "\n".join(f"{r:3}  tests: {_counted(tests.get(r))}\n     mutants: {_counted(guards.get(r))}" for r in order)


def _counted(found: Counter[str] | None) -> str:
    return ", ".join(f"{path} {count}" for path, count in found.most_common()) if found else "none"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every mutant was noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="rules (S3) or parts of names; all without")
    parser.add_argument("--reals", action="store_true", help="also the tests that need a broker, Spark or PostgreSQL")
    parser.add_argument("--table", action="store_true", help="show rules, their tests and their mutants; run nothing")
    options = parser.parse_args(arguments)
    if options.table:
        sys.stdout.write(f"{table()}\n")
        return 0
    picked = chosen(options.words, reals=options.reals)
    left = survivors(picked, reals=options.reals)
    sys.stdout.write("\n".join(["", *left, f"{len(picked)} mutants, {len(left)} findings", ""]))
    return 1 if left else 0
