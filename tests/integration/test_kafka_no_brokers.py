"""A client of a broker that named no brokers when the client began."""

import pytest
from aiokafka import AIOKafkaClient

from tidemark.shared.adapters.kafka_admin import describe_topics
from tidemark.shared.adapters.kafka_client import require_topics


@pytest.mark.kafka
async def test_a_client_that_knows_no_broker_begins_once_more(kafka_broker: str) -> None:
    """A broker that was being started named none, and the connection to it is gone: the next question finds it."""
    client = AIOKafkaClient(bootstrap_servers=kafka_broker)
    await client.bootstrap()
    try:
        client.cluster._brokers.clear()
        assert client.get_random_node() is None
        assert await describe_topics(client, ["never-made"]) == {}
        client.cluster._brokers.clear()
        assert await require_topics(client, [], 0) == {}
    finally:
        await client.close()
