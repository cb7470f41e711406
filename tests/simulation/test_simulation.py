"""The simulation itself: a seed is one run, in any process; its checks find what they are for; faults are shrunk."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.harness.share import share
from tests.harness.simulation.checks import Checks
from tests.harness.simulation.drawing import SHAPES, draw
from tests.harness.simulation.faults import Book, Strike
from tests.harness.simulation.results import Outcome, expected
from tests.harness.simulation.shrink import shrunk
from tests.harness.simulation.story import run
from tests.harness.simulation.writes import WRITES
from tests.tidy_rules import ROOT
from tidemark.services.sink.connectors.kafkamarkers import Marker, marker_record
from tidemark.shared.model.checkpoint import BlobRef, CommitRow, PartHandle, TaskHandle, TaskProtocolState
from tidemark.shared.model.frames import Header, WatermarkFrame
from tidemark.shared.model.ids import Epoch, Generation, Incarnation, JobId, Offset, Seq, StatePart, TaskId, VertexId
from tidemark.shared.model.messages import RunningPlan
from tidemark.shared.ports.log import LogRecord, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.record import encode_plan
from tidemark.shared.wire.frames import encode_frame

JOB = JobId("j")
SAME = """
import json, sys
from tests.harness.simulation.story import quiet, run
with quiet():
    found = run(int(sys.argv[1]))
print(json.dumps([found.digest, found.trace]))
"""


def _elsewhere(seed: int, hash_seed: str) -> Any:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-c", SAME, str(seed)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("seed", share([1, 18], 2))
def test_a_seed_is_the_same_run_in_every_process(seed: int) -> None:
    """Neither the order of sets, nor time, nor the process decides anything: all that was written is the same, byte by byte."""
    assert _elsewhere(seed, "1") == _elsewhere(seed, "2")


@pytest.mark.parametrize("seed", range(len(SHAPES)))
def test_without_faults_every_shape_gives_the_oracles_results(seed: int) -> None:
    """So that a failing seed speaks of its faults."""
    verdict = run(seed, faults=False)
    assert verdict.breaches == []
    assert verdict.struck == []
    assert verdict.commits > 0


def test_a_fault_that_is_left_out_does_not_strike() -> None:
    """Others stay: each is drawn by itself."""
    whole = run(3)
    left = run(3, left_out=set(whole.struck[:5]))
    assert not set(whole.struck[:5]) & set(left.struck)
    assert left.struck


def test_faults_are_shrunk_to_those_that_are_needed() -> None:
    """Of many, the two that only together break something are left."""
    struck = [f"f{n}" for n in range(40)]
    assert shrunk(0, struck, lambda left_out: not {"f7", "f31"} & left_out) == ["f7", "f31"]


def test_a_process_dies_on_the_side_that_was_asked_for() -> None:
    """Before a write for the second time; then not again."""
    book = Book(0, strikes=[Strike("sink txn commit", "before", 2)])
    sides = [book.crosses("sink txn commit", side) for _ in range(3) for side in ("before", "after")]
    assert sides == [False, False, True, False, False, False]
    assert "sink txn commit" in WRITES


@pytest.mark.parametrize(
    ("what", "seed"), [("spark", 1), ("a table", 1), ("redrive", 2), ("refusals", 121), ("in flight", 12)]
)
def test_seeds_draw_what_they_are_said_to(what: str, seed: int) -> None:
    """Stages on Spark, tables, redrives, refused rows, commits with frames in flight; without faults they come out right."""
    verdict = run(seed, faults=False)
    drawn = {
        "spark": verdict.writes["spark segment write"],
        "a table": verdict.writes["sink table commit"],
        "redrive": verdict.writes["user txn redrives"],
        "in flight": verdict.in_flight,
        "refusals": sum("passes over what is refused" in line for line in verdict.trace),
    }
    assert drawn[what] > 0
    assert verdict.breaches == []


# --- the checks find what they are for ------------------------------------------------------------------------------------


def _checks(**store: Any) -> Checks:
    state = SimpleNamespace(**{"rows": {}, "commits": {}, **store})
    copies = SimpleNamespace(in_force=lambda: state)
    world: Any = SimpleNamespace(now_ms=lambda: 0, say=lambda _: None, store=state, copies=copies)
    return Checks(world)


def _commit(epoch: int, predecessor: int, watermark_ms: int = 0) -> CommitRow:
    blob = BlobRef("j/v/1/1/state", 1, "d")
    parts = (PartHandle(StatePart("p"), blob=blob),)
    task = TaskHandle(VertexId("v"), 0, TaskProtocolState(output_watermark_ms=watermark_ms), parts)
    return CommitRow(JOB, Epoch(epoch), Epoch(predecessor), Generation(1), (task,))


def _row(last: int) -> Any:
    plan = encode_plan(RunningPlan(1, "{}", {}, ()))
    return SimpleNamespace(job=JOB, last=last, plan_version=1, desired="running", plan=plan, extra=b"")


def _visible(checks: Checks, epoch: int, predecessor: int | None) -> None:
    before = None if predecessor is None else Epoch(predecessor)
    record = marker_record(Marker(identity="j.v.0", epoch=Epoch(epoch), predecessor=before))
    checks.visible([LogRecord("tidemark.markers.j.v.0", 0, Offset(0), 0, record.key, record.value)])


def _told(checks: Checks) -> str:
    return "\n".join(checks.breaches)


def test_a_release_that_is_not_committed_is_found() -> None:
    """Whatever connector makes it visible."""
    checks = _checks()
    checks.committed(_commit(1, 0), _row(1))
    _visible(checks, 1, 0)
    assert checks.breaches == []
    _visible(checks, 2, 1)
    assert "has released 2, which is not committed" in _told(checks)


def test_a_release_that_comes_twice_or_leaves_one_out_is_found() -> None:
    """Each commit once, behind its predecessor."""
    checks = _checks()
    for epoch in (1, 2, 3):
        checks.committed(_commit(epoch, epoch - 1), _row(epoch))
    _visible(checks, 1, 0)
    _visible(checks, 1, 0)
    assert "has released 1 behind 1" in _told(checks)
    _visible(checks, 3, 2)
    assert "whose predecessor is 2, behind 1" in _told(checks)


def test_a_release_that_is_told_before_it_is_visible_is_found() -> None:
    """The coordinator forgets what it is told."""
    checks = _checks()
    checks.committed(_commit(1, 0), _row(1))
    checks.moved("j.v.0", 1)
    checks.told_released(JOB, VertexId("v"), 0, Epoch(1))
    assert checks.breaches == []
    checks.told_released(JOB, VertexId("v"), 0, Epoch(2))
    assert "j.v.0 tells 2 as released, its marker is 1" in _told(checks)


def test_a_commit_beside_the_chain_and_a_watermark_that_falls_are_found() -> None:
    """Over a restore, too."""
    checks = _checks()
    checks.committed(_commit(1, 0, watermark_ms=9), _row(1))
    checks.committed(_commit(2, 0, watermark_ms=8), _row(2))
    assert "names 0 as its predecessor" in _told(checks)
    assert "tells 8, and told 9 before" in _told(checks)


def test_a_channel_whose_watermark_falls_or_that_has_a_hole_is_found() -> None:
    """Within a generation."""
    checks = _checks()
    sender = TaskId(VertexId("v"), 0)
    for seq, watermark_ms in ((0, 5), (1, 4), (3, 6)):
        header = Header(JOB, Incarnation("i"), Generation(1), sender, Seq(seq), Epoch(1), watermark_ms)
        record = NewRecord(encode_frame(WatermarkFrame(header, idle=False)))
        checks.appended(TopicPartition("tidemark.story.e.i", 0), [record])
    assert "falls from 5 to 4" in _told(checks)
    assert "frame 3 of" in _told(checks)


def test_a_deletion_of_what_the_last_commit_lists_is_found() -> None:
    """A blob of its state; what an older one listed may go."""
    checks = _checks(rows={"story": _row(2)}, commits={JOB: {1: _commit(1, 0), 2: _commit(2, 1)}})
    checks.blobs_deleted(["j/v/1/0/other"])
    assert checks.breaches == []
    checks.blobs_deleted(["j/v/1/1/state"])
    assert "which the last commit lists" in _told(checks)


def test_what_is_lost_invented_or_repeated_is_found() -> None:
    """Of output and of dead letters; of several lives each may have given all."""
    wanted = expected(draw(0, "sqlite://"))
    row = next(iter(wanted.output))
    assert wanted.differences(wanted) == []
    assert "1 of" in wanted.differences(Outcome(wanted.output - type(wanted.output)([row]), wanted.letters))[0]
    twice = Outcome(wanted.output + type(wanted.output)([row]), wanted.letters)
    assert "repeated" in wanted.differences(twice)[0]
    assert wanted.differences(twice, lives=2) == []
