"""Users of an OpenID provider: a token that it has signed (a JWT) names the user, and rights or groups that stand for rights.

What a token says counts only once its signature holds, by an algorithm of the settings and a key that the issuer itself publishes:
addresses and keys in a token's header (`jku`, `x5u`, `jwk`, `x5c`) are never used. OpenID Connect Core 3.1.3.7, RFC 8725.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import ClaimError, ExpiredTokenError, JoseError, MissingClaimError
from joserfc.jws import JWSRegistry
from joserfc.jwt import JWTClaimsRegistry
from joserfc.util import urlsafe_b64decode
from multidict import CIMultiDict

from tidemark.services.control.issuer import IssuerAway, IssuerKeys
from tidemark.services.control.settings import OidcSettings
from tidemark.shared.ports.clock import Clock
from tidemark.shared.process.users import SIGNED, Grant, User, read_rights
from tidemark.shared.process.web import FORBIDDEN, UNAUTHORIZED, UNAVAILABLE, Problem

_PARTS: Final = 3
"""Of a signed token: header, claims, signature."""
_SHOWN_MAX: Final = 100
"""Characters of a token's text that an answer repeats."""


class _Registry(JWSRegistry):
    """`EdDSA` is Ed25519's older name, which most providers use; beside Ed448 it stands for nothing else, so it is held to Ed25519 here."""

    algorithms = {**JWSRegistry.algorithms, "EdDSA": copy.copy(JWSRegistry.algorithms["Ed25519"])}  # noqa: RUF012 - the library's field


_Registry.algorithms["EdDSA"].name = "EdDSA"


class _Header(msgspec.Struct, frozen=True):
    """The fields of a header that count. `crit` names fields that must be understood: no other than these is."""

    alg: str
    kid: str | None = None
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class TokenRefused(Exception):
    """The token does not count: a sentence that says why, without the token."""


class Untimely(TokenRefused):
    """The token does not count at this time."""


@dataclass(slots=True)
class Vouching:
    """Finds the user of a token that the issuer vouches for."""

    settings: OidcSettings
    keys: IssuerKeys
    clock: Clock
    _registry: JWSRegistry = field(init=False)

    def __post_init__(self) -> None:
        """The settings' algorithms, and no others."""
        self._registry = _Registry(algorithms=self.settings.algorithms, strict_check_header=False)
        self._registry.max_header_length = self._registry.max_payload_length = self.settings.token_bytes_max
        self._registry.max_signature_length = self.settings.token_bytes_max

    async def user_of(self, token: bytes) -> User | None:
        """The user; None for what is no signed token at all.

        Problem: 401 for a token that does not count, 403 for one that gives no right, 503 while the issuer's keys cannot be had.
        """
        if token.count(b".") != _PARTS - 1:
            return None
        try:
            return self.user(await self.claims(token))
        except TokenRefused as error:
            raise self._problem(str(error)) from error
        except IssuerAway as error:
            expectation = f"the issuer {self.settings.issuer} to answer"
            remedy = "try again; a token of the installation's own needs no issuer"
            raise Problem(
                UNAVAILABLE, "header Authorization", expectation, str(error), remedy, headers={"Retry-After": "10"}
            ) from error

    def _problem(self, finding: str) -> Problem:
        text = "".join(c if " " <= c <= "~" and c not in '"\\' else "'" for c in finding)
        bearer = f'Bearer realm="tidemark", error="invalid_token", error_description="{text}"'
        # Two lines: browsers do not find the prompt's scheme behind another in one.
        headers = CIMultiDict([("WWW-Authenticate", 'Basic realm="tidemark"'), ("WWW-Authenticate", bearer)])
        expectation = f"Bearer and the service's token, or one that {self.settings.issuer} has signed"
        return Problem(UNAUTHORIZED, "header Authorization", expectation, finding, headers=headers)

    async def claims(self, token: bytes, *, at_once: bool = False) -> dict[str, Any]:
        """The claims that the issuer has signed. at_once: see `IssuerKeys.find`. TokenRefused, IssuerAway."""
        most, allowed = self.settings.token_bytes_max, self.settings.algorithms
        if len(token) > most:
            raise TokenRefused(f"the token has {len(token)} bytes, and at most {most} are read")
        try:
            header = msgspec.json.decode(urlsafe_b64decode(token.partition(b".")[0]), type=_Header)
        except (ValueError, RecursionError) as error:
            raise TokenRefused("the token's header is no JSON object with alg, in base64url") from error
        if header.alg not in allowed:
            raise TokenRefused(f"the token is signed by {_shown(header.alg)}, and only {', '.join(allowed)} count")
        if header.crit is not msgspec.UNSET:
            raise TokenRefused("the token's header has crit, and nothing that it may name is understood")
        key = await self.keys.find(self._registry, header.alg, header.kid, at_once=at_once)
        if key is None:
            named = (
                f"the id {_shown(header.kid)}"
                if header.kid is not None
                else "no id (kid), and not just one that would do"
            )
            raise TokenRefused(f"the issuer has no key for {header.alg} with {named}")
        try:
            signed = jws.deserialize_compact(token, key, allowed, self._registry)
            claims = msgspec.json.decode(signed.payload or b"", type=dict[str, Any])
        except JoseError as error:
            raise TokenRefused("the signature does not fit the token and the issuer's key") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise TokenRefused("the token's parts are no base64url, or its claims no JSON object") from error
        self._check(claims)
        return claims

    def _check(self, claims: dict[str, Any]) -> None:
        settings, now_s = self.settings, self.clock.now_ms() // 1000
        registry = JWTClaimsRegistry(
            now_s,
            settings.leeway_s,
            iss={"essential": True, "value": settings.issuer},
            aud={"essential": True, "values": settings.audiences},
            exp={"essential": True},
        )
        try:
            registry.validate(claims)
        except ExpiredTokenError as error:
            raise Untimely(f"the token has expired (exp is {claims['exp']}, now is {now_s})") from error
        except MissingClaimError as error:
            raise TokenRefused(f"the token has no {error.claim}") from error
        except ClaimError as error:
            wanted = {"iss": settings.issuer, "aud": " or ".join(settings.audiences)}.get(error.claim)
            expected = f"not {wanted}" if wanted else f"not in order: {error.description}"
            kind = Untimely if error.claim in ("iat", "nbf") else TokenRefused
            raise kind(f"the token's {error.claim} is {expected}") from error

    def user(self, claims: dict[str, Any]) -> User:
        """The user of these claims. TokenRefused; Problem: 403 where they give no right."""
        settings = self.settings
        name = claims.get(settings.user_claim)
        if not isinstance(name, str) or not 0 < len(name) <= settings.name_characters_max or not name.isprintable():
            raise TokenRefused(
                f"the token's {settings.user_claim} is no name of 1 to {settings.name_characters_max} characters"
            )
        user = f"{SIGNED}{settings.issuer}/{name}"
        rights = tuple(dict.fromkeys((*self._told(claims), *self._of_groups(claims))))
        if not rights:
            named = " and ".join(_path(each) for each in (settings.rights_claim, settings.groups_claim) if each)
            raise Problem(
                FORBIDDEN, "header Authorization", f"a token whose {named} gives rights", f"{user}'s, which gives none"
            )
        return User(user, rights, until_ms=1000 * (claims["exp"] + settings.leeway_s))

    def _told(self, claims: dict[str, Any]) -> list[Grant]:
        """Rights as a file of users has them. TokenRefused where one is wrong: the others would give more, or less, than was meant."""
        try:
            return [grant for text in _texts(claims, self.settings.rights_claim) for grant in read_rights(text)]
        except ValueError as error:
            raise TokenRefused(f"the token's {_path(self.settings.rights_claim)} holds no rights: {error}") from error

    def _of_groups(self, claims: dict[str, Any]) -> list[Grant]:
        """Of the groups that the settings name: other groups are for other systems."""
        known = self.settings.groups or {}
        named = [group for group in _texts(claims, self.settings.groups_claim) if group in known]
        return [grant for group in named for grant in read_rights(known[group])]


def _texts(claims: object, path: str | tuple[str, ...]) -> list[str]:
    """The texts of a claim, one or a list of them; none where it is not there."""
    if not path:
        return []
    found = claims
    for name in (path,) if isinstance(path, str) else path:
        found = found.get(name) if isinstance(found, Mapping) else None
    found = [] if found is None else [found] if isinstance(found, str) else found
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise TokenRefused(f"the token's {_path(path)} is neither a text nor a list of texts")
    return found


def _path(path: str | tuple[str, ...]) -> str:
    return path if isinstance(path, str) else ".".join(path)


def _shown(text: str | None) -> str:
    return ascii((text or "")[:_SHOWN_MAX])
