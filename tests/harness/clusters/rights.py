"""A cluster whose users may do what is granted, and no more: brokers without ZooKeeper, a password on a listener of its own.

`python -m tests.harness.clusters.rights` takes one of `SOURCE` and `SINK` away in turn, and says what a job then says.
"""

import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.harness.clusters.granting import USER, Right
from tests.harness.clusters.jobs import Cluster, run, say
from tidemark.services.local.broker_settings import LOOPBACK
from tidemark.services.local.jars import KAFKA_VERSION

_PASSWORD: Final = "of-the-tests"
_JAAS: Final = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{_PASSWORD}";'
SOURCE: Final = (
    Right("topic", "events", "READ"),
    Right("topic", "clocks", "READ"),
    Right("group", "", "READ", prefix=True),
)
"""What a source needs of its cluster."""
SINK: Final = (
    *(Right("topic", f"{name}-{what}", "WRITE") for name in ("copy", "windows", "join") for what in ("out", "dlq")),
    *(
        Right("topic", "tidemark.markers.", operation, prefix=True)
        for operation in ("CREATE", "READ", "WRITE", "DELETE")
    ),
    Right("transactional-id", "tidemark.", "WRITE", prefix=True),
)
"""What a sink needs of its."""
SETTINGS: Final = tuple(
    Right("topic", f"{name}-{what}", "DESCRIBE_CONFIGS")
    for name in ("copy", "windows", "join")
    for what in ("out", "dlq")
)
"""With these it knows what the topics refuse."""
AUDIT: Final = tuple(
    Right("topic", f"{name}-{what}", "READ") for name in ("copy", "windows", "join") for what in ("out", "dlq")
)
"""What `tidemark audit` needs besides."""


def guarded(rights: Sequence[Right], version: str = KAFKA_VERSION) -> Cluster:
    """A cluster that wants a password of a user with these rights."""
    names = ("PLAINTEXT", "CONTROLLER", "SASL_PLAINTEXT")
    ports = dict(zip(names, random.SystemRandom().sample(range(20_000, 30_000), len(names)), strict=True))
    listeners = {name: f"{name}://{LOOPBACK}:{port}" for name, port in ports.items()}
    old = "kafka.security.authorizer.AclAuthorizer"
    return Cluster(
        version=version,
        properties={
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": ",".join(text for name, text in listeners.items() if name != "CONTROLLER"),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "authorizer.class.name": old
            if version < "3"
            else "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": _JAAS,
        },
        config={
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": USER,
            "sasl_password": _PASSWORD,
        },
        ports=(ports["PLAINTEXT"], ports["CONTROLLER"]),
        address=f"{LOOPBACK}:{ports['SASL_PLAINTEXT']}",
        rights=tuple(rights),
        records=1_000,
        kills=1,
    )


async def main() -> None:
    """All of them, then all but one kind."""
    everything = (*SOURCE, *SINK, *AUDIT)
    kinds = sorted({(r.kind, "markers" if r.prefix and r.kind == "topic" else "", r.operation) for r in everything})
    for left_out in [kind for kind in (None, *kinds) if not sys.argv[1:] or json.dumps(kind) in sys.argv[1:]]:
        rights = [
            r
            for r in everything
            if (r.kind, "markers" if r.prefix and r.kind == "topic" else "", r.operation) != left_out
        ]
        cluster = replace(guarded(rights), kills=0, records=400)
        with tempfile.TemporaryDirectory() as folder:
            wrong = await run(cluster, Path(folder))
        say(f"without {json.dumps(left_out)}: {wrong or 'holds'}")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
