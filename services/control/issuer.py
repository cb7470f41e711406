"""The keys of an OpenID provider, as its discovery document and key set (JWKS) tell them.

They are fetched at the start and every few minutes, beside the requests: a provider that is away holds up nothing, and its last
keys count for a day more. A token whose key is not known fetches them at once, but not more often than `fetch_ms_min`: such tokens
cost nothing to make.
"""

import asyncio
import warnings
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import structlog
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import ECKey, JWKRegistry, OctKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from tidemark.services.control.settings import OidcSettings, safe_address
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.http import AnswerTooLong, HttpClient, HttpRequest, ServerAway, ServerDenied

_log = structlog.get_logger()
_FOUND: Final = 200
"""The status of an answer that counts."""
PublicKey = RSAKey | ECKey | OKPKey


class IssuerAway(Exception):
    """The issuer gives no keys: a sentence that says why."""


class Discovery(msgspec.Struct, frozen=True):
    """What the provider says about itself. Only keys are needed of each; the others are for logins."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    revocation_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None

    def endpoint(self, name: str) -> str:
        """The address of one. IssuerAway: it has none, or none that is safe."""
        found = getattr(self, name)
        if not isinstance(found, str) or not safe_address(found, as_safe_as=self.issuer):
            raise IssuerAway(f"its discovery document has as {name} no address with https: {str(found)[:200]!r}")
        return found


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


@dataclass(slots=True)
class IssuerKeys:
    """The keys of one issuer."""

    settings: OidcSettings
    http: HttpClient
    clock: Clock
    _keys: tuple[PublicKey, ...] = ()
    _fetched_ms: int | None = None
    """Of the last fetch that brought keys; monotonic, as the next."""
    _tried_ms: int | None = None
    """When the last fetch was over."""
    _about: Discovery | None = None
    """What the provider said of itself when the last keys came."""
    _why: str = "they were not asked for yet"
    """Why the last fetch brought none; "" if it did."""
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Keep the keys fresh, until cancelled."""
        while True:
            async with self._fetching:
                await self._fetch()
            await self.clock.sleep_ms(self.settings.retry_ms if self._why else self.settings.refresh_ms)

    async def find(
        self, registry: JWSRegistry, alg: str, kid: str | None, *, at_once: bool = False
    ) -> PublicKey | None:
        """The one key that may have signed by this algorithm, with this id if the token names one; None: none, or several. IssuerAway.

        at_once: the issuer has just given the token itself, so there is a key, however short ago keys were fetched.
        """
        found = self._find(registry, alg, kid)
        if found is None or not self._fresh():
            least_ms = 0 if at_once else self.settings.fetch_ms_min
            await self._fetch_after(self._tried_ms, least_ms)
            found = self._find(registry, alg, kid)
        if not self._fresh():
            raise IssuerAway(f"its keys cannot be had: {self._why}")
        return found

    async def about(self) -> Discovery:
        """Its discovery document. IssuerAway."""
        if self._about is None:
            await self._fetch_after(self._tried_ms, 0)
        if self._about is None:
            raise IssuerAway(self._why)
        return self._about

    async def _fetch_after(self, tried_ms: int | None, least_ms: int) -> None:
        """Fetch, unless somebody has since then, or so short ago: who waited meets what that one found."""
        async with self._fetching:
            if self._tried_ms is None or (
                self._tried_ms == tried_ms and self.clock.monotonic_ms() - self._tried_ms >= least_ms
            ):
                await self._fetch()

    def state(self) -> str:
        """For readiness: `answers`, or why it does not."""
        return self._why or "answers"

    def _fresh(self) -> bool:
        return self._fetched_ms is not None and self.clock.monotonic_ms() - self._fetched_ms < self.settings.kept_ms

    def _find(self, registry: JWSRegistry, alg: str, kid: str | None) -> PublicKey | None:
        found = [key for key in self._keys if (kid is None or key.kid == kid) and _fits(registry, alg, key)]
        return found[0] if len(found) == 1 else None

    async def _fetch(self) -> None:
        settings, before = self.settings, self._why
        try:
            url = f"{settings.issuer.rstrip('/')}/.well-known/openid-configuration"
            about = await self._ask(url, Discovery)
            if about.issuer != settings.issuer:
                raise IssuerAway(f"{url} is of the issuer {about.issuer[:200]!r}, not of {settings.issuer!r}")
            if not safe_address(about.jwks_uri, as_safe_as=settings.issuer):
                raise IssuerAway(f"{url}: expected as jwks_uri an address with https, found {about.jwks_uri[:200]!r}")
            keys = _usable((await self._ask(about.jwks_uri, _KeySet)).keys[: settings.keys_max])
            if not keys:
                raise IssuerAway(f"{about.jwks_uri} has no public key that signs (RSA of 2048 bits and more, EC, OKP)")
        except IssuerAway as error:
            self._why = str(error)
            if self._why != before:
                _log.warning("oidc.away", issuer=settings.issuer, reason=self._why)
            return
        finally:
            self._tried_ms = self.clock.monotonic_ms()
        if before or [key.kid for key in keys] != [key.kid for key in self._keys]:
            _log.info("oidc.keys", issuer=settings.issuer, kids=[key.kid for key in keys])
        self._about, self._keys, self._why, self._fetched_ms = about, keys, "", self.clock.monotonic_ms()

    async def _ask(self, url: str, kind: type[Any]) -> Any:
        wait_s, bytes_max = self.settings.answer_timeout_ms / 1000, self.settings.answer_bytes_max
        request = HttpRequest("GET", url, (("Accept", "application/json"),), None, wait_s, 0, bytes_max)
        try:
            answer = await self.http.ask(request)
            if answer.status != _FOUND:
                raise IssuerAway(f"{url} answered with status {answer.status}")
            return msgspec.json.decode(answer.body, type=kind)
        except (ServerAway, ServerDenied, AnswerTooLong) as error:
            raise IssuerAway(f"{url}: {error}") from error
        except (ValueError, RecursionError) as error:  # broken JSON, or no address
            raise IssuerAway(f"{url}: {error}") from error


def _usable(found: list[dict[str, Any]]) -> tuple[PublicKey, ...]:
    """Those that may check signatures: the others are of kinds that we do not know, secret, weak or broken, and no reason to take none."""
    keys = []
    for each in found:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", SecurityWarning)
                key = JWKRegistry.import_key(each)
        except Exception as error:  # noqa: BLE001 - the bytes are the provider's, and the libraries promise no list of errors
            _log.warning("oidc.key_not_taken", kid=str(each.get("kid"))[:100], reason=type(error).__name__)
            continue
        if not isinstance(key, OctKey):
            keys.append(key)
    return tuple(keys)


def _fits(registry: JWSRegistry, alg: str, key: PublicKey) -> bool:
    try:
        key.check_use("sig")
        key.check_alg(alg)
        key.check_key_op("verify")
        registry.get_alg(alg).check_key(key)
    except JoseError:
        return False
    return True
