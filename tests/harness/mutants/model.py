"""What a mutant is: a clause of a rule, what keeps it, what stands there without it, and the tests that must notice."""

from dataclasses import dataclass

from tests.harness.mutants.tree import NotOnce, changed


@dataclass(frozen=True, slots=True)
class Mutant:
    """`old` stands exactly once in the file; `tests` hold tests named after the rule, of which one must fail with `new` in its place."""

    rule: str
    what: str
    """What no longer holds."""
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    real: bool = False
    """Only the real broker, database or Spark shows it."""
    where: str = ""
    """A function or `Class.method` in whose syntax tree `old` is looked for (`tree.py`); "": in the text."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.rule}, {self.what}"

    def applied(self, text: str) -> str:
        """The file without the clause. ValueError if the list has gone stale: what is looked for is not there, or not once."""
        try:
            if self.where:
                return changed(text, self.where, self.old, self.new)
            if (found := text.count(self.old)) != 1:
                raise NotOnce(f"expected once, found {found} times: {self.old!r}")
        except NotOnce as error:
            raise ValueError(f"{self.path}, {error} ({self.name})") from error
        return text.replace(self.old, self.new)
