"""Which rules the protocol states, and which tests are named after them, or after rules of one package.

Those are of record ids (DD, RI, IO: `dedupe.py`) and of parts of keyed state (CP: `computation_parts.py`; RS: `run_sizes.py`).
"""

import re
from typing import Final

from tests.tidy_rules import ROOT, functions, sources

_RULE_IN_TEXT: Final = re.compile(r"(?m)^(?:- |\| )\*\*([FLCRSWPEI]\d+)\*\*")
_RULES_IN_NAME: Final = re.compile(r"test_((?:(?:CP|RS|DD|RI|IO|[FLCRSWPEI])\d+_)+)")


def rules_of_the_protocol() -> set[str]:
    """The names of all rules that PROTOCOL.md states."""
    return set(_RULE_IN_TEXT.findall((ROOT / "shared/protocol/PROTOCOL.md").read_text(encoding="utf-8")))


def rules_in_name(name: str) -> set[str]:
    """The rules that a test's name begins with."""
    found = _RULES_IN_NAME.match(name)
    return set(found.group(1).rstrip("_").split("_")) if found else set()


def rules_in_names_of_tests() -> set[str]:
    """All rules that some test is named after."""
    tests = (source for source in sources() if source.is_python and source.within("tests/"))
    return {rule for source in tests for function in functions(source.tree) for rule in rules_in_name(function.name)}
