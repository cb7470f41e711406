"""The audit finds what was tampered with, and names epoch and place: a small pipeline in one process, whole and then changed."""

import hashlib
import json
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from tests.harness.audited import PER_PART, READINGS, Saved, Story, document, feed, finished_run, run
from tests.harness.installation import NAME, installed
from tests.harness.sealing import sealed
from tidemark.services.audit import check
from tidemark.services.audit.check import Audited, AuditFailed, NotAuditable, audit
from tidemark.services.audit.settings import AuditSettings
from tidemark.services.cli.process import quiet
from tidemark.services.sink.connectors.kafkamarkers import TOPIC_PREFIX, decode_marker, marker_record
from tidemark.shared.adapters.memory_log import MemoryLog
from tidemark.shared.adapters.virtual import VirtualWorld, run_virtual
from tidemark.shared.model.checkpoint import SplitStand
from tidemark.shared.model.ids import Epoch, JobId, Offset, SplitId, VertexId
from tidemark.shared.model.messages import StartProcessor
from tidemark.shared.ports.log import LogError, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.record import decode_kept, encode_kept
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_mirror_row, decode_stands, encode_message, encode_stands

Tamper = Callable[[Story], str]
"""Does it, and says how the discrepancy must begin or what it must name: a regular expression."""


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> None:
    quiet(logging.CRITICAL)


@pytest.fixture(autouse=True)
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the tests, by their names: audits go in pieces."""
    if len(request.node.name) % 2:
        monkeypatch.setattr(check, "audit_settings", lambda: AuditSettings(piece_records=PER_PART))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("audited")
    return run_virtual(lambda world: finished_run(world, out))


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    out = tmp_path_factory.mktemp("merged")
    return run_virtual(lambda world: finished_run(world, out, merges=True))


def test_a_whole_pipeline_is_accounted_for_epoch_by_epoch(saved: Saved) -> None:
    """Every record is in one epoch, as one of four things; positions join; outputs of all epochs are all there is."""

    async def then(told: Story) -> Audited:
        found = await told.audit()
        assert sum(found.outputs.values()) == len(told.records("usage")) * 3 + len(told.records("late"))
        return found

    found: Audited = run(saved, then)
    assert found.records == len(READINGS) + 15
    assert (found.duplicates, found.dead_letters) == (15, 0)
    assert found.late > 0
    assert found.accepted + found.late + found.duplicates == found.records
    for before, after in zip(found.epochs, found.epochs[1:], strict=False):
        assert {s: end for s, (_, end) in before.positions.items()} == {s: b for s, (b, _) in after.positions.items()}
    busy = [epoch for epoch in found.epochs if epoch.records]
    assert len(busy) >= 5
    assert all(e.records == e.counted + e.late + e.duplicates + e.dead_letters for e in found.epochs)
    assert found.waiting == ()


# --- tampering ------------------------------------------------------------------------------------------------------------


def _rewritten(told: Story, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = told.files()[1]
    table = pq.read_table(path)
    pq.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema), path)
    return rf"{path.name}: manifest \d+ of .* says \d+ bytes with digest"


def row_dropped(told: Story) -> str:
    return _rewritten(told, lambda rows: rows[1:])


def row_repeated(told: Story) -> str:
    return _rewritten(told, lambda rows: [*rows, rows[0]])


def row_altered(told: Story) -> str:
    return _rewritten(told, lambda rows: [{**rows[0], "wh": rows[0]["wh"] + 1}, *rows[1:]])


def file_removed(told: Story) -> str:
    path = told.files()[-1]
    path.unlink()
    return rf"{path.name}: manifest \d+ of .* lists it, but it is not there"


def manifests_swapped(told: Story) -> str:
    first, second = told.manifests()[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return rf"{first.name}: says that it is epoch {int(second.stem)}"


def manifest_altered(told: Story) -> str:
    """Together with its file, so that the two agree: the commit knows better."""
    manifest = told.manifests()[1]
    content = json.loads(manifest.read_text())
    path = told.out / "lines" / content["files"][0]["name"]
    data = path.read_bytes().replace(b'"wh":', b'"hw":')
    path.write_bytes(data)
    content["files"][0].update(size_bytes=len(data), digest=hashlib.sha256(data).hexdigest())
    manifest.write_text(json.dumps(content))
    return rf"{manifest.name}: lists 1 files, commit {int(manifest.stem)} staged 1; they differ at .*{path.name}"


def table_commit_altered(told: Story) -> str:
    """What the commit of a table tells of its file."""
    path = told.table_commits()[1]
    path.write_text(path.read_text().replace('\\"size_bytes\\":', '\\"size_bytes\\":1'))
    return r"parquet: manifest \d+ of .* says 1\d+ bytes with digest .*, found \d+"


def manifest_removed(told: Story) -> str:
    manifest = told.manifests()[1]
    manifest.unlink()
    return rf"manifest \d+ of .*: follows {int(manifest.stem)}, but the manifest before it"


def summary_changed(told: Story) -> str:
    path = told.out / "lines" / "_manifest.json"
    content = json.loads(path.read_text())
    content["files"][0]["rows"] += 1
    path.write_text(json.dumps(content, indent=1) + "\n")
    return r"lines/_manifest.json: is not what the manifests say"


def snapshot_changed(told: Story) -> str:
    last = max(told.store.commits[told.store.rows[NAME].job].values(), key=lambda row: row.epoch)
    part = next(p for handle in last.tasks for p in handle.parts if p.blob is not None)
    assert part.blob is not None
    blobs = told.blobs
    path = blobs._path(part.blob.name)
    data = blobs._fs.cat_file(path)
    blobs._fs.pipe_file(path, data[:-1] + bytes([data[-1] ^ 1]))
    return rf"checkpoint \d+, state of .*{part.blob.name}"


def marker_changed(told: Story) -> str:
    topic = next(t for t in told.broker._topics if t.endswith("emit-2.0"))
    record = next(r for r in told.records(topic) if b'"written":[[' in (r.value or b""))
    marker = decode_marker(TopicPartition(topic, 0), record.value or b"")
    told.rewrite(topic, record.offset, marker_record(changed(marker, digest="0" * 64)).value or b"")
    return rf"{topic} offset {record.offset}: commit {marker.epoch}: the marker has digest 0000"


def marker_repeated(told: Story) -> str:
    topic = next(t for t in told.broker._topics if t.endswith("emit-2.1"))
    record = told.records(topic)[-1]
    told.rewrite(topic, record.offset, (told.records(topic)[-2].value or b""))
    return rf"{topic} offset {record.offset}: says commit \d+ behind \d+, expected commit \d+ behind \d+"


def output_altered(told: Story) -> str:
    record = told.records("usage")[7]
    content = json.loads(record.value or b"")
    content["wh"] += 1
    told.rewrite("usage", record.offset, json.dumps(content).encode())
    return rf"epoch \d+, emit-2: topic usage partition 0 offset {record.offset}: .* does not follow from the epoch's input; missing: "


def output_dropped(told: Story) -> str:
    record = told.records("usage")[7]
    told.rewrite("usage", record.offset, None)
    return r"epoch \d+, emit-2: topic usage partition 0: expected \d+ records from offset \d+, found \d+"


def letter_altered(told: Story) -> str:
    record = told.records("late")[1]
    told.rewrite("late", record.offset, (record.value or b"").replace(b"meter", b"metre"))
    return rf"epoch \d+, dlq: topic late partition 0 offset {record.offset}: .* does not follow from the epoch's input"


def output_swapped(told: Story) -> str:
    """The same documents, in other epochs: what was shown was shown too early."""
    first, last = told.records("usage")[0], told.records("usage")[-1]
    told.rewrite("usage", first.offset, last.value or b"")
    told.rewrite("usage", last.offset, first.value or b"")
    return (
        rf"epoch \d+, emit-2: topic usage partition 0 offset {first.offset}: .* does not follow from the epoch's input"
    )


def input_altered(told: Story) -> str:
    record = told.records("readings")[20]
    content = json.loads(record.value or b"")
    told.rewrite("readings", record.offset, json.dumps({**content, "wh": content["wh"] + 1}).encode())
    return r"epoch \d+, emit-1: .*\.parquet: .* does not follow from the epoch's input; missing: "


def input_dropped(told: Story) -> str:
    record = told.records("readings")[20]
    told.rewrite("readings", record.offset, None)
    return r"epoch \d+, emit-1: .*\.parquet: .* does not follow from the epoch's input; missing: "


def input_made_anew(told: Story) -> str:
    """The topic was deleted, and fed once more, with less."""
    partition = told.broker._topics["readings"][0]
    end = partition.end
    del partition.stored[-5:]
    return rf"topic readings partition 0: it ends at offset {end - 5}, but commit \d+ covers what is below {end}: records were lost"


def topic_made_anew(told: Story) -> str:
    """With all that was in it, and another id."""
    told.broker._ids["readings"] = "another"
    return r"topic readings: the job read the topic with id topic-\d+, .* id another"


def end_moved(told: Story) -> str:
    """The row says that the input ends further on than the last commit does."""
    row = told.store.rows[NAME]
    kept = decode_kept(row.extra)
    ((vertex, splits),) = kept.splits.items()
    known = splits[SplitId("readings-1")]
    moved = changed(known, end=Offset((known.end or 0) + 7))
    kept = changed(kept, splits={vertex: {**splits, SplitId("readings-1"): moved}})
    told.store.rows[NAME] = changed(row, extra=encode_kept(kept))
    return rf"split readings-1: .* ends at {moved.end}, but commit \d+ covers what is below {known.end}: 7 offsets were not read"


def begin_moved(told: Story) -> str:
    """The row says that the job began further on than its commits do."""
    row = told.store.rows[NAME]
    kept = decode_kept(row.extra)
    ((vertex, splits),) = kept.splits.items()
    moved = changed(splits[SplitId("readings-0")], begin=Offset(3))
    kept = changed(kept, splits={vertex: {**splits, SplitId("readings-0"): moved}})
    told.store.rows[NAME] = changed(row, extra=encode_kept(kept))
    return "split readings-0: the row says that the job began at 3, but its commits begin at 0"


def marker_dropped(told: Story) -> str:
    topic = next(t for t in told.broker._topics if t.endswith("emit-2.0"))
    dropped, following = told.records(topic)[3:5]
    told.rewrite(topic, dropped.offset, None)
    return rf"{topic} offset {following.offset}: says commit \d+ behind \d+, expected commit \d+ behind \d+"


def mirror_changed(told: Story) -> str:
    """Positions in one row, and the digest left as it was."""
    topic = f"tidemark.{told.job}.commits"
    record = told.records(topic)[3]
    row = decode_mirror_row(record.value or b"")
    stands = tuple(
        SplitStand(s.split, Offset(s.next + 1), s.begin, s.status) for s in decode_stands(row.sources[0].positions)
    )
    source = changed(row.sources[0], positions=encode_stands(stands))
    told.rewrite(topic, record.offset, encode_message(changed(row, sources=(source, *row.sources[1:]))))
    return rf"{topic} offset {record.offset}: commit {row.epoch}: the handle of source-1/\d has digest"


def positions_changed(told: Story) -> str:
    """With their digest: what the epoch put out does not follow from them, and neither does how far time had come."""
    topic = f"tidemark.{told.job}.commits"
    rows = [decode_mirror_row(record.value or b"") for record in told.records(topic)]
    at = next(i for i, row in enumerate(rows) if i and any(h.vertex == "emit-1" and h.staged for h in row.handles))
    told.rewrite(topic, told.records(topic)[at].offset, encode_message(changed(rows[at], sources=rows[at - 1].sources)))
    return rf"epoch {rows[at].epoch}: window-1 is said to have been at watermark \d+ ms; the records .* allow \d+ ms at most"


def mirror_row_lost(told: Story) -> str:
    topic = f"tidemark.{told.job}.commits"
    record, before = told.records(topic)[3], told.records(topic)[2]
    told.rewrite(topic, record.offset, before.value or b"")
    lost = decode_mirror_row(record.value or b"").epoch
    return rf"{topic} offset {record.offset + 1}: commit \d+ follows {lost}, expected \d+: a commit is missing"


def commit_row_changed(told: Story) -> str:
    job = told.store.rows[NAME].job
    epoch, row = max(told.store.commits[job].items())
    tasks = tuple(changed(t, protocol=changed(t.protocol, output_watermark_ms=7)) for t in row.tasks)
    told.store.commits[job][epoch] = changed(row, tasks=tasks)
    return rf"commit {epoch}: the row in the coordinator's store and the one at topic .* differ in digest"


def commit_lost(told: Story) -> str:
    job = told.store.rows[NAME].job
    epoch = max(told.store.commits[job])
    del told.store.commits[job][epoch]
    return rf"the mirror has commit {epoch}, the coordinator's store none above \d+"


def table_row_altered(told: Story) -> str:
    told.tampered("UPDATE latest SET wh = wh + 1 WHERE _id = 'm3'")
    return r"^emit-4: table latest, row _id='m3': column wh: expected (\d+), found \d+$"


def table_row_of_another_type(told: Story) -> str:
    """SQLite keeps in a cell what was put there: bytes instead of a number."""
    told.tampered("UPDATE latest SET wh = CAST(CAST(wh AS TEXT) AS BLOB) WHERE _id = 'm3'")
    return r"^emit-4: table latest, row _id='m3': column wh: expected \d+, found b'\d+'$"


def table_row_dropped(told: Story) -> str:
    told.tampered("DELETE FROM latest WHERE _id = 'm3'")
    return r"^emit-4: table latest, row _id='m3': is missing; expected 5 rows, found 4$"


def table_row_added(told: Story) -> str:
    told.tampered("INSERT INTO latest VALUES ('m9', 7)")
    return r"^emit-4: table latest, row _id='m9': follows from no record of the source; expected 5 rows, found 6$"


def table_marker_changed(told: Story) -> str:
    told.tampered("UPDATE tidemark_released SET released = released + 1000 WHERE identity LIKE '%emit-4.0'")
    return (
        r"^emit-4: table latest: tidemark_released has commit \d+ for .*\.emit-4\.0; expected one of the job's commits"
    )


def table_marker_set_back(told: Story) -> str:
    """What it hides would be released again."""
    told.tampered("UPDATE tidemark_released SET released = 0 WHERE identity LIKE '%emit-4.0'")
    return r"emit-4: the processor is FINISHED with commit \d+, but markers stand at"


TAMPERINGS: tuple[Tamper, ...] = (
    row_dropped,
    row_repeated,
    row_altered,
    file_removed,
    manifests_swapped,
    manifest_altered,
    table_commit_altered,
    manifest_removed,
    summary_changed,
    snapshot_changed,
    marker_changed,
    marker_repeated,
    marker_dropped,
    output_altered,
    output_dropped,
    output_swapped,
    letter_altered,
    input_altered,
    input_dropped,
    input_made_anew,
    topic_made_anew,
    end_moved,
    begin_moved,
    mirror_changed,
    positions_changed,
    mirror_row_lost,
    commit_row_changed,
    commit_lost,
)
OF_A_TABLE: tuple[Tamper, ...] = (
    table_row_altered,
    table_row_of_another_type,
    table_row_dropped,
    table_row_added,
    table_marker_changed,
    table_marker_set_back,
)


@pytest.mark.parametrize("tamper", TAMPERINGS, ids=lambda tamper: tamper.__name__)
def test_the_audit_names_what_was_tampered_with(saved: Saved, tamper: Tamper) -> None:
    """Whatever is changed, the first discrepancy names the place where it was changed, or the epoch that it changes."""

    async def then(told: Story) -> None:
        pattern = tamper(told)
        with pytest.raises(AuditFailed, match=pattern):
            await told.audit()

    run(saved, then)


@pytest.mark.parametrize("tamper", OF_A_TABLE, ids=lambda tamper: tamper.__name__)
def test_the_audit_names_what_was_tampered_with_in_a_table(merged: Saved, tamper: Tamper) -> None:
    """A row is named by its key, with what it must hold and holds; a marker by its identity."""
    test_the_audit_names_what_was_tampered_with(merged, tamper)


def test_a_table_that_nobody_tampered_with_is_what_the_records_say(merged: Saved) -> None:
    """All of it: nothing is left unchecked, and each document that was merged is counted."""

    async def then(told: Story) -> Audited:
        found = await told.audit()
        assert found.outputs[VertexId("emit-4")] == len(told.records("usage"))
        return found

    found: Audited = run(merged, then)
    assert (found.unchecked, found.notes) == ((), ())


def test_a_difference_that_another_job_may_have_made_is_told_as_unchecked(merged: Saved) -> None:
    """A marker of a job that the installation does not know stands in the database: no statement, and the difference is named."""

    async def then(told: Story) -> tuple[Audited, Audited]:
        told.tampered("INSERT INTO tidemark_released VALUES ('someone.emit-1.0', 4)")
        equal = await told.audit()
        told.tampered("DELETE FROM latest WHERE _id = 'm3'")
        return equal, await told.audit()

    equal, found = run(merged, then)
    assert equal.unchecked == ()
    (why,) = found.unchecked
    assert "row _id='m3': is missing" in why
    assert "other jobs have markers in this database and may have written it: someone" in why
    assert any(line == f"not checked: {why}" for line in found.text(every_epoch=False))
    assert found.as_json()["unchecked"] == [why]


def test_the_audit_names_a_document_that_nobody_released(saved: Saved) -> None:
    """A copy of an output's record, written by somebody else, is named by its offset."""

    async def then(told: Story) -> None:
        offset = await told.append("usage", told.records("usage")[0].value or b"")
        with pytest.raises(AuditFailed, match=f"usage partition 0 offset {offset}: .* is in no release of any job"):
            await told.audit()

    run(saved, then)


@dataclass(frozen=True)
class Dropping:
    """A log in which another processor is dropped behind the listing: brokers then refuse to name offsets of its topic of markers."""

    inner: Any
    topic: str

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def begin_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Offset]:
        if self.topic in {partition.topic for partition in partitions}:
            await self.inner.delete_topics([self.topic])
            raise LogError(f"topic {self.topic} does not exist")
        found: dict[TopicPartition, Offset] = await self.inner.begin_offsets(partitions)
        return found


def test_another_processor_may_be_dropped_while_an_audit_reads_its_markers(saved: Saved) -> None:
    """Its ranges are not known any more: what only it may have written is left alone, and all else is compared as ever."""

    async def then(told: Story) -> Audited:
        topic = f"{TOPIC_PREFIX}someone.emit-1.0"
        await told.log.create_topic(topic, 1)
        told.log = Dropping(told.log, topic)
        await told.append("usage", told.records("usage")[0].value or b"")
        return await told.audit()

    assert run(saved, then).outputs == run(saved, lambda told: told.audit()).outputs


def test_what_the_job_did_not_read_is_named(saved: Saved) -> None:
    """Records behind the end of a drain, and a partition that came after it; what was read all of is not."""

    async def then(told: Story) -> Audited:
        assert (await told.audit()).unread == ()
        end = await told.append("readings", b"{}")
        told.broker.add_partitions("readings", 3)
        writer = await told.log.writer("late")
        await (await writer.send(TopicPartition("readings", 2), NewRecord(b"{}")))
        await writer.close()
        found = await told.audit()
        assert found.unread == (
            f"topic readings partition 0: offsets {end} to {end}, behind its end",
            "topic readings partition 2: all of it, offsets 0 to 0: it came after the job had found its partitions",
        )
        return found

    assert any(
        line.startswith("not read: topic readings partition 0") for line in run(saved, then).text(every_epoch=False)
    )


def test_what_retention_took_from_the_source_is_no_success(saved: Saved) -> None:
    """Without the first records nothing can be computed again: said with the epochs that read them, and no statement is made."""

    async def then(told: Story) -> None:
        await told.log.delete_records({TopicPartition("readings", 1): Offset(40)})
        with pytest.raises(
            NotAuditable, match=r"readings partition 1: the job read from offset 0, and records below 40 are gone"
        ):
            await told.audit()

    run(saved, then)


def test_what_retention_took_from_an_output_is_told(saved: Saved) -> None:
    """Epochs whose records are gone are named and not compared; the others are."""

    async def then(told: Story) -> tuple[Audited, Epoch]:
        first = told.records("usage")[0]
        await told.log.delete_records({TopicPartition("usage", 0): Offset(first.offset + 1)})
        return await told.audit(), Epoch(0)

    found, _ = run(saved, then)
    assert found.gone == ("topic usage partition 0: records below offset 1 are gone",)
    assert sum(bool(epoch.gone) for epoch in found.epochs) == 1


def test_what_compaction_took_from_the_source_is_no_difference(saved: Saved) -> None:
    """What is lacking in a compacted topic may have been read: no statement. Where nothing is lacking, or not compacted, all is as ever."""

    async def then(told: Story) -> None:
        told.broker.compacted.add("readings")
        assert (await told.audit()).records == len(READINGS) + 15
        told.rewrite("readings", 3, None)
        with pytest.raises(
            NotAuditable, match=r"topic readings partition 0 is compacted, and 1 of the offsets from 0 to"
        ):
            await told.audit()
        told.broker.compacted.clear()
        with pytest.raises(AuditFailed) as found:
            await told.audit()
        assert not isinstance(found.value, NotAuditable)

    run(saved, then)


def test_what_compaction_took_from_an_output_is_told(saved: Saved) -> None:
    """The epoch is named and not compared; the others are."""

    async def then(told: Story) -> Audited:
        told.broker.compacted.add("usage")
        told.rewrite("usage", told.records("usage")[0].offset, None)
        return await told.audit()

    found: Audited = run(saved, then)
    assert len(found.gone) == 1
    assert found.gone[0].startswith("topic usage partition 0 is compacted: records from offset 0 on gave way")
    assert sum(bool(epoch.gone) for epoch in found.epochs) == 1


def test_a_restore_names_a_snapshot_that_was_changed(tmp_path: Path) -> None:
    """A stopped processor does not start on state of another digest: it fails, and says which blob of which task it was."""

    async def main(world: VirtualWorld) -> tuple[str, str]:
        settings = RuntimeSettings(engine="local", state_inline_bytes_max=1)
        async with installed(world.clock, world.executor, settings=settings) as it:
            log = sealed(MemoryLog(it.broker))
            await log.create_topic("readings", 2)
            await it.create(document(tmp_path))
            await it.start()
            await feed(log, READINGS[:PER_PART])
            await it.committed()
            await it.stop()
            told = Story(it.broker, it.store, it.memory_blobs, tmp_path, log)
            named = snapshot_changed(told).rpartition("*")[2]
            await it.client.request(StartProcessor(it.client.unique(), NAME))
            return named, (await it.when(lambda status: status.state == "FAILED")).reason

    named, reason = run_virtual(main)
    assert named in reason
    assert "it was changed or cut" in reason


# --- a mirror that was made anew ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_mirror_that_was_made_anew_is_named(saved: Saved, left: int, earlier: bool) -> None:
    """Nothing is accused, and nothing vouched for; also where an earlier audit saw all of it. left: rows that a leader wrote again."""

    async def then(told: Story) -> None:
        if earlier:
            await told.audit()
        topic = Topics().commits(JobId(told.job))
        rows = told.records(topic)
        await told.log.delete_topics([topic])
        await told.log.create_topic(topic, 1)
        for record in rows[len(rows) - left :]:
            await told.append(topic, record.value or b"")
        with pytest.raises(NotAuditable, match="was deleted and made anew"):
            await audit(NAME, told.installation(), resumes=earlier)

    run(saved, then)
