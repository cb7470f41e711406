"""The sources of a document, read again: by the connectors and formats that the product itself reads with.

A topic's records stay as they are while they are there, and a schema of a registry as long as its number. Versions of tables do not change
either, and a sample is computed. Files can be changed: what the job read of them has a check in its commits (`services.source.taken`), and
where that is not what is read now, nothing can be said of what followed.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from tidemark.services.audit.columns import columns_of
from tidemark.services.audit.history import AuditFailed, Commit, NotAuditable, PastGone, first_offset, name_of_split
from tidemark.services.audit.input import as_listed, left_in_topics, same_topics
from tidemark.services.audit.installed import AuditedInstallation
from tidemark.services.audit.reading import RAW_RECORD_BYTES, HeldRecords, patiently
from tidemark.services.audit.recompute import ROWS_AT_ONCE, SplitRecords
from tidemark.services.source.connecting import records_of, timetable_of
from tidemark.services.source.connectors.filecursors import PLACE_BEGIN
from tidemark.services.source.connectors.files import SEQUENCE, FileConnector
from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.services.source.connectors.timed import TimedConnector
from tidemark.services.source.filesources import file_source
from tidemark.services.source.taken import BEGUN, same, taken
from tidemark.shared.adapters.clock import SystemClock
from tidemark.shared.language.documents import Processor
from tidemark.shared.language.expressions.ast import CreateUuid, Meta
from tidemark.shared.language.stages import (
    ChangesSource,
    ChangeStreamSource,
    DocumentsSource,
    FileSource,
    KafkaSource,
    PluginSource,
    SampleSource,
    ScheduleSource,
    ScriptSource,
    Source,
)
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.failures import WrongSetup
from tidemark.shared.model.ids import Offset, SplitId, VertexId
from tidemark.shared.model.processors import ProcessorRow
from tidemark.shared.model.records import RawBatch
from tidemark.shared.planning import ReadHead, plan_processor
from tidemark.shared.ports.log import Log, LogError, LogUnavailable, TopicPartition
from tidemark.shared.ports.source import SourcePort
from tidemark.shared.protocol.coordinator.record import decode_kept

_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""That one fetch of a connector brings."""
_SHOWN: Final = 20
"""Files that a message names."""
_WHY: Final[Mapping[type[Source], str]] = {
    ChangesSource: "a slot keeps no change that a checkpoint has",
    ChangeStreamSource: "a server keeps its changes for a while, and gives no document again as it was",
    DocumentsSource: "its records have the time at which they were read, which is not noted",
    ScriptSource: "its steps move the clock, and when they did is not noted",
    PluginSource: "an audit asks no plug-in",
}
"""Why the records of a source cannot be read again."""


def refused(processor: Processor) -> None:
    """NotAuditable for a source that cannot be read again."""
    for stage in processor.sources:
        if why := _WHY.get(type(stage)):
            raise NotAuditable(f"{stage.path}: only topics, files, tables and samples can be read again: {why}")


def sources_of(row: ProcessorRow, processor: Processor, installed: AuditedInstallation) -> "tuple[SourceRead, ...]":
    """The document's sources. NotAuditable for one that cannot be read again."""
    refused(processor)
    several, found = len(processor.sources) > 1, list[TopicsRead | PortRead]()
    for vertex in plan_processor(processor, engine="local").vertices:
        if not isinstance(vertex.head, ReadHead):
            continue
        stage = vertex.head.stage
        listed = decode_kept(row.extra).splits.get(vertex.id, {})
        if isinstance(stage, KafkaSource):
            log = installed.log_at(processor, stage.connection_name)
            with installed.permitted(stage.path):
                records = records_of(installed.reach, processor, stage, installed.executor)
            found.append(TopicsRead(vertex.id, stage, log, records, listed, several=several))
        else:
            found.append(PortRead(vertex.id, stage, processor, installed, listed, several=several))
    return tuple(found)


async def source_records(
    sources: "Sequence[SourceRead]", commits: Sequence[Commit], after: Commit | None = None
) -> list[SplitRecords]:
    """The records of the sources' splits, from where the job began, or this commit stood, to the positions of the last commit."""
    return [split for source in sources for split in await source.records(commits, after)]


@asynccontextmanager
async def or_compacted(
    sources: "Sequence[SourceRead]", splits: Sequence[SplitRecords], commits: Sequence[Commit], after: Commit | None
) -> AsyncIterator[None]:
    """What is compared within is no difference where topics have let go of records for later ones of their keys: NotAuditable."""
    try:
        yield
    except NotAuditable:
        raise
    except AuditFailed as error:
        for source in sources:
            if why := await source.compacted(splits, commits, after):
                raise NotAuditable(f"{why}; what was found: {error}") from error
        raise


def _own(source: VertexId, commit: Commit, *, several: bool) -> list[tuple[SplitId, SplitId]]:
    """The splits of a source in a commit, in order: each as the source names it, and as the audit does."""
    front = name_of_split(source, SplitId(""), several=several)
    return [(SplitId(name.removeprefix(front)), name) for name in sorted(commit.stands) if name.startswith(front)]


# --- topics -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicsRead:
    """One that reads topics."""

    vertex: VertexId
    stage: KafkaSource
    log: Log
    """Of its cluster."""
    made: RegisteredRecords | FormattedRecords | None
    """Makes JSON of the records."""
    listed: Mapping[SplitId, KnownSplit]
    """The splits in the processor's row."""
    several: bool
    """It is one of several."""

    async def records(self, commits: Sequence[Commit], after: Commit | None) -> list[SplitRecords]:
        """See `source_records`. NotAuditable: what was read is no longer there."""
        await same_topics(self.log, self.stage, self.listed)
        splits = await self._records(commits, after)
        await same_topics(self.log, self.stage, self.listed)
        return splits

    async def _records(self, commits: Sequence[Commit], after: Commit | None) -> list[SplitRecords]:
        splits = []
        for own, split in _own(self.vertex, commits[-1], several=self.several):
            topic, _, number = own.rpartition("-")
            place, topics = TopicPartition(topic, int(number)), self.stage.topics
            at = None if after is None else after.stands.get(split)
            first, end = first_offset(commits, split) if at is None else at.next, commits[-1].stands[split].next
            await _still_there(self.log, place, split, commits, first)
            ordinal = place.partition * len(topics) + topics.index(topic)  # as in `TaskContext.topic`
            batches = [b async for b in self._batches(place, first, end, split, ordinal)]
            splits.append(SplitRecords(self.vertex, split, ordinal, batches))
        return splits

    async def _batches(
        self, at: TopicPartition, first: Offset, end: Offset, split: SplitId, ordinal: int
    ) -> AsyncIterator[RawBatch]:
        """The records of a split from one offset to another, in columns: an object for each takes twice the room. TooMuchHeld."""
        held = HeldRecords(f"topic {at.topic}", RAW_RECORD_BYTES)
        async for found in columns_of(self.log, at, first, end):
            count = len(found.offsets)
            size_bytes = found.values.nbytes + (0 if found.keys is None else found.keys.nbytes)
            held.add(
                size_bytes,
                count,
                f"the fetch behind offset {found.offsets[0] if count else first} of partition {at.partition}",
            )
            batch = RawBatch(split, ordinal, found.offsets, found.timestamps, found.values, found.keys, found.unread)
            for begin in range(0, count, ROWS_AT_ONCE):
                yield await self._read(batch.rows(begin, min(begin + ROWS_AT_ONCE, count)))

    async def _read(self, batch: RawBatch) -> RawBatch:
        made = self.made
        return batch if made is None else await patiently(lambda: made.decoded(batch))

    async def unread(self, row: ProcessorRow, commits: Sequence[Commit]) -> tuple[str, ...]:
        """Records that lie there and that the job has not read, each with its place.

        AuditFailed: the row has a split at its end that no commit covers up to there.
        """
        names = {split: name_of_split(self.vertex, split, several=self.several) for split in self.listed}
        for split, known in sorted(self.listed.items()):
            as_listed(row, names[split], known, commits)
        left = left_in_topics(row, self.log, self.stage, self.listed, names, commits)
        return tuple([what async for what in left])

    async def compacted(self, splits: Sequence[SplitRecords], commits: Sequence[Commit], after: Commit | None) -> str:
        """Why more may have been read than is there: compaction leaves offsets without a record, as ends of transactions do; "" if not."""
        for own, split in _own(self.vertex, commits[-1], several=self.several):
            topic, _, number = own.rpartition("-")
            at = None if after is None else after.stands.get(split)
            first, end = first_offset(commits, split) if at is None else at.next, commits[-1].stands[split].next
            there = sum(len(batch.positions) for each in splits if each.split == split for batch in each.batches)
            if there < end - first and (await self.log.topic_rules([topic]))[topic].needs_key:
                return (
                    f"topic {topic} partition {number} is compacted, and {end - first - there} of the offsets from {first} to {end} have"
                    " no record any more: what followed from them cannot be computed again"
                )
        return ""


async def _still_there(
    log: Log, partition: TopicPartition, split: SplitId, commits: Sequence[Commit], first: Offset
) -> None:
    """Nothing that the job has read from `first` on is gone."""
    last = commits[-1].stands[split].next
    begin = (await log.begin_offsets([partition]))[partition]
    end = (await log.end_offsets([partition]))[partition]
    if begin > first and last > first:
        lost = [c.epoch for c in commits if split in c.stands and c.stands[split].next <= begin]
        what = f"epochs {lost[0]} to {lost[-1]}" if lost else f"a part of epoch {commits[0].epoch}"
        message = (
            f"{partition}: the job read from offset {first}, and records below {begin} are gone: retention has overtaken {what}; "
            "what followed from them cannot be computed again"
        )
        raise PastGone(message)
    if end < last:
        message = (
            f"{partition}: it ends at offset {end}, but commit {commits[-1].epoch} covers what is below {last}: records "
            "were lost"
        )
        raise AuditFailed(message)


# --- files, tables, samples ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PortRead:
    """One that the product's own connector reads again."""

    vertex: VertexId
    stage: Source
    processor: Processor
    installed: AuditedInstallation
    listed: Mapping[SplitId, KnownSplit]
    """The splits in the processor's row."""
    several: bool

    async def _port(self) -> SourcePort:
        if isinstance(self.stage, SampleSource | ScheduleSource):
            return TimedConnector(timetable_of(self.stage), SystemClock())
        assert isinstance(self.stage, FileSource), "all others are refused"
        with self.installed.permitted(self.stage.path):
            return await file_source(self.installed.reach, self.installed, self.processor, self.stage)

    async def records(self, commits: Sequence[Commit], after: Commit | None) -> list[SplitRecords]:
        """See `source_records`."""
        begins, ends = dict[SplitId, Offset](), dict[SplitId, Offset]()
        own = _own(self.vertex, commits[-1], several=self.several)
        for split, name in own:
            at = None if after is None else after.stands.get(name)
            begins[split] = first_offset(commits, name) if at is None else at.next
            ends[split] = commits[-1].stands[name].next
        wanted = {split: begin for split, begin in begins.items() if begin < ends[split]}
        try:
            found = await self._read(wanted, ends)
        except (LogError, WrongSetup) as error:
            if isinstance(error, LogUnavailable):
                raise
            raise NotAuditable(
                f"{error}; what followed from it up to commit {commits[-1].epoch} is not judged"
            ) from error
        splits = []
        for split, name in own:
            ordinal = self.listed[split].ordinal
            self._compare(split, name, found.get(split, []), commits, after)
            batches = [_named(batch, name) for batch in found.get(split, [])]
            splits.append(SplitRecords(self.vertex, name, ordinal, batches))
        return splits

    async def _read(
        self, begins: Mapping[SplitId, Offset], ends: Mapping[SplitId, Offset]
    ) -> dict[SplitId, list[RawBatch]]:
        """All records in between. LogError."""
        found: dict[SplitId, list[RawBatch]] = {split: [] for split in begins}
        if not begins:
            return found
        held = HeldRecords(self.stage.path, RAW_RECORD_BYTES)
        port = await patiently(self._port)
        try:
            there = await patiently(port.splits)
            if gone := begins.keys() - there.keys() - ({*self.listed} if self._one_lists else set()):
                raise LogError(f"{self.stage.path}: {min(gone)} is gone")
            await port.open(begins)
            port.end_at({split: ends[split] for split in begins})
            while True:
                batches = await patiently(lambda: port.fetch(_AT_ONCE_BYTES, 0))
                for batch in batches:
                    held.add(batch.values.nbytes, len(batch.positions), f"{batch.file or batch.split}")
                    found[batch.split].append(batch)
                left = [s for s in port.status() if s.next_position < ends[s.split]]
                if not left:
                    return found
                if not batches and all(s.at_end or s.finished for s in left):
                    raise LogError(await self._shorter(port, left[0].split, left[0].next_position, ends[left[0].split]))
        finally:
            await port.close()

    async def _shorter(self, port: SourcePort, split: SplitId, at: Offset, end: Offset) -> str:
        if not isinstance(port, FileConnector) or split != SEQUENCE:
            return f"{self.stage.path}: {split} ends at position {at}, and the job has read up to {end}: it is shorter than it was"
        names, read = await port.files(), (end >> PLACE_BEGIN) + 1
        shown = ", ".join(names[:_SHOWN]) or "none"
        return f"{self.stage.path}: of {read} files that the job has begun one is gone, or shorter than it was; there are now: {shown}"

    @property
    def _one_lists(self) -> bool:
        """Whether splits are of a version, and stay when another one is there."""
        return any("@" in split for split in self.listed)

    def _compare(
        self,
        split: SplitId,
        name: SplitId,
        batches: Sequence[RawBatch],
        commits: Sequence[Commit],
        after: Commit | None,
    ) -> None:
        """NotAuditable where files do not hold the records that were read of them."""
        if not isinstance(self.stage, FileSource):
            return
        at = None if after is None else after.stands.get(name)
        check, arrivals = BEGUN if at is None or not at.check else at.check, needs_arrivals(self.processor, self.stage)
        left, last = list(batches), self.listed[split].begin if at is None else at.next
        for commit in commits:
            stand = commit.stands.get(name)
            if stand is None or stand.next == last:
                continue
            files, last = dict[str, None](), stand.next
            while left and int(left[0].positions[0]) < stand.next:
                batch = left.pop(0)
                stop = int(np.searchsorted(batch.positions, stand.next))
                if stop < len(batch.positions):
                    left.insert(0, batch.rows(stop, len(batch.positions)))
                check = taken(check, batch.rows(0, stop))
                files[batch.file] = None
            if stand.check and same(stand.check, check, arrivals=arrivals):
                continue
            if not stand.check and check == BEGUN:
                continue  # no record yet
            raise NotAuditable(self._changed(split, list(files), commit, check))

    def _changed(self, split: SplitId, files: Sequence[str], commit: Commit, check: str) -> str:
        stand = commit.stands[name_of_split(self.vertex, split, several=self.several)]
        place = ", ".join(files[:_SHOWN]) or f"split {split}"
        place = f"one of {place}" if len(files) > 1 else place
        if not stand.check:
            why = "an earlier release has read it, which noted nothing to know it by"
        elif same(stand.check, check, arrivals=False):
            why = "it was changed since the job read it, and with it the time that its records have as their arrival"
        else:
            why = "it is gone, or has other records than those that the job read"
        return (
            f"{self.stage.path}: {place}: {why}; epoch {commit.epoch}, and what came out behind it, cannot be computed again"
            " and is not judged"
        )

    async def compacted(self, splits: Sequence[SplitRecords], commits: Sequence[Commit], after: Commit | None) -> str:
        """Files and tables have checks of their own."""
        return ""

    async def unread(self, row: ProcessorRow, commits: Sequence[Commit]) -> tuple[str, ...]:
        """See `TopicsRead.unread`."""
        for split, known in sorted(self.listed.items()):
            as_listed(row, name_of_split(self.vertex, split, several=self.several), known, commits)
        if self._one_lists or isinstance(self.stage, SampleSource | ScheduleSource):
            return ()
        port = await patiently(self._port)
        try:
            there = await patiently(port.splits)
        finally:
            await port.close()
        return tuple(
            f"{self.stage.path}: {split}: all of it: it came after the job had looked"
            for split in sorted(there.keys() - self.listed.keys())
        )


SourceRead: TypeAlias = TopicsRead | PortRead
"""A source of the document."""


def _named(batch: RawBatch, name: SplitId) -> RawBatch:
    return replace(batch, split=name)


def needs_arrivals(processor: Processor, source: Source) -> bool:
    """Whether an output may depend on when records came: that of a file's is the time of its change."""
    options = processor.options
    told = options.dlq is not None or options.stream_meta_field_name is not None  # letters have it as their time
    return source.time_field is None or told or _asks(processor.pipeline)


def _asks(tree: object) -> bool:
    """Whether an expression anywhere in stages reads metadata."""
    if isinstance(tree, Meta):
        return not isinstance(tree, CreateUuid)
    if is_dataclass(tree):
        return any(_asks(getattr(tree, each.name)) for each in fields(tree))
    if isinstance(tree, Mapping):
        return any(_asks(each) for each in tree.values())
    return isinstance(tree, list | tuple) and any(_asks(each) for each in tree)
