"""A source works on what takes long beside its worker's loop: what the loop does meanwhile, and what has to wait."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.harness.raw_log import LogRawReader
from tests.harness.source_stand import HandClock, SourceStand, feed
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.model.ids import SplitId
from tidemark.shared.operators.base import TS, Out
from tidemark.shared.operators.source_front import SourceFront

MANY = 1_500
SPLIT = SplitId("in-0")


class Gate:
    """Stands before the front: records pass when the test lets them, so that it knows that they are being worked on, and take long."""

    def __init__(self, clock: HandClock) -> None:
        self._clock = clock
        self._on_records: Callable[[SourceFront, Any], list[Out]] = SourceFront.on_records
        self.threads: list[int] = []
        self.begun, self.pass_on = threading.Event(), threading.Event()

    def on_records(self, front: SourceFront, *records: Any, **how: Any) -> list[Out]:
        self.threads.append(threading.get_ident())
        self._clock.at_ms += 60_000
        self.begun.set()
        assert self.pass_on.wait(60)
        return self._on_records(front, *records, **how)


async def _at_work(monkeypatch: pytest.MonkeyPatch) -> tuple[SourceStand, Gate, Awaitable[list[int]]]:
    """A task that is working on many records of a split that has more behind them."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("in", 1)
    await feed(log, "in", 0, *range(MANY))
    stand = await SourceStand(log, LogRawReader(log), "in").open()
    gate = Gate(stand.clock)

    def through(front: SourceFront, *records: Any, **how: Any) -> list[Out]:
        return gate.on_records(front, *records, **how)

    monkeypatch.setattr(SourceFront, "on_records", through)
    taken = asyncio.ensure_future(stand.take())
    await asyncio.to_thread(gate.begun.wait)
    return stand, gate, taken


async def test_heartbeats_tell_meanwhile_what_was_true_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on while records are worked on, and sees where the task stood when they came; then where it stands now."""
    stand, gate, taken = await _at_work(monkeypatch)
    assert json.loads(stand.body.details()[f"split:{SPLIT}"])["position"] == 0
    assert not stand.body.holds()
    gate.pass_on.set()
    assert await taken == list(range(MANY))
    assert threading.get_ident() not in gate.threads
    assert json.loads(stand.body.details()[f"split:{SPLIT}"])["position"] == MANY


async def test_what_is_asked_for_is_told_anew_with_the_next_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is always at work tells no older state than that of the records before."""
    stand, gate, taken = await _at_work(monkeypatch)
    stand.body.details()
    gate.pass_on.set()
    await taken
    await feed(stand.source._log, "in", 0, *range(MANY))
    gate.begun.clear()
    gate.pass_on.clear()
    again = asyncio.ensure_future(stand.take())
    await asyncio.to_thread(gate.begun.wait)
    assert json.loads(stand.body.details()[f"split:{SPLIT}"])["position"] == MANY
    gate.pass_on.set()
    await again


async def test_what_is_fast_is_worked_on_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Going by the batch before; the first, of which nothing is known, is not."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("in", 1)
    stand = await SourceStand(log, LogRawReader(log), "in").open()
    threads: list[int] = []
    on_records = SourceFront.on_records

    def noted(front: SourceFront, *records: Any, **how: Any) -> list[Out]:
        threads.append(threading.get_ident())
        stand.clock.at_ms += 1
        return on_records(front, *records, **how)

    monkeypatch.setattr(SourceFront, "on_records", noted)
    for _ in range(2):
        await feed(log, "in", 0, *range(MANY))
        assert await stand.take() == list(range(MANY))
    here = threading.get_ident()
    assert [thread == here for thread in threads] == [False, True]


async def test_what_came_of_all_splits_goes_on_as_one_batch() -> None:
    """What a batch costs, here and in every stage behind, is not paid for each split."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("in", 5)
    for partition in range(5):
        await feed(log, "in", partition, 10 * partition, 10 * partition + 1)
    stand = await SourceStand(log, LogRawReader(log), "in").open()
    fetched = await stand.body.fetch()
    outs = await stand.work(fetched)
    assert len(fetched.batches) == 5
    (out,) = outs
    assert isinstance(out, Out)
    assert sorted(out.batch.column(TS).to_pylist()) == sorted([10 * p + n for p in range(5) for n in range(2)])
