"""Versions of Kafka that Tidemark is run against, and their jars, verified as those of the local broker are.

`python -m tests.harness.clusters.versions VERSION…` resolves versions and writes their locks.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tidemark.services.local.jars import KAFKA_VERSION, LOCK_PATH, LOG4J_VERSION, ensure_jars, relock

LOCKS: Final = Path(__file__).resolve().parent / "locks"
_KRAFT: Final = (3, 0)
"""From here on a broker runs without ZooKeeper: as a preview to 3.2, which has transactions already."""
_LOG4J_2: Final = (4, 0)
"""Before, Kafka calls Log4j 1 by name."""
_SCALA_2_13: Final = (2, 4)


def numbers(version: str) -> tuple[int, ...]:
    """To compare."""
    return tuple(int(part) for part in version.split("."))


def has_zookeeper(version: str) -> bool:
    """Whether a broker of this version needs a ZooKeeper beside it."""
    return numbers(version) < _KRAFT


def jars_of(version: str) -> tuple[Path, ...]:
    """Verified jars of a version, fetched where they are missing; JarsError."""
    return ensure_jars(lock=LOCK_PATH if version == KAFKA_VERSION else LOCKS / f"{version}.lock")


def versions() -> list[str]:
    """All that have a lock, and the local broker's, in their order."""
    return sorted({KAFKA_VERSION, *(path.name.removesuffix(".lock") for path in LOCKS.glob("*.lock"))}, key=numbers)


def main(asked: Sequence[str]) -> None:
    """Write the locks."""
    LOCKS.mkdir(exist_ok=True)
    for version in asked:
        scala = "2.13" if numbers(version) >= _SCALA_2_13 else "2.12"
        bridge = "slf4j-impl" if numbers(version) >= _LOG4J_2 else "1.2-api"
        more = "" if bridge == "slf4j-impl" else f"+org.apache.logging.log4j:log4j-{bridge}:{LOG4J_VERSION}!"
        endpoint = (
            f"org.apache.kafka:kafka_{scala}:{version}+org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}!"
        )
        count = relock(endpoint + more, LOCKS / f"{version}.lock")
        sys.stdout.write(f"{version}: {count} jars, {sum(jar.stat().st_size for jar in jars_of(version)) >> 20} MiB\n")


if __name__ == "__main__":
    main(sys.argv[1:])
