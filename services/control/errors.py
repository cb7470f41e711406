"""Errors of documents as answers."""

from tidemark.shared.language.documents import InvalidDocument
from tidemark.shared.process.web import UNPROCESSABLE, Problem


def invalid_document(error: InvalidDocument) -> Problem:
    """Every error of a document, with its place."""
    errors = [
        {
            "place": e.path,
            "line": e.line,
            "message": e.message,
            "accepted": list(e.accepted),
            "nearest": e.nearest,
        }
        for e in error.errors
    ]
    count = len(errors)
    finding = f"{count} error{'s' if count > 1 else ''}; the first: {error.errors[0]}"
    return Problem(UNPROCESSABLE, "document", "a processor's document without errors", finding, errors=errors)
