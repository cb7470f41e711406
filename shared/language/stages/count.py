"""`$count`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages.base import Gathering
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Count(Gathering):
    """`$count`: one document with the number of documents under `field`; none for an empty input."""

    field: str

    def gather(self, documents: Sequence[Document], env: Environment) -> list[Document]:
        """Their number; nothing for none."""
        return [{self.field: len(documents)}] if documents else []

    def reads(self) -> Fields:
        """It reads no field."""
        return frozenset()

    @property
    def is_sure(self) -> bool:
        """True: counting cannot fail."""
        return True

    def written(self, names: Fields) -> Fields:
        """The field that has the count."""
        return frozenset((self.field,))


def _read(tree: object, path: str, scope: Scope) -> Count | None:
    if type(tree) is not str or not tree or tree.startswith("$") or "." in tree or tree == "_id":
        scope.problems.add(
            path, f"$count takes the name of the output field, without $ and dots, not _id; found {tree!r}"
        )
        return None
    return Count(path=path, field=tree)


SPEC: Final = StageSpec("The number of the window's documents.", _read, {"type": "string", "minLength": 1})
