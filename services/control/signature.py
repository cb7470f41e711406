"""The signature of a command that comes by topic. It proves that the writer has the token of control, as REST demands of its callers.

A header holds it, so that any client of Kafka can make it: `tidemark-signature`, the HMAC-SHA256, in hexadecimal, under the token, over the
topic's name, a line feed, and the value. A command gives the time until which it counts, and has an id: within that time a copy is told
by its id.
"""

import hashlib
import hmac
from datetime import datetime
from typing import Final

from tidemark.shared.process.web import Problem

HEADER: Final = "tidemark-signature"
_UNSIGNED: Final = 401


def signature(token: str, topic: str, value: bytes) -> str:
    """The value of the header."""
    return hmac.new(token.encode(), topic.encode() + b"\n" + value, hashlib.sha256).hexdigest()


def check_signature(token: str, topic: str, value: bytes, found: bytes | None) -> None:
    """Problem for a command that was not signed with the token."""
    if found is None or not hmac.compare_digest(found, signature(token, topic, value).encode()):
        expected = f"HMAC-SHA256 under the token of control, in hexadecimal, over {topic!r}, a line feed, and the value"
        raise Problem(_UNSIGNED, f"header {HEADER}", expected, "nothing" if found is None else "another")


def check_expires(expires: str, request: str, now_ms: int, valid_ms_max: int) -> None:
    """Problem for a command without id or end, or whose end has passed or is too far away to recognise copies by its id."""
    if not request:
        raise Problem(_UNSIGNED, "request", "the id of the request, by which a copy of the command is told", "nothing")
    expected = f"a time with a zone, as 2030-01-31T12:00:00Z, within the next {valid_ms_max / 1000:g} s"
    try:
        time = datetime.fromisoformat(expires)
    except ValueError:
        raise Problem(_UNSIGNED, "expires", expected, repr(expires[:100]) if expires else "nothing") from None
    if time.tzinfo is None or not 0 <= time.timestamp() * 1000 - now_ms <= valid_ms_max:
        raise Problem(_UNSIGNED, "expires", expected, repr(expires[:100]))
