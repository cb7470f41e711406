"""`$group` on columns is `$group` on documents: partials of typed rows finish as partials of the same rows without columns do."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.drawn import parse_drawn
from tests.property.test_operators_columns import batch_of_records, documents, expressions, names
from tidemark.shared.language.accumulators.base import OrderKey
from tidemark.shared.language.accumulators.table import accumulator_input, implementation
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.expressions.errors import ExpressionError
from tidemark.shared.language.expressions.interpreter import evaluate
from tidemark.shared.language.stages import Group, InnerStage, Limit, Stage
from tidemark.shared.language.stages.base import Gathering, Passed
from tidemark.shared.language.values import canonical_key, decode_value, encode_value
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.values import MISSING, Date, Document
from tidemark.shared.operators import general_group
from tidemark.shared.operators.aggregation import travelling
from tidemark.shared.operators.base import ARRIVAL, PART, POS, TS, WEND, WSTART
from tidemark.shared.operators.batches import batch_of, concat, documents_of, engine_columns, one_batch, with_column
from tidemark.shared.operators.closing import close
from tidemark.shared.operators.context import NOWHERE
from tidemark.shared.operators.rows import environments
from tidemark.shared.operators.specs import WindowSpec
from tidemark.shared.operators.window_plan import WindowPlan

ops = st.sampled_from(
    [
        "$sum",
        "$avg",
        "$min",
        "$max",
        "$first",
        "$last",
        "$push",
        "$addToSet",
        "$stdDevPop",
        "$mergeObjects",
        "$setUnion",
        "$concatArrays",
        "$approxCountDistinct",
    ]
)
inputs = st.one_of(names.map(lambda n: f"${n}"), expressions)
accumulators: st.SearchStrategy[Any] = st.one_of(
    st.tuples(ops, inputs).map(lambda t: {t[0]: t[1]}),
    st.tuples(names, st.sampled_from([1, -1]), inputs).map(lambda t: {"$topN": {"n": 2, "sortBy": {t[0]: t[1]}, "output": t[2]}}),
    inputs.map(lambda i: {"$maxN": {"n": 2, "input": i}}),
    inputs.map(lambda i: {"$firstN": {"n": {"$add": [1, 1]}, "input": i}}),
    st.tuples(names, inputs).map(lambda t: {"$bottom": {"sortBy": {t[0]: 1}, "output": t[1]}}),
    inputs.map(lambda i: {"$median": {"input": i, "method": "approximate"}}),
)  # fmt: skip
keys: st.SearchStrategy[Any] = st.one_of(
    inputs, st.none(), st.dictionaries(st.sampled_from(["p", "q"]), names.map(lambda n: f"${n}"), min_size=1)
)


def plan_of(key: Any, fields: dict[str, Any]) -> WindowPlan:
    """A window that groups; one of its accumulators has no typed form, so that all go the general way."""
    fields = {**fields, "general": {"$stdDevPop": "$i"}}
    window = {"interval": {"size": 1, "unit": "second"}, "pipeline": [{"$group": {"_id": key, **fields}}]}
    source = {"$source": {"connectionName": "c", "topic": "t"}}
    stage: Stage = parse_drawn({"pipeline": [source, {"$tumblingWindow": window}]}).pipeline[1]
    return WindowPlan(WindowSpec(stage))  # type: ignore[arg-type]


def windowed(given_documents: list[dict[str, Any]], order: list[int]) -> pa.RecordBatch:
    """Rows in one of two windows, with order keys as drawn."""
    batch = batch_of_records(given_documents)
    places = pa.array([order[i % len(order)] for i in range(batch.num_rows)], pa.int64())
    batch = with_column(with_column(batch, TS, places), POS, pa.array(range(batch.num_rows), pa.int64()))
    starts = pa.array([1_000 * (i % 2) for i in range(batch.num_rows)], pa.int64())
    batch = with_column(with_column(batch, PART, starts.cast(pa.int32())), ARRIVAL, starts)
    return with_column(with_column(batch, WSTART, starts), WEND, starts)


def finished(plan: WindowPlan, parts: list[pa.RecordBatch]) -> tuple[list[bytes], int]:
    """What partials of these parts finish as, and how many rows failed."""
    found = [general_group.partials(plan, part) for part in parts]
    merged = one_batch(general_group.merge(plan, concat([one_batch(t) for t, _ in found])))
    rows = general_group.batch_of_groups(plan.group, general_group.finish(plan, merged), {})
    return sorted(encode_value(d) for d in documents_of(rows)), sum(len(f) for _, f in found)


def interpreted(plan: WindowPlan, rows: pa.RecordBatch) -> tuple[list[bytes], int]:
    """The same, document by document, each window's group by itself."""
    groups: dict[tuple[int, bytes], _Group] = {}
    failed = 0
    accumulators = [implementation(field.accumulator) for field in plan.group.fields]
    places = zip(*(rows.column(name).to_pylist() for name in (TS, PART, POS)), strict=True)
    for env, order, start in zip(
        environments(rows, documents_of(rows)), places, rows.column(WSTART).to_pylist(), strict=True
    ):
        try:
            value = evaluate(plan.group.id, env)
            inputs = [accumulator_input(field.accumulator, env) for field in plan.group.fields]
            for accumulator, given_value in zip(accumulators, inputs, strict=True):
                accumulator.add(accumulator.init(), given_value, order)
        except ExpressionError:
            failed += 1
            continue
        found = groups.setdefault((start, canonical_key(value)), _Group(order, value, [a.init() for a in accumulators]))
        if order <= found.order:
            found.order, found.value = order, value
        found.states = [
            a.add(state, given_value, order)
            for a, state, given_value in zip(accumulators, found.states, inputs, strict=True)
        ]
    names = ["_id", *(field.name for field in plan.group.fields)]
    documents_found = [
        [None if g.value is MISSING else g.value, *(a.finish(s) for a, s in zip(accumulators, g.states, strict=True))]
        for g in groups.values()
    ]
    return sorted(encode_value(dict(zip(names, each, strict=True))) for each in documents_found), failed


@dataclass
class _Group:
    order: tuple[int, int, int]
    value: Any
    states: list[Any]


@given(given_documents=st.lists(documents, max_size=8), key=keys, order=st.lists(st.integers(0, 5), min_size=1, max_size=8),
       fields=st.dictionaries(st.sampled_from(["a", "b", "c"]), accumulators, max_size=3), cut=st.integers(0, 8))  # fmt: skip
@settings(max_examples=150)
def test_groups_on_columns_are_groups_of_documents(
    given_documents: list[dict[str, Any]], key: Any, order: list[int], fields: dict[str, Any], cut: int
) -> None:
    """Same groups with the same values, however the rows are cut; the same rows fail."""
    plan = plan_of(key, fields)
    rows = windowed(given_documents, order)
    plain = batch_of(documents_of(rows), engine_columns(rows))
    parts = [part for part in (rows.slice(0, cut), rows.slice(cut)) if part.num_rows] or [rows]
    wanted = interpreted(plan, plain)
    assert finished(plan, parts) == wanted
    assert finished(plan, [plain]) == wanted


def test_a_row_that_one_accumulator_refuses_is_in_none() -> None:
    """What becomes a dead letter is not counted as well."""
    when = {"$date": {"$numberLong": "0"}}
    rows = windowed([{"s": "a", "i": i, "t": when, "x": x} for i, x in enumerate(({"y": 1}, {"y": 1}, 3))], [0])
    plan = plan_of("$s", {"n": {"$sum": 1}, "m": {"$mergeObjects": "$x"}, "set": {"$addToSet": "$i"}})
    found, failures = general_group.partials(plan, rows)
    assert [f.row for f in failures] == [2]
    finished = general_group.finish(plan, one_batch(found))
    _, counts, _, sets, *_ = ([decode_value(cell) for cell in column.to_pylist()] for column in finished)
    assert (counts, sets) == ([1, 1], [[0], [1]])


gathering = st.one_of(
    st.tuples(keys, st.dictionaries(st.sampled_from(["s", "i", "x"]), accumulators, max_size=2)).map(
        lambda t: {"$group": {"_id": t[0], **t[1]}}
    ),
    st.dictionaries(names, st.sampled_from([1, -1]), min_size=1, max_size=2).map(lambda keys: {"$sort": keys}),
    st.integers(1, 3).map(lambda n: {"$limit": n}),
    st.integers(0, 3).map(lambda n: {"$skip": n}),
    st.just({"$count": "i"}),
    st.just({"$addFields": {"z": "$i"}}),
)


@given(given_documents=st.lists(documents, max_size=10), order=st.lists(st.integers(0, 5), min_size=1, max_size=10),
       first=st.sampled_from([{"$sort": {"i": 1, "d": -1}}, {"$limit": 4}, {"$skip": 1}, {"$sort": {"x": -1}}]),
       more=st.lists(gathering, max_size=3))  # fmt: skip
@settings(max_examples=200)
def test_stages_on_whole_windows_give_what_they_give_on_lists(
    given_documents: list[dict[str, Any]], order: list[int], first: dict[str, Any], more: list[dict[str, Any]]
) -> None:
    """Window by window the same documents in the same order, and the same rows fail."""
    window = {"interval": {"size": 1, "unit": "second"}, "pipeline": [first, *more]}
    stage = parse_drawn(
        {"pipeline": [{"$source": {"connectionName": "c", "topic": "t"}}, {"$tumblingWindow": window}]}
    ).pipeline[1]
    plan = WindowPlan(WindowSpec(stage))  # type: ignore[arg-type]
    rows = windowed(given_documents, order)
    outs, failed = close(plan, travelling(plan, rows), 0, NOWHERE)
    wanted, wanted_failed = _on_lists(plan.after, rows)
    found = [document for out in outs if out.port == OUT for document in documents_of(out.batch)]
    assert (list(map(encode_value, found)), failed) == (list(map(encode_value, wanted)), wanted_failed)


def _on_lists(stages: Sequence[InnerStage], rows: pa.RecordBatch) -> tuple[list[Document], int]:
    """What stages make of the documents of each window, and how many failed."""
    found: list[Document] = []
    failed = 0
    at = [rows.column(name).to_pylist() for name in (WEND, TS, PART, POS)]
    every = sorted(zip(*at, range(rows.num_rows), strict=True))
    given_documents = documents_of(rows)
    for _, window in groupby(every, lambda row: row[0]):
        some: list[tuple[Document, OrderKey]] = [(given_documents[i], (t, p, q)) for _, t, p, q, i in window]
        for stage in stages:
            now = Environment({}, now=Date(0))
            if isinstance(stage, Group):
                kept = [row for row in some if not _fails(stage, row, now)]
                failed += len(some) - len(kept)
                made = stage.groups(kept, now)
            elif isinstance(stage, Limit):
                some = some[: stage.limit]
                continue
            elif isinstance(stage, Gathering):
                made = stage.gather([document for document, _ in some], now)
            else:
                outcomes = [stage.apply(document, now) for document, _ in some]
                some = [
                    (o.documents[0], key) for o, (_, key) in zip(outcomes, some, strict=True) if isinstance(o, Passed)
                ]
                continue
            some = [(document, (0, 0, i)) for i, document in enumerate(made)]
        found += [document for document, _ in some]
    return found, failed


def _fails(stage: Group, row: tuple[Document, OrderKey], env: Environment) -> bool:
    try:
        stage.groups([row], env)
    except ExpressionError:
        return True
    return False


def test_an_n_of_the_key_beside_a_missing_input() -> None:
    """The first n rows count, one without the input as null."""
    when = {"$date": {"$numberLong": "0"}}
    rows = windowed(
        [{"s": "a", "i": i, "t": when, **x} for i, x in enumerate(({"x": 1}, {}, {}, {}, {"x": 3}))], [0, 1, 2, 3, 4]
    )
    plan = plan_of("$s", {"two": {"$firstN": {"n": {"$add": [1, 1]}, "input": "$x"}}})
    found, failures = general_group.partials(plan, rows)
    assert not failures
    assert decode_value(general_group.finish(plan, one_batch(found))[1][0].as_py()) == [1, None]
