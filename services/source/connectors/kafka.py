"""The Kafka source: partitions of one topic or several as splits, each read in offset order, without consumer groups.

Rules kept here:
- Ordinals (D11): partition · topics + topic's place in the document. Every task computes the same, and partitions that are added
  later change none.
- W4: a split is at its end only if its position has reached the high watermark that the broker told in an answer, and that answer is
  recent: silence, an outage or a process that was stopped is no end.
- I1, E1: where a new split starts (`startAt`) and ends (`until: latest`) is told by `ranges`, so that it is durable before it is read.
- I2: a split's origin is its topic's id; partitions of a topic that was made anew are not read as if they were the old ones.
- A position that retention has overtaken is an error that says so, the first one of a partition that came later, too; nothing is
  skipped silently.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tidemark.services.source.connectors.formatted import FormattedRecords
from tidemark.services.source.connectors.registered import RegisteredRecords
from tidemark.shared.language.stages import StartAt, StartAtOffsets, StartAtTime
from tidemark.shared.model.checkpoint import KnownSplit
from tidemark.shared.model.ids import FIRST_OFFSET, Offset, SplitId
from tidemark.shared.model.records import RawBatch, RawPartition
from tidemark.shared.model.splits import SplitStatus
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, LogError, LogUnavailable, OffsetOutOfRange, TopicFound, TopicPartition
from tidemark.shared.ports.source import SourceMissing, SourceOvertaken, SourceReplaced


class ReadsPartitions(Protocol):
    """Reads assigned partitions as columns. Committed records only. Errors are those of the log."""

    async def assign(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Read these partitions from here; replaces earlier assignments."""
        ...

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return nothing of these any more."""
        ...

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> Sequence[RawPartition]:
        """The records that are there, about so many bytes at most, waiting at most so long; OffsetOutOfRange, LogUnavailable.

        Without `waits`: waiting for the brokers' answers alone, which come at once.
        """
        ...

    def position(self, partition: TopicPartition) -> Offset:
        """Behind the records that `fetch` returned, and behind those that readers are not shown (aborted records, markers)."""
        ...

    def high_watermark(self, partition: TopicPartition) -> Offset | None:
        """The end that the broker's last answer named, open transactions included; None before the first since `assign`."""
        ...

    def answered(self, partition: TopicPartition) -> int | None:
        """A number that changes with every answer of the broker about the partition; None as above."""
        ...

    async def offsets_at(self, time_ms: int, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, Offset]:
        """The first offsets with a timestamp at or after a time; the end where there is none."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


_MISSING_MS_MAX: Final = 2_000
"""A topic that is asked for may be missing so long: brokers learn of a new one after another."""
_MUCH_BYTES: Final = 64 * 1024
"""A fetch of so much costs little beside its records."""
_MISSING_POLL_MS: Final = 200
"""How often a topic that is missing is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSourceSettings:
    """The topics to read, and bounds."""

    topics: tuple[str, ...]
    start_at: StartAt = "latest"
    until: StartAt | None = None
    """`latest` or offsets; None: without end."""
    gather_ms_max: int = 500
    """See `SourceSettings`."""
    answer_age_ms_max: int = 2_000
    """An answer of the broker older than this says nothing about the end of a split; above the broker's fetch wait."""
    splits_max: int = 10_000
    """Partitions that one source may have, over all tasks."""
    cluster: str = ""
    """The brokers that were asked, for messages."""

    def __post_init__(self) -> None:
        if not self.topics or len(set(self.topics)) != len(self.topics):
            raise ValueError(f"$source.topic: expected one topic or several different ones, found {list(self.topics)}")
        if self.until is not None and self.until != "latest" and not isinstance(self.until, StartAtOffsets):
            raise ValueError(f"$source.until: expected 'latest' or offsets by partition, found {self.until!r}")


@dataclass(slots=True)
class _Split:
    """A split that this task reads."""

    partition: TopicPartition
    ordinal: int
    position: Offset
    until: Offset | None = None
    answer: int | None = None
    answered_ms: int | None = None
    """Monotonic; None: no answer that still counts."""

    @property
    def finished(self) -> bool:
        return self.until is not None and self.position >= self.until


def split_of(partition: TopicPartition) -> SplitId:
    """The name of a partition as a split, such as `topic-3`."""
    return SplitId(f"{partition.topic}-{partition.partition}")


def partition_of(split: SplitId) -> TopicPartition:
    """The partition of a split's id. ValueError if it is none."""
    topic, dash, number = split.rpartition("-")
    if not dash or not number.isdigit():
        raise ValueError(f"split {split!r}: expected topic-partition, such as orders-3")
    return TopicPartition(topic, int(number))


async def topics_there(log: Log, names: Sequence[str], cluster: str, clock: Clock) -> Mapping[str, TopicFound]:
    """All of these topics. SourceMissing where one is not there; one that was just made is not known to every broker at once."""
    began_ms = clock.monotonic_ms()
    while True:
        topics = await log.describe_topics(names)
        missing = [topic for topic in names if topic not in topics]
        if not missing:
            return topics
        if clock.monotonic_ms() - began_ms >= _MISSING_MS_MAX:
            raise SourceMissing(
                f"$source.topic: {', '.join(missing)} not found in the cluster {cluster or '(unnamed)'};"
                " create the topic, correct its name, or name another cluster in the connection"
            )
        await clock.sleep_ms(_MISSING_POLL_MS)


class KafkaConnector:
    """`SourcePort` over Kafka. `log` answers questions about topics, `reader` reads them; `records` make JSON of other records."""

    def __init__(
        self,
        settings: KafkaSourceSettings,
        log: Log,
        reader: ReadsPartitions,
        clock: Clock,
        records: RegisteredRecords | FormattedRecords | None = None,
    ) -> None:
        self._settings = settings
        self._log = log
        self._reader = reader
        self._clock = clock
        self._records = records
        self._undecoded: list[RawBatch] = []
        """Fetched, and waiting for a schema registry that is away; their splits' positions are in front of them."""
        self._splits: dict[SplitId, _Split] = {}
        self._fetched_ms = 0
        """When the last fetch ended, on the monotonic clock."""
        self._gathers_ms = 0

    async def splits(self) -> Mapping[SplitId, int]:
        """All partitions of the topics now; asked of the broker each time, so that added ones are noticed."""
        topics = await self._topics()
        total = sum(topic.partitions for topic in topics.values())
        if total > self._settings.splits_max:
            raise LogError(f"$source.topic: {total} partitions, but splits_max is {self._settings.splits_max}")
        return {
            split_of(partition): self._ordinal(partition)
            for topic in self._settings.topics
            for partition in (TopicPartition(topic, number) for number in range(topics[topic].partitions))
        }

    async def _topics(self) -> Mapping[str, TopicFound]:
        return await topics_there(self._log, self._settings.topics, self._settings.cluster, self._clock)

    async def check(self, known: Mapping[SplitId, KnownSplit]) -> None:
        """Topics have the ids that they had (I2)."""
        topics = await self._topics() if known else {}
        for split, was in known.items():
            partition = partition_of(split)
            topic = topics[partition.topic]
            if topic.id != was.origin or partition.partition >= topic.partitions:
                raise SourceReplaced(
                    f"topic {partition.topic}: this processor reads the topic with id {was.origin}, and now another one has the name, with"
                    f" id {topic.id} and {topic.partitions} partitions: the topic was deleted and made anew, and positions in the one mean"
                    " nothing in the other. Bring the old one back; or start without state, to read the new one by the document's startAt"
                )

    def _ordinal(self, partition: TopicPartition) -> int:
        topics = self._settings.topics
        if partition.topic not in topics:
            raise ValueError(f"split {split_of(partition)!r} is of none of the topics {', '.join(topics)}")
        return partition.partition * len(topics) + topics.index(partition.topic)

    async def found(self, splits: Collection[SplitId], *, first: bool) -> Mapping[SplitId, KnownSplit]:
        """See `Source.found`."""
        if not splits:
            return {}
        topics = await self._topics()
        partitions = {split: partition_of(split) for split in splits}
        unread = list(partitions.values())
        begins = await self._log.begin_offsets(unread)
        ends = await self._log.end_offsets(unread)
        starts = await self._starts(unread, begins, ends) if first else {p: self._later(p, begins[p]) for p in unread}
        return {
            split: KnownSplit(
                self._ordinal(p), topics[p.topic].id, starts[p], self._until(p, starts[p], ends[p], late=not first)
            )
            for split, p in partitions.items()
        }

    async def ends(self, positions: Mapping[SplitId, Offset]) -> Mapping[SplitId, Offset | None]:
        """See `Source.ends`: at the high watermark."""
        partitions = {split: partition_of(split) for split in positions}
        ends = await self._log.end_offsets(list(partitions.values()))
        return {split: ends[partition] for split, partition in partitions.items()}

    async def open(self, positions: Mapping[SplitId, Offset]) -> None:
        """Read these splits, besides those that are already being read.

        Raises:
            SourceOvertaken: retention has deleted what a position names.
            OffsetOutOfRange: a position is beyond the log.
            LogUnavailable: try again; nothing has changed.
        """
        added = {split: partition_of(split) for split in positions if split not in self._splits}
        partitions = list(added.values())
        begins = await self._log.begin_offsets(partitions)
        ends = await self._log.end_offsets(partitions)
        splits: dict[SplitId, _Split] = {}
        for split, partition in added.items():
            _check_in_log(partition, positions[split], begins[partition], ends[partition])
            splits[split] = _Split(partition, self._ordinal(partition), positions[split])
        everything = {**self._splits, **splits}
        await self._reader.assign({s.partition: s.position for s in everything.values()})
        self._splits = everything
        self._forget_answers()
        self._pause_finished()

    async def note(self, group: str, positions: Mapping[SplitId, Offset]) -> None:
        """The group of this name stands at these offsets, wherever tools look for lag."""
        await self._log.note_offsets(group, {partition_of(split): at for split, at in positions.items()})

    async def _starts(
        self,
        partitions: Sequence[TopicPartition],
        begins: Mapping[TopicPartition, Offset],
        ends: Mapping[TopicPartition, Offset],
    ) -> Mapping[TopicPartition, Offset]:
        """Where partitions begin by `startAt`."""
        start = self._settings.start_at
        match start:
            case "earliest":
                return begins
            case "latest":
                return ends
            case StartAtTime(time_ms):
                return await self._reader.offsets_at(time_ms, partitions)
            case StartAtOffsets(offsets):
                named = dict(offsets)
                return {p: Offset(named.get(p.partition, begins[p])) for p in partitions}
        raise ValueError(f"$source.config.startAt: {start!r}")

    def _later(self, partition: TopicPartition, begin: Offset) -> Offset:
        """Where a partition that came later begins: all of it is input, so what retention took before anybody looked is missed (I1)."""
        until = self._settings.until
        named = until is None or (isinstance(until, StartAtOffsets) and partition.partition in dict(until.offsets))
        return FIRST_OFFSET if named else begin

    def _until(self, partition: TopicPartition, position: Offset, end: Offset, *, late: bool) -> Offset | None:
        until = self._settings.until
        if until is None:
            return None
        # A partition that came later had no records when `latest` was resolved.
        latest = position if late else end
        if isinstance(until, StartAtOffsets):
            return Offset(dict(until.offsets).get(partition.partition, latest))
        return latest

    async def fetch(self, max_bytes: int, timeout_ms: int, *, waits: bool = True) -> Sequence[RawBatch]:
        """See `Gathers.fetch`."""
        try:
            batches = await self._fetched(max_bytes, timeout_ms, waits=waits)
        except LogUnavailable:
            self._forget_answers()
            raise
        now = self._clock.monotonic_ms()
        self._gathers_ms = self._time_for_much(batches, now - self._fetched_ms)
        self._fetched_ms = now
        for split in self._splits.values():
            if not split.finished:
                position = self._reader.position(split.partition)
                split.position = position if split.until is None else min(position, split.until)
            answer = self._reader.answered(split.partition)
            if answer is not None and answer != split.answer:
                split.answer, split.answered_ms = answer, now
        self._pause_finished()
        return batches

    def gathers_ms(self) -> int:
        """See `Gathers.gathers_ms`."""
        return self._gathers_ms

    def _time_for_much(self, batches: Sequence[RawBatch], took_ms: int) -> int:
        """How long it takes until as much is there as makes a request cheap; 0 where nothing came, or an end is to be reached."""
        size = sum(batch.values.nbytes for batch in batches)
        if not size or any(split.until is not None for split in self._splits.values()):
            return 0
        return 0 if size >= _MUCH_BYTES else min(self._settings.gather_ms_max, max(1, took_ms) * _MUCH_BYTES // size)

    async def _fetched(self, max_bytes: int, timeout_ms: int, *, waits: bool) -> Sequence[RawBatch]:
        if not self._undecoded:
            fetched = await self._reader.fetch(max_bytes, timeout_ms, waits=waits)
            batches = [batch for records in fetched if (batch := self._batch(records)) is not None]
            if self._records is None:
                return batches
            self._undecoded = batches
        assert self._records is not None
        decoded = [await self._records.decoded(batch) for batch in self._undecoded]
        self._undecoded = []
        return decoded

    def _batch(self, records: RawPartition) -> RawBatch | None:
        """Records as a batch of their split, without those at or behind its end; None if nothing is left."""
        name = split_of(TopicPartition(records.topic, records.partition))
        split = self._splits[name]
        count = len(records.offsets)
        if split.until is not None:
            count = int(np.searchsorted(records.offsets, split.until))
        if count == 0 or split.finished:
            return None
        return RawBatch(
            split=name,
            partition=split.ordinal,
            positions=records.offsets[:count],
            timestamps_ms=records.timestamps[:count],
            values=records.values.slice(0, count),
            keys=None if records.keys is None else records.keys.slice(0, count),
            unread={place: why for place, why in records.unread.items() if place < count},
        )

    def status(self) -> Sequence[SplitStatus]:
        """See `Source.status`. `at_end` needs a recent answer of the broker (W4)."""
        now = self._clock.monotonic_ms()
        return [
            SplitStatus(name, s.position, self._at_end(s, now), s.finished, self._more(s, now))
            for name, s in self._splits.items()
        ]

    def _at_end(self, split: _Split, now_ms: int) -> bool:
        end = self._end(split, now_ms)
        return split.finished or (end is not None and split.position >= end)

    def _more(self, split: _Split, now_ms: int) -> bool:
        end = self._end(split, now_ms)
        return not split.finished and end is not None and split.position < end

    def _end(self, split: _Split, now_ms: int) -> int | None:
        """The high watermark, if the broker has told it lately."""
        if split.answered_ms is None or now_ms - split.answered_ms > self._settings.answer_age_ms_max:
            return None
        return self._reader.high_watermark(split.partition)

    def end_at(self, until: Mapping[SplitId, Offset]) -> None:
        """See `Source.end_at`. Records beyond an end that were already returned stay returned."""
        for name, end in until.items():
            self._splits[name].until = end
        self._pause_finished()

    def _pause_finished(self) -> None:
        self._reader.pause([split.partition for split in self._splits.values() if split.finished])

    def _forget_answers(self) -> None:
        for split in self._splits.values():
            split.answered_ms = None

    async def close(self) -> None:
        """See `Source.close`."""
        await self._reader.close()


def _check_in_log(partition: TopicPartition, position: Offset, begin: Offset, end: Offset) -> None:
    if position < begin:
        raise SourceOvertaken(
            f"{partition}: offset {position} is to be read next, but the log begins at {begin}: {begin - position} offsets were deleted"
            " before they were read. Retention of the topic must outlast every stop; going on needs a start without state"
        )
    if position > end:
        raise OffsetOutOfRange(
            f"{partition}: offset {position} is to be read next, but the log ends at {end}: the topic was made anew or has lost"
            " records; going on needs a start without state"
        )
