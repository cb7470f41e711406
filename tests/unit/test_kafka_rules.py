"""What a topic's settings say that it refuses."""

import pytest

from tidemark.shared.adapters.kafka_admin import rules_of
from tidemark.shared.ports.log import TopicRules


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({}, TopicRules(ahead_ms_max=3_600_000)),
        ({"message.timestamp.type": "LogAppendTime", "message.timestamp.after.max.ms": "5"}, TopicRules()),
        (
            {"message.timestamp.after.max.ms": "5", "message.timestamp.before.max.ms": "9223372036854775807"},
            TopicRules(ahead_ms_max=5, behind_ms_max=2**63 - 1),
        ),
        ({"message.timestamp.difference.max.ms": "7"}, TopicRules(ahead_ms_max=7, behind_ms_max=7)),
        (
            {"max.message.bytes": "100", "cleanup.policy": "compact,delete"},
            TopicRules(batch_bytes_max=100, needs_key=True),
        ),
    ],
)
def test_a_topics_rules_are_those_of_its_settings(settings: dict[str, str], rules: TopicRules) -> None:
    """Of Kafka before and after 3.6; where nothing is told, what a broker of today does by itself."""
    assert rules_of(settings) == rules
