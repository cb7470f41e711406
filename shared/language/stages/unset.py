"""`$unset`."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages.base import Outcome, Passed
from tidemark.shared.language.stages.reading_trees import drop_tree
from tidemark.shared.language.stages.trees import ByFields, exclude
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Unset(ByFields):
    """`$unset`: a tree of Drop."""

    def _apply(self, document: Document, env: Environment) -> Outcome:
        return Passed((exclude(self.fields, document),))

    def reads(self) -> Fields:
        """The fields that go, wholly or in part."""
        return self.named()

    def written(self, names: Fields) -> Fields:
        """The fields that came in, without those that go wholly."""
        return None if names is None else names - self.dropped()


def _read(tree: object, path: str, scope: Scope) -> Unset | None:
    fields = drop_tree(tree if type(tree) is list else [tree], path, scope)
    return None if fields is None else Unset(path=path, fields=fields)


SPEC: Final = StageSpec(
    "Leaves fields out.",
    _read,
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
)
