"""A broker that wants TLS and a password: the same settings for Tidemark's own cluster and for connections of documents."""

import datetime as dt
import ipaddress
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from services.local.broker import LocalBroker
from services.local.broker_settings import LOOPBACK, BrokerSettings, Port
from shared.adapters.kafka_log import KafkaLog
from shared.adapters.kafka_raw import RawReader
from shared.adapters.kafka_settings import settings_from
from shared.language.documents import parse
from shared.model.ids import Offset
from shared.ports.log import LogError, NewRecord, TopicPartition
from shared.process.connections import Connections
from shared.process.outside import kafka_settings
from shared.process.settings import ProcessSettingsError, read_settings

USER, PASSWORD = "alice", "wonderland-7"
_JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'


@dataclass(frozen=True)
class Guarded:
    """The broker's guarded address, and the certificate that signs it."""

    bootstrap: str
    ca_file: Path

    def config(self, **changed: object) -> dict[str, object]:
        return {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": USER,
            "sasl_password": PASSWORD,
            "ssl_ca_file": str(self.ca_file),
            "request_timeout_ms": 3_000,
            "delivery_timeout_ms": 5_000,
            **changed,
        }


def _certificate() -> tuple[str, str]:
    """Certificate and key, PEM, for the loopback address; signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    day = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(day - dt.timedelta(days=1))
        .not_valid_after(day + dt.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM).decode(), private.decode()


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    """A broker with a listener that speaks TLS and asks for a password, besides the plain one of its controller."""
    certificate, key = _certificate()
    (tmp_path / "ca.pem").write_text(certificate)
    plain, controller, secure = random.SystemRandom().sample(range(20_000, 30_000), 3)
    overrides = {
        "listeners": f"PLAINTEXT://{LOOPBACK}:{plain},CONTROLLER://{LOOPBACK}:{controller},SASL_SSL://{LOOPBACK}:{secure}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{plain},SASL_SSL://{LOOPBACK}:{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": _JAAS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.replace("\n", "\\n"),
        "ssl.keystore.key": key.replace("\n", "\\n"),
    }
    settings = BrokerSettings(
        data_dir=tmp_path / "kafka", port=Port(plain), controller_port=Port(controller), overrides=overrides
    )
    broker = LocalBroker(settings)
    await broker.start()
    yield Guarded(f"{LOOPBACK}:{secure}", tmp_path / "ca.pem")
    broker.kill()


@pytest.mark.kafka
async def test_everything_goes_through_tls_and_a_password(guarded: Guarded) -> None:
    """Topics, plain and transactional writes, and both readers work with the settings of a process and of a document's connection."""
    environment = {
        "TIDEMARK_KAFKA": guarded.bootstrap,
        "TIDEMARK_PLACE": "test",
        "TIDEMARK_KAFKA_CONFIG": json.dumps(guarded.config()),
    }
    process = kafka_settings(read_settings(environment))
    source = {"$source": {"connectionName": "k", "topic": "t"}}
    connection = {"type": "kafka", "bootstrapServers": guarded.bootstrap, "config": guarded.config()}
    connections = Connections("test")
    document = parse(
        {"connections": {"k": connection}, "pipeline": [source, {"$emit": {"path": "o", "format": "json"}}]}
    )
    log, theirs = KafkaLog(process), connections.log(connections.get(document, "k"))
    topic = TopicPartition("t", 0)
    await log.create_topic("t", 1)
    writer = await log.writer("test")
    await (await writer.send(topic, NewRecord(b"one")))
    transactional = await theirs.transactional_writer("identity")
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
    for wrong in (guarded.config(sasl_password="other"), guarded.config(ssl_ca_file=None)):
        refused = KafkaLog(settings_from(wrong, "test", bootstrap=guarded.bootstrap, client="x"))
        with pytest.raises(LogError):
            await refused.list_topics()
        await refused.close()
    await connections.close()
    await log.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"sasl_passwrod": PASSWORD},
            "TIDEMARK_KAFKA_CONFIG.sasl_passwrod: no such setting; did you mean sasl_password?",
        ),
        ({"security_protocol": "TLS"}, "TIDEMARK_KAFKA_CONFIG: Invalid enum value 'TLS'"),
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
