"""Several at once: tabs that are old, people with other rights, scripts by REST, the command line, at two replicas and a real coordinator.

No worker is there, so what is told does not change by itself: whatever an answer says is compared with the registry before and after it.
"""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientSession

from tests.harness.console import token_of
from tests.harness.installation import Installed, MemoryConnections, installed
from tests.harness.sealing import sealed
from tests.harness.visits.pages import Element, Page
from tests.harness.visits.shapes import document
from tidemark.services.cli.remote import Remote, RemoteFailed
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.redaction import connection_digest, shown_connection
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import NO_CONNECTION

NAMES: Final = ("p", "q")
ROLES: Final = ("admin", "admin", "operator", "viewer")
VIEWS: Final = ("", "", "/document", "/checkpoints")
KEPT_MAX: Final = 12
"""Pages that are held, and requests that may be sent again: fewer than the answers that a coordinator keeps."""
STALE: Final = ("look at it again", "there is no processor named", "exists")
"""What refuses an act from an old page says that things have changed."""
CHANGES: Final = 300, 599


@dataclass
class Held:
    """A page that somebody has open since a while."""

    role: str
    path: str
    name: str
    page: Page
    job: str
    """Of the processor that it showed; "": none."""
    edits: int
    """How often its document had been changed when the page came."""


@dataclass
class Sent:
    """A request, which may come again."""

    role: str
    method: str
    path: str
    body: Any
    headers: dict[str, str]
    status: int = 0


@dataclass
class Meeting:
    """All of them; `wrong`: what did not hold."""

    there: Installed
    urls: tuple[str, ...]
    users: Path
    chooser: random.Random
    session: ClientSession
    executor: AsyncExecutor
    held: list[Held] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    edits: dict[str, int] = field(default_factory=dict)
    """Changes of documents that were taken, by job."""
    way: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _numbers: int = 0

    def note(self, trouble: str) -> None:
        """Something does not hold."""
        self.wrong.append(f"{trouble[:400]} [{' > '.join(self.way[-5:])}]")

    def grant(self, lowered: str = "") -> None:
        """The users, of whom one may only look."""
        lines = (
            f"{r} {'viewer' if r == lowered else r} {sha256(token_of(r).encode()).hexdigest()}\n"
            for r in sorted(set(ROLES))
        )
        self.users.write_text("".join(lines))

    async def truth(self) -> dict[str, Any]:
        """What the coordinator tells of each processor and connection, without figures."""
        found: dict[str, Any] = {
            name: (s.job, s.document, s.parallelism, s.checkpoints)
            for name, s in (await self.there.client.statuses()).items()
        }
        return {**found, "connections": await self.there.client.connections()}

    async def _ask(self, sent: Sent) -> tuple[int, str]:
        """At one of the replicas, as the console's script asks."""
        password = base64.b64encode(f"me:{token_of(sent.role)}".encode()).decode()
        headers = {"Authorization": f"Basic {password}", "Tidemark-Console": "1", **sent.headers}
        url = self.chooser.choice(self.urls) + sent.path
        async with self.session.request(sent.method, url, json=sent.body, headers=headers) as answer:
            return answer.status, await answer.text()

    def _key(self) -> str:
        self._numbers += 1
        return f"key-{self._numbers}"

    # --- acts -------------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Somebody opens a page, and leaves it open."""
        name, role = self.chooser.choice(NAMES), self.chooser.choice(ROLES)
        path = f"/console/processors/{name}{self.chooser.choice(VIEWS)}"
        status, text = await self._ask(Sent(role, "GET", path, None, {}))
        page, truth = Page(text), await self.truth()
        job = truth[name][0] if name in truth else ""
        if (status == 200) != bool(job):
            self.note(f"{path} answers {status}, and the job is {job!r}")
        live = page.root.one("id", "live")
        if job and (live is None or live.attributes.get("data-of") != job):
            self.note(f"{path} does not say which job it shows")
        self.held = [*self.held, Held(role, path, name, page, job, self.edits.get(job, 0))][-KEPT_MAX:]

    async def press(self) -> None:
        """A button of a page that may be old, now and then twice at once."""
        pages = [held for held in self.held if held.page.buttons]
        if not pages:
            return await self.look()
        held = self.chooser.choice(pages)
        button = self.chooser.choice(held.page.buttons)
        sent = self._pressed(held, button)
        if not sent.path.startswith(f"/v1/processors/{held.name}"):
            return None
        self.way.append(f"{held.role}: {sent.method} {sent.path} on a page of {held.job[:4]}")
        if self.chooser.random() < 0.2:
            self.grant(lowered=held.role)
            await self.judge(sent, held, may=False)
            return self.grant()
        await self.judge(sent, held)
        return None

    def _pressed(self, held: Held, button: Element) -> Sent:
        given, fields = button.attributes, held.page.fields()
        body = json.loads(given.get("data-body") or "{}")
        if "data-document" in given:
            made = json.loads(fields["document"])
            made["options"] = {
                **made.get("options", {}),
                "limits": {"letterBytes": self.chooser.randint(50_000, 60_000)},
            }
            body["document"] = json.dumps(made)
        if "data-name" in given:
            body["name"] = self.chooser.choice(("one", "two"))
        headers = {"Idempotency-Key": self._key(), "Tidemark-Job": held.job}
        return Sent(held.role, given["data-method"], given["data-path"], body, headers)

    async def create(self) -> None:
        """By a script."""
        body = {"name": self.chooser.choice(NAMES), "document": document(), "start": self.chooser.random() < 0.3}
        self.way.append(f"create {body['name']}")
        await self.judge(Sent("operator", "POST", "/v1/processors", body, {"Idempotency-Key": self._key()}), None)

    async def drop(self) -> None:
        """By the command line, whatever is there."""
        name = self.chooser.choice(NAMES)
        self.way.append(f"tidemark drop {name}")
        remote, before = Remote(self.chooser.choice(self.urls), token_of("admin")), await self.truth()
        try:
            for path, method in ((f"/v1/processors/{name}/stop", "POST"), (f"/v1/processors/{name}", "DELETE")):
                await self.executor.blocking(remote.send, method, path)
        except RemoteFailed as error:
            if name in before and "RUNNING" not in str(error) and "is running" not in str(error):
                self.note(f"the command line cannot drop {name}: {error}")

    async def connect(self) -> None:
        """A connection is written or deleted, by one who has looked at it a while ago, or who does not care."""
        name, before = self.chooser.choice(("c", "d")), (await self.truth())["connections"]
        known = before.get(name)
        right = NO_CONNECTION if known is None else connection_digest(known)
        replaces = self.chooser.choice((right, right, "", NO_CONNECTION, connection_digest({"type": "kafka"})))
        body = {"type": "kafka", "bootstrapServers": f"memory-{self.chooser.randint(0, 9)}"}
        method = self.chooser.choice(("PUT", "PUT", "DELETE"))
        headers = {"Idempotency-Key": self._key(), **({"Tidemark-Replaces": replaces} if replaces else {})}
        sent = Sent("admin", method, f"/v1/connections/{name}", body if method == "PUT" else None, headers)
        self.way.append(f"{method} {name}")
        status, text = await self.judge(sent, None)
        done = known == (shown_connection(body) if method == "PUT" else None)  # by another, or by what is asked again
        if (status < CHANGES[0]) != (done or replaces in ("", right)):
            self.note(f"{method} {name} made from {replaces!r} where {right!r} is there: {status} {text}")

    async def again(self) -> None:
        """What a proxy, a browser or a script sends a second time, much later: nothing is done."""
        if not self.sent:
            return
        made = [sent for sent in self.sent if sent.path == "/v1/processors"]  # which a drop makes possible again
        sent = self.chooser.choice(made if made and self.chooser.random() < 0.5 else self.sent)
        before = await self.truth()
        self.way.append(f"again {sent.method} {sent.path}")
        status, text = await self._ask(sent)
        if (status, await self.truth()) != (sent.status, before):
            self.note(
                f"{sent.method} {sent.path} again: {status} after {sent.status}, {text}; was {before}, is {await self.truth()}"
            )

    # --- judging ----------------------------------------------------------------------------------------------------------

    async def judge(self, sent: Sent, held: Held | None, *, may: bool = True) -> tuple[int, str]:
        """Send it; what was done, and what was said, is right."""
        before = await self.truth()
        job = before[held.name][0] if held is not None and held.name in before else ""
        if self.chooser.random() < 0.3:
            answers = await asyncio.gather(self._ask(sent), self._ask(sent))
            status, text = answers[0]
            if answers[1][0] != status:
                self.note(f"twice at once: {answers}")
        else:
            status, text = await self._ask(sent)
        after, done = await self.truth(), status < CHANGES[0]
        self.way.append(str(status))
        if not may and status != 403:
            self.note(f"whose role was lowered is answered {status}: {text}")
        if status >= 500:
            self.note(f"{status}: {text}")
        if not done and after != before:
            self.note(f"refused, and done: {text}; was {before}, is {after}")
        if held is not None and may:
            self._of_page(sent, held, job, done=done, text=text)
        if may:  # who has the right again may send it again, and is heard
            sent.status = status
            self.sent = [*self.sent, sent][-KEPT_MAX:]
        return status, text

    def _of_page(self, sent: Sent, held: Held, job: str, *, done: bool, text: str) -> None:
        changed = held.job != job or ("document" in sent.body and held.edits != self.edits.get(job, 0))
        if done and changed:
            self.note(
                f"a page of {held.job}, changed {held.edits} times, has done something to {job}, {self.edits.get(job, 0)}"
            )
        if not done and held.job != job and not any(words in text for words in STALE):
            self.note(f"a page of {held.job} is refused at {job}, and not told why: {text}")
        if not done and not changed and "since you looked" in text:
            self.note(f"nothing has changed, and something is said to have: {text}")
        if done and "document" in sent.body:
            self.edits[job] = self.edits.get(job, 0) + 1


ACTS: Final = (*("look",) * 4, *("press",) * 8, *("create",) * 3, *("drop",) * 2, *("connect",) * 2, *("again",) * 5)


@asynccontextmanager
async def meeting(chooser: random.Random, folder: Path) -> AsyncIterator[Meeting]:
    """An installation with two replicas of control."""
    clock, executor = SystemClock(), AsyncExecutor()
    async with AsyncExitStack() as stack:
        there = await stack.enter_async_context(installed(clock, executor, services=()))
        session = await stack.enter_async_context(ClientSession())
        for topic in ("clicks", "counts", "refused"):
            await there.outside.log.create_topic(topic, 1)
        found = Meeting(there, (), folder / "users", chooser, session, executor)
        found.grant()
        settings = ControlSettings(port=0, engine="local", logs="", agents=False, users_file=str(folder / "users"))
        for _ in range(2):
            service = ControlService(
                sealed(MemoryLog(there.broker)), there.outside.topics, clock, executor, settings, token_of("")
            )
            service.commands.connect_briefly = lambda: MemoryConnections("control", MemoryLog(there.broker))
            running = executor.spawn(service.run(), "control", _raise)
            stack.push_async_callback(running.join)
            stack.callback(service.stop)
            await service.serving.wait()
            while not service.model.ready():
                await clock.sleep_ms(5)
            found.urls = (*found.urls, service.url)
        yield found


async def meet(found: Meeting, steps: int) -> list[str]:
    """What did not hold in so many acts."""
    for name in NAMES:
        await found.there.create(document(), ProcessorName(name))
    for _ in range(steps):
        await getattr(found, found.chooser.choice(ACTS))()
    return found.wrong


def _raise(error: BaseException) -> None:
    raise error
