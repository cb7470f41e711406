"""What a stage made of a document."""

from dataclasses import dataclass
from typing import Final, TypeAlias

from tidemark.shared.model.values import Document

VALIDATE_REASON: Final = "Input document found to be invalid in $validate stage."
"""The reason that dead letters of `$validate` carry, in Atlas's words."""


@dataclass(frozen=True, slots=True)
class Passed:
    """The documents that go on; none where `$match` or `$unwind` let nothing through."""

    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True)
class Discarded:
    """`$validate` with `discard`: nothing goes on, and nothing goes to the dead letters."""

    path: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The document, as it entered the stage, goes to the dead letters: `errInfo` is {reason, code, path}."""

    reason: str
    code: str
    path: str
    document: Document


@dataclass(frozen=True, slots=True)
class ValidationStop:
    """`$validate` with `error`: the processor stops with this."""

    reason: str
    path: str
    document: Document


Outcome: TypeAlias = Passed | Discarded | Failure | ValidationStop
