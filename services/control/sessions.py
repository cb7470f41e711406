"""Sessions of browsers, in cookies that only the service can read: it keeps nothing, so each replica and a restarted one know them.

A cookie is encrypted (JWE, AES-256-GCM) under a key that is made of the service's own token and is another for each use. A browser
takes some 4,000 bytes a cookie, so a session has several. Cookies know no ports: their names have a mark of the console's address.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
from aiohttp import web
from joserfc import jwe
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

T = TypeVar("T")
_ALGORITHMS: Final = ("dir", "A256GCM")
_PIECE: Final = 3_500
"""Characters of one cookie's value: browsers take 4,096 bytes with name and attributes."""
_PIECES_MAX: Final = 4
"""Cookies of a session: together they stay below the 16 KiB that proxies take of a header."""
_SCRYPT_N: Final = 1 << 14
"""Work to try out one token against a cookie, some 50 ms: a token that people have made up may be guessed."""


class TooLarge(Exception):
    """The session does not fit its cookies: a sentence."""


class Session(msgspec.Struct, frozen=True):
    """Of a user who has logged in."""

    id: str
    subject: str
    """The user's `sub`: a newer token is of the same."""
    id_token: str
    refresh_token: str
    begun_s: int


class PendingLogin(msgspec.Struct, frozen=True):
    """A login that has begun in this browser."""

    state: str
    nonce: str
    verifier: str
    next: str
    begun_s: int


SESSION: Final = web.RequestKey("session", Session)
"""Key of a request's session."""


@dataclass(slots=True)
class Cookie:
    """One to be set; without a value, to be removed."""

    name: str
    value: str
    path: str
    age_s: int | None = None


COOKIES: Final = web.RequestKey("cookies", list[Cookie])
"""Key of the cookies that a request's answer sets, whoever answers."""


@dataclass(slots=True)
class Cookies:
    """Reads and writes the values of one name."""

    url: str
    """The console's, as browsers have it."""
    token: str = field(repr=False)
    use: str
    path: str
    age_s: int | None = None
    _key: OctKey = field(init=False, repr=False)
    _header: str = field(init=False)
    """Of each: what the header of another one says is not tried out, for the library has no list of what may be wrong there."""
    _name: str = field(init=False)

    def __post_init__(self) -> None:
        """The key, and the name."""
        salt = f"tidemark console {self.use} {self.url}".encode()
        self._key = OctKey.import_key(hashlib.scrypt(self.token.encode(), salt=salt, n=_SCRYPT_N, r=8, p=1, dklen=32))
        self._header = self.sealed(None).partition(".")[0]
        safe = "" if not self.secure else "__Host-" if self.path == "/" else "__Secure-"
        self._name = f"{safe}tidemark-{self.use}-{hashlib.sha256(self.url.encode()).hexdigest()[:8]}"

    @property
    def secure(self) -> bool:
        """Whether browsers send them over TLS alone."""
        return self.url.startswith("https:")

    def read(self, request: web.Request, kind: type[T]) -> T | None:
        """What stands there; None for nothing, or nothing of ours."""
        pieces = list(_pieces(self._name, request.cookies))
        return self.unsealed("".join(pieces), kind) if pieces else None

    def unsealed(self, text: str, kind: type[T]) -> T | None:
        """The value of a cookie; None for nothing of ours."""
        if text.partition(".")[0] != self._header:
            return None
        try:
            found = jwe.decrypt_compact(text, self._key, algorithms=_ALGORITHMS)
            return msgspec.json.decode(found.plaintext or b"", type=kind)
        except (JoseError, ValueError):  # of another key, damaged, or of an earlier release
            return None

    def sealed(self, value: object) -> str:
        """The value as a cookie has it."""
        header = {"alg": "dir", "enc": "A256GCM"}
        return jwe.encrypt_compact(header, msgspec.json.encode(value), self._key, algorithms=_ALGORITHMS)

    def write(self, request: web.Request, value: object) -> None:
        """With the answer of this request. TooLarge."""
        text = self.sealed(value)
        if len(text) > _PIECE * _PIECES_MAX:
            raise TooLarge(f"its tokens take {len(text)} bytes, and cookies hold {_PIECE * _PIECES_MAX}")
        pieces = [text[at : at + _PIECE] for at in range(0, len(text), _PIECE)]
        self._set(request, pieces)

    def remove(self, request: web.Request) -> None:
        """With the answer of this request."""
        self._set(request, [])

    def _set(self, request: web.Request, pieces: list[str]) -> None:
        kept = [each for each in request.get(COOKIES, []) if not each.name.startswith(self._name)]
        for number in range(_PIECES_MAX):
            name = f"{self._name}.{number}"
            if number < len(pieces):
                kept.append(Cookie(name, pieces[number], self.path, self.age_s))
            elif name in request.cookies:
                kept.append(Cookie(name, "", self.path, 0))
        request[COOKIES] = kept

    def send(self, request: web.Request, response: web.StreamResponse) -> None:
        """Put the cookies that were set while the request was answered into its answer."""
        made = web.Response()
        for each in request.get(COOKIES, []):
            made.set_cookie(
                each.name,
                each.value,
                path=each.path,
                max_age=each.age_s,
                httponly=True,
                secure=self.secure,
                samesite="Lax",
            )
        # The library has made its headers of its cookies by now.
        for morsel in made.cookies.values():
            response.headers.add("Set-Cookie", morsel.OutputString())


def _pieces(name: str, cookies: Mapping[str, str]) -> Iterator[str]:
    for number in range(_PIECES_MAX):
        piece = cookies.get(f"{name}.{number}")
        if piece is None:
            return
        yield piece
