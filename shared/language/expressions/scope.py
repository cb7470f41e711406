"""The parser's knowledge at a place of the document: where to put errors, and which variables are bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tidemark.shared.language.limits import DEFAULTS, Limits
from tidemark.shared.language.problems import Problems
from tidemark.shared.language.values.extended_json import ExtendedJsonError, from_json
from tidemark.shared.model.values import Value

NAMES_MAX: Final = 200
"""Of a path, as in MongoDB: one reads, and writes, by a step into each."""
SYSTEM_VARIABLES = frozenset({"ROOT", "CURRENT", "NOW", "REMOVE"})


@dataclass(slots=True)
class KnownMetadata:
    """Metadata that the engine can tell of the documents at a place."""

    metadata: set[str] = field(default_factory=set)
    """Names that a `$setStreamMeta` has set in front of the place."""
    records: bool = False
    """Whether each document is one record's, or one of those that `$unwind` made of a record, and is looked at once."""


@dataclass(frozen=True, slots=True)
class Scope:
    """`variables` are those bound around the place, besides the system's; `depth` counts the nesting so far; `limits`: the document's.

    stages: how each stage is read, by its operator (`stages.table.STAGES`); none where no pipeline can stand.
    """

    problems: Problems
    variables: frozenset[str] = frozenset()
    depth: int = 0
    limits: Limits = DEFAULTS
    stages: Mapping[str, Any] = field(default_factory=dict)
    connections: Mapping[str, str] = field(default_factory=dict)
    """Types of the connections that are known, by name."""
    told: KnownMetadata = field(default_factory=KnownMetadata)
    """Facts about the documents at the place: they change while a pipeline is read, from its first stage to its last."""
    processor: str = ""
    """The document's name; "" where it has none."""

    def bind(self, *names: str) -> "Scope":
        """Inside a form that binds these variables."""
        return replace(self, variables=self.variables | set(names))

    def allows(self, names: Sequence[str], path: str) -> bool:
        """Whether a path has no more names than one may; an error at the place otherwise."""
        if len(names) > NAMES_MAX:
            self.problems.add(path, f"a path has at most {NAMES_MAX} names, found {len(names)}")
        return len(names) <= NAMES_MAX

    def deeper(self) -> "Scope":
        """One level further in."""
        return replace(self, depth=self.depth + 1)


def read_value(tree: object, path: str, scope: Scope) -> tuple[Value, bool]:
    """The value that a constant's extended JSON stands for, and whether there is one."""
    try:
        return from_json(tree), True
    except ExtendedJsonError as e:
        scope.problems.add(path, str(e))
        return None, False
