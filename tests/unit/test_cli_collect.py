"""What a topic holds is read whole, also from a broker that has just been started."""

import pytest

from services.cli.collect import OUTAGE_MS_MAX, committed_records
from shared.adapters.faults import Fault, Faults
from shared.adapters.memory_broker import MemoryBroker
from shared.adapters.memory_log import MemoryLog
from shared.adapters.virtual import VirtualWorld, run_virtual
from shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from shared.runtime import reading


async def _filled(world: VirtualWorld, faults: Faults) -> MemoryLog:
    broker = MemoryBroker(world.clock)
    log = MemoryLog(broker)
    await log.create_topic("out", 2)
    writer = await log.writer("test")
    for number in range(20):
        await (await writer.send(TopicPartition("out", number % 2), NewRecord(str(number).encode())))
    await writer.close()
    return MemoryLog(broker, faults)


def test_a_partition_without_a_leader_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is missing or repeated, wherever the outage comes: before the first record, between two, while offsets are asked for."""
    monkeypatch.setattr(reading, "_WHOLE_RECORDS_MAX", 3)
    faults = Faults()
    faults.plan("offsets", Fault.REFUSED, Fault.NONE, Fault.REFUSED)
    faults.plan("fetch", *[Fault.NONE, Fault.REFUSED] * 10)

    async def main(world: VirtualWorld) -> list[int]:
        log = await _filled(world, faults)
        return [int(record.value or b"") async for record in committed_records(log, "out")]

    assert run_virtual(main) == [*range(0, 20, 2), *range(1, 20, 2)]
    assert faults.drawn["offsets", Fault.REFUSED] == 2
    assert faults.drawn["fetch", Fault.REFUSED] > 2


def test_an_outage_that_lasts_is_told() -> None:
    """Who asked is not kept waiting for ever."""

    async def main(world: VirtualWorld) -> int:
        faults = Faults()
        log = await _filled(world, faults)
        faults.plan("fetch", *[Fault.REFUSED] * 1_000)
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(LogUnavailable):
            async for _ in committed_records(log, "out"):
                pass
        return world.clock.monotonic_ms() - began_ms

    assert OUTAGE_MS_MAX <= run_virtual(main) < 2 * OUTAGE_MS_MAX
