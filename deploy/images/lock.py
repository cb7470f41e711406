"""Prints what of the lock file on standard input belongs to some parts of packages.txt: an image has only what its service uses."""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==")


class Package(NamedTuple):
    """A line of packages.txt: a locked package, which images have it, and why."""

    part: str
    reason: str


class NotSorted(Exception):
    """The lock file and packages.txt do not name the same packages, or no package is of a part."""


def packages(text: str) -> dict[str, Package]:
    """packages.txt, by name. NotSorted for a line that is not three words or more."""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            words = line.split(maxsplit=2)
            if len(words) != 3 or words[0] in found:  # noqa: PLR2004 - name, part, reason
                raise NotSorted(f"packages.txt: expected `package  part  reason`, each package once; found {line!r}")
            found[words[0]] = Package(words[1], words[2])
    return found


def of_parts(lines: Iterable[str], sorted_by: dict[str, Package], parts: Collection[str]) -> Iterator[str]:
    """The lines of these parts' packages, with those in front of the first. NotSorted, at the end, for a package on one side alone."""
    if unknown := {*parts} - {package.part for package in sorted_by.values()}:
        raise NotSorted(f"packages.txt: no package is of {sorted(unknown)}; name parts that it has")
    locked, kept = set(), True
    for line in lines:
        if pinned := _PINNED.match(line):
            locked.add(pinned[1])
            kept = pinned[1] in sorted_by and sorted_by[pinned[1]].part in parts
        if kept:
            yield line
    if odd := locked ^ sorted_by.keys():
        raise NotSorted(
            f"packages.txt and the lock file: {sorted(odd)} in one of them alone; add or remove their lines"
        )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path)
    parser.add_argument("parts", nargs="+")
    options = parser.parse_args()
    sys.stdout.writelines(of_parts(sys.stdin, packages(options.packages.read_text()), options.parts))


if __name__ == "__main__":
    main()
