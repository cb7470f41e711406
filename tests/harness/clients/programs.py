"""Kafka's own programs as producers: console producer, ProducerPerformance, Connect, MirrorMaker 2, Streams. Their jars come by Maven."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.harness.clients.drawing import START_MS
from tests.harness.clients.rare import record, wrote
from tests.harness.clients.running import Row, consumed
from tests.harness.clients.standing import Brokers, ends_of, make
from tidemark.services.local.java import find_java, java_environment
from tidemark.shared.adapters.clock import SystemClock

LINES: Final = 300
_WRITTEN_S: Final = 60.0
_SLOW_START: Final = ("-XX:TieredStopAtLevel=1", "-Xmx256m")


def _text(n: int) -> str:
    return json.dumps({"n": n, "at": START_MS + n, "pad": "ä" * (n % 50)}, ensure_ascii=False)


@asynccontextmanager
async def program(
    brokers: Brokers, folder: Path, main: str, *words: str, text: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A program of Kafka's, killed at the end."""
    jars = (brokers.built / "maven" / "jars").read_text().strip()
    process = await asyncio.create_subprocess_exec(
        str(find_java().executable), *_SLOW_START, "-cp", f"{brokers.built / 'maven'}:{jars}", main, *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        cwd=folder, env=java_environment(),
    )  # fmt: skip
    try:
        if text:
            await process.communicate(text.encode())
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_written(brokers: Brokers, topic: str, least: int) -> None:
    """So many committed records are there. TimeoutError."""
    async with asyncio.timeout(_WRITTEN_S):
        while (
            len(await consumed("librdkafka", brokers.built, brokers.new, topic, await ends_of(brokers.new, topic)))
            < least
        ):
            await SystemClock().sleep_ms(500)


def _properties(file: Path, settings: Mapping[str, str]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


async def console(brokers: Brokers, folder: Path, topic: str) -> None:
    """Lines with keys, headers and null values."""
    await make(brokers.new, topic, {})
    lines = [f"h:x,h:y\tk{n % 9}\t{_text(n) if n % 11 else 'NULL'}\n" for n in range(LINES)]
    words = ["--bootstrap-server", brokers.new, "--topic", topic, "--compression-codec", "zstd"]
    for each in ("parse.key=true", "parse.headers=true", "null.marker=NULL"):
        words += ["--property", each]
    async with program(brokers, folder, "org.apache.kafka.tools.ConsoleProducer", *words, text="".join(lines)):
        await until_written(brokers, topic, LINES)


async def performance(brokers: Brokers, folder: Path, topic: str) -> None:
    """Lines of a file in drawn order, in transactions of 50 ms."""
    await make(brokers.new, topic, {})
    file = folder / "payload"
    file.write_text("".join(_text(n) + "\n" for n in range(LINES)))
    words = [
        "--topic",
        topic,
        "--num-records",
        "4000",
        "--throughput",
        "-1",
        "--payload-file",
        str(file),
        "--transactional-id",
        topic,
    ]
    words += [
        "--transaction-duration-ms",
        "50",
        "--producer-props",
        f"bootstrap.servers={brokers.new}",
        "compression.type=lz4",
    ]
    async with program(brokers, folder, "org.apache.kafka.tools.ProducerPerformance", *words):
        await until_written(brokers, topic, 4_000)


async def connect(brokers: Brokers, folder: Path, topic: str) -> None:
    """Lines of a file, as strings, and as JSON with a schema in each record."""
    await make(brokers.new, topic, {})
    (folder / "lines").write_text("".join(_text(n) + "\n" for n in range(LINES)))
    worker = {
        "bootstrap.servers": brokers.new, "offset.storage.file.filename": str(folder / "offsets"), "listeners": "http://127.0.0.1:0",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "producer.compression.type": "gzip", "plugin.discovery": "service_load",
    }  # fmt: skip
    source = {
        "name": "a", "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
        "file": str(folder / "lines"), "topic": topic,
    }  # fmt: skip
    plain = {**source, "name": "b", "value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    files = [_properties(folder / name, each) for name, each in (("worker", worker), ("a", source), ("b", plain))]
    async with program(brokers, folder, "org.apache.kafka.connect.cli.ConnectStandalone", *files):
        await until_written(brokers, topic, 2 * LINES)


async def mirror(brokers: Brokers, folder: Path, topic: str) -> None:
    """MirrorMaker 2 copies a topic whose messages have an old format."""
    await make(brokers.old, topic, {"message.format.version": "0.10.2"})
    await wrote(
        brokers, "java", topic, [record(n, f"k{n % 5}") for n in range(LINES)], bootstrap=brokers.old, codec="snappy"
    )
    settings = {
        "clusters": "a, b", "a.bootstrap.servers": brokers.old, "b.bootstrap.servers": brokers.new, "a->b.enabled": "true",
        "a->b.topics": topic, "b->a.enabled": "false", "replication.factor": "1", "offset-syncs.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1", "heartbeats.topic.replication.factor": "1", "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1", "config.storage.replication.factor": "1", "dedicated.mode.enable.internal.rest": "false",
        "b.producer.compression.type": "lz4", "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "emit.heartbeats.enabled": "false", "sync.topic.configs.enabled": "false",
    }  # fmt: skip
    await make(brokers.new, topic, {})
    async with program(
        brokers, folder, "org.apache.kafka.connect.mirror.MirrorMaker", _properties(folder / "mm2", settings)
    ):
        await until_written(brokers, topic, LINES)


async def streams(brokers: Brokers, folder: Path, topic: str) -> None:
    """Counts of keys, exactly once."""
    await make(brokers.new, f"{topic}-in", {})
    await make(brokers.new, topic, {})
    await wrote(brokers, "java", f"{topic}-in", [record(n, f"k{n % 7}") for n in range(LINES)])
    async with program(brokers, folder, "Counting", brokers.new, f"{topic}-in", topic, str(folder / "state")):
        await until_written(brokers, topic, LINES)


PROGRAMS: Final = {
    "console": console,
    "performance": performance,
    "connect": connect,
    "mirror": mirror,
    "streams": streams,
}


async def written_by(
    brokers: Brokers, folder: Path, tag: str, names: Sequence[str] = tuple(PROGRAMS)
) -> dict[str, list[Row]]:
    """A topic of each, and what Java's client reads there."""
    rows = {}
    for name in names:
        topic = f"{name}-{tag}"
        (folder / name).mkdir()
        await PROGRAMS[name](brokers, folder / name, topic)
        rows[topic] = await consumed("java", brokers.built, brokers.new, topic, await ends_of(brokers.new, topic))
    return rows
