"""What tools of a cluster ask of it: where leaders are, that they move, that replicas do."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import CompactArray, CompactString, Int8, Int16, Int32, Schema, TaggedFields

_TEXT: Final = CompactString("utf-8")
_TRY_S: Final = 0.2
"""Between two tries."""
ANSWERED_S: Final = 120.0
"""Within so long brokers that can answer have answered."""
_TIMEOUT_MS: Final = 30_000
_NOTHING_TO_DO: Final = 84
"""Of an election: the leader is the one that was asked for."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part:
    """A partition."""

    topic: str
    number: int
    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


_ANSWERS: Final = CompactArray(
    ("name", _TEXT),
    (
        "partitions",
        CompactArray(("partition", Int32), ("error_code", Int16), ("error_message", _TEXT), ("tags", TaggedFields)),
    ),
    ("tags", TaggedFields),
)


class _ReassignAnswer(Response):  # type: ignore[misc]  # the library has no types
    API_KEY = 45
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _TEXT),
        ("topics", _ANSWERS),
        ("tags", TaggedFields),
    )


class _Reassign(RequestStruct):  # type: ignore[misc]  # the library has no types
    FLEXIBLE_VERSION = True
    API_KEY = 45
    API_VERSION = 0
    RESPONSE_TYPE = _ReassignAnswer
    _PARTS = CompactArray(("partition", Int32), ("replicas", CompactArray(Int32)), ("tags", TaggedFields))
    SCHEMA = Schema(
        ("timeout_ms", Int32),
        ("topics", CompactArray(("name", _TEXT), ("partitions", _PARTS), ("tags", TaggedFields))),
        ("tags", TaggedFields),
    )


class _ElectAnswer(Response):  # type: ignore[misc]  # the library has no types
    API_KEY = 43
    API_VERSION = 2
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("topics", _ANSWERS), ("tags", TaggedFields))


class _Elect(RequestStruct):  # type: ignore[misc]  # the library has no types
    FLEXIBLE_VERSION = True
    API_KEY = 43
    API_VERSION = 2
    RESPONSE_TYPE = _ElectAnswer
    SCHEMA = Schema(
        ("election_type", Int8),
        ("topics", CompactArray(("name", _TEXT), ("partitions", CompactArray(Int32)), ("tags", TaggedFields))),
        ("timeout_ms", Int32),
        ("tags", TaggedFields),
    )


class _ReassignRequest(Request[_Reassign]):  # type: ignore[misc]  # the library has no types
    """Of replicas: the library has none."""

    API_KEY = 45

    def __init__(self, topics: list[Any]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Reassign]) -> _Reassign:
        return request_struct_class(_TIMEOUT_MS, self._topics, {})


class _ElectRequest(Request[_Elect]):  # type: ignore[misc]  # the library has no types
    """Of leaders: the library has none."""

    API_KEY = 43

    def __init__(self, topics: list[Any], *, unclean: bool) -> None:
        self._topics, self._unclean = topics, unclean

    def build(self, request_struct_class: type[_Elect]) -> _Elect:
        return request_struct_class(int(self._unclean), self._topics, _TIMEOUT_MS, {})


class Asking:
    """Asks whichever broker answers; each call until one has, `ANSWERED_S` at most."""

    def __init__(self, addresses: Callable[[], Sequence[str]]) -> None:
        """addresses: of the brokers that run, those that brokers use."""
        self._addresses = addresses

    async def _ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        async with asyncio.timeout(ANSWERED_S):
            while True:
                admin = AIOKafkaAdminClient(bootstrap_servers=list(self._addresses()), request_timeout_ms=5_000)
                try:
                    await admin.start()
                    return await question(admin)
                except (KafkaError, OSError, AttributeError, AssertionError):
                    await asyncio.sleep(_TRY_S)
                finally:
                    await admin.close()

    async def parts(self, *topics: str) -> list[Part]:
        """Of these topics, by default of all, the brokers' own included."""

        async def ask(admin: Any) -> list[Part]:
            found = []
            for topic in await admin.describe_topics(list(topics) or None):
                if topic["error_code"]:
                    raise for_code(topic["error_code"])(topic["topic"])
                found += [
                    Part(topic["topic"], p["partition"], p["leader"], tuple(p["replicas"]), tuple(p["isr"]))
                    for p in topic["partitions"]
                ]
            return found

        return await self._ask(ask)

    async def members(self) -> set[int]:
        """Numbers of the brokers in use."""

        async def ask(admin: Any) -> set[int]:
            return {member["node_id"] for member in (await admin.describe_cluster())["brokers"]}

        return await self._ask(ask)

    async def make(self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        """Make it, with leaders."""

        async def ask(admin: Any) -> None:
            ((_, code, *said),) = (
                await admin.create_topics([NewTopic(topic, partitions, replicas, topic_configs=dict(settings))])
            ).topic_errors
            if code not in (0, TopicAlreadyExistsError.errno):
                raise for_code(code)(*said)

        await self._ask(ask)
        while any(part.leader < 0 for part in await self.parts(topic)):  # noqa: ASYNC110 - it is not told
            await asyncio.sleep(_TRY_S)

    async def settings(self, topic: str) -> dict[str, str]:
        """Of a topic."""

        async def ask(admin: Any) -> dict[str, str]:
            (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            ((*_, entries),) = answer.resources
            return {entry[0]: entry[1] for entry in entries}

        return await self._ask(ask)

    async def configure(self, topic: str, settings: Mapping[str, str]) -> None:
        """Give it these settings alone."""

        async def ask(admin: Any) -> None:
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(settings))])

        await self._ask(ask)

    async def reassign(self, wanted: Mapping[tuple[str, int], Sequence[int]]) -> None:
        """Let partitions have these replicas, the first of them preferred; not waited for."""
        topics: dict[str, list[Any]] = {}
        for (topic, number), replicas in wanted.items():
            topics.setdefault(topic, []).append((number, list(replicas), {}))
        await self._sent(_ReassignRequest([(topic, parts, {}) for topic, parts in topics.items()]))

    async def elect(self, parts: Sequence[Part], *, unclean: bool = False) -> None:
        """Let the preferred replica lead; unclean: any, where there is no leader."""
        topics: dict[str, list[int]] = {}
        for part in parts:
            topics.setdefault(part.topic, []).append(part.number)
        named: list[Any] = [(topic, numbers, {}) for topic, numbers in topics.items()]
        await self._sent(_ElectRequest(named, unclean=unclean))

    async def _sent(self, request: Any) -> None:
        async def ask(admin: Any) -> None:
            answer = await admin._client.send(admin._client.get_random_node(), request)
            if answer.error_code:
                raise for_code(answer.error_code)(str(answer))
            for _, parts, _ in answer.topics:
                for _, code, said, _ in parts:
                    if code not in (0, _NOTHING_TO_DO):
                        raise for_code(code)(said)

        await self._ask(ask)
