"""`$addFields` and `$set`."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import Fields
from tidemark.shared.language.kinds import StageSpec
from tidemark.shared.language.stages.base import Outcome, Passed, within_depth
from tidemark.shared.language.stages.reading_trees import FIELDS_SCHEMA, computed_tree
from tidemark.shared.language.stages.trees import ByFields, TreeValues, add_fields, deepens
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFields(ByFields):
    """`$addFields` and `$set`: a tree of computed fields; expressions see the document as it came."""

    def _apply(self, document: Document, env: Environment) -> Outcome:
        found = add_fields(self.fields, document, TreeValues(env))
        return Passed((within_depth(found) if deepens(self.fields) else found,))

    def written(self, names: Fields) -> Fields:
        """The fields that came in, and those that are added."""
        return None if names is None else names | self.named()


def _read(tree: object, path: str, scope: Scope) -> AddFields | None:
    fields = computed_tree(tree, path, scope)
    return None if fields is None else AddFields(path=path, fields=fields)


SPEC: Final = StageSpec("Adds fields, or replaces them.", _read, FIELDS_SCHEMA)
