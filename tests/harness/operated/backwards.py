"""Checkpoints that an operator keeps, forgets and goes back to: what came out behind one may come out again, and nothing else."""

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tests.harness.operated.asking import AGAIN_S, Answer, path_of
from tests.harness.operated.flows import Rows, added
from tests.harness.operated.model import ABSENT, DONE, EITHER, NO
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import ForgetCheckpoint, KeepCheckpoint, Request, StartProcessor

if TYPE_CHECKING:
    from tests.harness.operated.walker import Walker

ACTS: Final = {"keep": 4, "forget": 1, "back": 5}
NAMES: Final = ("one", "two", "Three_3.x-y")
WRONG: Final = ("", "a b", ".x", "ä", "x" * 129, "a/b", "%2e", "'; drop")
RELEASED_S: Final = 60.0
"""Within so long a kept checkpoint's output is visible, behind a kill, too."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept checkpoint, by what an operator sees."""

    path: Rows
    """The rows of its past, as far as they were visible before it was kept."""
    slack: Rows
    """Rows that became visible while it was being kept: of its past, or not."""
    document: Any
    parallelism: dict[str, int] | None
    """None: these were about to change."""


@dataclass(slots=True)
class Keeper:
    """Of one walker."""

    walker: "Walker"
    rng: random.Random
    kept: dict[str, Kept] = field(default_factory=dict)

    # --- acts ---------------------------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """The last checkpoint gets a name, or a name that is none is refused."""
        walker, model = self.walker, self.walker.model
        name = self.rng.choice(WRONG if self.rng.random() < 0.15 else NAMES)
        if model.goal == "idle":
            await walker.settle()
        before, path = await self._status(), await self._path()
        known = name in self.kept
        allowed = ABSENT if model.goal == "absent" else NO if known or name in WRONG else self._may_keep(before)
        found = await self._ask("keep", name)
        self._judge("keep", name, found, allowed)
        if found.outcome != "done" or known or name in WRONG:
            return
        after = await self._when_released(name)
        if after.get("state") == "STOPPED" and after["releasedEpoch"] < after["epoch"]:
            # Stopped while its tasks were on their way: what was committed comes out at the next start, beside what comes then.
            self._judge("forget", name, await self._ask("forget", name), DONE)
            return
        now = await self._path()
        same = all(after.get(each) == before.get(each) for each in ("document", "parallelism", "planVersion"))
        slack = added(walker.flow.slack, {topic: now[topic] - path[topic] for topic in now})
        told = after["parallelism"] if same and model.goal in ("up", "idle") else None
        self.kept[name] = Kept(path, slack, after["document"], told)

    async def forget(self) -> None:
        """One that is kept, or one that is not."""
        model, name = self.walker.model, self.rng.choice(NAMES)
        known = EITHER if model.back else DONE
        allowed = ABSENT if model.goal == "absent" else known if name in self.kept else NO
        found = await self._ask("forget", name)
        self._judge("forget", name, found, allowed)
        if found.outcome == "done":
            self.kept.pop(name, None)

    async def back(self) -> None:
        """It begins from a kept checkpoint; stopped before, mostly."""
        walker, model = self.walker, self.walker.model
        if not self.kept and self.rng.random() < 0.8:
            await self.keep()
        if self.kept and model.goal in ("up", "stopping") and self.rng.random() < 0.8:
            await walker.settle()
            if model.goal == "up":
                await walker.change("stop", "rest")
        await walker.settle()
        name = self.rng.choice(sorted(self.kept) if self.kept and self.rng.random() < 0.9 else NAMES)
        status = await self._status()
        if model.goal == "idle" and status.get("releasedEpoch") != status.get("epoch"):
            return  # what was committed comes out behind the going back: nobody could say of which life it is
        idle, ends = model.goal == "idle", await walker.ends()
        allowed = ABSENT if model.goal == "absent" else DONE if idle and name in self.kept else NO
        found = await self._ask("back", name)
        self._judge("back", name, found, allowed)
        if found.outcome != "done" or name not in self.kept:
            return
        kept = self.kept[name]
        walker.flow.close(ends, drained=model.base == "FINISHED")
        walker.flow.path, walker.flow.slack, walker.flow.held = kept.path, kept.slack, False
        model.did("back")
        if self.rng.random() < 0.7:
            await walker.settle()
            self._as_then(name, kept, await self._status())

    def lost(self) -> None:
        """A start without state, or a drop."""
        self.kept.clear()

    # --- what must be -------------------------------------------------------------------------------------------------------

    def _may_keep(self, status: dict[str, Any]) -> frozenset[str]:
        model = self.walker.model
        if model.fresh or model.drains or (model.goal == "idle" and model.base in ("CREATED", "FINISHED")):
            return NO
        sure = model.settled and model.goal in ("up", "idle") and not model.back and not self.walker.flow.unaligned
        return DONE if sure and status.get("epoch") else EITHER

    def _as_then(self, name: str, kept: Kept, status: dict[str, Any]) -> None:
        now = status.get("document"), status.get("parallelism")
        if (
            self.walker.model.goal == "up"
            and kept.parallelism is not None
            and status
            and now != (kept.document, kept.parallelism)
        ):
            if self.walker.flow.scales:
                return  # the installation may have changed its tasks since
            self._fault(f"back to {name}: {now}, not {(kept.document, kept.parallelism)}")

    def _judge(self, act: str, name: str, found: Answer, allowed: frozenset[str]) -> None:
        if found.outcome not in allowed:
            model = self.walker.model
            told = f"{model.goal} {model.base} settled={model.settled} fresh={model.fresh} drains={model.drains} back={model.back}"
            self._fault(
                f"{act} {name[:20]!r} ({told}, kept {sorted(self.kept)}): {found.outcome}, not {set(allowed)}: {found.text[:300]}"
            )

    def _fault(self, text: str) -> None:
        self.walker.story.asker.fault(f"kept: {self.walker.flow.name}: {text}")

    # --- looks --------------------------------------------------------------------------------------------------------------

    async def _path(self) -> Rows:
        """The rows of the present life that count: those of the kept checkpoint that it began from, and those since."""
        return self.walker.flow.passed(await self.walker.rows())

    async def _status(self) -> dict[str, Any]:
        while (found := await self._look()).outcome == "away":  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_S)
        return found.value if found.outcome == "done" else {}

    async def _look(self) -> Answer:
        return await self.walker.story.asker.rest("GET", path_of(self.walker.flow.name), quiet=True)

    async def _when_released(self, name: str) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        began, status = loop.time(), await self._status()
        while loop.time() - began < RELEASED_S:
            epochs = {each["name"]: each["epoch"] for each in status.get("kept", ())}
            if name in epochs and (status["releasedEpoch"] >= epochs[name] or status["state"] == "STOPPED"):
                return status
            await asyncio.sleep(AGAIN_S)
            status = await self._status()
        self._fault(
            f"{name} is not told as kept and released within {RELEASED_S} s: {status.get('kept')} {status.get('releasedEpoch')}"
        )
        return status

    # --- by four ways -------------------------------------------------------------------------------------------------------

    async def _ask(self, act: str, name: str) -> Answer:
        way, request, again = self.rng.choice(["cli", "rest", "rest", "message", "topic"]), uuid.uuid4().hex, False
        if way == "rest" and act == "forget" and not name:
            way = "message"
        ask = self._asker(act, name, way, request)
        while (found := await ask()).outcome == "away":
            again = True
            await asyncio.sleep(AGAIN_S)
        if again and way == "cli":  # the first one may have been carried out, and its answer lost
            done = {"keep": f" as {name}: forget it", "forget": "keeps no checkpoint named", "back": "is running"}[act]
            if done in found.text:
                return Answer("done", found.text)
        return found

    def _asker(self, act: str, name: str, way: str, request: str) -> Callable[[], Awaitable[Answer]]:
        asker, flow = self.walker.story.asker, self.walker.flow.name
        match way:
            case "cli":
                words = ["start", flow, "--from", name] if act == "back" else [act, flow, name]
                return lambda: asker.cli(*words)
            case "rest":
                method, parts, body = {
                    "keep": ("POST", ["checkpoints"], {"name": name}),
                    "forget": ("DELETE", ["checkpoints", quote(name, safe="")], None),
                    "back": ("POST", ["start"], {"checkpoint": name}),
                }[act]
                return lambda: asker.rest(method, path_of(flow, *parts), body, request=request)
            case "topic":
                command = {
                    "name": flow,
                    "request": request,
                    "checkpoint": name,
                    "command": "start" if act == "back" else act,
                }
                return lambda: asker.topic(act, self.walker.story.bootstrap, command)
            case _:
                message = self._message(act, name, request)
                return lambda: asker.message(act, message)

    def _message(self, act: str, name: str, request: str) -> Request:
        flow = ProcessorName(self.walker.flow.name)
        match act:
            case "keep":
                return KeepCheckpoint(request, flow, name)
            case "forget":
                return ForgetCheckpoint(request, flow, name)
            case _:
                return StartProcessor(request, flow, checkpoint=name)
