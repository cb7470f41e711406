"""Late records are redriven: each corrects the windows that it missed, once, however often it is asked for."""

import json
import logging
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.harness.audited import READINGS, Saved, Story, finished_run, run
from tests.harness.installation import NAME
from tests.oracle.check_demo import feed_of
from tidemark.services.audit.corrections import (
    CannotRedrive,
    ReadRecords,
    before,
    corrections,
    late_places,
    partitions_of,
    windowed,
    windows_of,
)
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.recompute import SplitRecords, Stand
from tidemark.services.audit.redrive import Redriven, redrive
from tidemark.services.cli.process import quiet
from tidemark.shared.adapters.memory_commit_store import MemoryCommitStore
from tidemark.shared.adapters.virtual import run_virtual
from tidemark.shared.language.documents import parse
from tidemark.shared.model.ids import Offset, SplitId, VertexId
from tidemark.shared.ports.log import LogError, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.record import decode_plan, encode_plan

SOURCE = VertexId("source-1")
DOCUMENT = Path(__file__).parents[2] / "deploy" / "pipelines" / "departures" / "pipeline.yaml"


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("redriven")
    return run_virtual(lambda world: finished_run(world, out))


async def ask(told: Story, topic: str | None = None) -> Redriven:
    return await redrive(NAME, AuditedInstallation(MemoryCommitStore(told.store), told.blobs, told.log, {}), topic)


def corrected(told: Story) -> list[dict[str, Any]]:
    return [json.loads(r.value or b"") for r in told.records("late.corrections")]


def late(told: Story) -> list[dict[str, Any]]:
    return [json.loads(r.value or b"")["doc"] for r in told.records("late")]


def gained(found: list[dict[str, Any]], field: str) -> int:
    """The sum of new less old values."""
    return sum((c["new"] or {}).get(field, 0) - (c["old"] or {}).get(field, 0) for c in found)


def test_corrections_hold_what_the_late_records_would_have_added(saved: Saved) -> None:
    """Each window and meter that a late reading missed: what was released, and what it would have been."""

    async def then(told: Story) -> None:
        missed = late(told)
        done = await ask(told)
        assert (done.letters, done.corrections) == (len(missed), len(corrected(told)))
        assert gained(corrected(told), "wh") == sum(d["wh"] for d in missed)
        released = Counter(r.value for r in told.records("usage"))
        for correction in corrected(told):
            begin = int(datetime.fromisoformat(correction["window"]["start"]["$date"]).timestamp() * 1000)
            late_here = [d for d in missed if d["meter"] == correction["_id"] and begin <= d["at"] < begin + 10_000]
            assert late_here, "a window that nobody missed is not corrected"
            all_here = [d for d in READINGS if d["meter"] == correction["_id"] and begin <= d["at"] < begin + 10_000]
            assert correction["new"]["wh"] == sum(d["wh"] for d in all_here)
            if correction["old"] is not None:
                assert released[json.dumps(correction["old"], separators=(",", ":")).encode()]

    run(saved, then)


def test_a_redrive_again_corrects_nothing_more(saved: Saved) -> None:
    """What is redriven is marked in the transaction that writes the corrections."""

    async def then(told: Story) -> None:
        first = await ask(told)
        before = corrected(told)
        again = await ask(told)
        assert (again.letters, again.corrections, again.until) == (0, 0, first.until)
        assert corrected(told) == before

    run(saved, then)


def test_later_letters_correct_the_corrections(saved: Saved) -> None:
    """A second redrive takes what came to the queue since: its old values are the first one's new ones."""

    async def then(told: Story) -> None:
        letters = told.records("late")
        stored = told.broker._topics["late"][0].stored
        half = letters[len(letters) // 2].offset
        rest = stored[half:]
        del stored[half:]
        done = await ask(told)
        first = {(json.dumps(c["window"]), c["_id"]): c for c in corrected(told)}
        stored.extend(rest)
        second = await ask(told)
        assert (done.letters, second.letters) == (len(letters) // 2, len(letters) - len(letters) // 2)
        assert gained(corrected(told), "wh") == sum(d["wh"] for d in late(told))
        for correction in corrected(told)[len(first) :]:
            known = first.get((json.dumps(correction["window"]), correction["_id"]))
            assert known is None or correction["old"] == known["new"]

    run(saved, then)


def test_a_redrive_that_breaks_off_leaves_nothing_behind(saved: Saved) -> None:
    """Corrections without their marker are in a transaction that the next one aborts."""

    async def then(told: Story) -> None:
        writer = await told.log.transactional_writer(f"tidemark.redrive.{told.job}")
        await told.log.create_topic("late.corrections", 1)
        torn = await writer.begin()
        await torn.send_batch(TopicPartition("late.corrections", 0), [NewRecord(b'{"torn": true}')])
        done = await ask(told)
        with pytest.raises(LogError):
            await torn.commit()
        committed = [c for c in corrected(told) if "torn" not in c]
        assert len(committed) == done.corrections > 0

    run(saved, then)


def test_letters_from_before_a_change_of_the_source_name_the_change(saved: Saved) -> None:
    """By a source that waits longer now none of them was late: which ones were cannot be told any more."""

    async def then(told: Story) -> None:
        row = told.store.rows[NAME]
        plan = decode_plan(row.plan)
        document = json.loads(plan.document)
        document["pipeline"][0]["$source"]["watermark"] = {
            "strategy": "boundedDisorder",
            "maxDelay": {"size": 1, "unit": "hour"},
        }
        changed = structs.replace(plan, document=json.dumps(document), since=row.last)
        told.store.rows[NAME] = structs.replace(row, plan=encode_plan(changed))
        with pytest.raises(
            CannotRedrive, match=f"or the document was changed at checkpoint {row.last}, and by its source"
        ):
            await ask(told)
        assert corrected(told) == []

    run(saved, then)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": {"lateness": "merged"}}, "options.lateness: expected split"),
        ({"pipeline": [{"$source": {"documents": []}}, {"$match": {}}]}, "one Kafka source"),
        ({"pipeline": [{"$source": {"connectionName": "c", "topic": "t"}}, {"$match": {}}]}, "expected a window"),
    ],
)
def test_what_cannot_be_redriven_is_refused_with_the_reason(change: dict[str, Any], words: str) -> None:
    """Without a source that can be read again, a window, or lateness that is a matter of the data alone."""
    document = {
        "pipeline": [{"$source": {"connectionName": "c", "topic": "t"}}, {"$match": {}}],
        "options": {"lateness": "split"},
    }
    with pytest.raises(CannotRedrive, match=words):
        windowed(parse({**document, **change}))


def test_a_compacted_source_that_lacks_records_is_not_redriven(saved: Saved) -> None:
    """Its windows as they came out would be others: corrections would be wrong."""

    async def then(told: Story) -> None:
        told.broker.compacted.add("readings")
        told.rewrite("readings", 3, None)
        with pytest.raises(CannotRedrive, match="topic readings partition 0 is compacted"):
            await ask(told)
        assert corrected(told) == []

    run(saved, then)


@pytest.mark.parametrize("redriven", [True, False])
@pytest.mark.parametrize("anew", [True, False])
def test_a_queue_that_lacks_letters_is_not_redriven(saved: Saved, redriven: bool, anew: bool) -> None:
    """By retention, or because it was made anew, before they were redriven or behind it: it is told how many are gone."""

    async def then(told: Story) -> None:
        letters = told.records("late")
        if redriven:
            await ask(told)
        corrections = corrected(told) if redriven else []
        if anew:
            told.broker.delete_topic("late")
            told.broker.create_topic("late", 1)
        else:
            await told.log.delete_records({TopicPartition("late", 0): Offset(letters[1].offset + 1)})
        count = len(letters) if anew else 2
        with pytest.raises(CannotRedrive, match=f"topic late: {count} letters of this job are gone"):
            await ask(told)
        assert corrected(told) == corrections

    run(saved, then)


def test_a_year_of_departures_gains_its_late_flights() -> None:
    """226 flights of 2013 missed their hour: the corrections add exactly these, and touch no other hour."""
    year = feed_of()
    splits = [
        SplitRecords.of(SOURCE, SplitId(f"departures-{n}"), n, ((at, 0, v, k) for at, (k, v) in enumerate(p)))
        for n, p in enumerate(year.partitions)
    ]
    stands = {s.split: Stand(len(p), "finished") for s, p in zip(splits, year.partitions, strict=True)}
    part, path = windowed(parse(DOCUMENT.read_text()))
    records = ReadRecords(splits, stands, "departures")
    released, missed = windows_of(part, path, records, frozenset())
    assert len(missed) == 226
    with_them, still_late = windows_of(part, path, records, missed)
    assert not still_late
    found = corrections(released, with_them)
    assert sum(c["new"]["departures"] - (c["old"]["departures"] if c["old"] else 0) for c in found) == 226
    assert sum(r["departures"] for rows in released.values() for r in rows) + 226 == year.flights
    letters = [
        {
            "errInfo": {"reason": "other", "path": path},
            "_stream_meta": {"source": {"topic": "departures", "partition": 0, "offset": 1}},
        }
    ]
    assert late_places(letters, path, partitions_of(records)) == frozenset()


def test_a_window_that_was_open_at_a_redrive_is_corrected_by_the_next() -> None:
    """A record is late by its own split, while another split holds the window open: its letter is taken, and its window comes later."""
    document = {
        "connections": {"k": {"type": "kafka", "bootstrapServers": "nowhere:9092"}},
        "pipeline": [
            {"$source": {"connectionName": "k", "topic": "t", "config": {"keyFormat": "string"},
                         "timeField": {"$toDate": {"$toLong": "$at"}},
                         "watermark": {"strategy": "boundedDisorder", "maxDelay": {"size": 1, "unit": "second"}}}},
            {"$tumblingWindow": {"interval": {"size": 10, "unit": "second"}, "allowedLateness": {"size": 0, "unit": "second"},
                                 "pipeline": [{"$group": {"_id": None, "n": {"$sum": 1}}}]}},
            {"$emit": {"connectionName": "k", "topic": "out"}},
        ],
        "options": {"lateness": "split"},
    }  # fmt: skip
    part, path = windowed(parse(document))
    times_ms = ([1_000, 60_000, 2_000], [3_000, 70_000])  # the third of the first split is late
    splits = [
        SplitRecords.of(SOURCE, SplitId(f"t-{n}"), n, ((m, 0, b'{"at": %d}' % ms, None) for m, ms in enumerate(at)))
        for n, at in enumerate(times_ms)
    ]
    then = {splits[0].split: Stand(3, "active"), splits[1].split: Stand(1, "active")}
    now = {split.split: Stand(len(at), "finished") for split, at in zip(splits, times_ms, strict=True)}
    late = frozenset({(0, 2)})
    first = ReadRecords(splits, then, "p")
    old, missed = before(part, path, first, None, frozenset())
    assert missed == late
    assert corrections(old, windows_of(part, path, first, late)[0]) == []
    second = ReadRecords(splits, now, "p")
    old, missed = before(part, path, second, then, late)
    assert missed == late
    found = corrections(old, windows_of(part, path, second, late)[0])
    assert [(c["old"]["n"], c["new"]["n"]) for c in found] == [(2, 3)]
