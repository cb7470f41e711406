"""A broker that wants TLS and a password: the same settings for Tidemark's own cluster and for connections of documents."""

import asyncio
import json
import os
import random
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.certificates import made_certificate
from tests.harness.installation import NAME, installed
from tests.harness.sealing import KEY
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import LOOPBACK, BrokerSettings, Port, java_arguments
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java
from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.service import SinkService
from tidemark.services.source.connecting import RealSources
from tidemark.services.source.service import SourceService
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_raw import RawReader
from tidemark.shared.adapters.kafka_settings import settings_from
from tidemark.shared.language.documents import parse
from tidemark.shared.language.stages import Connection
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.messages import StartProcessor
from tidemark.shared.ports.log import LogDenied, LogRecord, NewRecord, TopicPartition
from tidemark.shared.process.connections import Connections
from tidemark.shared.process.settings import ProcessSettingsError, kafka_settings, read_settings
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.context import Service
from tidemark.shared.runtime.topics import Topics

USER, PASSWORD = "alice", "wonderland-7"
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
CERTIFICATE = "certificate"
WAYS = [
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SSL", CERTIFICATE),
]
"""Protocols and mechanisms that are tried; over plain TLS the broker wants a client's certificate."""


@dataclass(frozen=True)
class Guarded:
    """The broker's guarded addresses by protocol, and where certificates lie."""

    bootstraps: dict[str, str]
    folder: Path

    def config(self, protocol: str, mechanism: str, **changed: object) -> dict[str, object]:
        """As a user writes it."""
        asked: dict[str, object] = {"sasl_mechanism": mechanism, "sasl_username": USER, "sasl_password": PASSWORD}
        if mechanism == CERTIFICATE:
            asked = self.client("client")
        return {
            "security_protocol": protocol,
            "ssl_ca_file": str(self.folder / "broker.pem"),
            "request_timeout_ms": 10_000,
            "delivery_timeout_ms": 20_000,
            **asked,
            **changed,
        }

    def client(self, name: str) -> dict[str, object]:
        """The certificate of a client and its key, which is locked."""
        return {
            "ssl_certificate_file": str(self.folder / f"{name}.pem"),
            "ssl_key_file": str(self.folder / f"{name}.key"),
            "ssl_key_password": PASSWORD,
        }

    def wrong(self, protocol: str, mechanism: str) -> list[dict[str, object]]:
        """What must be refused."""
        wrong: list[dict[str, object]] = [{"ssl_ca_file": None}] if protocol.endswith("SSL") else []
        if mechanism == CERTIFICATE:
            return [*wrong, self.client("stranger"), dict.fromkeys(self.client("client"))]
        return [*wrong, {"sasl_password": "other"}, {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "nobody"}]


def _overrides(certificate: str, key: str, trusted: str, ports: dict[str, int]) -> dict[str, str]:
    """Two listeners that ask for a password, one of them with TLS, and one for a certificate, besides those of any broker."""
    listeners = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items())
    advertised = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items() if name != "CONTROLLER")
    protocols = ",".join(f"{name}:{'PLAINTEXT' if name == 'CONTROLLER' else name}" for name in ports)
    modules = {
        f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config": _JAAS if mechanism == "PLAIN" else _SCRAM
        for listener in ("sasl_ssl", "sasl_plaintext")
        for mechanism in _MECHANISMS
    }
    return modules | {
        "listeners": listeners,
        "advertised.listeners": advertised,
        "listener.security.protocol.map": protocols,
        "sasl.enabled.mechanisms": ",".join(_MECHANISMS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.replace("\n", "\\n"),
        "ssl.keystore.key": key.replace("\n", "\\n"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": trusted.replace("\n", "\\n"),
        "listener.name.ssl.ssl.client.auth": "required",
    }


async def _make_user(settings: BrokerSettings, bootstrap: str, mechanism: str) -> None:
    """SCRAM's secrets lie in the cluster: Kafka's own tool puts them there, one at a time."""
    command = java_arguments(settings, find_java().executable, ensure_jars(), "kafka.admin.ConfigCommand")
    secret = f"{mechanism}=[iterations=4096,password={PASSWORD}]"
    words = ["--alter", "--add-config", secret, "--entity-type", "users", "--entity-name", USER]
    process = await asyncio.create_subprocess_exec(*command, "--bootstrap-server", bootstrap, *words)
    assert await process.wait() == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    certificate, key = made_certificate(folder, "broker")
    trusted, _ = made_certificate(folder, "client", PASSWORD)
    made_certificate(folder, "stranger", PASSWORD)
    names = ("PLAINTEXT", "CONTROLLER", "SASL_SSL", "SASL_PLAINTEXT", "SSL")
    ports = dict(zip(names, random.SystemRandom().sample(range(20_000, 30_000), len(names)), strict=True))
    settings = BrokerSettings(
        data_dir=folder / "kafka",
        port=Port(ports["PLAINTEXT"]),
        controller_port=Port(ports["CONTROLLER"]),
        overrides=_overrides(certificate, key, trusted, ports),
    )
    broker = LocalBroker(settings)
    bootstrap = await broker.start()
    await asyncio.gather(*(_make_user(settings, bootstrap, name) for name in _MECHANISMS if name != "PLAIN"))
    yield Guarded({name: f"{LOOPBACK}:{port}" for name, port in ports.items()}, folder)
    broker.kill()


@pytest.fixture
def guarded(_guarded: Guarded) -> Guarded:
    """Not async: the broker starts in a loop of its own."""
    return _guarded


@pytest.mark.kafka
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
async def test_everything_goes_through_a_password_and_tls(guarded: Guarded, protocol: str, mechanism: str) -> None:
    """Topics, plain and transactional writes, and both readers work with the settings of a process and of a document's connection.

    Another password or certificate, none, and a broker whose certificate nobody signs, are refused, which is told from an outage.
    """
    bootstrap, given = guarded.bootstraps[protocol], guarded.config(protocol, mechanism)
    environment = {
        "TIDEMARK_KAFKA": bootstrap,
        "TIDEMARK_PLACE": "test",
        "TIDEMARK_KAFKA_CONFIG": json.dumps(given),
    }
    process = kafka_settings(read_settings(environment))
    source = {"$source": {"connectionName": "k", "topic": "t"}}
    connection = {"type": "kafka", "bootstrapServers": bootstrap, "config": given}
    connections = Connections("test")
    document = parse(
        {"connections": {"k": connection}, "pipeline": [source, {"$emit": {"path": "o", "format": "json"}}]}
    )
    log, theirs = KafkaLog(process), connections.log(connections.get(document, "k"))
    topic = TopicPartition(f"t-{protocol}-{mechanism}", 0)
    await log.create_topic(topic.topic, 1)
    writer = await log.writer("test")
    await (await writer.send(topic, NewRecord(b"one")))
    transactional = await theirs.transactional_writer(f"identity-{topic.topic}")
    transaction = await transactional.begin()
    await transaction.send_batch(topic, [NewRecord(b"two")])
    await transaction.commit()
    reader = await theirs.reader(committed_only=True)
    await reader.assign({topic: Offset(0)})
    found: list[bytes | None] = []
    while len(found) < 2:
        found += [record.value for record in await reader.fetch(10, 500)]
    assert found == [b"one", b"two"]
    raw = RawReader(connections.kafka_settings(connections.get(document, "k")))
    await raw.start()
    await raw.assign({topic: Offset(0)})
    rows = 0
    while rows < 2:
        rows += sum(len(part.values) for part in await raw.fetch(1_000_000, 500))
    await raw.close()
    for changed in guarded.wrong(protocol, mechanism):
        refused = KafkaLog(settings_from({**given, **changed}, "test", bootstrap=bootstrap, client="x"))
        for attempt in (refused.list_topics(), refused.reader(), refused.transactional_writer("i")):
            with pytest.raises(LogDenied) as raised:
                await attempt
            assert PASSWORD not in str(raised.value)
        await refused.close()
    await connections.close()
    await log.close()


@pytest.mark.kafka
async def test_commands_by_topic_go_through_a_password_and_tls(guarded: Guarded) -> None:
    """The control service's agents take what comes from a broker that wants both, and send back what is no command."""
    protocol = "SASL_SSL"
    config = guarded.config(protocol, "SCRAM-SHA-512")
    topics = Topics("guarded")
    log = KafkaLog(settings_from(config, "test", bootstrap=guarded.bootstraps[protocol]))
    environment = {
        **os.environ,
        "TIDEMARK_KAFKA": guarded.bootstraps[protocol],
        "TIDEMARK_KAFKA_CONFIG": json.dumps(config),
        "TIDEMARK_PREFIX": topics.prefix,
        "TIDEMARK_PLACE": "control-0",
        "TIDEMARK_SIGNING_KEYS": KEY,
        "TIDEMARK_TOKEN": "a-token-of-the-tests",
        "TIDEMARK_EXTRA": '{"port": 0}',
    }
    commands, refused = TopicPartition(topics.control_commands, 0), TopicPartition(topics.control_dead_letters, 0)
    for at in (commands, refused):
        await log.create_topic(at.topic, 1, {"retention.ms": "-1"})
    writer, reader = await log.writer("test"), await log.reader()
    await (await writer.send(commands, NewRecord(b"no command")))
    await reader.assign({refused: Offset(0)})
    # A process of its own, as it runs: its libraries' threads and time-outs end with it.
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "tidemark.services.control", env=environment)
    try:
        found: Sequence[LogRecord] = []
        while not found:
            assert process.returncode is None, "the service has ended"
            found = await reader.fetch(1, 200)
    finally:
        process.kill()
        await process.wait()
        await reader.close()
        await writer.close()
        await log.close()
    assert found[0].value == b"***", "what is no JSON may hold anything"
    assert dict(found[0].headers)["reason"]


@pytest.mark.kafka
@pytest.mark.parametrize("end", ["source", "target"])
async def test_a_wrong_password_fails_the_processor(guarded: Guarded, tmp_path: Path, end: str) -> None:
    """It is not waited for like an outage: after the tries that any failure has the processor is FAILED, and says what was refused."""
    protocol, mechanism = "SASL_PLAINTEXT", "SCRAM-SHA-512"
    config = guarded.config(protocol, mechanism, sasl_password="other")
    (tmp_path / "in.json").write_text('{"n": 1}\n')
    files = str(tmp_path / "in.json"), str(tmp_path / "out")
    source = {"path": files[0], "format": "json"} if end == "target" else {"connectionName": "k", "topic": "t"}
    emit = {"path": files[1], "format": "json"} if end == "source" else {"connectionName": "k", "topic": "t"}
    connection = {"type": "kafka", "bootstrapServers": guarded.bootstraps[protocol], "config": config}
    real: dict[str, Callable[[], Service]] = {
        "source": lambda: SourceService(RealSources(Connections("source"))),
        "sink": lambda: SinkService(RealSinks(Connections("sink"))),
    }
    tries = CoordinatorSettings(adopt_wait_ms=100, failures_max=2, backoff_base_ms=10, backoff_max_ms=10)
    async with installed(
        SystemClock(),
        AsyncExecutor(),
        services=("source", "sink"),
        coordinator=tries,
        wrap=lambda service: real[service.name](),
    ) as there:
        await there.create({"connections": {"k": connection}, "pipeline": [{"$source": source}, {"$emit": emit}]})
        await there.client.request(StartProcessor(there.client.unique(), NAME, resume=True))
        async for status in there.client.watch(NAME):
            if status.state == "FAILED":
                break
    assert "LogDenied" in status.reason
    assert "Authentication failed" in status.reason
    assert "correct the password" in status.reason


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"sasl_passwrod": PASSWORD},
            "TIDEMARK_KAFKA_CONFIG.sasl_passwrod: no such setting; did you mean sasl_password?",
        ),
        (
            {"security_protocol": "TLS"},
            "TIDEMARK_KAFKA_CONFIG.security_protocol: expected one of PLAINTEXT, SSL",
        ),
        ({"security_protocol": "SASL_SSL", "sasl_username": USER}, "needs sasl_username and sasl_password"),
    ],
    ids=str,
)
def test_wrong_settings_are_named_and_no_secret_is_shown(config: dict[str, str], said: str) -> None:
    """The error names the variable and the setting, with the nearest name; a password is not in it."""
    environment = {"TIDEMARK_KAFKA": "b:1", "TIDEMARK_PLACE": "p", "TIDEMARK_KAFKA_CONFIG": json.dumps(config)}
    with pytest.raises(ProcessSettingsError) as raised:
        kafka_settings(read_settings(environment))
    assert said in str(raised.value)
    assert PASSWORD not in str(raised.value)


async def test_another_password_is_another_client() -> None:
    """Two documents share a client where all of a connection is the same; where the password alone differs, each has its own."""
    connections = Connections("test")
    config = {"security_protocol": "SASL_SSL", "sasl_username": USER}
    logs = [
        connections.log(
            Connection("k", "kafka", {"bootstrapServers": "b:1", "config": {**config, "sasl_password": word}})
        )
        for word in (PASSWORD, "other", PASSWORD)
    ]
    assert logs[0] is logs[2]
    assert logs[0] is not logs[1]
    await connections.close()
