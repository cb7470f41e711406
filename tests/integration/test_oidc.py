"""Users of an OpenID provider: a real issuer over HTTP, tokens signed by it, by others, and damaged, and the control service's REST."""

import json
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from aiohttp import ClientSession, encode_basic_auth
from structlog.testing import CapturingLogger

from tests.harness.installation import installed
from tests.harness.issuer import AUDIENCE, KINDS, Issuer, bad_tokens, damaged, issuer_of, new_key
from tests.harness.sealing import sealed
from tests.harness.source_stand import HandClock
from tidemark.services.cli.process import quiet
from tidemark.services.cli.remote import Remote, RemoteFailed
from tidemark.services.control.issuer import IssuerAway, IssuerKeys
from tidemark.services.control.oidc import Vouching
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import SIGNATURES, ControlSettings, OidcSettings, safe_address
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.http import AioHttpClient
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.process.settings import ProcessSettingsError, settings_of
from tidemark.shared.process.web import Problem

TOKEN: Final = "a-token-of-the-installation"


def settings_for(issuer: Issuer, **more: Any) -> OidcSettings:
    """Of tests: rights in the claim `rights`."""
    return OidcSettings(**{"issuer": issuer.url, "audience": AUDIENCE, "rights_claim": "rights", **more})


@asynccontextmanager
async def vouching(settings: OidcSettings, clock: SystemClock | None = None) -> AsyncIterator[Vouching]:
    """What reads tokens, without the service."""
    http = AioHttpClient()
    clock = SystemClock() if clock is None else clock
    try:
        yield Vouching(settings, IssuerKeys(settings, http, clock), clock)
    finally:
        await http.close()


@dataclass
class Control:
    """A control service with users of an issuer, and one static user."""

    url: str
    session: ClientSession

    async def ask(
        self, token: bytes | str, method: str = "GET", path: str = "/v1/processors", body: Any = None
    ) -> tuple[int, str, str]:
        """Status, text, challenges."""
        token = token.decode() if isinstance(token, bytes) else token
        given = {"json": body} if method != "GET" else {}
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.request(method, self.url + path, headers=headers, **given) as answer:
            return answer.status, await answer.text(), "\n".join(answer.headers.getall("WWW-Authenticate", []))


@asynccontextmanager
async def control_of(oidc: OidcSettings, folder: Path, port: int = 0, **more: Any) -> AsyncIterator[Control]:
    """The service, when it has read all there is."""
    quiet(logging.CRITICAL)
    (folder / "users").write_text(f"static viewer {sha256(b'static').hexdigest()}\n")
    clock, executor = SystemClock(), AsyncExecutor()

    def broken(error: BaseException) -> None:
        raise error

    async with installed(clock, executor) as there:
        settings = ControlSettings(
            port=port, engine="local", agents=False, users_file=str(folder / "users"), oidc=oidc, **more
        )
        service = ControlService(
            sealed(MemoryLog(there.broker)), there.outside.topics, clock, executor, settings, TOKEN
        )
        running = executor.spawn(service.run(), "control", broken)
        await service.serving.wait()
        async with ClientSession() as session:
            control = Control(service.url, session)
            while (await control.ask(TOKEN, path="/readyz"))[0] != 200:
                pass
            yield control
        service.stop()
        await running.join()


async def test_a_user_of_an_issuer_does_what_the_token_says(tmp_path: Path) -> None:
    """By REST, by the browser's prompt, by the command line: rights are the token's, and the audit names issuer and subject."""
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    document = {
        "connections": {"out": {"type": "files", "path": str(tmp_path)}},
        "pipeline": [
            {"$source": {"path": str(tmp_path / "in.json"), "format": "json", "follow": True}},
            {"$emit": {"connectionName": "out", "path": "out", "format": "json"}},
        ],
    }
    async with issuer_of("RS256", "ES256") as issuer, control_of(settings_for(issuer), tmp_path) as control:
        bound, executor = issuer.token(rights=["viewer", "operator@a"]), AsyncExecutor()
        assert (await control.ask(bound, "POST", "/v1/processors", {"name": "a.one", "document": document}))[0] == 201
        assert (await control.ask(bound, "POST", "/v1/processors", {"name": "b.one", "document": document}))[0] == 403
        while "a.one" not in (await control.ask(issuer.token("ES256", sub="eve", rights="viewer@a")))[1]:
            pass
        assert "a.one" not in (await control.ask(issuer.token(rights="admin@b")))[1]
        for rights, there in (("viewer@a", "a.one"), ("viewer@b", "none")):
            asked = Remote(control.url, issuer.token(rights=rights).decode())
            for name in ("a.two", "b.one"):
                with pytest.raises(RemoteFailed, match=f"there is no processor named {name}; there is {there}$"):
                    await executor.blocking(asked.get, f"/v1/processors/{name}")
        assert (await control.ask(bound, "DELETE", "/v1/processors/a.one"))[0] == 403
        assert (await control.ask(issuer.token(sub="carol", rights="admin@a"), "DELETE", "/v1/processors/a.one"))[
            0
        ] == 200
        deeds = json.loads((await control.ask(TOKEN, path="/v1/audit"))[1])["deeds"]
        known = f"oidc:{issuer.url}/"
        assert [(deed["user"], deed["role"], deed["status"]) for deed in reversed(deeds)] == [
            (f"{known}ada", "viewer+operator@a", 201),
            (f"{known}ada", "viewer+operator@a", 403),
            (f"{known}ada", "viewer+operator@a", 403),
            (f"{known}carol", "admin@a", 200),
        ]
        async with control.session.get(
            control.url, headers={"Authorization": encode_basic_auth("any", bound.decode())}
        ) as page:
            assert page.status == 200
        remote = Remote(control.url, issuer.token().decode())
        assert await executor.blocking(remote.get, "/v1/processors") == {"processors": []}
        with pytest.raises(RemoteFailed, match="the token has expired"):
            await executor.blocking(Remote(control.url, issuer.token(exp=1).decode()).get, "/v1/processors")
        await executor.close()
        assert json.loads((await control.ask(TOKEN, path="/readyz"))[1])["issuer"] == "answers"


async def test_no_bad_token_is_taken(tmp_path: Path) -> None:
    """Each is answered 401 with a challenge that says why, or 403 where it gives no right; no answer has the token; good ones count."""
    async with issuer_of("RS256", "ES256") as issuer, control_of(settings_for(issuer), tmp_path) as control:
        wrong, seen = [], 0
        for what, token in (
            *bad_tokens(issuer),
            ("no rights", issuer.token(rights=None)),
            ("none of them", issuer.token(rights=[])),
        ):
            seen += 1
            status, text, challenge = await control.ask(token)
            due = 403 if what in ("no rights", "none of them", "rights is 'None'") else 401
            says = (
                status == 403
                or token.count(b".") != 2
                or 'Bearer realm="tidemark", error="invalid_token", error_description="' in challenge
            )
            parts = [part.decode() for part in token.split(b".") if len(part) > 8]
            if (
                status != due
                or not says
                or "\n" in challenge.replace('"\nBearer', "")
                or any(part in text + challenge for part in parts)
            ):
                wrong.append((what, status, text[:200], challenge[:200]))
        assert wrong == []
        assert seen > 200
        for alg in ("RS256", "ES256"):
            assert (await control.ask(issuer.token(alg)))[0] == 200
        assert issuer.asked < 5
        assert (await control.ask("static"))[0] == 200


@pytest.mark.parametrize("alg", ["RS256", "ES256", "EdDSA"])
async def test_no_damaged_token_is_taken(alg: str) -> None:
    """Bytes changed, taken out, put in, parts mixed: refused, and nothing else is raised."""
    async with issuer_of("RS256", "ES256", "EdDSA") as issuer, vouching(settings_for(issuer)) as vouch:
        good = issuer.token(alg)
        assert (await vouch.user_of(good)) is not None
        for seed in range(1_500):
            token = damaged(good, Random(seed))
            try:
                assert await vouch.user_of(token) is None, (seed, token)
            except Problem as problem:
                assert problem.status == 401, (seed, token)  # noqa: PT017 - None is an answer, too


@pytest.mark.parametrize("alg", KINDS)
async def test_each_algorithm_counts_where_it_is_allowed_alone(alg: str) -> None:
    """And is refused by name where it is not."""
    async with issuer_of(alg) as issuer:
        async with vouching(settings_for(issuer, algorithms=(alg,))) as vouch:
            user = await vouch.user_of(issuer.token(alg))
            assert user is not None
            assert (user.name, user.role) == (f"oidc:{issuer.url}/ada", "operator@a")
            assert await vouch.user_of(issuer.token(alg, header={"kid": None})) == user
        async with vouching(settings_for(issuer, algorithms=tuple({*SIGNATURES} - {alg}))) as vouch:
            with pytest.raises(Problem, match=alg):
                await vouch.user_of(issuer.token(alg))


async def test_claims_at_their_bounds_count() -> None:
    """Clocks may differ by the leeway; several audiences, numbers with fractions, claims that say more, headers that we do not know."""
    async with issuer_of("RS256") as issuer, vouching(settings_for(issuer)) as vouch:
        now = int(time.time())
        for changed in (
            {"exp": now - 30}, {"nbf": now + 30}, {"iat": now + 30}, {"iat": None, "nbf": None}, {"exp": now + 0.5}, {"exp": 10**18},
            {"aud": ["other", AUDIENCE]}, {"sub": "é 名 O'Brien <a@b>"}, {"sub": "a" * 256}, {"more": ["x"] * 1_000}, {"azp": "other"},
        ):  # fmt: skip
            assert await vouch.user_of(issuer.token(**changed)) is not None, changed
        assert await vouch.user_of(issuer.token(header={"nonce": "x", "typ": "at+jwt", "x5t": "x"})) is not None
        user = await vouch.user_of(issuer.token(exp=now + 600))
        assert user is not None
        assert user.until_ms == (now + 660) * 1000


async def test_groups_stand_for_rights() -> None:
    """Groups that the settings name give theirs, beside the claim of rights; other groups give none; a claim may lie within another."""
    groups = {"shop": "operator@shop", "ops": "viewer+admin@ops"}
    async with issuer_of("RS256") as issuer:
        settings = settings_for(issuer, groups_claim=("realm", "roles"), groups=groups, user_claim="email")
        async with vouching(settings) as vouch:
            for roles, rights, role in (
                (["shop", "other"], None, "operator@shop"),
                (["ops", "shop", "ops"], "viewer", "viewer+admin@ops+operator@shop"),
                ("shop", "viewer@a", "viewer@a+operator@shop"),
            ):
                user = await vouch.user_of(issuer.token(realm={"roles": roles}, rights=rights, email="ada@example.org"))
                assert user is not None
                assert (user.name, user.role) == (f"oidc:{issuer.url}/ada@example.org", role)
            odd_realms: tuple[Any, ...] = (None, {}, {"roles": []}, {"roles": ["other"]}, [], "shop")
            for realm in odd_realms:
                with pytest.raises(Problem, match=r"rights and realm\.roles") as found:
                    await vouch.user_of(issuer.token(realm=realm, rights=None, email="ada@example.org"))
                assert found.value.status == 403
            for odd in ({"roles": 7}, {"roles": ["shop", 7]}, {"roles": {"shop": True}}):
                with pytest.raises(Problem, match=r"realm\.roles is neither") as found:
                    await vouch.user_of(issuer.token(realm=odd, email="ada@example.org"))
                assert found.value.status == 401


async def test_an_issuer_that_is_away_stops_nobody_else(tmp_path: Path) -> None:
    """Static tokens count, the service is ready and says what it waits for; tokens of the issuer are answered 503 until it is there."""
    async with issuer_of("RS256") as issuer:
        issuer.status = 500
        oidc = settings_for(issuer, retry_ms=10, fetch_ms_min=1)
        async with control_of(oidc, tmp_path) as control:
            assert (await control.ask("static"))[0] == 200
            status, text, _ = await control.ask(issuer.token())
            assert (status, "answered with status 500" in text) == (503, True)
            assert "answered with status 500" in json.loads((await control.ask(TOKEN, path="/readyz"))[1])["issuer"]
            assert (await control.ask(b"a.b.c"))[0] == 401
            issuer.status = 200
            while (await control.ask(issuer.token()))[0] != 200:
                pass
            issuer.status = 500
            assert (await control.ask(issuer.token()))[0] == 200, "the keys of before count"


async def test_a_new_key_is_fetched_at_once_and_strange_ones_seldom() -> None:
    """A rotation is met by the first token of the new key; ids that nobody knows make one fetch an interval; old keys end with a fetch."""
    clock = HandClock()
    async with issuer_of("RS256") as issuer, vouching(settings_for(issuer), clock) as vouch:
        old = issuer.token()
        assert await vouch.user_of(old) is not None
        stranger = new_key("RS256", "strange")
        for number in range(50):
            with pytest.raises(Problem, match="no key for RS256 with the id"):
                await vouch.user_of(issuer.token(key=stranger, header={"kid": f"strange-{number}"}))
        assert issuer.asked == 1
        issuer.keys["RS256"] = new_key("RS256", "rotated")
        clock.at_ms += vouch.settings.fetch_ms_min
        assert await vouch.user_of(issuer.token()) is not None
        assert issuer.asked == 2
        with pytest.raises(Problem, match="no key for RS256 with the id"):
            await vouch.user_of(old)
        for _ in range(10):
            clock.at_ms += vouch.settings.fetch_ms_min - 1
            with pytest.raises(Problem, match="no key"):
                await vouch.user_of(issuer.token(key=stranger))
        assert issuer.asked <= 2 + 10


async def test_keys_of_an_issuer_that_stays_away_end() -> None:
    """They count for a day; then nobody knows which of them it still holds to, and the answer is 503."""
    clock = HandClock()
    async with issuer_of("RS256") as issuer, vouching(settings_for(issuer), clock) as vouch:
        assert await vouch.user_of(issuer.token()) is not None
        issuer.status = 404
        clock.at_ms += vouch.settings.kept_ms - 1
        assert await vouch.user_of(issuer.token()) is not None
        clock.at_ms += 1
        with pytest.raises(Problem, match="cannot be had") as found:
            await vouch.user_of(issuer.token())
        assert found.value.status == 503
        issuer.status = 200
        clock.at_ms += vouch.settings.fetch_ms_min
        assert await vouch.user_of(issuer.token()) is not None


async def test_what_an_issuer_says_wrong_gives_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another's discovery document, keys at an unsafe address, no JSON, too much; and single keys that may not sign are left out."""
    log = CapturingLogger()
    monkeypatch.setattr("tidemark.services.control.issuer._log", log)
    async with issuer_of("RS256") as issuer:
        good = issuer.keys["RS256"].as_dict(private=False)
        secret = {"kty": "oct", "k": "c2VjcmV0", "kid": good["kid"], "alg": "RS256"}
        weak = {"kty": "RSA", "n": "z" * 128, "e": "AQAB", "kid": "weak"}
        odd = [{}, {"kty": 7}, {"kty": "RSA"}, {"kty": "RSA", "n": "!", "e": "AQAB"}, {"kty": "RSA", "n": "", "e": ""}, {**good, "e": "AA"},
               {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}, {"kty": "EC", "crv": "P-0", "x": "AA", "y": "AA"},
               {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
               {**good, "n": 7}, {**good, "kid": ["x"]}, {**good, "use": 7}, {**good, "key_ops": "verify"}]  # fmt: skip
        nothing: tuple[tuple[dict[str, Any], Any, str], ...] = (
            ({"issuer": f"{issuer.url}/"}, None, "is of the issuer"),
            ({"issuer": 7}, None, "openid-configuration"),
            ({"jwks_uri": "http://example.org/keys"}, None, "expected as jwks_uri an address with https"),
            ({"jwks_uri": "file:///etc/passwd"}, None, "expected as jwks_uri"),
            ({"jwks_uri": f"{issuer.url}/none"}, None, "status 404"),
            ({"jwks_uri": f"{issuer.url}/keys\0"}, None, "keys"),
            ({}, [], "Expected `object`"),
            ({}, {"keys": {}}, "Expected `array`"),
            ({}, {"keys": []}, "no public key that signs"),
            ({}, {"keys": [secret, weak, *odd[:10]]}, "no public key that signs"),
            ({}, {"keys": ["x" * 600_000]}, "more than 524288 bytes"),
        )
        for about, key_set, said in nothing:
            issuer.about, issuer.set_ = about, key_set
            async with vouching(settings_for(issuer)) as vouch:
                with pytest.raises(Problem) as found:
                    await vouch.user_of(issuer.token())
                assert (found.value.status, said in found.value.finding) == (503, True), (about, found.value.finding)
        issuer.about = {}
        for key_set, counts in (
            ({"keys": [secret, weak, *odd[:10], good]}, True),
            ({"keys": [{**good, "use": "enc"}]}, False),
            ({"keys": [{**good, "alg": "RS384"}]}, False),
            ({"keys": [{**good, "key_ops": ["encrypt"]}]}, False),
            ({"keys": [good, good]}, False),
            ({"keys": [{**good, "kid": "another"}]}, False),
            ({"keys": [{**good, "use": "enc"}, good]}, True),
        ):
            issuer.set_ = key_set
            async with vouching(settings_for(issuer)) as vouch:
                if counts:
                    assert await vouch.user_of(issuer.token()) is not None
                else:
                    with pytest.raises(Problem, match=r"no public key|no key for RS256"):
                        await vouch.user_of(issuer.token())
    assert all("c2VjcmV0" not in str(call) for call in log.calls)


async def test_a_nobody_that_listens_is_an_issuer_that_is_away() -> None:
    """No connection, no name: a sentence, and no other error."""
    for url in ("http://127.0.0.1:9", "https://127.0.0.1:9/realm", "https://no.such.host.invalid"):
        settings = OidcSettings(issuer=url, audience=AUDIENCE, rights_claim="rights", answer_timeout_ms=2_000)
        async with vouching(settings) as vouch:
            with pytest.raises(IssuerAway, match="openid-configuration"):
                await vouch.keys.find(vouch._registry, "RS256", None)


async def test_live_events_end_with_the_token(tmp_path: Path) -> None:
    """Who may no longer ask is told no more."""
    async with (
        issuer_of("RS256") as issuer,
        control_of(settings_for(issuer, leeway_s=0), tmp_path, look_ms=50) as control,
    ):
        headers = {"Authorization": f"Bearer {issuer.token(exp=int(time.time()) + 2).decode()}"}
        async with control.session.get(f"{control.url}/v1/live", headers=headers) as stream:
            assert stream.status == 200
            assert (await stream.content.read()).startswith(b"data: ")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"issuer": "http://idp.example.org"}, "oidc.issuer: expected https"),
        ({"issuer": "https://user@idp.example.org"}, "oidc.issuer"),
        ({"issuer": "https://idp.example.org?x"}, "oidc.issuer"),
        ({"issuer": "idp.example.org"}, "oidc.issuer"),
        ({"audience": ""}, "oidc.audience"),
        ({"rights_claim": ""}, "rights_claim, or groups_claim with groups"),
        ({"rights_claim": "", "groups_claim": "groups"}, "rights_claim, or groups_claim with groups"),
        ({"algorithms": ["HS256"]}, "oidc.algorithms: expected some of RS256"),
        ({"algorithms": ["RS256", "none"]}, "oidc.algorithms"),
        ({"algorithms": []}, "oidc.algorithms"),
        ({"groups": {"ops": "root"}}, "oidc.groups, ops: expected one of viewer"),
        ({"leeway_s": -1}, "leeway_s"),
        ({"client_secret": "x"}, "no such setting"),
        ({"keys_max": 1}, "no such setting"),
    ],
)
def test_settings_that_cannot_work_end_the_start(changed: dict[str, Any], said: str) -> None:
    """Each is named, with what is expected."""
    good = {"issuer": "https://idp.example.org/realms/x", "audience": AUDIENCE, "rights_claim": "rights"}
    assert settings_of({"oidc": good}, ControlSettings, "TIDEMARK_EXTRA").oidc.issuer == good["issuer"]
    with pytest.raises(ProcessSettingsError, match=said):
        settings_of({"oidc": {**good, **changed}}, ControlSettings, "TIDEMARK_EXTRA")


def test_addresses_are_safe_by_https_or_on_this_machine() -> None:
    """What a name resolves to does not count: the name itself says that it is this machine."""
    safe = ("https://a.b/c?p=1", "http://localhost:1/x", "http://127.0.0.1", "http://127.9.9.9:80/", "http://[::1]:7")
    unsafe = (
        "http://a.b",
        "http://localhost.evil",
        "http://127.0.0.1.evil",
        "http://10.0.0.1",
        "ftp://a.b",
        "https://",
        "https://u:p@a.b",
        "//a.b",
        "",
        "http://[",
        "https://a.b:99999",
        "https://a.b:x",
    )
    assert [safe_address(url) for url in (*safe, *unsafe)] == [True] * len(safe) + [False] * len(unsafe)
    assert not safe_address("http://127.0.0.1", as_safe_as="https://a.b")
