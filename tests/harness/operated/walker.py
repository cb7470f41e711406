"""One processor's operator: acts that its state allows and acts that it does not, by three ways; its state is followed, and looked at."""

import asyncio
import json
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError

from tests.harness.operated.asking import AGAIN_S, Answer, path_of
from tests.harness.operated.backwards import ACTS as BACKWARDS
from tests.harness.operated.backwards import Keeper
from tests.harness.operated.flows import PARTITIONS, Flow, Row, read
from tests.harness.operated.model import Model
from tidemark.shared.model.ids import Epoch, ProcessorName
from tidemark.shared.model.messages import (
    CreateProcessor,
    DropProcessor,
    ModifyProcessor,
    Request,
    SkipRelease,
    StartProcessor,
    StopProcessor,
)

if TYPE_CHECKING:
    from tests.harness.operated.story import Story

SETTLED_S: Final = 90.0
"""Within so long a start, a stop or a drain has come to its end; twice as long behind a kill."""
LOOK_S: Final = 0.3
MOMENTS: Final = 20
AWAY_S: Final = 8.0
"""How long a processor has brokers that are none, at the most."""
CHANGES: Final = {
    "create": 2, "start": 8, "start-anew": 2, "stop": 5, "drain": 2, "modify": 5, "modify-anew": 1, "rescale": 5, "drop": 2, "skip": 1,
}  # fmt: skip
READS: Final = {
    "status": 3, "stats": 2, "watermark": 2, "logs": 2, "sample": 3, "edge": 2, "dlq": 2, "checkpoints": 2, "try": 1, "audit": 2,
    "redrive": 2, "plan": 1, "history": 1, "works": 2, "race": 2, "again": 2, "check": 1,
}  # fmt: skip


@dataclass(slots=True)
class Walker:
    """Acts on one flow."""

    story: "Story"
    flow: Flow
    rng: random.Random
    model: Model = field(default_factory=Model)
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    redriven: int = 0
    job: str = ""
    keeper: Keeper = field(init=False)

    def __post_init__(self) -> None:
        """Draw."""
        self.keeper = Keeper(self, random.Random(f"{self.story.seed} {self.flow.name} kept"))

    async def step(self) -> None:
        """One act."""
        names = {**CHANGES, **READS, **BACKWARDS}
        if self.model.goal == "absent":
            names = {**names, "create": 60}
        elif self.model.goal == "idle":
            names = {**names, "start": 16, "start-anew": 6 if self.model.base == "FINISHED" else 2}
        act = self.rng.choices(list(names), list(names.values()))[0]
        if act in CHANGES:
            await self.change(act)
        elif act in BACKWARDS:
            await getattr(self.keeper, act)()
        else:
            await getattr(self, f"_{act}")()
        if self.rng.random() < 0.5:
            await self.settle()

    # --- changes ----------------------------------------------------------------------------------------------------------

    async def change(self, act: str, way: str = "") -> Answer:
        """An act that changes something, until it is decided; then the state that is told."""
        anew = act in ("start-anew", "drop") or (act == "start" and self.model.fresh)
        if anew and self.model.goal in ("stopping", "draining"):
            await self.settle()
        if act == "drain":
            async with self.sending:  # nothing is under way
                self.flow.held = True
        ends = await self.ends() if self.model.goal == "idle" and self.model.began else None
        drained = self.model.base == "FINISHED"
        connected, allowed = self.story.connected, self.model.allows(act)
        if self._names_it(act) and connected == "gone":
            allowed = frozenset({"invalid", "refused", *(["absent"] if self.model.goal == "absent" else [])})
        way = way or self.rng.choice(["cli", "rest", "rest", "message", "topic"])
        found = await self._decided(act, way)
        sure = connected == self.story.connected or not self._names_it(act)
        if found.outcome not in allowed and sure:
            told = f"{self.model.goal} {self.model.base} settled={self.model.settled} fresh={self.model.fresh} drains={self.model.drains}"
            self.story.asker.fault(
                f"outcome: {act} of {self.flow.name} ({told}): {found.outcome}, not {set(allowed)}: {found.text[:300]}"
            )
            await self.resync()
        elif found.outcome == "done":
            self.model.did(act)
            if anew and ends is not None:
                self.flow.close(ends, drained=drained)
                self.model.began = act != "drop"
            if anew:
                self.keeper.lost()
            if anew and self.model.goal != "draining":
                self.flow.held = False
            await self._told(act, way)
        if found.outcome == "done" and self._names_it(act) and (connected, self.story.connected) != ("good", "good"):
            await self._mend()
        if act == "drain" and not self.model.drains:
            self.flow.held = self.model.base == "FINISHED" and self.model.goal == "idle"
        return found

    def _names_it(self, act: str) -> bool:
        """Whether the act's document names the registry's connection."""
        return self.flow.kind == "copies" and act in ("create", "modify", "modify-anew")

    async def _mend(self) -> None:
        """Its brokers may be none: it waits for them, until it has others."""
        await asyncio.sleep(self.rng.random() * AWAY_S)
        await self.story.installer.connect("good")
        await self.change("modify", "rest")

    async def _decided(self, act: str, way: str) -> Answer:
        request, again = uuid.uuid4().hex, False
        ask = self._asker(act, way, request)
        while True:
            found = await ask()
            if found.outcome != "away":
                break
            again = True
            await asyncio.sleep(AGAIN_S)
        if again and way == "cli":  # the first one may have been carried out, and its answer lost
            done = {"create": "exists", "drop": "no processor", "start-anew": "is running"}.get(act, "\0")
            if done in found.text:
                return Answer("done", found.text)
        return found

    def _document(self, act: str) -> dict[str, Any]:
        if act != "create":
            self.flow.version += 1
        document = self.flow.document(self.rng.choice([200, 400, 1_000]))
        if self.rng.random() < 0.3:
            most = {"source": PARTITIONS, "sink": 2}
            self.flow.scales = True
            document["options"]["tasks"] = {each: {"min": self.rng.randint(1, 2), "max": n} for each, n in most.items()}
        if self.rng.random() < 0.2:
            self.flow.unaligned = True
            document["options"]["checkpoint"]["alignmentTimeout"] = {"size": 50, "unit": "ms"}
        return document

    def _tasks(self) -> dict[str, int]:
        services = {
            "source": 2,
            "sink": 2,
            **({"operator": 2} if self.flow.kind == "counts" and not self.story.spark else {}),
        }
        return {
            service: self.rng.randint(1, most) for service, most in services.items() if self.rng.random() < 0.7
        } or {"sink": 1}

    def _asker(self, act: str, way: str, request: str) -> Callable[[], Awaitable[Answer]]:
        match way:
            case "cli":
                words = self._words(act)
                return lambda: self.story.asker.cli(*words)
            case "rest":
                method, path, body = self._rest(act)
                return lambda: self.story.asker.rest(method, path, body, request=request)
            case "topic":
                command = {"name": self.flow.name, "request": request, **self._command(act)}
                return lambda: self.story.asker.topic(act, self.story.bootstrap, command)
            case _:
                message = self._message(act, request)
                return lambda: self.story.asker.message(act, message)

    def _words(self, act: str) -> list[str]:
        name, file = self.flow.name, f"{self.flow.name}.json"
        if act in ("create", "modify", "modify-anew"):
            (self.story.folder / file).write_text(json.dumps(self._document(act)))
        tasks = [f"{service}={count}" for service, count in self._tasks().items()]
        return {
            "create": ["create", file],
            "start": ["start", name],
            "start-anew": ["start", name, "--without-state"],
            "stop": ["stop", name],
            "drain": ["stop", name, "--drain"],
            "modify": ["modify", name, file],
            "modify-anew": ["modify", name, file, "--without-state"],
            "rescale": ["rescale", name, *tasks],
            "drop": ["drop", name],
            "skip": ["skip", name, "1"],
        }[act]

    def _rest(self, act: str) -> tuple[str, str, Any]:
        path, body = path_of(self.flow.name), self._command(act)
        match command := body.pop("command"):
            case "create":
                return "POST", "/v1/processors", {"name": self.flow.name, **body}
            case "modify":
                return "PATCH", path, body
            case "drop":
                return "DELETE", path, None
            case _:
                return "POST", f"{path}/{command}", body

    def _command(self, act: str) -> dict[str, Any]:
        match act:
            case "create":
                return {"command": "create", "document": self._document(act)}
            case "start" | "start-anew":
                return {"command": "start", "resume": act == "start"}
            case "stop" | "drain":
                return {"command": "stop", "drain": act == "drain"}
            case "modify" | "modify-anew":
                return {"command": "modify", "document": self._document(act), "resumeFromCheckpoint": act == "modify"}
            case "rescale":
                return {"command": "modify", "parallelism": self._tasks()}
            case "drop":
                return {"command": "drop"}
            case _:
                return {"command": "skip", "epoch": 1}

    def _message(self, act: str, request: str) -> Request:
        name = ProcessorName(self.flow.name)
        match act:
            case "create":
                return CreateProcessor(request, name, json.dumps(self._document(act)))
            case "start" | "start-anew":
                return StartProcessor(request, name, act == "start")
            case "stop" | "drain":
                return StopProcessor(request, name, act == "drain")
            case "modify" | "modify-anew":
                return ModifyProcessor(request, name, json.dumps(self._document(act)), None, act == "modify")
            case "rescale":
                return ModifyProcessor(request, name, None, self._tasks())
            case "drop":
                return DropProcessor(request, name)
            case _:
                return SkipRelease(request, name, Epoch(1))

    # --- its state --------------------------------------------------------------------------------------------------------

    async def state(self) -> tuple[str, str]:
        """As REST tells it now, with the reason; "" while nobody tells."""
        found = await self.story.asker.rest("GET", path_of(self.flow.name), quiet=True)
        if found.outcome == "absent":
            return "ABSENT", ""
        if found.outcome != "done":
            return "", found.text
        self.job = found.value["job"]
        return found.value["state"], found.value["reason"]

    async def _told(self, act: str, way: str) -> None:
        """Right behind an act, what is told is a state that the act allows: of one that went by another way, a moment later."""
        allowed = self.model.states()
        state, reason = await self.state()
        for _ in range(MOMENTS if way == "message" or self.story.asker.troubled() else 0):
            if state in allowed:
                break
            await asyncio.sleep(LOOK_S)
            state, reason = await self.state()
        if state == "FAILED":
            await self._failed(reason)
        elif state and state not in allowed:
            self.story.asker.fault(f"state told: {act} of {self.flow.name}: {state}, not one of {sorted(allowed)}")

    async def _failed(self, reason: str) -> None:
        self.story.asker.fault(f"FAILED: {self.flow.name}: {reason}")
        await asyncio.sleep(LOOK_S)
        self.model.goal, self.model.base, self.model.settled = "idle", "STOPPED", True

    async def settle(self) -> None:
        """Wait for the end of what goes on."""
        loop = asyncio.get_running_loop()
        began, state, reason = loop.time(), "", ""
        while loop.time() - began < SETTLED_S * (2 if self.story.asker.troubled() else 1):
            state, reason = await self.state()
            if state == "FAILED":
                await self._failed(reason)
                return
            if state and self.model.shown(state):
                return
            await asyncio.sleep(LOOK_S)
        self.story.asker.fault(f"does not settle: {self.flow.name}: {self.model.goal}, told {state} {reason}")
        await self.resync()

    async def resync(self) -> None:
        """Take the state that is told three times in a row."""
        last, times = "", 0
        while times < 3:
            state, _ = await self.state()
            times, last = (
                (times + 1, state) if state == last and state not in ("", "STARTING", "STOPPING") else (0, state)
            )
            await asyncio.sleep(LOOK_S)
        goal = {"ABSENT": "absent", "RUNNING": "draining" if self.model.drains else "up"}.get(last, "idle")
        self.model.goal, self.model.base, self.model.settled = goal, last, goal != "draining"  # type: ignore[assignment]
        self.model.drains = self.model.drains and last != "FINISHED"

    async def rows(self) -> dict[str, list[Row]]:
        """All that its topics have, once the broker is there: the story kills it, too."""
        while True:
            try:
                found = await read(self.story.bootstrap, self.flow.outputs)
            except (KafkaError, TimeoutError):
                if not self.story.asker.troubled():
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                return {topic: [self.flow.found(topic, value) for value in values] for topic, values in found.items()}

    async def ends(self) -> dict[str, int]:
        """How many rows each topic has."""
        return {topic: len(rows) for topic, rows in (await self.rows()).items()}

    # --- looks ------------------------------------------------------------------------------------------------------------

    async def _look(self, cli: list[str], path: str, act: str = "look", more: frozenset[str] = frozenset()) -> Answer:
        """By the command line or by REST."""
        allowed = self.model.allows(act) | more | {"away"}
        found = await (
            self.story.asker.cli(*cli)
            if not path or self.rng.random() < 0.5
            else self.story.asker.rest("GET", path_of(self.flow.name) + path)
        )
        if found.outcome not in allowed:
            self.story.asker.fault(
                f"outcome: {' '.join(cli)} ({self.model.goal}): {found.outcome}, not {set(allowed)}: {found.text[:300]}"
            )
        return found

    async def _status(self) -> None:
        found = await self._look(["status", self.flow.name, "--json"], "")
        if found.outcome == "done" and found.value["state"] not in self.model.states() - {"DRAINING"}:
            self.story.asker.fault(
                f"state told: status {self.flow.name}: {found.value['state']}, not of {sorted(self.model.states())}"
            )

    async def _stats(self) -> None:
        await self._look(["stats", self.flow.name, "--json"], "/stats?verbose=true")

    async def _watermark(self) -> None:
        await self._look(["explain-watermark", self.flow.name, *self.rng.choice([["--json"], []])], "/watermark")

    async def _logs(self) -> None:
        found = await self._look(["logs", self.flow.name, "--limit", "20"], "/logs?limit=20")
        if found.outcome == "done" and isinstance(found.value, str):
            self._lines(found.value, "logs")

    def _lines(self, text: str, what: str) -> list[Any]:
        try:
            return [json.loads(line) for line in text.splitlines()]
        except ValueError:
            self.story.asker.fault(f"no JSON: {what} of {self.flow.name}: {text[:300]}")
            return []

    async def _sample(self) -> None:
        await self._look(["sample", self.flow.name], "/sample?limit=5", "sample")

    async def _edge(self) -> None:
        edge = self.rng.choice(["source-1>emit-1", "nothing>at-all", "ä>", ">>", "source-1>window-1"])
        await self._look(
            ["sample", self.flow.name, edge], "/sample?limit=5&edge=nothing", "sample", frozenset({"refused"})
        )

    async def _dlq(self) -> None:
        more = frozenset({"refused", "absent"}) if self.flow.kind == "copies" else frozenset[str]()
        found = await self._look(["dlq", self.flow.name, "--limit", "5"], "/dead-letters?limit=5", more=more)
        if found.outcome == "done" and isinstance(found.value, str):
            self._lines(found.value, "dlq")

    async def _checkpoints(self) -> None:
        await self._look(["checkpoints", self.flow.name, "--json"], "/checkpoints")

    async def _plan(self) -> None:
        await self._look(["status", self.flow.name], "/plan")

    async def _history(self) -> None:
        await self._look(["processors"], "/history", more=frozenset({"done"}))

    async def _try(self) -> None:
        file = self.story.folder / f"{self.flow.name}-try.json"
        file.write_text(json.dumps(self.flow.document(connection="broker")))
        found = await self.story.asker.cli("try", file.name, "--sample", "20")
        if found.outcome not in ("done", "away"):
            self.story.asker.fault(f"outcome: try {self.flow.name}: {found.text[:300]}")

    async def _check(self) -> None:
        file = self.story.folder / f"{self.flow.name}-check.json"
        document = self.flow.document(connection="broker")
        if wrong := self.rng.random() < 0.5:
            document["pipeline"].insert(1, {"$matsch": {"n": 1}})
        file.write_text(json.dumps(document))
        found = await self.story.asker.cli(self.rng.choice(["validate", "explain"]), file.name, "--json")
        if (found.outcome == "done") == wrong:
            self.story.asker.fault(f"outcome: validate, wrong={wrong}: {found.outcome} {found.text[:300]}")

    async def _audit(self) -> None:
        found = await self._look(["audit", self.flow.name, "--json"], "", more=frozenset({"absent", "refused"}))
        if found.outcome == "refused" and self.model.began:
            self.story.asker.fault(f"audit: {self.flow.name} ({self.model.goal}): {found.text[-500:]}")

    async def _redrive(self) -> None:
        if self.flow.kind == "counts":
            await self._look(["redrive", self.flow.name, "--json"], "", more=frozenset({"refused"}))

    async def _works(self) -> None:
        await self.story.asker.rest("POST", path_of(self.flow.name, self.rng.choice(["audit", "redrive"])), {})
        await self.story.asker.rest("GET", path_of(self.flow.name, self.rng.choice(["audit", "redrive"])))

    # --- on purpose -------------------------------------------------------------------------------------------------------

    async def _race(self) -> None:
        """Two acts at the same time: each is decided, and the processor is in one state then."""
        await self.settle()
        if self.model.goal == "absent" or self.model.fresh or self.model.drains or self.model.back:
            return
        if self.model.base == "FINISHED":
            return
        if self._names_it("modify") and self.story.connected != "good":
            return
        acts = [self.rng.choice(["start", "stop", "modify", "rescale"]) for _ in range(2)]
        ways = [self.rng.choice(["rest", "message"]) for _ in range(2)]
        found = await asyncio.gather(*(self._decided(*each) for each in zip(acts, ways, strict=True)))
        lost = self._names_it("modify") and self.story.connected != "good"
        if lost:
            await self._mend()
        for act, each in zip(acts, found, strict=True):
            if each.outcome != "done" and not lost:
                self.story.asker.fault(f"outcome: {acts} at once on {self.flow.name}: {act}: {each.text[:300]}")
        self.model.began = self.model.began or "start" in acts
        await self.resync()

    async def _again(self) -> None:
        """The same request id again is answered and not carried out again."""
        await self.settle()
        if self.model.goal != "up" or self.flow.held:
            return
        request, path = uuid.uuid4().hex, path_of(self.flow.name, "stop")
        first = await self.story.asker.rest("POST", path, {}, request=request)
        if first.outcome != "done":
            await self.resync()
            return
        self.model.did("stop")
        await self.settle()
        if (await self.change("start", "rest")).outcome != "done":
            return
        again = await self.story.asker.rest("POST", path, {}, request=request)
        await self.settle()
        state, _ = await self.state()
        if again.outcome not in ("done", "away") or state not in ("RUNNING", "STARTING"):
            self.story.asker.fault(f"again: {self.flow.name}: {again.outcome} {again.text[:200]}, then {state}")
