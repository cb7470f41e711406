"""`$match`."""

from dataclasses import dataclass
from typing import Final

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.scope import Scope
from tidemark.shared.language.fields import predicate_expressions
from tidemark.shared.language.kinds import PREDICATE, StageSpec
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages.base import Outcome, Passed
from tidemark.shared.language.stages.judging import Judging
from tidemark.shared.model.values import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Match(Judging):
    """Lets through the documents that the predicate is true of."""

    predicate: Predicate

    @property
    def judged_by(self) -> Predicate:
        """The stage's query."""
        return self.predicate

    @property
    def is_sure(self) -> bool:
        """Where it asks no expression."""
        return not predicate_expressions(self.predicate)

    def _apply(self, document: Document, env: Environment) -> Outcome:
        return Passed((document,)) if matches(self.predicate, env) else Passed(())


def _read(tree: object, path: str, scope: Scope) -> Match | None:
    predicate = PREDICATE.read(tree, path, scope)
    return None if predicate is None else Match(path=path, predicate=predicate)


SPEC: Final = StageSpec("Lets through what the query is true of.", _read, PREDICATE.schema)
