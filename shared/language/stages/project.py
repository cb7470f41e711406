"""`$project`."""

from dataclasses import dataclass
from typing import Final, Literal

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.schema import Schema
from tidemark.shared.language.stages.base import Outcome, Passed, within_depth
from tidemark.shared.language.stages.reading_trees import FIELDS_SCHEMA, projection
from tidemark.shared.language.stages.trees import ByFields, TreeValues, deepens, exclude, include, kept_or_copied
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Project(ByFields):
    """`$project`: inclusion (the tree has Keep, Computed; the rest goes) or exclusion (Drop; the rest stays)."""

    mode: Literal["inclusion", "exclusion"]

    def _apply(self, document: Document, env: Environment) -> Outcome:
        if self.mode == "exclusion":
            return Passed((exclude(self.fields, document),))
        found = include(self.fields, document, TreeValues(env))
        return Passed((within_depth(found) if deepens(self.fields) else found,))

    @property
    def shows_others(self) -> bool:
        """Whether fields that are not named stay: by exclusion they do."""
        return self.mode == "exclusion"

    def written(self, names: Fields) -> Fields:
        """By inclusion the fields of the tree."""
        if self.mode == "exclusion":
            return None if names is None else names - self.dropped()
        return self.named() - self.dropped()

    def declared(self, schema: Schema) -> Schema:
        """By inclusion the fields of the tree."""
        if self.mode == "exclusion":
            return super(Project, self).declared(schema)
        return Schema(tuple(kept_or_copied(schema, self.fields)))


def _read(tree: object, path: str, scope: Scope) -> Project | None:
    found = projection(tree, path, scope)
    return None if found is None else Project(path=path, mode=found[0], fields=found[1])


SPEC: Final = StageSpec("Keeps, leaves out or computes fields.", _read, FIELDS_SCHEMA)
