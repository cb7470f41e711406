# ruff: noqa: N802 -- a test carries its rule's name
"""Windows by the rules: when output is dated (W6), what travels so that nothing is lost in silence (P3), stream and batch (P4)."""

import json
from typing import Any

import pytest

from tests.harness.window_world import CONTEXT, World
from tidemark.shared.language.documents import parse
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.time import MAX_TIME, MIN_TIME
from tidemark.shared.model.values import Document
from tidemark.shared.operators.base import MAX_OPEN, MIN_OPEN, TS, WSTART, OperatorError, Out
from tidemark.shared.operators.batches import documents_of
from tidemark.shared.operators.partial import PartialAggregate
from tidemark.shared.operators.step import EpochInput, Step, StepState, Times
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning.physical import plan_processor
from tidemark.shared.planning.specs import StepHead

SCHEMA = {"t": "date", "k": "string", "v": "int"}
GROUP = {"$group": {"_id": "$k", "n": {"$sum": 1}}}


def ms(size: int) -> dict[str, Any]:
    return {"size": size, "unit": "ms"}


def record(time_ms: int, key: str = "a", value: int = 0) -> bytes:
    return json.dumps({"t": {"$date": {"$numberLong": str(time_ms)}}, "k": key, "v": value}).encode()


def pipeline(size: int, hop: int | None = None, *, lateness: str = "merged", **options: Any) -> dict[str, Any]:
    """A source of declared fields and one window that counts by key."""
    source = {"connectionName": "c", "topic": "t", "timeField": "$t", "schema": SCHEMA}
    window: dict[str, Any] = {"interval": ms(size), "allowedLateness": ms(0), "pipeline": [GROUP], **options}
    stage = {"$tumblingWindow": window} if hop is None else {"$hoppingWindow": {**window, "hopSize": ms(hop)}}
    return {"pipeline": [{"$source": source}, stage], "options": {"lateness": lateness}}


def world(document: dict[str, Any], *splits: list[bytes], tasks: int = 1) -> World:
    return World(document, splits, tasks)


def times(made: World) -> list[int]:
    """The times of the rows that windows gave."""
    return [t for out in made._covered if out.port == OUT for t in out.batch.column(TS).to_pylist()]


# --- W6 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "expected"), [("end", [9]), ("earliest", [3]), ("latest", [7])])
def test_W6_the_time_of_a_windows_output_is_what_the_document_says(how: str, expected: list[int]) -> None:
    """The last instant inside (D10), the earliest on-time element (D9), or the latest."""
    made = world(pipeline(10, outputTime=how), [record(3), record(7), record(5)])
    made.finish()
    assert times(made) == expected


@pytest.mark.parametrize(("how", "expected"), [("end", 9), ("earliest", 3), ("latest", 7)])
@pytest.mark.parametrize(
    "stages", [[{"$count": "n"}], [{"$sort": {"v": 1}}, GROUP], [GROUP, {"$group": {"_id": None, "n": {"$sum": "$n"}}}]]
)
def test_W6_what_is_gathered_when_a_window_closes_has_its_time(
    stages: list[dict[str, Any]], how: str, expected: int
) -> None:
    """Counts, groups of sorted documents and groups of groups are dated by all the elements, as groups made beforehand are."""
    document = pipeline(10, outputTime=how)
    document["pipeline"][1]["$tumblingWindow"]["pipeline"] = stages
    made = world(document, [record(3), record(7), record(5)])
    made.finish()
    assert times(made) == [expected]


def test_W6_earliest_passes_over_elements_that_were_behind_the_watermark() -> None:
    """An element counts for `earliest` if its time is at or above the watermark before it; the window's end where none does (D9)."""
    made = world(pipeline(10, lateness="split", outputTime="earliest"), [record(5), record(2), record(8)])
    made.finish()
    assert times(made) == [5]
    alone = world(pipeline(10, lateness="split", outputTime="earliest"), [record(8, "b"), record(2, "a")])
    alone.finish()
    assert sorted(times(alone)) == [8, 9]


def test_W6_latest_passes_over_elements_that_were_behind_the_watermark() -> None:
    """What comes out must not lie behind what was said: a group of nothing else has the window's end."""
    alone = world(pipeline(10, lateness="split", outputTime="latest"), [record(8, "b"), record(2, "a")])
    alone.finish()
    assert sorted(times(alone)) == [8, 9]


@pytest.mark.parametrize("how", ["earliest", "latest"])
@pytest.mark.parametrize("stages", [[GROUP], [{"$limit": 5}]])
def test_W6_the_output_watermark_waits_for_rows_as_for_groups(stages: list[dict[str, Any]], how: str) -> None:
    """A window whose output may be dated 3 lets no more than that be said, in whichever form its elements lie in it."""
    document = pipeline(10, outputTime=how)
    document["pipeline"][1]["$tumblingWindow"]["pipeline"] = stages
    made = world(document, [record(3, "a"), record(8, "b")])
    made.feed(0, 2)
    made.epoch()
    assert made._step.output_watermark() == 3
    made.finish()
    assert times(made) == [3, 8]


def test_W6_earliest_of_overlapping_windows_is_raised_to_the_end_of_the_one_before() -> None:
    """So that a stage behind does not wait with each window for all that overlap it."""
    made = world(pipeline(10, 5, outputTime="earliest"), [record(7), record(12)])
    made.finish()
    by_start = {
        start: time
        for out in made._covered
        if out.port == OUT
        for start, time in zip(out.batch.column(WSTART).to_pylist(), out.batch.column(TS).to_pylist(), strict=True)
    }
    assert by_start == {0: 7, 5: 10, 10: 15}


def test_W6_the_output_watermark_waits_for_an_earlier_output_time() -> None:
    """An open window that may still give an early row holds the watermark back; otherwise that row would be late behind it (W1)."""
    spec = _step(pipeline(10, outputTime="earliest"))
    partials = [out.batch for out in _partials(pipeline(10, outputTime="earliest"), [record(3), record(14)])]
    taken = spec(StepState(), EpochInput(partials), Times(MIN_TIME, 10))
    assert taken.output_watermark_ms == 10
    held = spec(StepState(), EpochInput(partials), Times(MIN_TIME, 8))
    assert held.output_watermark_ms == 3


def test_open_windows_are_told_among_the_counters() -> None:
    """The starts of the first and the last that is open; nothing where none is."""
    made = world(pipeline(10), [record(5), record(25), record(38)])
    made.feed(0, 1)
    made.epoch()
    assert (made.step_counters()[MIN_OPEN], made.step_counters()[MAX_OPEN]) == (0, 0)
    made.feed(0, 2)
    made.epoch()
    assert (made.step_counters()[MIN_OPEN], made.step_counters()[MAX_OPEN]) == (30, 30)
    made.finish()
    assert not {MIN_OPEN, MAX_OPEN} & made.step_counters().keys()


# --- P3 ---------------------------------------------------------------------------------------------------------------


def test_P3_a_row_that_may_be_late_travels_alone_and_its_letter_has_the_document() -> None:
    """Behind a watermark that was sent, a row goes as it is; the step judges it, and the dead letter holds the whole document."""
    made = world(pipeline(10), [record(5), record(25), record(6, value=42)])
    made.feed(0, 2)
    made.epoch()
    made.feed(0, 1)
    sent = [out for out in made.tasks[0].channel if isinstance(out, Out)]
    assert [(out.content, out.batch.num_rows) for out in sent] == [("rows", 1)]
    made.finish()
    assert [letter["doc"]["v"] for letter in made.dead_letters()] == [42]
    assert [d["n"] for d in made.documents()] == [1, 1]
    assert made.step_counters()["late"] == 1


def test_P3_a_late_partial_is_counted_and_never_taken_in() -> None:
    """What came aggregated all the same for a window that has closed opens it not again, and every record in it is counted."""
    step = _step(pipeline(10))
    (partial,) = [out.batch for out in _partials(pipeline(10), [record(3), record(4, "b"), record(5)])]
    result = step(StepState(), EpochInput([partial]), Times(10, 20))
    assert result.counts.late_partials == 3
    assert [out for out in result.outs if out.batch.num_rows] == []
    assert result.state.partials is None


def test_P3_rows_of_a_split_that_was_idle_travel_alone() -> None:
    """The receivers may have gone ahead of a split that idleness had left out: what it brings goes unaggregated, in either mode."""
    for lateness in ("merged", "split"):
        made = world(pipeline(10, lateness=lateness), [record(5), record(50)], [record(7), record(8)])
        made.feed(0, 1)
        made.tasks[0].front.on_status(list(made.tasks[0].splits)[1], "idle")
        made.feed(1, 2)
        contents = [out.content for out in made.tasks[0].channel if isinstance(out, Out)]
        assert contents == ["rows"], lateness


# --- P4 ---------------------------------------------------------------------------------------------------------------

SPLITS = (
    [record(t, k, i) for i, (t, k) in enumerate([(3, "a"), (12, "b"), (1, "a"), (27, "a"), (14, "b"), (40, "a")])],
    [record(t, k, 10 + i) for i, (t, k) in enumerate([(22, "b"), (5, "a"), (35, "b"), (11, "b")])],
)


@pytest.mark.parametrize("hop", [None, 4])
@pytest.mark.parametrize("tasks", [1, 2])
def test_P4_the_same_step_over_all_of_the_input_is_the_batch_run(hop: int | None, tasks: int) -> None:
    """With `lateness: split` one step over everything gives the rows that the stream gave in many epochs, and the same dead letters."""
    document = pipeline(10, hop, lateness="split")
    stream = World(document, SPLITS, tasks)
    for number in range(6):
        stream.feed(number % 2, 1)
        stream.epoch()
        if number == 3:
            stream.restart()
    stream.finish()
    batch = [out for split in SPLITS for out in _partials(document, split)]
    step = _step(document)
    given = EpochInput([out.batch for out in batch if out.port == OUT])
    result = step(StepState(), given, Times(MIN_TIME, MAX_TIME))
    assert _sorted([d for out in result.outs for d in documents_of(out.batch)]) == _sorted(stream.documents())
    late = [d["doc"]["v"] for out in batch if out.port == DLQ for d in documents_of(out.batch)]
    assert sorted(late) == sorted(d["doc"]["v"] for d in stream.dead_letters()) != []


# --- parts --------------------------------------------------------------------------------------------------------------


def _step(document: dict[str, Any]) -> Step:
    head = plan_processor(parse(document), collects=True).vertices[1].head
    assert isinstance(head, StepHead)
    return Step(WindowPlan(head.step.window), CONTEXT)


def _partials(document: dict[str, Any], split: list[bytes]) -> list[Out]:
    """What a source task makes of one split's records in one epoch."""
    made = World(document, [split], 1)
    made.feed(0, len(split))
    made.flush(0)
    return [out for out in made.tasks[0].channel if isinstance(out, Out)]


def _sorted(documents: list[Document]) -> list[str]:
    return sorted(json.dumps(d, default=str, sort_keys=True) for d in documents)


# --- what travels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "documents"),
    [
        ([{"$count": "n"}], [{}] * 4),
        ([{"$sort": {"v": -1}}, {"$group": {"_id": None, "v": {"$sum": "$v"}}}], [{"v": n} for n in range(4)]),
        ([{"$sort": {"v": -1}}, {"$group": {"_id": {"p": "$v", "q": "$w"}}}], [{"v": n} for n in range(4)]),
        ([{"$match": {"k": "a"}}, {"$count": "n"}], [{"k": "a"}] * 4),
        ([{"$sort": {"v": -1}}, {"$skip": 1}, {"$limit": 1}, {"$project": {"v": 1}}], [{"k": "a", "v": 2}, {"k": "a", "v": 3}]),
        ([{"$limit": 2}, {"$count": "n"}], [{}] * 2),
        ([{"$sort": {"v": -1}}, {"$group": {"_id": None, "v": {"$max": {"$sqrt": "$v"}}}}], [{"k": "a", "v": n} for n in range(4)]),
    ],
    ids=["none", "two stages", "a key of fields", "a query", "the first", "the first, none", "a stage may fail"],
)  # fmt: skip
def test_PA6_no_more_of_rows_travels_than_a_window_looks_at(stages: list[dict[str, Any]], documents: list[Any]) -> None:
    """Fields that no stage looks at stay behind, and so do rows that a limit would not let through."""
    found = _partials(pipeline(10, pipeline=stages), [record(n, value=n) for n in range(4)])
    sent = [d for out in found for d in documents_of(out.batch)]
    assert [{n: v for n, v in d.items() if n != "t"} if len(d) > 2 else d for d in sent] == documents


@pytest.mark.parametrize("stages", [[{"$count": "n"}], [{"$sort": {"v": -1}}, {"$limit": 1}, {"$count": "n"}]])
def test_PA6_a_late_row_comes_whole(stages: list[dict[str, Any]]) -> None:
    """What the receiver may find late has its document, which the dead letter shows."""
    made = world(pipeline(10, pipeline=stages), [record(2), record(25), record(3, "b", 7)])
    for _ in range(3):
        made.feed(0, 1)
        made.epoch()
    made.finish()
    (letter,) = made.dead_letters()
    assert {n: letter["doc"][n] for n in ("k", "v")} == {"k": "b", "v": 7}


def test_rows_kept_before_a_window_asked_for_metadata_have_none() -> None:
    """A pipeline behind `$sort` may change while rows wait in open windows: those that it finds there lack the column."""
    told = {"$setStreamMeta": {"stream.kind": "$k"}}
    push = {"$group": {"_id": None, "kinds": {"$push": {"$ifNull": [{"$meta": "stream.kind"}, "none"]}}}}

    def made(*stages: dict[str, Any]) -> World:
        source, window = pipeline(10, pipeline=[{"$sort": {"v": 1}}, *stages])["pipeline"]
        return world({"pipeline": [source, told, window]}, [record(1, value=1), record(2, value=2)])

    before, after = made({"$limit": 5}), made(push)
    before.feed(0, 1)
    before.epoch()
    after._step.restore(dict(before._step_parts))
    after.finish()
    assert after.documents() == [{"_id": None, "kinds": ["none", "a", "a"]}]


_COUNT = {"$group": {"_id": "$k", "n": {"$sum": 1}}}
_ROWS = {"$sort": {"v": 1}}
_GENERAL = {"$group": {"_id": "$k", "n": {"$push": "$v"}}}


@pytest.mark.parametrize(("before", "after"), [(_COUNT, _ROWS), (_ROWS, _COUNT), (_GENERAL, _ROWS)])
@pytest.mark.parametrize("of_session", [False, True])
def test_windows_that_another_build_worked_on_are_refused(
    before: dict[str, Any], after: dict[str, Any], *, of_session: bool
) -> None:
    """One that decides otherwise which work is done beforehand; columns that are not there would be null."""

    def made(stage: dict[str, Any]) -> World:
        source, window = pipeline(10, pipeline=[stage])["pipeline"]
        if of_session:
            gap = window["$tumblingWindow"]["interval"]
            window = {"$sessionWindow": {"gap": gap, "partitionBy": "$k", "pipeline": [stage]}}
        return world({"pipeline": [source, window]}, [record(1), record(2)])

    old, new = made(before), made(after)
    old.feed(0, 2)
    old.epoch()
    with pytest.raises(OperatorError, match=r"another build kept its open windows.*let that build close them"):
        new._step.restore(dict(old._step_parts))
    made(before)._step.restore(dict(old._step_parts))


# --- panes ------------------------------------------------------------------------------------------------------------

FAILS = [
    {"$addFields": {"x": {"$add": ["$v", {"$cond": [{"$eq": ["$v", 7]}, "$k", 1]}]}}},
    {"$group": {"_id": "$k", "n": {"$sum": "$x"}}},
]


def test_PA7_a_row_of_many_windows_is_looked_at_once() -> None:
    """Whatever window it is in, and whoever judges it; what it adds to each is what it adds to one."""
    made = world(
        pipeline(60, 1, pipeline=FAILS), [record(100, value=1), record(100, value=7), record(100, value=2), record(200)]
    )
    made.feed(0, 3)
    (task,) = made.tasks
    (partial,) = task.chain.operators
    assert isinstance(partial, PartialAggregate)
    assert [table.num_rows for table in partial._panes] == [1]
    assert partial.held_rows(0) == 60
    made.feed(0, 1)
    made.finish()
    documents = made.documents()
    assert len(documents) == 120
    assert [d["n"] for d in documents[:60]] == [5] * 60
    assert [letter["doc"]["v"] for letter in made.dead_letters()] == [7]


def test_PA7_a_row_that_the_receiver_judges_has_one_letter_as_well() -> None:
    """It is behind a watermark that was sent, and in time for some of its windows."""
    made = world(
        pipeline(60, 20, pipeline=FAILS, allowedLateness=ms(0)), [record(100), record(125), record(101, value=7)]
    )
    made.feed(0, 2)
    made.epoch()
    made.feed(0, 1)
    made.finish()
    reasons = [letter["errInfo"]["code"] for letter in made.dead_letters()]
    assert sorted(reasons) == ["DocumentLate", "TypeMismatch"]


@pytest.mark.parametrize(
    ("hop", "options", "panes"),
    [
        (None, {}, False),
        (10, {}, False),
        (5, {}, True),
        (3, {}, True),
        (5, {"outputTime": "earliest"}, False),
        (5, {"pipeline": [{"$count": "n"}]}, False),
        (5, {"pipeline": [{"$group": {"_id": {"$meta": "stream.window.start"}}}]}, False),
        (5, {"pipeline": [{"$addFields": {"w": {"$meta": "stream"}}}, GROUP]}, False),
        (5, {"pipeline": [{"$addFields": {"w": {"$meta": "stream.source.ts"}}}, GROUP]}, True),
        (5, {"pipeline": [GROUP, {"$addFields": {"w": {"$meta": "stream.window.start"}}}]}, True),
    ],
)
def test_PA7_windows_that_overlap_have_panes_unless_each_has_its_own_rows(
    hop: int | None, options: dict[str, Any], panes: bool
) -> None:
    """By what the window's pipeline reads of the window."""
    head = plan_processor(parse(pipeline(10, hop, **options)), collects=True).vertices[1].head
    assert isinstance(head, StepHead)
    assert WindowPlan(head.step.window).by_panes == panes


# --- ST1 --------------------------------------------------------------------------------------------------------------


def test_ST1_rows_are_judged_by_where_the_watermark_stood_at_the_barrier_before() -> None:
    """However far senders have gone since: so positions at barriers say which rows are late."""
    for meets_barrier in (False, True):
        made = world(pipeline(10, pipeline=[{"$sort": {"v": 1}}, {"$count": "n"}]), [record(2), record(25), record(3)])
        for _ in range(2):
            made.feed(0, 1)
            made.flush(0)
            made.deliver(0, 9)
        if meets_barrier:
            made.epoch()
        made.feed(0, 1)
        made.finish()
        assert len(made.dead_letters()) == meets_barrier


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("inside", [[GROUP], [{"$sort": {"v": 1}}, {"$count": "n"}]])
def test_ST1_which_late_rows_join_a_session_does_not_depend_on_which_came_first(
    first: int, inside: list[dict[str, Any]]
) -> None:
    """Within an epoch: a row that is too late by itself is not, beside one that keeps their session open."""
    document = pipeline(10)
    session = {"gap": ms(5), "partitionBy": "$k", "allowedLateness": ms(0), "pipeline": inside}
    document["pipeline"][1] = {"$sessionWindow": session}
    made = world(document, [record(20, "z"), record(12)], [record(20, "z"), record(16)], tasks=2)
    made.feed(0, 1)
    made.feed(1, 1)
    made.epoch()
    for index in (first, 1 - first):
        made.feed(index, 1)
        made.flush(index)
        made.deliver(index, 9)
    made.finish()
    assert made.dead_letters() == []
    assert [each["n"] for each in made.documents()] == [2, 2]


def test_W3_a_step_with_rows_or_windows_that_wait_for_the_barrier_holds_them() -> None:
    """So its task is not idle before that: receivers would be past what it lets out."""
    made = world(pipeline(10, pipeline=[{"$sort": {"v": 1}}, {"$count": "n"}]), [record(2), record(25)])
    step = made._step
    made.feed(0, 1)
    made.flush(0)
    made.deliver(0, 9)
    assert step.held_rows(0) == 1
    made.epoch()
    assert step.held_rows(0) == 0
    step.on_watermark(25)
    assert step.held_rows(0) == 1
    assert len(step.before_barrier()) == 1
    assert step.held_rows(0) == 0
