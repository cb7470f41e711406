"""A log whose brokers may be away for a while when an audit asks them about topics; its readings wait by themselves (`reading`)."""

from collections.abc import Sequence
from functools import partial

from tidemark.services.audit.reading import patiently
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Log, TopicFound, TopicPartition, TopicRules


class PatientLog:
    """`Log` in front of another. What it asks raises LogUnavailable after `outage_ms_max` of outages."""

    def __init__(self, inner: Log) -> None:
        self._inner = inner
        self.create_topic = inner.create_topic
        self.delete_topics = inner.delete_topics
        self.note_offsets = inner.note_offsets
        self.delete_records = inner.delete_records
        self.reader = inner.reader
        self.writer = inner.writer
        self.transactional_writer = inner.transactional_writer
        self.close = inner.close

    async def list_topics(self) -> dict[str, int]:
        """As the inner log."""
        return await patiently(self._inner.list_topics)

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """As the inner log."""
        return await patiently(partial(self._inner.describe_topics, topics))

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """As the inner log."""
        return await patiently(partial(self._inner.topic_rules, topics))

    async def begin_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """As the inner log."""
        return await patiently(partial(self._inner.begin_offsets, partitions))

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Offset]:
        """As the inner log."""
        return await patiently(partial(self._inner.end_offsets, partitions))
