"""A bound on documents: values may share parts, so a small expression can stand for an enormous document."""

from typing import Any, Final

from shared.language.expressions.errors import SIZE, ExpressionError
from shared.model.values import Document

DOCUMENT_UNITS_MAX: Final = 16 * 1024 * 1024
"""How many characters, items and fields a document may have, parts counted as often as they stand in it."""
DEPTH_MAX: Final = 200
"""How deep a document may nest."""


def check_size(document: Document) -> Document:
    """The document, if it is within the bounds; else ExpressionError."""
    left = DOCUMENT_UNITS_MAX
    stack: list[tuple[Any, int]] = [(document, 1)]
    while stack:
        value, depth = stack.pop()
        left -= len(value)
        if left < 0 or depth > DEPTH_MAX:
            raise ExpressionError(
                f"the document has more than {DOCUMENT_UNITS_MAX} characters and items, or {DEPTH_MAX} levels", SIZE
            )
        for item in value.values() if type(value) is dict else value:
            kind = type(item)
            if kind is dict or kind is list:
                stack.append((item, depth + 1))
            elif kind is str:
                left -= len(item)
    return document
