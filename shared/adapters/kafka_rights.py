"""Whether a client may do what a source or a sink does, asked so that nothing changes: brokers judge rights before all else.

A partition that no topic has is written to, and a transaction that nobody began is ended: who may do either is told that there is none.
"""

from collections.abc import Collection
from typing import Any, Final

from aiokafka.admin import NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    IncompatibleBrokerVersion,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
)
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.protocol.transaction import EndTxnRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tidemark.shared.adapters.kafka_client import some_node

_NO_PARTITION: Final = 2**31 - 1
_TIMEOUT_MS: Final = 5_000
"""For an answer: with the 30 s that clients wait by default, a check would seem to hang."""
_TRANSACTIONS: Final = 1
"""The kind of coordinator that is looked for."""
_DENIED: Final = (TopicAuthorizationFailedError.errno, ClusterAuthorizationFailedError.errno)


async def may_not(
    admin: Any,
    client: Any,
    reads: Collection[str],
    writes: Collection[str],
    creates: Collection[str],
    identities: Collection[str],
) -> list[str]:
    """The rights to topics, and to transactional ids, that the client lacks, as `docs/kafka.md` names them.

    LogUnavailable, the library's errors. A broker that is too old for a question is not asked it.
    """
    found = [
        f"READ of topic {topic}" for topic in sorted(reads) if await _code(client, topic, _reading(topic)) in _DENIED
    ]
    found += [
        f"WRITE of topic {topic}" for topic in sorted(writes) if await _code(client, topic, _writing(topic)) in _DENIED
    ]
    for topic in sorted(creates):
        answer = await admin.create_topics([NewTopic(topic, 1, 1)], _TIMEOUT_MS, validate_only=True)
        if answer.topic_errors[0][1] in _DENIED:
            found.append(f"CREATE of topic {topic}")
    return found + [
        f"WRITE of transactional id {identity}" for identity in sorted(identities) if await _is_denied(client, identity)
    ]


def _reading(topic: str) -> Any:
    return FetchRequest(0, 0, 1, 0, [(topic, [(0, 0, 1)])])


def _writing(topic: str) -> Any:
    return ProduceRequest(None, 1, _TIMEOUT_MS, [(topic, [(_NO_PARTITION, _record())])])


async def _code(client: Any, topic: str, request: Any) -> int:
    """The code that one partition's answer has; 0 where the broker does not know the request."""
    try:
        answer = await client.send(await some_node(client, [topic]), request)
    except IncompatibleBrokerVersion:
        return 0
    ((_, ((_, code, *_),)),) = answer.topics
    return int(code)


async def _is_denied(client: Any, identity: str) -> bool:
    node, denied = await some_node(client, []), TransactionalIdAuthorizationFailed.errno
    try:
        found = await client.send(node, FindCoordinatorRequest(identity, _TRANSACTIONS))
        if found.error_code:
            return bool(found.error_code == denied)
        answer = await client.send(found.coordinator_id, EndTxnRequest(identity, 0, 0, transaction_result=False))
    except IncompatibleBrokerVersion:
        return False
    return bool(answer.error_code == denied)


def _record() -> bytes:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1_000,
    )
    builder.append(0, timestamp=0, key=None, value=b"", headers=[])
    return bytes(builder.build())
