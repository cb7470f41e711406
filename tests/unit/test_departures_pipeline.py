"""The departures' document: it parses, and says what the oracle assumes."""

from pathlib import Path

from tests.oracle import departures as oracle
from tidemark.deploy.pipelines.departures.data import REPEAT_DISTANCE_MAX
from tidemark.deploy.pipelines.departures.zeitgeist import ExpectedCounts, Learning, SpikeAndDip, Thresholds
from tidemark.shared.computation import load_computation
from tidemark.shared.language.documents.parse import parse
from tidemark.shared.language.stages import (
    BoundedDisorder,
    Compute,
    FileEmit,
    KafkaEmit,
    KafkaSource,
    PositionHorizon,
    TumblingWindow,
)

DOCUMENT = Path(__file__).parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"


def test_the_document_is_right_and_agrees_with_the_oracle() -> None:
    """Stages and options parse; delay, lateness and the computations' settings are those that the oracle computes with."""
    processor = parse(DOCUMENT.read_text())
    kinds = [type(stage) for stage in processor.pipeline]
    assert kinds == [KafkaSource, TumblingWindow, FileEmit, Compute, Compute, KafkaEmit]
    source, window, _, expected, detector, _ = processor.pipeline
    assert isinstance(source, KafkaSource)
    assert source.watermark == BoundedDisorder(oracle.MAX_DELAY_MS)
    assert source.partition_idle_timeout_ms is None
    assert isinstance(source.record_id_horizon, PositionHorizon)
    assert source.record_id_horizon.positions > 10 * REPEAT_DISTANCE_MAX
    assert processor.options.lateness == "split"
    assert processor.options.dlq is not None
    assert isinstance(window, TumblingWindow)
    assert window.allowed_lateness_ms == 0
    assert isinstance(expected, Compute)
    assert isinstance(detector, Compute)
    computations = [load_computation(c.class_, c.config) for c in (expected, detector)]
    assert [type(c) for c in computations] == [ExpectedCounts, SpikeAndDip]
    assert computations[0].config == Learning(weeks=oracle.WEEKS, weeks_min=oracle.WEEKS_MIN)
    assert computations[1].config == Thresholds(oracle.EXPECTED_MIN, oracle.SCORE_MIN)
