"""What a mutant is: a clause of a rule, the text that keeps it, the text without it, and the tests that must notice."""

from dataclasses import dataclass


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

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.rule}, {self.what}"

    def applied(self, text: str) -> str:
        """The file without the clause. ValueError if the list has gone stale: the text is not there, or not once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.path}: expected once, found {found} times: {self.old!r} ({self.name})")
        return text.replace(self.old, self.new)
