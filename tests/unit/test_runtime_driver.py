# ruff: noqa: N802 -- a test carries its rule's name
"""A task's driver keeps the rules that its machine leaves to it: repeats (F2), what is read (F7), zombies (L2), seeks (C4), acks (C7)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.driver_stand import IN, OUT_EDGE, SlowBlobs, Stand, standing
from tidemark.shared.adapters.faults import Fault
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import InputState, TaskProtocolState
from tidemark.shared.model.frames import BarrierFrame
from tidemark.shared.model.ids import TASK_PART, Epoch, Offset, Seq
from tidemark.shared.ports.log import NewRecord, OffsetOutOfRange, TopicPartition
from tidemark.shared.protocol.errors import PeerError
from tidemark.shared.protocol.task.events import CheckpointAborted, ReadUpTo
from tidemark.shared.protocol.task.start import TaskLimits
from tidemark.shared.runtime.driver import ZombieError
from tidemark.shared.runtime.outbox import Outbox, Parcel
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.state import blobs_of, load_parts, with_parts


def on_stand(story: Callable[[Stand], Awaitable[None]], **options: Any) -> None:
    async def main(world: VirtualWorld) -> None:
        async with standing(world, **options) as stand:
            await story(stand)

    run_virtual(main)


# --- F2 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_ANSWER])
@pytest.mark.parametrize("nth", [0, 1, 3])
@pytest.mark.parametrize("apart_ms", [0, 7])
def test_F2_after_an_error_the_same_bytes_are_sent_again_in_order(fault: Fault, nth: int, apart_ms: int) -> None:
    """Whatever send fails, done or not: of each number the log has one content, and none is missing or out of turn."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        stand.faults.plan("send", *[Fault.NONE] * nth, fault)
        for number in range(8):
            await peer.rows(number)
            if apart_ms:
                await stand.world.clock.sleep_ms(apart_ms)
        await peer.barrier(1)
        await stand.until(lambda: bool(stand.acks))
        assert ("send", fault) in stand.faults.drawn
        by_seq: dict[int, set[bytes]] = {}
        first_seen: list[int] = []
        for record, frame in zip(await stand.records(), await stand.sent(), strict=True):
            by_seq.setdefault(frame.header.seq, set()).add(record.value or b"")
            if frame.header.seq not in first_seen:
                first_seen.append(frame.header.seq)
        assert all(len(contents) == 1 for contents in by_seq.values())
        assert first_seen == list(range(len(first_seen)))
        assert await stand.sent_rows() == list(range(8))

    on_stand(story)


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.LOST_ANSWER])
def test_F2_many_unanswered_frames_are_sent_again_in_their_order(fault: Fault) -> None:
    """What was handed over together and not answered comes again before what was queued behind it, each acknowledged once."""

    async def story(stand: Stand) -> None:
        acked: list[int] = []
        outbox = Outbox(
            stand.driver.wiring.log, stand.world.clock, "outbox", lambda p, _: acked.append(p.seq), RuntimeSettings()
        )
        stand.faults.plan("send", fault)
        outbox.open(stand.world.executor, stand.errors.append)
        for number in range(8):
            outbox.send(Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(number), str(number).encode()))
        await stand.until(lambda: bool(stand.faults.drawn))
        outbox.send(Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(8), b"8"))
        await stand.until(lambda: len(acked) == 9)
        await outbox.close()
        written = [int(record.value or b"-1") for record in await stand.records()]
        first = [n for i, n in enumerate(written) if n not in written[:i]]
        assert first == list(range(9))
        assert written[-9:] == list(range(9))
        assert acked == list(range(9))

    on_stand(story)


def test_C8_what_goes_behind_others_waits_until_the_broker_has_them() -> None:
    """An answer goes to another topic than the status that it speaks of, so neither waits for the other by itself."""

    async def story(stand: Stand) -> None:
        acked: list[int] = []
        outbox = Outbox(
            stand.driver.wiring.log, stand.world.clock, "outbox", lambda p, _: acked.append(p.seq), RuntimeSettings()
        )
        stand.faults.plan("send", Fault.LOST_ANSWER)
        for number, behind in enumerate((False, False, True)):
            parcel = Parcel(OUT_EDGE, TopicPartition("out", 0), Seq(number), str(number).encode(), behind=behind)
            outbox.send(parcel)
        outbox.open(stand.world.executor, stand.errors.append)
        await stand.until(lambda: len(acked) == 3)
        await outbox.close()
        written = [record.value for record in await stand.records()]
        assert written.count(b"2") == 1
        assert written[-1] == b"2"
        assert acked == [0, 1, 2]

    on_stand(story)


# --- F5, F6 -------------------------------------------------------------------------------------------------------------


def test_F5_a_frame_that_is_sent_again_at_another_time_has_the_same_rows() -> None:
    """Event time travels in the rows; what the broker stamps on a frame is looked at by nobody."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        for number, stamp in enumerate((0, 9_999_999_999_999, 5)):
            await peer.rows(100 + number, timestamp_ms=stamp)
        await stand.until(lambda: len(stand.body.seen) == 3)
        assert stand.body.seen == [100, 101, 102]

    on_stand(story)


def test_F6_what_cannot_be_read_fails_the_task_by_topic_partition_and_offset() -> None:
    """It is neither skipped nor taken for something else; frames before it count."""

    async def story(stand: Stand) -> None:
        await stand.peer().rows(1)
        await stand.put(b"\xc1 no frame")
        await stand.until(lambda: bool(stand.errors))
        assert isinstance(stand.errors[0], PeerError)
        assert str(stand.errors[0]).startswith("topic in partition 0 offset 1: ")
        assert stand.body.seen == [1]

    on_stand(story)


# --- F7 -----------------------------------------------------------------------------------------------------------------


def test_F7_read_means_taken_from_the_log_not_worked_on() -> None:
    """While the body is busy with the first frame, those behind it count as read, one fetch ahead."""

    async def story(stand: Stand) -> None:
        stand.body.hold("apply")
        peer = stand.peer()
        for number in range(5):
            await peer.rows(number)
        await stand.until(lambda: stand.driver.frames.read_offsets.get(IN, 0) > 1)
        assert stand.body.calls == ["apply"]
        assert stand.body.seen == []
        stand.body.let_go("apply")
        await stand.until(lambda: len(stand.body.seen) == 5)

    on_stand(story)


def test_F7_a_restored_task_tells_where_it_reads_on_before_there_is_anything_to_read() -> None:
    """Its senders restored what was unread as they acknowledged: they would wait for the next frame, which may be their barrier."""
    restored = TaskProtocolState(inputs=(InputState("up>me", "in", Offset(2), ()),))

    async def main(world: VirtualWorld) -> None:
        def there(broker: Any) -> None:
            broker.append(TopicPartition("in", 0), [NewRecord(b"a"), NewRecord(b"b")])

        async with standing(world, senders=0, restored=restored, restored_from=1, before=there) as stand:
            await stand.until(lambda: stand.driver.frames.read_offsets == {IN: 2})
            assert stand.body.calls == []

    run_virtual(main)


def test_F7_a_task_that_is_ahead_of_its_receivers_takes_no_input_until_they_have_read() -> None:
    """More than W unread bytes on the out edge hold it; what the receivers tell lets it go on."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        for number in range(4):
            await peer.rows(number)
        await stand.settle()
        assert stand.body.seen == [0]
        stand.driver.post(_read_up_to(1))
        await stand.settle()
        assert stand.body.seen == [0, 1]

    on_stand(story, limits=TaskLimits(ahead_bytes_max=10))


def _read_up_to(offset: int) -> ReadUpTo:
    return ReadUpTo(OUT_EDGE, 0, Offset(offset))


# --- L2, P1 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["flush", "copy"])
def test_L2_a_zombie_notices_while_its_body_waits_and_writes_nothing_more(call: str) -> None:
    """A frame of a newer generation, read while an epoch is being taken, stops the task before the body has come back."""

    async def story(stand: Stand) -> None:
        stand.body.hold(call)
        peer = stand.peer()
        await peer.rows(1)
        await peer.barrier(1)
        await stand.until(lambda: call in stand.body.calls)
        before = len(await stand.sent())
        newer = stand.peer(generation=3)
        newer.epoch, newer.seq = 2, 2
        await newer.rows(9)
        await stand.until(lambda: bool(stand.errors))
        assert isinstance(stand.errors[0], ZombieError)
        stand.body.let_go(call)
        await stand.settle()
        assert len(await stand.sent()) == before
        assert stand.acks == []

    on_stand(story)


def test_L2_what_waits_to_be_sent_is_not_sent_by_a_zombie() -> None:
    """Frames that the broker had not taken when a newer generation shows are dropped, also once the broker is back."""

    async def story(stand: Stand) -> None:
        stand.faults.plan("send", *[Fault.REFUSED] * 3)
        peer = stand.peer()
        await peer.rows(1)
        await stand.until(lambda: bool(stand.faults.drawn))
        newer = stand.peer(generation=3)
        newer.seq = 1
        await newer.rows(9)
        await stand.until(lambda: bool(stand.errors))
        await stand.settle()
        assert await stand.sent() == []

    on_stand(story)


def test_P1_the_next_epoch_is_read_while_the_step_of_this_one_runs() -> None:
    """Its frames wait in the buffer, they are applied after the barrier has gone out, and none is lost."""

    async def story(stand: Stand) -> None:
        stand.body.hold("flush")
        peer = stand.peer()
        await peer.rows(1)
        await peer.barrier(1)
        await stand.until(lambda: "flush" in stand.body.calls)
        await peer.rows(2)
        await peer.rows(3)
        await stand.until(lambda: len(stand.driver.machine.receiver.partitions[IN].waiting) == 2)
        assert stand.body.seen == [1]
        stand.body.let_go("flush")
        await stand.until(lambda: stand.body.seen == [1, 2, 3])
        frames = await stand.sent()
        barrier = next(i for i, frame in enumerate(frames) if isinstance(frame, BarrierFrame))
        assert [frame.header.epoch for frame in frames[:barrier]] == [1] * barrier
        assert {frame.header.epoch for frame in frames[barrier + 1 :]} == {2}

    on_stand(story)


def test_C5_an_abort_is_heard_while_the_body_waits() -> None:
    """The snapshot that is being taken is finished, its ack is not given, and the task goes on from it."""

    async def story(stand: Stand) -> None:
        stand.body.hold("copy")
        peer = stand.peer()
        await peer.rows(1)
        await peer.barrier(1)
        await stand.until(lambda: "copy" in stand.body.calls)
        stand.driver.post(CheckpointAborted(Epoch(1)))
        await stand.until(lambda: stand.driver.machine.receiver.ended_up_to == 1)
        stand.body.let_go("copy")
        await peer.rows(2)
        await peer.barrier(3)
        await stand.until(lambda: any(epoch == 3 for epoch, _ in stand.acks))
        assert stand.body.seen == [1, 2]

    on_stand(story)


# --- C4, C12 ------------------------------------------------------------------------------------------------------------


def test_C4_what_did_not_fit_is_left_in_the_log_and_read_again() -> None:
    """With room for one frame the fast sender's next epoch is left, the slow one's is applied; afterwards each row counts once."""

    async def story(stand: Stand) -> None:
        fast, slow = stand.peer(0), stand.peer(1)
        await fast.rows(1)
        await fast.barrier(1)
        for number in range(10, 20):
            await fast.rows(number)
        await stand.until(lambda: stand.driver.machine.receiver.partitions[IN].left_behind is not None)
        await slow.rows(2)
        await stand.until(lambda: stand.body.seen == [1, 2])
        await slow.barrier(1)
        await slow.rows(3)
        await stand.until(lambda: len(stand.body.seen) == 13)
        assert stand.body.seen[:2] == [1, 2]
        assert [n for n in stand.body.seen if n >= 10] == list(range(10, 20))
        assert sorted(stand.body.seen) == [1, 2, 3, *range(10, 20)]
        assert stand.errors == []

    on_stand(story, senders=2, limits=TaskLimits(waiting_bytes_max=600))


def test_C4_what_a_fetch_brings_from_before_a_seek_is_dropped() -> None:
    """A fetch is under way when the receiver seeks back: what it then brings lies behind what is read again, and is not read first."""

    async def story(stand: Stand) -> None:
        peer, driver = stand.peer(0), stand.driver
        await peer.rows(1)
        await stand.until(lambda: stand.body.seen == [1])
        await stand.settle()  # a fetch waits
        begin = driver.frames.read_offsets[IN]
        driver.frames.seek(IN, begin)
        await peer.rows(2)
        await peer.rows(3)
        await stand.until(lambda: len(stand.body.seen) == 3)
        await stand.settle()
        assert stand.body.seen == [1, 2, 3]
        assert driver.machine.drops == {}  # each frame came once
        assert stand.errors == []

    on_stand(story)


def test_C12_a_receiver_whose_log_does_not_reach_back_stops() -> None:
    """Records below the restored position were deleted: an error that names position and log, never a start from what is left."""
    restored = TaskProtocolState(inputs=(InputState("up>me", "in", Offset(1), ()),))

    async def main(world: VirtualWorld) -> None:
        def deleted(broker: Any) -> None:
            at = TopicPartition("in", 0)
            broker.append(at, [NewRecord(b"a"), NewRecord(b"b"), NewRecord(b"c")])
            broker.delete_records(at, Offset(2))

        async with standing(world, senders=0, restored=restored, restored_from=1, before=deleted) as stand:
            await stand.until(lambda: bool(stand.errors))
            assert isinstance(stand.errors[0], OffsetOutOfRange)
            assert stand.body.calls == []

    run_virtual(main)


# --- C7 -----------------------------------------------------------------------------------------------------------------


def test_C7_no_ack_before_the_state_is_durable() -> None:
    """The barrier may long be at the broker; and the task goes on with the next epoch meanwhile."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        await peer.rows(1)
        await peer.barrier(1)
        await peer.rows(2)
        await stand.until(lambda: stand.body.seen == [1, 2])
        await stand.settle()
        assert any(isinstance(frame, BarrierFrame) for frame in await stand.sent())
        assert stand.acks == []
        stand.blobs.open.set()
        await stand.until(lambda: bool(stand.acks))
        ((epoch, handle),) = stand.acks
        assert epoch == 1
        assert [part.blob is not None for part in handle.parts] == [True]
        assert handle.blobs == tuple(part.blob for part in handle.parts)
        assert handle.staged == b"staged"

    on_stand(story, wrap_blobs=SlowBlobs, settings=RuntimeSettings(state_inline_bytes_max=1))


def test_C7_C12_a_list_of_many_parts_is_a_blob_that_the_acknowledgement_names() -> None:
    """C7, C12: the handle has the list instead of the parts, and among its blobs both the list and those that the list names."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        await peer.rows(1)
        await peer.barrier(1)
        await stand.until(lambda: bool(stand.acks))
        ((_, handle),) = stand.acks
        assert handle.parts == ()
        assert handle.listed is not None
        (found,) = await with_parts(stand.blobs, [handle])
        assert await load_parts(stand.blobs, [found], lambda _: True) == {TASK_PART: stand.body.state}
        assert {blob.name for blob in handle.blobs} == set(await stand.blobs.list(""))
        assert {*blobs_of(found.parts), handle.listed} == {*handle.blobs}

    on_stand(story, settings=RuntimeSettings(state_inline_bytes_max=1, state_parts_max=0))


def test_C7_no_ack_before_the_broker_has_every_frame_up_to_the_barrier() -> None:
    """The state may long be durable: without the frames a restored generation would miss them."""

    async def story(stand: Stand) -> None:
        peer = stand.peer()
        await peer.rows(1)
        await stand.until(lambda: stand.body.seen == [1])
        stand.faults.plan("send", *[Fault.REFUSED] * 4)
        await peer.barrier(1)
        await stand.until(lambda: stand.faults.drawn.get(("send", Fault.REFUSED), 0) == 3)
        assert stand.acks == []
        await stand.until(lambda: bool(stand.acks))
        assert any(isinstance(frame, BarrierFrame) for frame in await stand.sent())

    on_stand(story)
