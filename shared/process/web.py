"""Shared by services with an HTTP server: authorisation, and errors as answers with place, expectation and finding."""

import base64
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import structlog
from aiohttp import HttpVersion11, web

from tidemark.shared.model.ids import namespace_of
from tidemark.shared.ports.clock import Clock, Executor
from tidemark.shared.process.users import Role, User, Users

_log = structlog.get_logger()
Next = Callable[[web.Request], Awaitable[web.StreamResponse]]

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, UNSUPPORTED = 400, 401, 403, 404, 409, 415
TOO_SLOW, TOO_LARGE, UNEXPECTED, UNPROCESSABLE, TOO_MANY, INTERNAL, UNAVAILABLE, NO_ANSWER = (
    408,
    413,
    417,
    422,
    429,
    500,
    503,
    504,
)
USER: Final = web.RequestKey("user", User)
"""Key of a request's user."""
STANDS: Final = web.RequestKey[Callable[[], bool]]("stands")
"""Key of whether the token or session counts still, for an answer that goes on."""


@dataclass(slots=True)
class Problem(Exception):
    """An answer that is an error."""

    status: int
    place: str
    expectation: str
    finding: str
    remedy: str = ""
    errors: list[dict[str, Any]] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)

    def answer(self) -> web.Response:
        """The response, as JSON."""
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


def broker_away(reason: str) -> Problem:
    """A request that needs Kafka cannot be answered now."""
    return Problem(
        UNAVAILABLE,
        "Kafka",
        "the brokers to answer",
        reason,
        "try again; the service's log and /readyz say when they are back",
        headers={"Retry-After": "2"},
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """The right that a request takes: a role, for the object that it is about."""

    least: Role = "viewer"
    processor: str | None = None
    """Its name; None: it is about no processor, or about all that the user sees."""
    connection: str | None = None
    """The connection's name, in the same way."""


def allow(user: User, rule: Rule) -> None:
    """Problem for a user who may not: 404 where nothing is there for them, 403 where the role is too low."""
    name, sees = rule.processor, user.sees
    kind = "processor"
    if name is None:
        name, sees, kind = rule.connection, user.sees_connection, "connection"
    if name is not None and not sees(name):
        raise Problem(NOT_FOUND, "name", f"a {kind} that exists", f"there is no {kind} named {name}")
    # Connections without a namespace may be read, and asked for a sign of life, by all users of the role.
    shared = kind == "connection" and rule.least != "admin" and name is not None and not namespace_of(name)
    if not user.may(rule.least, None if shared else name):
        finding = f"{user.name}'s, who is {user.role}"
        raise Problem(FORBIDDEN, "header Authorization", f"the token of {rule.least}s", finding)


def guard(
    users: Users,
    open_paths: Collection[str],
    rule: Callable[[web.Request], Rule] = lambda _: Rule(),
    page_header: str = "",
    vouched: Callable[[bytes], Awaitable[User | None]] | None = None,
    session: Callable[[web.Request], Awaitable[User | None]] | None = None,
) -> Any:
    """Bearer token for everything; for reading also as the password of a browser's prompt, which other sites cannot use to change.

    rule: what a request takes; what a user does not see is not there. page_header: a request that has it may change things by that
    password, too: browsers send no header of its own for another site, unless this service said that it may. vouched: the user of a
    token that is none of `users`', None, or Problem. session: the user of a request without a token, by its cookie; it is bound as
    one with a page's password; None, or an exception that says where to log in. A handler finds the user under USER.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Next) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        from_page = bool(page_header) and page_header in request.headers
        by_page = scheme.lower() == "basic"
        secret = _password(given) if by_page else given.strip().encode(errors="surrogateescape")
        user = None
        if by_page or scheme.lower() == "bearer":
            user = known = users.of(secret)
            request[STANDS] = lambda: users.of(secret) == known
            if user is None and vouched is not None:
                try:
                    user = await vouched(secret)
                except Problem as refused:
                    if from_page and refused.status == UNAUTHORIZED:
                        raise _unprompted(refused) from refused
                    raise
        elif not scheme and session is not None:
            by_page, user = True, await session(request)
        if user is None:
            found, prompt = "none" if not scheme else "another", {"WWW-Authenticate": 'Basic realm="tidemark"'}
            problem = Problem(
                UNAUTHORIZED, "header Authorization", "Bearer and the service's token", found, headers=prompt
            )
            raise _unprompted(problem) if from_page else problem
        request[USER] = user
        if by_page and request.method not in ("GET", "HEAD") and not from_page:
            finding = "Basic" if scheme else "a session's cookie alone"
            raise Problem(FORBIDDEN, "header Authorization", "Bearer, where something is changed", finding)
        allow(user, rule(request))
        return await handler(request)

    return guarded


def _unprompted(problem: Problem) -> Problem:
    """For a page's script: at an answer with Basic the browser would ask for a token, each time that the page asks for its figures."""
    return replace(problem, headers={"WWW-Authenticate": 'Bearer realm="tidemark"'})


def _password(encoded: str) -> bytes:
    try:
        return base64.b64decode(encoded, validate=True).partition(b":")[2]
    except ValueError:  # binascii.Error, or letters beyond ASCII
        return b""


def crowded(requests_max: int, open_paths: Collection[str], user_max: int | None = None) -> Any:
    """At most so many requests are being answered; more are told to come again: each holds its body in memory.

    user_max: so many of one user, so that live events and slow bodies of one leave room for others; None: as many as of all.

    `open_paths`: those that are always answered, such as liveness: a busy service is alive.
    """
    under_way = 0
    by_user: Counter[User | None] = Counter()

    @web.middleware
    async def counted(request: web.Request, handler: Next) -> web.StreamResponse:
        nonlocal under_way
        if request.path in open_paths:
            return await handler(request)
        if under_way >= requests_max:
            finding = f"{under_way} are being answered"
            raise Problem(TOO_MANY, "requests", "fewer at a time", finding, headers={"Retry-After": "1"})
        user = request.get(USER)
        if user_max is not None and by_user[user] >= user_max:
            finding = f"{by_user[user]} of this user's are being answered"
            raise Problem(TOO_MANY, "requests", "fewer at a time", finding, headers={"Retry-After": "1"})
        under_way += 1
        by_user[user] += 1
        try:
            return await handler(request)
        finally:
            under_way -= 1
            by_user[user] -= 1
            if not by_user[user]:
                del by_user[user]

    return counted


async def expected(request: web.Request) -> web.StreamResponse | None:
    """Handler of the header Expect for each route: the library calls it before any middleware, and its own fails beyond ASCII."""
    found = request.headers.get("Expect", "")
    if found.lower() != "100-continue":
        return Problem(UNEXPECTED, "header Expect", "100-continue, or none", ascii(found)).answer()
    if request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    return None


UNPACKS: Final = False
"""`auto_decompress` of a `web.AppRunner` whose bodies `read_body` reads: the library would unpack before room is reserved."""
_ENCODINGS: Final = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


async def read_body(
    request: web.Request, wait_ms: int, clock: Clock, executor: Executor, on_error: Callable[[BaseException], None]
) -> bytes:
    """The whole body, unpacked, if it comes in time, so that a silent client gives up its room. Problem; web.HTTPRequestEntityTooLarge.

    The application's `client_max_size` bounds it packed and unpacked.
    """
    packed = await _packed_body(request, wait_ms, clock, executor, on_error)
    encoding = request.headers.get("Content-Encoding", "identity").lower()
    if encoding == "identity":
        return packed
    if encoding not in _ENCODINGS:
        raise Problem(UNSUPPORTED, "header Content-Encoding", f"{', '.join(_ENCODINGS)} or none", repr(encoding))
    most = request.client_max_size
    data = unpacked(packed, _ENCODINGS[encoding], most)
    if len(data) > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=len(data))
    return data


def unpacked(packed: bytes, wbits: int, most: int) -> bytes:
    """The bytes, or so many of them that they are more than `most`. Problem if it is no such stream, or is cut."""
    data = b""
    while packed:
        stream = zlib.decompressobj(wbits)
        try:
            data += stream.decompress(packed, most + 1 - len(data))
        except zlib.error as error:
            raise Problem(BAD_REQUEST, "body", "what header Content-Encoding says", str(error)) from error
        if len(data) > most:
            return data
        if not stream.eof:
            raise Problem(BAD_REQUEST, "body", "what header Content-Encoding says, whole", "a part of it")
        packed = stream.unused_data
    return data


async def _packed_body(
    request: web.Request, wait_ms: int, clock: Clock, executor: Executor, on_error: Callable[[BaseException], None]
) -> bytes:

    async def hurry() -> None:
        await clock.sleep_ms(wait_ms)
        request.content.set_exception(TimeoutError())

    watch = executor.spawn(hurry(), "wait for a body", on_error)
    try:
        return await request.read()
    except TimeoutError as error:
        expected = f"the whole body within {wait_ms} ms"
        raise Problem(TOO_SLOW, "body", expected, "a part of it", "send it again") from error
    except ConnectionError as error:
        # Nobody reads this answer.
        raise Problem(BAD_REQUEST, "body", "the whole body", "the client left") from error
    finally:
        watch.cancel()
        await watch.join()


@web.middleware
async def answering(request: web.Request, handler: Next) -> web.StreamResponse:
    """Every error becomes an answer in JSON, with place, expectation and finding."""
    try:
        return await handler(request)
    except Exception as error:  # noqa: BLE001 - `problem_of` knows each, and logs what is a fault
        return problem_of(request, error).answer()


def problem_of(request: web.Request, error: Exception) -> Problem:
    """What a handler's error is for who asked; redirects are raised again."""
    match error:
        case Problem():
            return error
        case web.HTTPRequestEntityTooLarge():
            expectation = "at most what a message may have (`message_bytes_max`)"
            return Problem(TOO_LARGE, "body", expectation, error.text or "more")
        case web.RequestPayloadError():
            return Problem(BAD_REQUEST, "body", "what its headers say", str(error))
        case web.HTTPException():
            if error.status < BAD_REQUEST:
                raise error
            finding = f"{request.method}: {error.reason}"
            return Problem(error.status, request.path, "a route of /openapi.json", finding)
        case _:
            # The server stays up.
            _log.exception("http.failed", path=request.path, error=repr(error), exc_info=error)
            return Problem(INTERNAL, request.path, "an answer", "a fault of the service; its log has more")
