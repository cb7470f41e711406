"""Kafka as source and as target."""

import asyncio
from typing import Any, Final

from tests.harness.clusters.granting import Right, grant
from tests.harness.lasting.kinds import LOOK_S, NOWHERE, Kind, Trouble, address
from tests.harness.lasting.way import Way
from tests.harness.lasting.world import Kafka

_FAST: Final = {"request_timeout_ms": 3_000, "delivery_timeout_ms": 6_000, "transaction_timeout_ms": 10_000}


class _Kafka(Kind):
    kafka: Kafka
    way: Way

    async def prepare(self) -> None:
        await super().prepare()
        self.kafka = await self.world.kafka()
        self.way = await self.kafka.ways.get()
        self.topic = self.name
        self.connection = {"type": "kafka", "bootstrapServers": address(self.way), "config": dict(_FAST)}
        await self.kafka.make(self.topic)
        self.by(self.way, "127.0.0.1:" + str(self.way.port))
        static = {
            "name": (False, (NOWHERE,), f"{NOWHERE}:9092", {}),
            "password": (True, ("authentication failed", self.kafka.guarded), self.kafka.guarded, {
                "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "u0", "sasl_password": "other"}),
            "mechanism": (True, ("scram", self.kafka.guarded), self.kafka.guarded, {
                "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "u0", "sasl_password": "o"}),
            "a certificate that nobody signs": (True, ("certificate", self.kafka.tls), self.kafka.tls, {"security_protocol": "SSL"}),
            "tls where there is none": (None, ("security_protocol SSL", self.kafka.plain), self.kafka.plain, {"security_protocol": "SSL"}),
            "no tls where there is some": (None, (self.kafka.tls,), self.kafka.tls, {}),
            "no file of certificates": (True, ("nothing.pem",), self.kafka.tls, {
                "security_protocol": "SSL", "ssl_ca_file": str(self.folder / "nothing.pem")}),
        }  # fmt: skip
        for name, (lasting, says, bootstrap, config) in static.items():

            async def strike(bootstrap: str = bootstrap, config: dict[str, Any] = config) -> None:
                self.connection["bootstrapServers"] = bootstrap
                self.connection["config"] |= config

            self.troubles[name] = Trouble(bool(lasting), says, strike, None, ("before",))

        async def dropped() -> None:
            await self.kafka.admin.delete_topics([self.topic])
            while self.topic in await self.kafka.admin.list_topics():  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)

        async def made() -> None:
            await self.kafka.make(self.topic)

        self.dropped, self.made = dropped, made

    async def as_user(self, *rights: Right) -> None:
        """With these rights and no more."""
        self.connection["bootstrapServers"] = self.kafka.guarded
        self.connection["config"] |= await self.kafka.user(*rights)

    def lacks(self, name: str, lacking: Right, rights: tuple[Right, ...], *says: str) -> None:
        """A trouble: a right is not there until it is given."""

        async def strike() -> None:
            await self.as_user(*(right for right in rights if right != lacking))

        async def mend() -> None:
            await grant(self.kafka.plain, [lacking], self.connection["config"]["sasl_username"])

        self.troubles[name] = Trouble(True, says, strike, mend, ("before",))

    async def close(self) -> None:
        await self.way.become("open")
        self.kafka.ways.put_nowait(self.way)


class KafkaSource(_Kafka):
    """A topic that is read."""

    def source(self) -> dict[str, Any]:
        return {"$source": {"connectionName": "c", "topic": self.topic, "config": {"auto_offset_reset": "earliest"}}}

    async def feed(self, *numbers: int) -> None:
        if self.topic in await self.kafka.admin.list_topics():
            await self.kafka.send(self.topic, [{"n": n} for n in numbers])

    async def prepare(self) -> None:
        await super().prepare()
        self.troubles["no topic"] = Trouble(
            True, (self.topic, "create the topic"), self.dropped, self.made, ("before",)
        )
        self.troubles["topic deleted"] = Trouble(True, (self.topic,), self.dropped, None, ("runs",))
        rights = (Right("topic", self.topic, "READ"), Right("group", "", "READ", prefix=True))
        self.lacks("no right to read", rights[0], rights, self.topic, "docs/kafka.md")


class KafkaTarget(_Kafka):
    """A topic that is written."""

    def end(self) -> dict[str, Any]:
        return {"$emit": {"connectionName": "c", "topic": self.topic}}

    async def rows(self) -> list[int]:
        if self.topic not in await self.kafka.admin.list_topics():
            return []
        return [row["n"] for row in await self.kafka.records(self.topic)]

    async def prepare(self) -> None:
        await super().prepare()
        rights = (
            Right("topic", self.topic, "WRITE"),
            Right("topic", self.topic, "DESCRIBE_CONFIGS"),
            *(Right("topic", "tidemark.markers.", does, prefix=True) for does in ("CREATE", "READ", "WRITE", "DELETE")),
            Right("transactional-id", "tidemark.", "WRITE", prefix=True),
        )
        for right in rights:
            if right.operation not in ("DESCRIBE_CONFIGS", "DELETE"):
                what = "topic" if right.name == self.topic else "markers" if right.kind == "topic" else right.kind
                said = {"topic": self.topic, "markers": "tidemark.markers.", "transactional-id": "tidemark."}[what]
                self.lacks(f"no right to {right.operation} of {what}", right, rights, said, "docs/kafka.md")
