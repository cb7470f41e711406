# ruff: noqa: N802 -- a test carries its rule's name
"""Receivers tell senders how far they have read (F7): much of it at once, little of it now and then, and all of it after an outage."""

from typing import Any

import pytest

from tests.harness.driver_stand import rows
from tests.harness.worker_stand import JOB, WorkerStand, at_work
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.frames import DataFrame, Header, Inline
from tidemark.shared.model.ids import (
    EdgeId,
    Epoch,
    Generation,
    Incarnation,
    Offset,
    Seq,
    TaskId,
    VertexId,
)
from tidemark.shared.model.messages import (
    ReadPosition,
    ReadPositions,
    TaskRestored,
)
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.ports.log import NewRecord, TopicPartition
from tidemark.shared.protocol.task.events import ReadUpTo
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.settings import RuntimeSettings, SettingsError
from tidemark.shared.runtime.worker import ToldPosition
from tidemark.shared.wire.arrow import encode_batch
from tidemark.shared.wire.frames import encode_frame


def test_F7_what_receivers_told_during_an_outage_is_heard_after_it() -> None:
    """They tell each position once: a sender that missed it would wait for ever."""

    async def story(stand: WorkerStand) -> None:
        heard: list[Any] = []
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        (hosted,) = stand.worker._tasks.values()
        assert hosted.driver is not None
        edge = next(iter(hosted.driver.wiring.outputs.values()))
        hosted.driver.post = heard.append  # type: ignore[method-assign,assignment]
        await stand.flow(ReadPositions((ReadPosition(edge.incarnation, 0, Offset(7)),)))
        await stand.until(lambda: bool(_positions(heard)))
        stand.faults.away = True
        await stand.settle()
        await stand.flow(
            ReadPositions(
                (ReadPosition(Incarnation("another"), 0, Offset(9)), ReadPosition(edge.incarnation, 0, Offset(8)))
            )
        )
        await stand.settle()
        stand.faults.away = False
        await stand.until(lambda: len(_positions(heard)) == 2)
        assert _positions(heard) == [(edge.edge, 0, 7), (edge.edge, 0, 8)]

    at_work(story)


def _positions(heard: list[Any]) -> list[tuple[EdgeId, int, int]]:
    return [(e.edge, e.partition, e.offset) for e in heard if isinstance(e, ReadUpTo)]


def test_F7_what_may_be_ahead_is_worked_off_within_a_checkpoints_time_out() -> None:
    """W, the least rate at which tasks work, and the time-out contradict each other: said at the start, with the names of all three."""
    settings = RuntimeSettings(limits=TaskLimits(ahead_bytes_max=100 << 20), work_bytes_per_s_min=1 << 20)
    settings.check_alignment(checkpoint_timeout_ms=300_000)
    with pytest.raises(SettingsError, match=r"ahead_bytes_max=104857600 .* 100000 ms .* checkpoint_timeout_ms=60000"):
        settings.check_alignment(checkpoint_timeout_ms=60_000)


@pytest.mark.parametrize(
    ("now", "much", "outdated"),
    [
        (ToldPosition(Offset(5), None, 50), True, False),
        (ToldPosition(Offset(6), None, 50), False, False),
        (ToldPosition(Offset(6), None, 50), True, True),
        (ToldPosition(Offset(6), None, 1_000), False, True),
        (ToldPosition(Offset(5), None, 1_000), False, False),
        (ToldPosition(Offset(5), 7, 50), False, True),
    ],
)
def test_F7_what_was_read_is_told_when_it_is_much_or_long_untold(now: ToldPosition, much: bool, outdated: bool) -> None:
    """Of little, senders hear within `flow_silence_ms_max`; with the next look, that a receiver is full or no longer full."""
    assert ToldPosition(Offset(5), None, 0).is_outdated(now, RuntimeSettings(), much=much) is outdated


def test_F7_an_eighth_of_w_is_told_as_soon_as_it_is_read() -> None:
    """Told at an interval alone, a sender would send no more than W in each, however fast its readers are."""
    settings = RuntimeSettings(
        collects=True, engine="local", flow_interval_ms=60_000, limits=TaskLimits(ahead_bytes_max=800_000)
    )
    batch = rows(*range(2_000))
    body = Inline("rows", batch.num_rows, encode_batch(batch))

    async def story(stand: WorkerStand) -> None:
        await stand.tell(stand.assign(1))
        await stand.said(TaskRestored)
        (edge,) = (edge for edge in stand.plan.edges if edge.edge == "source-1>collect-1")
        writer = await MemoryLog(stand.broker).writer("source")
        for seq in range(400_000 // len(body.ipc)):
            header = Header(
                JOB, edge.incarnation, Generation(1), TaskId(VertexId("source-1"), 0), Seq(seq), Epoch(1), MIN_TIME
            )
            record = NewRecord(encode_frame(DataFrame(header, (body,))))
            await (await writer.send(TopicPartition(edge.topic, 0), record))
        await writer.close()
        await stand.settle()
        told = await stand.positions(edge.incarnation)
        assert len(told) >= 3
        assert told[-1] * len(body.ipc) > 3 * settings.limits.ahead_bytes_max // 8

    at_work(story, settings=settings)
