"""An operator's task works beside its loop: a call that takes long keeps no heartbeat from going out."""

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness.worker_stand import JOB
from tidemark.services.operator.body import OperatorBody
from tidemark.services.operator.settings import OperatorSettings
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.ast import loops
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import Epoch, StatePart, VertexId
from tidemark.shared.model.messages import RunningPlan
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.build import OperatorChain, build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.operators.join import JoinOperator
from tidemark.shared.operators.specs import JoinSpec, StatelessSpec

SPEC = JoinSpec("pipeline[1].$join", "inner", 0, 0, "right")


class Slow(JoinOperator):
    """A watermark is through once the loop has done something else; it gives up after a while, so that a test ends."""

    def __init__(self) -> None:
        super().__init__(SPEC, TaskContext())
        self.went_on = threading.Event()
        self.began = threading.Event()
        self.noticed = False

    def on_watermark(self, watermark_ms: int) -> Sequence[Out]:
        self._hold_up()
        return super().on_watermark(watermark_ms)

    def on_processing_time(self, now_ms: int) -> Sequence[Out]:
        self._hold_up()
        return super().on_processing_time(now_ms)

    def before_barrier(self) -> Sequence[Out]:
        self._hold_up()
        return super().before_barrier()

    def snapshot(self) -> Mapping[StatePart, bytes | None]:
        self._hold_up()
        return super().snapshot()

    def _hold_up(self) -> None:
        self.began.set()
        self.noticed = self.went_on.wait(5)

    def output_watermark(self) -> int:
        return super().output_watermark() - 1


def clock_at_0() -> SimpleNamespace:
    clock = SimpleNamespace(spent_ms=0, now_ms=lambda: 0)
    clock.monotonic_ms = lambda: clock.spent_ms
    return clock


class Costly(JoinOperator):
    """Each of so many items that a watermark lets come due takes a time, and so does each call."""

    def __init__(self, clock: SimpleNamespace, items: int, item_ms: float, call_ms: int = 0) -> None:
        super().__init__(SPEC, TaskContext())
        self.clock, self.left, self.item_ms, self.call_ms = clock, items, item_ms, call_ms
        self.pieces: list[int] = []

    def on_watermark_piece(self, watermark_ms: int, items_max: int) -> tuple[Sequence[Out], bool]:
        piece = min(self.left, items_max)
        self.left -= piece
        self.pieces.append(piece)
        self.clock.spent_ms += self.call_ms + round(piece * self.item_ms)
        return (() if self.left else super().on_watermark(watermark_ms)), self.left > 0


def body_of(chain: OperatorChain, beside_rows: int = 1_000, clock: Any = None) -> OperatorBody:
    vertex = VertexId("join-1")
    plan = RunningPlan(1, "", {vertex: 1}, ())
    outside = SimpleNamespace(blobs=None, executor=AsyncExecutor(), clock=clock or clock_at_0())
    context: Any = SimpleNamespace(
        outside=outside, assign=SimpleNamespace(job=JOB, vertex=vertex, index=0, plan=plan, handles=())
    )
    return OperatorBody(context, chain, None, settings=OperatorSettings(beside_rows=beside_rows))


async def test_the_loop_goes_on_while_a_watermark_is_worked_on() -> None:
    """What a heartbeat asks for is answered meanwhile, with what was true before the call."""
    slow = Slow()
    body = body_of(OperatorChain((slow,)))
    slow.went_on.set()
    await body.advance(10)
    slow.went_on.clear()
    slow.began.clear()
    before = body.holds()
    advancing = asyncio.ensure_future(body.advance(1_000))
    await asyncio.to_thread(slow.began.wait, 5)
    assert body.holds() == before == [Hold("$join", "match", 10, 9)]
    assert body.counters()["rows"] == 0
    slow.went_on.set()
    await advancing
    assert slow.noticed, "the call kept the loop"
    assert body.holds() == [Hold("$join", "match", 1_000, 999)]


@pytest.mark.parametrize(
    "call",
    [
        lambda body: body.fire(5),
        lambda body: body.flush(Epoch(1)),
        lambda body: body.copy(Epoch(1), Epoch(0)),
    ],
    ids=["processing time", "before the barrier", "snapshot"],
)
async def test_the_loop_goes_on_whatever_the_chain_is_asked_for(call: Callable[[OperatorBody], Awaitable[Any]]) -> None:
    """A user's timer of processing time, a step of windows, or the bytes of much state may take as long as a watermark."""
    slow = Slow()
    body = body_of(OperatorChain((slow,)))
    calling = asyncio.ensure_future(call(body))
    await asyncio.to_thread(slow.began.wait, 5)
    slow.went_on.set()
    await calling
    assert slow.noticed, "the call kept the loop"


async def test_who_stops_waits_for_a_document_and_not_for_a_batch() -> None:
    """The loop goes on while documents with loops are worked on, and after a stop no more of them are begun."""
    inner = {"$reduce": {"input": {"$range": [0, 100]}, "initialValue": 0, "in": {"$add": ["$$value", "$$this"]}}}
    nested = {"$reduce": {"input": {"$range": [0, 500]}, "initialValue": "$a", "in": {"$add": ["$$value", inner]}}}
    stages: Any = parse({"pipeline": [{"$source": {"documents": []}}, {"$addFields": {"b": nested}}]}).pipeline[1:]
    assert loops(stages)
    body = body_of(build_chain((StatelessSpec(stages),), TaskContext()), beside_rows=1)
    rows = batch_of([{"a": i} for i in range(900)])
    frame: Any = SimpleNamespace(content="rows")
    taking = asyncio.ensure_future(body._take(rows, frame, ""))
    await asyncio.to_thread(until_locked, body._working)
    taking.cancel()
    await body.close()
    executor: Any = body._context.outside.executor
    assert not concurrent.futures.wait(executor._pending, 5).not_done, "rows are still worked on"


def until_locked(lock: threading.Lock) -> None:
    while not lock.locked():
        pass


@pytest.mark.parametrize("item_ms", [0, 1, 40, 1_000])
async def test_a_watermark_is_worked_on_in_pieces_that_suit_the_cost_of_an_item(item_ms: int) -> None:
    """Few where each takes long, one at the least; more with each piece where they cost little, or where the work takes long anyway.

    Each answers before the next begins.
    """
    clock = clock_at_0()
    costly = Costly(clock, 10_000 if item_ms < 40 else 40, item_ms)
    body = body_of(OperatorChain((costly,)), clock=clock)
    calls = 0
    while not calls or body.unfinished():
        assert body.output_watermark() < 1_000
        await body.advance(1_000)
        calls += 1
    assert calls == len(costly.pieces)
    assert body.output_watermark() == 1_000
    worked_ms = list(itertools.accumulate(piece * item_ms for piece in costly.pieces))
    for number, piece in enumerate(costly.pieces[5:], 5):
        assert piece == 1 or piece * item_ms <= min(max(50, worked_ms[number - 1] / 8), 2_000)
    assert item_ms or calls < 12


@given(call_ms=st.integers(0, 500), item_ms=st.floats(0.001, 2), items=st.integers(1, 100_000))
async def test_what_a_call_costs_alone_makes_no_pieces_smaller(call_ms: int, item_ms: float, items: int) -> None:
    """A slow machine, or a process to be asked: in all it takes a few times what the items take, however long a call is."""
    clock = clock_at_0()
    costly = Costly(clock, items, item_ms, call_ms)
    body = body_of(OperatorChain((costly,)), clock=clock)
    while not costly.pieces or body.unfinished():
        await body.advance(1_000)
    assert clock.spent_ms <= 40 * call_ms + 5 * (round(items * item_ms) + len(costly.pieces))


async def test_an_operator_behind_one_that_works_in_pieces_follows_it() -> None:
    """It is told no watermark before the first has reached it; the chain is done when both are."""
    clock = clock_at_0()
    first, second = Costly(clock, 40, 0), Costly(clock, 100, 0)
    chain = OperatorChain((first, second))
    while chain.on_watermark_piece(1_000, 16)[1]:
        assert not (second.pieces and first.left)
    assert (first.pieces, second.pieces) == ([16, 16, 8], [16] * 6 + [4])
    assert chain.output_watermark() == 1_000
