"""Records with ids on their way through an installation in memory: what is sent, what comes out, and what an audit says."""

import json
from typing import Any

from tests.harness.installation import NAME, Installed
from tidemark.services.audit.check import Audited, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.messages import ModifyProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition

PARTITIONS = 3
WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "second"},
        "allowedLateness": {"size": 0, "unit": "second"},
        "pipeline": [{"$group": {"_id": None, "vs": {"$push": "$v"}}}],
    }
}
EMIT = {"$emit": {"connectionName": "k", "topic": "out"}}
Sent = tuple[int, dict[str, Any]]
"""Partition and record."""


def document(*stages: dict[str, Any], **source: Any) -> dict[str, Any]:
    """A topic whose records have ids, and these stages; `source`: its further options."""
    read = {
        "connectionName": "k",
        "topic": "t",
        "config": {"auto_offset_reset": "earliest"},
        "timeField": {"$toDate": "$at"},
        "schema": {"id": "string", "at": "long", "v": "int"},
        "recordId": "$id",
        "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "second"}},
        **source,
    }
    return {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "memory:1"}},
        "pipeline": [{"$source": read}, *stages],
        "options": {
            "lateness": "split",
            "dlq": {"connectionName": "k", "topic": "letters"},
            "checkpoint": {"interval": {"size": 200, "unit": "ms"}},
        },
    }


def record(number: int, at_ms: int, **more: Any) -> dict[str, Any]:
    """A record by its number."""
    return {"id": f"r{number}", "at": at_ms, "v": number, **more}


class Story:
    """An installation with the topic of the source, and what its producers do."""

    def __init__(self, it: Installed) -> None:
        self.it = it
        self.log = MemoryLog(it.broker)
        for topic, count in (("t", PARTITIONS), ("out", 1), ("letters", 1)):
            it.broker.create_topic(topic, count)

    async def send(self, *sent: Sent) -> None:
        """Write records."""
        writer = await self.log.writer("producer")
        for partition, value in sent:
            await (await writer.send(TopicPartition("t", partition), NewRecord(json.dumps(value).encode())))
        await writer.close()

    async def tasks(self, made: dict[str, Any], **tasks: int) -> None:
        """Another number of tasks from the last checkpoint on."""
        await self.it.stop()
        await self.it.client.request(ModifyProcessor(self.it.client.unique(), NAME, json.dumps(made), tasks, True))
        await self.it.start()

    def rows(self, topic: str = "out") -> list[dict[str, Any]]:
        """What a topic has."""
        return [json.loads(r.value or b"") for part in self.it.broker.dump(topic).values() for r in part]

    @property
    def installation(self) -> AuditedInstallation:
        """As the command line sees it."""
        return AuditedInstallation(MemoryCommitStore(self.it.store), self.it.blobs, self.log, {})

    async def audited(self) -> Audited:
        """AuditFailed."""
        return await audit(NAME, self.installation)
