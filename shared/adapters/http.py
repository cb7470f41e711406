"""`HttpClient` by aiohttp."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import aiohttp

from tidemark.shared.ports.http import AnswerTooLong, HttpAnswer, HttpRequest, ServerAway, ServerDenied

if TYPE_CHECKING:
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

CheckAddress = Callable[[str], None]
"""Raises for an address that may not be reached; no OSError, for that would be a server that is away."""


def anywhere(_address: str) -> None:
    """Every address may be reached."""


class _Refused(OSError):
    """Of one address. Addresses of a name are tried side by side; of what they raise, OSErrors with one text are told as they are."""

    def __init__(self, reason: Exception) -> None:
        super().__init__("an address that may not be reached")
        self.reason = reason


class CheckedConnector(aiohttp.TCPConnector):
    """Connections of any number, each judged by the address that it is made to, whatever name led there.

    One whose addresses are all refused raises what the check raises.
    """

    def __init__(self, check: CheckAddress) -> None:
        super().__init__(limit=0, socket_factory=self._made)
        self._check = check

    def _made(self, found: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        family, kind, protocol, _, address = found
        try:
            self._check(str(address[0]))
        except Exception as reason:
            raise _Refused(reason) from reason
        return socket.socket(family, kind, protocol)

    async def connect(
        self, req: aiohttp.ClientRequest, traces: "list[Trace]", timeout: aiohttp.ClientTimeout
    ) -> "Connection":
        """See `TCPConnector.connect`."""
        try:
            return await super().connect(req, traces, timeout)
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, _Refused):
                raise error.os_error.reason from error
            raise


class AioHttpClient:
    """One pool of connections."""

    def __init__(self, check: CheckAddress = anywhere) -> None:
        self._check = check
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, request: HttpRequest) -> HttpAnswer:
        """See `HttpClient.ask`."""
        if self._session is None:
            # The caller bounds how many requests there are at a time; no cookies: a request depends on nothing before it.
            self._session = aiohttp.ClientSession(
                connector=CheckedConnector(self._check), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
            )
        times = aiohttp.ClientTimeout(total=request.connect_s + request.answer_s, sock_connect=request.connect_s)
        try:
            async with self._session.request(
                request.method,
                request.url,
                headers=list(request.headers),
                data=request.body,
                allow_redirects=False,
                timeout=times,
            ) as answer:
                body = bytearray()
                async for some in answer.content.iter_any():
                    body += some
                    if len(body) > request.answer_bytes_max:
                        raise AnswerTooLong(f"the answer has more than {request.answer_bytes_max} bytes")
                named = "Content-Type" in answer.headers
                return HttpAnswer(answer.status, answer.content_type.lower() if named else "", bytes(body))
        except aiohttp.InvalidURL as error:
            raise ValueError(f"no URL: {error}") from error
        except aiohttp.ClientSSLError as error:
            raise ServerDenied(
                f"{error}; correct the url, or the certificates of the server or of this machine"
            ) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerAway(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Let go of the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None
