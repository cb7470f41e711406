"""Every queue, buffer and topic has a bound that a setting names, and reaching it slows down instead of breaking."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.driver_stand import SlowBlobs, Stand, standing
from tests.harness.installation import NAME, Installed, installed, released
from tidemark.shared.adapters.blobs import MemoryBlobs
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.frames import Inline, Segment
from tidemark.shared.model.ids import EdgeId, Epoch, Generation, JobId, Offset, VertexId
from tidemark.shared.model.messages import StopProcessor
from tidemark.shared.model.plan import OUT, Edge
from tidemark.shared.model.values import Binary
from tidemark.shared.operators.base import PART, POS, SRCKEY, TS, Out
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.dead_letters import RowFailure, dead_letters
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.client import RequestRefused
from tidemark.shared.runtime.exchange import Exchange, OutEdge, load_body
from tidemark.shared.runtime.reading import followed
from tidemark.shared.runtime.settings import DeathSettings, LookupSettings, RuntimeSettings, SettingsError
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.limits import WireLimits

KEPT_MS = 121_000


# --- topics -------------------------------------------------------------------------------------------------------------


def test_C12_topics_that_tell_of_now_are_kept_short_by_the_leader() -> None:  # noqa: N802
    """Commands, reports, answers and read positions lose what is older than the setting, and nothing younger."""

    async def main(world: VirtualWorld) -> None:
        settings = RuntimeSettings(engine="local", topics_kept_ms=KEPT_MS)
        settings.check()
        async with installed(world.clock, world.executor, settings=settings) as there:
            log, topics = there.outside.log, there.outside.topics
            told = [TopicPartition(t, 0) for t in (topics.commands, topics.reports)]
            await world.clock.sleep_ms(KEPT_MS)
            assert set((await log.begin_offsets(told)).values()) == {Offset(0)}
            there_now = await log.end_offsets(told)
            await world.clock.sleep_ms(KEPT_MS * 13 // 10)
            begins, ends = await log.begin_offsets(told), await log.end_offsets(told)
            for topic in told:
                assert there_now[topic] <= begins[topic] < ends[topic], (
                    "what was told so long before is gone, the rest is not"
                )
                lately = (ends[topic] - begins[topic]) * settings.heartbeat_interval_ms  # both beat so often
                assert lately >= KEPT_MS

    run_virtual(main)


def test_C12_a_topic_of_answers_that_somebody_deleted_is_made_again_and_kept_short() -> None:  # noqa: N802
    """No process reads it all the time, so none fails and begins anew: the leader looks. What it knew of the old one counts no more."""

    async def main(world: VirtualWorld) -> None:
        settings = RuntimeSettings(engine="local", topics_kept_ms=KEPT_MS)
        async with installed(world.clock, world.executor, settings=settings) as there:
            log, topics = there.outside.log, there.outside.topics
            commands, answers = TopicPartition(topics.commands, 0), TopicPartition(topics.answers, 0)
            for _ in range(3):
                await _refused(there)
            await world.clock.sleep_ms(KEPT_MS * 12 // 10)
            await log.delete_topics([topics.answers])
            await world.clock.sleep_ms(KEPT_MS // 5)
            await _refused(there)
            begun = (await log.begin_offsets([commands]))[commands]
            await world.clock.sleep_ms(KEPT_MS * 13 // 10)
            assert (await log.begin_offsets([commands]))[commands] > begun
            assert (await log.begin_offsets([answers]))[answers] == 1

    run_virtual(main)


async def _refused(there: Installed) -> None:
    with pytest.raises(RequestRefused):
        await there.client.request(StopProcessor(there.client.unique(), NAME))


def test_C12_who_stood_still_for_longer_than_a_topic_is_kept_goes_on_with_what_is_told_now() -> None:  # noqa: N802
    """A reader of a topic whose records were let go of fails nobody: it passes over them."""

    async def main(world: VirtualWorld) -> None:
        broker, at = MemoryBroker(world.clock), TopicPartition("told", 0)
        broker.create_topic("told", 1)
        log = MemoryLog(broker)
        writer = await log.writer("w")
        found = followed(log, world.clock, at)
        await (await writer.send(at, NewRecord(b"first")))
        assert (await anext(found)).value == b"first"
        for value in (b"gone", b"kept"):
            await (await writer.send(at, NewRecord(value)))
        await log.delete_records({at: Offset(2)})
        assert (await anext(found)).value == b"kept"
        await found.aclose()

    run_virtual(main)


# --- state that waits to be stored --------------------------------------------------------------------------------------


def test_snapshots_wait_for_the_store_up_to_a_bound_and_then_the_task_waits() -> None:
    """Checkpoints that were given up leave their states to a slow store; no more of them are copied than may wait."""
    settings = RuntimeSettings(state_inline_bytes_max=1, snapshots_waiting_max=2)

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        for epoch in range(1, 7):
            await peer.rows(epoch)
            await peer.barrier(epoch)
        await stand.settle()
        # One is being stored, two wait, and the next has not been copied.
        assert stand.body.calls.count("copy") == 3
        stand.blobs.open.set()
        await stand.until(lambda: [epoch for epoch, _ in stand.acks][-1:] == [6])
        assert stand.body.seen == [1, 2, 3, 4, 5, 6]

    async def main(world: VirtualWorld) -> None:
        async with standing(world, wrap_blobs=SlowBlobs, settings=settings) as stand:
            await story(stand)

    run_virtual(main)


# --- rows that are too large ----------------------------------------------------------------------------------------------


def test_F6_a_row_that_no_frame_might_hold_goes_by_reference_on_any_edge() -> None:  # noqa: N802
    """It cannot be split; its neighbours travel in frames."""

    async def main(world: VirtualWorld) -> None:
        blobs = MemoryBlobs(world.executor)
        edge = Edge(EdgeId("a>b"), VertexId("a"), VertexId("b"))
        out = Exchange(JobId("0" * 32), Generation(1), 128, [OutEdge(edge, 1)], blobs, lambda: "u", 2_000)
        values = ["x" * 10, "y" * 10_000, "z" * 10]
        batch = pa.RecordBatch.from_pydict({TS: pa.array([1, 2, 3], pa.int64()), "v": pa.array(values)})
        bodies = [b for e in await out.emissions([Out(OUT, "rows", batch)], Epoch(1)) for b in e.bodies]
        assert [type(b) for b in bodies] == [Inline, Segment, Inline]
        assert all(len(b.ipc) <= 2_000 for b in bodies if isinstance(b, Inline))
        assert [v for b in bodies for v in (await load_body(blobs, b)).column("v").to_pylist()] == values

    run_virtual(main)


def _letter(document: Mapping[str, Any] | Binary, reason: str = "why", key: bytes = b"k") -> dict[str, Any]:
    columns = {TS: pa.array([5], pa.int64()), PART: pa.array([1], pa.int32()), POS: pa.array([7], pa.int64())}
    batch = batch_of([{}], {**columns, SRCKEY: pa.array([key], pa.binary())})
    context = TaskContext("p", topic="t", letter_bytes_max=1_000)
    failure = RowFailure(0, reason, "Code", document=document)  # type: ignore[arg-type]
    (out,) = dead_letters(batch, [failure], "$source", context)
    (letter,) = documents_of(out.batch)
    return letter


@pytest.mark.parametrize("document", [Binary(b"x" * 5_000), {"v": "x" * 4_992}])
def test_of_a_document_that_no_queue_might_take_the_letter_has_the_beginning(document: Any) -> None:
    """Its size and its place say where the rest is."""
    letter = _letter(document)
    whole = bytes(document) if isinstance(document, Binary) else json.dumps(document, separators=(",", ":")).encode()
    assert letter["doc"] == Binary(whole[:1_000])
    assert letter["docBytes"] == len(whole) == 5_000
    assert letter["_stream_meta"]["source"] == {"partition": 1, "topic": "t", "offset": 7, "key": Binary(b"k")}


def test_reasons_and_keys_of_a_letter_are_bounded_too() -> None:
    """A user's exception may quote what it wants, a record may have any key."""
    letter = _letter({"v": 1}, "r" * 5_000, b"k" * 5_000)
    assert letter["doc"] == {"v": 1}
    assert len(letter["errInfo"]["reason"]) == len(letter["_stream_meta"]["source"]["key"]) == 250


# --- sides that wait for each other ---------------------------------------------------------------------------------------


def _joined(folder: Path, within_s: int = 1) -> dict[str, Any]:
    def source(topic: str) -> dict[str, Any]:
        return {"$source": {
            "connectionName": "broker", "topic": topic, "config": {"auto_offset_reset": "earliest"},
            "timeField": {"$toDate": "$at"}, "schema": {"at": "long", "k": "int"},
            "watermark": {"strategy": "maxSeen"},
        }}  # fmt: skip

    within = {"before": {"size": within_s, "unit": "second"}, "after": {"size": within_s, "unit": "second"}}
    return {
        "connections": {"broker": {"type": "kafka", "bootstrapServers": "memory"}},
        "pipeline": [
            source("fast"),
            {"$join": {"from": [source("slow")], "leftKey": "$k", "rightKey": "$k", "within": within, "as": "s"}},
            {"$emit": {"path": str(folder), "format": "json"}},
        ],
        "options": {"checkpoint": {"interval": {"size": 200, "unit": "ms"}}},
    }


async def _write(broker: MemoryBroker, topic: str, seconds: Sequence[int]) -> None:
    writer = await MemoryLog(broker).writer("feeder")
    for second in seconds:
        value = json.dumps({"at": 1_000 * second, "k": second, "junk": "x" * 200}).encode()
        await (await writer.send(TopicPartition(topic, 0), NewRecord(value)))
    await writer.close()


def test_F7_the_faster_side_of_a_join_waits_for_the_slower(tmp_path: Path) -> None:  # noqa: N802
    """Many times as many rows as may wait: none is lost, checkpoints go on, and neither memory nor the disk has much more than it may."""
    limits = TaskLimits(ahead_bytes_max=7_000)
    settings = RuntimeSettings(
        engine="local",
        join_bytes_max=10_000,
        join_ahead_bytes_max=20_000,
        fetch_bytes_max=1_024,
        inline_bytes_max=7_000,
        limits=limits,
    )
    settings.check()
    rows = 1_000

    async def kept(there: Installed) -> tuple[int, int]:
        async for beat in there.client.heartbeats():
            for task in beat.tasks:
                counters = dict(task.counters)
                if "keptBytes" in counters:
                    return counters["keptBytes"], counters["diskBytes"]
        raise AssertionError("no heartbeats")

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor, settings=settings) as there:
            for topic in ("fast", "slow"):
                there.broker.create_topic(topic, 1)
            await _write(there.broker, "fast", range(rows))
            await there.create(_joined(tmp_path))
            await there.start()
            await there.committed(5)
            in_memory, on_disk = await kept(there)
            assert in_memory <= 12_000
            assert 10_000 < in_memory + on_disk <= 40_000
            for first in range(0, rows, 250):
                await _write(there.broker, "slow", range(first, first + 250))
                await there.committed(2)
                assert sum(await kept(there)) <= 40_000
            until = {"fast-0": Offset(rows), "slow-0": Offset(rows)}
            await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
            await there.when(lambda status: status.state == "FINISHED")
        assert sorted(d["k"] for d in released(tmp_path)) == list(range(rows))

    run_virtual(main)


def test_the_time_span_of_a_join_may_hold_more_rows_than_memory(tmp_path: Path) -> None:
    """Each row may find a match to the end: most rows lie on the disk, and no pair is missing."""
    settings = RuntimeSettings(engine="local", join_bytes_max=30_000)
    rows = 400

    async def main(world: VirtualWorld) -> None:
        async with installed(world.clock, world.executor, settings=settings) as there:
            for topic in ("fast", "slow"):
                there.broker.create_topic(topic, 1)
            await there.create(_joined(tmp_path, 10_000))
            await there.start()
            for first in range(0, rows, 100):
                await _write(there.broker, "fast", range(first, first + 100))
                await there.committed(2)
            await _write(there.broker, "slow", range(rows))
            until = {"fast-0": Offset(rows), "slow-0": Offset(rows)}
            await there.client.request(StopProcessor(there.client.unique(), NAME, drain=True, until=until))
            status = await there.when(lambda status: status.state in {"FINISHED", "FAILED"})
            assert status.state == "FINISHED", status.reason
        assert sorted(d["k"] for d in released(tmp_path)) == list(range(rows))

    run_virtual(main)


# --- settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"topics_kept_ms": 100_000}, r"topics_kept_ms=100000 .* coordinator_silence_ms_max=60000"),
        ({"snapshots_waiting_max": 0}, "snapshots_waiting_max=0 must be at least 1"),
        ({"limits": TaskLimits(waiting_bytes_max=0)}, "limits.waiting_bytes_max=0 must be at least 1"),
        ({"limits": TaskLimits(ahead_bytes_max=100_000)}, r"inline_bytes_max=262144 .* limits.ahead_bytes_max=100000"),
        (
            {"lookup": LookupSettings(keys_max=8_192)},
            "lookup.keys_max=8192 with up to 4 columns a key must not be above 32766",
        ),
        ({"open_rows_max": 199_999}, "open_rows_max=199999 must not be below held_groups_max=200000"),
        ({"held_groups_max": 0}, "held_groups_max=0 must be at least 1"),
        ({"lookup": LookupSettings(kept_rows_max=0)}, "lookup.kept_rows_max=0 must be at least 1"),
        (
            {"lookup": LookupSettings(found_rows_max=9)},
            "lookup.found_rows_max=9 must not be below lookup.rows_max=100000",
        ),
        ({"lookup": LookupSettings(retry_ms=9_000)}, "lookup.retry_ms=9000, lookup.retry_ms_max=5000"),
        ({"lookup": LookupSettings(wait_ms_max=4_000)}, "retry_ms_max=5000 and lookup.wait_ms_max=4000 must not fall"),
        ({"threads": 9, "calls_waiting_max": 8}, "calls_waiting_max=8 must not be below threads=9"),
        (
            {"inline_bytes_max": 8 << 20},
            r"inline_bytes_max=8388608 .* above wire.frame_bytes_max=8388608: no receiver takes",
        ),
        (
            {"wire": WireLimits(frame_bytes_max=270_000)},
            r"inline_bytes_max=262144 .* above wire.frame_bytes_max=270000",
        ),
        ({"wire": WireLimits(batch_bytes_max=262_143)}, r"wire.batch_bytes_max=262143 .* inline_bytes_max=262144"),
        ({"wire": WireLimits(text_bytes_max=100)}, "wire.text_bytes_max=100 must be at least 512"),
        ({"wire": WireLimits(bodies_max=0)}, "wire.bodies_max=0 must be at least 1"),
        (
            {"acknowledgement_bytes_max": 65_536},
            "acknowledgement_bytes_max=65536 must be above state_inline_bytes_max=65536",
        ),
        ({"parcels_waiting_max": 10_000}, "parcels_waiting_max=10000 must be above reports_waiting_max=10000"),
        ({"events_waiting_max": 200_000}, "events_waiting_max=200000 must be above parcels_waiting_max=200000"),
    ],
)
def test_bounds_that_contradict_each_other_are_refused_at_the_start(changed: dict[str, Any], said: str) -> None:
    """The message names the settings and their values."""
    with pytest.raises(SettingsError, match=said):
        replace(RuntimeSettings(), **changed).check()


def test_C11_checkpoints_are_held_back_before_a_sink_fails() -> None:  # noqa: N802
    """Said at the start of the coordinator, with both names."""
    with pytest.raises(SettingsError, match=r"commits_waiting_max=8 must be above unreleased_max=8"):
        RuntimeSettings(commits_waiting_max=8).check_commits(8)


def test_C10_a_callback_that_ends_its_process_is_given_up_before_the_processor_is() -> None:  # noqa: N802
    """Said at the start of the coordinator, with both names: the first death only makes the next generation watch."""
    RuntimeSettings(deaths=DeathSettings(deaths_max=3)).check_deaths(5)
    with pytest.raises(SettingsError, match=r"deaths\.deaths_max=4 and one more must be below failures_max=5"):
        RuntimeSettings(deaths=DeathSettings(deaths_max=4)).check_deaths(5)


def test_the_defaults_agree() -> None:
    """Of workers and of the coordinator."""
    RuntimeSettings().check_deaths(CoordinatorSettings().failures_max)
    RuntimeSettings().check()
    RuntimeSettings().check_alignment(CoordinatorSettings().checkpoint_timeout_ms)
    RuntimeSettings().check_commits(CoordinatorSettings().unreleased_max)
    assert Topics().plain()[Topics().reports]["retention.ms"] == "-1"


def test_topics_that_are_read_whole_are_compacted_soon() -> None:
    """A status comes with each commit; brokers compact only segments that are full, and a gigabyte would be read at each question."""
    for topic in (Topics().registry, Topics().connections):
        config = Topics().plain()[topic]
        assert config["cleanup.policy"] == "compact"
        assert int(config["segment.bytes"]) <= 16 << 20
        assert int(config["segment.bytes"]) > WireLimits().message_bytes_max, "no record would fit"
        assert int(config["max.compaction.lag.ms"]) <= 60_000
        assert float(config["min.cleanable.dirty.ratio"]) < 0.5
