"""`tidemark login` and `logout`, and what other commands make of them, at a provider and a control service that listen."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.harness.provider import COMMAND, Provider, provider_of
from tests.integration.test_oidc import Control, control_of, settings_for
from tidemark.services.cli import login as logins
from tidemark.services.cli.remote import Remote, RemoteFailed, find
from tidemark.shared.adapters.executor import AsyncExecutor


@dataclass
class Command:
    """A user at a terminal."""

    control: Control
    provider: Provider
    kept: Path
    executor: AsyncExecutor

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Beside the services."""
        return await self.executor.blocking(work, *args)

    async def remote(self) -> Remote:
        """What a command asks."""
        found: Remote = await self.run(find, Path("nowhere"))
        return found


@asynccontextmanager
async def command_of(folder: Path, monkeypatch: pytest.MonkeyPatch, **more: Any) -> AsyncIterator[Command]:
    """Without a token in the environment."""
    async with provider_of() as provider:
        oidc = settings_for(provider, **{"device_client_id": COMMAND, **more})
        async with control_of(oidc, folder) as control:
            kept = folder / "settings" / "logins.json"
            monkeypatch.setenv("TIDEMARK_CONTROL", control.url)
            monkeypatch.setenv("TIDEMARK_CLI", json.dumps({"logins_file": str(kept)}))
            monkeypatch.delenv("TIDEMARK_TOKEN", raising=False)
            monkeypatch.delenv("TIDEMARK_TOKEN_FILE", raising=False)
            executor = AsyncExecutor()
            yield Command(control, provider, kept, executor)
            await executor.close()


async def test_commands_have_the_token_of_a_login_until_the_logout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Address and code are shown; the file is the user's alone; a logout revokes and forgets, and then a command says what to do."""
    async with command_of(tmp_path, monkeypatch) as here:
        with pytest.raises(RemoteFailed, match="`tidemark login` gets a token"):
            await here.run((await here.remote()).get, "/v1/processors")
        await here.run(logins.login, here.control.url)
        assert f"Open {here.provider.url}/device and enter ABCD-EFGH" in capsys.readouterr().err
        assert [stat.S_IMODE(each.stat().st_mode) for each in sorted(here.kept.parent.iterdir())] == [0o600, 0o600]
        who = await here.run((await here.remote()).get, "/v1/user")
        assert who == {"name": f"oidc:{here.provider.url}/ada", "role": "operator@a"}
        monkeypatch.setenv("TIDEMARK_TOKEN", "static")
        assert (await here.remote()).token == "static"
        monkeypatch.delenv("TIDEMARK_TOKEN")
        assert len(here.provider.refresh_tokens) == 1
        assert await here.run(logins.logout, here.control.url)
        assert here.provider.refresh_tokens == set()
        assert json.loads(here.kept.read_text()) == {}
        assert not await here.run(logins.logout, here.control.url)
        assert (await here.remote()).token == ""


async def test_a_token_is_renewed_once_before_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands that begin together, too; where the provider refuses, a command says to log in again."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.life_s = 30
        await here.run(logins.login, here.control.url)
        here.provider.life_s = 600
        first, second = await asyncio.gather(here.remote(), here.remote())
        assert first.token == second.token
        assert here.provider.refreshed == 1
        here.provider.life_s = 30
        await here.run(logins.login, here.control.url)
        here.provider.refresh_tokens.clear()
        with pytest.raises(RemoteFailed, match=r"has ended .*invalid_grant.*: `tidemark login`"):
            await here.remote()


@pytest.mark.parametrize(
    ("error", "said"), [("access_denied", "refuses: access_denied"), ("expired_token", "refuses: expired_token")]
)
async def test_a_login_that_is_refused_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    """And keeps nothing."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.device_answers = (error,)
        with pytest.raises(logins.LoginFailed, match=said):
            await here.run(logins.login, here.control.url)
        assert not here.kept.exists()


async def test_what_stands_in_a_logins_way_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No client for commands, a provider of another name, without the grant, at an unsafe address, or away; a broken file."""
    async with command_of(tmp_path, monkeypatch, device_client_id="") as here:
        with pytest.raises(logins.LoginFailed, match="no login for commands"):
            await here.run(logins.login, here.control.url)
    other = tmp_path / "other"
    other.mkdir()
    async with command_of(other, monkeypatch) as here:
        good = dict(here.provider.about)
        for changed, said in (
            ({"issuer": "https://evil.example"}, "is of the issuer"),
            ({"device_authorization_endpoint": None}, "has no device_authorization_endpoint"),
            ({"token_endpoint": "http://evil.example/token"}, "has no token_endpoint"),
        ):
            here.provider.about = {**good, **changed}
            with pytest.raises(logins.LoginFailed, match=said):
                await here.run(logins.login, here.control.url)
        here.provider.about, here.provider.status = good, 500
        with pytest.raises(logins.LoginFailed, match="status 500"):
            await here.run(logins.login, here.control.url)
        with pytest.raises(logins.LoginFailed, match="does not answer"):
            await here.run(logins.login, "http://127.0.0.1:9")
        here.kept.parent.mkdir()
        here.kept.write_text("{")
        with pytest.raises(RemoteFailed, match="expected the logins of"):
            await here.remote()


async def test_a_login_goes_on_where_the_provider_was_away_for_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person is about to enter the code, and one connection that fails is no reason to end that (RFC 8628, 3.5)."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.cuts, here.provider.device_answers = 1, ()
        await here.run(logins.login, here.control.url)
        assert "the code still counts" in capsys.readouterr().err
        assert (await here.run((await here.remote()).get, "/v1/user"))["role"] == "operator@a"


@pytest.mark.parametrize(
    "changed",
    [
        {"interval": []},
        {"interval": "soon"},
        {"interval": -5},
        {"interval": 1e300},
        {"expires_in": {}},
        {"expires_in": 1e300},
        {"expires_in": 0},
    ],
)
async def test_an_odd_begin_of_a_login_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """Whatever the provider says of its times."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.device_changes = changed
        with pytest.raises(logins.LoginFailed):
            await here.run(logins.login, here.control.url)
        assert not here.kept.exists()


async def test_a_providers_texts_move_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the code, the addresses and errors."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.device_changes = {"user_code": "A\x1b[2JB", "verification_uri_complete": "http://a/\r\x07"}
        here.provider.device_answers = ("access\x1b[2Jdenied",)
        with pytest.raises(logins.LoginFailed) as failed:
            await here.run(logins.login, here.control.url)
        said = capsys.readouterr().err + str(failed.value)
        assert "A?[2JB" in said
        assert all(each.isprintable() or each == "\n" for each in said)


async def test_a_token_that_counts_is_used_while_the_provider_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be renewed, but needs not be yet; one without a way to renew it counts until its end, too."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.provider.life_s = 30
        await here.run(logins.login, here.control.url)
        here.provider.token_status = 503
        assert (await here.run((await here.remote()).get, "/v1/user"))["role"] == "operator@a"
        here.provider.token_status, here.provider.gives_refresh = 200, False
        await here.run(logins.login, here.control.url)
        assert (await here.run((await here.remote()).get, "/v1/user"))["role"] == "operator@a"


@pytest.mark.parametrize(
    "text", ["[]", "5", "null", '{"URL": 5}', '{"URL": {}}', '{"URL": {"issuer": "a", "more": 1}}', "[" * 50_000]
)
async def test_a_file_of_logins_that_is_none_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Whatever stands in it."""
    async with command_of(tmp_path, monkeypatch) as here:
        here.kept.parent.mkdir()
        here.kept.write_text(text.replace("URL", here.control.url))
        with pytest.raises(RemoteFailed, match="expected the logins of"):
            await here.remote()


async def test_a_logout_counts_whatever_its_answer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status alone says whether a token was revoked (RFC 7009, 2.2)."""
    async with command_of(tmp_path, monkeypatch) as here:
        await here.run(logins.login, here.control.url)
        here.provider.revoked = web.Response(text="<html>done")
        assert await here.run(logins.logout, here.control.url)


@asynccontextmanager
async def server_of(answer: Callable[[web.Request], web.StreamResponse]) -> AsyncIterator[tuple[str, list[str]]]:
    """Anybody's: its address, and the tokens that it was sent."""
    sent: list[str] = []

    async def answered(request: web.Request) -> web.StreamResponse:
        sent.append(request.headers.get("Authorization", ""))
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answered)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", sent
    finally:
        await runner.cleanup()


async def test_a_command_takes_its_token_to_no_other_host() -> None:
    """A proxy in front may send one to a login page elsewhere; the library would take the token there."""
    executor = AsyncExecutor()
    async with server_of(lambda _: web.json_response({})) as (other, sent):
        leads = web.HTTPFound(other.replace("127.0.0.1", "localhost") + "/login")
        async with server_of(lambda _: web.Response(status=302, headers=leads.headers)) as (url, _):
            for way in (lambda: Remote(url, "secret").get("/v1/processors"), lambda: logins.login(url)):
                with pytest.raises(
                    (RemoteFailed, logins.LoginFailed), match=r"which leads to http://localhost:\d+/login"
                ):
                    await executor.blocking(way)
    assert sent == []
    await executor.close()


def _closed(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def _no_http(request: web.Request) -> web.StreamResponse:
    assert isinstance(request.transport, asyncio.Transport)
    request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    request.transport.close()
    return web.Response()


def _part(request: web.Request) -> web.StreamResponse:
    assert isinstance(request.transport, asyncio.Transport)
    request.transport.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"processors": [')
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda _: web.Response(text="<html>welcome"), "answers with no JSON .*is it the control service's"),
        (lambda _: web.json_response([1]), r"answers with no JSON object, but \[1\]"),
        (lambda _: web.Response(text="[" * 100_000), "answers with no JSON"),
        (lambda _: web.Response(status=404, text="<html>nothing"), "answers with status 404 Not Found"),
        (lambda _: web.json_response({"error": {"code": 7}}, status=403), "answers with status 403 Forbidden"),
        (_closed, "does not answer"),
        (_no_http, "no answer by HTTP"),
        (_part, "no answer by HTTP"),
    ],
)
async def test_what_is_no_control_service_is_named(
    answer: Callable[[web.Request], web.StreamResponse], said: str
) -> None:
    """A wrong port is a sentence."""
    executor = AsyncExecutor()
    async with server_of(answer) as (url, _):
        with pytest.raises(RemoteFailed, match=said):
            await executor.blocking(Remote(url, "secret").get, "/v1/processors")
    await executor.close()
