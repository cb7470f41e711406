"""A seed's walk: an installation that stays, three processors with an operator each, one more who works on the installation itself."""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
import traceback
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import aiokafka
import psutil

from tests.harness.operated.asking import SECOND_FILE, Asker
from tests.harness.operated.flows import PARTITIONS, Flow
from tests.harness.operated.installer import Installer
from tests.harness.operated.namespaces import OUT, QUOTAS, Namespace
from tests.harness.operated.people import People
from tests.harness.operated.walker import Walker
from tests.harness.provider import provider_of
from tidemark.services.cli.installation import attached
from tidemark.services.local.supervisor import ALLOW, KEYS_FILE, TOKEN_FILE, read_environment, read_state
from tidemark.shared.process.signing import FILE_VARIABLE

FLOWS: Final = (("a.counts", "counts"), ("a.copies", "copies"), ("b.Letters_1-x", "letters"))
BATCH: Final = 10
PAUSE_S: Final = 0.25
DOWN_S: Final = 60.0
"""Until `tidemark up` has ended behind its signal."""


def say(text: str) -> None:
    """A line of the run."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Story:
    """One seed."""

    seed: int
    folder: Path
    spark: bool
    asker: Asker
    rng: random.Random = field(init=False)
    walkers: list[Walker] = field(init=False)
    process: Process | None = None
    bootstrap: str = ""
    connected: str = "gone"
    """The registry's connection: good, bad or gone."""
    extra: list[Process] = field(default_factory=list)
    second: Process | None = None
    """Of the control service."""
    installer: Installer = field(init=False)
    people: People = field(init=False)
    namespace: Namespace = field(init=False)
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Draw."""
        self.rng = random.Random(self.seed)
        self.installer = Installer(self, random.Random(f"{self.seed} installer"))
        self.people = People(self, random.Random(f"{self.seed} people"))
        self.namespace = Namespace(self, random.Random(f"{self.seed} namespace"))
        flows = [Flow(name, kind) for name, kind in FLOWS]  # type: ignore[arg-type]
        self.walkers = [Walker(self, flow, random.Random(f"{self.seed} {flow.name}")) for flow in flows]

    @property
    def data(self) -> Path:
        """The installation's folder."""
        return self.asker.data

    def settings(self) -> dict[str, str]:
        """Of its services, as variables."""
        extra = {**self.people.settings(), "quotas": QUOTAS}
        runtime = {} if self.spark else {"engine": "local"}
        return {"TIDEMARK_EXTRA": json.dumps(extra), "TIDEMARK_RUNTIME": json.dumps(runtime)}

    # --- the installation -------------------------------------------------------------------------------------------------

    async def up(self) -> None:
        """Begin it, and wait until it says that it stays."""
        self.people.write()
        environment = {**os.environ, **self.settings(), "COLUMNS": "300"}
        words = [sys.executable, "-m", "tidemark.services.cli", "up", "--data", str(self.data)]
        self.process = await asyncio.create_subprocess_exec(
            *words, cwd=self.folder, env=environment, stdout=DEVNULL, stderr=PIPE
        )
        assert self.process.stderr is not None
        heard = []
        async with asyncio.timeout(180):
            async for line in self.process.stderr:
                heard.append(line.decode())
                if "it stays until Ctrl-C" in heard[-1]:
                    break
            else:
                raise RuntimeError("".join(heard))
        self.bootstrap = str(read_state(self.data)["kafka"])
        more = {
            "port": 0,
            "agents": False,
            "token_file": str(self.data / TOKEN_FILE),
            "address_file": str(self.folder / SECOND_FILE),
            "logs": str(self.data / "logs"),
        }
        self.second = await self.another("control", "control-99", more)
        while not (self.folder / SECOND_FILE).exists():  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)
        while (await self.asker.rest("GET", "/v1/processors", at=SECOND_FILE, quiet=True)).outcome != "done":  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)

    async def another(self, service: str, place: str, more: Mapping[str, Any] | None = None) -> Process:
        """One more process of a service, beside those that are kept. more: of its settings."""
        data, settings = self.data, self.settings()
        settings["TIDEMARK_EXTRA"] = json.dumps({**json.loads(settings["TIDEMARK_EXTRA"]), **(more or {})})
        environment = {
            **os.environ,
            "TIDEMARK_KAFKA": self.bootstrap,
            "LOCAL_KAFKA": self.bootstrap,
            "TIDEMARK_BLOBS": str(data / "blobs"),
            "TIDEMARK_STORE": f"sqlite:///{data / 'coordinator.db'}",
            "TIDEMARK_PLACE": place,
            FILE_VARIABLE: str(data / KEYS_FILE),
            ALLOW: read_environment(data)[ALLOW],
            **settings,
        }
        words = [sys.executable, "-m", f"tidemark.services.{service}"]
        with (data / "logs" / f"{place}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(*words, env=environment, stdout=log, stderr=log, stdin=DEVNULL)

    async def end_second(self) -> None:
        """The second control service, before all others."""
        if self.second is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                self.second.kill()
            await self.second.wait()
            (self.folder / SECOND_FILE).unlink(missing_ok=True)
        self.second = None

    async def down(self, number: int = signal.SIGINT) -> None:
        """End it; nothing of it runs then."""
        assert self.process is not None
        own = psutil.Process(self.process.pid)
        family = [own, *own.children(recursive=True)]
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            async with asyncio.timeout(DOWN_S):
                _, said = await self.process.communicate()
            if number == signal.SIGINT and (self.process.returncode or b"Traceback" in said):
                self.asker.fault(f"down: status {self.process.returncode}: {said.decode()[-500:]}")
        except TimeoutError:
            self.asker.fault(f"down: no end within {DOWN_S} s")
            self.process.kill()
        say(f"    down by {signal.Signals(number).name} in {time.monotonic() - began:.1f} s")
        _, left = await asyncio.to_thread(psutil.wait_procs, family, 15)
        left += [
            each
            for each in psutil.process_iter()
            if _speaks_of(each, self.data) and each.pid not in {p.pid for p in self.extra}
        ]
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended just now
                self.asker.fault(f"stays behind down: {each.pid} {each.cmdline()[:6]}")
                each.kill()

    @contextlib.asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """A client of messages, for as long as the block lasts."""
        async with attached(self.data) as there:
            self.asker.there = there
            yield
            self.asker.there = None

    # --- the walk ---------------------------------------------------------------------------------------------------------

    async def run(self, acts: int) -> None:
        """All of it."""
        async with provider_of() as self.people.provider:
            await self._run(acts)

    async def _run(self, acts: int) -> None:
        await self.up()
        try:
            admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            wanted = [
                aiokafka.admin.NewTopic(
                    topic, PARTITIONS if topic == w.flow.topic else 1, 1, topic_configs={"retention.ms": "-1"}
                )
                for w in self.walkers
                for topic in (w.flow.topic, *w.flow.outputs)
            ]
            wanted.append(aiokafka.admin.NewTopic(OUT, 1, 1))
            await admin.create_topics(wanted)
            await admin.close()
            installer = self.installer
            await installer.connect("good")
            feeding = [asyncio.create_task(self._feed(walker)) for walker in self.walkers]
            async with self.asked():
                for _ in range(4):  # the installation ends and begins again between two
                    turns = [self._turns(walker, acts // 4) for walker in self.walkers]
                    await asyncio.gather(*turns, installer.walk(max(1, acts // 6)))
                    if _ < 3 and self.rng.random() < 0.4:
                        self.asker.trouble()
                        await installer.again()
                await installer.connect("good")
                await self._finish()
            for task in feeding:
                task.cancel()
            await asyncio.gather(*feeding, return_exceptions=True)
        finally:
            for process in self.extra:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    process.kill()
            await self.end_second()
            if self.process is not None and self.process.returncode is None:
                await self.down()

    async def _turns(self, walker: Walker, count: int) -> None:
        for _ in range(count):
            await walker.step()

    async def _feed(self, walker: Walker) -> None:
        """Records, until it is cancelled; each is in its topic once, whatever is killed."""
        flow = walker.flow
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=True, request_timeout_ms=300_000
        )
        await producer.start()
        try:
            while True:
                async with walker.sending:
                    if not flow.held:
                        numbers = range(flow.sent, flow.sent + BATCH)
                        sent = [
                            await producer.send(flow.topic, flow.record(n), partition=n % PARTITIONS) for n in numbers
                        ]
                        await asyncio.gather(*sent)
                        flow.sent += BATCH
                await asyncio.sleep(PAUSE_S)
        finally:
            await producer.stop()

    # --- the end ----------------------------------------------------------------------------------------------------------

    async def _finish(self) -> None:
        await asyncio.gather(*(self._drain(walker) for walker in self.walkers))
        await asyncio.gather(*(self._compare(walker) for walker in self.walkers))
        for walker in self.walkers:
            await walker.change("drop")
        found = await self.asker.cli("processors", "--json")
        if found.outcome == "done" and found.value["processors"]:
            self.asker.fault(f"dropped, and there: {found.value}")

    async def _drain(self, walker: Walker) -> None:
        await walker.settle()
        if walker.model.goal == "absent":
            await walker.change("create", "rest")
        if walker.model.goal == "idle":
            await walker.change("start-anew" if walker.model.base == "FINISHED" else "start", "rest")
        for _ in range(3):
            await walker.settle()
            if walker.model.goal == "idle" and walker.model.base == "FINISHED":
                return
            await walker.change("drain", "rest")
        self.asker.fault(f"does not drain: {walker.flow.name}: {walker.model}")

    async def _compare(self, walker: Walker) -> None:
        flow = walker.flow
        rows = await walker.rows()
        ends = {topic: len(values) for topic, values in rows.items()}
        flow.close(ends, drained=walker.model.base == "FINISHED")
        walker.model.began = False
        for wrong in flow.wrong(rows):
            self.asker.fault(f"output: {wrong}")
        audited = await self.asker.cli("audit", flow.name, "--json")
        if audited.status not in (0, 3):
            self.asker.fault(f"audit: {flow.name}: {audited.status} {audited.text[-400:]}")
        say(f"    {flow.name}: {flow.sent} records, {len(flow.lives)} lives, {ends}, audit {audited.status}")


def _speaks_of(process: psutil.Process, data: Path) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
        return process.pid != os.getpid() and any(str(data) in word for word in process.cmdline())
    return False


async def told(seed: int, folder: Path, acts: int, *, spark: bool = False) -> Asker:
    """A seed's walk; its faults and counts."""
    async with aiohttp.ClientSession() as session:
        asker = Asker(folder, folder / "data", session, say=say)
        story = Story(seed, folder, spark, asker)
        try:
            await story.run(acts)
        except Exception as error:  # noqa: BLE001 - the other seeds go on
            asker.fault(f"broke off: {error!r}")
            say(traceback.format_exc())
        say(f"  kills and ends: {dict(story.kills)}")
        return asker
