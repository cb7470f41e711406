"""How long a source gathers what ordinary producers send."""

import json
from typing import Any

import pytest

from tidemark.services.source.connecting import gathers_ms
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.language.documents import parse


@pytest.mark.parametrize(
    ("interval_ms", "bound_ms", "expected"),
    [(None, 100, 100), (25, 100, 5), (200, 100, 20), (60_000, 100, 100), (200, 0, 0)],
)
def test_a_source_gathers_for_a_tenth_of_an_epoch_at_most(
    interval_ms: int | None, bound_ms: int, expected: int
) -> None:
    """Frequent checkpoints are asked for by who wants results soon; the connection's setting bounds it."""
    options: dict[str, Any] = {}
    if interval_ms is not None:
        options = {"checkpoint": {"interval": {"size": interval_ms, "unit": "ms"}}}
    source = {"$source": {"connectionName": "c", "topic": "t"}}
    document = {
        "connections": {"c": {"type": "kafka", "bootstrapServers": "b:1"}},
        "pipeline": [source],
        "options": options,
    }
    assert gathers_ms(KafkaSettings(bootstrap="b:1", fetch_gather_ms=bound_ms), parse(json.dumps(document))) == expected
