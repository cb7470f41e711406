"""Servers that are asked by HTTP, a registry among them; MongoDB."""

import dataclasses
from typing import Any

from aiohttp import web

from tests.harness.lasting.kafkas import KafkaSource
from tests.harness.lasting.kinds import NOWHERE, Kind, Trouble, address
from tests.harness.lasting.way import Way
from tests.harness.registry import Registry


class _Https(Kind):
    """A server that tells numbers twice."""

    way: Way

    async def prepare(self) -> None:
        await super().prepare()
        self.status, self.told = 200, dict[str, int]()
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self.runner = web.AppRunner(app)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.way = await self.world.way(("127.0.0.1", self.runner.addresses[0][1]))
        self.connection = {"type": "https", "url": f"http://{address(self.way)}/v1"}
        self.by(self.way, f"{self.way.port}|connection c: ")
        for status, lasting in ((401, True), (403, True), (405, True), (500, True), (503, False), (429, False)):
            self.troubles[str(status)] = Trouble(
                lasting, (str(status), "connection c"), self._becomes(status), self._becomes(200), foreseen=False
            )
        self.troubles["404"] = Trouble(
            True, ("404", "connection c"), self._becomes(404), self._becomes(200), foreseen=False
        )

        async def nowhere() -> None:
            self.connection["url"] = f"http://{NOWHERE}/v1"

        async def tls() -> None:
            self.connection["url"] = f"https://{address(self.way)}/v1"

        self.troubles["name"] = Trouble(False, (NOWHERE,), nowhere, None, ("before",))
        self.troubles["tls where there is none"] = Trouble(True, ("ssl",), tls, None, ("before",))

    def _becomes(self, status: int) -> Any:
        async def become() -> None:
            self.status = status

        return become

    async def _answer(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.Response(status=self.status, text="no")
        if "n" in request.query:
            self.told[request.headers["Idempotency-Key"]] = int(request.query["n"])
        return web.json_response({"ok": True})

    async def close(self) -> None:
        await self.runner.cleanup()

    def stage(self) -> dict[str, Any]:
        asked = {"requestTimeoutSec": 2, "connectionTimeoutSec": 2}
        return {
            "connectionName": "c", "parameters": {"n": {"$toString": "$n"}}, "method": "GET", "onError": "fail", "config": asked,
        }  # fmt: skip


class HttpsLookup(_Https):
    """Asked about each document."""

    def middle(self) -> list[dict[str, Any]]:
        return [{"$https": {**self.stage(), "as": "answer"}}, {"$project": {"_id": 0, "n": 1}}]


class HttpsTarget(_Https):
    """Told of each document."""

    def end(self) -> dict[str, Any]:
        return {"$https": self.stage()}

    async def rows(self) -> list[int]:
        return list(self.told.values())


class RegistrySource(KafkaSource):
    """A registry of the records of a topic."""

    async def prepare(self) -> None:
        await super().prepare()
        self.registry = await Registry().start()
        number = self.registry.add(
            f"{self.topic}-value", {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
        )
        self.number = number
        port = int(self.registry.url.rpartition(":")[2].rstrip("/"))
        self.to_registry = await self.world.way(("127.0.0.1", port))
        self.settings: dict[str, Any] = {
            "type": "schemaRegistry",
            "schemaRegistryUrls": [f"http://{address(self.to_registry)}"],
        }
        self.troubles = {}
        self.by(self.to_registry, str(self.to_registry.port))

        async def nowhere() -> None:
            self.settings["schemaRegistryUrls"] = [f"http://{NOWHERE}:8081"]

        async def tls() -> None:
            self.settings["schemaRegistryUrls"] = [f"https://{address(self.to_registry)}"]

        async def guarded() -> None:
            self.registry.user = "Basic somebody"

        async def open_() -> None:
            self.registry.user = ""

        self.troubles = {name: dataclasses.replace(each, moments=("before",)) for name, each in self.troubles.items()}
        self.troubles["name"] = Trouble(False, (NOWHERE,), nowhere, None, ("before",))
        self.troubles["tls where there is none"] = Trouble(True, ("ssl",), tls, None, ("before",))
        self.troubles["password"] = Trouble(True, ("401", str(self.to_registry.port)), guarded, open_, ("before",))

    def more(self) -> dict[str, Any]:
        return {"r": self.settings}

    def source(self) -> dict[str, Any]:
        found = super().source()
        found["$source"]["schemaRegistry"] = {"connectionName": "r"}
        return found

    async def feed(self, *numbers: int) -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.plain)
        await producer.start()
        for n in numbers:
            await producer.send_and_wait(self.topic, b"\0" + self.number.to_bytes(4, "big") + bytes([n * 2]))
        await producer.stop()


class MongoTarget(Kind):
    """A collection."""

    way: Way

    async def prepare(self) -> None:
        await super().prepare()
        servers = await self.world.mongodb()
        self.direct = servers.replicas
        self.way = await self.world.way(("127.0.0.1", int(self.direct.rstrip("/").rpartition(":")[2])))
        self.at(address(self.way))
        self.by(self.way, str(self.way.port))

        async def nowhere() -> None:
            self.at(NOWHERE)

        async def tls() -> None:
            self.at(address(self.way), "&tls=true")

        self.troubles["name"] = Trouble(False, (NOWHERE,), nowhere, None, ("before",))
        self.troubles["tls where there is none"] = Trouble(False, ("ssl",), tls, None, ("before",))

    def at(self, where: str, more: str = "") -> None:
        options = "?directConnection=true&retryWrites=false&serverSelectionTimeoutMS=2000&connectTimeoutMS=2000&socketTimeoutMS=3000"
        self.connection = {"type": "mongodb", "url": f"mongodb://{where}/{options}{more}"}

    def end(self) -> dict[str, Any]:
        return {"$merge": {"into": {"connectionName": "c", "db": "d", "coll": self.name}, "whenMatched": "replace"}}

    def middle(self) -> list[dict[str, Any]]:
        return [{"$project": {"_id": "$n", "n": 1}}]

    async def rows(self) -> list[int]:
        from pymongo import AsyncMongoClient

        client: Any
        async with AsyncMongoClient(self.direct, directConnection=True) as client:
            return [row["n"] async for row in client["d"][self.name].find()]
