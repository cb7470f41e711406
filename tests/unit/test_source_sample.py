"""The sample stream: a record is a function of its position, and its position of the time."""

import json
from typing import Any

import tidemark
from tidemark.services.source.connectors.sample import PERIOD_MS, SPLIT, SampleTimetable, record
from tidemark.services.source.connectors.timed import ROWS_MAX, TimedConnector
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Offset
from tidemark.shared.model.records import RawBatch

START_MS = 1_700_000_000_000
BEGIN = Offset(START_MS // PERIOD_MS)


def positions_of(batches: list[RawBatch]) -> list[int]:
    """The positions that batches hold, in order."""
    return [position for batch in batches for position in batch.positions.tolist()]


async def _read_on(world: VirtualWorld) -> tuple[list[RawBatch], list[RawBatch], bool]:
    """What one task reads in three fetches, and what another reads that begins in the middle; whether that has ended."""
    first, second = TimedConnector(SampleTimetable(), world.clock), TimedConnector(SampleTimetable(), world.clock)
    assert (await first.found([SPLIT], first=True))[SPLIT].begin == BEGIN
    await first.open({SPLIT: BEGIN})
    before = [batch for _ in range(3) for batch in await first.fetch(1 << 20, PERIOD_MS)]
    await second.open({SPLIT: Offset(BEGIN + 1)})
    again = list(await second.fetch(1 << 20, PERIOD_MS))
    return before, again, second.status()[0].finished


def test_what_is_read_again_is_the_same() -> None:
    """A restore from any position gives the records that were there before, each at the time of its position."""
    before, again, finished = run_virtual(_read_on, start_ms=START_MS)
    assert positions_of(before) == [BEGIN, BEGIN + 1, BEGIN + 2]
    values = {p: v for batch in before for p, v in zip(batch.positions.tolist(), batch.values.to_pylist(), strict=True)}
    for batch in again:
        for position, value in zip(batch.positions.tolist(), batch.values.to_pylist(), strict=True):
            assert values[position] == value
    assert positions_of(again)[0] == BEGIN + 1
    assert before[0].timestamps_ms.tolist() == [BEGIN * PERIOD_MS]
    assert not finished


async def _drained(world: VirtualWorld) -> tuple[list[RawBatch], bool]:
    """A source far behind that is drained: where it ends, and whether it then says so."""
    source = TimedConnector(SampleTimetable(), world.clock)
    await source.open({SPLIT: Offset(BEGIN - ROWS_MAX - 5)})
    ends = await source.ends({SPLIT: Offset(BEGIN - ROWS_MAX - 5)})
    source.end_at({split: end for split, end in ends.items() if end is not None})
    batches = [batch for _ in range(4) for batch in await source.fetch(1 << 30, PERIOD_MS)]
    return batches, source.status()[0].finished


def test_a_drain_ends_it_where_it_stands() -> None:
    """A source that was behind reads to the position of the drain, a bounded batch at a time, and is finished."""
    batches, finished = run_virtual(_drained, start_ms=START_MS)
    assert positions_of(batches) == list(range(BEGIN - ROWS_MAX - 5, BEGIN))
    assert max(batch.positions.size for batch in batches) == ROWS_MAX
    assert finished


def test_records_have_the_fields_of_atlas_sample() -> None:
    """Types and bounds of the fields."""
    for position in range(BEGIN, BEGIN + 200):
        found: dict[str, Any] = record(position)
        assert list(found) == ["device_id", "group_id", "timestamp", "max_watts", "event_type", "obs"]
        assert 0 <= found["obs"]["watts"] <= found["max_watts"]
        assert json.dumps(found)


def test_it_can_be_tried_out() -> None:
    """A minute of it, through the whole system."""
    document = {
        "pipeline": [
            {"$source": {"connectionName": "sample_stream_solar", "timeField": {"$toDate": "$timestamp"}}},
            {
                "$tumblingWindow": {
                    "interval": {"size": 10, "unit": "second"},
                    "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}],
                }
            },
        ]
    }
    assert sum(found["n"] for found in tidemark.try_out(document).documents) == 600
