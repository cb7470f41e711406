"""Logins at the console by a provider that really signs, checks PKCE and redirects; each guard by what it refuses."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from socket import socket
from typing import Any, Final
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from aiohttp import ClientResponse, ClientSession, CookieJar, DummyCookieJar

from tests.harness.provider import CLIENT, Provider, provider_of
from tests.integration.test_oidc import TOKEN, Control, control_of, settings_for
from tidemark.services.control.sessions import Cookies, Session
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.process.settings import ProcessSettingsError, settings_of

PAGE: Final = "/console/workers?x=%C3%A4&y=1"
CHANGE: Final = {"Tidemark-Console": "1"}


@dataclass
class Place:
    """A console, its provider, and a browser in front of them."""

    control: Control
    provider: Provider
    url: str
    browser: ClientSession

    async def get(self, path: str, **given: Any) -> ClientResponse:
        """Without following; the body is read."""
        url = path if path.startswith("http") else self.url + path
        async with self.browser.get(url, allow_redirects=False, **given) as answer:
            await answer.read()
            return answer

    async def asked_for(self, next_: str = PAGE) -> str:
        """Begin a login: the provider's address for it."""
        return (await self.get(f"/console/login/begin?next={quote(next_, safe='')}")).headers["Location"]

    async def answered(self, next_: str = PAGE) -> str:
        """Log in at the provider: the address that it sends the browser back to."""
        return (await self.get(await self.asked_for(next_))).headers["Location"]

    async def login(self, next_: str = PAGE) -> ClientResponse:
        """All of it."""
        return await self.get(await self.answered(next_))

    def cookies(self) -> dict[str, str]:
        """The browser's."""
        return {each.key: each.value for each in self.browser.cookie_jar}


@asynccontextmanager
async def place_of(folder: Path, **more: Any) -> AsyncIterator[Place]:
    """One that listens."""
    async with AsyncExitStack() as stack:
        provider = await stack.enter_async_context(provider_of())
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        provider.redirect_uris.add(f"{url}/console/login/done")
        (folder / "secret").write_text(provider.secret + "\n")
        oidc = settings_for(
            provider, client_id=CLIENT, client_secret_file=str(folder / "secret"), public_url=url, **more
        )
        control = await stack.enter_async_context(control_of(oidc, folder, port=port))
        browser = await stack.enter_async_context(ClientSession(cookie_jar=CookieJar(unsafe=True)))
        yield Place(control, provider, url, browser)


async def test_a_login_returns_to_the_page_and_its_session_may_what_the_token_says(tmp_path: Path) -> None:
    """Page, login page, provider, page; the cookie is closed to scripts; rights are the token's; the audit has the login."""
    async with place_of(tmp_path) as place:
        sent = await place.get(PAGE)
        to = urlsplit(sent.headers["Location"])
        assert (sent.status, to.path, parse_qs(to.query)) == (302, "/console/login", {"next": [PAGE]})
        shown = await place.get(sent.headers["Location"])
        assert (shown.status, "/console/login/begin?next=%2Fconsole%2Fworkers" in await shown.text()) == (200, True)
        done = await place.login()
        assert (done.status, done.headers["Location"]) == (302, place.url + PAGE)
        set_ = [each for each in done.headers.getall("Set-Cookie") if "tidemark-session" in each]
        assert len(set_) == 1
        assert all(word in set_[0] for word in ("HttpOnly", "SameSite=Lax", "Path=/"))
        page = await place.get(PAGE)
        assert (page.status, f"oidc:{place.provider.url}/ada, operator@a" in await page.text()) == (200, True)
        assert "Log out" in await page.text()
        assert (await place.get("/v1/processors")).status == 200
        deed = json.loads((await place.control.ask(TOKEN, path="/v1/audit"))[1])["deeds"][0]
        assert (deed["what"], deed["user"], deed["role"]) == ("login", f"oidc:{place.provider.url}/ada", "operator@a")
        assert (await place.get("/console/audit")).status == 403


async def test_only_pages_lead_to_the_login_and_its_own_asks_for_nothing_closed(tmp_path: Path) -> None:
    """A script, a description, REST: 401, for a page of a login is none of them; the login page has no script that it would not get."""
    async with place_of(tmp_path) as place:
        for path in ("/console/console.js", "/openapi.json", "/v1/processors", "/v1/live"):
            answer = await place.get(path)
            assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, 'Bearer realm="tidemark"'), path
        page = await (await place.get("/console/login")).text()
        assert "<script" not in page
        assert (await place.get("/console/console.css")).status == 200


async def test_a_session_changes_something_with_the_consoles_header_alone(tmp_path: Path) -> None:
    """Other sites' forms bring the cookie at most; a script of theirs cannot send the header."""
    async with place_of(tmp_path) as place:
        await place.login()
        url, body = place.url + "/v1/validate", {"document": "{}"}
        async with place.browser.post(url, json=body) as answer:
            assert (answer.status, "a session's cookie alone" in await answer.text()) == (403, True)
        async with place.browser.post(url, json=body, headers=CHANGE) as answer:
            assert answer.status == 422


async def test_an_answer_with_another_state_is_refused(tmp_path: Path) -> None:
    """None, another's, or of a browser that has begun no login: no session, and the code stays unused."""
    async with place_of(tmp_path) as place:
        back = await place.answered()
        code = parse_qs(urlsplit(back).query)["code"][0]
        done = f"{place.url}/console/login/done?code={code}"
        for odd in (done, f"{done}&state=", f"{done}&state=other"):
            assert (await place.get(odd)).status == 400
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as stranger,
            stranger.get(back, allow_redirects=False) as answer,
        ):
            assert (answer.status, "has begun no login" in await answer.text()) == (400, True)
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as other:
            begun = await Place(place.control, place.provider, place.url, other).asked_for()
            assert begun
            async with other.get(back, allow_redirects=False) as answer:
                assert (answer.status, "another login" in await answer.text()) == (400, True)
        assert code in place.provider.codes
        assert not any("session" in name for name in place.cookies())
        assert (await place.get(back)).status == 302


@pytest.mark.parametrize("nonce", ["other", "", None])
async def test_a_token_of_another_login_is_refused(tmp_path: Path, nonce: str | None) -> None:
    """Its nonce is not this login's."""
    async with place_of(tmp_path) as place:
        place.provider.changed = {"nonce": nonce}
        done = await place.login()
        assert (done.status, "nonce" in await done.text()) == (400, True)
        assert not any("session" in name for name in place.cookies())


async def test_a_code_counts_once(tmp_path: Path) -> None:
    """The same answer again, from this browser or with a copy of its cookies, begins no session."""
    async with place_of(tmp_path) as place:
        back = await place.answered()
        copied = "; ".join(f"{name}={value}" for name, value in place.cookies().items())
        assert (await place.get(back)).status == 302
        assert "has begun no login" in await (await place.get(back)).text()
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as other,
            other.get(back, headers={"Cookie": copied}, allow_redirects=False) as answer,
        ):
            assert (answer.status, "invalid_grant" in await answer.text()) == (400, True)
            assert "session" not in str(answer.headers.getall("Set-Cookie", []))


@pytest.mark.parametrize(
    "next_",
    [
        "https://evil.example", "//evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)", "/\t/evil.example", "evil",
        "/console/login", "/" + "x" * 3_000, "/a\r\nSet-Cookie: x=y", "", "/token",
    ],
)  # fmt: skip
async def test_a_login_returns_to_no_other_host(tmp_path: Path, next_: str) -> None:
    """What is no page of the console is its first."""
    async with place_of(tmp_path) as place:
        assert (await place.login(next_)).headers["Location"] == place.url + "/"
        given = await place.control.session.get(
            f"{place.url}/token?next={quote(next_, safe='')}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            allow_redirects=False,
        )
        assert given.headers["Location"] == "/"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"aud": "other"}, "aud is not tidemark or console"),
        ({"aud": "tidemark"}, "not for console"),
        ({"aud": ["console", "other"], "azp": "other"}, "is for other"),
        ({"iss": "https://evil.example"}, "iss is not"),
        ({"exp": 1}, "are the provider&#x27;s clock and this one the same?"),
        ({"iat": int(time.time()) + 3_600}, "are the provider&#x27;s clock and this one the same?"),
    ],
)
async def test_a_token_for_others_begins_no_session(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    """Of another client, another issuer, another time: the page says which."""
    async with place_of(tmp_path) as place:
        place.provider.changed = changed
        done = await place.login()
        assert (done.status, said in await done.text()) == (400, True), await done.text()
        assert not any("session" in name for name in place.cookies())


async def test_a_login_that_fails_says_why(tmp_path: Path) -> None:
    """Refused by the user, without rights here, another's answer, a provider in trouble or away: a page with a way back, and no session."""
    async with place_of(tmp_path) as place:
        place.provider.refuses = "access_denied"
        refused = await place.login()
        assert (refused.status, "access_denied: the user said no" in await refused.text()) == (403, True)
        place.provider.refuses = ""
        place.provider.changed = {"rights": None}
        nothing = await place.login()
        assert (nothing.status, "gives none" in await nothing.text()) == (403, True)
        place.provider.changed = {}
        mixed = await place.get(
            (await place.answered()).replace(f"iss={place.provider.url}", "iss=https://evil.example")
        )
        assert (mixed.status, "evil.example" in await mixed.text()) == (400, True)
        place.provider.token_status = 502
        away = await place.login()
        assert (away.status, "status 502" in await away.text()) == (503, True)
        place.provider.token_status, place.provider.secret = 200, "another"
        assert "invalid_client" in await (await place.login()).text()
        assert not any("session" in name for name in place.cookies())


async def test_a_session_of_another_console_or_a_changed_one_is_none(tmp_path: Path) -> None:
    """Cookies count where the service's token is the same, each for its own use, and whole."""
    async with place_of(tmp_path) as place:
        await place.asked_for()
        pending = next(value for name, value in place.cookies().items() if "tidemark-login" in name)
        await place.login()
        name, value = next((name, value) for name, value in place.cookies().items() if "tidemark-session" in name)
        middle = len(value) // 2
        swapped = value[:middle] + ("A" if value[middle] != "A" else "B") + value[middle + 1 :]
        async with ClientSession(cookie_jar=DummyCookieJar()) as bare:
            for given, due in (
                (value, 200),
                (pending, 401),
                (swapped, 401),
                (value[:-9], 401),
                ("x", 401),
                ("a.b.c.d.e", 401),
            ):
                async with bare.get(f"{place.url}/v1/processors", headers={"Cookie": f"{name}={given}"}) as answer:
                    assert answer.status == due, given
                    assert "Basic" not in answer.headers.get("WWW-Authenticate", ""), "no browser opens its prompt"
        other = tmp_path / "other"
        other.mkdir()
        async with place_of(other) as elsewhere, ClientSession(cookie_jar=DummyCookieJar()) as bare:
            own = next(iter(SimpleCookie((await elsewhere.login()).headers["Set-Cookie"])))
            async with bare.get(f"{elsewhere.url}/v1/processors", headers={"Cookie": f"{own}={value}"}) as answer:
                assert answer.status == 401


def test_a_cookie_is_read_by_its_own_key_alone() -> None:
    """Of this token, this console and this use: with another it is nothing, and its value shows nothing."""
    own = Cookies("https://a.example.org", TOKEN, "session", "/")
    session = Session("id", "ada", "an-id-token", "a-refresh-token", 0)
    text = own.sealed(session)
    assert own.unsealed(text, Session) == session
    assert text != own.sealed(session)
    for url, token, use in (
        ("https://b.example.org", TOKEN, "session"),
        ("https://a.example.org", TOKEN + "x", "session"),
        ("https://a.example.org", TOKEN, "login"),
    ):
        assert Cookies(url, token, use, "/").unsealed(text, Session) is None
    assert TOKEN not in repr(own)


async def test_a_session_outlives_its_service(tmp_path: Path) -> None:
    """Another replica, or the same one after a restart, knows it: the service keeps nothing."""
    async with place_of(tmp_path) as place:
        await place.login()
        again = tmp_path / "again"
        again.mkdir()
        oidc = settings_for(
            place.provider, client_id=CLIENT, client_secret_file=str(tmp_path / "secret"), public_url=place.url
        )
        async with control_of(oidc, again) as replica, place.browser.get(f"{replica.url}/v1/processors") as answer:
            assert answer.status == 200


async def test_a_session_is_renewed_once_for_all_requests_before_its_token_ends(tmp_path: Path) -> None:
    """Requests with the cookie of before, too, cost one refresh token together; the new cookie comes with each answer."""
    async with place_of(tmp_path) as place:
        place.provider.life_s = 1
        await place.login()
        place.provider.life_s = 600
        before = {name: value for name, value in place.cookies().items() if "session" in name}
        header = {"Cookie": "; ".join(f"{name}={value}" for name, value in before.items())}
        async with ClientSession(cookie_jar=DummyCookieJar()) as bare:
            while place.provider.refreshed == 0:
                async with bare.get(f"{place.url}/v1/processors", headers=header) as answer:
                    assert answer.status == 200
            requests = [bare.get(f"{place.url}/v1/processors", headers=header) for _ in range(8)]
            for request in requests:
                async with request as answer:
                    assert (answer.status, "session" in answer.headers["Set-Cookie"]) == (200, True)
        assert place.provider.refreshed == 1
        assert (await place.get("/v1/processors")).status == 200
        assert {name: value for name, value in place.cookies().items() if "session" in name} != before
        assert (await place.get("/v1/processors")).status == 200
        assert place.provider.refreshed == 1


async def test_a_session_that_another_replica_has_renewed_goes_on(tmp_path: Path) -> None:
    """A refresh token counts once: requests with the cookie of before end no session, and take no newer cookie away."""
    async with place_of(tmp_path) as place:
        place.provider.life_s = 1  # and the clocks' leeway
        await place.login()
        asked = place.provider.token_asked
        before = {name: value for name, value in place.cookies().items() if "session" in name}
        header = {"Cookie": "; ".join(f"{name}={value}" for name, value in before.items())}
        place.provider.refresh_tokens.clear()  # the other one's request was there first
        async with ClientSession(cookie_jar=DummyCookieJar()) as bare:
            while place.provider.token_asked == asked:
                async with bare.get(f"{place.url}/v1/processors", headers=header) as answer:
                    assert (answer.status, "Set-Cookie" in answer.headers) == (200, False)
            async with bare.get(f"{place.url}/v1/processors", headers=header) as answer:
                assert (answer.status, "Set-Cookie" in answer.headers) == (200, False)
        assert place.provider.token_asked == asked + 1


@pytest.mark.parametrize("how", ["refused", "another user's", "without a token"])
async def test_a_session_ends_where_it_is_not_renewed(tmp_path: Path, how: str) -> None:
    """Refused, or answered with another user's token, once its own ends: pages go to the login, REST says 401, the cookie is taken away."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 2 if how != "without a token" else 1
        place.provider.gives_refresh = how != "without a token"
        await place.login()
        if how == "refused":
            place.provider.refresh_tokens.clear()
        place.provider.changed = {"sub": "eve"} if how == "another user's" else {}
        while (answer := await place.get("/v1/processors")).status == 200:
            pass
        assert (answer.status, "log in again at" in await answer.text()) == (401, True)
        assert not any("session" in name for name in place.cookies())
        assert (await place.get(PAGE)).headers["Location"].startswith("/console/login?next=")


async def test_a_provider_that_is_away_ends_no_session_whose_token_counts(tmp_path: Path) -> None:
    """Within the token's time and the clocks' leeway it goes on; behind that the answer is 503, and the session is there again with it."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 4
        await place.login()
        place.provider.token_status = 500
        asked = time.monotonic()
        while (answer := await place.get("/v1/processors")).status == 200:
            pass
        assert time.monotonic() - asked > 1.5
        assert (answer.status, answer.headers["Retry-After"]) == (503, "10")
        place.provider.token_status, place.provider.life_s = 200, 600
        assert (await place.get("/v1/processors")).status == 200


async def test_a_token_that_ends_while_the_provider_does_not_answer_ends_no_session(tmp_path: Path) -> None:
    """The request came with a token that counted, and the session is there when the provider is."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 4
        await place.login()
        ends_s = time.time() + 4
        place.provider.token_status, place.provider.answers = 500, asyncio.Event()

        async def until_asked() -> ClientResponse:
            while (answer := await place.get("/v1/processors")).status == 200 and not place.provider.troubled.is_set():
                pass
            return answer

        last = asyncio.ensure_future(until_asked())
        await place.provider.troubled.wait()
        while time.time() < ends_s + 1:
            await place.get("/console/login")
        place.provider.answers.set()
        assert (await last).status == 200
        place.provider.token_status, place.provider.life_s = 200, 600
        assert (await place.get("/v1/processors")).status == 200


async def test_a_logout_ends_the_session_here_and_at_the_provider(tmp_path: Path) -> None:
    """The cookie goes, a copy of it counts no more, the refresh token is revoked, the browser is sent to the provider's end, and back."""
    async with place_of(tmp_path) as place:
        await place.login()
        copied = "; ".join(f"{name}={value}" for name, value in place.cookies().items())
        async with place.browser.post(f"{place.url}/console/logout", json={}) as answer:
            assert answer.status == 403, "another site's form ends nothing"
        async with place.browser.post(f"{place.url}/console/logout", json={}, headers=CHANGE) as answer:
            after = (await answer.json())["next"]
        assert not any("session" in name for name in place.cookies())
        assert place.provider.refresh_tokens == set()
        back = await place.get(after)
        assert back.headers["Location"] == f"{place.url}/console/login"
        assert place.provider.ended[0]["client_id"] == CLIENT
        assert place.provider.ended[0]["id_token_hint"].count(".") == 2
        assert (await place.get("/v1/processors")).status == 401
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as bare,
            bare.get(f"{place.url}/v1/processors", headers={"Cookie": copied}) as answer,
        ):
            assert answer.status == 401


async def test_a_session_ends_after_its_longest_time(tmp_path: Path) -> None:
    """However often its token could be renewed."""
    async with place_of(tmp_path, session_s_max=1) as place:
        await place.login()
        while (answer := await place.get("/v1/processors")).status == 200:
            pass
        assert answer.status == 401
        assert place.provider.refreshed == 0


async def test_tokens_of_the_installation_count_beside_logins(tmp_path: Path) -> None:
    """In the header, and at the browser's prompt, to which the login page leads."""
    async with place_of(tmp_path) as place:
        assert (await place.control.ask("static"))[0] == 200
        prompt = await place.get("/token?next=/console/workers")
        assert (prompt.status, prompt.headers["WWW-Authenticate"]) == (401, 'Basic realm="tidemark"')


async def test_a_large_session_takes_several_cookies_and_one_too_large_says_so(tmp_path: Path) -> None:
    """Groups make tokens long; browsers take 4,096 bytes a cookie."""
    async with place_of(tmp_path) as place:
        place.provider.changed = {"more": "x" * 4_000}
        await place.login()
        found = [each for each in place.browser.cookie_jar if "session" in each.key]
        assert len(found) == 3
        assert all(len(each.key) + len(each.value) < 3_900 for each in found)
        header = {"Cookie": "; ".join(f"{each.key}={each.value}" for each in found)}
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as bare,
            bare.get(f"{place.url}/v1/processors", headers=header) as answer,
        ):
            assert answer.status == 200
        place.provider.changed = {}
        await place.login()
        assert sum("session" in name for name in place.cookies()) == 1
        place.provider.changed = {"more": "x" * 8_000}
        done = await place.login()
        assert (done.status, "cookies hold" in await done.text()) == (400, True)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"public_url": ""}, "oidc.public_url: expected where browsers"),
        ({"public_url": "http://tidemark.example.org"}, "oidc.public_url"),
        ({"public_url": "https://tidemark.example.org/console"}, "oidc.public_url"),
        ({"scopes": ["profile"]}, "oidc.scopes: expected openid"),
        ({"session_s_max": 0}, "session_s_max"),
    ],
)
def test_settings_of_logins_that_cannot_work_end_the_start(changed: dict[str, Any], said: str) -> None:
    """Each is named, with what is expected."""
    good = {
        "issuer": "https://idp.example.org",
        "audience": "t",
        "rights_claim": "r",
        "client_id": "c",
        "public_url": "https://t.example.org",
    }
    assert settings_of({"oidc": good}, ControlSettings, "TIDEMARK_EXTRA").oidc.client_id == "c"
    with pytest.raises(ProcessSettingsError, match=said):
        settings_of({"oidc": {**good, **changed}}, ControlSettings, "TIDEMARK_EXTRA")
