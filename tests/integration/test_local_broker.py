"""The local broker: a real Kafka, the same after a kill, gone with its supervisor."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.record import MemoryRecords

from tidemark.services.local.broker import (
    BrokerError,
    LocalBroker,
    _format_once,
    _living_broker,
    _prepare_folder,
    new_id,
)
from tidemark.services.local.broker_settings import (
    FEATURES_PATH,
    BrokerSettings,
    Port,
    java_arguments,
    server_properties,
)
from tidemark.services.local.jars import ensure_jars
from tidemark.services.local.java import find_java

pytestmark = pytest.mark.kafka

PROJECT = Path(__file__).resolve().parents[2]
GONE_TIMEOUT_S = 20


async def create_topic(bootstrap: str, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def produce_in_transaction(bootstrap: str, topic: str, transactional_id: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await producer.start()
    try:
        async with producer.transaction():
            for value in values:
                await producer.send_and_wait(topic, value, partition=0)
    finally:
        await producer.stop()


async def consume(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_records_go_in_and_come_out(kafka_broker: str, unique_name: Callable[[str], str]) -> None:
    """What is produced is consumed, in order."""
    topic = unique_name("echo")
    await create_topic(kafka_broker, topic)
    await produce(kafka_broker, topic, [b"one", b"two"])
    assert await consume(kafka_broker, topic, 2) == [b"one", b"two"]


async def test_a_broker_works_in_whatever_folder_and_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with blanks, a comma and letters of any alphabet, under a locale without them: all that it writes lies in that folder."""
    monkeypatch.setenv("LC_ALL", "C")
    folder = tmp_path / "Dätä, ş\\ #1=ü"
    broker = LocalBroker(BrokerSettings(data_dir=folder))
    await create_topic(await broker.start(), "odd")
    await broker.stop()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert (folder / "log" / "odd-0").is_dir()
    assert (folder / "diagnostics" / "broker.log").stat().st_size > 0


def records(snapshot: Path) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values in a file of Kafka's, without times."""
    batches, found = MemoryRecords(snapshot.read_bytes()), []
    while (batch := batches.next_batch()) is not None:
        found += [(record.key, record.value) for record in batch]
    return found


def test_a_new_folder_is_as_storage_tool_makes_it(tmp_path: Path) -> None:
    """The features that this Kafka gives a new cluster, and the same entries of an identity."""
    settings = BrokerSettings(data_dir=tmp_path / "ours")
    settings.data_dir.mkdir()
    _format_once(settings)
    theirs = BrokerSettings(data_dir=tmp_path / "theirs")
    theirs.data_dir.mkdir()
    properties = server_properties(theirs, Port(20_000), Port(20_001))
    theirs.properties_path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    tool = java_arguments(theirs, find_java().executable, ensure_jars(), "kafka.tools.StorageTool")
    command = [*tool, "format", "-t", new_id(), "-c", str(theirs.properties_path)]
    subprocess.run(command, cwd=theirs.data_dir, check=True, capture_output=True)
    assert {path.name for path in settings.log_dir.iterdir()} == {path.name for path in theirs.log_dir.iterdir()}
    made = theirs.log_dir / FEATURES_PATH.name
    assert records(settings.log_dir / FEATURES_PATH.name) == records(made), f"cp {made} {FEATURES_PATH}"
    ours, its = (set((s.log_dir / "meta.properties").read_text().splitlines()) for s in (settings, theirs))
    its = {line for line in its if not line.startswith("#")}
    assert {line.partition("=")[0] for line in ours} == {line.partition("=")[0] for line in its}
    assert ours & its == {"node.id=1", "version=1"}


async def test_a_killed_broker_comes_back_with_its_records(fresh_broker: LocalBroker) -> None:
    """After SIGKILL the broker starts on its data at its address, with all records that it acknowledged."""
    address = fresh_broker.bootstrap
    await create_topic(address, "kept")
    await produce(address, "kept", [b"before"])
    await produce_in_transaction(address, "kept", "writer", [b"committed"])
    fresh_broker.kill()
    assert not fresh_broker.running
    assert await fresh_broker.start() == address
    await produce_in_transaction(address, "kept", "writer", [b"after"])
    # Markers of transactions take an offset each, but are not records.
    assert await consume(address, "kept", 3) == [b"before", b"committed", b"after"]


async def test_a_folder_may_be_named_from_where_the_caller_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative data folder is the caller's, not the broker's."""
    monkeypatch.chdir(tmp_path)
    broker = LocalBroker(BrokerSettings(data_dir=Path("kafka")))
    try:
        await broker.start()
        assert (tmp_path / "kafka" / "log" / "meta.properties").is_file()
    finally:
        await broker.stop()


async def test_a_new_supervisor_finds_the_same_broker(fresh_broker: LocalBroker, tmp_path: Path) -> None:
    """Stopped, and started by another object on the same folder, it has its port and its records."""
    await create_topic(fresh_broker.bootstrap, "kept")
    await produce(fresh_broker.bootstrap, "kept", [b"before"])
    await fresh_broker.stop()
    successor = LocalBroker(BrokerSettings(data_dir=tmp_path / "kafka"))
    try:
        assert await successor.start() == fresh_broker.bootstrap
        assert await consume(successor.bootstrap, "kept", 1) == [b"before"]
    finally:
        successor.kill()


async def test_two_brokers_never_share_a_folder(fresh_broker: LocalBroker, tmp_path: Path) -> None:
    """A second broker on the folder of a running one is refused, with the pid of the first."""
    second = LocalBroker(BrokerSettings(data_dir=tmp_path / "kafka"))
    with pytest.raises(BrokerError, match=rf"pid {fresh_broker.pid}\) runs on this data folder already"):
        await second.start()


async def test_a_taken_port_is_named_with_its_holder(tmp_path: Path) -> None:
    """A port that somebody listens on is refused before anything starts, and the sentence says who has it."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        broker = LocalBroker(BrokerSettings(data_dir=tmp_path, port=Port(port)))
        with pytest.raises(BrokerError, match=rf"port {port} .* is taken by .*choose another port"):
            await broker.start()
    assert broker.pid is None


def test_too_little_disk_is_said_before_the_start(tmp_path: Path) -> None:
    """A disk with less room than the settings ask for is named with both figures."""
    wanted_mib = 2**40
    with pytest.raises(BrokerError, match=rf"expected {wanted_mib} MiB of free disk, found \d+; free some"):
        _prepare_folder(BrokerSettings(data_dir=tmp_path, free_disk_mib_min=wanted_mib))


async def test_a_record_beyond_the_bound_is_refused(kafka_broker: str, unique_name: Callable[[str], str]) -> None:
    """``message_bytes_max`` binds the broker, not only its clients."""
    topic = unique_name("bounded")
    await create_topic(kafka_broker, topic)
    bound = BrokerSettings(data_dir=Path()).message_bytes_max
    producer = AIOKafkaProducer(bootstrap_servers=kafka_broker, max_request_size=2 * bound)
    await producer.start()
    try:
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(bound + 1), partition=0)
    finally:
        await producer.stop()


async def test_the_broker_dies_with_its_supervisor(tmp_path: Path) -> None:
    """When the process that started it is killed with SIGKILL, the broker's process ends."""
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tidemark.services.local.broker",
        "--data",
        str(tmp_path),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    assert (await supervisor.stdout.readline()).startswith(b"127.0.0.1:")
    pid = _living_broker(tmp_path)
    assert pid is not None
    broker = psutil.Process(pid)
    supervisor.send_signal(signal.SIGKILL)
    await supervisor.wait()
    gone, _ = await asyncio.to_thread(psutil.wait_procs, [broker], GONE_TIMEOUT_S)
    assert gone == [broker]


async def test_the_foreground_broker_ends_when_asked(tmp_path: Path) -> None:
    """SIGTERM to ``python -m tidemark.services.local.broker`` stops the broker in order and gives status 0."""
    command = [sys.executable, "-m", "tidemark.services.local.broker", "--data", str(tmp_path)]
    supervisor = await asyncio.create_subprocess_exec(*command, cwd=PROJECT, stdout=subprocess.PIPE)
    assert supervisor.stdout is not None
    await supervisor.stdout.readline()
    supervisor.terminate()
    assert await supervisor.wait() == 0
    assert _living_broker(tmp_path) is None
