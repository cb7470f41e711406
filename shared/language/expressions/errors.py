"""Errors of an expression at run time: the document goes to the dead letters, the others go on (D1)."""

from collections.abc import Sequence
from typing import Final


class ExpressionError(Exception):
    """An expression failed on a document. `code` is a stable name; `path` the operator's place in the user's document."""

    def __init__(self, reason: str, code: str, path: str = "") -> None:
        super().__init__(reason, code, path)
        self.reason = reason
        self.code = code
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path else self.reason


class UnknownName(ExpressionError):
    """A word that is none of those known: where it is a constant, the document's reader says which are, and which is nearest."""

    def __init__(self, what: str, found: object, known: Sequence[str]) -> None:
        super().__init__(f"unknown {what}, found {found!r}; known are {', '.join(known)}", VALUE)
        self.short = f"unknown {what}, found {found!r}"
        self.found = str(found)
        self.known = tuple(known)


TYPE: Final = "TypeMismatch"
VALUE: Final = "BadValue"
DIVISION: Final = "DivisionByZero"
OVERFLOW: Final = "Overflow"
CONVERSION: Final = "ConversionFailure"
SIZE: Final = "ResultTooLarge"
NO_BRANCH: Final = "NoBranch"


def fail(reason: str, code: str = VALUE) -> ExpressionError:
    """An error without a place; the interpreter puts in that of the operator that raised it."""
    return ExpressionError(reason, code)
