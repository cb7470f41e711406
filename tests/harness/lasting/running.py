"""One case, and many."""

import asyncio
import contextlib
import random
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.harness.installation import NAME, Installed, installed
from tests.harness.lasting.kafkas import KafkaSource, KafkaTarget
from tests.harness.lasting.kinds import LOOK_S, Delta, FilesTarget, Kind, Moment, Sqlite, Trouble
from tests.harness.lasting.sqls import Changes, PostgresLookup, PostgresTarget
from tests.harness.lasting.webs import HttpsLookup, HttpsTarget, MongoTarget, RegistrySource
from tests.harness.lasting.world import PASSWORD, World
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.operator.service import OperatorService
from tidemark.services.operator.shelved import in_temporary_files
from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.service import SinkService
from tidemark.services.source.connecting import RealSources
from tidemark.services.source.service import SourceService
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import parse
from tidemark.shared.model.messages import ProcessorStatus, StartProcessor
from tidemark.shared.process.allowed import OWNER
from tidemark.shared.process.connections import Connections
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.client import RequestRefused
from tidemark.shared.runtime.context import Service
from tidemark.shared.runtime.settings import LookupSettings, RuntimeSettings

KINDS: Final = (
    KafkaSource, KafkaTarget, PostgresTarget, PostgresLookup, Changes, MongoTarget, FilesTarget, Delta, Sqlite, HttpsLookup,
    HttpsTarget, RegistrySource,
)  # fmt: skip
REAL: Final[dict[str, Callable[[], Service]]] = {
    "source": lambda: SourceService(RealSources(Connections("source", allowed=OWNER))),
    "operator": lambda: OperatorService(Connections("operator", allowed=OWNER), shelve=in_temporary_files),
    "sink": lambda: SinkService(RealSinks(Connections("sink", allowed=OWNER))),
}
"""Whose connections lead where a document says."""
TOLD_S: Final = 45.0
"""Within so long a failure is told, and a job that goes on has gone on."""
STILL_S: Final = 3.0
"""For so long a failure that may pass is watched on: it fails nobody."""
_BARE: Final = re.compile(r"^\S*\b\w+(Error|Exception)\W*$|Traceback \(most recent|\n\s+at [\w.$]+\(|\n\s+File \"")
_OWN: Final = ("waits for a worker", "waits for its topics", "waits for the mirror", "begins again")


def say(text: str) -> None:
    """A line of the run."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Case:
    """What is drawn."""

    kind: type[Kind]
    trouble: str
    moment: Moment
    mended: bool

    def __str__(self) -> str:
        return f"{self.kind.__name__}: {self.trouble}, {self.moment}, {'mended' if self.mended else 'for good'}"


class Judged(AssertionError):
    """What is wrong."""


async def run(case: Case, world: World) -> str:
    """The reason that was told. Judged."""
    kind = case.kind(world)
    try:
        await kind.prepare()
        trouble = kind.troubles[case.trouble]
        settings = RuntimeSettings(
            engine="local", lookup=LookupSettings(wait_ms_max=5_000, retry_ms_max=500), splits_interval_ms=500
        )
        tries = CoordinatorSettings(adopt_wait_ms=100, backoff_base_ms=100, backoff_max_ms=500)
        async with installed(
            SystemClock(),
            AsyncExecutor(),
            settings=settings,
            coordinator=tries,
            numbers_from=world.number(),
            wrap=lambda service: REAL[service.name](),
        ) as there:
            return await _told(case, kind, trouble, there)
    finally:
        await kind.close()


async def _told(case: Case, kind: Kind, trouble: Trouble, there: Installed) -> str:
    fed = [1, 2, 3]
    if case.moment == "before":
        await trouble.strike()
        await _foreseen(kind, trouble)
    await kind.feed(*fed)
    await there.create(kind.document())
    await _start(there)
    if case.moment == "runs":
        await _until_out(there, kind, fed)
        await trouble.strike()
        await kind.feed(4, 5)
        fed += [4, 5]
    reason = await (_fails(there, trouble) if trouble.lasting else _waits(there, trouble))
    if not case.mended or trouble.mend is None:
        return reason
    await trouble.mend()
    if case.kind is KafkaSource and case.trouble == "no topic":
        await kind.feed(*fed)
    if trouble.lasting:
        await _start(there)
    await _until_out(there, kind, fed)
    await _until_quiet(there)
    return reason


async def _start(there: Installed) -> None:
    with contextlib.suppress(RequestRefused):
        await there.client.request(StartProcessor(there.client.unique(), NAME, resume=True))


async def _foreseen(kind: Kind, trouble: Trouble) -> None:
    document = kind.document()
    found = [str(error) for error in await refused_by_what_is_there(parse(document))]
    if trouble.foreseen and not found:
        raise Judged("check --connect does not foresee it")
    for text in found:
        _judge_words(text, "check --connect")


async def _status(there: Installed) -> ProcessorStatus:
    return (await there.client.statuses())[NAME]


async def _fails(there: Installed, trouble: Trouble) -> str:
    until, seen = time.monotonic() + TOLD_S, dict[str, None]()
    while time.monotonic() < until:
        status = await _status(there)
        seen[f"{status.state}: {status.reason[:150]}"] = None
        if status.state == "FAILED":
            _judge(status.reason, trouble)
            return status.reason
        await asyncio.sleep(LOOK_S)
    raise Judged(f"it lasts, and is not FAILED: {list(seen)}")


async def _waits(there: Installed, trouble: Trouble) -> str:
    until, told, seen = time.monotonic() + TOLD_S, "", dict[str, None]()
    while time.monotonic() < until:
        status = await _status(there)
        seen[f"{status.state}: {status.reason[:150]}"] = None
        if status.state == "FAILED":
            raise Judged(f"it may pass, and is FAILED: {status.reason}")
        if not told and status.reason and not status.reason.startswith(_OWN) and _names(status.reason, trouble):
            told, until = status.reason, time.monotonic() + STILL_S
        await asyncio.sleep(LOOK_S)
    if not told:
        raise Judged(f"it waits and does not say for what ({trouble.says}): {list(seen)}")
    _judge(told, trouble)
    return told


def _names(reason: str, trouble: Trouble) -> bool:
    return all(any(one.lower() in reason.lower() for one in words.split("|")) for words in trouble.says)


def _judge(reason: str, trouble: Trouble) -> None:
    if not _names(reason, trouble):
        raise Judged(f"the reason does not name {trouble.says}: {reason}")
    _judge_words(reason, "the reason")


def _judge_words(text: str, what: str) -> None:
    if PASSWORD in text:
        raise Judged(f"{what} has a password: {text}")
    if _BARE.search(text):
        raise Judged(f"{what} is the bare name of an error, or has a stack: {text}")


async def _until_out(there: Installed, kind: Kind, fed: Sequence[int]) -> None:
    until = time.monotonic() + TOLD_S
    while sorted(found := await kind.rows()) != sorted(fed):
        status = await _status(there)
        if status.state == "FAILED" or time.monotonic() > until or len(found) > len(fed):
            raise Judged(f"expected {fed}, found {found}: {status.state}: {status.reason}")
        await asyncio.sleep(LOOK_S)


async def _until_quiet(there: Installed) -> None:
    until = time.monotonic() + TOLD_S
    while (status := await _status(there)).state != "RUNNING" or status.reason:
        if time.monotonic() > until:
            raise Judged(f"it goes on, and says still: {status.state}: {status.reason}")
        await asyncio.sleep(LOOK_S)


async def drawn(seed: int, world: World, kinds: Sequence[type[Kind]] = KINDS) -> Case:
    """The case of a seed."""
    rng = random.Random(seed)
    kind = rng.choice(kinds)
    troubles = await troubles_of(kind, world)
    name = rng.choice(sorted(troubles))
    return Case(kind, name, rng.choice(troubles[name].moments), rng.random() < 0.6)


async def troubles_of(kind: type[Kind], world: World) -> dict[str, Trouble]:
    """By a trial that nobody runs."""
    trial = kind(world)
    try:
        await trial.prepare()
        return trial.troubles
    finally:
        await trial.close()


async def every(world: World, kinds: Sequence[type[Kind]]) -> list[Case]:
    """Each failure at each moment, mended where it can be."""
    return [
        Case(kind, name, moment, trouble.mend is not None)
        for kind in kinds
        for name, trouble in (await troubles_of(kind, world)).items()
        for moment in trouble.moments
    ]


async def cases(chosen: Iterable[Case], world: World, at_once: int = 4) -> list[str]:
    """What is wrong, a line a case."""
    turn, wrong = asyncio.Semaphore(at_once), list[str]()

    async def one(case: Case) -> None:
        async with turn:
            began = time.monotonic()
            try:
                reason = await run(case, world)
            except Judged as error:
                wrong.append(f"{case}: {error}")
                say(f"WRONG  {case}: {error}")
            except Exception as error:  # noqa: BLE001 - the other cases go on
                wrong.append(f"{case}: broke off: {error!r}")
                say(f"BROKE  {case}: {''.join(traceback.format_exception(error))[-1500:]}")
            else:
                say(f"held   {case} ({time.monotonic() - began:.0f} s): {reason[:260]}")

    await asyncio.gather(*(one(case) for case in chosen))
    return wrong


async def run_all(folder: Path, seeds: Sequence[int], names: Sequence[str]) -> list[str]:
    """Cases of seeds; without any each failure of the kinds of these names."""
    kinds = [kind for kind in KINDS if not names or kind.__name__ in names]
    async with World(folder) as world:
        chosen = [await drawn(seed, world, kinds) for seed in seeds] if seeds else await every(world, kinds)
        return await cases(chosen, world)
