"""People at the console in Chromium, drawn, and what these walks have found: figures that stand still, a lost focus, long texts."""

import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.browser.chromium import Browser, chromium
from tests.browser.test_console import arrived
from tests.harness.console import token_of
from tests.harness.visits.__main__ import AXE, in_chromium
from tests.harness.visits.browsing import browse
from tests.harness.visits.shapes import KINDS, Shape, document, processor, window
from tests.harness.visits.stand import USERS, Stand, stand
from tests.integration.test_login import place_of
from tidemark.services.cli.process import quiet
from tidemark.shared.model.ids import Epoch

pytestmark = pytest.mark.browser
OWN = "/console/processors/clicks"
PRESS = "[...document.querySelectorAll('button')].find(b => b.textContent === {!r}).click()"


@pytest.fixture(autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def one() -> Shape:
    """An installation with a processor that runs."""
    found = Shape("one processor")
    status, found.beats = processor(random.Random(0), "clicks", document(window(0)), state="RUNNING")
    found.statuses.append(status)
    return found


@asynccontextmanager
async def before(shape: Shape, folder: Path) -> AsyncIterator[tuple[Stand, Browser]]:
    """An admin in a browser."""
    async with stand(shape, folder) as there, chromium(folder / "profile", token_of("admin"), there.url) as browser:
        yield there, browser


@pytest.mark.parametrize("kind", ["hostile contents", "64 vertices"])
async def test_a_walk_finds_nothing(kind: str, tmp_path: Path) -> None:
    """Every page of an installation of this kind at some size, and some steps of a walk."""
    chooser = random.Random(len(kind))
    async with (
        stand(KINDS[kind](chooser, Shape(kind)), tmp_path) as there,
        in_chromium(there, tmp_path) as (browser, net),
    ):
        assert await browse(there, chooser, browser, AXE.read_text(), net, 8) == []


async def test_figures_that_stand_still_say_so_and_live_again(tmp_path: Path) -> None:
    """The service ends; begins, and does not know enough yet; knows all; and then the processor is dropped."""
    notice = "document.getElementById('notice').textContent"
    async with before(one(), tmp_path) as (there, browser):
        await browser.open(there.url + OWN)
        await browser.when("document.body.dataset.live === 'yes'")
        await there.stop()
        await browser.when(f"{notice}.includes('the service does not answer')")
        there.faults.away = True
        await there.start()
        await browser.when(f"{notice}.includes('Kafka: expected the brokers to answer')")
        there.faults.away = False
        await browser.when(f"document.body.dataset.live === 'yes' && !{notice}")
        await there.tell(msgspec.structs.replace(there.shape.statuses[0], reason="as it is now"))
        await browser.when("document.getElementById('live').textContent.includes('as it is now')")
        await there.tell(None, "clicks")
        await browser.when(f"{notice}.includes('there is no processor named clicks')")


async def test_a_row_that_comes_leaves_focus_and_what_is_unfolded_where_they_were(tmp_path: Path) -> None:
    """Another name is kept above the one whose button has the focus; what no longer counts loses its mark."""
    async with before(one(), tmp_path) as (there, browser):
        await browser.open(f"{there.url}{OWN}/checkpoints")
        await browser.when("document.body.dataset.live === 'yes'")
        await browser.run(
            "document.querySelector('#live button.risky').focus(), window.kept = document.activeElement, 0"
        )
        await browser.run("document.querySelector('#live .scroll').setAttribute('aria-current', 'true'), 0")
        status = there.shape.statuses[0]
        await there.tell(msgspec.structs.replace(status, checkpoints=(("another", Epoch(1)), *status.checkpoints)))
        await browser.when("document.getElementById('live').textContent.includes('another')")
        assert await browser.run("document.activeElement === window.kept")
        assert "before-the-change" in await browser.run("window.kept.dataset.confirm")
        assert await browser.run("document.querySelectorAll('#live [aria-current]').length") == 0


async def test_a_pressed_button_keeps_the_focus_and_its_answer_is_seen(tmp_path: Path) -> None:
    """By keyboard; a second press meanwhile asks nothing."""
    shape = one()
    shape.connections = {f"c{number:02}": {"type": "kafka", "bootstrapServers": "memory"} for number in range(60)}
    async with before(shape, tmp_path) as (there, browser):
        await browser.look(1280, height=600)
        await browser.open(f"{there.url}/console/connections")
        await browser.run(
            "document.querySelector('button[data-path]').focus(), window.kept = document.activeElement, 0"
        )
        await browser.key("Enter")
        await browser.when("document.getElementById('said').textContent.includes('the brokers answer')")
        assert await browser.run("document.activeElement === window.kept")
        assert await browser.run("document.getElementById('said').getBoundingClientRect().bottom < innerHeight + 1")


async def test_numbers_of_records_stay_as_they_are_written(tmp_path: Path) -> None:
    """A try-out shows 64 bits, in what was typed and in what came out."""
    shape = Shape("plain")
    status, shape.beats = processor(random.Random(0), "clicks", document(), state="RUNNING")
    shape.statuses.append(status)
    async with before(shape, tmp_path) as (there, browser):
        await browser.open(f"{there.url}{OWN}/document")
        rows = json.dumps('[{"user": "a", "at": 9007199254740993}]')
        await browser.run(f"document.getElementById('rows').value = {rows}, 0")
        await browser.run(PRESS.format("Try out"))
        assert '"at":9007199254740993' in await browser.when("document.querySelector('#said pre')?.textContent")


async def test_a_long_name_fits_a_phone(tmp_path: Path) -> None:
    """In headings, lists, notes and fields."""
    shape, name = Shape("long"), "n" * 128
    status, shape.beats = processor(random.Random(0), name, document(window(0)), state="RUNNING")
    shape.statuses.append(msgspec.structs.replace(status, reason="r" * 500))
    shape.letters["refused"] = [json.dumps({"errInfo": {"code": "c" * 300, "reason": "x" * 300}}).encode()]
    async with before(shape, tmp_path) as (there, browser):
        for width in (390, 320):
            await browser.look(width)
            for view in ("", "/time", "/dead-letters", "/document", "/nowhere"):
                await browser.open(f"{there.url}/console/processors/{name}{view}")
                assert await browser.run("document.documentElement.scrollWidth") <= width, (view, width)


async def test_a_page_without_scripts_says_what_it_cannot(tmp_path: Path) -> None:
    """Its buttons do nothing, and it shows what was."""
    async with before(one(), tmp_path) as (there, browser):
        await browser.ask("Emulation.setScriptExecutionDisabled", value=True)
        await browser.ask("Page.navigate", url=there.url + OWN)
        while "Scripts are off" not in await seen(browser):
            pass


async def seen(browser: Browser) -> str:
    """The words of a page whose scripts do not run."""
    found: dict[str, Any] = await browser.ask("DOMSnapshot.captureSnapshot", computedStyles=[])
    return " ".join(found["strings"])


async def test_a_document_that_was_written_is_not_lost_without_a_question(tmp_path: Path) -> None:
    """A link asks first; what was modified asks no more."""
    async with before(one(), tmp_path) as (there, browser):
        await browser.open(f"{there.url}{OWN}/document")
        await browser.run("document.getElementById('document').focus()")
        await browser.key("Enter")
        await browser.run(f'document.querySelector(`nav a[href="{OWN}"]`).click()')
        await arrived(browser, OWN)
        assert [e["params"]["type"] for e in browser.events if e["method"] == "Page.javascriptDialogOpening"] == [
            "beforeunload"
        ]


async def test_what_answers_in_the_place_of_the_service_is_not_taken_for_it(tmp_path: Path) -> None:
    """A portal's page with status 200, and a question that hangs while the laptop sleeps: the figures are said to be those of then."""
    notice = "document.getElementById('notice').textContent"
    async with stand(one(), tmp_path) as there, in_chromium(there, tmp_path) as (browser, net):
        await browser.open(there.url + OWN)
        await browser.when("document.body.dataset.live === 'yes'")
        net.way = "portal"
        await browser.when(f"{notice}.includes('what answers is not the service (status 200)')")
        net.way = ""
        await browser.when(f"!{notice}")
        net.way = "hole"
        await browser.run("(now => { Date.now = () => now() + 3 * 3600 * 1000 })(Date.now.bind(Date)), 0")
        await browser.when(f"{notice}.includes(', 3 h ago: ')")
        net.way = ""
        await browser.when(f"!{notice}")


async def test_a_button_whose_answer_is_lost_may_be_pressed_again(tmp_path: Path) -> None:
    """The page says so, and asks under the same id, by which the coordinator knows what it has done."""
    async with stand(one(), tmp_path) as there, in_chromium(there, tmp_path) as (browser, net):
        await browser.open(there.url + OWN)
        net.lose_answer_to = "POST /v1/processors/clicks/start"
        await browser.run(PRESS.format("Start"))
        await browser.when("document.getElementById('said').textContent.includes('Press again: it is not done twice')")
        await browser.run(PRESS.format("Start"))
        await browser.when("document.getElementById('said').textContent.includes('no coordinator')")
        ids = await there.requests()
        assert (len(ids), len(set(ids))) == (2, 1)


@pytest.mark.parametrize("meanwhile", ["another's decision", "a decision", "minutes"])
async def test_a_button_that_is_pressed_again_much_later_asks_anew(tmp_path: Path, meanwhile: str) -> None:
    """Behind a lost answer: once the processor was changed otherwise, or after minutes, an answer of then would do nothing."""
    async with stand(one(), tmp_path) as there, in_chromium(there, tmp_path) as (browser, net):
        await browser.open(there.url + OWN)
        net.lose_answer_to = "POST /v1/processors/clicks/start"
        await browser.run(PRESS.format("Start"))
        await browser.when("document.getElementById('said').textContent.includes('Press again: it is not done twice')")
        if meanwhile == "minutes":
            await browser.run("(now => { Date.now = () => now() + 6 * 60 * 1000 })(Date.now.bind(Date)), 0")
        else:
            name = "clicks" if meanwhile == "a decision" else "others"
            refused = json.dumps(
                {"method": "POST", "path": f"/v1/processors/{name}/stop", "body": '{"until": {"a": 1}}'}
            )
            await browser.run(
                f"document.querySelector('main').append(Object.assign(document.createElement('button'), {{id: 'refused'}})),"
                f"Object.assign(document.getElementById('refused').dataset, {refused}),"
                "document.getElementById('refused').click(), 0"
            )
            await browser.when("document.getElementById('said').textContent.includes('drain: true beside it')")
        await browser.run(PRESS.format("Start"))
        await browser.when("document.getElementById('said').textContent.includes('no coordinator')")
        ids = await there.requests()
        assert (len(ids), len(set(ids))) == (2, 1 if meanwhile == "another's decision" else 2)


async def test_many_tabs_are_open_at_once(tmp_path: Path) -> None:
    """A browser has six connections to a host: tabs that nobody looks at take none, and the ninth lives, too."""
    async with before(one(), tmp_path) as (there, browser), AsyncExitStack() as tabs:
        for _ in range(9):
            tab = await tabs.enter_async_context(browser.tab())
            await tab.open(there.url + OWN)
            await tab.when("document.body.dataset.live === 'yes'")


async def test_a_page_of_a_user_who_is_taken_away_lives_again_behind_a_login(tmp_path: Path) -> None:
    """Figures stand still, and no prompt of the browser comes again and again; in another tab one gives a token that counts."""
    async with before(one(), tmp_path) as (there, browser):
        await browser.open(there.url + OWN)
        await browser.when("document.body.dataset.live === 'yes'")
        there.grant(*(user for user in USERS if user != "admin"))
        await browser.when("document.getElementById('notice').textContent.includes('your token counts no more')")
        there.grant(*USERS)
        async with browser.tab() as other:
            await other.ask("Page.navigate", url=there.url.replace("://", f"://me:{token_of('viewer')}@") + "/")
            await other.when("document.querySelector('h1')?.textContent === 'Processors'")
        await browser.ask("Page.bringToFront")
        await browser.when("document.body.dataset.live === 'yes' && !document.getElementById('notice').textContent")
        assert "viewer, viewer" in await browser.run("document.querySelector('header').textContent")


async def test_what_is_written_outlives_a_session(tmp_path: Path) -> None:
    """It ends while one writes; logged in again in another tab, one goes on in the first, and sends what one has written."""
    async with place_of(tmp_path) as place, chromium(tmp_path / "profile", "", place.url) as browser:
        await browser.ask("Page.navigate", url=place.url + "/console/login?next=/")
        await browser.when("document.querySelector('a.act')")
        await browser.run("document.querySelector('a.act').click()")
        await arrived(browser, "/")
        await browser.run("document.querySelector('details').open = true, document.getElementById('document').focus()")
        await browser.write("{")
        text = await browser.run("document.getElementById('document').value")
        async with browser.tab() as other:
            await other.open(place.url + "/console/nowhere")
            await other.run("[...document.querySelectorAll('button')].find(e => e.textContent === 'Log out').click()")
            await arrived(other, "/console/login")
        await browser.ask("Page.bringToFront")
        link = "document.querySelector('#notice a')"
        await browser.when(f"{link}?.target === '_blank'")
        assert "your session has ended" in await browser.run("document.getElementById('notice').textContent")
        async with browser.tab() as other:
            await other.ask("Page.navigate", url=place.url + await browser.run(f"{link}.pathname"))
            await arrived(other, "/console/login")
            await other.run("document.querySelector('a.act').click()")
            await arrived(other, "/")
        await browser.ask("Page.bringToFront")
        await browser.when("document.body.dataset.live === 'yes' && !document.getElementById('notice').textContent")
        assert await browser.run("document.getElementById('document').value") == text
        await browser.run(PRESS.format("Validate"))
        await browser.when("document.querySelector('#said .trouble')")
