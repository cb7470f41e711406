"""Which frames count: L1, L2."""
# ruff: noqa: N802 -- a test carries its rule's name

from collections.abc import Sequence

import pytest

from tests.harness.task_story import (
    IN,
    Answers,
    Barrier,
    BrokerHas,
    Durable,
    Event,
    Expect,
    Holds,
    Lie,
    MayRead,
    Rows,
    emission,
    play,
    rows,
    task,
    ticked,
)
from tidemark.shared.model.checkpoint import LineageEntry
from tidemark.shared.model.frames import DataFrame
from tidemark.shared.model.ids import Epoch, Generation, Offset
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.protocol.lineage import Lineage, Verdict
from tidemark.shared.protocol.task import events as ev

C, D, Z = Verdict.COUNTS, Verdict.DISCARDED, Verdict.ZOMBIE


def _lineage(current: int, *entries: tuple[int, int]) -> Lineage:
    return Lineage.of([LineageEntry(Generation(g), Epoch(e), 1) for g, e in entries], Generation(current))


def _verdicts(lineage: Lineage, generation: int, epochs: Sequence[int]) -> list[Verdict]:
    return [lineage.judge(Generation(generation), Epoch(e)) for e in epochs]


def test_L1_a_frame_counts_up_to_the_least_checkpoint_that_later_generations_began_from() -> None:
    """ceil(h) is the least restored_from of all generations above h, not only of the next one."""
    lineage = _lineage(4, (1, 0), (2, 5), (3, 5), (4, 9))
    assert _verdicts(lineage, 1, [1, 5, 6]) == [C, C, D]
    assert _verdicts(lineage, 2, [5, 6]) == [C, D]
    assert _verdicts(lineage, 3, [9, 10]) == [C, D]
    assert _verdicts(lineage, 4, [10, 10**6]) == [C, C]


def test_L1_a_generation_that_never_was_has_written_nothing_that_counts() -> None:
    """A number between two known generations is no licence."""
    assert _verdicts(_lineage(4, (1, 0), (4, 3)), 2, [1]) == [D]


def test_L1_a_later_generation_does_not_lower_what_the_present_one_knows() -> None:
    """A lineage that names generations above mine judges as I would."""
    assert _verdicts(_lineage(1, (1, 0), (2, 0)), 1, [7]) == [C]


def test_L1_the_lineage_names_its_own_generation() -> None:
    """A generation without an entry is a mistake of ours."""
    with pytest.raises(LocalError, match="not in its own lineage"):
        _lineage(2, (1, 0))


def test_L1_comes_before_the_seq_check() -> None:
    """A discarded frame is neither a repeat nor a gap: the channel's count is as before it."""
    first = play(task(), Barrier(0, 1), Durable(1), BrokerHas())
    start = task(generation=2, lineage=[(1, 0), (2, 1)], restored={0: first.snapshots[1]})
    story = play(
        start,
        Rows(0, "old", lie=Lie(generation=1, seq=1)),
        Rows(0, "older", lie=Lie(generation=1, seq=9)),
        Rows(0, "a"),
        Expect("apply a"),
        log=first.log,
    )
    assert story.machine.drops == {"discarded_by_lineage": 2}


def test_L2_a_frame_of_a_newer_generation_stops_the_task() -> None:
    """After it the task does and writes nothing, whatever it is told."""
    play(
        task(),
        Rows(0, "a", lie=Lie(generation=2)),
        Expect("zombie 2"),
        MayRead(may=False),
        Rows(0, "a"),
        ticked(9),
        Durable(1),
        Expect(),
    )


def test_L2_what_the_task_was_about_to_write_is_not_written() -> None:
    """The frame that shows a newer generation takes back the commands that came up together with it."""
    story = play(task(), Holds(), Rows(0, "a"), Expect("apply a"), emits={"apply a": [emission("b")]})
    header = story.header(0, Lie(generation=2))
    story.handle(ev.FrameRead(IN, Offset(1), DataFrame(header, (rows("x"),)), 10))
    Answers().act(story)
    Expect("zombie 2").act(story)


def test_L2_a_newer_generation_is_noticed_while_a_snapshot_is_taken() -> None:
    """A long step does not keep a task from learning that it is a zombie."""
    play(
        task(),
        Holds(),
        Barrier(0, 1),
        Expect("flush 1"),
        Rows(0, "x", lie=Lie(generation=2)),
        Expect("zombie 2"),
        Event(ev.Ticked(3)),
        Expect(),
    )
