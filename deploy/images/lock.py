"""Prints the lock file on standard input less the packages named behind --without: an image has only the packages that its service uses."""

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Final

_PINNED: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==")


class NotLocked(Exception):
    """A package is to be left out that the lock file does not have."""


def without(lines: Iterable[str], names: Collection[str]) -> Iterator[str]:
    """The lines but those of the packages named. NotLocked, at the end, for a name that is not there."""
    left = set(names)
    dropping = False
    for line in lines:
        if pinned := _PINNED.match(line):
            dropping = pinned[1] in names
            left.discard(pinned[1])
        if not dropping:
            yield line
    if left:
        message = f"lock file: expected {sorted(left)} among the packages, found no such; name what the lock has"
        raise NotLocked(message)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without", nargs="+", default=[], metavar="PACKAGE")
    sys.stdout.writelines(without(sys.stdin, parser.parse_args().without))


if __name__ == "__main__":
    main()
