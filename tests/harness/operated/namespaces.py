"""A namespace of its own with quotas: what is beyond them is refused with the quota's name, what is within them is done."""

import asyncio
import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tests.harness.operated.asking import AGAIN_S, Answer, path_of
from tests.harness.operated.flows import PARTITIONS

if TYPE_CHECKING:
    from tests.harness.operated.story import Story

OUT: Final = "q-out"
"""Where its processors write: nobody looks at it."""
PROCESSORS: Final = 2
TASKS: Final = 3
QUOTAS: Final = (
    {"namespace": "q", "processors": PROCESSORS, "tasks": TASKS},
    {"namespace": "b", "bytes_per_s": 20_000},
    {"namespace": "*", "processors": 50, "tasks": 50},
)
"""Those of `b` slow a source that reads all of its topic again; none of them refuses what the walkers do."""
STILL_S: Final = 90.0
"""Within so long a processor that was stopped has stopped."""


@dataclass(slots=True)
class Namespace:
    """The namespace `q`, which is empty before and behind each act."""

    story: "Story"
    rng: random.Random

    def _document(self, name: str) -> dict[str, Any]:
        source = self.story.walkers[0].flow.topic
        return {
            "name": name,
            "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
            "pipeline": [
                {"$source": {"connectionName": "broker", "topic": source, "config": {"auto_offset_reset": "earliest"}}},
                {"$match": {"n": {"$lt": 0}}},
                {"$emit": {"connectionName": "broker", "topic": OUT}},
            ],
        }

    async def act(self) -> None:
        """A short life of two processors at the edge of their quotas."""
        one, two, three = (f"q.{word}" for word in ("one", "two", "three"))
        await self._is(one, "done", await self._create(one))
        await self._is(two, "done", await self._create(two))
        await self._is(three, "refused", await self._create(three), f"at most {PROCESSORS} processors")
        await self._is(one, "done", await self._ask("POST", one, {}, "start"))
        await self._is(two, "refused", await self._ask("POST", two, {}, "start"), f"at most {TASKS} may")
        wide = {"parallelism": {"source": PARTITIONS, "sink": 2}}
        await self._is(one, "refused", await self._ask("PATCH", one, wide), f"at most {TASKS} may")
        await self._is(one, "done", await self._ask("PATCH", one, {"parallelism": {"source": PARTITIONS, "sink": 1}}))
        await self._is(one, "done", await self._ask("POST", one, {}, "stop"))
        await self._still(one)
        await self._is(two, "done", await self._ask("POST", two, {}, "start"))
        await self._is(one, "refused", await self._ask("POST", one, {}, "start"), f"at most {TASKS} may")
        await self._is(one, "done", await self._ask("DELETE", one, None))
        await self._is(three, "done", await self._create(three))
        await self._is(two, "done", await self._ask("POST", two, {}, "stop"))
        await self._still(two)
        for name in (two, three):
            await self._is(name, "done", await self._ask("DELETE", name, None))

    async def _create(self, name: str) -> Answer:
        return await self._ask("POST", "", {"name": name, "document": self._document(name)})

    async def _ask(self, method: str, name: str, body: Any, *parts: str) -> Answer:
        """By REST, with one id until it is decided; or by the command line, where nothing is in trouble."""
        asker, request = self.story.asker, uuid.uuid4().hex
        if not asker.troubled() and self.rng.random() < 0.4 and (words := self._words(method, name, body, parts)):
            found = await asker.cli(*words)
            if found.outcome != "away":
                return found
        path = path_of(name, *parts) if name else "/v1/processors"
        while (found := await asker.rest(method, path, body, request=request)).outcome == "away":  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        return found

    def _words(self, method: str, name: str, body: Any, parts: Sequence[str]) -> list[str]:
        match method, *parts:
            case "POST", ("start" | "stop") as command:
                return [command, name]
            case ("DELETE",):
                return ["drop", name]
            case ("POST",):
                (self.story.folder / "q.json").write_text(json.dumps(body["document"]))
                return ["create", "q.json"]
            case _:
                return ["rescale", name, *(f"{service}={count}" for service, count in body["parallelism"].items())]

    async def _is(self, name: str, outcome: str, found: Answer, says: str = "") -> None:
        if found.outcome != outcome or says not in found.text:
            self.story.asker.fault(f"quota: {name}: {found.outcome} {found.text[:300]!r}, not {outcome} {says!r}")

    async def _still(self, name: str) -> None:
        """It has stopped."""
        loop = asyncio.get_running_loop()
        began, found = loop.time(), Answer("away", "")
        while loop.time() - began < STILL_S * (2 if self.story.asker.troubled() else 1):
            found = await self.story.asker.rest("GET", path_of(name), quiet=True)
            if found.outcome == "done" and found.value["state"] in ("STOPPED", "FAILED"):
                return
            await asyncio.sleep(AGAIN_S)
        self.story.asker.fault(f"quota: {name} does not stop: {found.text[:300]}")
