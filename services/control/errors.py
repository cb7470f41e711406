"""What goes wrong with a request, as its answer: place, expectation, finding, and what to do, in JSON."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from shared.language.documents import InvalidDocument

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 400, 401, 403, 404, 409
TOO_LARGE, UNPROCESSABLE, TOO_MANY, INTERNAL, UNAVAILABLE, NO_ANSWER = 413, 422, 429, 500, 503, 504


@dataclass(slots=True)
class Problem(Exception):
    """An answer that is an error."""

    status: int
    place: str
    expectation: str
    finding: str
    remedy: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def answer(self) -> web.Response:
        """As JSON."""
        body: dict[str, Any] = {"place": self.place, "expectation": self.expectation, "finding": self.finding}
        if self.remedy:
            body["remedy"] = self.remedy
        if self.errors:
            body["errors"] = self.errors
        return web.Response(
            status=self.status,
            body=msgspec.json.encode({"error": body}),
            content_type="application/json",
            headers=self.headers,
        )


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


def broker_away(reason: str) -> Problem:
    """What needs Kafka cannot be done now."""
    return Problem(
        UNAVAILABLE,
        "Kafka",
        "the brokers to answer",
        reason,
        "try again; the service's log and /readyz say when they are back",
        headers={"Retry-After": "2"},
    )
