"""The audit: each request that changes something or tries to, as a line of the log and an event, and the latest by REST.

The log and the topic of events last; REST shows only the requests to this process since its start.
"""

import uuid
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from aiohttp import web

from tidemark.services.control.routes import REQUEST_HEADER
from tidemark.services.control.stats import shown_time
from tidemark.shared.ports.clock import Clock
from tidemark.shared.process.web import BAD_REQUEST, USER, Next, Problem

_log = structlog.get_logger()
DEEDS_MAX = 1_000
"""Deeds that are shown by REST."""
TEXT_MAX = 500
"""Characters of each text of a deed: what was asked for may be as long as a body."""
NAMED: Final = web.RequestKey("named", str)
"""Key of a request's processor, where the body names it."""


def _untold(*_: object, **__: object) -> None:
    """There is no topic."""


@dataclass(slots=True)
class Audit:
    """Keeps the log of one control service."""

    clock: Clock
    tell: Callable[..., None] = _untold
    """`Events.tell`."""
    deeds: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=DEEDS_MAX))

    def note(self, user: str, role: str, what: str, processor: str, **facts: object) -> None:
        """Write down what a user did."""
        user, role, what, processor = map(_text, (user, role, what, processor))
        facts = {key: _text(value) if isinstance(value, str) else value for key, value in facts.items()}
        deed = {
            "time": shown_time(self.clock.now_ms()),
            "user": user,
            "role": role,
            "what": what,
            "processor": processor,
            **facts,
        }
        self.deeds.appendleft(deed)
        _log.info("control.audit", **{name: value for name, value in deed.items() if name != "time"})
        self.tell("audit", uuid.uuid4().hex, processor, user=user, role=role, what=what, **facts)

    def middleware(self, reads: Collection[str] = ()) -> Any:
        """Around the guard, so that rejected requests are noted, too. reads: paths that change nothing, noted only where refused."""

        @web.middleware
        async def noted(request: web.Request, handler: Next) -> web.StreamResponse:
            if request.method in ("GET", "HEAD"):
                return await handler(request)
            status, finding = 500, ""
            try:
                answer = await handler(request)
                status = answer.status
            except Problem as problem:
                status, finding = problem.status, problem.finding
                raise
            except web.HTTPException as error:
                status = error.status
                raise
            finally:
                user = request.get(USER)
                silent = request.path in reads and status < BAD_REQUEST
                name, role = ("", "") if user is None else (user.name, user.role)
                asked = request.get(NAMED) or request.match_info.get("name", "")
                key = request.headers.get(REQUEST_HEADER, "")
                if not silent:
                    self.note(
                        name, role, f"{request.method} {request.path}", asked, status=status,
                        finding=finding, address=request.remote or "", request=key,
                    )  # fmt: skip
            return answer

        return noted


def _text(given: str) -> str:
    """Its beginning; bytes that were no text are shown as such: neither the log's line nor the event could hold them."""
    return given[:TEXT_MAX].encode(errors="backslashreplace").decode()
