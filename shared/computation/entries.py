"""What the packages that are installed beside Tidemark offer by a name: entry points, found without importing anything."""

from importlib.metadata import EntryPoint, entry_points
from typing import Final

from tidemark.shared.computation.problems import ClassError
from tidemark.shared.language.problems import nearest_of

COMPUTATIONS: Final = "tidemark.computations"
"""The group of computations."""


def names_in(group: str) -> tuple[str, ...]:
    """The names of a group, sorted."""
    return tuple(sorted({each.name for each in entry_points(group=group)}))


def entry_of(group: str, kind: str, name: str) -> EntryPoint:
    """The entry point of this name. ClassError, with those that are there; `kind` says what it is of."""
    found = {each.value: each for each in entry_points(group=group, name=name)}
    if len(found) > 1:
        raise ClassError(
            f"{kind} {name}: expected one package with it, found {' and '.join(map(said, found.values()))}"
        )
    for each in found.values():
        return each
    there = names_in(group)
    nearest = nearest_of(name, there)
    meant = "" if nearest is None else f"; did you mean {nearest}?"
    raise ClassError(
        f"{kind} {name}: no package that is installed here has it (entry points {group}); there are {', '.join(there) or 'none'}{meant}"
    )


def said(entry: EntryPoint) -> str:
    """The package that an entry point is of, and its version."""
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def class_of(named: str) -> str:
    """A computation's `module:Class`; of a package's by its name there. ClassError."""
    return named if ":" in named else entry_of(COMPUTATIONS, "computation", named).value
