"""The servers that cases have in common, started when a case first asks; each case has names of its own."""

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.harness.certificates import made_certificate
from tests.harness.clusters.granting import Right, grant
from tests.harness.lasting.way import Way
from tests.harness.mongodb.servers import Servers, mongodb
from tests.harness.postgres import postgres
from tidemark.services.local.broker import LocalBroker
from tidemark.services.local.broker_settings import LOOPBACK, BrokerSettings, Port

PASSWORD: Final = "wonderland-7"
_USERS: Final = 64
_WAYS: Final = 6
_OWN: Final = (
    Right("topic", "", "ALL"), Right("group", "", "ALL"), Right("transactional-id", "", "ALL"), Right("cluster", "kafka-cluster", "ALL"),
)  # fmt: skip


@dataclass
class Kafka:
    """A broker with a listener without a password, one with passwords and rights, one with TLS, and several by ways that can be shut."""

    plain: str
    guarded: str
    tls: str
    folder: Path
    admin: AIOKafkaAdminClient
    ways: asyncio.Queue[Way]
    """Those that no case has."""
    users: Any = field(default_factory=lambda: (f"u{n}" for n in range(_USERS)))

    async def make(self, topic: str, partitions: int = 1) -> None:
        await self.admin.create_topics([NewTopic(topic, partitions, 1)])

    async def send(self, topic: str, rows: Sequence[Mapping[str, Any]]) -> None:
        producer = AIOKafkaProducer(bootstrap_servers=self.plain)
        await producer.start()
        try:
            for row in rows:
                await producer.send_and_wait(topic, json.dumps(row).encode())
        finally:
            await producer.stop()

    async def records(self, topic: str) -> list[Any]:
        """All that readers of committed records see."""
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=self.plain, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        await consumer.start()
        try:
            parts = consumer.assignment()
            ends = await consumer.end_offsets(parts)
            found: list[Any] = []
            while any([await consumer.position(part) < ends[part] for part in parts]):
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    found += [json.loads(record.value) for record in records]
            return found
        finally:
            await consumer.stop()

    async def user(self, *rights: Right) -> dict[str, Any]:
        """The settings of a user who may do this, and no more."""
        name = next(self.users)
        await grant(self.plain, rights, name)
        return {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": name,
            "sasl_password": PASSWORD,
        }


class World:
    """Of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = contextlib.AsyncExitStack()
        self._made: dict[str, asyncio.Task[Any]] = {}
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def name(self, stem: str) -> str:
        """That no other case has."""
        return f"{stem}{next(self._numbers)}"

    def number(self) -> int:
        """From which on the names that an installation makes are of numbers that no other has."""
        return (next(self._numbers) + 1) << 32

    async def _once(self, what: str, make: Callable[[], Awaitable[Any]]) -> Any:
        if what not in self._made:
            self._made[what] = asyncio.ensure_future(make())
        return await self._made[what]

    async def way(self, to: tuple[str, int] | Path) -> Way:
        """A new one, until the end of the run."""
        way = await Way(to).start()
        self._stack.push_async_callback(way.close)
        return way

    async def kafka(self) -> Kafka:
        """One broker for all cases."""
        found: Kafka = await self._once("kafka", self._kafka)
        return found

    async def postgres(self) -> str:
        """One server for all cases, by its socket."""
        found: str = await self._once("postgres", self._postgres)
        return found

    async def mongodb(self) -> Servers:
        """One pair of servers for all cases."""
        found: Servers = await self._once("mongodb", self._mongodb)
        return found

    async def _postgres(self) -> str:
        return await asyncio.to_thread(self._stack.enter_context, postgres(logical=True))

    async def _mongodb(self) -> Servers:
        return await asyncio.to_thread(self._stack.enter_context, mongodb())

    async def _kafka(self) -> Kafka:
        folder = self.folder / "kafka"
        folder.mkdir()
        certificate, key = made_certificate(folder, "broker")
        made_certificate(folder, "stranger")
        behind = [f"WAY{n}" for n in range(_WAYS)]
        names = ("PLAINTEXT", "CONTROLLER", "GUARDED", "TLS", *behind)
        ports = dict(zip(names, random.SystemRandom().sample(range(20_000, 30_000), len(names)), strict=True))
        ways = {name: await self.way((LOOPBACK, ports[name])) for name in behind}
        advertised = {
            name: ways[name].port if name in ways else port for name, port in ports.items() if name != "CONTROLLER"
        }
        protocols = {"GUARDED": "SASL_PLAINTEXT", "TLS": "SSL"}
        users = " ".join(f'user_u{n}="{PASSWORD}"' for n in range(_USERS))
        overrides = {
            "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in ports.items()),
            "advertised.listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in advertised.items()),
            "listener.security.protocol.map": ",".join(f"{n}:{protocols.get(n, 'PLAINTEXT')}" for n in names),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.guarded.plain.sasl.jaas.config": (
                f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
            ),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": certificate.replace("\n", "\\n"),
            "ssl.keystore.key": key.replace("\n", "\\n"),
        }
        broker = LocalBroker(
            BrokerSettings(
                data_dir=folder / "data",
                port=Port(ports["PLAINTEXT"]),
                controller_port=Port(ports["CONTROLLER"]),
                overrides=overrides,
            )
        )
        bootstrap = await broker.start()
        self._stack.callback(broker.kill)
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        self._stack.push_async_callback(admin.close)
        free: asyncio.Queue[Way] = asyncio.Queue()
        for way in ways.values():
            free.put_nowait(way)
        return Kafka(bootstrap, f"{LOOPBACK}:{ports['GUARDED']}", f"{LOOPBACK}:{ports['TLS']}", folder, admin, free)
