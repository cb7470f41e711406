"""`$sort`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.ast import SortKey
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.forms import parse_sort_keys
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.expressions.sorting import sort_items
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages.base import Gathering, PassesOn
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(PassesOn, Gathering):
    """`$sort`: stable; null and missing are equal; an array sorts by its least item, descending by its greatest."""

    keys: tuple[SortKey, ...]

    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """The documents in the order of the keys; equal ones as they stood."""
        return sort_items(documents, self.keys)

    def reads(self) -> Fields:
        """Those of the keys."""
        return frozenset(key.names[0] for key in self.keys)

    @property
    def is_sure(self) -> bool:
        """True: it cannot fail."""
        return True


def _read(tree: object, path: str, scope: Scope) -> Sort | None:
    keys = parse_sort_keys(tree, path, scope)
    return Sort(path=path, keys=keys) if keys else None


SPEC: Final = StageSpec(
    "Orders the window's documents.",
    _read,
    {"type": "object", "minProperties": 1, "additionalProperties": {"enum": [1, -1]}},
)
