"""Who works on the installation itself: connections, users, processes; and who asks for what there is not, or in a form that is none."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.harness.operated.asking import AGAIN_S, path_of
from tests.harness.operated.flows import SHARED
from tidemark.services.local.supervisor import read_state

if TYPE_CHECKING:
    from tests.harness.operated.story import Story

NAMES: Final = (
    "nobody", "a/b", "..", "ä", "a b", "%2e%2e", "x" * 200, "-x", "'; drop table", "a\nb", "\U0001f600", "", ".", "a.", "a..b", "A" * 128,
)  # fmt: skip
BODIES: Final = (
    b"", b"{", b"[]", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"name": 1}', b'{"name": "a.x", "document": []}', b"[" * 5_000,
    b'{"drain": "yes"}', b'{"name": "a.x", "document": "pipeline: ["}', b'{"name": "a.x", "document": {"pipeline": [1]}}',
    b'{"resume": 3}', b'{"name": "a.x", "document": {}, "more": 1}', b'{"parallelism": {"source": -1}}',
    b'{"parallelism": {"source": 1e30}}', b"NaN",
)  # fmt: skip
TASKS: Final = ({"source": 0}, {"nothing": 1}, {"source": 10**6}, {"": 1}, {"source-1": 2**62})
ACTS: Final = {
    "connection": 4, "odd": 4, "malformed": 4, "users": 4, "kill": 4, "extra": 2, "lists": 3, "backup": 1, "tasks": 3, "until": 2,
    "probe": 2, "console": 2, "complete": 1, "usage": 2, "roles": 3,
    "login": 2, "quota": 2,
}  # fmt: skip
USAGES: Final = (
    ("rescale", "a.counts", "operator"), ("rescale", "a.counts", "operator=x"), ("skip", "a.counts", "x"), ("start",),
    ("statsu", "a.counts"), ("create", "nothing.json"), ("modify", "a.counts", "nothing.json"), ("create", "."), ("try", "nothing.json"),
    ("logs", "a.counts", "--limit", "0"), ("audit", "a.counts", "--data", "nowhere"), ("status", "a.counts", "--data", "nowhere"),
    ("ps", "--data", "nowhere"), ("dlq", "a.counts", "--limit", "-1"), ("restore", "nowhere"), ("up",),
    ("dlq", "a.counts", "--limit", "9" * 20),
)  # fmt: skip
PAGES: Final = ("", "/checkpoints", "/time", "/sample", "/dead-letters", "/verdict", "/logs", "/document")


@dataclass(slots=True)
class Installer:
    """Acts on one installation."""

    story: "Story"
    rng: random.Random
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def walk(self, count: int) -> None:
        """So many acts."""
        for _ in range(count):
            act = self.rng.choices(list(ACTS), list(ACTS.values()))[0]
            await getattr(self, f"_{act}")()
            await asyncio.sleep(self.rng.random() * 2)
        if self.story.connected != "good" and self.rng.random() < 0.7:
            await self.connect("good")

    def _refused(self, what: str, outcome: str, *allowed: str) -> None:
        if outcome not in (*allowed, "away"):
            self.story.asker.fault(f"outcome: {what}: {outcome}, not {allowed}")

    # --- connections ------------------------------------------------------------------------------------------------------

    async def connect(self, how: str) -> None:
        """The registry's connection: good, bad or gone."""
        async with self.connecting:
            await self._connect(how)

    async def _connect(self, how: str) -> None:
        path, story = f"/v1/connections/{SHARED}", self.story
        before, story.connected = story.connected, f"becomes {how}"
        address = "${LOCAL_KAFKA}" if how == "good" else "127.0.0.1:1"
        value = None if how == "gone" else {"type": "kafka", "bootstrapServers": address}
        while (found := await story.asker.rest("PUT" if value else "DELETE", path, value)).outcome == "away":  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        story.connected = how if found.outcome == "done" else before
        if found.outcome != "done" and not (how == "gone" and before == "gone"):
            story.asker.fault(f"outcome: connection {how}, was {before}: {found.text[:300]}")

    async def _connection(self) -> None:
        if self.rng.random() < 0.3:
            value: Any = self.rng.choice(
                [{"type": "nothing"}, [], {"type": "kafka"}, {"type": "kafka", "bootstrapServers": 5}]
            )
            found = await self.story.asker.rest("PUT", "/v1/connections/wrong", value)
            self._refused(f"connection {value}", found.outcome, "invalid")
        else:
            await self.connect(
                self.rng.choice(["good", "good", "bad", "gone"] if self.story.connected == "good" else ["good"])
            )

    async def _probe(self) -> None:
        story, was = self.story, self.story.connected
        found = await story.asker.rest("POST", f"/v1/connections/{SHARED}/test", {})
        wanted = {"good": "done", "bad": "refused", "gone": "absent"}[was]
        if not story.asker.troubled() and was == story.connected:
            self._refused(f"test of a connection that is {was}", found.outcome, wanted)
        self._refused(
            "test of no connection", (await story.asker.rest("POST", "/v1/connections/none/test", {})).outcome, "absent"
        )

    # --- wrong on purpose -------------------------------------------------------------------------------------------------

    async def _odd(self) -> None:
        name = self.rng.choice(NAMES)
        command = self.rng.choice(
            [
                "status",
                "stats",
                "start",
                "stop",
                "drop",
                "dlq",
                "checkpoints",
                "audit",
                "redrive",
                "explain-watermark",
                "logs",
            ]
        )
        if name and "\0" not in name:
            found = await self.story.asker.cli(command, name)
            self._refused(f"{command} {name!r}", found.outcome, "absent", "invalid", "refused")
        part = self.rng.choice(["", "/stats", "/watermark", "/plan", "/dead-letters", "/logs"])
        if name not in ("", ".", ".."):
            found = await self.story.asker.rest("GET", path_of(name) + part)
            self._refused(f"GET {name!r}{part}", found.outcome, "absent", "invalid")
        document = {"pipeline": [{"$source": {"documents": [{"a": 1}]}}, {"$emit": {"path": "odd", "format": "json"}}]}
        if name not in ("nobody", "a.", "a..b", "A" * 128):
            found = await self.story.asker.rest("POST", "/v1/processors", {"name": name, "document": document})
            self._refused(f"create {name!r}", found.outcome, "invalid")

    async def _malformed(self) -> None:
        path = path_of(self.rng.choice(self.story.walkers).flow.name)
        places = (
            ("POST", "/v1/processors"),
            ("PATCH", path),
            ("POST", "/v1/validate"),
            ("POST", "/v1/try"),
            ("PUT", "/v1/connections/wrong"),
            ("POST", f"{path}/skip"),
        )
        method, place = self.rng.choice(places)
        body = self.rng.choice(BODIES)
        harmless = (method == "PATCH" and body in (b"", b"{}")) or b'"resume"' in body
        found = await self.story.asker.rest(method, place, raw=body)
        self._refused(
            f"{method} {place} {body[:60]!r}",
            found.outcome,
            "invalid",
            "absent",
            *(["done", "refused"] if harmless else []),
        )

    async def _tasks(self) -> None:
        walker, tasks = self.rng.choice(self.story.walkers), self.rng.choice(TASKS)
        found = await self.story.asker.rest("PATCH", path_of(walker.flow.name), {"parallelism": tasks})
        self._refused(f"tasks {tasks} of {walker.flow.name}", found.outcome, "refused", "invalid", "absent")

    async def _until(self) -> None:
        walker = self.rng.choice(self.story.walkers)
        body = self.rng.choice(
            [{"until": {"x": 5}}, {"drain": True, "until": {"nothing-7": 5}}, {"drain": True, "until": {"x": -1}}]
        )
        found = await self.story.asker.rest("POST", path_of(walker.flow.name, "stop"), body)
        self._refused(
            f"stop of {walker.flow.name} {body}",
            found.outcome,
            "refused",
            "invalid",
            "absent",
            *(["done"] if walker.model.base == "FINISHED" else []),
        )

    async def _usage(self) -> None:
        words = self.rng.choice(USAGES)
        found = await self.story.asker.cli(*words)
        if found.outcome == "done":
            self.story.asker.fault(f"outcome: {words}: done")

    # --- looks ------------------------------------------------------------------------------------------------------------

    async def _lists(self) -> None:
        words = self.rng.choice(
            [
                ("processors", "--json"),
                ("topics", "--json"),
                ("connections", "--json"),
                ("ps", "--json"),
                ("processors",),
                ("ps",),
            ]
        )
        self._refused(" ".join(words), (await self.story.asker.cli(*words)).outcome, "done")
        path = self.rng.choice(
            [
                "/v1/processors",
                "/v1/workers",
                "/v1/connections",
                "/v1/audit",
                "/v1/user",
                "/openapi.json",
                "/v1/nothing",
            ]
        )
        self._refused(
            path, (await self.story.asker.rest("GET", path)).outcome, "absent" if path == "/v1/nothing" else "done"
        )

    async def _console(self) -> None:
        """A page, as a browser asks for it."""
        name, page = self.rng.choice(self.story.walkers).flow.name, self.rng.choice(PAGES)
        url, token = self.story.asker.address()
        path = self.rng.choice(
            ["/", "/console/connections", "/console/workers", "/console/audit", f"/console/processors/{name}{page}"]
        )
        with contextlib.suppress(OSError):  # the service was killed
            async with self.story.asker.session.get(url + path, headers={"Authorization": f"Bearer {token}"}) as found:
                text = await found.text()
                self.story.asker.acts["console page"] += 1
                if found.status >= 500 and not self.story.asker.troubled():
                    self.story.asker.fault(f"status {found.status}: page {path}: {text[-300:]}")
                if "<html" not in text[:200]:
                    self.story.asker.fault(f"no page: {path}: {text[:300]}")

    async def _complete(self) -> None:
        found = await self.story.asker.rest("POST", "/v1/complete", {"before": '{"pipeline": [{"$so', "after": ""})
        self._refused("complete", found.outcome, "done")

    async def _backup(self) -> None:
        """Refused while it runs."""
        found = await self.story.asker.cli("backup", str(self.story.folder / "backup-of-what-runs"))
        self._refused("backup while it runs", found.outcome, "refused")

    async def _users(self) -> None:
        await self.story.people.ask()

    async def _roles(self) -> None:
        await self.story.people.change()

    async def _login(self) -> None:
        await self.story.people.log_in()

    async def _quota(self) -> None:
        await self.story.namespace.act()

    # --- processes --------------------------------------------------------------------------------------------------------

    async def _kill(self) -> None:
        try:
            places = {each["place"]: each["pid"] for each in read_state(self.story.data)["processes"]}
        except (OSError, ValueError):
            return
        place = self.rng.choice(sorted(place for place in places if place != "broker" or self.rng.random() < 0.3))
        self.story.asker.trouble()
        self.story.kills[place.rpartition("-")[0] or place] += 1
        self.story.asker.say(f"    kill {place}")
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(places[place], signal.SIGKILL)

    async def _extra(self) -> None:
        """A second coordinator or one more worker begins, or one of these ends."""
        story = self.story
        self.story.asker.trouble(30)
        if story.extra and self.rng.random() < 0.6:
            process = story.extra.pop()
            number = self.rng.choice([signal.SIGTERM, signal.SIGKILL])
            with contextlib.suppress(ProcessLookupError):  # it has ended
                process.send_signal(number)
            await process.wait()
            story.kills[f"extra by {number.name}"] += 1
            return
        service = self.rng.choice(["coordinator", "operator", "source", "sink"])
        story.extra.append(await story.another(service, f"{service}-9{len(story.extra)}"))
        story.kills[f"extra {service}"] += 1

    async def again(self) -> None:
        """The installation ends, in order or not, and begins again; a backup in between, sometimes."""
        story = self.story
        for process in story.extra:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                process.kill()
            await process.wait()
        story.extra.clear()
        await story.end_second()
        number = self.rng.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
        story.kills[f"up by {number.name}"] += 1
        port = int(story.bootstrap.rpartition(":")[2])
        await story.down(number)
        if self.rng.random() < 0.5:
            place = story.folder / f"backup-{self.rng.random()}"
            found = await story.asker.cli("backup", str(place))
            self._refused("backup", found.outcome, "done")
            if found.outcome == "done" and self.rng.random() < 0.6:
                await self._restore(place)
        await story.up()
        story.asker.trouble(30)
        if int(story.bootstrap.rpartition(":")[2]) != port:
            story.asker.fault(f"another port: {story.bootstrap}, was {port}")

    async def _restore(self, place: Path) -> None:
        """The folder is lost, and the backup takes its place; it is not written over what is there."""
        story = self.story
        data = story.data
        self._refused("restore over a folder", (await story.asker.cli("restore", str(place))).outcome, "refused")
        await asyncio.to_thread(shutil.rmtree, data)
        found = await story.asker.cli("restore", str(place))
        self._refused("restore", found.outcome, "done")
        story.kills["restored"] += 1
