"""Asks a server by HTTP from the command line: its answer with whatever status, or a sentence that says why there is none.

An answer that leads elsewhere is one as others are: the library would follow it, and send the token on to the host that it names.
"""

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Final

_DONE: Final = range(200, 300)
_ELSEWHERE: Final = range(300, 400)
_BEFORE_IT: Final = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)
"""What ends a connection before anything is asked."""
_SHOWN_MAX: Final = 300
"""Characters of a server's text that a sentence repeats."""


class NoAnswer(Exception):
    """Nobody answers, or not by HTTP, or not to the end: a sentence."""


class NotHeard(NoAnswer):
    """Nobody has heard what was asked: no address, nobody who listens, no certificate that counts."""


class NoObject(Exception):
    """The answer is no JSON object: a sentence."""


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a server has answered."""

    status: int
    reason: str
    body: bytes
    leads_to: str
    """Another address; "": none."""

    @property
    def done(self) -> bool:
        """Whether the server did what was asked."""
        return self.status in _DONE

    def said(self) -> str:
        """The status, in words."""
        if self.status in _ELSEWHERE and self.leads_to:
            return f"status {self.status}, which leads to {self.leads_to}: it is not followed"
        return f"status {self.status} {self.reason}".rstrip()

    def found(self) -> dict[str, Any]:
        """The JSON object in the body. NoObject."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise NoObject(f"no JSON ({error})") from error
        if not isinstance(found, dict):
            raise NoObject(f"no JSON object, but {shown(self.body[:_SHOWN_MAX].decode(errors='replace'))}")
        return found


class _Straight(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: object) -> None:
        """Follow no redirect."""


def shown(text: object) -> str:
    """A server's text, bounded, without what moves a terminal's cursor."""
    return "".join(each if each.isprintable() else "?" for each in str(text)[:_SHOWN_MAX])


def asked(request: urllib.request.Request, timeout_s: float, bytes_max: int | None = None) -> ServerAnswer:
    """What a server answers to a request. NoAnswer; NotHeard where the server cannot have done it."""
    opener = urllib.request.build_opener(_Straight)
    try:
        try:
            reply = opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            reply = error
        with reply:
            body = reply.read() if bytes_max is None else reply.read(bytes_max + 1)
            missing = reply.length  # a read of so many bytes gives fewer without a word
            answer = ServerAnswer(reply.status, shown(reply.reason), body, shown(reply.headers.get("Location", "")))
    except http.client.HTTPException as error:
        raise NoAnswer(f"no answer by HTTP: {type(error).__name__}: {shown(error)}") from error
    except (
        OSError,
        ValueError,
    ) as error:  # nobody listens, no certificate that counts, in the middle of it, no address
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise (NotHeard if isinstance(reason, _BEFORE_IT) else NoAnswer)(shown(error)) from error
    if bytes_max is not None and len(body) > bytes_max:
        raise NoAnswer(f"the answer has more than {bytes_max} bytes")
    if missing:
        raise NoAnswer(f"of the answer {missing} bytes are missing")
    return answer
