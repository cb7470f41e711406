# ruff: noqa: N802 -- a test carries its rule's name
"""Limits of sinks act, and those that contradict each other, or what the brokers take, are refused at the start."""

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from tidemark.services.sink.connecting import RealSinks
from tidemark.services.sink.connectors.destination import LocalDestination
from tidemark.services.sink.connectors.files import FileSinkSettings
from tidemark.services.sink.connectors.kafkamarkers import Marker, MarkerReading, last_marker, marker_record, markers_of
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.manifests import Manifest, ManifestStore
from tidemark.services.sink.connectors.sql import SqlSinkSettings, engine_of
from tidemark.services.sink.connectors.staging import (
    BlobPart,
    InlinePart,
    PartStore,
    Staging,
    StagingSettings,
    blobs_of,
    decode_handle,
    encode_handle,
)
from tidemark.services.sink.settings import SinkSettings, sink_settings
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.kafka_settings import KafkaSettings
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.model.ids import Epoch, JobId, VertexId
from tidemark.shared.operators.base import ARRIVAL, TS
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.planning import WriteHead
from tidemark.shared.ports.sink import Identity, TargetRefused
from tidemark.shared.process.connections import Connections, TooManyConnections
from tidemark.shared.process.settings import ProcessSettings, ProcessSettingsError

IDENTITY = Identity(JobId("0" * 32), VertexId("emit-1"), 0)

# --- handles ------------------------------------------------------------------------------------------------------------


def test_a_handle_that_nobody_would_read_is_not_written() -> None:
    """One byte more than the setting: refused by who writes and by who reads; at the setting both take it."""
    staged = encode_handle((InlinePart(1, b"x" * 100),))
    for use in (
        lambda: encode_handle((InlinePart(1, b"x" * 100),), len(staged) - 1),
        lambda: decode_handle(staged, 99),
    ):
        with pytest.raises(
            TargetRefused, match=rf"expected at most \d+ bytes, by message_bytes_max, found {len(staged)}"
        ):
            use()
    assert decode_handle(staged, len(staged)) == (InlinePart(1, b"x" * 100),)
    assert blobs_of(staged, len(staged)) == ()


@pytest.mark.parametrize(("inline_bytes_max", "kind"), [(10, InlinePart), (9, BlobPart)])
def test_what_is_above_the_inline_bound_goes_into_the_blob_store(inline_bytes_max: int, kind: type) -> None:
    """Ten bytes are inline at ten, and a blob at nine."""

    async def main(world: VirtualWorld) -> None:
        parts = PartStore(MemoryBlobs(world.executor), lambda epoch: f"{epoch}/x", inline_bytes_max)
        staging = Staging(parts)
        await staging.keep(b"x" * 10, 1)
        (part,) = parts.listed(staging.handle(Epoch(1), Epoch(0)))
        assert isinstance(part, kind)

    run_virtual(main)


def test_parts_within_a_bound_are_released_from_memory_once() -> None:
    """The oldest that have room stay; once one is loaded another has its room. Others are read back, and so is one that is loaded again."""

    async def main(world: VirtualWorld) -> None:
        blobs, names = MemoryBlobs(world.executor), itertools.count()
        parts = PartStore(blobs, lambda _: f"x/{next(names)}", inline_bytes_max=0, kept_bytes_max=25)
        kept = [await parts.keep(bytes([n]) * 10, 1, Epoch(1), 0) for n in range(3)]
        await blobs.delete(await blobs.list(""))
        assert await parts.load(kept[1]) == b"\1" * 10
        for gone in (kept[1], kept[2]):
            with pytest.raises(TargetRefused):
                await parts.load(gone)
        last = await parts.keep(b"z" * 15, 1, Epoch(2), 0)
        await blobs.delete(await blobs.list(""))
        assert (await parts.load(last), await parts.load(kept[0])) == (b"z" * 15, b"\0" * 10)

    run_virtual(main)


def test_C5_a_handle_stays_small_however_many_checkpoints_are_aborted() -> None:
    """Each aborted epoch's records stay in the handle of the next: beyond two epochs' they go into the blob store."""

    async def main(world: VirtualWorld) -> None:
        most, names = StagingSettings(inline_bytes_max=100, handle_bytes_max=4_000), itertools.count()
        blobs = MemoryBlobs(world.executor)
        parts = PartStore(blobs, lambda _: f"x/{next(names)}", most.inline_bytes_max, most.handle_bytes_max)
        staging = Staging(parts)
        for epoch in range(1, 12):
            await staging.keep(b"x" * 60, 1)
            await staging.keep(b"y" * 40, 1)
            listed = parts.listed(staging.handle(Epoch(epoch), Epoch(0)))
            assert sum(part.rows for part in listed) == 2 * epoch
            inline = sum(len(part.data) for part in listed if isinstance(part, InlinePart))
            assert inline == min(epoch, 2) * most.inline_bytes_max
        await staging.keep(b"z" * 100, 1)
        assert isinstance(parts.listed(staging.handle(Epoch(12), Epoch(11)))[0], BlobPart)
        await staging.keep(b"z" * 100, 1)
        assert isinstance(parts.listed(staging.handle(Epoch(13), Epoch(12)))[0], InlinePart)

    run_virtual(main)


def test_sink_tasks_share_what_a_row_of_the_mirror_carries() -> None:
    """However many they are: a row of the mirror fits into a record of the brokers."""
    settings = StagingSettings()
    assert settings.inline_of(1) == settings.inline_bytes_max
    for tasks in (1, 3, 15, 128):
        assert tasks * settings.inline_of(tasks) <= settings.mirror_inline_bytes_max


@pytest.mark.parametrize(("tasks", "share"), [(1, 700), (4, 250)])
def test_a_sink_task_is_given_its_share(tasks: int, share: int) -> None:
    """By the plan that its assignment brings: sinks count, others do not."""
    settings = SinkSettings(staging=StagingSettings(inline_bytes_max=700, mirror_inline_bytes_max=1_000))
    services = {VertexId("emit-1"): "sink", VertexId("source-1"): "source"}
    plan = SimpleNamespace(tasks={VertexId("emit-1"): tasks, VertexId("source-1"): 9}, services=services)
    context: Any = SimpleNamespace(
        assign=SimpleNamespace(job=IDENTITY.job, generation=1, plan=plan), outside=SimpleNamespace(blobs=None)
    )
    parts = RealSinks(Connections("p"), settings)._parts(context, VertexId("emit-1"), 0)
    assert (parts.inline_bytes_max, parts.handle_bytes_max) == (share, settings.staging.handle_bytes_max)


@pytest.mark.parametrize(
    ("extra", "kafka", "said"),
    [
        ({}, {"message_bytes_max": 200_000}, "message_bytes_max=200000 must be at least 262144"),
        (
            {"kafka": {"part_bytes": 9}},
            {},
            "TIDEMARK_EXTRA.kafka.part_bytes: no such setting; did you mean part_bytes_max",
        ),
        ({"sql": {"lock_wait_ms": 0}}, {}, "sql sink setting lock_wait_ms: expected a positive number, found 0"),
        ({"sample_rows_max": 9}, {}, r"TIDEMARK_EXTRA\.sample_rows_max: no such setting"),
    ],
)
def test_settings_of_sinks_that_cannot_work_end_the_process(extra: Any, kafka: Any, said: str) -> None:
    """The message names the settings and their values; another service's settings beside them are none of a sink's business."""
    settings = ProcessSettings(
        kafka="k:1", blobs="", store="", place="sink-0", kafka_config=kafka, extra={**extra, "scratch": "/x"}
    )
    with pytest.raises(ProcessSettingsError, match=said):
        sink_settings(settings)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: StagingSettings(inline_bytes_max=1 << 20),
            "twice inline_bytes_max 1048576 must not be above handle_bytes_max 524288",
        ),
        (
            lambda: SinkSettings(files=FileSinkSettings(handle_bytes_max=1 << 20)),
            r"files.handle_bytes_max 1048576 .* staging.handle_bytes_max 524288",
        ),
        (
            lambda: SqlSinkSettings(connections_max=0),
            "sql sink setting connections_max: expected a positive number, found 0",
        ),
        (lambda: MarkerReading(tail_records=0), "tail_records: .* found 0"),
        (lambda: SinkSettings(target_wait_ms=0), "sink setting target_wait_ms: expected a positive number, found 0"),
    ],
)
def test_bounds_of_sinks_that_cannot_work_are_refused(made: Callable[[], object], said: str) -> None:
    """Also those that no variable sets."""
    with pytest.raises(ValueError, match=said):
        made()


def test_settings_of_sinks_come_from_the_environment() -> None:
    """Nested by connector."""
    extra = {"sql": {"lock_wait_ms": 2}, "kafka": {"part_bytes_max": 7}}
    found = sink_settings(ProcessSettings(kafka="k:1", blobs="", store="", place="sink-0", extra=extra))
    assert (found.sql.lock_wait_ms, found.kafka.part_bytes_max) == (2, 7)
    assert sink_settings(ProcessSettings(kafka="k:1", blobs="", store="", place="sink-0")) == SinkSettings()


# --- Kafka: what decides results stands in the document's connection ------------------------------------------------------


def test_what_a_cluster_takes_is_said_by_the_documents_connection() -> None:
    """A record's size, its headers, topics and their partitions: fields of the connection's `config`."""
    client = KafkaSettings("k:1", message_bytes_max=5, emit_headers_max=6, emit_topics_max=7, emit_topic_partitions=0)
    takes = Takes(record_bytes_max=5, headers_max=6, topics_max=7, new_topic_partitions=0)
    assert Takes.of(client) == takes
    assert Takes.of(KafkaSettings("k:1")) == Takes()


@pytest.mark.parametrize(("headers_max", "refused"), [(2, 0), (1, 1)])
def test_a_row_with_more_headers_than_the_cluster_takes_is_refused(headers_max: int, refused: int) -> None:
    """Two headers, at most one."""
    stage = KafkaEmit(path="$emit", connection_name="c", topic=Literal("t"), headers=Literal({"a": "1", "b": "2"}))
    batch = batch_of([{"v": 1}], {TS: pa.array([1], pa.int64()), ARRIVAL: pa.array([1], pa.int64())})
    _, rejected = RecordMaker(stage, Takes(headers_max=headers_max)).runs(batch)
    assert [r.reason.partition("expected")[2] for r in rejected] == [" at most 1 headers, found 2"] * refused


def test_markers_are_looked_for_from_the_end_in_pieces() -> None:
    """A marker behind others than markers' ends is found with any piece."""

    async def main(world: VirtualWorld) -> None:
        broker, at = MemoryBroker(world.clock), markers_of(IDENTITY)
        broker.create_topic(at.topic, 1)
        log = MemoryLog(broker)
        writer = await log.writer("w")
        for epoch in range(1, 6):
            marker = Marker(identity=str(IDENTITY), epoch=Epoch(epoch), predecessor=None)
            await (await writer.send(at, marker_record(marker)))
        for tail_records in (1, 64):
            found = await last_marker(log, at, MarkerReading(tail_records=tail_records))
            assert found is not None
            assert found.epoch == 5

    run_virtual(main)


# --- databases and files --------------------------------------------------------------------------------------------------


def test_a_database_gets_so_many_connections_and_no_more(tmp_path: Path) -> None:
    """Who needs one more waits for as long as for a lock, and then counts the target as away."""
    engine = engine_of(f"sqlite:///{tmp_path}/t.db", SqlSinkSettings(connections_max=1, lock_wait_ms=50))
    with engine.connect(), pytest.raises(exc.TimeoutError, match="QueuePool limit of size 1"):
        engine.connect()
    with engine.connect() as connection:
        assert connection.execute(sa.text("select 1")).scalar() == 1
    engine.dispose()


def test_a_process_has_pools_for_so_many_databases(tmp_path: Path) -> None:
    """One more fails whose it is, with the setting's name."""
    sinks = RealSinks(Connections("p"))
    first = sinks._engine(f"sqlite:///{tmp_path}/a.db", 1)
    assert sinks._engine(f"sqlite:///{tmp_path}/a.db", 1) is first
    with pytest.raises(TooManyConnections, match=r"database: .*connections_max=1"):
        sinks._engine(f"sqlite:///{tmp_path}/b.db", 1)


@pytest.mark.parametrize(
    ("written", "told"),
    [("", "gzip"), (", config: {compression_type: zstd}", "zstd"), (", config: {compression_type: none}", None)],
)
def test_a_topic_is_written_as_its_stage_compresses(written: str, told: str | None) -> None:
    """The stage's `compression_type` counts before that of the connection's config."""
    connections = Connections("p")
    document = parse(
        "connections: {k: {type: kafka, bootstrapServers: 'b:1', config: {compression: gzip}}}\n"
        f"pipeline: [{{$source: {{connectionName: k, topic: t}}}}, {{$emit: {{connectionName: k, topic: o{written}}}}}]"
    )
    plan = SimpleNamespace(tasks={}, services={})
    outside = SimpleNamespace(blobs=None, clock=None, executor=None, topics=SimpleNamespace(prefix="tidemark"))
    assign = SimpleNamespace(job=IDENTITY.job, generation=1, plan=plan)
    context: Any = SimpleNamespace(assign=assign, outside=outside, operators=NOWHERE)
    emit: Any = document.pipeline[-1]
    sink: Any = RealSinks(connections).make(context, document, WriteHead(emit), VertexId("emit-1"), 0)
    assert sink._log._settings.compression == told


def _manifest(epoch: int) -> Manifest:
    names: dict[str, Any] = {"identity": "i", "job": "j", "vertex": "v", "format": "json"}
    return Manifest(index=0, epoch=epoch, predecessor=epoch - 1, rows=0, files=(), **names)


class _Counting(LocalDestination):
    """A destination that counts what is read."""

    reads = 0

    def read(self, name: str) -> bytes | None:
        self.reads += name.startswith("_manifests/")
        return super().read(name)


def test_manifests_are_kept_up_to_the_bound(tmp_path: Path) -> None:
    """What does not stay in memory is read again: the summary is the same."""
    written = LocalDestination(tmp_path, "a")
    written.prepare()
    for epoch in range(1, 6):
        ManifestStore(written).publish(_manifest(epoch))
    summaries, reads = [], []
    for kept_max in (5, 2):
        destination = _Counting(tmp_path, "b")
        store = ManifestStore(destination, kept_max)
        for _ in range(3):
            store.summarise()
        summaries.append(msgspec.json.decode(destination.read("_manifest.json") or b""))
        reads.append(destination.reads)
        assert len(store._read) == kept_max
    assert reads == [5, 2 + 3 * 3], "what is kept stays: no summary reads all again"
    assert summaries[0] == summaries[1]


class _Busy(LocalDestination):
    """A destination to which another releases whenever the summary is written."""

    written = 0

    def replace(self, name: str, data: bytes) -> None:
        super().replace(name, data)
        self.written += 1
        ManifestStore(LocalDestination(self._root, "other")).publish(_manifest(self.written))


def test_a_summary_is_built_anew_so_often(tmp_path: Path) -> None:
    """Others that never stop releasing keep nobody at it for ever."""
    busy = _Busy(tmp_path, "a")
    busy.prepare()
    ManifestStore(busy, rounds_max=3).summarise()
    assert busy.written == 3
