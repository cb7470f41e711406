# ruff: noqa: N802 -- a test carries its rule's name
"""What the job knows of its sources' splits is durable before anybody acts on it: I1, I3, and what FINISHED means (E1)."""

from msgspec import structs

from tests.unit.protocol_coordinator_support import DOCUMENT, NAME
from tests.unit.protocol_coordinator_world import World, started
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import Offset, SplitId, VertexId
from tidemark.shared.model.messages import (
    Assign,
    CreateProcessor,
    Drain,
    ReadSplits,
    StartProcessor,
    StartSources,
    StopProcessor,
    TellEnds,
)
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator.record import decode_kept, encode_kept
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings

READ = VertexId("read")


def listed(world: World) -> dict[SplitId, KnownSplit]:
    """What the row has of the source's splits."""
    return decode_kept(world.row.extra).splits.get(READ, {})


def starting(*, sources: int = 1, settings: CoordinatorSettings | None = None) -> World:
    """A processor that has been asked to start."""
    world = World(settings)
    world.lead()
    world.standard_workers()
    world.request(CreateProcessor("create", NAME, DOCUMENT, {"source": sources}))
    world.settle()
    world.request(StartProcessor("start", NAME))
    return world


def test_I1_nothing_is_read_before_the_row_lists_it() -> None:
    """While the write is not answered no task is told, and sources do not start."""
    world = starting()
    world.fate = lambda c: None if isinstance(c, do.StoreUpdate) and world.said(Assign) else "done"
    world.settle()
    world.pass_ms(500)
    assert world.said(Assign)
    assert not world.said(ReadSplits)
    assert not world.said(StartSources)
    world.fate = lambda _: "done"
    world.settle()
    (told,) = world.said(ReadSplits)
    assert told.splits == listed(world) != {}  # type: ignore[union-attr]
    assert world.said(StartSources)


def test_I1_a_source_is_listed_whole_the_first_time() -> None:
    """While one of its tasks has not said what it sees, nothing is written: in the next generation it would have come since."""
    world = starting(sources=2)
    world.telling = lambda task: task.id.index != 1
    world.settle()
    world.pass_ms(1_000)
    assert listed(world) == {}
    assert not world.said(StartSources)
    world.telling = lambda _: True
    world.tell_found(*world.holder("read", 1))
    world.settle()
    assert sorted(listed(world)) == ["t-0", "t-1"]
    assert {c.index: sorted(c.splits) for c in world.said(ReadSplits)} == {0: ["t-0"], 1: ["t-1"]}  # type: ignore[union-attr]


def test_I1_a_task_without_splits_hears_that_the_source_is_listed() -> None:
    """What it finds from then on has come since, and begins with its first record."""
    world = starting(sources=2)
    world.grown = -1
    world.settle()
    assert sorted(listed(world)) == ["t-0"]
    assert {c.index: sorted(c.splits) for c in world.said(ReadSplits)} == {0: ["t-0"], 1: []}  # type: ignore[union-attr]
    world.pass_ms(1_500)
    world.grown = 0
    world.tell_found(*world.holder("read", 1))
    world.settle()
    assert listed(world)[SplitId("t-1")].begin == 0


def test_I1_what_one_task_has_listed_for_all_is_told_to_each() -> None:
    """Which version of a table is read is decided once: each task reads its share of what the first one found."""
    world = starting(sources=3)
    world.one_lists = True
    world.settle()
    assert sorted(listed(world)) == ["t-0", "t-1", "t-2"]
    assert {c.index: [*c.splits] for c in world.said(ReadSplits)} == {0: ["t-0"], 1: ["t-1"], 2: ["t-2"]}  # type: ignore[union-attr]
    assert world.said(StartSources)


def test_I1_what_one_task_has_listed_for_all_is_told_by_another_leader_too() -> None:
    """The row has it, and its writer fell silent before any task was told."""
    world = starting(sources=3)
    world.one_lists = True
    world.fate = lambda c: (
        "ambiguous-done"
        if isinstance(c, do.StoreUpdate) and world.said(Assign)
        else None
        if world.said(Assign) and listed(world)
        else "done"
    )
    world.settle()
    assert listed(world)
    assert not world.said(ReadSplits)
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(10_000)
    last = {c.index: [*c.splits] for c in world.said(ReadSplits)}  # type: ignore[union-attr]
    assert last == {0: ["t-0"], 1: ["t-1"], 2: ["t-2"]}
    assert world.said(StartSources)


def test_I1_a_split_begins_where_it_began_over_a_failure_before_the_first_commit() -> None:
    """`latest` moves on; what the row lists does not."""
    world = started()
    begin = listed(world)[SplitId("t-0")].begin
    world.fail("read")
    world.pass_ms(1_000)
    assert world.row.generation == 2
    again = next(c for c in world.assigned(2).values() if c.vertex == READ)
    assert again.listed
    assert again.splits[SplitId("t-0")].begin == begin


def test_I1_what_is_found_again_begins_where_the_row_says() -> None:
    """A task that looks anew, and sees `latest` further on, is told the begin that was written first."""
    world = started()
    begin = listed(world)[SplitId("t-0")].begin
    world.pass_ms(1_000)
    worker, task = world.holder("read")
    task.splits, task.listed = {}, False
    world.tell_found(worker, task)
    world.settle()
    assert listed(world)[SplitId("t-0")].begin == begin
    assert task.splits[SplitId("t-0")].begin == begin


def test_I1_a_split_that_comes_later_is_listed_and_then_told() -> None:
    """The task that owns it is told, and it begins with its first record."""
    world = started()
    world.pass_ms(1_500)
    world.grown = 1
    world.fate = lambda c: None if isinstance(c, do.StoreUpdate) else "done"
    world.tell_found(*world.holder("read"))
    world.settle()
    assert len(world.said(ReadSplits)) == 1
    world.fate = lambda _: "done"
    world.settle()
    assert list(world.said(ReadSplits)[-1].splits) == ["t-1"]  # type: ignore[union-attr]
    assert listed(world)[SplitId("t-1")].begin == 0


def test_I1_a_new_leader_asks_for_what_was_told_to_the_old_one() -> None:
    """The report of a split that came is lost with its leader; the next one hears of it all the same."""
    world = started()
    world.pass_ms(1_500)
    world.grown = 1
    world.crash_node(world.nodes[0])
    world.tell_found(*world.holder("read"))
    world.nodes[0].inbox.clear()
    world.lead()
    world.pass_ms(7_000)
    assert world.row.generation == 1
    assert sorted(listed(world)) == ["t-0", "t-1"]


def test_I1_a_new_life_lists_its_splits_anew() -> None:
    """A start without state begins where the document says, not where the old job did."""
    world = started()
    world.pass_ms(1_500)
    before = listed(world)
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(2_000)
    assert listed(world)[SplitId("t-0")].begin > before[SplitId("t-0")].begin


def test_I1_splits_that_fit_no_assignment_are_refused_with_what_to_do() -> None:
    """FAILED with the setting, the sizes and a way out, before anything is read."""
    world = starting(settings=CoordinatorSettings(splits_bytes_max=1))
    world.pass_ms(500)
    assert world.row.state == "FAILED"
    assert "read/0: its 1 splits" in world.row.reason
    assert "at most 1, by message_bytes_max" in world.row.reason
    assert not world.said(StartSources)


def test_I1_files_that_are_gone_leave_the_row() -> None:
    """A folder that is read and cleared for years does not make the row grow."""
    world = started()
    world.grown = 1
    worker, task = world.holder("read")
    world.tell_found(worker, task)
    world.settle()
    assert sorted(listed(world)) == ["t-0", "t-1"]
    world.grown = 0
    world.tell_found(worker, task, gone=(SplitId("t-1"),))
    world.settle()
    assert sorted(listed(world)) == ["t-0"]


def test_I3_ends_are_durable_before_a_source_is_told() -> None:
    """While the write is not answered no task hears of an end."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("drain", NAME, drain=True))
    world.fate = lambda c: None if isinstance(c, do.StoreUpdate) and world.said(TellEnds) else "done"
    world.settle()
    assert world.said(TellEnds)
    assert not world.said(Drain)
    assert not decode_kept(world.row.extra).ended
    world.fate = lambda _: "done"
    world.settle()
    (told,) = world.said(Drain)
    assert told.splits == listed(world)  # type: ignore[union-attr]
    assert listed(world)[SplitId("t-0")].end is not None


def test_I3_the_ends_are_decided_when_every_source_has_told_its_own() -> None:
    """With the answer of one task missing nothing is written: what it reads would have no end."""
    world = started(parallelism={"source": 2})
    world.pass_ms(1_500)
    world.telling = lambda task: task.id.index != 1
    world.request(StopProcessor("drain", NAME, drain=True))
    world.pass_ms(1_000)
    assert not world.said(Drain)
    world.telling = lambda _: True
    world.tell_ends(*world.holder("read", 1), {})
    world.settle()
    assert sorted(c.index for c in world.said(Drain)) == [0, 1]  # type: ignore[union-attr]


def test_I3_every_later_generation_has_the_same_ends() -> None:
    """A source that restores further back, and would end sooner, is assigned the ends that were decided."""
    world = started()
    world.pass_ms(1_500)
    world.holder("read")[1].offset = 10_000
    world.acking = lambda _: False
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    assert listed(world)[SplitId("t-0")].end == 10_000
    world.fail("count")
    world.acking = lambda _: True
    world.pass_ms(3_000)
    assert world.assigned(2)[world.holder_id("read")].splits[SplitId("t-0")].end == 10_000
    assert len(world.said(TellEnds)) == 1
    assert world.row.state == "FINISHED"


def test_I3_a_new_leader_tells_of_ends_that_the_old_one_wrote() -> None:
    """The row has them; the task that holds its input hears of them, and is not asked again."""
    world = started()
    world.pass_ms(1_500)
    world.fate = lambda c: None if isinstance(c, do.Publish) and isinstance(c.command, Drain) else "done"
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    assert decode_kept(world.row.extra).ended
    world.crash_node(world.nodes[0])
    world.fate = lambda _: "done"
    world.lead()
    world.pass_ms(3_000)
    assert len(world.said(TellEnds)) == 1
    assert world.row.state == "FINISHED"


def test_I3_a_split_that_comes_after_the_ends_are_decided_has_no_part() -> None:
    """It is neither listed nor told; the input has ended without it."""
    world = started()
    world.pass_ms(1_500)
    world.acking = lambda _: False
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    world.grown = 1
    world.tell_found(*world.holder("read"))
    world.settle()
    assert sorted(listed(world)) == ["t-0"]


def test_E1_finished_means_that_each_split_is_at_its_end() -> None:
    """A final checkpoint that has a split in front of its end is refused, with the split and both positions."""
    world = started()
    world.pass_ms(1_500)
    for vertex in ("read", "count", "emit"):
        world.holder(vertex)[1].draining = True  # END everywhere, though nobody decided on an end
    _, task = world.holder("read")
    task.splits[SplitId("t-0")] = KnownSplit(0, "t", Offset(0), None)
    task.stands = "active"
    world.pass_ms(2_000)
    assert world.row.state == "FAILED"
    assert "split t-0 stands at" in world.row.reason
    assert not any(c.final for c in world.store.history[world.row.job])


def test_I3_a_split_that_comes_while_the_ends_are_decided_has_no_part() -> None:
    """One task has told its ends, another has not; what the first finds now would have no end, and the drain none either."""
    world = started(parallelism={"source": 2})
    world.pass_ms(1_500)
    world.telling = lambda task: task.id.index == 0
    world.request(StopProcessor("drain", NAME, drain=True))
    world.settle()
    world.grown = 1
    world.tell_found(*world.holder("read", 0))
    world.settle()
    world.telling = lambda _: True
    world.grown = 0
    world.tell_ends(*world.holder("read", 1), {})
    world.pass_ms(3_000)
    assert [sorted(c.splits) for c in world.said(ReadSplits)] == [["t-0"], ["t-1"]]  # type: ignore[union-attr]
    assert sorted(listed(world)) == ["t-0", "t-1"]
    assert world.row.state == "FINISHED"


def test_I1_a_row_with_commits_and_without_splits_is_refused() -> None:
    """Restored from it, a source would begin where the document says: nothing is assigned, and the way out is said."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("stop", NAME))
    world.pass_ms(2_000)
    kept = structs.replace(decode_kept(world.row.extra), splits={})
    world.store.rows[NAME] = structs.replace(world.row, extra=encode_kept(kept))
    world.crash_node(world.nodes[0])
    world.lead()
    world.standard_workers()
    world.request(StartProcessor("again", NAME))
    world.pass_ms(1_000)
    assert world.row.state == "FAILED"
    assert "lists no splits of read" in world.row.reason
    assert not world.assigned(2)
    world.request(StartProcessor("anew", NAME, resume=False))
    world.pass_ms(2_000)
    assert world.row.state == "RUNNING"


def test_I3_an_end_is_named_of_splits_that_there_are() -> None:
    """A name that is none is refused, with those that are; it was passed over, and the split ended elsewhere."""
    world = started()
    world.pass_ms(1_500)
    world.request(StopProcessor("drain", NAME, drain=True, until={"t-7": Offset(5)}))
    world.settle()
    assert world.nodes[0].answers["drain"] == "until: flights reads no split named t-7; it reads t-0"
    assert world.row.desired == "running"


def test_E1_a_split_that_nobody_read_is_not_at_its_end() -> None:
    """A final checkpoint that says nothing of a split that the row lists is refused as well."""
    world = started()
    world.pass_ms(1_500)
    for vertex in ("read", "count", "emit"):
        world.holder(vertex)[1].draining = True
    world.holder("read")[1].splits.clear()
    world.pass_ms(2_000)
    assert world.row.state == "FAILED"
    assert "nothing was read of split t-0" in world.row.reason
