"""Record ids on a real broker, by real processes: what is sent again to other partitions counts once, over kills of the tasks that know."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.faults import kill
from tidemark.services.audit.check import Audited, audit_local
from tidemark.services.audit.reading import committed_records
from tidemark.services.cli.feed import Fed, feed
from tidemark.services.cli.installation import installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

pytestmark = pytest.mark.e2e
NAME = ProcessorName("distinct")
WORKERS = {"coordinator": 1, "source": 1, "operator": 2, "sink": 1, "spark": 0, "control": 0}
RECORDS, PARTITIONS, PARTS = 30_000, 3, 3


def document() -> str:
    """An id is a field; its first record and the ones that are sent again have one time."""
    source: dict[str, Any] = {
        "connectionName": "broker",
        "topic": "in",
        "config": {"auto_offset_reset": "earliest"},
        "schema": {"n": "int", "at": "long"},
        "timeField": {"$toDate": "$at"},
        "recordId": "$n",
        "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "minute"}},
    }
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": [{"$source": source}, {"$emit": {"connectionName": "broker", "topic": "out"}}],
        "options": {"lateness": "split", "checkpoint": {"interval": {"size": 300, "unit": "ms"}}},
    })  # fmt: skip


async def test_a_tenth_of_the_ids_sent_again_elsewhere_while_operators_die_count_once(tmp_path: Path) -> None:
    """Each id comes out once; the audit computes the same from the topic, epoch by epoch."""
    chooser = random.Random(1)
    sent: list[tuple[int, bytes, bytes]] = []
    repeats = 0
    for n in range(RECORDS):
        sent.append((chooser.randrange(PARTITIONS), b"k", json.dumps({"n": n, "at": 1_000_000 + n}).encode()))
        if chooser.random() < 0.1:
            partition, key, value = chooser.choice(sent[-2_000:])
            sent.append(((partition + 1 + chooser.randrange(PARTITIONS - 1)) % PARTITIONS, key, value))
            repeats += 1
    async with installation(tmp_path, {}, WORKERS) as installed:
        await installed.log.create_topic("in", PARTITIONS, {"retention.ms": "-1"})
        await installed.log.create_topic("out", 1, {"retention.ms": "-1"})
        await installed.ensure_started(NAME, document(), {"source": 2, "operator": 2})
        for part in range(PARTS):
            await installed.until_running(NAME)
            mine = sent[len(sent) * part // PARTS : len(sent) * (part + 1) // PARTS]
            await feed(installed.log, "in", mine, len(mine), 0.0, Fed())
            await kill(installed, f"operator-{part % 2}")
        await installed.client.request(StopProcessor(installed.client.unique(), NAME, drain=True))
        async for status in installed.client.watch(NAME):
            assert status.state != "FAILED", status.reason
            if status.state == "FINISHED":
                break
        rows = Counter([json.loads(r.value or b"")["n"] async for r in committed_records(installed.log, "out")])
        assert rows == Counter(range(RECORDS))
        found: Audited = await audit_local(NAME, tmp_path)
        assert (found.records, found.accepted, found.duplicates) == (RECORDS + repeats, RECORDS, repeats)
