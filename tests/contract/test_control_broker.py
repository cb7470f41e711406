"""The control service beside a real broker that goes away: it stays up, says why, and goes on when the broker is back."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tidemark.services.control.service import ControlService
from tidemark.services.control.settings import ControlSettings
from tidemark.services.local.broker import LocalBroker
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Epoch, Generation, JobId, Offset, ProcessorName
from tidemark.shared.model.messages import ProcessorStatus
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import encode_message

pytestmark = pytest.mark.kafka
TOKEN = "a-token-of-the-tests"
TOPICS = Topics()


async def registered(log: Log, name: str) -> None:
    """A processor in the registry."""
    status = ProcessorStatus(
        ProcessorName(name), JobId("j"), "STOPPED", "", Generation(1), Epoch(7), Epoch(7), 1, '{"pipeline": []}', {}
    )
    writer = await log.writer("test")
    await (await writer.send(TopicPartition(TOPICS.registry, 0), NewRecord(encode_message(status), name.encode())))
    await writer.close()


async def command(log: Log, value: bytes) -> None:
    """By topic."""
    writer = await log.writer("test")
    await (await writer.send(TopicPartition(TOPICS.control_commands, 0), NewRecord(value)))
    await writer.close()


async def events(log: Log) -> list[dict[str, Any]]:
    """All events up to the first answer."""
    found: list[dict[str, Any]] = []
    reader = await log.reader()
    await reader.assign({TopicPartition(TOPICS.events, 0): Offset(0)})
    while not any(event["type"] == "answer" for event in found):
        found += [json.loads(record.value or b"") for record in await reader.fetch(100, 200)]
    await reader.close()
    return found


async def test_it_stays_up_when_the_broker_does_not(fresh_broker: LocalBroker, tmp_path: Path) -> None:
    """Meanwhile what is known is told as old and the rest is 503 with the reason; then all goes on, of a service started meanwhile, too.

    The agents wait, and say so; then they take the next command.
    """
    clock, executor = SystemClock(), AsyncExecutor()
    settings = ControlSettings(port=0, token_file=str(tmp_path / "token"), engine="local")
    kafka = KafkaSettings(bootstrap=fresh_broker.bootstrap, request_timeout_ms=2_000, delivery_timeout_ms=10_000)
    log = KafkaLog(kafka)
    for topic, config in TOPICS.plain().items():
        await log.create_topic(topic, 1, config)
    await registered(log, "p")
    errors: list[BaseException] = []
    services = [ControlService(KafkaLog(kafka), TOPICS, clock, executor, settings, TOKEN, kafka) for _ in range(2)]
    running = [executor.spawn(services[0].run(), "first", errors.append)]
    await services[0].serving.wait()
    async with ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:

        async def ask(service: ControlService, method: str, path: str, body: Any = None) -> tuple[int, Any, str]:
            async with session.request(method, service.url + path, json=body) as answer:
                return answer.status, json.loads(await answer.read()), answer.headers.get("Tidemark-Stale", "")

        async def until(service: ControlService, status: int) -> dict[str, Any]:
            while True:
                found, told, _ = await ask(service, "GET", "/readyz")
                if found == status:
                    return dict(told)

        async def until_agents(service: ControlService, state: str) -> None:
            while not (await ask(service, "GET", "/readyz"))[1]["agents"].startswith(state):
                await clock.sleep_ms(50)

        await until(services[0], 200)
        await until_agents(services[0], "running")
        fresh_broker.kill()
        assert (await until(services[0], 503))["kafka"] != "answers"
        status, told, stale = await ask(services[0], "GET", "/v1/processors")
        assert (status, [p["name"] for p in told["processors"]]) == (200, ["p"])
        assert stale
        for method, path, body in (("POST", "/v1/processors/p/start", {}), ("GET", "/v1/processors/p/sample", None)):
            status, told, _ = await ask(services[0], method, path, body)
            assert (status, told["error"]["place"]) == (503, "Kafka")
        assert (await ask(services[0], "GET", "/healthz"))[0] == 200
        running.append(executor.spawn(services[1].run(), "second", errors.append))
        await services[1].serving.wait()
        status, told, _ = await ask(services[1], "GET", "/v1/processors")
        assert (status, told["error"]["place"]) == (503, "Kafka")
        await until_agents(services[1], "waits for the brokers")
        await fresh_broker.start()
        for service in services:
            await until(service, 200)
            assert (await ask(service, "GET", "/v1/processors/p"))[1]["epoch"] == 7
        for service in services:
            await until_agents(service, "running")
        await command(log, b"no command")
        # At least once: a repeat has the same id.
        answers = {(event["id"], event["done"]) for event in await events(log) if event["type"] == "answer"}
        assert answers == {(f"{TOPICS.control_commands}-0-0", False)}
    for service, handle in zip(services, running, strict=True):
        service.stop()
        await handle.join()
    await log.close()
    assert errors == []
