"""What a lookup asks of its table, what it keeps, and what it does while the table is away: on virtual time."""

import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from tidemark.services.operator.lookups import Lookups
from tidemark.services.operator.service import _bounds
from tidemark.services.operator.settings import OperatorSettings
from tidemark.services.operator.tables.held import HeldTable
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.adapters.executor import AsyncExecutor
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.language.expressions.environment import Environment
from tidemark.shared.language.stages import Lookup
from tidemark.shared.model.failures import is_lasting, is_outage
from tidemark.shared.model.plan import DLQ, OUT
from tidemark.shared.model.values import Document, Found, Value
from tidemark.shared.operators.base import PART, POS, TS
from tidemark.shared.operators.batches import batch_of, documents_of
from tidemark.shared.operators.context import TaskContext
from tidemark.shared.planning import LookupHead, plan_processor
from tidemark.shared.ports.tables import Names, TableRefused, TableUnavailable
from tidemark.shared.runtime.settings import LookupSettings

FOREIGN: list[Document] = [{"code": code, "n": n} for n, code in enumerate("abcabc")]


class CountingTable(HeldTable):
    """Notes what it is asked; away as often as it is told."""

    def __init__(self, away: int = 0) -> None:
        super().__init__(FOREIGN)
        self.asked: list[list[Any]] = []
        self.away = away

    async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
        self.asked.append([value for (value,) in wanted])
        if self.away:
            self.away -= 1
            message = "connection refused"
            raise TableUnavailable(message)
        return await super().find(columns, wanted)


def stage(**options: Any) -> Lookup:
    name = "$cachedLookup" if options else "$lookup"
    given = {"from": {"documents": []}, "localField": "k", "foreignField": "code", "as": "found", **options}
    found = parse({"pipeline": [{"$source": {"documents": []}}, {name: given}]}).pipeline[1]
    assert isinstance(found, Lookup)
    return found


def rows(*keys: Any) -> pa.RecordBatch:
    engine = {
        TS: pa.array([1] * len(keys), pa.int64()), PART: pa.array([0] * len(keys), pa.int32()),
        POS: pa.array(range(len(keys)), pa.int64()),
    }  # fmt: skip
    return batch_of([{"k": key} for key in keys], engine)


class Put(NamedTuple):
    """The wall clock is put so far on, or back."""

    by_ms: int


def run(table: CountingTable, what: Lookup, settings: LookupSettings, batches: list[Any]) -> list[list[list[int]]]:
    """By batch and row, the `n` that were found; a number among the batches moves the clock so many ms."""
    results: list[list[list[int]]] = []

    async def play(world: VirtualWorld) -> None:
        lookups = Lookups(what, lambda _: table, world.clock, settings, TaskContext())
        for batch in batches:
            if isinstance(batch, int):
                await world.clock.sleep_ms(batch)
                continue
            if isinstance(batch, Put):
                world.clock.shift(batch.by_ms)
                continue
            outs = await lookups.enrich(batch)
            assert {out.port for out in outs} <= {OUT, DLQ}
            results.append([[f["n"] for f in d["found"]] for o in outs if o.port == OUT for d in documents_of(o.batch)])

    run_virtual(play, start_ms=0)
    return results


def test_a_batch_is_one_question_for_its_distinct_keys() -> None:
    """Equal keys are asked for once, as many at a time as the bound says; without a cache the next batch asks again."""
    table = CountingTable()
    found = run(table, stage(), LookupSettings(keys_max=2), [rows("a", "b", "a", "z", "b"), rows("a")])
    assert found == [[[0, 3], [1, 4], [0, 3], [], [1, 4]], [[0, 3]]]
    assert table.asked == [["a", "b"], ["z"], ["a"]]


def test_a_cache_keeps_answers_until_they_are_too_old_or_too_many() -> None:
    """Also that nothing was found; the answer used longest ago gives way; at its `ttl` an answer is asked for anew."""
    table = CountingTable()
    what = stage(ttl={"size": 10, "unit": "ms"}, maxEntries=2)
    batches = [rows("a", "z"), rows("z", "a"), rows("b"), 9, rows("a", "z"), 1, rows("b"), rows("z")]
    found = run(table, what, LookupSettings(), batches)
    assert found == [[[0, 3], []], [[], [0, 3]], [[1, 4]], [[0, 3], []], [[1, 4]], [[]]]
    assert table.asked == [["a", "z"], ["b"], ["z"], ["b"]]


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_cache_keeps_answers_as_long_whatever_the_wall_clock_does_meanwhile(by_ms: int) -> None:
    """Set back it would have kept them for an hour more."""
    table = CountingTable()
    what = stage(ttl={"size": 10, "unit": "ms"}, maxEntries=2)
    run(table, what, LookupSettings(), [rows("a"), 5, Put(by_ms), rows("a"), 4, rows("a"), 1, rows("a")])
    assert table.asked == [["a"], ["a"]]


def test_a_cache_keeps_no_more_rows_than_the_setting_says() -> None:
    """Few answers may be many rows: with room for two rows of two each, one answer stays; one that is larger than all does not."""
    what = stage(ttl={"size": 10, "unit": "second"})
    batches = [rows("a"), rows("b"), rows("b"), rows("a")]
    for most, asked in ((4, [["a"], ["b"]]), (3, [["a"], ["b"], ["a"]]), (1, [["a"], ["b"], ["b"], ["a"]])):
        table = CountingTable()
        found = run(table, what, LookupSettings(kept_rows_max=most), batches)
        assert found == [[[0, 3]], [[1, 4]], [[1, 4]], [[0, 3]]], "what is kept changes no answer"
        assert table.asked == asked


def test_what_a_batch_finds_is_bounded_over_all_its_questions() -> None:
    """Two keys find two rows each, one question a key: four are allowed or refused, with the stage, the setting and what to do."""
    batches = [rows("a", "b")]
    settings = LookupSettings(keys_max=1, found_rows_max=4)
    assert run(CountingTable(), stage(), settings, batches) == [[[0, 3], [1, 4]]]
    with pytest.raises(TableRefused, match=r"\$lookup: .* more than 3 rows, which is lookup\.found_rows_max"):
        run(CountingTable(), stage(), LookupSettings(keys_max=1, found_rows_max=3), batches)


def test_a_table_that_is_away_is_asked_again_as_the_settings_say() -> None:
    """First after `retry_ms`, then after twice as long each time, up to `retry_ms_max`."""
    times: list[int] = []

    class Timed(CountingTable):
        async def find(self, columns: Sequence[Names], wanted: Sequence[tuple[Any, ...]]) -> Sequence[Found]:
            times.append(world_clock[0].monotonic_ms())
            return await super().find(columns, wanted)

    world_clock: list[Any] = []

    async def play(world: VirtualWorld) -> None:
        world_clock.append(world.clock)
        settings = LookupSettings(retry_ms=10, retry_ms_max=30)
        await Lookups(stage(), lambda _: Timed(away=4), world.clock, settings, TaskContext()).enrich(rows("a"))

    run_virtual(play, start_ms=0)
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == [10, 20, 30, 30]


def test_an_outage_is_waited_out() -> None:
    """The same question is asked again until it is answered; nothing is lost, nothing is doubled."""
    table = CountingTable(away=3)
    assert run(table, stage(), LookupSettings(), [rows("a", "b")]) == [[[0, 3], [1, 4]]]
    assert table.asked == [["a", "b"]] * 4


def test_an_outage_that_lasts_fails_the_task_as_an_outage() -> None:
    """The message has the stage, how long, the bound's name, and what the table said; such failures do not count (C10)."""
    with pytest.raises(TableUnavailable) as failed:
        run(CountingTable(away=10**6), stage(), LookupSettings(wait_ms_max=3_000), [rows("a")])
    assert "pipeline[1].$lookup" in str(failed.value)
    assert "lookup.wait_ms_max is 3000" in str(failed.value)
    assert "connection refused" in str(failed.value)
    assert (is_lasting(failed.value), is_outage(failed.value)) == (False, True)


async def test_expressions_are_evaluated_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for, and what is done with documents that were found: a row may use up its budget of work, of seconds."""
    seen: list[int] = []
    bind = Environment.bind

    def noted(env: Environment, variables: Mapping[str, Value]) -> Environment:
        seen.append(threading.get_ident())
        return bind(env, variables)

    monkeypatch.setattr(Environment, "bind", noted)
    pipeline = [{"$addFields": {"m": {"$add": ["$n", "$$by"]}}}]
    join = {"from": {"documents": []}, "localField": "k", "foreignField": "code", "as": "found"}
    given = {**join, "let": {"by": {"$size": "$k"}}, "pipeline": pipeline}
    what = parse({"pipeline": [{"$source": {"documents": []}}, {"$lookup": given}]}).pipeline[1]
    assert isinstance(what, Lookup)
    executor = AsyncExecutor()
    lookups = Lookups(what, lambda _: CountingTable(), SystemClock(), LookupSettings(), TaskContext())
    outs = await lookups.enrich(rows(["a"], ["a", "b"]), executor.blocking)
    assert [[f["m"] for f in d["found"]] for o in outs for d in documents_of(o.batch)] == [
        [1, 4],
        [2, 3, 5, 6],
    ]
    assert seen
    assert threading.get_ident() not in seen
    await executor.close()


@pytest.mark.parametrize(
    ("given", "rows_beside"),
    [
        ({"localField": "k", "foreignField": "code"}, 1_000),
        ({"let": {"s": {"$reduce": {"input": "$a", "initialValue": 0, "in": "$$this"}}}, "pipeline": []}, 1),
        ({"pipeline": [{"$match": {"$expr": {"$eq": [{"$map": {"input": "$a", "in": 1}}, []]}}}]}, 1),
    ],
)
def test_a_lookup_with_loops_is_worked_on_beside_the_loop_however_few_rows_there_are(
    given: dict[str, Any], rows_beside: int
) -> None:
    """In what it asks for, and in its pipeline; else batches of many rows alone are."""
    stage = {"$lookup": {"from": {"documents": [{"code": 1}]}, "as": "found", **given}}
    processor = parse({"pipeline": [{"$source": {"documents": []}}, stage]})
    vertices = plan_processor(processor, engine="local", collects=True).vertices
    (found,) = [_bounds(vertex, OperatorSettings()) for vertex in vertices if isinstance(vertex.head, LookupHead)]
    assert found.beside_rows == rows_beside
