"""What an expression raises at run time: the document goes to the dead letters, the others go on (D1)."""

from typing import Final


class ExpressionError(Exception):
    """An expression failed on a document. `code` is a stable name; `path` the operator's place in the user's document."""

    def __init__(self, reason: str, code: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason = reason
        self.code = code
        self.path = path


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
