"""Audits by several control services: each tells the same, what one has left the next one does, and a dropped processor leaves nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tidemark.services.control.programs import AT_ONCE
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.services.control.works import _CODEC
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import Epoch, Generation, JobId, ProcessorName
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.model.verdicts import AuditWork, ProgramVerdict
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.process.web import Problem
from tidemark.shared.runtime.topics import LATEST_CONFIG, Topics
from tidemark.shared.wire.messages import encode_message

TOKEN = "a-token-of-the-tests"
TOPICS = Topics()
CLOCK = SystemClock()
NAME = ProcessorName("p")
JOB = JobId("j")


async def put(log: Log, topic: str, key: str, value: bytes | None) -> None:
    writer = await log.writer("test")
    await (await writer.send(TopicPartition(topic, 0), NewRecord(value, key.encode())))
    await writer.close()


def status(name: str = NAME, released: int = 7) -> bytes:
    """Of a processor that has released some."""
    last = Epoch(released)
    return encode_message(
        ProcessorStatus(ProcessorName(name), JOB, "STOPPED", "", Generation(1), last, last, 1, '{"pipeline": []}', {})
    )


@asynccontextmanager
async def services(
    broker: MemoryBroker, folder: Path, count: int, faults: Faults | None = None, **more: Any
) -> AsyncIterator[list[ControlService]]:
    """That serve, each on its own log."""
    executor = AsyncExecutor()
    settings = ControlSettings(
        port=0,
        token_file=str(folder / "token"),
        engine="local",
        agents=False,
        look_ms=100,
        work_silent_ms=4_000,
        **more,
    )
    found = [ControlService(MemoryLog(broker, faults), TOPICS, CLOCK, executor, settings, TOKEN) for _ in range(count)]
    running = [executor.spawn(each.run(), "control", _raise) for each in found]
    for each in found:
        await each.serving.wait()
    try:
        yield found
    finally:
        for each, handle in zip(found, running, strict=True):
            each.stop()
            await handle.join()


def _raise(error: BaseException) -> None:
    raise error


async def ask(service: ControlService, method: str, path: str, **more: str) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}", **more}
    async with (
        ClientSession(headers=headers) as session,
        session.request(method, service.url + path, json=None if method == "GET" else {}) as answer,
    ):
        return answer.status, await answer.json()


async def verdict(service: ControlService, name: str = NAME) -> Any:
    """Once there is one, and nothing runs."""
    while True:
        code, found = await ask(service, "GET", f"/v1/processors/{name}/audit")
        if code == 200 and found["verdict"] and not found["running"]:
            return found["verdict"]
        await CLOCK.sleep_ms(50)


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryBroker:
    """With the registry of one processor; the store that the services' settings name is empty: the program can only say that."""
    monkeypatch.setenv("TIDEMARK_STORE", f"sqlite:///{tmp_path}/store.db")
    monkeypatch.setenv("TIDEMARK_BLOBS", str(tmp_path / "blobs"))
    monkeypatch.setenv("TIDEMARK_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("TIDEMARK_SIGNING_KEYS", "k" * 32)
    made = MemoryBroker(CLOCK)
    log = MemoryLog(made)
    for topic, config in {**TOPICS.plain(), TOPICS.works: LATEST_CONFIG}.items():
        await log.create_topic(topic, 1, config)
    await put(log, TOPICS.registry, NAME, status())
    return made


async def test_each_service_tells_the_verdict_and_one_begins_again_what_another_left(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """One that has gone ran an audit: nobody speaks for it any more. Its last verdict is shown until there is another."""
    now_ms = CLOCK.now_ms()
    left = AuditWork(
        "audit",
        NAME,
        JOB,
        Epoch(3),
        True,
        "gone",
        now_ms - 60_000,
        now_ms - 60_000,
        ProgramVerdict("held", epoch=Epoch(3)),
    )
    await put(MemoryLog(broker), TOPICS.works, f"audit/{NAME}", _CODEC.encode(left))
    async with services(broker, tmp_path, 2) as (first, second):
        found = await verdict(first)
        assert (found["outcome"], "damaged" in found["why"]) == ("cannot", True)
        assert await verdict(second) == found
        assert [m.labels["outcome"] for m in second.measures() if m.name == "audit_outcome"] == ["cannot"]
    async with services(broker, tmp_path, 1) as (third,):
        assert await verdict(third) == found


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
async def test_a_work_of_a_service_with_another_clock_is_left_alone_until_it_is_silent(
    broker: MemoryBroker, tmp_path: Path, ahead_ms: int
) -> None:
    """Its time says nothing here: what counts is when its word came."""
    log = MemoryLog(broker)

    async def tell() -> None:
        now_ms = CLOCK.now_ms() + ahead_ms
        work = AuditWork("audit", NAME, JOB, Epoch(3), True, "elsewhere", now_ms, now_ms, None)
        await put(log, TOPICS.works, f"audit/{NAME}", _CODEC.encode(work))

    await tell()
    async with services(broker, tmp_path, 1) as (service,):
        for _ in range(30):  # for longer than would be silence
            await tell()
            await CLOCK.sleep_ms(200)
            assert [work.by for work in service.works.known.values()] in ([], ["elsewhere"])
        assert (await verdict(service))["outcome"] == "cannot"


async def test_a_dropped_processor_leaves_no_verdict_and_another_job_shows_none(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    """A name that comes again is another processor; and a record that is none is passed over."""
    log, now_ms = MemoryLog(broker), CLOCK.now_ms()
    for name, job in ((NAME, "another job"), ("dropped", JOB)):
        work = AuditWork(
            "audit", ProcessorName(name), JobId(job), Epoch(3), False, "x", now_ms, now_ms, ProgramVerdict("held")
        )
        await put(log, TOPICS.works, f"audit/{name}", _CODEC.encode(work))
    await put(log, TOPICS.works, "audit/junk", b"{}")
    async with services(broker, tmp_path, 1) as (service,):
        while ("audit", ProcessorName("dropped")) in service.works.known or not service.works.known:
            await CLOCK.sleep_ms(50)
        assert await ask(service, "GET", f"/v1/processors/{NAME}/audit") == (200, {"running": False, "verdict": None})
    records = broker._topics[TOPICS.works][0].stored
    assert [r.record.value for r in records if r.record and r.record.key == b"audit/dropped"][-1] is None


async def test_an_interval_waits_for_later_checkpoints(broker: MemoryBroker, tmp_path: Path) -> None:
    """What was judged at a checkpoint is not judged again before there is a later one."""
    async with services(broker, tmp_path, 1, audit_interval_ms=1) as (service,):
        assert (await verdict(service))["outcome"] == "cannot"
        began = service.works.known["audit", NAME].began_ms
        await CLOCK.sleep_ms(1_000)
        assert service.works.known["audit", NAME].began_ms == began
        await put(MemoryLog(broker), TOPICS.registry, NAME, status(released=9))
        while service.works.known["audit", NAME].began_ms == began or service.works.known["audit", NAME].running:
            await CLOCK.sleep_ms(50)
        assert service.works.known["audit", NAME].released == 9


async def test_few_run_at_once_and_one_of_a_processor(broker: MemoryBroker, tmp_path: Path) -> None:
    """More are refused, and say why; a service that stops waits for none."""
    log = MemoryLog(broker)
    names = [f"p{n}" for n in range(AT_ONCE + 1)]
    for name in names:
        await put(log, TOPICS.registry, name, status(name))
    async with services(broker, tmp_path, 1) as (service,):
        while (await ask(service, "GET", f"/v1/processors/{names[-1]}/audit"))[0] != 200:
            await CLOCK.sleep_ms(50)
        codes = [(await ask(service, "POST", f"/v1/processors/{name}/audit"))[0] for name in names]
        assert codes == [202] * AT_ONCE + [429]
        code, found = await ask(service, "POST", f"/v1/processors/{names[0]}/audit")
        assert (code, "one that began at" in json.dumps(found)) == (409, True)
        children = service.works.programs.children
        while len(children) < AT_ONCE:
            await CLOCK.sleep_ms(20)
        running = list(children)
    assert [child.wait() for child in running] == [-9] * AT_ONCE


async def test_a_repeated_request_begins_nothing_again(broker: MemoryBroker, tmp_path: Path) -> None:
    """At either service, while it runs and behind its end; another request begins another; one about another job is refused."""
    async with services(broker, tmp_path, 2) as (first, second):
        once, path = {"Idempotency-Key": "once"}, f"/v1/processors/{NAME}/audit"
        for each in (first, second):
            while (await ask(each, "GET", path))[0] != 200:
                await CLOCK.sleep_ms(50)
        code, begun = await ask(first, "POST", path, **once)
        assert (code, begun["running"]) == (202, True)
        assert (await ask(first, "POST", path, **once))[0] == 202
        await verdict(first)
        await verdict(second)
        for service in (first, second):
            code, found = await ask(service, "POST", path, **once)
            assert (code, found["running"], found["began"]) == (202, False, begun["began"])
        redrive, twice = f"/v1/processors/{NAME}/redrive", {"Idempotency-Key": "twice"}
        answers = [await ask(each, "POST", redrive, **twice) for each in (first, second)]
        assert answers[0] == answers[1]
        assert answers[0][0] == 409
        code, found = await ask(first, "POST", path, **{"Tidemark-Job": "another"})
        assert (code, "began without state, since you looked" in found["error"]["finding"]) == (409, True)
        assert (await ask(second, "POST", path))[1]["running"]
        await verdict(second)


async def put_done(broker: MemoryBroker) -> None:
    """A redrive that ended well, for an earlier request."""
    verdict, now_ms = ProgramVerdict("done", letters=42), CLOCK.now_ms()
    done = AuditWork("redrive", NAME, JOB, Epoch(3), False, "elsewhere", now_ms, now_ms, verdict, request="earlier")
    await put(MemoryLog(broker), TOPICS.works, f"redrive/{NAME}", _CODEC.encode(done))


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_ANSWER])
async def test_a_work_that_never_began_is_not_done_where_its_request_is_repeated(
    broker: MemoryBroker, tmp_path: Path, fault: Fault
) -> None:
    """The brokers refused its first record, or nobody knows: the repeat is answered by its own verdict, not by an earlier one's."""
    await put_done(broker)
    faults = Faults()
    async with services(broker, tmp_path, 1, faults) as (service,):
        path, once = f"/v1/processors/{NAME}/redrive", {"Idempotency-Key": "once"}
        while (await ask(service, "GET", path))[0] != 200:
            await CLOCK.sleep_ms(50)
        faults.plan("send", fault)
        assert (await ask(service, "POST", path, **once))[0] == 503
        code, found = await ask(service, "POST", path, **once)
        assert (code, "damaged" in json.dumps(found)) == (409, True)
        assert await ask(service, "POST", path, **once) == (code, found)


async def test_a_repeat_waits_until_the_brokers_have_the_first_record(broker: MemoryBroker, tmp_path: Path) -> None:
    """Until then nobody knows that the work runs: the first request may fail, and then the repeat begins it."""
    await put_done(broker)
    faults = Faults()
    async with services(broker, tmp_path, 1, faults) as (service,):
        while (await ask(service, "GET", f"/v1/processors/{NAME}/redrive"))[0] != 200:
            await CLOCK.sleep_ms(50)
        status = service.model.statuses[NAME]

        async def redrive() -> str:
            try:
                await service.works.begin("redrive", status, "once")
            except Problem as problem:
                return problem.place
            work = await service.works.ended("redrive", status)
            return str(work and work.verdict and work.verdict.outcome)

        faults.plan("send", Fault.REFUSED)
        assert list(await asyncio.gather(redrive(), redrive(), redrive())) == ["Kafka", "cannot", "cannot"]


async def test_a_program_that_cannot_start_is_a_verdict(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's fault is said, and the next audit is begun as if there had been none."""
    async with services(broker, tmp_path, 1) as (service,):
        path = f"/v1/processors/{NAME}/audit"
        while (await ask(service, "GET", path))[0] != 200:
            await CLOCK.sleep_ms(50)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
        assert (await ask(service, "POST", path))[0] == 202
        found = await verdict(service)
        assert (found["outcome"], found["why"].startswith("its program did not start: ")) == ("cannot", True)
        monkeypatch.undo()
        assert (await ask(service, "POST", path))[0] != 409


@pytest.mark.parametrize("ahead_ms", [-7_200_000, 7_200_000])
async def test_an_interval_counts_from_when_the_verdict_came_whatever_the_clock_of_its_service(
    broker: MemoryBroker, tmp_path: Path, ahead_ms: int
) -> None:
    """Two services whose clocks differ by more than the interval would audit in turns without a pause."""
    async with services(broker, tmp_path, 1, audit_interval_ms=3_600_000) as (service,):
        assert (await verdict(service))["outcome"] == "cannot"  # the first is due at once
        now_ms = CLOCK.now_ms() + ahead_ms
        other = AuditWork("audit", NAME, JOB, Epoch(3), False, "elsewhere", now_ms, now_ms, ProgramVerdict("held"))
        await put(MemoryLog(broker), TOPICS.works, f"audit/{NAME}", _CODEC.encode(other))
        while service.works.known["audit", NAME].by != "elsewhere":
            await CLOCK.sleep_ms(1)
        assert not service.works._due(service.model.statuses[NAME])


@pytest.mark.parametrize(("since_ms", "due"), [(7_200_000, True), (60_000, False), (-60_000, True)])
async def test_an_interval_goes_on_behind_a_restart(
    broker: MemoryBroker, tmp_path: Path, since_ms: int, due: bool
) -> None:
    """By the clock, for nothing else is known of the time before; a time that is still to come says nothing."""
    now_ms = CLOCK.now_ms() - since_ms
    other = AuditWork("audit", NAME, JOB, Epoch(3), False, "elsewhere", now_ms, now_ms, ProgramVerdict("held"))
    await put(MemoryLog(broker), TOPICS.works, f"audit/{NAME}", _CODEC.encode(other))
    async with services(broker, tmp_path, 1, audit_interval_ms=3_600_000) as (service,):
        while ("audit", NAME) not in service.works.known or not service.model.statuses:
            await CLOCK.sleep_ms(1)
        work, status = service.works.known["audit", NAME], service.model.statuses[NAME]
        assert (work.by != "elsewhere" or service.works._due(status)) == due


async def test_a_redrive_whose_processor_is_dropped_meanwhile_says_so(broker: MemoryBroker, tmp_path: Path) -> None:
    """It runs at another service; nothing of it is kept here behind the drop."""
    log, now_ms = MemoryLog(broker), CLOCK.now_ms()
    work = AuditWork("redrive", NAME, JOB, Epoch(3), True, "elsewhere", now_ms, now_ms, None, request="once")
    await put(log, TOPICS.works, f"redrive/{NAME}", _CODEC.encode(work))
    async with services(broker, tmp_path, 1) as (service,):
        path = f"/v1/processors/{NAME}/redrive"
        while (await ask(service, "GET", path))[0] != 200:
            await CLOCK.sleep_ms(50)
        waits = asyncio.create_task(ask(service, "POST", path, **{"Idempotency-Key": "once"}))
        for _ in range(3):  # asked later, so it waits by then
            assert (await ask(service, "GET", path))[0] == 200
        await put(log, TOPICS.registry, NAME, None)
        code, found = await waits
        assert (code, "was dropped" in json.dumps(found)) == (409, True)
        while service.works.known or service.works._heard_ms:
            await CLOCK.sleep_ms(20)
