"""`$validate`."""

from dataclasses import dataclass
from typing import Final, Literal

from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.kinds import PREDICATE, Option, choice, made_of
from tidemark.shared.language.query.ast import Predicate
from tidemark.shared.language.query.match import matches
from tidemark.shared.language.stages.base import Discarded, Failure, Outcome, Passed, ValidationStop
from tidemark.shared.language.stages.judging import Judging
from tidemark.shared.model.values import Document

VALIDATE_REASON: Final = "Input document found to be invalid in $validate stage."
"""The reason that dead letters of `$validate` carry, in Atlas's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate(Judging):
    """Lets through the documents that the validator is true of; the rest is discarded, dead-lettered, or stops the processor (`error`)."""

    validator: Predicate
    validation_action: Literal["discard", "dlq", "error"] = "discard"

    @property
    def judged_by(self) -> Predicate:
        """The stage's validator."""
        return self.validator

    def _apply(self, document: Document, env: Environment) -> Outcome:
        return Passed((document,)) if matches(self.validator, env) else self.refused(document)

    def refused(self, document: Document) -> Discarded | Failure | ValidationStop:
        """What becomes of a document that the validator is not true of."""
        if self.validation_action == "discard":
            return Discarded(self.path)
        if self.validation_action == "error":
            return ValidationStop(VALIDATE_REASON, self.path, document)
        return Failure(VALIDATE_REASON, "DocumentValidationFailure", self.path, document)


SPEC: Final = made_of(
    "Checks documents, and says what becomes of those that are wrong.",
    (
        Option("validator", PREDICATE, "a query or $jsonSchema", required=True),
        Option("validationAction", choice("discard", "dlq", "error"), "what becomes of them (default discard)"),
    ),
    Validate,
)
