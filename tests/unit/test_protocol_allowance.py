# ruff: noqa: N802 -- a test carries its rule's name
"""Quotas of bytes (E4): the bucket of a source, and how a quota is divided."""

import random

import numpy as np
import pyarrow as pa
import pytest

from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.protocol.coordinator.shares import divided
from tidemark.shared.protocol.source.allowance import Allowance
from tidemark.shared.runtime.body import Fetched


def taken_by(
    allowance: Allowance, rows: list[int], until_ms: int, rng: random.Random, shares: dict[int, int]
) -> list[tuple[int, int]]:
    """What a source takes of rows of these bytes, as its driver asks: (time, bytes). shares: told at these times."""
    now_ms, found, at = 0, [], 0
    while now_ms < until_ms and at < len(rows):
        for told_ms in [t for t in shares if t <= now_ms]:
            allowance.told(shares.pop(told_ms), now_ms)
        if wait_ms := allowance.wait_ms(now_ms):
            now_ms += min(wait_ms, rng.randint(1, 1_000))
            continue
        fetched = rows[at : at + rng.randint(1, 200)]
        room, count = allowance.room_bytes, len(fetched)
        if room is not None:
            count = max(1, sum(sum(fetched[: n + 1]) <= room for n in range(len(fetched))))
        allowance.took(sum(fetched[:count]), now_ms)
        allowance.validate("source/0")
        found.append((now_ms, sum(fetched[:count])))
        at += count
        now_ms += rng.randint(0, 30)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_E4_over_any_span_a_source_takes_its_share_and_a_second_more(seed: int) -> None:
    """Whatever the rows, fetches and pauses: no span holds more, all rows come through, and a busy source loses little of its share."""
    rng = random.Random(seed)
    share = rng.choice([1_024, 10_000, 1_000_000])
    largest = rng.choice([10, 1_000, 50_000])
    rows = [rng.randint(1, largest) for _ in range(2_000)]
    enough_ms = 1_000 * sum(rows) // share + 120_000
    allowance = Allowance()
    allowance.told(share, 0)
    took = taken_by(allowance, rows, enough_ms, rng, {})
    assert sum(size for _, size in took) == sum(rows), "every row comes through"
    for first in range(0, len(took), max(1, len(took) // 50)):
        total = 0
        for at_ms, size in took[first:]:
            total += size
            assert total <= share * (at_ms - took[first][0] + 1_000) / 1_000 + largest


def test_E4_a_row_larger_than_the_bucket_is_paid_back() -> None:
    """It is taken, and the next waits for as long as its bytes last; another share counts from when it is told."""
    allowance = Allowance()
    allowance.told(1_000, 0)
    assert allowance.wait_ms(0) == 100
    assert allowance.wait_ms(200) == 0
    assert allowance.room_bytes == 200
    allowance.took(50_000, 200)
    assert allowance.wait_ms(200) == 49_900
    allowance.told(100_000, 10_200)
    assert allowance.wait_ms(10_200) == 498
    allowance.told(0, 10_300)
    assert allowance.wait_ms(10_300) == 0
    assert allowance.room_bytes is None


def test_E4_a_pause_saves_up_a_second_and_no_more() -> None:
    """An hour without input is no hour's worth of bytes at once; and what was overdrawn leaves no room below nothing."""
    allowance = Allowance()
    allowance.told(1_000, 0)
    assert allowance.wait_ms(3_600_000) == 0
    assert allowance.room_bytes == 1_000
    allowance.took(5_000, 3_600_000)
    assert allowance.room_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_E4_rows_are_counted_to_the_last_that_has_room(seed: int) -> None:
    """Whatever their sizes, with tombstones, over several splits: one row more would be too many bytes."""
    rng = random.Random(seed)
    batches = []
    for split in range(rng.randint(1, 3)):
        values = [rng.choice((None, b"", rng.randbytes(rng.choice((5, 5_000))))) for _ in range(rng.randint(1, 60))]
        ns = np.arange(len(values), dtype=np.int64)
        batches.append(RawBatch(SplitId(f"t-{split}"), split, ns, ns, pa.array(values, pa.binary())))
    there = Fetched(batches, ())
    room = rng.randint(0, there.size_bytes + 10)
    rows = there.rows_within(room)
    slack = 8 * len(batches)  # the end of a batch's places, and the bits of what is null
    assert there.divided(rows)[0].size_bytes <= room + slack
    assert rows == there.rows or there.divided(rows + 1)[0].size_bytes > room - slack


@pytest.mark.parametrize("seed", range(50))
def test_E4_all_of_a_quota_is_divided(seed: int) -> None:
    """To the last byte and no further; who wants more never gets less; everybody can begin; who wants little leaves the rest to others."""
    rng = random.Random(seed)
    wanted = {n: rng.choice([0.0, rng.random() * 100, rng.random() * 1e7]) for n in range(rng.randint(1, 20))}
    most = rng.choice([1_024, 100_000, 10_000_000])
    found = divided(wanted, most)
    assert sum(found.values()) == pytest.approx(most)
    assert all(found[one] <= found[other] + 1e-6 for one in wanted for other in wanted if wanted[one] <= wanted[other])
    assert all(each >= most / (4 * len(wanted)) - 1e-6 for each in found.values())
    busy = [n for n in wanted if wanted[n] > most]
    if len(busy) == 1:
        others = sum(max(wanted[n], most / (4 * len(wanted))) for n in wanted if n not in busy)
        assert found[busy[0]] >= min(most - others, most / len(wanted)) - 1e-6
