"""Installed packages beside what Tidemark's own metadata asks for. Only looked at when something has failed: it takes some 20 ms.

Rules kept here: the standard library alone, for any other package may be the one that is missing.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

_REQUIREMENT: Final = re.compile(r"(?P<package>(?P<name>[\w.-]+)(\[[^]]*\])?)\s*(?P<bounds>[^;]*)")
_BOUND: Final = re.compile(r"(?P<how>>=|<|==)\s*(?P<version>[\d.]+)")
_NUMBER: Final = re.compile(r"\d+")


def unfit() -> Iterator[tuple[str, str]]:
    """Of each package that is missing, or that another version is of: what was found and is needed, and what pip is told to install."""
    for requirement in requires("tidemark") or ():
        asked = _REQUIREMENT.match(requirement)
        if asked is None or "extra ==" in requirement:
            continue
        name, bounds = asked["name"], asked["bounds"].strip()
        try:
            found = version(name)
        except PackageNotFoundError:
            yield f"{name} is missing (needed: {bounds})", asked["package"] + bounds
            continue
        if not fits(found, bounds):
            yield f"{name} is {found} (needed: {bounds})", asked["package"] + bounds


def fits(found: str, bounds: str) -> bool:
    """Whether a version is within bounds such as `>=2.3,<3`. Of a version its numbers count: 3.0rc1 is as good as 3.0."""
    release = _release(found)
    for bound in _BOUND.finditer(bounds):
        edge = _release(bound["version"])
        right = {">=": release >= edge, "<": release < edge, "==": release == edge}
        if not right[bound["how"]]:
            return False
    return True


def _release(text: str) -> list[int]:
    """Its numbers up to the first part that is none, without zeros at the end: 3.0 and 3 are the same."""
    numbers = []
    for part in text.partition("+")[0].split("."):
        number = _NUMBER.match(part)
        if number is None:
            break
        numbers.append(int(number[0]))
    while numbers and not numbers[-1]:
        numbers.pop()
    return numbers


def advice() -> str:
    """A sentence on packages that do not fit, with the command that mends it; "" where all do."""
    found = list(unfit())
    if not found:
        return ""
    told, wanted = zip(*found, strict=True)
    command = shlex.join([sys.executable, "-m", "pip", "install", *wanted])
    return f"packages of this environment do not fit Tidemark {version('tidemark')}: {', '.join(told)}; run: {command}"
