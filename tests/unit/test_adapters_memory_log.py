# ruff: noqa: N802 -- a test carries its rule's name
"""The log in memory with faults: what it loses and repeats is what a real log may lose, and a seed repeats it."""

import asyncio
import contextlib

import pytest

from tidemark.shared.adapters.faults import Fault, FaultRates, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import Fenced, LogError, LogUnavailable, NewRecord, TopicPartition

ROUGH = FaultRates(refused=0.02, lost_answer=0.05, turns_max=4, slow=0.2, slow_ms_max=30)
LANES = [TopicPartition("t", 0), TopicPartition("t", 1)]


def _write_under_faults(seed: int) -> tuple[list[list[bytes | None]], list[list[bytes]]]:
    """What the log holds by lane, and what was acknowledged by lane, of 40 records handed to each of two lanes."""

    async def main(world: VirtualWorld) -> tuple[list[list[bytes | None]], list[list[bytes]]]:
        broker = MemoryBroker(world.clock)
        broker.create_topic("t", 2)
        log = MemoryLog(broker, Faults(world.chooser, ROUGH), buffer_records_max=10)
        writer = await log.writer("w")
        results = []
        # A fault may break the writer at any record; how it breaks is what the test looks at.
        with contextlib.suppress(LogUnavailable):
            for number in range(80):
                value = b"%d" % number
                results.append((number, value, await writer.send(LANES[number % 2], NewRecord(value))))
                await asyncio.sleep(0)
        acknowledged: list[list[bytes]] = [[], []]
        for number, value, result in results:
            try:
                await result
            except LogUnavailable:
                continue
            acknowledged[number % 2].append(value)
        await writer.close()
        dump = broker.dump("t")
        return [[r.value for r in dump[lane]] for lane in (0, 1)], acknowledged

    return run_virtual(main, seed=seed)


def test_a_broken_writer_leaves_a_prefix_of_each_lane() -> None:
    """Whatever breaks, each lane holds a gapless prefix of what was handed over, with all that was acknowledged."""
    lost = ambiguous = 0
    for seed in range(60):
        held, acknowledged = _write_under_faults(seed)
        for lane in (0, 1):
            handed = [b"%d" % number for number in range(lane, 80, 2)]
            assert held[lane] == handed[: len(held[lane])]
            assert acknowledged[lane] == handed[: len(acknowledged[lane])]
            assert len(held[lane]) >= len(acknowledged[lane])
            lost += len(held[lane]) < 40
            ambiguous += len(held[lane]) > len(acknowledged[lane])
    assert lost > 10
    assert ambiguous > 10, "faults must leave records that are there but were not acknowledged"


def test_a_seed_repeats_its_faults() -> None:
    """The same seed loses the same records; seeds differ."""
    runs = [_write_under_faults(seed) for seed in range(10)]
    assert runs == [_write_under_faults(seed) for seed in range(10)]
    assert len({str(run) for run in runs}) > 5


def _commit_with_lost_answer(seed: int, *, fence: bool) -> list[bytes | None]:
    async def main(world: VirtualWorld) -> list[bytes | None]:
        broker = MemoryBroker(world.clock)
        broker.create_topic("t", 2)
        rates = FaultRates(turns_max=4, slow=0.5, slow_ms_max=100)
        faults = Faults(world.chooser, rates)
        log = MemoryLog(broker, faults)
        writer = await log.transactional_writer("id")
        transaction = await writer.begin()
        await transaction.send_batch(LANES[0], [NewRecord(b"a"), NewRecord(b"b")])
        faults.plan("commit", Fault.LOST_ANSWER)
        with pytest.raises(LogUnavailable, match="markers"):
            await transaction.commit()
        with pytest.raises(LogUnavailable):
            await writer.begin()
        if fence:
            await log.transactional_writer("id")
            before = broker.dump("t")[0]
            await world.clock.sleep_ms(1_000)
            assert broker.dump("t")[0] == before
        await world.clock.sleep_ms(1_000)
        return [record.value for record in broker.dump("t")[0]]

    return run_virtual(main, seed=seed)


def test_S3_a_lost_commit_answer_is_all_or_nothing() -> None:
    """After a lost answer the transaction is there wholly or not at all, and a fence settles which (S3)."""
    fenced = {tuple(_commit_with_lost_answer(seed, fence=True)) for seed in range(40)}
    assert fenced == {(), (b"a", b"b")}
    alone = {tuple(_commit_with_lost_answer(seed, fence=False)) for seed in range(40)}
    assert alone == {(b"a", b"b")}, "without a fence a commit that is still on its way arrives"


def test_an_abandoned_transaction_ends_by_itself() -> None:
    """A transaction that nobody ends blocks committed readers only until its time-out; its writer is fenced."""

    async def main(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock, transaction_timeout_ms=5_000)
        broker.create_topic("t", 2)
        log = MemoryLog(broker)
        transaction = await (await log.transactional_writer("id")).begin()
        await transaction.send_batch(LANES[0], [NewRecord(b"left")])
        await (await (await log.writer("w")).send(LANES[0], NewRecord(b"plain")))
        reader = await log.reader(committed_only=True)
        await reader.assign({LANES[0]: Offset(0)})
        assert await reader.fetch(10, 4_000) == []
        assert [r.value for r in await reader.fetch(10, 2_000)] == [b"plain"]
        with pytest.raises(Fenced):
            await transaction.commit()

    run_virtual(main)


def test_an_outage_refuses_everything_and_passes() -> None:
    """While the log is away every operation raises LogUnavailable; afterwards the same objects (but writers) go on."""

    async def main(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock)
        faults = Faults(world.chooser)
        log = MemoryLog(broker, faults)
        await log.create_topic("t", 2)
        reader, writer = await log.reader(), await log.writer("w")
        await reader.assign({LANES[0]: Offset(0)})
        faults.away = True
        with pytest.raises(LogUnavailable):
            await reader.fetch(1, 10)
        with pytest.raises(LogUnavailable):
            await log.list_topics()
        with pytest.raises(LogUnavailable):
            await (await writer.send(LANES[0], NewRecord(b"x")))
        with pytest.raises(LogUnavailable):
            await log.transactional_writer("id")
        faults.calm()
        with pytest.raises(LogUnavailable):
            _ = await writer.send(LANES[0], NewRecord(b"x"))
        assert await log.end_offsets(LANES) == {LANES[0]: 0, LANES[1]: 0}
        await (await (await log.writer("w")).send(LANES[0], NewRecord(b"y")))
        assert [r.value for r in await reader.fetch(1, 10)] == [b"y"]

    run_virtual(main)


def test_the_log_in_memory_is_bounded() -> None:
    """Beyond its capacity the log refuses, naming the setting; deleting records makes room again."""

    async def main(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock, capacity_bytes=100, record_bytes_max=80)
        log = MemoryLog(broker)
        await log.create_topic("t", 2)
        await (await (await log.writer("w")).send(LANES[0], NewRecord(bytes(80))))
        with pytest.raises(LogUnavailable, match="capacity_bytes"):
            await (await (await log.writer("w")).send(LANES[0], NewRecord(bytes(30))))
        with pytest.raises(LogError, match="80"):
            _ = await (await log.writer("w")).send(LANES[0], NewRecord(bytes(81)))
        await log.delete_records({LANES[0]: Offset(1)})
        await (await (await log.writer("w")).send(LANES[0], NewRecord(bytes(30))))

    run_virtual(main)


def test_a_full_buffer_makes_send_wait() -> None:
    """`send` waits while the buffer is full, and goes on in the order of the calls."""

    async def main(world: VirtualWorld) -> None:
        broker = MemoryBroker(world.clock)
        log = MemoryLog(broker, Faults(world.chooser, FaultRates(slow=1, slow_ms_max=50)), buffer_records_max=2)
        await log.create_topic("t", 2)
        writer = await log.writer("w")

        async def hand_over(number: int) -> None:
            _ = await writer.send(LANES[0], NewRecord(b"%d" % number))

        started = world.clock.monotonic_ms()
        await asyncio.gather(*(hand_over(number) for number in range(12)))
        assert world.clock.monotonic_ms() > started
        await writer.flush()
        assert [r.value for r in broker.dump("t")[0]] == [b"%d" % number for number in range(12)]

    run_virtual(main, seed=3)
