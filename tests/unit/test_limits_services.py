"""Limits of control, gateway and the local mode act, and what cannot work ends them at their start."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tidemark.services.control.agents import Agents, signature
from tidemark.services.control.audit import Audit
from tidemark.services.control.commands import Commands, Start
from tidemark.services.control.events import Events
from tidemark.services.control.readmodel import ReadModel
from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings, control_settings
from tidemark.services.gateway.service import GatewayService
from tidemark.services.gateway.settings import GatewaySettings, gateway_settings
from tidemark.services.local import broker as local_broker
from tidemark.services.local.broker_settings import BrokerSettings
from tidemark.services.local.limits import limited_broker
from tidemark.services.local.supervisor import LocalCluster, LocalSettings
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset, Place, WorkerIncarnation
from tidemark.shared.model.messages import Heartbeat
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError
from tidemark.shared.process.users import ADMIN, User
from tidemark.shared.process.web import UNAVAILABLE, Problem, answering, crowded
from tidemark.shared.runtime.client import Client
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import KEPT, STAMPED, Topics
from tidemark.shared.wire.messages import encode_message

TOKEN = "a-token-of-the-tests"
TOPICS = Topics()


def _process(extra: Any = None, runtime: Any = None, kafka: Any = None) -> ProcessSettings:
    return ProcessSettings(
        kafka="k:1",
        blobs="",
        store="",
        place="p",
        kafka_config=kafka or {},
        runtime=RuntimeSettings(**(runtime or {})),
        extra=extra or {},
    )


# --- requests -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}".format(*runner.addresses[0][:2])
    finally:
        await runner.cleanup()


async def test_so_many_requests_are_answered_at_a_time() -> None:
    """One more is told to come again, and says whether it lives all the same; when one is done there is room."""
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        begun.release()
        await go_on.wait()
        return web.Response()

    async def alive(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application(middlewares=[answering, crowded(2, {"/healthz"})])
    app.router.add_get("/slow", slow)
    app.router.add_get("/healthz", alive)
    async with _served(app) as url, ClientSession() as session:
        first = [asyncio.ensure_future(session.get(f"{url}/slow")) for _ in range(2)]
        for _ in first:
            await begun.acquire()
        async with session.get(f"{url}/slow") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
            assert (await answer.json())["error"]["finding"] == "2 are being answered"
        async with session.get(f"{url}/healthz") as answer:
            assert answer.status == 200
        go_on.set()
        assert [(await answer).status for answer in first] == [200, 200]
        async with session.get(f"{url}/slow") as answer:
            assert answer.status == 200


async def test_an_idempotency_key_has_a_length() -> None:
    """Longer than the setting: refused with the header's name."""
    executor = AsyncExecutor()
    settings = GatewaySettings(port=0, batch_id_characters_max=3)
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("t", 1)
    service = GatewayService(log, SystemClock(), executor, "g", "tidemark", settings, TOKEN)
    errors: list[BaseException] = []
    running = executor.spawn(service.run(), "gateway", errors.append)
    await service.serving.wait()
    async with ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
        for key, status in (("abc", 200), ("abcd", 400)):
            headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
            async with session.post(f"{service.url}/v1/topics/t/records", data=b"{}\n", headers=headers) as answer:
                assert answer.status == status
    service.stop()
    await running.join()
    assert errors == []


# --- control --------------------------------------------------------------------------------------------------------------


class _Refusing(Commands):
    """Nobody answers a command."""

    tries = 0

    async def carry_out(self, command: Any, user: User = ADMIN) -> str:
        type(self).tries += 1
        raise Problem(UNAVAILABLE, "Kafka", "the brokers to answer", "none")


def test_a_command_of_the_topic_is_tried_so_often() -> None:
    """Then it lies among the dead letters, with the reason."""

    async def main(world: VirtualWorld) -> None:
        settings = ControlSettings(agents_tries_max=3)
        log = MemoryLog(MemoryBroker(world.clock))
        await log.create_topic(TOPICS.control_dead_letters, 1)
        model = ReadModel(log, TOPICS, world.clock, settings)
        commands = _Refusing(Client(log, TOPICS, world.clock, lambda: "u"), model, settings, world.executor)
        events = Events(log, TOPICS, world.clock, settings)
        agents = Agents(
            log,
            KafkaSettings("k:1"),
            TOPICS,
            world.clock,
            world.executor,
            commands,
            events,
            Audit(world.clock),
            "token",
        )
        expires = datetime.fromtimestamp(world.clock.now_ms() / 1000 + 60, UTC).isoformat()
        data = json.dumps({"command": "start", "name": "p", "request": "r", "expires": expires}).encode()
        began_ms = world.clock.monotonic_ms()
        await agents._take(data, "commands-0-0", signature("token", TOPICS.control_commands, data).encode())
        assert _Refusing.tries == 3
        assert world.clock.monotonic_ms() - began_ms == 2 * settings.retry_ms
        letters = up_to_now(log, TopicPartition(TOPICS.control_dead_letters, 0))
        assert [dict(r.headers)["place"] async for r in letters] == [b"commands-0-0"]
        app = agents._make()
        assert app.conf.stream_buffer_maxsize == settings.agents_waiting_max
        assert app.conf.broker_session_timeout == settings.agents_session_timeout_s
        await agents.stop()

    run_virtual(main)


async def test_an_id_of_a_request_has_a_length() -> None:
    """Longer than the setting: refused before anybody is asked."""
    log, settings = MemoryLog(MemoryBroker(SystemClock())), ControlSettings(request_characters_max=3)
    model = ReadModel(log, TOPICS, SystemClock(), settings)
    commands = Commands(Client(log, TOPICS, SystemClock(), lambda: "u"), model, settings, AsyncExecutor())
    with pytest.raises(Problem) as found:
        await commands.carry_out(Start(name="p", request="abcd"))
    assert (found.value.expectation, found.value.finding) == (
        "an id of at most 3 characters that can be printed",
        "4 characters",
    )


async def _closed(url: str, data: bytes) -> bytes:
    """What a connection that sends this gets until it is closed."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    found = await reader.read()
    writer.close()
    return found


async def test_who_asks_nothing_keeps_nobody_out() -> None:
    """A connection without a request is closed, as is one too many; a body that does not come is answered; others are served."""
    settings = ControlSettings(
        port=0, agents=False, requests_max=2, connections_max=3, request_wait_ms=300, body_timeout_ms=300
    )
    clock, executor = SystemClock(), AsyncExecutor()
    service = ControlService(MemoryLog(MemoryBroker(clock)), TOPICS, clock, executor, settings, "t" * 16)
    running = asyncio.ensure_future(service.run())
    await service.serving.wait()
    host, port = service.url.removeprefix("http://").split(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(2)]
    silent[1][1].write(b"GET / HTTP/1.1\r\nHost: h\r\n")
    async with ClientSession() as session, session.get(f"{service.url}/healthz") as answer:
        assert answer.status == 200, "with a connection that stays open, the third"
        assert await _closed(service.url, b"") == b"", "the fourth"
        assert [await reader.read() for reader, _ in silent] == [b"", b""]
    head = b"POST /v1/validate HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + b"t" * 16
    head += b"\r\nContent-Type: application/json\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{"
    assert (await _closed(service.url, head)).startswith(b"HTTP/1.1 408 ")
    for _, writer in silent:
        writer.close()
    service.stop()
    await running


def test_more_requests_than_connections_are_refused_at_the_start() -> None:
    """Said with both numbers."""
    with pytest.raises(ValueError, match=r"connections_max \(4\) is below requests_max \(5\)"):
        ControlSettings(requests_max=5, connections_max=4)


def test_who_stood_still_for_longer_than_topics_are_kept_goes_on_with_what_is_told_now() -> None:
    """The service's reports were let go of while nothing of it ran: it does not stay away, and knows the workers again."""

    async def main(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock)
        log, errors = MemoryLog(broker), list[BaseException]()
        for topic in TOPICS.plain():
            await log.create_topic(topic, 1)
        model, reports = ReadModel(MemoryLog(broker), TOPICS, world.clock), TopicPartition(TOPICS.reports, 0)
        writer = await log.writer("worker")
        runs, reader_of = asyncio.Event(), model.log.reader
        runs.set()

        async def standing_still(*, committed_only: bool = False, follows: bool = False) -> Any:
            reader = await reader_of(committed_only=committed_only, follows=follows)
            fetch = reader.fetch

            async def fetched(most: int, timeout_ms: int) -> list[LogRecord]:
                await runs.wait()
                return await fetch(most, timeout_ms)

            reader.fetch = fetched  # type: ignore[method-assign, assignment]
            return reader

        model.log.reader = standing_still  # type: ignore[method-assign]
        handles = model.start(world.executor, errors.append)
        await world.clock.sleep_ms(1_000)
        assert model.ready()
        runs.clear()
        await world.clock.sleep_ms(1_000)  # what is being fetched comes to its end
        for number in range(3):
            await (await writer.send(reports, NewRecord(_beat(number).value)))
        await log.delete_records({reports: Offset(2)})
        runs.set()
        await world.clock.sleep_ms(3_000)
        assert model.away() == ""
        await (await writer.send(reports, NewRecord(_beat(7).value)))
        await world.clock.sleep_ms(1_000)
        assert [beat.place for beat in model.living()] == ["sink-7"]
        for handle in handles:
            handle.cancel()
            await handle.join()
        assert errors == []

    run_virtual(main)


def _beat(number: int) -> LogRecord:
    beat = Heartbeat(WorkerIncarnation(f"w{number}"), Place(f"sink-{number}"), "sink", 4, 1, "h", ())
    return LogRecord("reports", 0, number, 0, None, encode_message(beat))  # type: ignore[arg-type]


def test_so_many_workers_are_remembered_and_the_silent_are_not_shown() -> None:
    """Those that were heard first are forgotten first; who is silent for the setting's time is not shown."""

    async def main(world: VirtualWorld) -> None:
        settings = ControlSettings(workers_max=2, silent_ms_max=2_000)
        model = ReadModel(MemoryLog(MemoryBroker(world.clock)), TOPICS, world.clock, settings)
        for number in (1, 2, 1, 3):
            model._take_report(_beat(number))
        assert list(model.workers) == ["sink-1", "sink-3"]
        await world.clock.sleep_ms(1_500)
        model._take_report(_beat(3))
        await world.clock.sleep_ms(1_000)
        assert [beat.place for beat in model.living()] == ["sink-3"]

    run_virtual(main)


def test_events_are_kept_in_their_topic_as_long_as_is_set() -> None:
    """The topic is made with the setting."""

    async def main(world: VirtualWorld) -> None:
        log, made = MemoryLog(MemoryBroker(world.clock)), list[Any]()
        create = log.create_topic

        async def noted(topic: str, partitions: int, config: Any = None) -> None:
            made.append((topic, config))
            await create(topic, partitions, config)

        log.create_topic = noted  # type: ignore[method-assign]
        events = Events(log, TOPICS, world.clock, ControlSettings(events_kept_ms=7))
        events.tell("state", "e", "p")
        model, errors = ReadModel(log, TOPICS, world.clock), list[BaseException]()
        handles = events.start(world.executor, model, errors.append)
        await world.clock.sleep_ms(500)
        for handle in handles:
            handle.cancel()
            await handle.join()
        assert made == [(TOPICS.events, {**KEPT, **STAMPED, "retention.ms": "7"})]
        assert errors == []

    run_virtual(main)


# --- relations ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("read", "given", "said"),
    [
        (control_settings, {"extra": {"silent_ms_max": 1_000}}, "silent_ms_max=1000 .* heartbeat_interval_ms=1000"),
        (
            control_settings,
            {"extra": {"late_records_min": 0}},
            "control setting late_records_min: expected a positive number, found 0",
        ),
        (control_settings, {"extra": {"port": 70_000}}, "port: expected 0 to 65535, found 70000"),
        (
            gateway_settings,
            {"extra": {"batch_bytes_max": 800_000}},
            r"record_bytes_max \(900000\) is above batch_bytes_max \(800000\)",
        ),
        (
            gateway_settings,
            {"kafka": {"message_bytes_max": 8 << 20, "partition_fetch_bytes_max": 8 << 20}},
            r"TIDEMARK_KAFKA_CONFIG\.message_bytes_max: .* record_bytes_max \(7\d+\) is above batch_bytes_max \(4194304\)",
        ),
        (control_settings, {"kafka": {"message_bytes_max": 1}}, "message_bytes_max=1 must be at least 262144"),
        (gateway_settings, {"extra": {"writers": 9}}, r"TIDEMARK_EXTRA\.writers: no such setting"),
        (
            gateway_settings,
            {"extra": {"in_flight_bytes_max": 0}},
            "gateway setting in_flight_bytes_max: expected a positive number",
        ),
        (gateway_settings, {"extra": {"in_flight_bytes_max": 1 << 20}}, "a full batch would never be taken"),
    ],
)
def test_a_service_whose_settings_cannot_work_ends_at_its_start(
    read: Callable[[ProcessSettings], Any], given: Any, said: str
) -> None:
    """The message names the settings, whose they are, and their values; the defaults agree."""
    with pytest.raises(ProcessSettingsError, match=said):
        read(_process(**given))
    read(_process())


def test_a_gateway_has_no_writer_that_never_works() -> None:
    """The message names both bounds."""
    with pytest.raises(ValueError, match=r"writers \(257\) is above requests_max \(256\)"):
        GatewaySettings(writers=257)


# --- the local mode ---------------------------------------------------------------------------------------------------------


def test_bounds_of_the_local_mode_come_from_the_environment(tmp_path: Path) -> None:
    """Of the installation, and of its broker; the environment that is handed in counts first."""
    environment = {"TIDEMARK_LOCAL": '{"workers_max": 2, "stop_timeout_s": 3, "broker": {"heap_mib_max": 300}}'}
    cluster = LocalCluster(LocalSettings(data_dir=tmp_path, environment=environment))
    assert (cluster.settings.workers_max, cluster.settings.stop_timeout_s) == (2, 3)
    assert limited_broker(BrokerSettings(data_dir=tmp_path), environment).heap_mib_max == 300
    assert limited_broker(BrokerSettings(data_dir=tmp_path), {}) == BrokerSettings(data_dir=tmp_path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('{"worker_max": 2}', r"TIDEMARK_LOCAL.worker_max: no such setting; did you mean workers_max\?"),
        ('{"port": 2}', "TIDEMARK_LOCAL.port: no such setting"),
        ('{"workers_max": 0}', "TIDEMARK_LOCAL.workers_max: expected a positive whole number, found 0"),
        ('{"workers_max": 1.5}', "expected a positive whole number, found 1.5"),
        ('{"workers_max": true}', "expected a positive whole number, found True"),
        ('{"stop_timeout_s": "3"}', "TIDEMARK_LOCAL.stop_timeout_s: expected a positive number, found '3'"),
        ('{"broker": {"heap": 1}}', "TIDEMARK_LOCAL.broker.heap: no such setting"),
        ('{"broker": 1}', "TIDEMARK_LOCAL.broker: expected an object, found int"),
        ("[]", "TIDEMARK_LOCAL: expected a JSON object"),
    ],
)
def test_wrong_bounds_of_the_local_mode_are_refused(tmp_path: Path, table: str, said: str) -> None:
    """With the place, what is expected and what was found."""
    settings = LocalSettings(data_dir=tmp_path, environment={"TIDEMARK_LOCAL": table})
    with pytest.raises(ProcessSettingsError, match=said):
        LocalCluster(settings)


def test_of_a_brokers_words_the_last_are_read(tmp_path: Path) -> None:
    """As many lines as the setting says: what stands before them does not explain."""
    settings = BrokerSettings(data_dir=tmp_path, said_lines_max=2)
    settings.diagnostics_dir.mkdir(parents=True)
    (settings.diagnostics_dir / "broker.err").write_text("No space left on device\na\nb\n")
    assert "Its last words: a | b." in local_broker._failure(settings, "it ended")
    more = BrokerSettings(data_dir=tmp_path, said_lines_max=3)
    assert "the disk is full" in local_broker._failure(more, "it ended")


def test_so_many_ports_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all are taken the message says how many were tried."""
    tried: list[int] = []

    def taken(port: int) -> bool:
        tried.append(port)
        return False

    monkeypatch.setattr(local_broker, "_is_free", taken)
    with pytest.raises(local_broker.BrokerError, match="in 3 tries"):
        local_broker.free_port(None, (), 3)
    assert len(tried) == 3
