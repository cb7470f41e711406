# ruff: noqa: N802 -- a test carries its rule's name
"""Quotas of bytes (E4) in a whole installation, on virtual time: real sources of files, and of topics in memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import Installed, installed, released
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import ProcessorName
from tidemark.shared.model.messages import Heartbeat, ShareBytes, StartCheckpoint, StopTasks, TaskBeat
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings, Quota
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_command, decode_report

RECORD = 100
"""Bytes of a record, its line's end apart."""
NAMES = ("a.one", "a.two", "b.one")


def document(folder: Path, name: str, records: int) -> dict[str, Any]:
    """Of a processor that copies a file; its records are of `RECORD` bytes each."""
    lines = (json.dumps({"n": n, "t": 1_700_000_000_000 + n}).ljust(RECORD) for n in range(records))
    (folder / f"{name}.json").write_text("".join(f"{line}\n" for line in lines))
    source = {"path": str(folder / f"{name}.json"), "format": "json", "timeField": {"$toDate": {"$toLong": "$t"}}}
    pipeline = [
        {"$source": source},
        {"$project": {"n": 1}},
        {"$emit": {"path": str(folder / f"out-{name}"), "format": "json"}},
    ]
    return {"pipeline": pipeline, "options": {"checkpoint": {"interval": {"size": 1_000, "unit": "ms"}}}}


def beats(there: Installed) -> list[tuple[int, TaskBeat]]:
    """What sources said in all heartbeats, with the time when they did."""
    records = there.broker.dump(Topics().reports)[0]
    said = [(r.timestamp_ms, decode_report(r.value or b"")) for r in records]
    return [
        (at, beat) for at, r in said if isinstance(r, Heartbeat) for beat in r.tasks if beat.vertex.startswith("source")
    ]


def commands(there: Installed, kind: Any) -> list[Any]:
    """All of a kind that the coordinator has given."""
    records = there.broker.dump(Topics().commands)[0]
    return [found for r in records if isinstance(found := decode_command(r.value or b""), kind)]


@pytest.mark.parametrize("records", [3_000])
def test_E4_a_namespace_takes_its_bytes_and_loses_no_record(tmp_path: Path, records: int) -> None:
    """Two processors of one namespace share its quota, and one of another does not wait; all records come out, checkpoints go on."""
    most = 20_000

    async def main(world: VirtualWorld) -> tuple[list[tuple[int, TaskBeat]], list[Any], list[Any]]:
        settings = CoordinatorSettings(adopt_wait_ms=100, quotas=(Quota("a", bytes_per_s=most),))
        async with installed(world.clock, world.executor, coordinator=settings) as there:
            for name in NAMES:
                await there.create(document(tmp_path, name, records), ProcessorName(name))
            for name in NAMES:
                await there.start(ProcessorName(name))
            for name in NAMES:
                await there.when(lambda status: status.state == "FINISHED", ProcessorName(name))
            return beats(there), commands(there, ShareBytes), commands(there, StartCheckpoint)

    said, shares, checkpoints = run_virtual(main)
    for name in NAMES:
        assert sorted(row["n"] for row in released(tmp_path / f"out-{name}")) == list(range(records)), name
    taken = {name: [(at, b.counters.get("inBytes", 0)) for at, b in said if b.name == name] for name in NAMES}
    begin = min(at for at, _ in said)
    total = {name: max(size for _, size in taken[name]) for name in NAMES}
    for at, _ in said:
        so_far = sum(max((size for when, size in taken[name] if when <= at), default=0) for name in NAMES[:2])
        assert so_far <= most * (at - begin + 2_000) / 1_000 + 2 * RECORD
    whole_ms = {name: next(at for at, size in taken[name] if size == total[name]) - begin for name in NAMES}
    assert whole_ms["b.one"] < 3_000
    least_ms = 1_000 * (total["a.one"] + total["a.two"]) / most
    assert least_ms - 2_000 <= max(whole_ms["a.one"], whole_ms["a.two"]) <= 1.5 * least_ms + 5_000
    assert {share.job for share in shares} == {b.job for _, b in said if b.name != "b.one"}
    assert len(checkpoints) > least_ms / 2_000
    held = [b for _, b in said if "quota" in b.details.get("watermark", "")]
    assert {b.name for b in held} == {"a.one", "a.two"}
    assert max(b.counters["quotaMs"] for b in held) > least_ms / 2


def test_E4_shares_never_exceed_the_quota_and_follow_what_is_taken(tmp_path: Path) -> None:
    """Of all shares that count at any time the sum is within the quota; a source that has ended leaves its share to the other."""
    most, jobs = 20_000, {"a.one": 6_000, "a.two": 500}

    async def main(world: VirtualWorld) -> list[Any]:
        settings = CoordinatorSettings(adopt_wait_ms=100, quotas=(Quota("*", bytes_per_s=most),))
        async with installed(world.clock, world.executor, coordinator=settings) as there:
            for name, records in jobs.items():
                await there.create(document(tmp_path, name, records), ProcessorName(name))
                await there.start(ProcessorName(name))
            await there.when(lambda status: status.state == "FINISHED", ProcessorName("a.two"))
            await there.when(lambda status: status.state == "FINISHED", ProcessorName("a.one"))
            return commands(there, ShareBytes | StopTasks)

    told = run_virtual(main)
    now: dict[Any, int] = {}
    for command in told:
        if isinstance(command, StopTasks):
            now.pop(command.job, None)
            continue
        now[command.job] = sum(size for _, _, size in command.shares)
        assert sum(now.values()) <= most + len(jobs)
    first = told[0].job
    assert (
        max(size for c in told if isinstance(c, ShareBytes) and c.job == first for _, _, size in c.shares) > most * 0.7
    )
    for name, records in jobs.items():
        assert len(released(tmp_path / f"out-{name}")) == records


def test_E4_a_stop_and_a_new_start_do_not_wait_for_the_quota(tmp_path: Path) -> None:
    """A processor that could not read its input for an hour stops at a checkpoint at once, and goes on where it stood."""

    async def main(world: VirtualWorld) -> int:
        settings = CoordinatorSettings(adopt_wait_ms=100, quotas=(Quota("a", bytes_per_s=1_024),))
        name = ProcessorName("a.one")
        async with installed(world.clock, world.executor, coordinator=settings) as there:
            await there.create(document(tmp_path, name, 400), name)
            await there.start(name)
            await there.committed(5, name)
            began_ms = world.clock.monotonic_ms()
            await there.stop(name)
            took_ms = world.clock.monotonic_ms() - began_ms
            assert len(released(tmp_path / f"out-{name}")) < 400
            await there.start(name)
            await there.when(lambda status: status.state == "FINISHED", name)
            return took_ms

    assert run_virtual(main) < 10_000
    assert sorted(row["n"] for row in released(tmp_path / "out-a.one")) == list(range(400))
