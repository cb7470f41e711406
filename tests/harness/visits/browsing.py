"""People at the console in Chromium, drawn: by mouse and keyboard, at any width, with a network that breaks and a service that restarts."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.browser.chromium import Browser
from tests.harness.visits.between import SLOW, TROUBLES, Between
from tests.harness.visits.stand import Stand
from tests.harness.visits.texts import typed
from tidemark.shared.adapters.clock import SystemClock

SIZES: Final = ((1280, 900), (390, 844), (320, 225), (1280, 300))
"""Of windows, px: a desk's, a phone's, a desk's at 400 %, a low one."""
ZONES: Final = ("UTC", "Asia/Kathmandu", "America/Los_Angeles", "Pacific/Kiritimati")
HEAVY: Final = 400_000
"""Characters of a page that axe takes seconds for."""
FRESH: Final = """(live => !live || Boolean(document.getElementById('notice').textContent)
  || Date.parse(live.dataset.at.replace(' ', 'T') + 'Z') > NOW - 15000)(document.querySelector('#live[data-every]'))"""
"""Whether figures that live are of now, or the page says that they are not. NOW: ms, by the clock of the service."""
CUT: Final = """[...document.querySelectorAll('.scroll, table, pre, svg')].filter(e => e.checkVisibility())
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1
    || e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
  .map(e => e.outerHTML.slice(0, 80))"""
"""What does not fit the paper."""
_PLACES: Final = "[...document.querySelectorAll('a[href], button, summary, input, select, textarea')].filter(e => e.checkVisibility())"


@dataclass
class Visit:
    """One person's browser; `wrong`: what did not hold, with the way to it."""

    there: Stand
    chooser: random.Random
    browser: Browser
    axe: str
    net: Between
    width: int = 1280
    way: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note(self, trouble: object) -> None:
        """Something does not hold."""
        self.wrong.append(f"{str(trouble)[:500]} [{' > '.join(each[:60] for each in self.way[-5:])}]")

    async def run(self, script: str) -> Any:
        """As the browser's, on whatever page there is: one that goes away takes the question with it."""
        while True:
            try:
                return await self.browser.run(script)
            except AssertionError as error:
                if "navigated" not in str(error) and "context" not in str(error):
                    raise

    async def settled(self) -> None:
        """A page is there, whole."""
        while await self.run("document.readyState") != "complete":
            pass

    # --- what people do ---------------------------------------------------------------------------------------------------

    async def go(self, path: str) -> None:
        """A page by its address."""
        self.way.append(f"go {path}")
        await self.browser.ask("Page.navigate", url=self.there.url + path)
        await self.settled()

    async def click(self) -> None:
        """Anything that can be clicked."""
        count = await self.run(f"{_PLACES}.length")
        place = self.chooser.randrange(count) if count else 0
        words = await self.run(
            f"(e => {{ if (!e) return ''; e.click(); return e.tagName + ' ' + e.textContent.slice(0, 30) }})({_PLACES}[{place}])"
        )
        self.way.append(f"click {words}")
        await self.settled()

    async def fill(self) -> None:
        """All fields of the page, where there are any; what is typed stays until one leaves."""
        self.way.append("fill")
        for name in ("document", "name", "rows"):
            text = json.dumps(typed(self.chooser, name))
            await self.run(f"(e => {{ if (e) e.value = {text} }})(document.getElementById('{name}'))")

    async def keys(self) -> None:
        """Some steps by Tab, and then Enter or Space on what is there; the focus is seen at each."""
        self.way.append("keys")
        for _ in range(self.chooser.randint(1, 12)):
            await self.browser.key("Tab")
            seen = await self.run(
                "(e => e === document.body || e === document.documentElement || getComputedStyle(e).outlineStyle !== 'none')"
                "(document.activeElement)"
            )
            if not seen:
                self.note(f"no focus is seen at {await self.run('document.activeElement.outerHTML.slice(0, 200)')}")
        before = await self.run("location.href")
        button = await self.run(
            "document.activeElement.matches('button[data-path]') && (window.pressed = document.activeElement, 1)"
        )
        await self.browser.key("Enter")
        await self.settled()
        if button and await self.run("location.href") == before and await self.run("Boolean(window.pressed)"):
            await self.browser.when("!document.querySelector('[aria-disabled=true]')")
            if await self.run("window.pressed?.isConnected && document.activeElement !== window.pressed"):
                self.note("a button loses the focus when it is pressed")

    async def size(self) -> None:
        """Another window, by day or by night."""
        self.width, height = self.chooser.choice(SIZES)
        self.way.append(f"size {self.width}")
        await self.browser.look(self.width, dark=self.chooser.random() < 0.5, height=height)

    async def paper(self) -> None:
        """As it is printed: whole tables and plots, and nothing to press."""
        self.way.append("paper")
        await self.browser.ask("Emulation.setEmulatedMedia", media="print")
        cut = await self.run(CUT)
        if cut or await self.run("[...document.querySelectorAll('button')].some(e => e.checkVisibility())"):
            self.note(
                f"printed at {self.width} px, {await self.run('location.pathname.slice(0, 60)')} is cut, or has buttons: {cut}"
            )
        await self.browser.ask("Emulation.setEmulatedMedia", media="")

    async def zone(self) -> None:
        """The browser's clock is elsewhere."""
        await self.browser.ask("Emulation.setTimezoneOverride", timezoneId=self.chooser.choice(ZONES))

    async def back(self) -> None:
        """The browser's button."""
        self.way.append("back")
        await self.run("history.back(), 0")
        await self.settled()

    async def again(self) -> None:
        """Reload."""
        self.way.append("again")
        await self.browser.ask("Page.reload")
        await self.settled()

    async def cut(self) -> None:
        """The network breaks, the page says so, and lives again."""
        self.way.append("cut")
        await self._offline(on=True)
        if await self._lives():
            await self.browser.when("document.getElementById('notice').textContent.includes('does not answer')")
        await self._offline(on=False)
        await self._recovers()

    async def restart(self) -> None:
        """The service ends and begins, and cannot say at once what it knows."""
        self.way.append("restart")
        lives = await self._lives()
        await self.there.stop()
        if lives:
            await self.browser.when("document.getElementById('notice').textContent.includes('does not answer')")
        self.there.faults.away = True
        await self.there.start()
        if lives:
            await self.browser.when("document.getElementById('notice').textContent.includes('Kafka')")
        self.there.faults.away = False
        await self.there.stop()
        await self.there.start()
        await self._recovers()

    async def network(self) -> None:
        """What lies between does something to each request, the page says what, and lives again. An old page is none of now."""
        way = self.chooser.choice((*SLOW, *TROUBLES))
        self.way.append(f"network {way}")
        before = await self.run("document.getElementById('live')?.dataset.at")
        self.net.way = way
        if await self._lives():
            if self.chooser.random() < 0.3:
                await self.sleep()
            if way in TROUBLES:
                words = json.dumps(TROUBLES[way])
                await self.browser.when(f"document.getElementById('notice').textContent.includes({words})")
                if await self.run("document.getElementById('live').dataset.at") < before:
                    self.note("the page shows older figures than before")
            else:
                await self.browser.when(f"document.getElementById('live').dataset.at > '{before}'")
        self.net.way = ""
        await self._recovers()

    async def sleep(self) -> None:
        """The laptop is shut for hours: its clock has gone on, and nothing else."""
        self.way.append("sleep")
        await self.run("(now => { Date.now = () => now() + 3 * 3600 * 1000 })(Date.now.bind(Date)), 0")

    async def lost(self) -> None:
        """The answer to a button is lost: the page says that it does not know; pressed again, it asks for the same under the same id."""
        deeds = await self.run(
            "[...document.querySelectorAll('button[data-path^=\"/v1/processors\"]')].map(e => e.dataset.method + ' ' + e.dataset.path)"
        )
        if not deeds:
            return
        place = self.chooser.randrange(len(deeds))
        self.way.append(f"lost {deeds[place]}")
        press = f"document.querySelectorAll('button[data-path^=\"/v1/processors\"]')[{place}].click()"
        self.net.lose_answer_to, lost, asked = deeds[place], self.net.lost, len(await self.there.requests())
        await self.run(f"{press}, 0")
        await self.browser.when(
            "document.getElementById('said').textContent.includes('Press again: it is not done twice')"
        )
        self.net.lose_answer_to = ""
        if self.net.lost == lost:
            self.note("nothing was lost")
        await self.run(f"{press}, 0")
        await self.browser.when("!document.querySelector('[aria-disabled=true]')")
        ids = (await self.there.requests())[asked:]
        if len(ids) not in (0, 2) or len(set(ids)) > 1:
            self.note(f"pressed twice, and asked as {ids}")

    async def _lives(self) -> bool:
        return bool(await self.run("Boolean(document.querySelector('#live[data-every]'))"))

    async def _recovers(self) -> None:
        if await self._lives():
            await self.browser.when(
                "document.body.dataset.live === 'yes' && !document.getElementById('notice').textContent"
            )

    async def _offline(self, *, on: bool) -> None:
        limits = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await self.browser.ask("Network.emulateNetworkConditions", offline=on, **limits)

    # --- what holds -------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Judge the page that is open."""
        if not await self.run("location.href.startsWith('http')"):
            return
        if not await self.run("document.styleSheets.length"):
            # A network that has just come back may break what was asked for meanwhile: people reload.
            self.way.append("no style sheet")
            await self.again()
        if not await self.run(FRESH.replace("NOW", str(SystemClock().now_ms()))):
            self.note(
                f"figures of {await self.run('document.getElementById(`live`).dataset.at')} are shown as those of now"
            )
        if await self.run("document.title.includes('injected') || Boolean(document.getElementById('injected'))"):
            self.note("a text of the installation became a part of the page")
        wide = await self.run("document.documentElement.scrollWidth")
        if wide > self.width:
            self.note(
                f"{await self.run('location.pathname.slice(0, 60)')} is {wide} px wide in a window of {self.width}"
            )
        for event in self.browser.events:
            entry = event["params"].get("entry", {})
            if event["method"] == "Network.loadingFailed" and event["params"].get("type") == "Stylesheet":
                self.way.append(f"style sheet: {event['params'].get('errorText')}")
            if event["method"] == "Runtime.exceptionThrown" or entry.get("source") in (
                "security",
                "javascript",
                "violation",
            ):
                self.note(event["params"])
            url = (
                event["params"].get("request", {}).get("url", "data:")
                if event["method"] == "Network.requestWillBeSent"
                else "data:"
            )
            if (
                not url.startswith(("data:", f"{self.there.url}/"))
                and f"@{self.there.url.partition('//')[2]}/" not in url
            ):
                self.note(f"a request elsewhere: {url}")
        self.browser.events.clear()
        if await self.run("document.documentElement.outerHTML.length") < HEAVY:
            await self.browser.ask("Runtime.evaluate", expression=self.axe)
            found = json.loads(await self.run("window.axe ? axe.run().then(f => JSON.stringify(f.violations)) : '[]'"))
            for each in found:
                self.note(
                    f"{await self.run('location.pathname')}: {each['id']}: {[node['html'][:150] for node in each['nodes'][:3]]}"
                )

    async def picture(self, folder: Path, name: str) -> None:
        """For people to look at."""
        folder.mkdir(parents=True, exist_ok=True)
        await self.browser.shot(folder / f"{name}.png")


ACTS: Final = (
    *("click",) * 8,
    *("fill",) * 2,
    *("keys",) * 3,
    *("size",) * 3,
    "zone",
    "paper",
    "back",
    "again",
    "cut",
    "restart",
    *("network",) * 3,
    *("lost",) * 2,
)
PAGES: Final = ("", "/checkpoints", "/time", "/dead-letters", "/logs", "/document", "/verdict", "/sample")


async def browse(
    there: Stand,
    chooser: random.Random,
    browser: Browser,
    axe: str,
    net: Between,
    steps: int,
    pictures: Path | None = None,
) -> list[str]:
    """What did not hold: on every page at some size, and on a walk of so many steps."""
    visit = Visit(there, chooser, browser, axe, net)
    own = [f"/console/processors/{s.name}{view}" for s in there.shape.statuses[:2] for view in PAGES]
    for number, path in enumerate(("/", "/console/connections", "/console/workers", "/console/audit", *own)):
        await visit.size()
        await visit.go(path)
        await visit.look()
        await visit.paper()
        if pictures is not None:
            await visit.picture(pictures, f"{there.shape.title.replace(' ', '-')}-{number}-{visit.width}")
    await visit.go("/")
    for _ in range(steps):
        act = chooser.choice(ACTS)
        await getattr(visit, act)()
        await visit.look()
    return visit.wrong
