"""`tidemark check --connect` foresees rights that are missing, on real servers, and changes nothing to find out."""

import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import psycopg
import pytest
import pytest_asyncio

from tests.harness.clusters.granting import USER, Right, grant
from tests.harness.clusters.rights import _JAAS, _PASSWORD
from tidemark.services.cli.connected import refused_by_what_is_there
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import LOOPBACK, BrokerSettings, Port
from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import parse

READS: Sequence[Right] = (Right("topic", "in", "READ"),)
WRITES: Sequence[Right] = (
    Right("topic", "out", "WRITE"),
    *(Right("topic", "tidemark.markers.", does, prefix=True) for does in ("CREATE", "READ", "WRITE")),
    Right("transactional-id", "tidemark.", "WRITE", prefix=True),
)


async def _found(connection: dict[str, Any], *stages: dict[str, Any]) -> list[str]:
    document = {"connections": {"c": connection}, "pipeline": list(stages)}
    return [str(error) for error in await refused_by_what_is_there(parse(document))]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def brokers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, str]]:
    names = ("PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT")
    ports = dict(zip(names, random.SystemRandom().sample(range(20_000, 30_000), len(names)), strict=True))
    listeners = {name: f"{name}://{LOOPBACK}:{port}" for name, port in ports.items()}
    overrides = {
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(text for name, text in listeners.items() if name != "CONTROLLER"),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
    }
    broker = LocalBroker(
        BrokerSettings(
            data_dir=tmp_path_factory.mktemp("kafka"),
            port=Port(ports["PLAINTEXT"]),
            controller_port=Port(ports["CONTROLLER"]),
            overrides=overrides,
        )
    )
    yield await broker.start(), f"{LOOPBACK}:{ports['SASL_PLAINTEXT']}"
    broker.kill()


@pytest.mark.kafka
@pytest.mark.asyncio(loop_scope="module")
async def test_rights_of_a_kafka_user_are_foreseen_one_by_one(brokers: tuple[str, str]) -> None:
    """Each that is not there yet is named with its resource, and those that are given are not; no topic and no record comes of it."""
    plain, guarded = brokers
    log = KafkaLog(KafkaSettings(bootstrap=plain, client="test"))
    for topic in ("in", "out"):
        await log.create_topic(topic, 1)
    await grant(plain, [Right("topic", topic, "DESCRIBE") for topic in ("in", "out")])
    config = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password": _PASSWORD,
    }
    kafka = {"type": "kafka", "bootstrapServers": guarded, "config": config}
    stages = [{"$source": {"connectionName": "c", "topic": "in"}}, {"$emit": {"connectionName": "c", "topic": "out"}}]
    wanted = {
        **{
            right: f"{right.operation} of topic {right.name}{'*' if right.prefix else ''}"
            for right in (*READS, *WRITES[:-1])
        },
        WRITES[-1]: "WRITE of transactional id tidemark.*",
    }
    missing = list(wanted)
    while missing:
        found = "; ".join(await _found(kafka, *stages))
        assert [right for right in wanted if wanted[right] in found] == missing, found
        assert guarded in found
        await grant(plain, [missing.pop(0)])
    assert await _found(kafka, *stages) == []
    assert await log.list_topics() == {"in": 1, "out": 1}
    assert set((await log.end_offsets([(await _partition("out"))])).values()) == {0}
    await log.close()


async def _partition(topic: str) -> Any:
    from tidemark.shared.ports.log import TopicPartition

    return TopicPartition(topic, 0)


@pytest.mark.postgres
async def test_rights_of_a_postgresql_user_are_foreseen(postgres_url: str, unique_name: Callable[[str], str]) -> None:
    """To the table, to where markers are made, to read it, and to read a slot; and a database that takes no writes."""
    user = unique_name("user").replace("-", "_")
    url = postgres_url.replace("postgresql://postgres:@", f"postgresql://{user}:x@")
    assert user in url, url
    into = {"connectionName": "c", "table": "t"}
    own = {"$source": {"documents": [{"id": 1}]}}
    merge: list[dict[str, Any]] = [own, {"$merge": {"into": into, "on": "id"}}]
    asks: list[dict[str, Any]] = [own, {"$lookup": {"from": into, "localField": "id", "foreignField": "id", "as": "x"}}]

    async def said(*stages: dict[str, Any]) -> str:
        return "; ".join(await _found({"type": "sql", "url": url}, *stages))

    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for statement in (
            f"CREATE ROLE {user} LOGIN PASSWORD 'x'",
            "CREATE TABLE t (id integer PRIMARY KEY)",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            f"GRANT USAGE ON SCHEMA public TO {user}",
        ):
            admin.execute(statement)
        try:
            refused = await said(*merge)
            assert "the user lacks INSERT on t, SELECT on t, UPDATE on t, CREATE in the schema" in refused
            assert "the user lacks SELECT on t" in await said(*asks)
            admin.execute(f"GRANT SELECT, INSERT, UPDATE ON t TO {user}")
            admin.execute(f"GRANT CREATE ON SCHEMA public TO {user}")
            assert await said(*merge) == await said(*asks) == ""
            admin.execute(f"ALTER ROLE {user} SET default_transaction_read_only = on")
            assert "it is read-only" in await said(*merge)
        finally:
            admin.execute(f"DROP OWNED BY {user}")
            admin.execute(f"DROP ROLE {user}")
