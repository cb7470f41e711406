"""What `tidemark check --connect` asks about rights in Kafka, and of servers that cannot be asked anything: nothing is changed by it."""

import asyncio
import ssl
from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import urlsplit

from tidemark.shared.adapters.kafka_log import KafkaLog
from tidemark.shared.language.stages import Connection
from tidemark.shared.runtime.topics import MARKERS_PREFIX

_GRANT: Final = "docs/kafka.md names what it needs"
_CHECKED: Final = "check"
"""Behind the beginnings of markers' topics and identities, for a name that none has."""


async def source_rights(log: KafkaLog, topics: Collection[str]) -> Iterable[str]:
    """What a source of these topics may not. LogError."""
    return _refused(await log.may_not(reads=topics), log)


async def sink_rights(log: KafkaLog, topic: str, *, there: bool) -> Iterable[str]:
    """What a sink may not that writes to a topic; `there`: it need not be made. LogError."""
    markers = f"{MARKERS_PREFIX}{_CHECKED}"
    made = (markers,) if there else (markers, topic)
    lacks = await log.may_not(
        reads=(markers,), writes=(topic, markers), creates=made, identities=(f"tidemark.{_CHECKED}",)
    )
    return _refused(
        [right.replace(markers, f"{MARKERS_PREFIX}*").replace(f".{_CHECKED}", ".*") for right in lacks], log
    )


def _refused(lacks: Collection[str], log: KafkaLog) -> Iterable[str]:
    return [f"the user lacks {', '.join(lacks)} on {log.settings.bootstrap}; {_GRANT}"] if lacks else ()


async def reached(connection: Connection) -> Iterable[str]:
    """A server is there, and speaks TLS if its url says so; a request could change something there, so none is sent."""
    url = urlsplit(str(connection.settings["url"]))
    tls, host = url.scheme == "https", url.hostname or ""
    port = url.port or (443 if tls else 80)
    try:
        _, writer = await asyncio.open_connection(
            host, port, ssl=ssl.create_default_context() if tls else None, server_hostname=host if tls else None
        )
    except OSError as error:
        return [f"connection {connection.name}: {host}:{port} is not reached: {error}"]
    writer.close()
    return ()
