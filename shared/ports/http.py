"""Requests to servers outside, one at a time, by any number of callers."""

from dataclasses import dataclass
from typing import Protocol

from tidemark.shared.model.failures import Lasting, Outage


class ServerAway(Outage):
    """No answer within the time, or none at all; waiting may help."""


class ServerDenied(Exception):
    """Server and client do not agree on TLS: a certificate that nobody signs, or of another host, or none at all.

    Waiting does not mend it, but it is tried as often as any failure (C10), for certificates are renewed.
    """


class AnswerTooLong(Exception):
    """The answer has more bytes than the caller takes."""


class ServerRefused(Lasting):
    """The server answers so that asking again does not help, and the document says to fail then."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request, whole."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    connect_s: float = 30
    answer_s: float = 60
    answer_bytes_max: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, whole."""

    status: int
    content_type: str
    """Lower case, without parameters; "" if the server names none."""
    body: bytes


class HttpClient(Protocol):
    """Connections to servers, kept for the next request. Redirects are not followed."""

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer, whatever its status. ServerAway, AnswerTooLong; ValueError for a URL that is none."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
