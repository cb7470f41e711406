"""The records that stages and expressions are measured on: readings of sensors, JSON of about 180 bytes, a function of the seed."""

import json
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch

BEGIN_MS: Final = 1_709_287_200_000
"""2024-03-01T10:00:00Z."""
SENSORS: Final = 100
SCHEMA: Final = {
    "sensor": "string",
    "unit": "string",
    "text": "string",
    "when": "string",
    "at": "long",
    "n": "int",
    "value": "double",
    "ok": "bool",
}
SPLIT: Final = SplitId("readings-0")


def readings(count: int, seed: int = 5) -> list[dict[str, Any]]:
    """In the order of time, a hundred a second; `tags` and `place` are what no schema declares."""
    random = np.random.default_rng(seed)
    sensors, numbers = random.integers(0, SENSORS, count), random.integers(-1_000, 100_000, count)
    values, goods = np.round(random.normal(18, 6, count), 3), random.random(count) < 0.9
    found = []
    for i in range(count):
        at = BEGIN_MS + 10 * i
        found.append({
            "sensor": f"s{sensors[i]:03d}", "unit": "C" if goods[i] else "F", "text": f" line {numbers[i]} of s{sensors[i]} ",
            "when": str(np.datetime64(at, "ms")) + "Z", "at": at, "n": int(numbers[i]), "value": float(values[i]),
            "ok": bool(goods[i]), "tags": ["a", "b"], "place": {"room": int(sensors[i] % 7), "floor": 2},
        })  # fmt: skip
    return found


def records(count: int) -> RawBatch:
    """As a connector fetches them."""
    values = pa.array([json.dumps(each).encode() for each in readings(count)], type=pa.binary())
    positions = np.arange(count, dtype=np.int64)
    return RawBatch(SPLIT, 0, positions, positions * 0 + BEGIN_MS, values)


def source(*, declared: bool) -> dict[str, Any]:
    """A `$source` of readings, with or without their schema."""
    found: dict[str, Any] = {"connectionName": "c", "topic": "readings", "timeField": {"$toDate": "$at"}}
    return {"$source": {**found, "schema": SCHEMA} if declared else found}


def document(pipeline: Sequence[Any]) -> dict[str, Any]:
    """A document of these stages."""
    return {"connections": {"c": {"type": "kafka", "bootstrapServers": "b"}}, "pipeline": pipeline}
