"""What a topic holds is read whole, also from a broker that has just been started."""

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest

from tidemark.services.audit import reading
from tidemark.services.audit.reading import HeldRecords, TooMuchHeld, committed_records
from tidemark.services.audit.settings import AuditSettings, audit_settings
from tidemark.services.cli.process import Runner, run_case
from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogUnavailable, NewRecord, TopicPartition
from tidemark.shared.process.settings import ProcessSettingsError
from tidemark.shared.runtime.reading import newest


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
    monkeypatch.setattr(reading, "_FETCH_RECORDS", 3)
    faults = Faults()
    faults.plan("offsets", Fault.REFUSED, Fault.NONE, Fault.REFUSED)
    faults.plan("fetch", *[Fault.NONE, Fault.REFUSED] * 10)

    async def main(world: VirtualWorld) -> list[int]:
        log = await _filled(world, faults)
        return [int(record.value or b"") async for record in committed_records(log, "out")]

    assert run_virtual(main) == [*range(0, 20, 2), *range(1, 20, 2)]
    assert faults.drawn["offsets", Fault.REFUSED] == 2
    assert faults.drawn["fetch", Fault.REFUSED] > 2


@dataclass(frozen=True)
class Spied:
    """A log, or a reader of it, that notes how long its fetches may wait, ms."""

    inner: Any
    waits_ms: list[int]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def reader(self, **how: Any) -> "Spied":
        return Spied(await self.inner.reader(**how), self.waits_ms)

    async def fetch(self, max_records: int, timeout_ms: int) -> Any:
        self.waits_ms.append(timeout_ms)
        return await self.inner.fetch(max_records, timeout_ms)


def test_what_ends_in_a_marker_is_not_waited_for_long() -> None:
    """A transaction's marker brings no record, so a fetch of it waits its time: half a second for each of a thousand partitions, before."""

    async def main(world: VirtualWorld) -> list[int]:
        log: Any = Spied(await _filled(world, Faults()), [])
        assert len([record async for record in committed_records(log, "out")]) == 20
        assert len(await newest(log, "out", 5)) == 5
        assert log.waits_ms
        return cast("list[int]", log.waits_ms)

    assert max(run_virtual(main)) <= 50


def test_an_outage_that_lasts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked is not kept waiting for ever: as long as the setting says, asking again in between."""
    monkeypatch.setenv("TIDEMARK_AUDIT", '{"outage_ms_max": 900}')

    async def main(world: VirtualWorld) -> int:
        faults = Faults()
        log = await _filled(world, faults)
        faults.plan("fetch", *[Fault.REFUSED] * 1_000)
        began_ms = world.clock.monotonic_ms()
        with pytest.raises(LogUnavailable):
            async for _ in committed_records(log, "out"):
                pass
        return world.clock.monotonic_ms() - began_ms

    assert 900 <= run_virtual(main) < 1_800


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"held_bytes": 1}', r"TIDEMARK_AUDIT\.held_bytes: no such setting; did you mean held_bytes_max"),
        ('{"outage_ms_max": 0}', "TIDEMARK_AUDIT: setting outage_ms_max: expected a positive number, found 0"),
        ("[]", "TIDEMARK_AUDIT: expected a JSON object"),
    ],
)
def test_wrong_settings_of_commands_are_refused(given: str, said: str) -> None:
    """The message names the setting, what is expected and what was found; without any, all have defaults."""
    assert audit_settings({}) == AuditSettings()
    with pytest.raises(ProcessSettingsError, match=said):
        audit_settings({"TIDEMARK_AUDIT": given})


def test_what_a_command_holds_of_a_topic_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many records as fit are there; one too many ends the command with topic, place, setting and sizes."""

    async def main(world: VirtualWorld) -> list[int]:
        log = await _filled(world, Faults())
        held, found = HeldRecords("topic out"), committed_records(log, "out", 0, Offset(2), Offset(5))
        return [int(held.take(record).value or b"") async for record in found]

    size = sum(512 + len(str(number)) for number in (4, 6, 8))
    monkeypatch.setenv("TIDEMARK_AUDIT", json.dumps({"held_bytes_max": size}))
    assert run_virtual(main) == [4, 6, 8]
    monkeypatch.setenv("TIDEMARK_AUDIT", json.dumps({"held_bytes_max": size - 1}))
    with pytest.raises(
        TooMuchHeld, match=f"topic out: .* offset 4 of partition 0 they take {size} bytes; held_bytes_max"
    ):
        run_virtual(main)


def test_what_a_try_out_collects_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three documents where three are allowed; where two are, the try-out fails and names the setting."""
    case = {"id": "x", "pipeline": [{"$source": {"documents": [{"a": 1}, {"a": 2}, {"a": 3}]}}]}
    for most, fits in ((3, True), (2, False)):
        monkeypatch.setenv("TIDEMARK_CLI", json.dumps({"collected_rows_max": most}))
        error = run_case(Runner("local"), case)["error"]
        assert (error is None) if fits else ("collected_rows_max" in error)
