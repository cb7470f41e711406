# ruff: noqa: N802 -- a test carries its rule's name
"""What a source's task holds when it becomes idle."""

from tests.harness.raw_log import LogRawReader
from tests.harness.source_stand import IDLE_MS, SourceStand, feed
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.language.documents import parse
from tidemark.shared.model.plan import OUT
from tidemark.shared.operators.base import Out
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.planning import plan_processor


async def test_W3_a_task_that_becomes_idle_holds_no_aggregates_back() -> None:
    """From then on receivers go by others: what was held until the barrier would come too late for its window, and be lost."""
    log = MemoryLog(MemoryBroker(SystemClock()))
    await log.create_topic("in", 1)
    await feed(log, "in", 0, 5, 7)
    stand = await SourceStand(log, LogRawReader(log), "in").open()
    window = {"interval": {"size": 10, "unit": "ms"}, "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}]}
    source = {"connectionName": "c", "topic": "in", "timeField": "$t"}
    document = {"pipeline": [{"$source": source}, {"$tumblingWindow": window}]}
    chain = plan_processor(parse(document), engine="local", collects=True).vertices[0].chain
    stand.body._chain = build_chain(chain, TaskContext("p", "i", "in"))
    held = await _taken(stand, 0)
    while not stand.source.status()[0].at_end:
        held += await _taken(stand, 0)
    assert held == []
    assert stand.watermark() is None
    given = await _taken(stand, IDLE_MS) + await _taken(stand, IDLE_MS)
    assert stand.body.input.is_idle()
    assert [(out.content, out.batch.column("__n").to_pylist()) for out in given] == [("partials", [2])]
    assert stand.watermark() == 7
    assert await _taken(stand, IDLE_MS) == []


async def _taken(stand: SourceStand, after_ms: int) -> list[Out]:
    """What the task gives out."""
    stand.clock.at_ms += after_ms
    outs = await stand.work(await stand.body.fetch())
    return [out for out in outs if out.port == OUT]
