# ruff: noqa: N802 -- a test carries its rule's name
"""Key groups of windows' partials: where a stage on Spark is divided by them, and by which keys."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import VertexId, groups_of_part, groups_owned, groups_part, owner_of
from tidemark.shared.model.plan import PhysicalPlan
from tidemark.shared.operators.aggregation import partials_of
from tidemark.shared.operators.base import GROUP, PART, POS, TS, WEND, WSTART
from tidemark.shared.operators.batches import batch_of
from tidemark.shared.operators.build import build_operator
from tidemark.shared.operators.closing import close
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.specs import InOrderSpec, PartialSpec
from tidemark.shared.operators.window_keys import counted, hashes, homes, key_groups
from tidemark.shared.operators.window_plan import WindowPlan
from tidemark.shared.planning import StepHead, plan_processor
from tidemark.shared.planning.describe import operators

GROUPS = 128
SOURCE = {"$source": {"connectionName": "b", "topic": "in", "schema": {"k": "string", "n": "int", "v": "long"}}}
MINUTE = {"size": 1, "unit": "minute"}
COUNT = {"n": {"$sum": 1}}
PUSH = {"vs": {"$push": "$v"}}


def _window(*pipeline: dict[str, Any], kind: str = "$tumblingWindow", **options: Any) -> dict[str, Any]:
    size = {} if kind == "$sessionWindow" else {"interval": MINUTE}
    return {kind: {**size, **options, "pipeline": list(pipeline)}}


def _group(key: Any = "$k", **fields: Any) -> dict[str, Any]:
    return {"$group": {"_id": key, **(fields or COUNT)}}


def _session(*pipeline: dict[str, Any], **options: Any) -> dict[str, Any]:
    return _window(*pipeline, kind="$sessionWindow", gap=MINUTE, **options)


def _plan(*stages: dict[str, Any]) -> PhysicalPlan:
    connections = {"b": {"type": "kafka", "bootstrapServers": "a:1"}, "t": {"type": "sql", "url": "sqlite:///t.db"}}
    return plan_processor(
        parse(json.dumps({"connections": connections, "pipeline": [SOURCE, *stages]})), GROUPS, collects=True
    )


@pytest.mark.parametrize(
    ("window", "why"),
    [
        (_window(_group()), ""),
        (_window({"$match": {"v": 1}}, _group({"a": "$k", "b": "$x"}), {"$addFields": {"m": 1}}), ""),
        (_window(_group(**PUSH), kind="$hoppingWindow", hopSize={"size": 10, "unit": "second"}), ""),
        (_window(_group(), boundary="processingTime"), ""),
        (_session(_group(), {"$sort": {"n": 1}}, partitionBy="$k"), ""),
        (_session(_group()), "sessions without partitionBy are of all rows"),
        (_window(_group(None)), "$group has one _id for all rows"),
        (_window({"$sort": {"v": 1}}, _group()), "its pipeline begins with no $group"),
        (_window(_group(), {"$sort": {"n": 1}}, {"$limit": 3}), "$sort behind $group takes all groups of a window"),
        (_window(_group(), {"$count": "c"}), "$count behind $group takes all groups"),
        (_window(_group(), _group(None)), "$group behind $group takes all groups"),
        (_window(_group(), idleTimeout=MINUTE), "idleTimeout runs from the last arrival of any key"),
        (_window({"$unwind": "$vs"}, _group()), "$unwind before $group gives a row that may be late several keys"),
    ],
    ids=str,
)  # fmt: skip
def test_a_stage_has_tasks_by_key_groups_unless_one_has_to_see_all_rows(window: dict[str, Any], why: str) -> None:
    """`explain` says which, and why; the edge and the sender's half agree with it."""
    plan = _plan(window)
    source, stage = plan.vertices[0], plan.vertices[1]
    (partial,) = [spec for spec in source.chain if isinstance(spec, PartialSpec)]
    (edge,) = plan.inputs_of(stage.id)
    (said,) = operators(stage)
    if not why:
        assert (stage.max_tasks, edge.partitioning, partial.key_groups) == (None, "key", GROUPS)
        assert said.endswith(", by key groups")
    else:
        assert (stage.max_tasks, edge.partitioning, partial.key_groups) == (1, "single", 0)
        assert said.split(", in one task: ")[1].startswith(why)


@pytest.mark.parametrize("tasks", [1, 2, 3, 5, 127, 128])
def test_R4_a_task_owns_the_key_groups_that_are_routed_to_it(tasks: int) -> None:
    """The range of a task is what `owner_of` gives it; a part's name says the range."""
    owned = [groups_owned(index, tasks, GROUPS) for index in range(tasks)]
    assert [group for groups in owned for group in groups] == list(range(GROUPS))
    assert all(owner_of(group, tasks, GROUPS) == index for index, groups in enumerate(owned) for group in groups)
    assert all(groups_of_part(groups_part(groups).partition(":")[2]) == groups for groups in owned)


def _stage(window: dict[str, Any]) -> WindowPlan:
    head = _plan(window).vertices[1].head
    assert isinstance(head, StepHead)
    return WindowPlan(head.step.window)


def _rows(count: int) -> pa.RecordBatch:
    documents = [{"k": f"k{n % 37}", "n": n % 5, "v": n, "x": {"y": n % 3}} for n in range(count)]
    numbers = pa.array(np.arange(count, dtype=np.int64))
    engine = {TS: numbers, PART: pa.array(np.zeros(count, dtype=np.int32)), POS: numbers}
    return batch_of(documents, engine)


@pytest.mark.parametrize(
    "window",
    [
        _window(_group()),
        _window(_group({"a": "$k", "b": "$n"})),
        _window(_group({"a": "$k", "b": "$x"}, **PUSH)),
        _window({"$addFields": {"q": {"$concat": ["$k", "!"]}}}, _group("$q", **PUSH)),
    ],
    ids=["typed", "several typed", "general", "computed"],
)
def test_PA5_a_row_that_travels_alone_goes_where_its_key_does(window: dict[str, Any]) -> None:
    """Its group is that of the partial that it becomes; each partial is of one task, and all of them are somebody's."""
    plan, rows = _stage(window), _rows(200)
    in_one = rows.append_column(WSTART, pa.array([0] * 200, pa.int64())).append_column(WEND, pa.array([60_000] * 200))
    found, _, _ = partials_of(plan, in_one, NOWHERE)
    alone = homes(plan, rows, GROUPS, NOWHERE)
    for row in range(200):
        its_own, _, _ = partials_of(plan, in_one.slice(row, 1), NOWHERE)
        assert key_groups(plan, its_own, GROUPS).tolist() == [alone[row]]
    assert len(set(alone.tolist())) > 20, "keys are spread over the groups"
    shares = [counted(plan, found, (first, first + 32), GROUPS) for first in range(0, GROUPS, 32)]
    assert sum(share.num_rows for share in shares) == found.num_rows
    for share, first in zip(shares, range(0, GROUPS, 32), strict=True):
        assert all(first <= group < first + 32 for group in key_groups(plan, share, GROUPS))


def test_PA5_a_row_that_is_dropped_or_fails_is_of_some_task() -> None:
    """One task tells of it: group 0's."""
    plan = _stage(_window({"$match": {"n": {"$ne": 0}}}, _group({"$divide": [1, {"$subtract": ["$n", 1]}]}, **PUSH)))
    rows = _rows(50)
    alone = homes(plan, rows, GROUPS, NOWHERE).tolist()
    assert {alone[row] for row in range(50) if row % 5 < 2} == {0}


def test_R4_the_key_groups_of_windows_never_change() -> None:
    """They route durable state: these are what the first release that divided stages had."""
    typed = pa.table({"__id0": pa.array(["JFK", "LGA", None])})
    assert hashes(_stage(_window(_group())), typed).tolist() == [3057782089, 1969701690, 1210518909]
    both = pa.table({"__id0": pa.array(["JFK", "LGA"]), "__id1": pa.array([1, 2], pa.int32())})
    assert hashes(_stage(_window(_group({"a": "$k", "b": "$n"}))), both).tolist() == [3895032977, 3835756324]


def test_ST6_rows_of_one_window_have_an_order_that_depends_on_no_number_of_tasks() -> None:
    """Closed by one task or by three, each row has the same place among those of its time, and no two rows have one place."""
    plan = _stage(_window(_group(**PUSH)))
    count = 200
    rows = _rows(count)
    windows = pa.array(np.arange(count, dtype=np.int64) // 100 * 60_000)
    ends = pa.array(np.arange(count, dtype=np.int64) // 100 * 60_000 + 60_000)
    found, _, _ = partials_of(plan, rows.append_column(WSTART, windows).append_column(WEND, ends), NOWHERE)

    def places(table: pa.Table) -> list[tuple[Any, ...]]:
        (out,), _ = close(plan, table.combine_chunks().to_batches()[0], 0, NOWHERE)
        names = ("_id", TS, PART, POS)
        return list(zip(*(out.batch.column(name).to_pylist() for name in names), strict=True))

    whole = places(found)
    assert sorted(whole) == sorted(
        p for n in range(3) for p in places(counted(plan, found, (n * 43, n * 43 + 43), 128))
    )
    assert len({place[1:] for place in whole}) == len(whole)


def test_PA5_partials_and_rows_carry_their_group_where_the_stage_is_divided() -> None:
    """The sender's half adds GROUP by itself, for the partials that it held and for rows that it could not judge."""
    (spec,) = [spec for spec in _plan(_window(_group(**PUSH))).vertices[0].chain if isinstance(spec, PartialSpec)]
    operator = build_operator(spec, NOWHERE)
    operator.on_watermark(0)
    outs = [*operator.on_batch(_rows(100), "rows", ""), *operator.before_barrier()]
    assert {out.content for out in outs} <= {"rows", "partials"}
    assert all(GROUP in out.batch.schema.names for out in outs)


MERGE = {"$merge": {"into": {"connectionName": "t", "table": "r"}, "on": ["_id"]}}


def test_a_keyed_sink_restores_the_order_behind_several_tasks_only() -> None:
    """Behind a stage that may be divided, where its rows have a key; a computation in the order of arrival likewise."""
    divided, whole = _window(_group()), _window(_group(None))
    for window, specs in ((divided, (InOrderSpec("$merge"),)), (whole, ())):
        assert _plan(window, MERGE).vertex(VertexId("emit-1")).chain == specs
    compute = {"$compute": {"class": "tests.harness.computations:Marks", "key": "$a", "order": "arrival"}}
    for window, there in ((divided, True), (whole, False)):
        chain = _plan(window, compute).vertex(VertexId("compute-1")).chain
        assert (InOrderSpec("$compute") in chain) is there
