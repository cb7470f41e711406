"""Listening: with TLS where a certificate is set, and with a bound on connections, so that idle clients keep nobody out.

The library counts no connections, and waits for a first request for ever: each would hold a file of the process.
"""

import asyncio
import ssl

from aiohttp import web

from tidemark.shared.ports.clock import Clock
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.process.web import Next

_LOOK_MS = 1_000
"""Between two looks for connections whose time is over."""


def tls_of(settings: ProcessSettings) -> ssl.SSLContext | None:
    """How all that this process listens on is encrypted; None: it is not. TLS 1.2 and later. ProcessSettingsError."""
    if not settings.tls_certificate:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key or None, password="")
    except OSError as error:  # ssl.SSLError, too
        files = f"{settings.tls_certificate} with the key in {settings.tls_key or 'the same file'}"
        raise ProcessSettingsError(
            f"TIDEMARK_TLS_CERTIFICATE: expected a certificate and its key, found {files} ({error})"
        ) from error
    return context


def address_of(runner: web.AppRunner, tls: ssl.SSLContext | None) -> str:
    """The URL of the first address that it listens on."""
    host, port = runner.addresses[0][:2]
    return f"{'http' if tls is None else 'https'}://{host}:{port}"


class _Refusing(asyncio.Protocol):
    """Closes at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """One too many."""
        transport.close()


class ServerConnections:
    """Of one server: at most so many, each of which must bring its first request in time. For later ones the library has a time-out."""

    def __init__(self, clock: Clock, connections_max: int, request_wait_ms: int) -> None:
        self._clock = clock
        self._connections_max = connections_max
        self._request_wait_ms = request_wait_ms
        self._silent: dict[web.RequestHandler, int] = {}
        """Those that have brought no request yet, with when they came: each leaves at its first one, or when its time is over."""

        @web.middleware
        async def asked(request: web.Request, handler: Next) -> web.StreamResponse:
            self._silent.pop(request.protocol, None)
            return await handler(request)

        self.asked = asked
        """A middleware of the application."""

    def site(self, runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None) -> web.TCPSite:
        """Where they come in."""
        return _Site(self, runner, host, port, tls)

    def connected(self, server: web.Server) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        if len(server.connections) >= self._connections_max:
            return _Refusing()
        handler = server()
        self._silent[handler] = self._clock.monotonic_ms()
        return handler

    async def watch(self) -> None:
        """Close those whose time is over, for as long as the server stands."""
        while True:
            await self._clock.sleep_ms(min(_LOOK_MS, self._request_wait_ms))
            oldest_ms = self._clock.monotonic_ms() - self._request_wait_ms
            for handler in [h for h, since_ms in self._silent.items() if since_ms <= oldest_ms]:
                del self._silent[handler]
                handler.force_close()


class _Site(web.TCPSite):
    def __init__(
        self, connections: ServerConnections, runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(runner, host, port, ssl_context=tls)
        self._connections = connections

    async def start(self) -> None:
        """Listen. OSError where the address is taken."""
        await web.BaseSite.start(self)
        self._server = await asyncio.get_running_loop().create_server(
            self._connected, self._host, self._port, backlog=self._backlog, ssl=self._ssl_context
        )

    def _connected(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        return _Refusing() if server is None else self._connections.connected(server)
