"""A headless Chromium, asked by its own protocol over a socket: no driver, no package."""

import asyncio
import base64
import itertools
import json
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

_PATIENCE_S = 120
"""For what a page shows on a busy machine; an expectation that is wrong fails then."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0", "--force-color-profile=srgb",
)  # fmt: skip


@dataclass
class Browser:
    """One page."""

    socket: ClientWebSocketResponse
    host: str = ""
    """Of its protocol, where further tabs are opened."""
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    events: list[dict[str, Any]] = field(default_factory=list)
    """Of the network, of dialogs and of the console."""

    async def ask(self, method: str, **parameters: Any) -> Any:
        """A command's result."""
        number = next(self.numbers)
        await self.socket.send_json({"id": number, "method": method, "params": parameters})
        async for message in self.socket:
            found = json.loads(message.data)
            if found.get("id") == number:
                assert "error" not in found, (method, found["error"])
                return found["result"]
            if "method" in found:
                self.events.append(found)
            if found.get("method") == "Page.javascriptDialogOpening":
                accept = {"id": next(self.numbers), "method": "Page.handleJavaScriptDialog", "params": {"accept": True}}
                await self.socket.send_json(accept)
        raise AssertionError("the browser has ended")

    async def begin(self) -> None:
        """Hear of what happens."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.ask(f"{domain}.enable")

    @asynccontextmanager
    async def tab(self) -> "AsyncIterator[Browser]":
        """Another one of the same person's, in front of the others."""
        async with ClientSession() as session:
            async with session.put(f"http://{self.host}/json/new?about:blank") as answer:
                target = (await answer.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(target, max_msg_size=0) as socket:
                found = Browser(socket, self.host)
                await found.begin()
                yield found

    async def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        found = await self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def when(self, script: str) -> Any:
        """The expression's value as soon as it is true."""
        look = f"const look = () => {{ const found = {script}; found ? done(found) : setTimeout(look, 50) }}; look()"
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self.run(f"new Promise(done => {{ {look} }})")
        except TimeoutError:
            raise AssertionError(f"not true within {_PATIENCE_S} s: {script}") from None

    async def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        await self.ask("Page.navigate", url=url)
        await self.when(f"document.readyState === 'complete' && location.href === {json.dumps(url)}")

    async def look(self, width: int, *, dark: bool = False, height: int = 900) -> None:
        """The size of the window, in px, and the wish for a colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=features)

    async def shot(self, path: Path) -> None:
        """A picture of the whole page."""
        found = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    async def write(self, text: str) -> None:
        """Type it, at the cursor, as one input for each letter."""
        for letter in text:
            await self.ask("Input.dispatchKeyEvent", type="char", text=letter)

    async def key(self, name: str, *, control: bool = False) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "ArrowUp": 38, "ArrowDown": 40}
            text = {"text": "\r"} if name == "Enter" and kind == "rawKeyDown" else {}
            kind = "keyDown" if text else kind  # noqa: PLW2901 - only a keyDown brings text
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=name, code=name, windowsVirtualKeyCode=codes[name],
                modifiers=2 if control else 0, **text,
            )  # fmt: skip


@asynccontextmanager
async def chromium(folder: Path, token: str, origin: str) -> AsyncIterator[Browser]:
    """A browser whose user has given the token at the prompt of `origin`; "": none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert program is not None, f"expected one of {', '.join(NAMES)} (Debian: apt-get install chromium)"
    process = await asyncio.create_subprocess_exec(
        program, *FLAGS, f"--user-data-dir={folder}", "about:blank", stdout=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    try:
        address = ""
        while not address:
            line = (await process.stderr.readline()).decode()
            assert line, "the browser has ended before it listened"
            address = line.partition("DevTools listening on ")[2].strip()
        host = address.removeprefix("ws://").partition("/")[0]
        async with ClientSession() as session:
            async with session.put(f"http://{host}/json/new?about:blank") as answer:
                target = (await answer.json())["webSocketDebuggerUrl"]
            async with session.ws_connect(target, max_msg_size=0) as socket:
                browser = Browser(socket, host)
                await browser.begin()
                if token:
                    # As after a prompt: the address has name and password once, and the browser keeps them for the origin.
                    scheme, _, rest = origin.partition("://")
                    await browser.ask("Page.navigate", url=f"{scheme}://me:{token}@{rest}/")
                    await browser.open(f"{origin}/")
                yield browser
    finally:
        process.terminate()
        await process.wait()
