# ruff: noqa: N802 -- a test carries its rule's name
"""A chain names the operators that hold its watermark back now, each with what it was given and what it lets out."""

import json

import numpy as np
import pyarrow as pa

from tests.harness.fronted import Fronted
from tidemark.shared.language.documents import parse
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import SplitId
from tidemark.shared.model.records import RawBatch
from tidemark.shared.operators.build import build_chain
from tidemark.shared.operators.specs import FrontSpec
from tidemark.shared.planning import plan_processor

WINDOW = {
    "$tumblingWindow": {
        "interval": {"size": 10, "unit": "ms"},
        "allowedLateness": {"size": 3, "unit": "ms"},
        "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}],
    }
}
SOURCE = {"$source": {"connectionName": "c", "topic": "t", "timeField": {"$toDate": "$ts"}}}


def test_W1_holds_of_a_window_are_its_epoch_and_its_allowed_lateness() -> None:
    """The sender holds until the barrier has let its partials out; the step until it has run, and then the lateness."""
    plan = plan_processor(parse({"pipeline": [SOURCE, WINDOW]}), engine="local", collects=True)
    source, window = plan.vertices[0], plan.vertices[1]
    front_spec = source.chain[0]
    assert isinstance(front_spec, FrontSpec)
    front, sender, step = Fronted(front_spec), build_chain(source.chain), build_chain(window.chain)
    split = SplitId("t-0")
    front.assign({split: 0})
    values = pa.array([json.dumps({"ts": {"$date": {"$numberLong": str(t)}}}).encode() for t in (5, 25)], pa.binary())
    raw = RawBatch(split, 0, np.arange(2, dtype=np.int64), np.arange(2, dtype=np.int64), values)
    for out in front.on_records(raw):
        sender.on_batch(out.batch, out.content, "")
    sender.on_watermark(front.output_watermark())
    assert [(h.operator, h.why, h.input_ms) for h in sender.holds()] == [("$tumblingWindow", "epoch", 25)]
    for out in sender.before_barrier():
        step.on_batch(out.batch, out.content, "")
    assert sender.holds() == []
    step.on_watermark(sender.output_watermark())
    assert [(h.operator, h.why, h.input_ms) for h in step.holds()] == [("$tumblingWindow", "epoch", 25)]
    step.before_barrier()
    assert step.holds() == [Hold("$tumblingWindow", "allowedLateness", 25, 22)]


def test_W2_a_split_tells_its_last_event_and_how_many_came_late() -> None:
    """What a strategy holds back, and what it has achieved, goes out with the heartbeats."""
    source = {
        "$source": {
            **SOURCE["$source"],
            "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 4, "unit": "ms"}},
        }
    }
    front_spec = plan_processor(parse({"pipeline": [source]}), collects=True).vertices[0].chain[0]
    assert isinstance(front_spec, FrontSpec)
    front = Fronted(front_spec)
    split = SplitId("t-0")
    front.assign({split: 0})
    assert front.told_of(split).lastEvent is None
    values = pa.array(
        [json.dumps({"ts": {"$date": {"$numberLong": str(t)}}}).encode() for t in (50, 10, 48)], pa.binary()
    )
    front.on_records(RawBatch(split, 0, np.arange(3, dtype=np.int64), np.arange(3, dtype=np.int64), values))
    told = front.told_of(split)
    assert (told.lastEvent, told.watermark, told.delay, told.seen, told.late) == (50, 46, 4, 3, 1)
