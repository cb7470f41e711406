"""MongoDB through the real services: enriched from a collection, written into another, stopped and gone on, audited as far as it can be."""

import json
import secrets
from typing import Any

import pytest

from tests.harness.installation import NAME, installed
from tests.harness.mongodb.servers import Servers
from tests.harness.sealing import sealed
from tidemark.services.audit.check import audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.mongodb import client_at
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.ports.log import NewRecord, TopicPartition

pytestmark = pytest.mark.mongodb
COUNT = 60
KEYS = 7


def document(url: str, database: str, *, enriched: bool) -> dict[str, Any]:
    """Counts readings by place in a collection; enriched: with the name that another has for the place."""
    names = {"connectionName": "server", "db": database, "coll": "names"}
    counted = {
        "into": {"connectionName": "server", "db": database, "coll": "counts"},
        "on": "place",
        "let": {"new": "$$ROOT"},
        "whenMatched": [{"$set": {"n": {"$add": ["$n", 1]}, "last": "$$new.last"}}],
    }
    return {
        "name": NAME,
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "server": {"type": "mongodb", "url": url},
        },
        "pipeline": [
            {"$source": {"connectionName": "broker", "topic": "in", "config": {"auto_offset_reset": "earliest"}}},
            *(
                [{"$lookup": {"from": names, "localField": "place", "foreignField": "_id", "as": "name"}}]
                if enriched
                else []
            ),
            {"$project": {"_id": 0, "place": 1, "name": {"$first": "$name.name"}, "n": {"$literal": 1}, "last": "$id"}},
            {"$merge": counted},
        ],
    }


async def _run(world: VirtualWorld, url: str, database: str, *, enriched: bool) -> tuple[str, ...]:
    """What an audit says that it does not check; of an enriched pipeline there is none."""
    async with installed(world.clock, world.executor) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", 2)
        await it.create(document(url, database, enriched=enriched), source=2, sink=2)
        await it.start()
        for first in range(0, COUNT, 20):
            writer = await log.writer("feeder")
            for number in range(first, first + 20):
                reading = {"id": number, "place": number % KEYS}
                await (await writer.send(TopicPartition("in", number % 2), NewRecord(json.dumps(reading).encode())))
            await writer.close()
            await it.committed()
            await it.stop()
            await it.start()
        await it.stop(drain=True)
        if enriched:
            return ()
        audited = await audit(NAME, AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {}))
    return audited.unchecked


@pytest.mark.parametrize("enriched", [True, False], ids=["enriched", "audited"])
def test_a_collection_holds_what_the_stream_said(mongodb_servers: Servers, enriched: bool) -> None:
    """Counts that a pipeline of whenMatched adds up are exact over stops and two sink tasks; an audit says that it does not judge them."""
    database = f"t{secrets.token_hex(6)}"
    client = client_at(mongodb_servers.replicas, 2_000)
    there = client[database]
    there["names"].insert_many([{"_id": place, "name": f"place {place}"} for place in range(KEYS)])
    there["counts"].create_index("place", unique=True)
    unchecked = run_virtual(lambda world: _run(world, mongodb_servers.replicas, database, enriched=enriched), seed=3)
    found = {one["place"]: one for one in there["counts"].find({}, {"_id": 0})}
    client.drop_database(database)
    client.close()
    for place in range(KEYS):
        name = {"name": f"place {place}" if enriched else None}
        numbers = [number for number in range(COUNT) if number % KEYS == place]
        assert {**found.pop(place), "last": 0} == {
            "place": place,
            **name,
            "n": len(numbers),
            "last": 0,
        }
    assert not found
    assert enriched or any("an expression or a pipeline" in why for why in unchecked)
