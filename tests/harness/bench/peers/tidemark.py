"""Tidemark's side: a document for a shape, run in an installation."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from tests.harness.bench.peers.shapes import WITHIN_MS, Shape
from tidemark.services.cli.installation import Installation
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import StopProcessor

_SCHEMA: Final = {"key": "string", "ts": "long", "amount": "int"}


def document(shape: Shape, source: str, target: str, epoch_ms: int) -> str:
    """The pipeline."""
    reading: dict[str, Any] = {
        "connectionName": "broker", "topic": source, "timeField": {"$toDate": "$ts"},
        "config": {"auto_offset_reset": "earliest"}, **({"schema": _SCHEMA} if shape.declared else {}),
    }  # fmt: skip
    if shape.windowed:
        # Producers send to partitions at random: events of a few seconds lie beside each other.
        reading["watermark"] = {"strategy": "boundedDisorder", "maxDelay": {"size": 5, "unit": "second"}}
    joining: list[Mapping[str, Any]] = [
        {
            "$join": {
                "from": [{"$source": reading}], "leftKey": "$key", "rightKey": "$key", "as": "right",
                "within": {"before": {"size": WITHIN_MS, "unit": "ms"}},
            },
        },
    ]  # fmt: skip
    stages: list[Mapping[str, Any]] = [
        {"$source": reading}, *(joining if shape.joined else []), *shape.stages, {"$emit": {"connectionName": "broker", "topic": target}},
    ]  # fmt: skip
    return json.dumps({
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": stages,
        "options": {"checkpoint": {"interval": {"size": epoch_ms, "unit": "ms"}}},
    })  # fmt: skip


async def started(installed: Installation, name: str, text: str) -> None:
    """Begin, and wait until it runs."""
    await installed.ensure_started(ProcessorName(name), text, {})
    await installed.until_running(ProcessorName(name))


async def stopped(installed: Installation, name: str) -> None:
    """Stop it."""
    await installed.client.request(StopProcessor(installed.client.unique(), ProcessorName(name)))
    await installed.until_ended(ProcessorName(name))
    await asyncio.sleep(0)
