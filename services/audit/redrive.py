"""`tidemark redrive NAME`: late records through the windows that they missed, as corrections with the old and the new value.

A redrive takes the dead letters behind those of the last one, up to where the queue ends now. Corrections, and where it ended, are
written in one transaction under the job's identity. Opening it fences every other redrive of the job, and aborts its open transaction. So
each letter is corrected once, even if the command is repeated, killed, or run twice at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

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
from tidemark.services.audit.history import read_history
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.patient import PatientLog
from tidemark.services.audit.reading import HeldRecords, committed_records
from tidemark.services.audit.recompute import Stand
from tidemark.services.audit.sources import source_records, sources_of
from tidemark.services.sink.connectors.kafkamarkers import TOPIC_PREFIX, decode_marker
from tidemark.shared.language.documents import KafkaDlq, Processor, parse
from tidemark.shared.language.stages import KafkaSource
from tidemark.shared.language.values import parse_json, render_json
from tidemark.shared.model.formats import REDRIVEN, JsonCodec
from tidemark.shared.model.ids import NO_EPOCH, Epoch, JobId, ProcessorName, SplitId, VertexId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.splits import Status
from tidemark.shared.model.values import Document
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition
from tidemark.shared.protocol.coordinator.record import decode_plan
from tidemark.shared.runtime.topics import KEPT


class Redriven(msgspec.Struct, frozen=True):
    """How far the dead letters of a job have been redriven; a record of the topic of redrives."""

    job: JobId
    until: dict[str, int]
    """By partition of the queue: the offset of the first letter that is not redriven."""
    letters: int
    """That this redrive took."""
    corrections: int
    topic: str
    """Where they went."""
    version: int = REDRIVEN.version
    stands: dict[SplitId, tuple[int, Status]] = {}
    """Where the splits stood, as in `Stand`: later output is not corrected yet."""
    origin: str = ""
    """The queue's id, in which `until` means something; none where the brokers told none."""


_QUEUE: Final = VertexId("dlq")
_AT_ONCE: Final = 500
"""Corrections that are handed to a transaction at once."""
_CODEC: Final[JsonCodec[Redriven]] = JsonCodec(REDRIVEN, Redriven)


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of a processor, and where the queue ends."""

    before: list[Document]
    """Redriven already."""
    new: list[Document]
    until: dict[str, int]


async def redrive(name: ProcessorName, installed: AuditedInstallation, topic: str | None = None) -> Redriven:
    """Correct the windows of a processor for the late records that were not redriven yet. CannotRedrive; AuditFailed."""
    installed = replace(installed, log=PatientLog(installed.log))
    row = await installed.row_of(name)
    plan = decode_plan(row.plan)
    processor = parse(plan.document)
    part, path = windowed(processor)
    queue = processor.options.dlq
    if not isinstance(queue, KafkaDlq):
        message = "options.dlq: expected a topic, from which letters can be read again"
        raise CannotRedrive(message)
    topic = topic or f"{queue.topic}.corrections"
    # All in the queue's cluster: corrections and how far they go are one transaction.
    log, markers = installed.log_at(processor, queue.connection_name), f"{installed.topics.prefix}.redrives"
    for each in (topic, markers):
        await log.create_topic(each, 1, KEPT)
    writer = await log.transactional_writer(f"tidemark.redrive.{row.job}")  # fences; aborts an open transaction
    try:
        last = await _last(log, markers, row.job)
        origin = await _whole(log, queue.topic, row.job)
        known = last is not None and (last.origin == origin or not last.origin)
        letters = await _letters(log, queue.topic, name, last.until if last is not None and known else {})
        records = await _records(row, processor, installed)
        stands = {split: (stand.next, stand.status) for split, stand in records.stands.items()}
        more = bool(letters.new or (letters.before and last is not None and last.stands != stands))
        found = _found(part, path, records, letters, last, plan.since) if more else []
        done = Redriven(row.job, letters.until, len(letters.new), len(found), topic, stands=stands, origin=origin)
        if not more:
            return done
        transaction = await writer.begin()
        for begin in range(0, len(found), _AT_ONCE):
            batch = [_record(document) for document in found[begin : begin + _AT_ONCE]]
            await transaction.send_batch(TopicPartition(topic, 0), batch)
        marker = NewRecord(_CODEC.encode(done), row.job.encode())
        await transaction.send_batch(TopicPartition(markers, 0), [marker])
        await transaction.commit()
        return done
    finally:
        await writer.close()


def _found(
    part: Processor, path: str, records: ReadRecords, letters: Letters, last: Redriven | None, since: Epoch
) -> list[Document]:
    """The corrections by the new letters, and those of output since the last redrive by the earlier letters.

    since: the checkpoint at which the document was changed last, from which on the source judges as it does now.
    """
    ordinals = partitions_of(records)
    redriven = late_places(letters.before, path, ordinals)
    after = redriven | late_places(letters.new, path, ordinals)
    stood = {} if last is None else {split: Stand(*stand) for split, stand in last.stands.items()}
    then = None if last is None else stood or records.stands
    old, late = before(part, path, records, then, redriven)
    unknown = after - redriven - late
    if unknown:
        ordinal, position = min(unknown)
        why = "it came back from idleness, behind the others"
        if since > NO_EPOCH:
            why += f", or the document was changed at checkpoint {since}, and by its source as it is now none of this was late"
        message = (
            f"a dead letter names the record at offset {position} of split {ordinal} as late, which it is not by its own "
            f"split: {why}; such letters cannot be redriven"
        )
        raise CannotRedrive(message)
    new, _ = windows_of(part, path, records, after)
    return corrections(old, new)


def _record(correction: Document) -> NewRecord:
    key = {name: correction[name] for name in ("window", "_id") if name in correction}
    return NewRecord(render_json(correction), render_json(key))


async def _last(log: Log, markers: str, job: JobId) -> Redriven | None:
    found = None
    async for record in committed_records(log, markers):
        if record.key == job.encode():
            found = _CODEC.decode(record.value or b"")
    return found


async def _whole(log: Log, topic: str, job: JobId) -> str:
    """The queue's id. CannotRedrive where letters of the job are gone: what they would have corrected, or have, is not known any more."""
    queue = (await log.describe_topics([topic])).get(topic)
    if queue is None:
        message = f"topic {topic}: the queue of the dead letters is not there"
        raise CannotRedrive(message)
    begins = await log.begin_offsets([TopicPartition(topic, number) for number in range(queue.partitions)])
    gone = 0
    for markers in sorted(await log.list_topics()):
        if not markers.startswith(f"{TOPIC_PREFIX}{job}.{_QUEUE}."):
            continue
        async for record in committed_records(log, markers):
            marker = decode_marker(markers, record.value or b"")
            origin = marker.topics.get(topic, queue.id)
            for written in (each for each in marker.written if each.topic == topic):
                begin = begins.get(written.place) if origin == queue.id or not queue.id else None
                gone += written.count if begin is None else min(written.count, max(0, begin - written.first))
    if gone:
        message = (
            f"topic {topic}: {gone} letters of this job are gone, by retention or because the topic was deleted: what they would have"
            " corrected, or have corrected, is not known any more. The queue must keep its letters for as long as the source its records"
        )
        raise CannotRedrive(message)
    return queue.id


async def _letters(log: Log, topic: str, name: ProcessorName, until: Mapping[str, int]) -> Letters:
    """The processor's letters on both sides of where the last redrive ended."""
    found, held = Letters([], [], {}), HeldRecords(f"topic {topic}")
    async for record in committed_records(log, topic):
        partition = str(record.partition)
        found.until[partition] = record.offset + 1
        letter = parse_json(record.value or b"null")
        if type(letter) is dict and letter.get("processorName") == name:
            held.take(record)
            (found.before if record.offset < until.get(partition, 0) else found.new).append(letter)
    return found


async def _records(row: ProcessorRow, processor: Processor, installed: AuditedInstallation) -> ReadRecords:
    commits = await read_history(row, processor, installed.store, installed.blobs, installed.log, installed.topics)
    if not commits:
        message = f"{row.name} has committed nothing yet"
        raise CannotRedrive(message)
    sources = sources_of(row, processor, installed)
    splits = await source_records(sources, commits)
    for each in sources:
        if why := await each.compacted(splits, commits, None):
            raise CannotRedrive(why)
    final = commits[-1].row.final
    stands = {
        split: Stand(stand.next, "finished" if final or stand.status == "finished" else "active")
        for split, stand in commits[-1].stands.items()
    }
    source = processor.source
    shuffled = isinstance(source, KafkaSource) and source.record_id is not None and source.record_id_scope == "source"
    passed = [{split: at.next for split, at in commit.stands.items()} for commit in commits if shuffled]
    return ReadRecords(splits, stands, row.name, passed)
