"""An audit accuses no processor of what the moment decided: the order of arrival, the clock, how far another split was when a row came.

It says of which outputs it makes no statement, and why; all others are compared as ever.
"""

import json
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.harness.installation import NAME, Installed, installed
from tests.harness.sealing import sealed
from tidemark.services.audit import check, recompute
from tidemark.services.audit.check import Audited, AuditFailed, audit
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.settings import AuditSettings
from tidemark.services.cli.process import quiet
from tidemark.services.sink.body import SinkBody
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.ids import Epoch
from tidemark.shared.model.messages import ModifyProcessor
from tidemark.shared.ports.log import NewRecord, TopicPartition, Writer
from tidemark.shared.protocol.coordinator.settings import CoordinatorSettings
from tidemark.shared.runtime.body import Copied
from tidemark.shared.runtime.settings import RuntimeSettings

COUNT = 60
MARKS = "tests.harness.computations:Marks"
TICKS = "tests.harness.computations:Ticks"
RUNTIME = RuntimeSettings(engine="local")
COORDINATOR = CoordinatorSettings(adopt_wait_ms=100, checkpoint_timeout_ms=1_500)
SECOND = {"size": 1, "unit": "second"}
FAILS = {"$toInt": "$k"}
HOPS = {"interval": {"size": 3, "unit": "second"}, "hopSize": SECOND}
SUMS = [{"$group": {"_id": "$k", "n": {"$sum": 1}}}]


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


def _compute(class_: str, **more: Any) -> dict[str, Any]:
    return {"$compute": {"class": class_, "key": "$k", **more}}


def _window(**more: Any) -> dict[str, Any]:
    return {"$tumblingWindow": {"interval": SECOND, "pipeline": SUMS, **more}}


AGAIN = [{"$addFields": {"k": "$_id"}}, _window(interval={"size": 5, "unit": "second"})]
"""A second window, over the first one's rows."""


def _records(parts: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Partition and record: times rise in each partition but for every tenth, which is late behind them."""
    for n in range(COUNT):
        late_ms = 40_000 if n % 10 == 9 else 0
        yield n % parts, {"id": n, "k": "a", "at": 1_000_000 + 1_000 * n - late_ms, "bad": n % 20 == 0}


async def audited(
    world: VirtualWorld,
    out: Path,
    stages: list[dict[str, Any]],
    *,
    parts: int,
    source: dict[str, Any],
    options: dict[str, Any],
    forged: str = "",
    altered: bool = False,
    sources: int = 0,
    at_once: bool = False,
    other: int = 0,
    records: Callable[[int], Iterator[tuple[int, dict[str, Any]]]] = _records,
    runtime: RuntimeSettings = RUNTIME,
) -> Audited:
    """Records one after the other, of every partition in turn, through these stages; the audit of what came out.

    forged: a topic to which somebody adds a record afterwards, which a second audit has to name. altered: a result becomes another one
    in place, and is named, too. sources: tasks of the source, if not one for each partition. at_once: it drains before the first
    checkpoint, all of its records read. other: it has so many tasks of the source from half of the records on.
    """
    document: dict[str, Any] = {
        "connections": {
            "broker": {"type": "kafka", "bootstrapServers": "memory"},
            "out": {"type": "files", "path": str(out)},
        },
        "pipeline": [
            {
                "$source": {
                    "connectionName": "broker",
                    "topic": "in",
                    "config": {"auto_offset_reset": "earliest"},
                    "timeField": {"$toDate": {"$toLong": {"$cond": ["$bad", "no time", "$at"]}}},
                    **source,
                }
            },
            {"$emit": {"connectionName": "out", "path": "raw", "format": "json"}},
            *stages,
            {"$emit": {"connectionName": "broker", "topic": "results"}},
        ],
        "options": {
            "dlq": {"connectionName": "broker", "topic": "late"},
            "checkpoint": {"interval": SECOND},
            "lateness": "split",
            **options,
        },
    }
    document["options"] = {name: option for name, option in document["options"].items() if option}
    async with installed(world.clock, world.executor, settings=runtime, coordinator=COORDINATOR) as it:
        log = sealed(MemoryLog(it.broker))
        await log.create_topic("in", parts)
        await log.create_topic("results", 1)
        await it.create(document, source=sources or parts)
        await it.start()
        writer = await log.writer("feeder")
        await _feed(world, it, writer, list(records(parts)), other)
        await (world.clock.sleep_ms(2_000) if at_once else it.committed())
        await it.stop(drain=True)
        left = AuditedInstallation(MemoryCommitStore(it.store), it.memory_blobs, log, {})
        found = await audit(NAME, left)
        if altered:
            with _altered(it.broker._topics["results"][0].stored), pytest.raises(AuditFailed, match="1000"):
                await audit(NAME, left)
        if forged:
            await (await writer.send(TopicPartition(forged, 0), NewRecord(b'{"forged": 1}')))
            with pytest.raises(AuditFailed, match="forged"):
                await audit(NAME, left)
        await writer.close()
        return found


async def _feed(
    world: VirtualWorld, it: Installed, writer: Writer, records: list[tuple[int, dict[str, Any]]], other: int
) -> None:
    for number, (part, record) in enumerate(records):
        if other and number == COUNT // 2:
            await it.stop()
            await it.client.request(ModifyProcessor(it.client.unique(), NAME, None, {"source": other}))
            await it.start()
        await (await writer.send(TopicPartition("in", part), NewRecord(json.dumps(record).encode())))
        await world.clock.sleep_ms(130)


@contextmanager
def _altered(stored: list[Any]) -> Iterator[None]:
    """The first result is another one."""
    first = stored[0]
    stored[0] = first._replace(record=replace(first.record, value=b'{"_id": "a", "n": 1000}'))
    yield
    stored[0] = first


CASES: dict[str, tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any], str]] = {
    "arrival": ([_compute(MARKS, order="arrival")], {}, {}, "order of their arrival"),
    "behind it": (
        [_compute(MARKS, order="arrival"), _window(pipeline=[{"$group": {"_id": "$seen", "of": {"$push": "$id"}}}])],
        {},
        {},
        "order of their arrival",
    ),
    "ids, timers": ([_compute(TICKS, order="arrival")], {"recordId": "$id"}, {}, "timers"),
    "clock": ([_compute(TICKS, config={"domain": "processing"})], {}, {}, "timers of processing time"),
    "processing time": ([_window(boundary="processingTime")], {}, {}, "processing time"),
    "idle": ([_window(idleTimeout={"size": 1, "unit": "second"})], {}, {}, "idleTimeout"),
    "idle at once": ([_window(idleTimeout=0)], {}, {}, "idleTimeout"),
    "unaligned": (
        [_compute(MARKS, order="arrival")],
        {"recordId": "$id"},
        {"checkpoint": {"interval": SECOND, "alignmentTimeout": {"size": 1, "unit": "ms"}}},
        "order of their arrival",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_moment_decided_is_not_accused(tmp_path: Path, case: str) -> None:
    """The output is named, with why nothing is said of it; what stands in front of it, and the source's letters, are compared."""
    stages, source, options, says = CASES[case]
    found: Audited = run_virtual(
        lambda world: audited(world, tmp_path, stages, parts=2, source=source, options=options)
    )
    assert found.records == COUNT
    assert any(vertex.startswith("emit-1") for vertex in found.outputs), found.outputs
    assert not any(vertex.startswith("emit-2") for vertex in found.outputs), found.outputs
    assert any(what.startswith("emit-2") and says in what for what in found.unchecked), found.unchecked


@pytest.mark.parametrize(
    ("stages", "parts", "source", "options"),
    [
        ([_compute(MARKS, order="arrival")], 1, {}, {}),
        ([_compute(MARKS, order="arrival")], 2, {"recordId": "$id"}, {}),
        ([_compute(MARKS)], 2, {}, {}),
        ([_compute(MARKS)], 2, {}, {"lateness": "merged"}),
        ([_compute(TICKS)], 2, {}, {}),
        ([_window(allowedLateness=0)], 2, {}, {}),
        ([_window(allowedLateness=0)], 2, {}, {"lateness": "merged"}),
        ([_compute(MARKS), _window()], 2, {}, {}),
        ([_window(), *AGAIN], 2, {}, {}),
    ],
    ids=[
        "one partition",
        "in order behind ids",
        "by event time",
        "merged",
        "timers by event time",
        "window",
        "merged window",
        "window behind a computation",
        "window behind a window",
    ],
)
def test_what_positions_decide_is_compared(
    tmp_path: Path, stages: list[dict[str, Any]], parts: int, source: dict[str, Any], options: dict[str, Any]
) -> None:
    """Nothing is left unchecked, and a record that does not follow is named."""
    found: Audited = run_virtual(
        lambda world: audited(world, tmp_path, stages, parts=parts, source=source, options=options, forged="results")
    )

    assert found.unchecked == ()


def _chained(_: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """A timer that the second record's time passes, and that sets another one, which none passes."""
    for n, (key, event) in enumerate((("a", 1_000_010), ("b", None))):
        yield 0, {"v": n, "k": key, "at": 1_000_000 + 12 * n, "event": event, "clock": None, "bad": False}


@pytest.mark.parametrize("at_once", [False, True])
def test_timers_that_timers_set_before_the_end_are_not_accused(tmp_path: Path, at_once: bool) -> None:
    """They fire where the watermark came in front of the end: within the last epoch nobody notes that; by a barrier it has come."""
    watermark = {"watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 0, "unit": "ms"}}}
    stages = [_compute("tests.harness.computations:Remembers")]
    options = {"checkpoint": {"interval": {"size": 10, "unit": "second"}}}
    found: Audited = run_virtual(
        lambda world: audited(
            world, tmp_path, stages, parts=1, source=watermark, options=options, at_once=at_once, records=_chained
        )
    )
    assert [what for what in found.unchecked if "timers that timers set" not in what] == []
    assert bool(found.unchecked) == at_once


def test_letters_of_what_is_certain_are_wanted_beside_others(tmp_path: Path) -> None:
    """Where a stage's own letters hang on the moment, those of the source must still be there."""
    stages = [_compute("tests.harness.computations:Refuses", order="arrival")]
    found: Audited = run_virtual(lambda world: audited(world, tmp_path, stages, parts=2, source={}, options={}))
    assert found.dead_letters == len([n for n in range(COUNT) if n % 20 == 0])
    assert any(what.startswith("dlq: ") for what in found.unchecked), found.unchecked


@pytest.mark.parametrize("piece_records", [200_000, 2])
def test_the_epoch_of_the_end_is_not_accused(
    tmp_path: Path, piece_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task without splits may say its end an epoch after the last record was read: what that lets close comes then, and is compared.

    So it is in pieces, of which one may end between the two.
    """
    monkeypatch.setattr(check, "audit_settings", lambda: AuditSettings(piece_records=piece_records))
    stages = [_window(allowedLateness=0)]
    options = {"checkpoint": {"interval": {"size": 50, "unit": "ms"}}}

    found: Audited = run_virtual(
        lambda world: audited(world, tmp_path, stages, parts=1, source={}, options=options, forged="results", sources=3)
    )

    assert found.unchecked == ()


@pytest.mark.parametrize("other", [1, 3])
def test_tasks_that_had_nothing_to_read_are_known_of_each_epoch(tmp_path: Path, other: int) -> None:
    """Receivers wait until such a task says that it is idle, which nobody notes: whatever the number of tasks is at last."""
    options = {"lateness": "merged", "checkpoint": {"interval": {"size": 50, "unit": "ms"}}}
    found: Audited = run_virtual(
        lambda world: audited(
            world, tmp_path, [_window(allowedLateness=0)], parts=1, source={}, options=options, sources=2, other=other,
            records=_disordered,
        )
    )  # fmt: skip
    assert found.records == COUNT


@pytest.mark.parametrize(
    "stages",
    [
        [
            {
                "$tumblingWindow": {
                    "interval": SECOND,
                    "pipeline": [{"$sort": {"id": 1}}, {"$group": {"_id": "$k", "n": {"$first": FAILS}}}],
                }
            }
        ],
        [_window(pipeline=[*SUMS, {"$addFields": {"n": {"$toInt": "$_id"}}}])],
        [_window(), {"$addFields": {"n": {"$toInt": "$_id"}}}],
    ],
    ids=["in a window's rows", "in its groups", "behind it"],
)
def test_letters_of_what_is_no_record_are_told_without_their_time(tmp_path: Path, stages: list[dict[str, Any]]) -> None:
    """They say when they were made, which no record tells; all else of them is compared."""
    found: Audited = run_virtual(
        lambda world: audited(world, tmp_path, stages, parts=1, source={}, options={}, forged="late")
    )

    assert found.unchecked == ()


def _copies(parts: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each record of the first partition again, some seconds later, in one whose watermark is far behind."""
    for n in range(COUNT // 2):
        at = 1_000_000 + 1_000 * n
        yield 0, {"id": n, "k": "a", "at": at, "bad": False}
        yield parts - 1, {"id": n - 10, "k": "a", "at": at - 60_000, "bad": False}


UNALIGNED = {"checkpoint": {"interval": SECOND, "alignmentTimeout": {"size": 0, "unit": "ms"}}}


@pytest.mark.parametrize("options", [{}, UNALIGNED], ids=["aligned", "unaligned"])
def test_which_of_the_copies_of_a_record_counts_is_known_by_positions_or_not_judged(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of copies in one epoch the least late one counts; where barriers are not waited for, nobody notes which came in which epoch."""
    found: Audited = run_virtual(
        lambda world: audited(
            world, tmp_path, [], parts=2, source={"recordId": "$id"}, options=options, records=_copies
        )
    )
    assert (found.records, found.duplicates) == (COUNT, COUNT // 2 - 10)
    assert all("recordId: which of a record's copies came first decided" in what for what in found.unchecked)
    assert bool(found.unchecked) == bool(options)


def _disordered(parts: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Many records are behind their own split; how far the slower split is then decides whether they come too late."""
    chance = random.Random(3)
    for n in range(COUNT):
        behind_ms = chance.choice([0, 0, chance.randrange(6_000)])
        part = n % parts
        yield part, {"id": n, "k": "ab"[n % 3 % 2], "at": 1_000_000 + 300 * n - behind_ms - 2_000 * part, "bad": False}


def _of_merged_splits(tmp_path: Path, stages: list[dict[str, Any]], options: dict[str, Any], **more: Any) -> Audited:
    """Two splits out of order, of which one makes rows of the other late."""
    found: Audited = run_virtual(
        lambda world: audited(
            world,
            tmp_path,
            stages,
            parts=2,
            source={"watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 100, "unit": "ms"}}},
            options={"lateness": "merged", **options},
            records=_disordered,
            **more,
        )
    )
    return found


@pytest.mark.parametrize(
    ("stages", "options"),
    [
        ([_window(allowedLateness=0)], {}),
        ([_window(allowedLateness=0)], {"checkpoint": {"interval": {"size": 3, "unit": "second"}}}),
        ([_window(allowedLateness=0, pipeline=[{"$sort": {"id": 1}}, *SUMS])], {}),
        ([_compute(MARKS)], {}),
        ([_window(), *AGAIN], {}),
        ([{"$sessionWindow": {"gap": SECOND, "partitionBy": "$k", "allowedLateness": 0, "pipeline": SUMS}}], {}),
        ([{"$hoppingWindow": {**HOPS, "allowedLateness": 0, "pipeline": SUMS}}], {}),
        ([{"$hoppingWindow": {**HOPS, "allowedLateness": 0, "pipeline": [{"$sort": {"id": 1}}, *SUMS]}}], {}),
        ([_window(allowedLateness=0, outputTime="earliest"), *AGAIN], {}),
        ([_window(allowedLateness=0, pipeline=[{"$sort": {"id": 1}}, *SUMS])], {"dlq": None}),
        ([{"$hoppingWindow": {**HOPS, "allowedLateness": 0, "pipeline": SUMS}}], {"dlq": None}),
        (
            [{"$sessionWindow": {"gap": SECOND, "partitionBy": "$k", "allowedLateness": 0, "pipeline": SUMS}}],
            {"dlq": None},
        ),
    ],
    ids=[
        "window",
        "long epochs",
        "window of rows",
        "computation",
        "window behind a window",
        "session",
        "hopping",
        "hopping, of rows",
        "output times of rows",
        "no queue",
        "hopping, no queue",
        "session, no queue",
    ],
)
def test_what_the_pace_of_other_splits_made_late_is_known(
    tmp_path: Path, stages: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    """Windows judge by where the watermark stood at barriers, which commits note; of a computation's rows the letters tell."""
    found = _of_merged_splits(tmp_path, stages, options, forged="results", altered=True)

    assert found.unchecked == ()
    assert found.late < COUNT
    assert bool(found.late) == (options.get("dlq", "late") is not None)


def test_barriers_between_which_nothing_came_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor that waits for records has one after the other."""
    run, runs = recompute._up_to, list[object]()

    def counted(*given: Any) -> None:
        runs.append(given)
        run(*given)

    monkeypatch.setattr(recompute, "_up_to", counted)
    options = {"checkpoint": {"interval": {"size": 10, "unit": "ms"}}}
    found: Audited = run_virtual(
        lambda world: audited(world, tmp_path, [_window(), *AGAIN], parts=2, source={}, options=options)
    )
    assert found.unchecked == ()
    assert len(runs) < len(found.epochs) / 2


BETWEEN: dict[str, list[dict[str, Any]]] = {
    "tumbling": [_window(allowedLateness=0)],
    "tumbling, of rows": [_window(allowedLateness=0, pipeline=[{"$sort": {"id": 1}}, *SUMS])],
    "hopping": [{"$hoppingWindow": {**HOPS, "allowedLateness": 0, "pipeline": SUMS}}],
    "session": [{"$sessionWindow": {"gap": SECOND, "partitionBy": "$k", "allowedLateness": 0, "pipeline": SUMS}}],
}


@pytest.mark.parametrize("case", BETWEEN)
def test_barriers_of_checkpoints_that_were_aborted_are_no_cause_to_accuse(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows step at them, too, and no commit notes where the watermark stood there."""
    copy, aborted = SinkBody.copy, set[Epoch]()

    async def slow(body: SinkBody, epoch: Epoch, committed: Epoch) -> Copied:
        if epoch % 2 and epoch < 12:
            aborted.add(epoch)
            await body._context.outside.clock.sleep_ms(2_000)
        return await copy(body, epoch, committed)

    monkeypatch.setattr(SinkBody, "copy", slow)
    found = _of_merged_splits(tmp_path, BETWEEN[case], {})
    assert len(aborted) > 1
    assert not (found.unchecked and case.startswith("tumbling")), found.unchecked  # letters tell all of these
    assert all("how far other splits were" in why for why in found.unchecked)


@pytest.mark.parametrize("case", BETWEEN)
def test_an_epoch_too_wide_for_a_windows_task_is_no_cause_to_accuse(tmp_path: Path, case: str) -> None:
    """What the watermark has passed goes before the barrier then."""
    options = {"checkpoint": {"interval": {"size": 5, "unit": "second"}}}
    runtime = RuntimeSettings(engine="local", open_rows_max=14, held_groups_max=4)
    found = _of_merged_splits(tmp_path, BETWEEN[case], options, runtime=runtime)
    assert all("how far other splits were" in why for why in found.unchecked)
