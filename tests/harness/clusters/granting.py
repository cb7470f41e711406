"""Rights of a user of a cluster."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest

USER: Final = "tidemark"
_KINDS: Final = {"topic": 2, "group": 3, "cluster": 4, "transactional-id": 5}
_OPERATIONS: Final = {
    "ALL": 2, "READ": 3, "WRITE": 4, "CREATE": 5, "DELETE": 6, "DESCRIBE": 8, "DESCRIBE_CONFIGS": 10, "IDEMPOTENT_WRITE": 12,
}  # fmt: skip
"""Kafka's codes."""
_LITERAL, _PREFIXED, _ALLOW = 3, 4, 3


class Right(NamedTuple):
    """Of a user, to what begins with a name, or has it."""

    kind: str
    name: str
    operation: str
    prefix: bool = False


async def grant(bootstrap: str, rights: Sequence[Right], user: str = USER) -> None:
    """Give a user rights, as a user who may do all."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        for right in rights:
            pattern = _PREFIXED if right.prefix and right.name else _LITERAL
            asked = CreateAclsRequest(
                _KINDS[right.kind],
                right.name or "*",
                pattern,
                f"User:{user}",
                "*",
                _OPERATIONS[right.operation],
                _ALLOW,
            )
            node = admin._client.get_random_node()
            answer = await admin._client.send(node, asked)
            if any(code for code, *_ in answer.creation_responses):
                raise RuntimeError(f"{right}: {answer}")
    finally:
        await admin.close()
