"""`$skip`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec, integer
from tidemark.shared.language.stages.base import Gathering, PassesOn
from tidemark.shared.model.values import INT64_MAX, Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip(PassesOn, Gathering):
    """`$skip`: all but the first documents, in the order that stands (D11 without a `$sort`)."""

    skip: int

    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """Those behind the first ones."""
        return list(documents[self.skip :])

    def reads(self) -> Fields:
        """It reads no field."""
        return frozenset()

    @property
    def is_sure(self) -> bool:
        """True: it cannot fail."""
        return True


def _read(tree: object, path: str, scope: Scope) -> Skip | None:
    skip = integer(0, INT64_MAX).read(tree, path, scope)
    return None if skip is None else Skip(path=path, skip=skip)


SPEC: Final = StageSpec("The documents of the window behind the first ones.", _read, {"type": "integer", "minimum": 0})
