"""A small OpenID provider: an HTTP server with a discovery document and a key set, and tokens, good and bad in every way we know of."""

import hmac
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from aiohttp import web
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry
from joserfc.util import urlsafe_b64encode

AUDIENCE: Final = "tidemark"
KINDS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")
_REGISTRY: Final = JWSRegistry(
    algorithms=[*KINDS, "HS256", "HS384", "HS512", "none", "ES256K", "Ed448"], strict_check_header=False
)
_REGISTRY.max_header_length = _REGISTRY.max_payload_length = _REGISTRY.max_signature_length = 1 << 20
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
Key = RSAKey | ECKey | OKPKey


def new_key(alg: str, kid: str, **more: Any) -> Key:
    """A private key for the algorithm."""
    parameters: Any = {"kid": kid, "use": "sig", **more}
    if alg[:2] in ("RS", "PS"):
        return RSAKey.generate_key(2048, parameters)
    if alg.startswith("Ed"):
        return OKPKey.generate_key("Ed25519", parameters)
    return ECKey.generate_key(_CURVES[alg], parameters)


@dataclass
class Issuer:
    """What it publishes, and how often it was asked."""

    url: str = ""
    keys: dict[str, Key] = field(default_factory=dict)
    """By algorithm; published as they are."""
    set_: Any = None
    """The key set, instead of `keys`."""
    about: dict[str, Any] = field(default_factory=dict)
    """Replaces fields of the discovery document."""
    status: int = 200
    asked: int = 0
    """Requests for the key set."""
    discovered: int = 0
    """Requests for the discovery document."""

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Of a token that counts; None takes a claim out."""
        now = int(time.time())
        made = {
            "iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now, "nbf": now, "rights": "operator@a", **changed,
        }  # fmt: skip
        return {name: value for name, value in made.items() if value is not None}

    def token(self, alg: str = "RS256", key: Any = None, header: dict[str, Any] | None = None, **changed: Any) -> bytes:
        """Signed by the issuer's key, unless another is given."""
        key = self.keys[alg] if key is None else key
        return sign(
            alg, key, {"kid": getattr(key, "kid", None), **(header or {})}, json.dumps(self.claims(**changed)).encode()
        )

    async def discovery(self, _request: web.Request) -> web.Response:
        """The document that says where the keys are."""
        self.discovered += 1
        return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **self.about}, status=self.status)

    async def key_set(self, _request: web.Request) -> web.Response:
        """The public keys."""
        self.asked += 1
        found = {"keys": [key.as_dict(private=False) for key in self.keys.values()]} if self.set_ is None else self.set_
        return web.json_response(found, status=self.status)


@asynccontextmanager
async def issuer_of(*algorithms: str) -> AsyncIterator[Issuer]:
    """An issuer that listens, with a key for each algorithm."""
    issuer = Issuer(keys={alg: new_key(alg, f"key-of-{alg}") for alg in algorithms})
    async with listening(issuer, web.Application()):
        yield issuer


@asynccontextmanager
async def listening(issuer: Issuer, app: web.Application) -> AsyncIterator[None]:
    """Serves what an issuer publishes, beside the routes of `app`."""
    app.router.add_get("/.well-known/openid-configuration", issuer.discovery)
    app.router.add_get("/keys", issuer.key_set)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    issuer.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()


def sign(alg: Any, key: Any, header: dict[str, Any], payload: bytes) -> bytes:
    """A compact token. The header may say another algorithm than the one that signs."""
    said = {"alg": alg, "typ": "JWT", **{name: value for name, value in header.items() if value is not None}}
    body = urlsafe_b64encode(json.dumps(said).encode()) + b"." + urlsafe_b64encode(payload)
    found = JWSRegistry.algorithms[alg]
    return body + b"." + urlsafe_b64encode(b"" if alg == "none" else found.sign(body, key))


def by_secret(alg: str, secret: bytes, header: dict[str, Any], payload: bytes) -> bytes:
    """A token under a shared secret: the library itself would not take a public key for one."""
    body = urlsafe_b64encode(json.dumps({"alg": alg, **header}).encode()) + b"." + urlsafe_b64encode(payload)
    return body + b"." + urlsafe_b64encode(hmac.new(secret, body, f"sha{alg[2:]}").digest())


def bad_tokens(issuer: Issuer) -> Iterator[tuple[str, bytes]]:
    """Tokens of an issuer with a key of RS256 and one of ES256, none of which counts: each differs in one way from one that does."""
    yield from _wrong_claims(issuer)
    yield from _wrong_signatures(issuer)
    yield from _wrong_forms(issuer)


def _wrong_claims(issuer: Issuer) -> Iterator[tuple[str, bytes]]:
    now = int(time.time())
    wrong: dict[str, list[Any]] = {
        "iss": [None, "", issuer.url + "/", issuer.url.upper(), "http://127.0.0.1", [issuer.url], {"iss": issuer.url}, 7, True],
        "aud": [
            None, "", "other", "tidemar", "Tidemark", ["other"], [], [["tidemark"]], {"tidemark": 1}, 7, "tidemark other", [7, "tidemark"],
        ],
        "exp": [None, now - 3600, now - 61, 0, -1, "9999999999", str(now + 600), True, [now + 600], {}, f"{now + 600}.0", ""],
        "nbf": [now + 3600, now + 90, "0", True, [0], {}, 1e18],
        "iat": [now + 3600, now + 90, "0", True, [0], {}, 1e18],
        "sub": [None, "", 7, ["ada"], {"name": "ada"}, "a" * 257, "ada\nroot", "ada\x00", "ada\u202eroot", True],
        "rights": [
            7, {"a": "admin"}, ["admin", 7], [["admin"]], "root", "admin@", "admin@*", "admin@a.b", "admin ", "", ["viewer", "root"], True,
        ],
    }  # fmt: skip
    for claim, values in wrong.items():
        for value in values:
            yield f"{claim} is {str(value)[:40]!r}", issuer.token(**{claim: value})
    rs = issuer.keys["RS256"]
    for payload in (
        b"",
        b"[]",
        b"null",
        b'"admin"',
        b"{",
        b"\xff\xfe",
        b"[" * 5_000,
        b'{"exp": 1e999}',
        b'{"exp": NaN}',
        b"7",
    ):
        yield f"claims are {payload[:20]!r}", sign("RS256", rs, {"kid": rs.kid}, payload)
    for exp in ("1e999", "NaN", "-Infinity", "Infinity", "0x7fffffff", "1_000_000_000_000"):
        text = json.dumps(issuer.claims(exp=0)).replace('"exp": 0', f'"exp": {exp}').encode()
        yield f"exp is {exp}", sign("RS256", rs, {"kid": rs.kid}, text)


def _wrong_signatures(issuer: Issuer) -> Iterator[tuple[str, bytes]]:
    rs, es = issuer.keys["RS256"], issuer.keys["ES256"]
    good, claims = issuer.token(), json.dumps(issuer.claims()).encode()
    kid, head, body = {"kid": rs.kid}, good.split(b".")[0], good.split(b".")[1]
    yield "alg none", sign("none", None, kid, claims)
    for none in (
        "None",
        "NONE",
        "nOnE",
        "",
        "RS256 ",
        "rs256",
        "HS256",
        "RS1",
        "dir",
        "ES256K",
        "RSA-OAEP",
        7,
        None,
        ["RS256"],
    ):
        header = urlsafe_b64encode(json.dumps({"alg": none, **kid}).encode())
        yield f"alg {none!r} with nothing", header + b"." + body + b"."
        yield f"alg {none!r} with the signature", header + b"." + body + b"." + good.split(b".")[2]
    for name, secret in {
        "PEM": rs.as_pem(private=False), "PEM without its end": rs.as_pem(private=False).rstrip(), "DER": rs.as_der(private=False),
        "JWK": json.dumps(rs.as_dict(private=False)).encode(), "modulus": str(rs.as_dict(private=False)["n"]).encode(),
        "EC PEM": es.as_pem(private=False), "nothing": b"\0", "the id": str(rs.kid).encode(),
    }.items():  # fmt: skip
        for alg in ("HS256", "HS384", "HS512"):
            yield f"{alg} by the public key as {name}", by_secret(alg, secret, kid, claims)
    for alg in ("RS384", "RS512", "PS256", "PS512"):
        yield f"{alg}, which is not allowed, by the right key", sign(alg, rs, kid, claims)
    for alg, key in (("RS256", new_key("RS256", str(rs.kid))), ("ES256", new_key("ES256", str(es.kid)))):
        yield f"another's key of {alg} with the issuer's id", sign(alg, key, {"kid": key.kid}, claims)
        for name in ("jwk", "jku", "x5u", "x5c"):
            value: Any = {"jwk": key.as_dict(private=False), "x5c": [key.as_pem(private=False).decode()]}.get(
                name, f"{issuer.url}/mine"
            )
            for named in ({"kid": key.kid}, {"kid": None}, {"kid": "mine"}):
                yield (
                    f"{name} in the header, signed by its key of {alg}, {named}",
                    sign(alg, key, {name: value, **named}, claims),
                )
    longer = json.dumps(issuer.claims(rights="admin")).encode()
    yield "claims of another token", head + b"." + urlsafe_b64encode(longer) + b"." + good.split(b".")[2]
    yield from _wrong_headers(issuer, claims)


def _wrong_headers(issuer: Issuer, claims: bytes) -> Iterator[tuple[str, bytes]]:
    rs, es = issuer.keys["RS256"], issuer.keys["ES256"]
    kid = {"kid": rs.kid}
    yield "ES256 with the id of the RSA key", sign("ES256", es, kid, claims)
    yield "RS256 with the id of the EC key", sign("RS256", rs, {"kid": es.kid}, claims)
    for odd in (
        "",
        "../key",
        "key-of-RS256\0",
        "key-of-RS256' OR '1'='1",
        "/dev/null",
        "key-of-rs256",
        "x" * 5_000,
        f"{issuer.url}/keys",
    ):
        yield f"kid {odd[:40]!r}", sign("RS256", rs, {"kid": odd}, claims)
    for odd_kid in (7, ["key-of-RS256"], {"kid": "key-of-RS256"}, True):
        yield f"kid {odd_kid!r}", sign("RS256", rs, {"kid": odd_kid}, claims)
    for crit in (["exp"], ["b64"], ["b64", "exp"], [], "b64", 7, {"b64": 1}, None):
        yield f"crit {crit!r}", sign_raw(rs, {"alg": "RS256", **kid, "crit": crit, "b64": False}, claims)
    yield (
        "ES256 as DER",
        b".".join((*sign("ES256", es, {"kid": es.kid}, claims).split(b".")[:2], urlsafe_b64encode(b"0" + bytes(70)))),
    )
    yield (
        "ES256 of zeros",
        b".".join((*sign("ES256", es, {"kid": es.kid}, claims).split(b".")[:2], urlsafe_b64encode(bytes(64)))),
    )


def sign_raw(key: Key, header: dict[str, Any], payload: bytes) -> bytes:
    """A header as it is given, signed by RS256."""
    body = urlsafe_b64encode(json.dumps(header).encode()) + b"." + urlsafe_b64encode(payload)
    return body + b"." + urlsafe_b64encode(JWSRegistry.algorithms["RS256"].sign(body, key))


def _wrong_forms(issuer: Issuer) -> Iterator[tuple[str, bytes]]:
    good = issuer.token()
    head, body, signature = good.split(b".")
    for name, parts in {
        "no signature": (head, body, b""), "no claims": (head, b"", signature), "no header": (b"", body, signature),
        "nothing": (b"", b"", b""),
        "parts in another order": (body, head, signature), "standard base64": (head, body, signature + b"=="),
        "another alphabet": (head, body, b"+/+/" + signature[4:]), "a header twice": (head + head, body, signature),
        "a header of brackets": (urlsafe_b64encode(b"[" * 5_000), body, signature),
        "a header that is a list": (urlsafe_b64encode(b'["alg"]'), body, signature),
        "a header that is null": (urlsafe_b64encode(b"null"), body, signature),
        "a header of no text": (urlsafe_b64encode(b"\xff\xfe"), body, signature),
        "a header of 10,000 fields": (urlsafe_b64encode(json.dumps({f"f{i}": i for i in range(1_000)}).encode()), body, signature),
    }.items():  # fmt: skip
        yield name, b".".join(parts)
    for at in range(1, len(good), 37):
        yield f"cut after {at} bytes", good[:at]
    yield "a part too many", good + b".x"
    yield "five parts, as encrypted ones have", b".".join((head, body, signature, body, head))
    yield "huge claims", issuer.token(more="x" * 12_400)
    yield (
        "huge header",
        sign_raw(issuer.keys["RS256"], {"alg": "RS256", "kid": "key-of-RS256", "x": "x" * 13_000}, b"{}"),
    )
    yield "huge signature", head + b"." + body + b"." + b"A" * 15_000


def damaged(token: bytes, random: Random) -> bytes:
    """The token with some bytes changed, taken out, put in, or its parts mixed up; never the token itself."""
    letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ ~"
    found = token
    while found == token:
        made = bytearray(found)
        for _ in range(random.randint(1, 3)):
            at = random.randrange(len(made))
            match random.randrange(5):
                case 0:
                    made[at] = random.choice(letters)
                case 1:
                    del made[at : at + random.randint(1, 20)]
                case 2:
                    made[at:at] = bytes(random.choices(letters, k=random.randint(1, 20)))
                case 3:
                    made[at:at] = made[at : at + random.randint(1, 50)]
                case _:
                    parts = made.split(b".")
                    made = bytearray(b".".join(random.sample(parts, len(parts))))
        found = bytes(made) or token
    return found
