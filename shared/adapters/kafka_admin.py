"""Topics and offsets of a Kafka cluster: one admin client and one consumer, opened at first use, anew after an error.

Ids of topics (KIP-516) are asked for here: the client library's own request for metadata is of a version that does not tell them. A broker
of before 2.8 gives its topics no ids: they have the empty one, and one that was made anew cannot be told from the old one.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, TypeVar

from aiokafka import errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
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

from tidemark.shared.adapters.kafka_client import (
    KAFKA_ERRORS,
    apart,
    distrust_starting_brokers,
    name_unreached_brokers,
    require_partitions,
    require_topics,
    some_node,
    translated,
)
from tidemark.shared.adapters.kafka_denied import why_not
from tidemark.shared.adapters.kafka_reader import KafkaReader, theirs
from tidemark.shared.adapters.kafka_rights import may_not
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, TopicFound, TopicPartition, TopicRules

_ID_BYTES: Final = 16
"""Of a topic's id: Kafka's format."""
_NO_ID: Final = bytes(_ID_BYTES)
_METADATA: Final = 3
_WITH_IDS: Final = 10
_TEXT: Final = CompactString("utf-8")


class _Id(AbstractType[bytes]):  # type: ignore[misc]  # the library has no types
    """A UUID as its bytes, which the library has no type for."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(_ID_BYTES)


class _MetadataAnswer(Response):  # type: ignore[misc]  # the library has no types
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


class _Metadata(RequestStruct):  # type: ignore[misc]  # the library has no types
    FLEXIBLE_VERSION = True
    API_KEY = _METADATA
    API_VERSION = _WITH_IDS
    RESPONSE_TYPE = _MetadataAnswer
    SCHEMA = Schema(
        ("topics", CompactArray(("id", _Id), ("topic", _TEXT), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[_Metadata]):  # type: ignore[misc]  # the library has no types
    """Metadata of some topics, with their ids; makes none."""

    API_KEY = _METADATA

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Metadata]) -> _Metadata:
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
    there = [t for t in found if t["error_code"] != errors.UnknownTopicOrPartitionError.errno]
    for topic in there:
        if topic["error_code"]:
            raise errors.for_code(topic["error_code"])(topic["topic"])
    return {t["topic"]: TopicFound(_shown(t.get("id", _NO_ID)), len(t["partitions"])) for t in there}


def _shown(topic_id: bytes) -> str:
    """As Kafka's own tools show it; nothing for none."""
    return "" if topic_id == _NO_ID else base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


_BYTES: Final = "max.message.bytes"
_CLEANUP: Final = "cleanup.policy"
_TIME: Final = "message.timestamp.type"
_AHEAD: Final = "message.timestamp.after.max.ms"
_BEHIND: Final = "message.timestamp.before.max.ms"
_EITHER: Final = "message.timestamp.difference.max.ms"
"""Before Kafka 3.6."""
RULES: Final = (_BYTES, _CLEANUP, _TIME, _AHEAD, _BEHIND, _EITHER)
"""The settings that `rules_of` looks at."""
_AHEAD_MS: Final = 3_600_000
"""Kafka's default since 4.0."""


def rules_of(settings: Mapping[str, str | None]) -> TopicRules:
    """The rules of a topic with these settings; one that is not told has Kafka's default."""
    if settings.get(_TIME) == "LogAppendTime":
        ahead = behind = None
    else:
        either = _number(settings.get(_EITHER))
        ahead = _least(_number(settings.get(_AHEAD)) if settings else _AHEAD_MS, either)
        behind = _least(_number(settings.get(_BEHIND)), either)
    return TopicRules(
        batch_bytes_max=_number(settings.get(_BYTES)),
        needs_key="compact" in (settings.get(_CLEANUP) or ""),
        ahead_ms_max=ahead,
        behind_ms_max=behind,
    )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _least(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


T = TypeVar("T")

_POLL_S: Final = 0.02
"""Between two looks, within `request_timeout_ms`."""
_REPLICAS: Final = 3
_BY_DEFAULT: Final = -1
"""As many replicas as the cluster gives to topics that name no number."""
_IN_SYNC: Final = {"min.insync.replicas": "2"}
"""Of a topic with three replicas: what was acknowledged survives one disk, and one broker may be away."""
_EXISTS: Final = errors.TopicAlreadyExistsError.errno
_TOO_FEW: Final = errors.InvalidReplicationFactorError.errno
"""Brokers for so many replicas."""


class KafkaAdmin:
    """Calls on topics, not on records. They may come from several coroutines."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin: Any = None
        self._reader: KafkaReader | None = None
        self._opening = asyncio.Lock()
        self._replicas: dict[int, int] = {}
        """By how many brokers are shown, the replicas that a topic was given then."""

    async def create_topic(self, topic: str, partitions: int, config: Mapping[str, str] | None) -> None:
        """Make it, and wait until it is known and has leaders; quiet when it exists with as many partitions."""

        async def make(admin: Any) -> None:
            await self._require_controller(admin)
            await self._make(admin, NewTopic(topic, partitions, _REPLICAS, topic_configs=dict(config or {})))
            found = (await require_topics(admin._client, [topic], self._settings.topic_wait_ms))[topic]
            if found != partitions:
                raise LogError(
                    f"topic {topic}: expected {partitions} partitions, found {found}; delete it or use another name"
                )

        await self._with_admin(make, f"creating topic {topic}")

    async def _require_controller(self, admin: Any) -> None:
        """While the brokers elect one, the library would fail on its absence."""
        cluster = admin._client.cluster
        if cluster.controller is None:
            await admin._client.force_metadata_update()
        if cluster.controller is None:
            raise LogUnavailable("the brokers have no controller now; try again")

    async def _make(self, admin: Any, new: NewTopic) -> None:
        """Ask for it until it is there with leaders: one that is being deleted is said to exist, and no longer shown (with ZooKeeper)."""
        topic, deadline = new.name, time.monotonic() + self._settings.request_timeout_ms / 1000
        asked, found = _EXISTS, list[Any]()
        while not (found and all(partition["leader"] >= 0 for partition in found[0]["partitions"])):
            if time.monotonic() >= deadline:
                raise LogUnavailable(f"topic {topic}: was made, but has no leaders yet; see the brokers")
            if asked == _EXISTS and not found:
                asked = await self._asked(admin, new)
            await asyncio.sleep(_POLL_S)
            node = await some_node(admin._client, [topic])
            with suppress(errors.BrokerNotAvailableError):  # the cluster's first topic may not be known at once
                answer = await admin._client.send(node, MetadataRequest([topic], allow_auto_topic_creation=False))
                found = [told for told in answer.to_object()["topics"] if not told["error_code"]]

    async def _asked(self, admin: Any, new: NewTopic) -> int:
        """0, or the code for one that exists; LogUnavailable, the library's errors.

        Brokers that are away are members of the cluster, but not shown, and can be given replicas: how many there may be is found by
        asking. A cluster whose default is more than it has brokers is one of which some have not come yet.
        """
        brokers, given = len(admin._client.cluster.brokers()), self._settings.replication
        most = given or self._replicas.get(brokers, _REPLICAS)
        code, said = await self._answer(admin, new, most)
        if code == _TOO_FEW and not given and (await self._answer(admin, new, _BY_DEFAULT, probe=True))[0] != _TOO_FEW:
            while code == _TOO_FEW and most > 1:
                most -= 1
                code, said = await self._answer(admin, new, most)
        if code == _TOO_FEW:
            raise LogUnavailable(
                f"creating topic {new.name}: the brokers cannot do it now ({said or code}); try again: some may be starting, or"
                " the cluster has fewer than `replication` (0: its default.replication.factor) asks for"
            )
        if code not in (0, _EXISTS):
            raise errors.for_code(code)(said)
        self._replicas[brokers] = most
        return code

    async def _answer(self, admin: Any, new: NewTopic, replicas: int, *, probe: bool = False) -> tuple[int, str]:
        """Code and words of an attempt with so many replicas; a probe makes nothing."""
        safe = _IN_SYNC if replicas >= _REPLICAS else {}
        placed: dict[int, list[int]] | None = {} if replicas == _BY_DEFAULT else None  # the library wants it so
        asked = NewTopic(new.name, new.num_partitions, replicas, placed, {**safe, **new.topic_configs})
        answer = await admin.create_topics([asked], self._settings.request_timeout_ms, validate_only=probe)
        ((_, code, *rest),) = answer.topic_errors
        return int(code), str(rest[0] or "") if rest else ""

    async def delete_topics(self, topics: Sequence[str]) -> None:
        """Delete those that exist, and wait until they are gone."""

        async def delete(admin: Any) -> None:
            if not topics:
                return
            await self._require_controller(admin)
            answer = await admin.delete_topics(list(topics), self._settings.request_timeout_ms)
            for topic, code, *_ in answer.topic_error_codes:
                if code not in (0, errors.UnknownTopicOrPartitionError.errno):
                    raise errors.for_code(code)(topic)
            deadline = time.monotonic() + self._settings.request_timeout_ms / 1000
            left = set(topics)
            while left:
                try:
                    left &= set(await admin.list_topics())
                except (
                    errors.BrokerNotAvailableError
                ):  # without its last topic, a broker with ZooKeeper is as one that starts
                    left.clear()
                if left and time.monotonic() >= deadline:
                    raise LogUnavailable(f"topics {', '.join(topics)}: still there; see the brokers")
                await asyncio.sleep(_POLL_S)

        await self._with_admin(delete, f"deleting topics {', '.join(topics)}")

    async def may_not(
        self, reads: Collection[str], writes: Collection[str], creates: Collection[str], identities: Collection[str]
    ) -> list[str]:
        """The rights to topics and transactional ids that the client lacks; asking changes nothing."""

        async def ask(admin: Any) -> list[str]:
            return await may_not(admin, admin._client, reads, writes, creates, identities)

        return await self._with_admin(ask, "asking for rights")

    async def list_topics(self) -> dict[str, int]:
        """All topics but the broker's own, with their numbers of partitions."""

        async def describe(admin: Any) -> dict[str, int]:
            return {
                t["topic"]: len(t["partitions"])
                for t in await admin.describe_topics()
                if not t["error_code"] and not t.get("is_internal")
            }

        return await self._with_admin(describe, "listing topics")

    async def describe_topics(self, topics: Sequence[str]) -> dict[str, TopicFound]:
        """Those of these topics that exist, with their ids."""

        async def describe(admin: Any) -> dict[str, TopicFound]:
            return await describe_topics(admin._client, topics)

        return await self._with_admin(describe, f"asking for topics {', '.join(topics)}")

    async def topic_rules(self, topics: Sequence[str]) -> dict[str, TopicRules]:
        """The records that each of these topics refuses; Kafka's defaults for one that we may not ask about."""

        async def describe(admin: Any) -> dict[str, TopicRules]:
            asked = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(RULES)) for topic in topics]
            found: dict[str, TopicRules] = {}
            for answer in await admin.describe_configs(asked):
                for code, _, _, topic, entries, *_ in answer.resources:
                    if code == errors.UnknownTopicOrPartitionError.errno:
                        await require_topics(admin._client, [topic], self._settings.topic_wait_ms)
                        raise LogUnavailable(f"topic {topic}: the broker did not know it just now; try again")
                    found[topic] = rules_of({entry[0]: entry[1] for entry in entries})
            return found

        return await self._with_admin(describe, f"settings of topics {', '.join(topics)}") if topics else {}

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        """Let go of records below these offsets."""

        async def delete(admin: Any) -> None:
            await require_partitions(admin._client, before, self._settings.topic_wait_ms)
            await admin.delete_records({theirs(at): RecordsToDelete(offset) for at, offset in before.items()})

        if before:
            await self._with_admin(delete, f"deleting records of {', '.join(map(str, before))}")

    async def offsets(self, partitions: Sequence[TopicPartition], *, end: bool) -> dict[TopicPartition, Offset]:
        """First offsets, or high watermarks: asked without isolation, which would give the last stable offset."""
        if not partitions:
            return {}
        reader = await self._open_reader()
        try:
            await require_partitions(reader.client, partitions, self._settings.topic_wait_ms)
            ask = reader.consumer.end_offsets if end else reader.consumer.beginning_offsets
            found = await ask([theirs(partition) for partition in partitions])
        except KAFKA_ERRORS as error:
            raise await self._said(error, f"offsets of {', '.join(map(str, partitions))}") from error
        return {partition: Offset(found[theirs(partition)]) for partition in partitions}

    async def _open_reader(self) -> KafkaReader:
        async with self._opening:
            if self._reader is None:
                reader = KafkaReader(self._settings, committed_only=False)
                await reader.start()
                self._reader = reader
            return self._reader

    async def _with_admin(self, work: Callable[[Any], Awaitable[T]], doing: str) -> T:
        where = f"{doing} at {self._settings.bootstrap}"
        try:
            async with self._opening:
                if self._admin is None:
                    admin = AIOKafkaAdminClient(**self._settings.connection("admin"))
                    name_unreached_brokers(admin._client)
                    distrust_starting_brokers(admin._client)
                    try:
                        await admin.start()
                    except BaseException as error:
                        await apart(admin.close())
                        if isinstance(error, KAFKA_ERRORS):
                            raise await why_not(self._settings, error, where) from error
                        raise
                    self._admin = admin
            return await work(self._admin)
        except KAFKA_ERRORS as error:
            raise await self._said(error, where) from error

    async def _said(self, error: BaseException, doing: str) -> LogError:
        """The port's error. Behind a refusal the clients stay: others ask by them just now, and would take their end for an outage."""
        said = translated(error, doing)
        if isinstance(said, LogUnavailable):
            await self.close()
        return said

    async def close(self) -> None:
        """Let go; the next call opens anew."""
        admin, self._admin = self._admin, None
        reader, self._reader = self._reader, None
        if admin is not None:
            await apart(admin.close())
        if reader is not None:
            await reader.close()
