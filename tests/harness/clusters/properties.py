"""Settings of brokers that differ from those of the local one, drawn by seed; a job runs exactly under each of them."""

import random
from typing import Final

from tests.harness.clusters.jobs import Cluster

HOSTILE: Final = {
    "log.cleanup.policy": "compact",
    "log.retention.ms": "1000",
    "log.retention.bytes": "5000000",
    "log.retention.check.interval.ms": "500",
    "log.segment.bytes": "1048576",
    "log.message.timestamp.type": "LogAppendTime",
    "compression.type": "gzip",
    "auto.create.topics.enable": "true",
    "num.partitions": "5",
}
"""Defaults that would cost an installation its own topics."""
KEPT: Final = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Of the user's topics there, whose records are to be counted at the end."""
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "log.cleanup.policy": ("delete", "compact", "compact,delete"),
    "log.retention.ms": ("-1", "1000", "60000"),
    "log.retention.bytes": ("-1", "1", "5000000"),
    "log.retention.check.interval.ms": ("500", "300000"),
    "log.segment.bytes": ("1048576", "1073741824"),
    "log.message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "compression.type": ("producer", "gzip", "snappy", "lz4", "zstd", "uncompressed"),
    "auto.create.topics.enable": ("true", "false"),
    "num.partitions": ("1", "3", "7"),
    "message.max.bytes": ("1048588", "20000000"),
    "unclean.leader.election.enable": ("true", "false"),
    "transaction.max.timeout.ms": ("60000", "900000"),
    "transactional.id.expiration.ms": ("2000", "604800000"),
    "transaction.remove.expired.transaction.cleanup.interval.ms": ("500", "3600000"),
    "producer.id.expiration.ms": ("2000", "86400000"),
    "producer.id.expiration.check.interval.ms": ("500", "600000"),
    "max.incremental.fetch.session.cache.slots": ("1", "1000"),
    "group.min.session.timeout.ms": ("6000", "60000"),
    "connections.max.idle.ms": ("1000", "600000"),
    "log.cleaner.delete.retention.ms": ("0", "86400000"),
    "transaction.state.log.segment.bytes": ("1048576", "104857600"),
}


def drawn(chance: random.Random, version: str) -> Cluster:
    """Some settings, a place for the installation, and kills."""
    named = chance.sample(sorted(_CHOICES), chance.randint(4, 12))
    properties = {name: chance.choice(_CHOICES[name]) for name in named}
    where = chance.choice(["theirs", "whole"])
    return Cluster(
        version=version,
        where="theirs" if where == "theirs" else "whole",
        properties=properties,
        topics=KEPT,
        records=2_000,
        kills=2,
        broken=chance.random() < 0.5,
    )
