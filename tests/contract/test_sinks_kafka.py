# ruff: noqa: N802 -- a test carries its rule's name
"""The Kafka sink's own promises: transactions, markers, and what a lost answer leaves behind (protocol, S3, S6)."""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.contract.sinks_targets import KafkaWorld, expression
from tidemark.services.library.release_world import IDENTITY, Task, World, batch_of, row_of
from tidemark.services.sink.connectors.kafkamarkers import Marker, MarkerReading, last_marker, marker_record, markers_of
from tidemark.services.sink.connectors.kafkarecords import RecordMaker, Takes
from tidemark.services.sink.connectors.kafkaruns import TopicRun, joined, sizes_of
from tidemark.services.sink.connectors.staging import BlobPart, InlinePart, blobs_of, decode_handle
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.memory_transactions import MemoryTransaction
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.model.ids import Epoch, Offset
from tidemark.shared.model.values import Document, Long
from tidemark.shared.operators.batches import batch_of as documents_batch
from tidemark.shared.operators.keygroups import key_group
from tidemark.shared.ports.log import Fenced, Log, LogDenied, NewRecord, RecordColumns, TopicFound, TopicPartition
from tidemark.shared.ports.sink import MarkerAhead, TargetRefused, TargetUnavailable

MARKERS = markers_of(IDENTITY)


def faulty() -> tuple[KafkaWorld, Faults]:
    """A world whose log's faults the test plans, beside one without faults for reading."""
    faults = Faults()
    world = KafkaWorld(MemoryLog(MemoryBroker(SystemClock()), faults))
    return world, faults


async def markers(log: Log) -> list[Marker]:
    """All committed markers of the identity."""
    end = (await log.end_offsets([MARKERS]))[MARKERS]
    reader = await log.reader(committed_only=True)
    await reader.assign(await log.begin_offsets([MARKERS]))
    found = []
    while reader.position(MARKERS) < end:
        found += [msgspec.json.decode(r.value or b"", type=Marker) for r in await reader.fetch(1000, 10)]
    await reader.close()
    return found


@pytest.mark.parametrize("operation", ["txn", "commit"])
@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_ANSWER])
@pytest.mark.parametrize("nth", [0, 1, 2, 3, 4])
async def test_S3_an_error_at_any_point_of_a_release_leaves_exactly_the_rest_to_write(
    operation: str, fault: Fault, nth: int
) -> None:
    """Whatever transaction call fails, done or not, the next try reads the markers and writes what follows: nothing twice, no gap."""
    target, faults = faulty()
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(3):
        await task.accept()
    await task.stage()
    await task.commit()
    faults.plan(operation, *[Fault.NONE] * nth, fault)  # type: ignore[arg-type]
    for _ in range(3):
        try:
            await task.release()
        except TargetUnavailable:
            await world.check()
        await world.check()
    await world.complete()
    assert (operation, fault) in faults.drawn
    written = [(m.epoch, m.part, m.parts) for m in await markers(target.log) if m.epoch]
    assert written == [(1, part, 5) for part in range(1, 6)]


async def test_S3_a_new_holder_goes_on_behind_the_last_part(tmp_path: object) -> None:
    """A holder that dies between parts leaves a marker by which the next one goes on; open reports the predecessor as marker."""
    target, faults = faulty()
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    for _ in range(2):
        await task.accept()
    await task.stage()
    await task.commit()
    faults.plan("commit", Fault.NONE, Fault.REFUSED)
    with pytest.raises(TargetUnavailable):
        await task.release()
    later = Task(world)
    await later.start()
    assert later.marker == 2
    await world.complete()
    parts = [(m.epoch, m.part) for m in await markers(target.log)]
    assert len(parts) == len(set(parts))


async def test_S2_half_released_output_ahead_of_what_is_restored_is_refused() -> None:
    """A marker of the first part of a commit above restored_from is a marker ahead, though the commit is not complete."""
    target, faults = faulty()
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(2):
        await task.accept()
    await task.stage()
    await task.commit()
    faults.plan("commit", Fault.NONE, Fault.REFUSED)
    with pytest.raises(TargetUnavailable):
        await task.release()
    with pytest.raises(MarkerAhead, match="checkpoint 1, but checkpoint 0"):
        await target.sink().open(IDENTITY, Epoch(0))


async def test_S3_a_fenced_holder_writes_nothing_more() -> None:
    """Who is fenced gets Fenced, and again Fenced: it does not take the identity back by initialising anew."""
    target = KafkaWorld()
    world = World(target)
    old = Task(world)
    await old.start()
    await old.accept()
    await old.stage()
    await old.commit()
    new = Task(world)
    await new.sink.open(IDENTITY, world.last)
    for _ in range(2):
        with pytest.raises(Fenced):
            await old.release()
    await new.release()
    await world.complete()


async def test_S3_markers_are_found_behind_many_aborted_transactions() -> None:
    """Aborted markers are no markers, however many lie behind the last committed one; the end is the high watermark."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic(MARKERS.topic, 1)
    writer = await log.transactional_writer("x")
    first = await writer.begin()
    await first.send_batch(MARKERS, [marker_record(Marker(identity="x", epoch=Epoch(7), predecessor=None))])
    await first.commit()
    for epoch in range(8, 200):
        aborted = await writer.begin()
        await aborted.send_batch(
            MARKERS, [marker_record(Marker(identity="x", epoch=Epoch(epoch), predecessor=Epoch(epoch - 1)))]
        )
        await aborted.abort()
    found = await last_marker(log, MARKERS, MarkerReading())
    assert found is not None
    assert found.epoch == 7


async def test_S3_silence_is_not_the_end_of_the_markers() -> None:
    """While a transaction below the high watermark is open, the markers are not known: the target counts as away."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic(MARKERS.topic, 1)
    writer = await log.transactional_writer("another")
    transaction = await writer.begin()
    await transaction.send_batch(MARKERS, [NewRecord(b"{}")])
    with pytest.raises(TargetUnavailable, match="read up to offset 0"):
        await last_marker(log, MARKERS, MarkerReading(fetch_wait_ms=1, silent_fetches_max=3))


async def test_S3_deleted_markers_are_refused() -> None:
    """A markers topic that had records and has no marker has lost them: nothing is written on a guess."""
    target = KafkaWorld()
    world = World(target)
    task = Task(world)
    await task.start()
    await task.epoch()
    await target.log.delete_records(await target.log.end_offsets([MARKERS]))
    with pytest.raises(TargetRefused, match="begins at offset"):
        await target.sink().open(IDENTITY, world.last)


async def test_a_release_asks_the_cluster_for_its_own_topics_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster may have thousands of others, and each task releases each epoch."""
    target = KafkaWorld()
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(4):
        await task.accept()
    await task.stage()
    await task.commit()
    asked: list[Sequence[str]] = []
    describe = target.log.describe_topics

    async def noted(topics: Sequence[str]) -> dict[str, TopicFound]:
        asked.append(topics)
        return await describe(topics)

    async def listed() -> dict[str, int]:
        raise AssertionError("all topics are listed")

    with monkeypatch.context() as patched:
        patched.setattr(target.log, "list_topics", listed)
        patched.setattr(target.log, "describe_topics", noted)
        await task.release()
    assert asked == [[target.topic]]
    await world.complete()


class Forbidding(MemoryLog):
    """A cluster on which the sink may delete nothing."""

    async def delete_records(self, before: Mapping[TopicPartition, Offset]) -> None:
        raise LogDenied(f"deleting of {list(before)}: not allowed")


@pytest.mark.parametrize("log", [MemoryLog, Forbidding])
async def test_S3_of_a_long_history_the_newest_markers_stay(
    monkeypatch: pytest.MonkeyPatch, log: type[MemoryLog]
) -> None:
    """As many offsets as the bound says, for audits: each marker's transaction has two. A cluster that forbids it keeps all."""
    monkeypatch.setattr("tidemark.services.sink.connectors.kafka._TRIM_EVERY", 1)
    target = KafkaWorld(log(MemoryBroker(SystemClock())))
    target.settings = replace(target.settings, markers_kept=20)
    world = World(target)
    task = Task(world)
    await task.start()
    kept = []
    for _ in range(12):
        await task.epoch()
        kept.append(len(await markers(target.log)))
    assert kept[:4] == [3, 5, 7, 9]
    assert kept[-1] == (25 if log is Forbidding else 11)
    again = Task(world)
    await again.start()
    await again.epoch()
    await world.complete()


async def test_S3_another_division_of_a_half_released_commit_is_refused() -> None:
    """The division is fixed when staged: a commit whose handle differs from the one half released is another history's."""
    target, faults = faulty()
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(2):
        await task.accept()
    await task.stage()
    await task.commit()
    faults.plan("commit", Fault.NONE, Fault.REFUSED)
    with pytest.raises(TargetUnavailable):
        await task.release()
    with pytest.raises(TargetRefused, match=r"part 1 of 3 .* has 1 parts"):
        await task.sink.release(row_of(1, 0, b""), b"")


async def test_C7_small_parts_travel_in_the_handle_and_others_in_the_blob_store() -> None:
    """Parts above the inline bound are blobs, which the handle lists for the acknowledgement (C12)."""
    target = KafkaWorld(part_records=10)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await sink.accept(batch_of([1]))
    small = decode_handle(await sink.stage(Epoch(1), Epoch(0)))
    assert [type(part) for part in small] == [InlinePart]
    await sink.accept(batch_of(range(20)))
    staged = await sink.stage(Epoch(2), Epoch(1))
    assert [type(part) for part in decode_handle(staged)] == [BlobPart, BlobPart]
    assert [blob.name for blob in blobs_of(staged)] == list(target.blobs.objects)
    # Labelled by the epoch that first lists them.
    assert all(name.startswith("job/emit/1/2/") for name in target.blobs.objects)


async def test_C10_an_absent_blob_store_is_waited_for_and_nothing_is_lost() -> None:
    """Accept and stage may be repeated after TargetUnavailable; each row is staged once."""
    target = KafkaWorld(part_records=4)
    world = World(target)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    await sink.accept(batch_of(range(8)))
    target.blobs.away = True
    with pytest.raises(TargetUnavailable):
        await sink.accept(batch_of(range(8, 10)))
    with pytest.raises(TargetUnavailable):
        await sink.stage(Epoch(1), Epoch(0))
    target.blobs.away = False
    await sink.accept(batch_of(range(8, 10)))
    staged = await sink.stage(Epoch(1), Epoch(0))
    world.commit(Epoch(1), staged, 10)
    await sink.release(*world.commits[0])
    await world.complete()


async def test_records_go_to_the_partition_of_their_key_with_the_event_time() -> None:
    """Kafka's own hash of the key chooses the partition; the record's timestamp is its event time."""
    target = KafkaWorld(partitions=3)
    task = Task(World(target))
    await task.start()
    await task.epoch()
    for record in await target.records():
        document = json.loads(record.value or b"")
        assert record.key == json.dumps(document["name"]).encode()
        assert record.partition == key_group(record.key, 3)
        assert record.timestamp_ms == 1000 * document["id"]


def one_record(document: Document, **options: object) -> tuple[object, list[str]]:
    """The record that `$emit` with these options makes of a document, and the reasons why it makes none."""
    expressions = ("key", "headers", "tombstone_when", "topic")
    given: dict[str, Any] = {
        name: expression(value) if name in expressions else value for name, value in options.items()
    }
    stage = KafkaEmit(path="$emit", connection_name="c", **{"topic": expression("t"), **given})
    made, rejected = RecordMaker(stage, Takes(record_bytes_max=1000, headers_max=3, prefix="of-ours")).runs(
        documents_batch([document])
    )
    records = [columns[0] for _, run in made for _, columns in run.by_partition(1, 0)]
    return (records[0] if records else None), [r.reason for r in rejected]


@pytest.mark.parametrize(
    ("key_format", "value", "expected"),
    [
        ("string", "a", b"a"),
        ("json", "a", b'"a"'),
        ("json", {"b": 1}, b'{"b":1}'),
        ("int", 7, struct.pack(">i", 7)),
        ("long", Long(7), struct.pack(">q", 7)),
        ("double", 0.5, struct.pack(">d", 0.5)),
        ("string", None, None),
    ],
)
def test_S6_keys_are_written_as_kafkas_serializers_write_them(
    key_format: str, value: object, expected: bytes | None
) -> None:
    """Each key format gives the bytes of Kafka's serializer of that name; null is no key."""
    record, rejected = one_record({"k": value}, key="$k", key_format=key_format)
    assert not rejected
    assert record.key == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("document", "options", "reason"),
    [
        ({"k": 1}, {"key": "$k", "key_format": "string"}, "keyFormat is string, found a value of type int"),
        ({"k": 2**40}, {"key": "$k", "key_format": "int"}, "keyFormat is int, found a value of type long"),
        ({"t": "a b"}, {"topic": "$t"}, "expected a name of letters"),
        ({}, {"topic": "$t"}, "found a value of type missing"),
        ({"big": "x" * 1000}, {}, "bytes, at most 1000 are allowed"),
        ({"h": 1}, {"headers": "$h"}, "headers: expected a document"),
        ({"d": "x"}, {"tombstone_when": "$d"}, "tombstoneWhen: expected true or false"),
        ({"d": True}, {"tombstone_when": "$d", "key": "$k"}, "a record without a value needs a key"),
        ({"t": "tidemark.markers.x"}, {"topic": "$t"}, "tidemark.markers.x is an internal topic"),
        ({"t": "tidemark.control.commands"}, {"topic": "$t"}, "tidemark.control.commands is an internal topic"),
        ({"t": "of-ours.requests"}, {"topic": "$t"}, "of-ours.requests is an internal topic"),
        ({"t": "__consumer_offsets"}, {"topic": "$t"}, "__consumer_offsets is an internal topic"),
        ({}, {"topic": "tidemark.commands"}, "tidemark.commands is an internal topic"),
    ],
)
def test_S6_what_a_broker_would_refuse_is_found_before_staging(
    document: Document, options: dict[str, object], reason: str
) -> None:
    """Wrong key types, topic names, headers and sizes, and failing expressions, become dead letters with the reason."""
    record, rejected = one_record(document, **options)
    assert record is None
    assert reason in rejected[0]


def test_headers_and_tombstones_follow_their_expressions() -> None:
    """Headers of a document or of {k, v} pairs; a null value where tombstoneWhen is true."""
    record, _ = one_record({"a": 1, "gone": True}, headers={"h": "$a", "s": "text"}, tombstone_when="$gone", key="$a")
    assert (record.value, record.headers) == (None, (("h", b"1"), ("s", b"text")))  # type: ignore[attr-defined]
    record, _ = one_record({"hs": [{"k": "x", "v": "y"}, {"k": "x", "v": "z"}]}, headers="$hs")
    assert record.headers == (("x", b"y"), ("x", b"z"))  # type: ignore[attr-defined]


async def test_S6_a_topic_that_may_not_be_made_is_refused_before_staging() -> None:
    """With `new_topic_partitions` 0 the rows for a missing topic are refused at accept, the others taken."""
    target = KafkaWorld(partitions=0)
    target.stage = KafkaEmit(path="$emit", connection_name="c", topic=expression("$name"))
    await target.log.create_topic("n1", 1)
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    rejected = await sink.accept(batch_of([0, 1]))
    assert [(r.row, r.reason) for r in rejected] == [(0, "$emit.topic: n0 does not exist; create it")]
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    assert len(await target.records("n1")) == 1


async def test_S6_a_topic_deleted_after_staging_is_refused_for_good_with_epoch_and_record() -> None:
    """What the target refuses at release names commit, part and record."""
    target = KafkaWorld()
    task = Task(World(target))
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    await target.log.delete_topics([target.topic])
    with pytest.raises(TargetRefused, match=r"commit 1, part 1, record 0: topic out does not exist"):
        await task.release()


async def test_S6_one_record_that_is_too_large_does_not_take_its_batch_along() -> None:
    """Where a batch is rendered at once too: the large one is told, the others are taken."""
    target = KafkaWorld()
    target.takes = Takes(record_bytes_max=200)
    target.stage = KafkaEmit(path="$emit", connection_name="c", topic=expression("out"))
    sink = target.sink()
    await sink.open(IDENTITY, Epoch(0))
    names = pa.array(["a", "x" * 300, "c"], pa.string())
    batch = batch_of([0, 1, 2]).set_column(2, "name", names)
    rejected = await sink.accept(batch)
    assert [(r.row, "at most 200" in r.reason) for r in rejected] == [(1, True)]
    staged = await sink.stage(Epoch(1), Epoch(0))
    await sink.release(row_of(1, 0, staged), staged)
    assert sorted(await target.visible()) == [0, 2]


async def test_S6_by_order_a_part_that_is_refused_is_passed_over() -> None:
    """`skip` writes the parts that the cluster takes, and for a refused one its marker alone; a later holder goes on behind them."""
    target = KafkaWorld(part_records=1)
    target.stage = KafkaEmit(path="$emit", connection_name="c", topic=expression("$name"))
    world = World(target)
    task = Task(world)
    await task.start()
    await task.accept()
    await task.stage()
    await task.commit()
    await target.log.delete_topics(["n1"])
    with pytest.raises(TargetRefused):
        await task.release()
    assert await task.sink.skip(*world.commits[0]) == 1
    assert [len(await target.records(topic)) for topic in ("n0", "n1", "n2")] == [1, 0, 1]
    assert [(m.epoch, m.part, m.parts) for m in await markers(target.log) if m.epoch] == [(1, n, 3) for n in (1, 2, 3)]
    assert await target.sink().open(IDENTITY, Epoch(1)) == 1


def test_identities_never_share_a_markers_partition() -> None:
    """Each identity has a topic of its own: no assignment, so none that could collide or change."""
    assert markers_of(IDENTITY) == TopicPartition(f"tidemark.markers.{IDENTITY}", 0)


async def test_an_epoch_is_one_batch_a_partition_however_its_rows_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that came in many batches are handed over partition by partition, each whole and in order; then the marker."""
    handed: list[TopicPartition] = []
    send_batch = MemoryTransaction.send_batch

    async def noted(self: MemoryTransaction, partition: TopicPartition, records: Sequence[NewRecord]) -> None:
        handed.append(partition)
        await send_batch(self, partition, records)

    monkeypatch.setattr(MemoryTransaction, "send_batch", noted)
    target = KafkaWorld(partitions=4, part_records=1_000)
    world = World(target)
    task = Task(world)
    await task.start()
    for _ in range(50):
        await task.accept()
    await task.stage()
    await task.commit()
    handed.clear()
    await task.release()
    await world.complete()
    assert sorted(handed[:-1]) == [TopicPartition("out", number) for number in range(4)]
    assert handed[-1] == MARKERS
    by_partition: dict[int, list[int]] = {}
    for record in await target.records():
        by_partition.setdefault(record.partition, []).append(json.loads(record.value or b"")["id"])
    assert len(by_partition) == 4
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


def test_runs_of_a_topic_join_with_and_without_keys_and_headers() -> None:
    """Order in a topic stays; a record without key or headers has none beside those that have some."""
    plain, rich, other = (
        [NewRecord(b"1", timestamp_ms=1), NewRecord(None)], [NewRecord(b"3", b"k", (("h", b"v"),), 3)], [NewRecord(b"9", timestamp_ms=9)],
    )  # fmt: skip
    runs = [TopicRun(topic, RecordColumns.of(records)) for topic, records in (("a", plain), ("b", other), ("a", rich))]
    assert [(run.topic, list(run.columns)) for run in joined(runs)] == [("a", plain + rich), ("b", other)]


def test_a_record_has_one_size_alone_and_among_others() -> None:
    """What is refused alone is what is counted of it in a part."""
    records = [NewRecord(b"1"), NewRecord(None, b"key", (("h", b"v"), ("ü", b"")), 2), NewRecord(b"333", b"k")]
    sizes = sizes_of(RecordColumns.of(records)).tolist()
    assert sizes == [size for record in records for size in sizes_of(RecordColumns.of([record])).tolist()]
    assert sizes[1] == 128 + len(b"key") + 1 + 1 + 8 + 2 + 8
