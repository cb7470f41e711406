"""Ids of topics (KIP-516): the client library's own request for metadata is of a version that does not tell them.

A broker of before 2.8 gives its topics no ids: they have the empty one here, and one that was made anew cannot be told from the old one.
"""

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from tidemark.shared.adapters.kafka_client import some_node
from tidemark.shared.ports.log import TopicFound

_ID_BYTES: Final = 16
"""Of a topic's id: Kafka's format."""
_NO_ID: Final = bytes(_ID_BYTES)
_METADATA: Final = 3
_WITH_IDS: Final = 10
_TEXT: Final = CompactString("utf-8")


class _Id(AbstractType[bytes]):  # type: ignore[misc]  # the library has no types
    """A UUID's bytes."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


class _Answer(Response):  # type: ignore[misc]  # the library has no types
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields)),
        ),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("id", _Id),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Asked(RequestStruct):  # type: ignore[misc]  # the library has no types
    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Id), ("topic", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[_Asked]):  # type: ignore[misc]  # the library has no types
    """Metadata of some topics, with their ids; makes none."""

    API_KEY = _METADATA

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Asked]) -> _Asked:
        """The request of the one version that it has."""
        named: list[tuple[bytes, str, dict[int, bytes]]] = [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(named, False, False, False, {})


async def describe_topics(client: Any, topics: Sequence[str]) -> dict[str, TopicFound]:
    """Those of these topics that exist, asked of a broker without making any. LogUnavailable, the library's errors."""
    node = await some_node(client, topics)
    try:
        answer = await client.send(node, TopicsRequest(topics))
    except (NotImplementedError, IncompatibleBrokerVersion):
        answer = await client.send(node, MetadataRequest(list(topics), allow_auto_topic_creation=False))
    found: list[Mapping[str, Any]] = answer.to_object()["topics"]
    return {
        t["topic"]: TopicFound(_shown(t.get("id", _NO_ID)), len(t["partitions"])) for t in found if not t["error_code"]
    }


def _shown(topic_id: bytes) -> str:
    """As Kafka's own tools show it; nothing for none."""
    return "" if topic_id == _NO_ID else base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
