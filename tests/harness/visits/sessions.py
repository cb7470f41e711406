"""People who have logged in: their tokens end, are renewed, refused or changed, their provider is away, they log out in another tab.

What each request must be answered follows from what the provider has given, and when: around the end of a token either side of it.
"""

import random
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import parse_qs, urlsplit

from aiohttp import ClientSession, DummyCookieJar

from tests.harness.provider import Provider

LIFE_S: Final = 2
"""Of tokens: a walk sees many of them end."""
NEAR_S: Final = 1.2
"""Around the end of a token, which is in whole seconds."""
PAGES: Final = ("/", "/console/workers?a=%26", "/console/connections")
RIGHTS: Final = ("operator@a", "viewer", "admin", None)
CHANGE: Final = {"Tidemark-Console": "1"}


class LoggingIn(Protocol):
    """A console, its provider, and a browser in front of them (`tests/integration/test_login.py`)."""

    provider: Provider
    url: str
    browser: ClientSession

    async def login(self, next_: str = ...) -> Any:
        """From the page to the provider and back."""

    async def get(self, path: str, **given: Any) -> Any:
        """Without following; the body is read."""

    def cookies(self) -> dict[str, str]:
        """The browser's."""


@dataclass
class Sitting:
    """One person's browser; `wrong`: what did not hold."""

    place: LoggingIn
    chooser: random.Random
    logged_in: bool = False
    rights: AbstractSet[str | None] = frozenset()
    """Those that the token may have: of the last one that was given, and where it may have been renewed, the provider's."""
    ends_s: float = 0
    refreshed: int = 0
    way: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, trouble: str) -> None:
        """Something does not hold."""
        self.wrong.append(f"{trouble[:400]} [{' > '.join(self.way[-6:])}]")

    @property
    def given(self) -> str | None:
        """The rights that the provider gives now."""
        found: str | None = self.place.provider.changed.get("rights", RIGHTS[0])
        return found

    def _takes(self) -> None:
        """A token has been given."""
        self.rights, self.ends_s = frozenset({self.given}), time.time() + LIFE_S

    # --- acts -------------------------------------------------------------------------------------------------------------

    async def login(self) -> None:
        """Again, whatever was before; without rights, or with a provider in trouble, it says why."""
        provider = self.place.provider
        answer = await self.place.login(self.chooser.choice(PAGES))
        due = 503 if provider.token_status != 200 else 403 if self.given is None else 302
        if answer.status != due:
            return self.note(f"a login is answered {answer.status}, not {due}: {await answer.text()}")
        if due == 302:
            self.logged_in, self.refreshed = True, provider.refreshed
            self._takes()
        return None

    async def logout(self) -> None:
        """In another tab: a copy of its cookie counts no more, and a stream of this one ends."""
        header = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.place.cookies().items())}
        stream = await self.place.browser.get(f"{self.place.url}/v1/live", allow_redirects=False)
        lives = stream.status == 200
        async with self.place.browser.post(f"{self.place.url}/console/logout", json={}, headers=CHANGE) as answer:
            if answer.status != 200:
                self.note(f"a logout is answered {answer.status}")
        if lives:
            await stream.content.read()  # else the walk stands still
        stream.close()
        self.logged_in = False
        async with (
            ClientSession(cookie_jar=DummyCookieJar()) as bare,
            bare.get(f"{self.place.url}/v1/processors", headers=header) as answer,
        ):
            if answer.status != 401:
                self.note(f"a copy of a cookie that was logged out is answered {answer.status}")

    async def page(self) -> None:
        """A page: it is there with the rights of now, or leads to the login, and back."""
        path = self.chooser.choice(PAGES)
        answer = await self.place.get(path)
        self._judge(answer.status, path, await answer.text(), page=True)
        to = urlsplit(answer.headers.get("Location", ""))
        if answer.status == 302 and (to.path, parse_qs(to.query)) != ("/console/login", {"next": [path]}):
            self.note(f"{path} leads to {to}")

    async def script(self) -> None:
        """A page's script asks: no answer makes the browser ask for a token."""
        answer = await self.place.get("/v1/processors", headers=CHANGE)
        self._judge(answer.status, "/v1/processors", await answer.text(), page=False)
        if "Basic" in str(answer.headers.getall("WWW-Authenticate", [])):
            self.note("the browser would ask for a token")

    async def form(self) -> None:
        """What was written is sent: judged, or refused with what to do; never led elsewhere, where it would be lost."""
        async with self.place.browser.post(
            f"{self.place.url}/v1/validate", json={"document": "{}"}, headers=CHANGE, allow_redirects=False
        ) as answer:
            text = await answer.text()
            self._judge(200 if answer.status == 422 else answer.status, "/v1/validate", text, page=False)
            if answer.status in (401, 503) and '"remedy"' not in text:
                self.note(f"a form is refused, and not told what to do: {text}")

    async def wait(self) -> None:
        """Until the token has ended."""
        while time.time() < self.ends_s + NEAR_S:
            await self.place.get("/console/login")

    async def away(self) -> None:
        """The provider gives no tokens, or does again."""
        self.place.provider.token_status = 200 if self.place.provider.token_status != 200 else 502

    async def changed(self) -> None:
        """Other rights, or none, from the next token on."""
        self.place.provider.changed = {"rights": self.chooser.choice(RIGHTS)}

    async def revoked(self) -> None:
        """The provider ends what it has given."""
        self.place.provider.refresh_tokens.clear()

    async def without_cookies(self) -> None:
        """A browser that takes none is told so."""
        async with ClientSession(cookie_jar=DummyCookieJar()) as bare:
            async with bare.get(f"{self.place.url}/console/login/begin", allow_redirects=False) as answer:
                to = answer.headers.get("Location", "")
            async with bare.get(to, allow_redirects=False) as answer:
                back = answer.headers["Location"]
            async with bare.get(back, allow_redirects=False) as answer:
                if answer.status != 400 or "cookies" not in await answer.text():
                    self.note(f"a browser without cookies is answered {answer.status}: {await answer.text()}")

    # --- what must be seen ------------------------------------------------------------------------------------------------

    def _judge(self, status: int, path: str, text: str, *, page: bool) -> None:
        provider, now_s = self.place.provider, time.time()
        nobody = 302 if page else 401
        renewed = provider.refreshed != self.refreshed
        if renewed:
            self.refreshed = provider.refreshed
            self._takes()
        due = {nobody}
        if self.logged_in:
            counts, ended = now_s < self.ends_s + NEAR_S, now_s > self.ends_s - NEAR_S
            right = {200} if self.rights != {None} else {302 if page else 403}
            due = right if counts else set()
            if ended and not renewed:
                due = due | ({503} if provider.token_status != 200 else {nobody})
        if status not in due:
            self.note(
                f"{path} is answered {status}, not one of {due}, {now_s - self.ends_s:+.1f} s from the end: {text[:200]}"
            )
        if status == nobody and self.logged_in and self.rights != {None}:
            self.logged_in = False  # its cookie is gone
        shown = [each for each in self.rights if each is not None and f", {each}; times are UTC" in text]
        if page and status == 200 and not shown:
            self.note(f"{path} does not show the rights {self.rights}")


ACTS: Final = (
    *("page",) * 4, *("script",) * 3, *("form",) * 3, *("login",) * 3, "logout", *("wait",) * 2, "away", "changed", "revoked",
    "without_cookies",
)  # fmt: skip


async def sit(place: LoggingIn, chooser: random.Random, steps: int) -> list[str]:
    """What did not hold in so many acts."""
    place.provider.life_s = LIFE_S
    found = Sitting(place, chooser)
    for _ in range(steps):
        act = chooser.choice(ACTS)
        found.way.append(act)
        doing: Callable[[], Any] = getattr(found, act)
        await doing()
    return found.wrong
