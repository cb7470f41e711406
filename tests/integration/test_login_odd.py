"""Logins at the console whose cookies are forged, whose provider is in trouble, or whose user has no rights any more."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import ClientResponse, ClientSession, DummyCookieJar, web
from joserfc.util import urlsafe_b64encode

from tests.harness.issuer import Issuer, issuer_of, new_key
from tests.integration.test_login import CHANGE, PAGE, Place, place_of
from tests.integration.test_oidc import TOKEN, settings_for, vouching
from tidemark.services.control.issuer import IssuerAway
from tidemark.services.control.routes import LOGIN_ROUTES, ROUTES

ODD: Final[dict[str, tuple[Any, ...]]] = {
    "enc": (["A256GCM"], {}, 5, "A128GCM"),
    "alg": (["dir"], {}, 5, "none"),
    "crit": (5, ["x"], {}),
    "zip": (5, "DEF"),
    "kid": (5,),
}


async def _with_cookies(place: Place, cookies: dict[str, str], path: str = "/v1/processors") -> ClientResponse:
    header = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}
    async with (
        ClientSession(cookie_jar=DummyCookieJar()) as bare,
        bare.get(place.url + path, headers=header, allow_redirects=False) as answer,
    ):
        await answer.read()
        return answer


async def test_a_forged_cookie_is_none(tmp_path: Path) -> None:
    """Whatever its header says: no fault of the service, whose log anybody could fill."""
    good = {"alg": "dir", "enc": "A256GCM"}
    async with place_of(tmp_path) as place:
        await place.asked_for()
        await place.login()
        name, value = next((name, value) for name, value in place.cookies().items() if "tidemark-session" in name)
        rest = value.partition(".")[2]
        odds: list[Any] = [{**good, field: each} for field, some in ODD.items() for each in some]
        for odd in (*odds, {"alg": "PBES2-HS256+A128KW", "enc": "A256GCM", "p2c": 10**9}, [], 5, None):
            forged = f"{urlsafe_b64encode(json.dumps(odd).encode()).decode()}.{rest}"
            assert (await _with_cookies(place, {name: forged})).status == 401, odd
            pending = name.replace("session", "login")
            done = await _with_cookies(place, {pending: forged}, "/console/login/done?code=a&state=b")
            assert (done.status, "has begun no login" in await done.text()) == (400, True), odd
        assert (await _with_cookies(place, {name: value})).status == 200


async def test_a_cookie_alone_changes_nothing_anywhere(tmp_path: Path) -> None:
    """Each route of the table that is none for reading."""
    async with place_of(tmp_path) as place:
        await place.login()
        for route in (*ROUTES, *LOGIN_ROUTES):
            if route.method != "GET":
                path = route.path.replace("{", "").replace("}", "")
                async with place.browser.request(route.method, place.url + path, json={}) as answer:
                    assert (answer.status, "a session's cookie alone" in await answer.text()) == (403, True), route


@pytest.mark.parametrize(
    "refusal",
    [
        {"error": "invalid_grant", "error_description": None},
        {"error": None},
        {"error": {"code": 7}},
        {"error": "invalid_grant", "error_description": ["a"]},
        {},
    ],
)
async def test_a_refusal_ends_a_session_whatever_it_says(tmp_path: Path, refusal: dict[str, Any]) -> None:
    """It is no provider that is away, for which the session would wait."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 1
        await place.login()
        place.provider.refusal = refusal
        place.provider.refresh_tokens.clear()
        while (answer := await place.get("/v1/processors")).status == 200:
            pass
        assert (answer.status, "log in again at" in await answer.text()) == (401, True)


async def test_a_provider_without_refresh_tokens_may_say_null(tmp_path: Path) -> None:
    """As if it had said nothing."""
    async with place_of(tmp_path) as place:
        given = place.provider.given

        def with_null(**more: Any) -> web.Response:
            found = json.loads(given(**more).text or "")
            return web.json_response({**found, "refresh_token": None})

        place.provider.given = with_null  # type: ignore[method-assign]
        assert (await place.login()).status == 302
        assert (await place.get("/v1/processors")).status == 200


async def test_requests_that_wait_for_one_renewal_share_its_failure(tmp_path: Path) -> None:
    """A provider in trouble is asked once for a page: a refresh token that is sent twice would end the session at many."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 1
        await place.login()
        ended_s = time.time() + 2
        while time.time() < ended_s:
            await place.get("/console/login")
        place.provider.token_status, place.provider.answers = 500, asyncio.Event()
        before = place.provider.token_asked
        requests = [asyncio.ensure_future(place.get("/v1/processors")) for _ in range(12)]
        await place.provider.troubled.wait()
        for _ in range(12):  # so that all have come
            await place.get("/console/login")
        place.provider.answers.set()
        assert [answer.status for answer in await asyncio.gather(*requests)] == [503] * 12
        assert place.provider.token_asked == before + 1
        place.provider.token_status, place.provider.life_s = 200, 600
        assert (await place.get("/v1/processors")).status == 200


async def test_keys_that_change_without_notice_cost_no_login(tmp_path: Path) -> None:
    """A token that the provider has just given is signed by a key that it has, however short ago its keys were fetched."""
    async with place_of(tmp_path) as place:
        place.provider.keys = {"RS256": new_key("RS256", "second")}
        place.provider.life_s = 1
        assert (await place.login()).status == 302
        place.provider.keys, place.provider.life_s = {"RS256": new_key("RS256", "third")}, 600
        while place.provider.refreshed == 0:
            assert (await place.get("/v1/processors")).status == 200
        assert (await place.get("/v1/processors")).status == 200
        foreign = new_key("RS256", "fourth")
        asked = place.provider.asked
        for _ in range(5):
            assert (await place.control.ask(Issuer.token(place.provider, key=foreign)))[0] == 401
        assert place.provider.asked == asked, "tokens that anybody can make fetch no keys so often"


@pytest.mark.parametrize("how", ["not revoked", "renewed without rights", "away"])
async def test_a_logout_is_possible_at_any_time(tmp_path: Path, how: str) -> None:
    """Where the provider revokes nothing, the token has ended while it is away, or the user has lost all rights."""
    async with place_of(tmp_path, leeway_s=0) as place:
        place.provider.life_s = 600 if how == "not revoked" else 1
        await place.login()
        if how == "not revoked":
            place.provider.revoked = web.Response(status=400, text="no")
        else:
            place.provider.changed = {"rights": None}
            place.provider.token_status = 500 if how == "away" else 200
            place.provider.life_s = 600
            while (answer := await place.get("/v1/processors")).status == 200:
                pass
            assert answer.status == (503 if how == "away" else 403)
        async with place.browser.post(f"{place.url}/console/logout", json={}, headers=CHANGE) as answer:
            assert (answer.status, (await answer.json())["next"].startswith(f"{place.provider.url}/end?")) == (
                200,
                True,
            )
        assert not any("session" in name for name in place.cookies())
        deed = json.loads((await place.control.ask(TOKEN, path="/v1/audit"))[1])["deeds"][0]
        assert deed["what"] == "POST /console/logout"
        assert deed["user"] == (f"oidc:{place.provider.url}/ada" if how == "not revoked" else "")


async def test_a_page_of_a_user_who_has_lost_all_rights_leads_to_the_login(tmp_path: Path) -> None:
    """Which says why, and may be another user's; a bare error would be the end of it for twelve hours."""
    async with place_of(tmp_path) as place:
        place.provider.life_s = 1
        await place.login()
        place.provider.changed, place.provider.life_s = {"rights": None}, 600
        while (answer := await place.get("/v1/processors")).status == 200:
            pass
        assert answer.status == 403
        sent = await place.get(PAGE)
        assert (sent.status, sent.headers["Location"].startswith("/console/login?next=")) == (302, True)
        assert "gives none" in await (await place.login()).text()
        place.provider.changed = {}
        assert (await place.login()).status == 302
        assert (await place.get(PAGE)).status == 200


async def test_logins_wait_for_one_question_to_a_provider_that_is_away(tmp_path: Path) -> None:
    """Not each for its own, one behind another: the last of many would wait for minutes."""
    async with issuer_of("RS256") as issuer, vouching(settings_for(issuer)) as read:
        issuer.status = 500
        found = await asyncio.gather(*(read.keys.about() for _ in range(30)), return_exceptions=True)
        assert all(isinstance(each, IssuerAway) for each in found)
        assert issuer.discovered == 1
        issuer.status = 200
        assert (await read.keys.about()).issuer == issuer.url
