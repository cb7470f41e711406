"""Limits of processes act: a small value changes what happens, and what contradicts another is refused with both names."""

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.driver_stand import OUT_EDGE, Stand, standing
from tests.harness.worker_stand import working
from tidemark.shared.adapters.directory_blobs import DirectoryBlobs
from tidemark.shared.adapters.kafka_client import LogLid
from tidemark.shared.adapters.kafka_log import KafkaGroups
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.kafka_writer import KafkaWriter
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.store_settings import BlobSettings, StoreSettings
from tidemark.shared.adapters.virtual import InlineExecutor, VirtualWorld, run_virtual
from tidemark.shared.language.stages import Connection
from tidemark.shared.model.checkpoint import TaskHandle, TaskProtocolState
from tidemark.shared.model.ids import (
    Epoch,
    Generation,
    JobId,
    Offset,
    Place,
    ProcessorName,
    Seq,
    VertexId,
    WorkerIncarnation,
)
from tidemark.shared.model.messages import Heartbeat, TaskBeat, TaskFailed, TaskRestored
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.process.connections import Connections, TooManyConnections
from tidemark.shared.process.settings import ProcessSettingsError, read_settings
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.protocol.task import events as ev
from tidemark.shared.runtime.beats import encoded
from tidemark.shared.runtime.outbox import Outbox, Parcel
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.wire.messages import decode_report

BASE = {"TIDEMARK_KAFKA": "k:1", "TIDEMARK_PLACE": "p"}

# --- the runtime --------------------------------------------------------------------------------------------------------


def test_no_more_parcels_wait_than_may() -> None:
    """While nobody acknowledges, one more is an error that names the setting; the same bound holds for what was handed over."""

    async def main(world: VirtualWorld) -> None:
        settings = RuntimeSettings(parcels_waiting_max=3)
        outbox = Outbox(MemoryLog(MemoryBroker(world.clock)), world.clock, "who", lambda _p, _o: None, settings)
        for number in range(3):
            outbox.send(Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(number), b"x"))
        with pytest.raises(LocalError, match=r"who: 3 frames or messages wait .*parcels_waiting_max"):
            outbox.send(Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(3), b"x"))
        outbox.drop()
        outbox.send(Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(4), b"x"))
        assert outbox.backlog() == 0, "who was told to stop says nothing more"

    run_virtual(main)


def test_a_task_whose_events_pile_up_fails() -> None:
    """Its machine stands still: the task fails with the setting's name, once, and takes no more in."""

    async def main(world: VirtualWorld) -> None:
        async with standing(world, settings=RuntimeSettings(events_waiting_max=5)) as stand:
            await _flood(stand)

    async def _flood(stand: Stand) -> None:
        for _ in range(7):
            stand.driver.post(ev.Ticked(0))
        (error,) = stand.errors
        assert "5 events wait (events_waiting_max)" in str(error)

    run_virtual(main)


def test_a_heartbeat_that_would_be_too_large_goes_without_details() -> None:
    """Its tasks and their counters are told all the same."""
    task = TaskBeat(
        ProcessorName("p"),
        JobId("j"),
        Generation(1),
        VertexId("v"),
        0,
        "running",
        Epoch(1),
        0,
        0,
        counters={"n": 1},
        details={"d": "x" * 900},
    )
    beat = Heartbeat(WorkerIncarnation("w"), Place("source-0"), "source", 4, 1, "h", (task,))
    assert decode_report(encoded(beat, RuntimeSettings(heartbeat_bytes_max=2_000))) == beat
    (told,) = decode_report(encoded(beat, RuntimeSettings(heartbeat_bytes_max=500))).tasks  # type: ignore[union-attr]
    assert (told.counters, told.details) == ({"n": 1}, {})


def test_the_reason_of_a_failure_is_told_up_to_the_bound() -> None:
    """An error may quote what it did not understand; the worker's log has all of it."""

    async def main(world: VirtualWorld) -> None:
        settings = RuntimeSettings(collects=True, engine="local", reason_characters_max=30)
        async with working(world, settings=settings) as stand:
            await stand.tell(stand.assign(1))
            await stand.said(TaskRestored)
            stand.service.built[0].fail(RuntimeError("x" * 1_000))
            (failed,) = await stand.said(TaskFailed)
            assert failed.reason == "RuntimeError: " + "x" * 16

    run_virtual(main)


def test_an_acknowledgement_that_would_be_too_large_fails_its_task_and_not_the_worker() -> None:
    """With what to do; the worker goes on."""

    async def main(world: VirtualWorld) -> None:
        settings = RuntimeSettings(collects=True, engine="local", acknowledgement_bytes_max=2_000)
        async with working(world, settings=settings) as stand:
            await stand.tell(stand.assign(1))
            await stand.said(TaskRestored)
            (hosted,) = stand.worker._tasks.values()
            assert hosted.driver is not None
            hosted.driver.wiring.ways.on_ack(Epoch(1), TaskHandle(VertexId("v"), 0, TaskProtocolState()))
            with pytest.raises(
                LocalError, match=r"would have 31\d\d bytes, at most 2000, by message_bytes_max: run more tasks"
            ):
                hosted.driver.wiring.ways.on_ack(
                    Epoch(1), TaskHandle(VertexId("v"), 0, TaskProtocolState(), positions=b"x" * 3_000)
                )

    run_virtual(main)


class _Counted:
    """A log that notes how many records each fetch may bring."""

    def __init__(self, inner: MemoryLog, asked: list[int]) -> None:
        self._inner, self._asked = inner, asked

    async def reader(self, **how: Any) -> Any:
        reader = await self._inner.reader(**how)
        fetch = reader.fetch

        async def counted(max_records: int, timeout_ms: int) -> Any:
            self._asked.append(max_records)
            return await fetch(max_records, timeout_ms)

        reader.fetch = counted  # type: ignore[method-assign]
        return reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_topic_is_read_in_pieces_of_the_settings_size() -> None:
    """Seven records, three at a time."""

    async def main(world: VirtualWorld) -> None:
        broker, at, asked = MemoryBroker(world.clock), TopicPartition("t", 0), list[int]()
        broker.create_topic("t", 1)
        log: Any = _Counted(MemoryLog(broker), asked)
        writer = await log.writer("w")
        for number in range(7):
            await (await writer.send(at, NewRecord(b"%d" % number)))
        found = [record.value async for record in up_to_now(log, at, RuntimeSettings(topic_records_max=3))]
        assert found == [b"%d" % number for number in range(7)]
        assert asked == [3, 3, 3]

    run_virtual(main)


def test_a_process_holds_so_many_clients_of_documents_connections() -> None:
    """One more fails whose it is, with the setting's name; those that are there are shared as before."""

    def connection(name: str) -> Connection:
        return Connection(name, "kafka", {"bootstrapServers": f"{name}:1"})

    connections = Connections("p", 2)
    first = connections.log(connection("a"))
    connections.log(connection("b"))
    with pytest.raises(TooManyConnections, match=r"Kafka connection 'c': .*connections_max=2.*raise connections_max"):
        connections.log(connection("c"))
    assert connections.log(connection("a")) is first


# --- Kafka --------------------------------------------------------------------------------------------------------------


class _Producer:
    """As `Producer`, with answers that the test gives."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings, self.name, self.raw = settings, "w", self
        self.sent: list[asyncio.Future[Any]] = []

    def check(self) -> None: ...

    async def admit(self, *_: Any, **__: Any) -> None: ...

    async def send(self, *_: Any, **__: Any) -> "asyncio.Future[Any]":
        self.sent.append(asyncio.get_running_loop().create_future())
        return self.sent[-1]


async def test_a_writer_waits_when_so_many_records_are_on_their_way() -> None:
    """The next is handed over when the oldest has been acknowledged."""
    producer = _Producer(KafkaSettings(bootstrap="b:1", records_in_flight_max=2))
    writer = KafkaWriter(producer)  # type: ignore[arg-type]
    at = TopicPartition("t", 0)
    for _ in range(2):
        _ = await writer.send(at, NewRecord(b"x"))
    third = asyncio.ensure_future(writer.send(at, NewRecord(b"x")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(producer.sent) == 2
    producer.sent[0].set_result(SimpleNamespace(offset=0))
    _ = await third
    assert len(producer.sent) == 3
    for number, future in enumerate(producer.sent[1:], 1):
        future.set_result(SimpleNamespace(offset=number))
    await writer.flush()
    writer._timer.cancel()  # type: ignore[union-attr]


async def test_offsets_are_noted_for_so_many_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound the connection that was opened first is closed."""
    stopped: list[str] = []

    class Consumer:
        def __init__(self, *, group_id: str, **_: Any) -> None:
            self.group = group_id
            self.held: set[Any] = set()
            self._client = SimpleNamespace(_metadata_update=None)

        async def start(self) -> None: ...

        async def stop(self) -> None:
            stopped.append(self.group)

        async def commit(self, offsets: Any) -> None: ...

        def assignment(self) -> set[Any]:
            return self.held

        def assign(self, partitions: list[Any]) -> None:
            self.held = set(partitions)

        def pause(self, *partitions: Any) -> None: ...

    monkeypatch.setattr("tidemark.shared.adapters.kafka_log.aiokafka.AIOKafkaConsumer", Consumer)
    groups = KafkaGroups(KafkaSettings(bootstrap="b:1", groups_max=2))
    for group in ("a", "b", "a", "c"):
        await groups.note(group, {TopicPartition("t", 0): Offset(1)})
    assert stopped == ["a"]
    await groups.close()


def test_so_many_messages_of_the_library_are_told_apart() -> None:
    """One more kind, and counting begins anew: what was held back is heard again."""
    lid = LogLid(interval_s=1_000, kinds_max=2)

    def passes(text: str) -> bool:
        return lid.filter(logging.LogRecord("aiokafka", logging.ERROR, "f", 1, text, None, None))

    assert [passes(text) for text in ("a", "b", "a", "b")] == [True, True, False, False]
    assert [passes(text) for text in ("c", "a")] == [True, True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"groups_max": 0}, "kafka setting groups_max: expected a positive number, found 0"),
        ({"records_in_flight_max": -1}, "kafka setting records_in_flight_max: .* found -1"),
        ({"replication": -1}, "kafka setting replication: expected 0 or more, found -1"),
        ({"transaction_timeout_ms": 10_000}, r"transaction_timeout_ms 10000 is below request_timeout_ms 15000"),
        ({"fetch_bytes_max": 1 << 20}, r"fetch_bytes_max 1048576 is below partition_fetch_bytes_max 4194304"),
    ],
)
def test_settings_of_kafka_that_cannot_work_are_refused(changed: dict[str, int], said: str) -> None:
    """Each with its name, what is expected and what was found."""
    with pytest.raises(ValueError, match=said):
        KafkaSettings("b:1", **changed)  # type: ignore[arg-type]


# --- the stores, and the environment --------------------------------------------------------------------------------------


def test_folders_that_are_durable_are_remembered_up_to_the_bound(tmp_path: Path) -> None:
    """Beyond it they are made durable once more: less is remembered, nothing is lost."""

    async def main(world: VirtualWorld) -> None:
        for folders_kept_max, most in ((2, 3), (100, 12)):
            root = tmp_path / str(folders_kept_max)
            blobs = DirectoryBlobs(root, InlineExecutor(), BlobSettings(folders_kept_max=folders_kept_max))
            for number in range(10):
                await blobs.put(f"job/{number}/x", b"x")
            assert len(blobs._folders_made._durable) <= most
            assert len(await blobs.list("job")) == 10

    run_virtual(main)


def test_a_process_reads_the_bounds_of_its_stores() -> None:
    """From the environment to the objects that the adapters are handed."""
    environment = {
        **BASE,
        "TIDEMARK_STORE_CONFIG": '{"connections_max": 2, "timeout_ms": 500}',
        "TIDEMARK_BLOBS_CONFIG": '{"request_timeout_ms": 7}',
        "TIDEMARK_RUNTIME": '{"lookup": {"kept_rows_max": 9}, "connections_max": 3}',
    }
    settings = read_settings(environment)
    assert settings.store_config == StoreSettings(connections_max=2, timeout_ms=500)
    assert settings.blobs_config == BlobSettings(request_timeout_ms=7)
    assert (settings.runtime.lookup.kept_rows_max, settings.runtime.connections_max) == (9, 3)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "STORE_CONFIG",
            '{"timeout_ms": 0}',
            "STORE_CONFIG: store setting timeout_ms: expected a positive number, found 0",
        ),
        ("STORE_CONFIG", '{"timeout": 9}', "STORE_CONFIG.timeout: no such setting; did you mean timeout_ms?"),
        ("STORE_CONFIG", '{"timeout_ms": "9"}', "STORE_CONFIG: Expected `int`, got `str` - at `$.timeout_ms`"),
        ("BLOBS_CONFIG", '{"delete_names_max": 9}', "BLOBS_CONFIG.delete_names_max: no such setting"),
        ("RUNTIME", '{"slot": 4}', "RUNTIME.slot: no such setting; did you mean slots?"),
        (
            "RUNTIME",
            '{"lookup": {"kept_rows": 9}}',
            "RUNTIME.lookup.kept_rows: no such setting; did you mean kept_rows_max?",
        ),
        ("RUNTIME", "[1]", "RUNTIME: expected a JSON object; found 3 characters that are none"),
    ],
)
def test_a_wrong_setting_ends_the_process_at_its_start(name: str, value: str, said: str) -> None:
    """The message names the variable and the setting, what is expected and what was found."""
    with pytest.raises(ProcessSettingsError) as found:
        read_settings({**BASE, f"TIDEMARK_{name}": value})
    assert said in str(found.value)
