"""A person without a script: links, forms, buttons and requests that are made by hand, drawn one after the other."""

import asyncio
import base64
import json
import random
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

from aiohttp import ClientError, ClientSession
from yarl import URL

from tests.harness.console import token_of
from tests.harness.visits import checks
from tests.harness.visits.pages import Element, Page
from tests.harness.visits.stand import USERS, Stand
from tests.harness.visits.texts import HOSTILE, NAMES, typed
from tidemark.services.control.routes import CONSOLE_HEADER, ROUTES
from tidemark.shared.process.users import User, read_rights

VIEWS: Final = ("", "/checkpoints", "/time", "/sample", "/dead-letters", "/verdict", "/logs", "/document")
MOVED: Final = 302
WISHES: Final[tuple[dict[str, str], ...]] = (
    {"Accept": "application/json"}, {"Accept": "image/*;q=0"}, {"If-None-Match": "*"}, {"Range": "bytes=0-5"}, {"Sec-Purpose": "prefetch"},
    {"If-Modified-Since": "Mon, 30 Nov 2026 00:00:00 GMT"}, {"Accept-Encoding": "gzip, br"}, {"Accept-Language": "ar"},
)  # fmt: skip
"""Headers of requests that change nothing about the answer."""
TRIED: Final = 0.1
"""The part of try-outs that is carried out: each is a process of its own."""


@dataclass
class Walk:
    """One person's way; `wrong`: what did not hold, with the way to it."""

    there: Stand
    chooser: random.Random
    session: ClientSession
    rights: str = "admin"
    path: str = "/"
    behind: list[str] = field(default_factory=list)
    page: Page = field(default_factory=lambda: Page(""))
    way: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def user(self) -> User:
        """Who walks."""
        return User(self.rights, read_rights(self.rights))

    def note(self, trouble: str) -> None:
        """Something does not hold."""
        way = " > ".join(each[:60] for each in self.way[-4:])
        self.wrong.append(f"{self.rights} at {self.path[:60]}: {trouble[:300]} [{way}]")

    # --- asking -----------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, str]:
        """Status, kind and text, as the console's script asks for them. 0 where nothing answers."""
        password = base64.b64encode(f"me:{token_of(self.rights)}".encode()).decode()
        headers = {"Authorization": f"Basic {password}", **headers}
        data = None if body is None else json.dumps(body).encode("utf-8", "surrogatepass")
        if data is not None:
            headers = {"Content-Type": "application/json", **headers}
        url = URL(self.there.url + path, encoded=True)
        try:
            async with self.session.request(method, url, data=data, headers=headers, allow_redirects=False) as answer:
                return answer.status, answer.content_type, (await answer.read()).decode(errors="replace")
        except ClientError as error:
            return 0, "", repr(error)

    async def open(self, path: str, *, back: bool = False) -> None:
        """Go to a page, look at it, and compare it with REST."""
        if not back:
            self.behind.append(self.path)
        self.path = path
        status, kind, text = await self.ask("GET", path)
        if not status:
            return self.note(f"nothing answers: {text}")
        self.page = Page(text)
        for trouble in checks.of_page(self.page, status, kind, self.user):
            self.note(trouble)
        if status == 200 and not self.there.faults.away:
            await self._compare(path)
        return None

    async def _compare(self, path: str) -> None:
        found = checks.route_of("GET", path.partition("?")[0])
        for rest, told in checks.REST.get(found[0].path, ()) if found and "?" not in path else ():
            asked = rest if rest.startswith("/v1") else f"/v1{path.removeprefix('/console')}".removesuffix(rest) + rest
            if path.endswith("/time"):
                asked = f"/v1{path.removeprefix('/console').removesuffix('/time')}/watermark"
            status, _, text = await self.ask("GET", asked)
            if status != 200:
                self.note(f"REST answers {status} to {asked}")
            elif lost := checks.missing(self.page, told(json.loads(text))):
                self.note(f"the page lacks what {asked} tells: {lost[:2]}")

    async def tour(self) -> None:
        """Every page there is."""
        own = [f"/console/processors/{s.name}{view}" for s in self.there.shape.statuses[:1] for view in VIEWS]
        for path in ("/", "/console/connections", "/console/workers", "/console/audit", *own):
            await self.open(path)

    # --- what people do ---------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """A link of the page."""
        links = self.page.links
        await self.open(self.chooser.choice(links) if links else "/")

    async def choose(self) -> None:
        """A form's field, and its button; now and then a value that it does not have."""
        choices = self.page.choices()
        if not choices:
            return await self.follow()
        name, values = self.chooser.choice(choices)
        value = self.chooser.choice(values if self.chooser.random() < 0.8 else list(HOSTILE))
        return await self.open(f"{self.path.partition('?')[0]}?{urlencode({name: value}, errors='surrogatepass')}")

    async def press(self, count: int = 1) -> None:
        """A button, with its fields filled in; count: as fast as that, one behind the other."""
        if not self.page.buttons:
            return await self.follow()
        button = self.chooser.choice(self.page.buttons)
        method, path, body = self._filled(button)
        if path == "/v1/try" and self.chooser.random() > TRIED:
            return None
        await asyncio.gather(*(self._change(method, path, body) for _ in range(count)))
        return await self.open(self.path, back=True)

    def _filled(self, button: Element) -> tuple[str, str, dict[str, Any]]:
        """As the console's script makes a request of a button."""
        given, fields = button.attributes, self.page.fields()
        body = json.loads(given.get("data-body") or "{}")
        for key in ("document", "name"):
            if f"data-{key}" in given:
                keep = self.chooser.random() < 0.3
                body[key] = fields[given[f"data-{key}"]] if keep else typed(self.chooser, key)
        if "data-rows" in given:
            try:
                body["rows"] = json.loads(typed(self.chooser, "rows"))
            except ValueError:
                body["rows"] = []
        return given["data-method"], given["data-path"], body

    async def _change(self, method: str, path: str, body: Any, **headers: str) -> None:
        """A request that may change something; it does so only for who may."""
        headers = headers or {CONSOLE_HEADER: "1"}
        before = self.there.asked
        status, kind, text = await self.ask(method, path, body, **headers)
        self.way.append(f"{method} {path[:80]} {status}")
        for trouble in checks.of_answer(status, kind, text):
            self.note(f"{method} {path}: {trouble}")
        if CONSOLE_HEADER not in headers or not checks.may(self.user, method, path):
            if self.there.asked != before:
                self.note(f"{method} {path} went to the coordinator, and may not")
            if status < 400 and method != "GET":
                self.note(f"{method} {path} is answered {status}, and may not be asked")

    async def forge(self) -> None:
        """A request by hand, of any route: a viewer's, one for another's processor, one with a body that no form has."""
        route = self.chooser.choice([r for r in ROUTES if r.method != "GET" and r.path != "/v1/try"])
        names = [*(s.name for s in self.there.shape.statuses[:5]), *NAMES, "b.other"]
        path = route.path.replace("{name}", quote(self.chooser.choice(names), safe="") or "x")
        path = path.replace("{checkpoint}", quote(self.chooser.choice(NAMES), safe="") or "x")
        body = {
            key: typed(self.chooser, key) for key in ("name", "document", "checkpoint") if self.chooser.random() < 0.4
        }
        await self._change(route.method, path, self.chooser.choice((body, {}, [], None, "x", 1)))

    async def from_elsewhere(self) -> None:
        """Another site's page: the browser adds the password, and no header of the console's."""
        names: list[str] = [s.name for s in self.there.shape.statuses[:3]] or ["clicks"]
        path = f"/v1/processors/{self.chooser.choice(names)}/{self.chooser.choice(('start', 'stop', 'skip', 'redrive', 'audit'))}"
        await self._change("POST", path, {}, Origin="http://elsewhere.example", Referer="http://elsewhere.example/")

    async def go_to(self) -> None:
        """A page by its address, which may be of another, or of nobody."""
        names = [*(s.name for s in self.there.shape.statuses[:10]), *NAMES, "b.other", *HOSTILE]
        name = quote(self.chooser.choice(names), safe="", errors="surrogatepass") or "x"
        views = (*VIEWS, "/nowhere")
        paths = (f"/console/processors/{name}{self.chooser.choice(views)}", "/console/audit", "/console/nowhere", "/")
        await self.open(self.chooser.choice(paths))

    async def oddly(self) -> None:
        """As browsers, proxies and programs ask for a page: without its body, with wishes, with a slash behind it, encoded otherwise."""
        path = self.chooser.choice([*self.page.links, self.path, "/console", "/console/processors"]).partition("?")[0]
        status, kind, _ = await self.ask("GET", path)
        before = self.there.asked
        told = await self.ask("HEAD", path)
        if told[0] != status or told[2]:
            self.note(f"HEAD {path[:80]} answers {told}, and GET {status}")
        wish = self.chooser.choice(WISHES)
        wished = await self.ask("GET", path, None, **wish)
        if wished[:2] != (status, kind):
            self.note(f"GET {path[:80]} with {wish} answers {wished[:2]}, and without {(status, kind)}")
        if path.startswith("/console/"):
            slashed = await self.ask("GET", f"{path}/?x=%2F")
            if slashed[0] != MOVED:
                self.note(f"GET {path[:80]}/ answers {slashed}")
        twice = await self.ask("GET", path.replace("%", "%25") if "%" in path else path.replace("clicks", "cl%69cks"))
        if twice[0] not in (status, 404):
            self.note(f"{path[:80]} encoded otherwise answers {twice}")
        method = self.chooser.choice(("OPTIONS", "TRACE", "PROPFIND", "POST", "PUT", "DELETE"))
        other = await self.ask(method, path, {} if method in ("POST", "PUT") else None)
        if other[0] < 400 or self.there.asked != before:
            self.note(f"{method} {path[:80]} answers {other[0]}")

    async def back(self) -> None:
        """The browser's button."""
        await self.open(self.behind.pop() if self.behind else "/", back=True)

    async def again(self) -> None:
        """Reload."""
        await self.open(self.path, back=True)

    async def twice(self) -> None:
        """A button, pressed again before there is an answer."""
        await self.press(3)

    async def as_another(self) -> None:
        """Somebody else sits down."""
        self.rights = self.chooser.choice(USERS)
        await self.again()

    async def without_right(self) -> None:
        """The user is taken from the file while the page is open; then it is there again."""
        self.there.grant(*(each for each in USERS if each != self.rights))
        status, _, _ = await self.ask("GET", self.path)
        if status != 401:
            self.note(f"a user that is no more is answered {status}")
        await self._change("POST", "/v1/processors/clicks/stop", {}, Origin="null")
        self.there.grant(*USERS)

    async def away(self) -> None:
        """The brokers do not answer, and then they do."""
        self.there.faults.away = not self.there.faults.away
        await self.again()

    async def restarted(self) -> None:
        """The service ends and begins."""
        await self.there.stop()
        await self.there.start()
        await self.again()


ACTS: Final = (
    *("follow",) * 6, *("choose",) * 3, *("press",) * 3, *("go_to",) * 3, *("oddly",) * 2, "forge", "forge", "from_elsewhere", "back",
    "again", "twice",
    "as_another", "as_another", "without_right", "away", "restarted",
)  # fmt: skip


async def walk(there: Stand, chooser: random.Random, steps: int) -> list[str]:
    """What did not hold on a walk of so many steps."""
    async with ClientSession() as session:
        found = Walk(there, chooser, session)
        await found.tour()
        for _ in range(steps):
            act = chooser.choice(ACTS)
            found.way.append(f"{act} {found.path[:80]}")
            await getattr(found, act)()
        return found.wrong
