"""Windows on processing time, and timers of idleness, between two barriers: what senders hold is not lost to a clock that goes on."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.harness.fronted import Fronted
from tests.harness.plan_world import CONTEXT
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.plan import DLQ
from tidemark.shared.model.records import RawBatch
from tidemark.shared.model.time import MAX_TIME
from tidemark.shared.operators.base import ARRIVAL, TS
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.build import build_chain
from tidemark.shared.planning import plan_processor

SPLIT = SplitId("s-0")


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


class Line:
    """A source's task and its window's, with a clock and barriers; `said`: times and values of results."""

    def __init__(self, name: str, lateness: str = "merged", **options: Any) -> None:
        group = {"$group": {"_id": None, "values": {"$push": "$v"}}}
        source = {"connectionName": "c", "topic": "t", "timeField": "$t"}
        pipeline = [{"$source": source}, {name: {**options, "pipeline": options.get("pipeline", [group])}}]
        document = {"pipeline": pipeline, "options": {"lateness": lateness}}
        reading, window = plan_processor(parse(document), engine="local", collects=True).vertices[:2]
        self.front = Fronted(reading.chain[0], CONTEXT)
        self.front.assign({SPLIT: 0})
        self.sender, self.receiver = build_chain(reading.chain, CONTEXT), build_chain(window.chain, CONTEXT)
        self.said: list[tuple[int, Any]] = []
        self.late: list[int] = []
        self.arrivals: list[int] = []
        self._count = 0

    def reads(self, arrived_ms: int) -> None:
        """A record of that arrival and event time, numbered from 0."""
        value = json.dumps({"t": {"$date": {"$numberLong": str(arrived_ms)}}, "v": self._count}).encode()
        raw = RawBatch(SPLIT, 0, np.array([self._count]), np.array([arrived_ms]), pa.array([value], pa.binary()))
        self._count += 1
        for out in self.front.on_records(raw):
            self._give(self.sender.on_batch(out.batch, out.content, ""))
        self._give(self.sender.on_watermark(self.front.output_watermark()))

    def barrier(self) -> None:
        self._give(self.sender.before_barrier())
        self._take(self.receiver.before_barrier())

    def ends(self) -> None:
        self._give(self.sender.on_watermark(MAX_TIME))
        self._take(self.receiver.on_watermark(MAX_TIME))

    def clock(self, now_ms: int) -> None:
        """As a driver: who has something due is told."""
        if self.receiver.next_processing_time() <= now_ms:
            self._take(self.receiver.on_processing_time(now_ms))

    def _give(self, outs: Any) -> None:
        for out in outs:
            self._take(self.receiver.on_batch(out.batch, out.content, ""))

    def _take(self, outs: Any) -> None:
        for out in outs:
            if out.port == DLQ:
                self.late += [letter["doc"]["v"] for letter in documents_of(out.batch)]
                continue
            if ARRIVAL in out.batch.schema.names:
                self.arrivals += out.batch.column(ARRIVAL).to_pylist()
            times = out.batch.column(TS).to_pylist()
            assert min(times) >= self.told
            self.said += [(t, d["values"]) for t, d in zip(times, documents_of(out.batch), strict=True)]
        self.told = self.receiver.output_watermark()

    told = -(2**63)


@pytest.mark.parametrize(
    ("name", "option", "size"), [("$tumblingWindow", "interval", 50), ("$sessionWindow", "gap", 20)]
)
def test_a_window_on_processing_time_has_what_is_held_as_it_ends(name: str, option: str, size: int) -> None:
    """It closes at the barrier behind its end, when senders have given out what arrived in time."""
    options: dict[str, Any] = {option: ms(size)}
    line = Line(name, boundary="processingTime", **options)
    line.reads(1010)
    line.barrier()
    line.reads(1020)
    line.clock(1060)
    assert line.said == []
    line.barrier()
    assert [values for _, values in line.said] == [[0, 1]]


def test_what_comes_for_a_closed_window_on_processing_time_is_another_result() -> None:
    """A record that arrived before the end and was read long behind it is not lost, nor dated behind what was said."""
    line = Line("$tumblingWindow", boundary="processingTime", interval=ms(50))
    line.reads(1010)
    line.barrier()
    line.clock(1200)
    line.barrier()
    line.reads(1020)
    line.reads(1030)
    line.barrier()
    assert line.said == [(1049, [0]), (1200, [1, 2])]


def test_at_the_end_of_input_windows_on_processing_time_have_the_time_that_was_told() -> None:
    """Also where no barrier has come since: what stands behind goes by it."""
    line = Line("$sessionWindow", boundary="processingTime", gap=ms(20))
    line.receiver.on_processing_time(1015)
    line.reads(1010)
    line.ends()
    assert [values for _, values in line.said] == [[0]]
    assert line.arrivals == [1015]


def test_a_row_for_a_window_that_idleness_closed_is_late_with_lateness_by_split() -> None:
    """It is a dead letter with its document, not another result of the window."""
    for stages in ([{"$count": "values"}], [{"$group": {"_id": None, "values": {"$sum": 1}}}]):
        line = Line(
            "$tumblingWindow", lateness="split", interval=ms(50), idleTimeout=ms(30), allowedLateness=0, pipeline=stages
        )
        line.reads(1010)
        line.clock(1010)
        line.clock(1100)
        line.reads(1020)
        line.clock(1100)
        line.barrier()
        line.ends()
        assert line.said == [(1049, 1)]
        assert line.late == [1]


def test_an_arrival_resets_the_timer_of_idleness_with_lateness_by_split() -> None:
    """The receiver sees it at once: the timer runs from the last arrival, not from the last one that a barrier brought."""
    line = Line("$tumblingWindow", lateness="split", interval=ms(50), idleTimeout=ms(30), allowedLateness=0)
    line.reads(1010)
    line.clock(1010)
    line.barrier()
    line.reads(1040)
    line.clock(1075)
    line.clock(1085)
    assert line.said == []
    line.clock(1110)
    assert line.said == [(1049, [0, 1])]
