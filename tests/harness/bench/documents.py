"""The pipelines that are measured."""

import json
from typing import Any, Literal

Ids = Literal["none", "split", "source"]
"""Where repeats of record ids are looked for."""


def windowed(source: str, target: str, *, epoch_ms: int, ids: Ids = "none", follows: bool = False) -> str:
    """Count and sum by key and minute of a topic that is read to its present end; with `follows` what comes from now on, without end."""
    reading: dict[str, Any] = {
        "connectionName": "broker",
        "topic": source,
        "config": {"auto_offset_reset": "earliest"},
        "until": "latest",
        "schema": {"key": "string", "ts": "long", "amount": "int"},
        "timeField": {"$toDate": "$ts"},
    }
    if follows:
        del reading["until"]
        reading["config"] = {"auto_offset_reset": "latest"}
    if ids != "none":
        # An id that each event has for itself: key, time and amount together would repeat, so the filter keeps what it must.
        reading["recordId"] = {"$concat": ["$key", {"$toString": "$ts"}, {"$toString": "$amount"}]}
        reading["recordIdScope"] = ids
        if ids == "split":
            reading["recordIdHorizon"] = {"positions": 100_000}
    window = {
        "interval": {"size": 1, "unit": "minute"},
        "allowedLateness": {"size": 0, "unit": "second"},
        "pipeline": [
            {"$group": {"_id": "$key", "n": {"$sum": 1}, "total": {"$sum": "$amount"}}},
            {"$project": {"_id": 0, "key": "$_id", "start": {"$meta": "stream.window.start"}, "n": 1, "total": 1}},
        ],
    }
    stages: list[dict[str, Any]] = [{"$source": reading}, {"$tumblingWindow": window}, _emit(target)]
    return _document(stages, epoch_ms)


def stateless(source: str, target: str, *, epoch_ms: int, start: str) -> str:
    """Every event of a topic that matches, which is all of them, on to another."""
    reading = {
        "connectionName": "broker",
        "topic": source,
        "config": {"auto_offset_reset": start},
        "schema": {"key": "string", "ts": "long", "amount": "int"},
        "timeField": {"$toDate": "$ts"},
    }
    stages: list[dict[str, Any]] = [{"$source": reading}, {"$match": {"amount": {"$gte": 0}}}, _emit(target)]
    return _document(stages, epoch_ms)


def _emit(target: str) -> dict[str, Any]:
    return {"$emit": {"connectionName": "broker", "topic": target}}


def _document(stages: list[dict[str, Any]], epoch_ms: int) -> str:
    return json.dumps({
        "name": "bench",
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "${LOCAL_KAFKA}"}},
        "pipeline": stages,
        "options": {"checkpoint": {"interval": {"size": epoch_ms, "unit": "ms"}}},
    })  # fmt: skip
