"""The console in Chromium, in front of a processor that runs: it lives, obeys keys and policy, fits a phone, and axe finds nothing."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Browser, chromium
from tests.harness.console import NAME, Shown, console, token_of
from tests.integration.test_login import place_of
from tidemark.services.cli.process import quiet
from tidemark.services.control.routes import ROUTES

pytestmark = pytest.mark.browser
ROOT = Path(__file__).resolve().parents[2]
AXE = ROOT / ".tidemark" / "axe" / "package" / "axe.min.js"
PICTURES = ROOT / "out" / "console"
OWN = f"/console/processors/{NAME}"
PAGES = [
    *(route.path.replace("{name}", NAME) for route in ROUTES if route.content == "text/html"),
    f"{OWN}/sample?edge=window-1%3Eemit-1",
]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Shown]:
    async with console(tmp_path) as shown:
        yield shown


@pytest.fixture
async def browser(shown: Shown, tmp_path: Path) -> AsyncIterator[Browser]:
    async with chromium(tmp_path / "profile", token_of("admin"), shown.url) as browser:
        yield browser


def asked_elsewhere(browser: Browser, origin: str) -> list[str]:
    """Requests that went to other hosts."""
    sent = [e["params"]["request"]["url"] for e in browser.events if e["method"] == "Network.requestWillBeSent"]
    assert sent
    plain = origin.partition("://")[2]
    return [url for url in sent if not url.startswith("data:") and plain not in url.partition("//")[2].split("/")[0]]


def complaints(browser: Browser) -> list[Any]:
    """Of the policy, of scripts, of files that are not there."""
    kinds = ("Log.entryAdded", "Runtime.exceptionThrown")
    return [e["params"] for e in browser.events if e["method"] in kinds]


async def violations(browser: Browser, axe: str) -> list[tuple[str, list[str]]]:
    """Of the page that is open: rules, and elements that break each."""
    # Through the debugger, which the page's policy does not bind.
    await browser.ask("Runtime.evaluate", expression=axe)
    found = json.loads(await browser.run("axe.run().then(found => JSON.stringify(found.violations))"))
    return [(each["id"], [node["html"] for node in each["nodes"]][:3]) for each in found]


async def arrived(browser: Browser, path: str) -> None:
    """Wait for a page behind others: a question is lost with the page to which it was put."""
    while True:
        try:
            await browser.when(f"document.readyState === 'complete' && location.pathname === '{path}'")
            return
        except AssertionError as error:
            if "navigated" not in str(error):
                raise


async def test_a_person_logs_in_and_out(tmp_path: Path) -> None:
    """From the login page to the page that was asked for, with a cookie that no script sees, and back; axe finds nothing on the way."""
    axe = AXE.read_text()
    async with place_of(tmp_path) as place, chromium(tmp_path / "profile", "", place.url) as browser:
        for width, dark in ((1280, False), (390, True)):
            await browser.look(width, dark=dark)
            for path in ("/console/login", "/console/login/done?state=another"):
                await browser.open(place.url + path)
                assert await violations(browser, axe) == [], (path, width, dark)
                assert await browser.run("document.documentElement.scrollWidth") <= width, (path, width)
        await browser.ask("Page.navigate", url=place.url + "/console/workers?x=1")
        await arrived(browser, "/console/login")
        await browser.run("document.querySelector('a.act').click()")
        await arrived(browser, "/console/workers")
        assert await browser.run("location.search") == "?x=1"
        assert await browser.run("document.cookie") == ""
        assert await violations(browser, axe) == []
        await browser.run("[...document.querySelectorAll('button')].find(e => e.textContent === 'Log out').click()")
        await arrived(browser, "/console/login")
        await browser.ask("Page.navigate", url=place.url + "/console/audit")
        await arrived(browser, "/console/login")
        assert await browser.run("location.search") == "?next=/console/audit"


async def test_axe_and_the_policy_find_nothing(shown: Shown, browser: Browser) -> None:
    """Each page, at the width of a desk and of a phone, by day and by night: no violation, no scrolling sideways, no request elsewhere."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    axe = AXE.read_text()
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        await browser.look(width, dark=dark)
        for path in PAGES:
            await browser.open(shown.url + path)
            assert await violations(browser, axe) == [], (path, width, dark)
            assert await browser.run("document.documentElement.scrollWidth") <= width, (path, width)
            name = path.strip("/").partition("%")[0].replace("/", "-").replace("?", "-") or "processors"
            await browser.shot(PICTURES / f"{name}-{width}-{'dark' if dark else 'light'}.png")
    await browser.run("document.documentElement.removeAttribute('lang')")
    assert "html-has-lang" in await browser.run("axe.run().then(found => found.violations.map(each => each.id).join())")
    assert asked_elsewhere(browser, shown.url) == []
    assert complaints(browser) == []


async def test_figures_live_and_focus_stays(shown: Shown, browser: Browser) -> None:
    """Counts grow while one looks, and the element that has the focus keeps it."""
    await browser.open(shown.url + OWN)
    count = "[...document.querySelectorAll('dt')].find(e => e.textContent === 'In').nextSibling.textContent.replace(',', '')"
    before = int(await browser.run(count))
    await browser.run("document.querySelector('#live .scroll').focus(), window.kept = document.activeElement, 0")
    await browser.when(f"Number({count}) > {before + 20}")
    assert await browser.run("window.kept === document.activeElement && window.kept.isConnected")
    assert await browser.run("document.body.dataset.live") == "yes"


async def test_keys_reach_everything(shown: Shown, browser: Browser) -> None:
    """The first key leads past the head, links and buttons follow, and each shows that it has the focus."""
    await browser.open(shown.url + OWN)
    reached = []
    for _ in range(30):
        await browser.key("Tab")
        reached.append(await browser.run("document.activeElement.textContent.slice(0, 30)"))
        assert await browser.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached[-1]
        if reached[-1] == "Drop":
            break
    assert reached[0] == "To the content"
    assert {"Processors", "Checkpoints", "Start", "Stop", "Drain", "Drop"} <= set(reached)


async def test_an_edge_is_chosen_and_its_rows_are_shown(shown: Shown, browser: Browser) -> None:
    """From the graph's list by a link, or by the field; the choice stays, and a document unfolds by keys."""
    await browser.open(shown.url + OWN)
    link = "[...document.querySelectorAll('#live a')].find(a => a.ariaLabel === 'sample of window-1>emit-1')"
    await browser.run(f"{link}.closest('details').open = true, {link}.click()")
    assert "user-" in await browser.when("document.querySelector('#live td summary')?.textContent")
    assert await browser.run("document.querySelector('select').value") == "window-1>emit-1"
    await browser.run("document.querySelector('td summary').focus()")
    await browser.key("Enter")
    await browser.when("document.querySelector('td details').open")


async def test_a_document_is_completed_by_keys(shown: Shown, browser: Browser) -> None:
    """Proposed while one writes, chosen with arrows, taken with Enter, undone as one step; told aloud; axe finds nothing."""
    field = "document.getElementById('document')"
    value, options = (
        f"{field}.value",
        "[...document.querySelectorAll('[role=option]')].map(e => e.firstChild.textContent)",
    )
    for width, dark in ((1280, False), (390, True)):
        await browser.look(width, dark=dark)
        await browser.open(f"{shown.url}{OWN}/document")
        await browser.run(
            f'{value} = \'{{"pipeline": [{{"$source": {{"schema": {{"user": 1}}}}}}, {{\', {field}.focus()'
        )
        await browser.key("Space", control=True)
        assert "$match" in await browser.when(f"{options}.length && {options}")
        assert "proposals: $source" in await browser.run("document.getElementById('heard').textContent")
        await browser.run("axe = undefined, 0")
        await browser.ask("Runtime.evaluate", expression=AXE.read_text())
        await browser.key("ArrowDown")
        told = await browser.run("axe.run().then(found => found.violations.map(each => each.id))")
        assert told == []
        await browser.shot(PICTURES / f"completion-{width}-{'dark' if dark else 'light'}.png")
        await browser.key("Escape")
        await browser.when("document.getElementById('proposals').hidden")
        await browser.write('"$mat')
        await browser.when(f"{options}.join() === '$match'")
        await browser.key("ArrowDown")
        assert await browser.run(f"{field}.getAttribute('aria-activedescendant')") == "proposal-0"
        await browser.key("Enter")
        assert (await browser.run(value)).endswith('}, {"$match": {}')
        assert "user" in await browser.when(f"{options}.length && {options}")
        await browser.run("document.execCommand('undo'), 0")
        assert (await browser.run(value)).endswith('}, {"$mat')
        await browser.run(f'{value} = \'{{"options": {{"lateness": "s"}}}}\', {field}.setSelectionRange(27, 27)')
        await browser.key("Space", control=True)
        await browser.when(f"{options}.join() === 'split'")
        await browser.run("document.querySelector('[role=option]').click()")
        assert await browser.run(value) == '{"options": {"lateness": "split"}}'
    assert asked_elsewhere(browser, shown.url) == []
    assert complaints(browser) == []


async def test_buttons_ask_first_and_do(shown: Shown, browser: Browser) -> None:
    """Stop asks, stops, and the page shows it; start starts; a wrong document is told by place, a change is shown as lines."""
    await browser.open(shown.url + OWN)
    press = "[...document.querySelectorAll('button')].find(b => b.textContent === {!r}).click()"
    await browser.run(press.format("Stop"))
    await browser.when("document.querySelector('dd .STOPPED')")
    questions = [e["params"]["message"] for e in browser.events if e["method"] == "Page.javascriptDialogOpening"]
    assert questions == [f"Stop {NAME} at a checkpoint?"]
    await browser.run(press.format("Start"))
    await browser.when("document.querySelector('dd .RUNNING')")
    await browser.open(f"{shown.url}{OWN}/document")
    await browser.run(
        "document.getElementById('document').value = document.getElementById('document').value.replace('counts', 'counted')"
    )
    await browser.run(press.format("Validate and compare"))
    assert "counted" in await browser.when("document.querySelector('#said .added')?.textContent")
    await browser.run("document.getElementById('document').value = '{\"pipeline\": [{\"$macth\": {}}]}'")
    await browser.run(press.format("Validate and compare"))
    assert "pipeline[0]" in await browser.when("document.querySelector('#said li')?.textContent")
    await browser.open(f"{shown.url}{OWN}/document")
    await browser.run("document.getElementById('rows').value = '[{'")
    await browser.run(press.format("Try out"))
    assert "expected a JSON list" in await browser.when("document.querySelector('#said .trouble')?.textContent")
    await browser.run('document.getElementById(\'rows\').value = \'[{"user": "a", "at": 1700000000000}]\'')
    await browser.run(press.format("Try out"))
    assert '"clicks":1' in await browser.when("document.querySelector('#said pre')?.textContent")
    await browser.open(f"{shown.url}{OWN}/dead-letters")
    await browser.run(press.format("Redrive"))
    assert "not set" in await browser.when("document.querySelector('#said .trouble')?.textContent")
    await browser.open(f"{shown.url}/console/connections")
    await browser.run(press.format("Test broker"))
    assert "KAFKA_PASSWORD" in await browser.when("document.querySelector('#said .trouble')?.textContent")


async def test_a_change_made_on_an_old_page_is_refused(shown: Shown, browser: Browser) -> None:
    """Somebody else changed the document since the page was opened; made on a new page the change is taken, and the processor is shown."""
    field = "document.getElementById('document')"
    press = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Modify').click()"
    await browser.open(f"{shown.url}{OWN}/document")
    other = json.loads(await browser.run(f"{field}.value"))
    other["options"] = {**other.get("options", {}), "limits": {"letterBytes": 60_000}}
    assert (await shown.ask("PATCH", f"/v1/processors/{NAME}", {"document": other}))[0] == 200
    await browser.run(press)
    assert "changed by somebody else" in await browser.when("document.querySelector('#said .trouble')?.textContent")
    while "60000" not in (await shown.ask("GET", f"/v1/processors/{NAME}"))[1]:
        await shown.there.committed(1, NAME)
    await browser.open(f"{shown.url}{OWN}/document")
    await browser.run(press)
    await arrived(browser, OWN)


async def test_a_viewer_looks_and_is_refused(shown: Shown, tmp_path: Path) -> None:
    """No button, no audit; and a request made by hand in the page is refused."""
    async with chromium(tmp_path / "viewer", token_of("viewer"), shown.url) as browser:
        await browser.open(shown.url + OWN)
        assert await browser.run("document.querySelectorAll('button[data-path]').length") == 0
        assert "Audit" not in await browser.run("document.querySelector('header').textContent")
        headers = {"Content-Type": "application/json", "Tidemark-Console": "1"}
        given = json.dumps({"method": "POST", "body": "{}", "headers": headers})
        send = f"fetch(location.origin + '/v1/processors/{NAME}/stop', {given}).then(answer => answer.status)"
        assert await browser.run(send) == 403
