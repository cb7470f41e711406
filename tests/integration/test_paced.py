# ruff: noqa: N802 -- a test carries its rule's name
"""F9 in a whole installation on virtual time: a backlog in front of a sink that takes a millisecond a row, wherever it spends it."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import installed, released
from tidemark.services.sink.connectors.files import FileSink
from tidemark.services.source.body import SourceTaskBody
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.messages import AbortCheckpoint, StartCheckpoint
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_command

ROWS = 60_000
TARGET_MS = 5_000
TIMEOUT_MS = 20_000


class Slow:
    """Takes a millisecond of virtual time for each row, in one of its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Any, where: str) -> None:
        self.rows: dict[int, int] = {}
        """By epoch."""
        self.waiting = 0
        accept, stage, release = FileSink.accept, FileSink.stage, FileSink.release

        async def slow_accept(sink: FileSink, batch: Any) -> Any:
            self.waiting += batch.num_rows
            await clock.sleep_ms(batch.num_rows * (where == "accept"))
            return await accept(sink, batch)

        async def slow_stage(sink: FileSink, epoch: Any, committed: Any) -> Any:
            self.rows[epoch], self.waiting = self.waiting, 0
            await clock.sleep_ms(self.rows[epoch] * (where == "stage"))
            return await stage(sink, epoch, committed)

        async def slow_release(sink: FileSink, row: Any, staged: Any) -> None:
            await clock.sleep_ms(self.rows[row.epoch] * (where == "release"))
            await release(sink, row, staged)

        for name, call in (("accept", slow_accept), ("stage", slow_stage), ("release", slow_release)):
            monkeypatch.setattr(FileSink, name, call)


def _slow_source(monkeypatch: pytest.MonkeyPatch, clock: Any, row_ms: int, taken: list[int]) -> None:
    take = SourceTaskBody.take

    async def slow_take(body: SourceTaskBody, fetched: Any, now_ms: int, monotonic_ms: int) -> Any:
        taken.append(fetched.rows)
        await clock.sleep_ms(fetched.rows * row_ms)
        return await take(body, fetched, now_ms, monotonic_ms)

    monkeypatch.setattr(SourceTaskBody, "take", slow_take)


@pytest.mark.parametrize("row_ms", [0, 1, 30, 400, 4_000])
def test_F9_a_barrier_waits_for_a_piece_of_the_sources_own_work_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_ms: int
) -> None:
    """An expression that goes through a long array takes up to seconds a row, and all rows are there at once: checkpoints go on."""
    rows = 40_000 if row_ms <= 1 else 120_000 // row_ms
    records = (json.dumps({"n": n, "t": 1_700_000_000_000 + n}) for n in range(rows))
    (tmp_path / "in.json").write_text("".join(f"{record}\n" for record in records))
    source = {"path": str(tmp_path / "in.json"), "format": "json", "timeField": {"$toDate": {"$toLong": "$t"}}}
    pipeline = [{"$source": source}, {"$emit": {"path": str(tmp_path / "out"), "format": "json"}}]

    async def main(world: VirtualWorld) -> tuple[list[int], list[Any], int]:
        taken: list[int] = []
        _slow_source(monkeypatch, world.clock, row_ms, taken)
        async with installed(world.clock, world.executor) as there:
            await there.create({"pipeline": pipeline})
            await there.start()
            began_ms = there.clock.monotonic_ms()
            await there.when(lambda status: status.state == "FINISHED")
            took_ms = there.clock.monotonic_ms() - began_ms
            commands = [decode_command(r.value or b"") for r in there.broker.dump(Topics().commands)[0]]
        return [each for each in taken if each], commands, took_ms

    taken, commands, took_ms = run_virtual(main)
    assert not [c for c in commands if isinstance(c, AbortCheckpoint)], taken
    assert Counter(row["n"] for row in released(tmp_path / "out")) == Counter(range(rows))
    assert max(taken[1:]) * row_ms <= 4_000, taken
    assert took_ms <= 1.2 * rows * row_ms + 10_000
    assert row_ms or max(taken) > 1_000, "rows that cost nothing come together"


@pytest.mark.parametrize("where", ["accept", "stage", "release"])
def test_F9_epochs_before_a_slow_sink_are_cut_to_what_it_works_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A minute's work lies there at the start: no checkpoint is aborted, epochs become as small as the target asks, no row is lost."""
    records = (json.dumps({"n": n, "t": 1_700_000_000_000 + n}) for n in range(ROWS))
    (tmp_path / "in.json").write_text("".join(f"{record}\n" for record in records))
    pipeline = [
        {"$source": {"path": str(tmp_path / "in.json"), "format": "json", "timeField": {"$toDate": {"$toLong": "$t"}}}},
        {"$project": {"n": 1}},
        {"$emit": {"path": str(tmp_path / "out"), "format": "json"}},
    ]
    document = {"pipeline": pipeline, "options": {"checkpoint": {"interval": {"size": 1_000, "unit": "ms"}}}}

    async def main(world: VirtualWorld) -> tuple[list[int], list[Any], int]:
        slow = Slow(monkeypatch, world.clock, where)
        settings = CoordinatorSettings(adopt_wait_ms=100, checkpoint_timeout_ms=TIMEOUT_MS)
        async with installed(world.clock, world.executor, coordinator=settings) as there:
            await there.create(document)
            await there.start()
            began_ms = there.clock.monotonic_ms()
            await there.when(lambda status: status.state == "FINISHED")
            took_ms = there.clock.monotonic_ms() - began_ms
            commands = [decode_command(r.value or b"") for r in there.broker.dump(Topics().commands)[0]]
        return list(slow.rows.values()), commands, took_ms

    rows, commands, took_ms = run_virtual(main)
    assert not [c for c in commands if isinstance(c, AbortCheckpoint)], rows
    assert Counter(row["n"] for row in released(tmp_path / "out")) == Counter(range(ROWS))
    assert sum(rows) == ROWS
    assert max(rows[4:]) <= 1.5 * TARGET_MS, rows
    assert took_ms <= 1.3 * ROWS, "what follows had work all the time"
    assert any(c.took_ms > 0 for c in commands if isinstance(c, StartCheckpoint))
