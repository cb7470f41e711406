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
