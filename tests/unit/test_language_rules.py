"""`shared/language/LANGUAGE.md` states each rule that code and tests cite, and each that it states is cited by a test or a case."""

import re

from tests.tidy_rules import ROOT, sources

_TEXT = (ROOT / "shared/language/LANGUAGE.md").read_text(encoding="utf-8")
_RULES = set(re.findall(r"(?m)^- \*\*(D\d+)\*\*", _TEXT))
_HEADINGS = set(re.findall(r"(?m)^#+ (.+)$", _TEXT))
_CITED = re.compile(r"(?<![\w%])D\d{1,2}(?![\w{])")
_HEADING = re.compile(r"LANGUAGE\.md(?:, |#)`?([A-Z][a-z]+(?: [a-z]+)*|recordId|script)")


def _citing() -> dict[str, str]:
    """The texts that may cite, by path; ruff's own rules have such names, too."""
    return {
        source.path: source.text
        for source in sources()
        if source.path.endswith((".py", ".md", ".jsonl"))
        and source.path not in ("shared/language/LANGUAGE.md", "tests/unit/test_language_rules.py")
    }


def test_each_rule_that_is_cited_is_stated() -> None:
    """No line of code, test or case leans on a rule that nobody can read."""
    unknown = {f"{path}: {rule}" for path, text in _citing().items() if path.endswith(".py") for rule in _CITED.findall(text)
               if rule not in _RULES}  # fmt: skip
    assert not unknown
    cases = (ROOT / "tests/golden/process/cases.jsonl").read_text(encoding="utf-8")
    assert set(re.findall(r'"(D\d+)"', cases)) <= _RULES


def test_each_heading_that_is_cited_is_there() -> None:
    """`LANGUAGE.md, Time` leads somewhere, and nothing cites a text that is not in the project."""
    texts = _citing()
    missing = {
        f"{path}: {name}" for path, text in texts.items() for name in _HEADING.findall(text) if name not in _HEADINGS
    }
    assert not missing
    assert not [path for path, text in texts.items() if "language.md" in text]


def test_each_rule_is_tested() -> None:
    """A rule stands in a test's text, or in a case that rests on it."""
    texts = [text for path, text in _citing().items() if path.startswith("tests/")]
    cases = (ROOT / "tests/golden/process/cases.jsonl").read_text(encoding="utf-8")
    cited = {rule for text in texts for rule in _CITED.findall(text)} | set(re.findall(r'"(D\d+)"', cases))
    assert not _RULES - cited


def test_rules_are_found() -> None:
    """The lists are read from the text."""
    assert {"D1", "D11", "D15"} <= _RULES
    assert _CITED.findall("(D2, D11). %D9 D105x") == ["D2", "D11"]
