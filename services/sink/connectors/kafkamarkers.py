"""The release markers of Kafka sinks (protocol, S3): the cluster itself tells what an identity's transactions have written.

Each identity has a markers topic of its own with one partition. So no two identities can ever share a partition or change it,
in spite of changed numbers of tasks, and nobody has to assign partitions. The topic lies in the cluster of the output (a transaction
cannot span two), has no retention, and is not compacted: compaction could keep a marker that a later, aborted one hides.

Every transaction writes one marker as its last record. The newest committed marker says all there is to know. Older ones serve audits
alone, each of which goes on where the last one ended; the sink keeps some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from tidemark.services.sink.connectors.markers import NO_MARKER
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.formats import MARKER, FormatError, JsonCodec
from tidemark.shared.model.ids import Epoch, Offset
from tidemark.shared.model.settings import check_positive
from tidemark.shared.ports.log import Log, NewRecord, TopicPartition, Written
from tidemark.shared.ports.sink import Identity, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.topics import MARKERS_PREFIX, may_be

TOPIC_PREFIX: Final = MARKERS_PREFIX


class WrittenRange(Struct, frozen=True, array_like=True):
    """Records of a transaction that lie one behind the other."""

    topic: str
    partition: int
    first: Offset
    count: int

    @property
    def place(self) -> TopicPartition:
        """Where they lie."""
        return TopicPartition(self.topic, self.partition)


class Marker(Struct, frozen=True, kw_only=True):
    """The marker of one transaction of an identity: it wrote part `part` (from 1) of `parts` of checkpoint `epoch`."""

    version: int = MARKER.version
    identity: str
    epoch: Epoch
    predecessor: Epoch | None
    """The checkpoint before; None where the identity begins."""
    part: int = 1
    parts: int = 1
    digest: str = ""
    """SHA-256 of the handle that is being released, hex."""
    written: tuple[WrittenRange, ...] = ()
    """Where the transaction's other records lie: so each record of an output is known to be of an epoch."""
    topics: dict[str, str] = {}
    """The ids of their topics, as far as brokers tell any: in one that was made anew the places mean nothing."""

    @property
    def released(self) -> Epoch:
        """The last checkpoint with complete output."""
        if self.part == self.parts:
            return self.epoch
        assert self.predecessor is not None, "an identity begins with a whole marker"
        return self.predecessor


_CODEC: Final[JsonCodec[Marker]] = JsonCodec(MARKER, Marker)


def markers_of(identity: Identity) -> TopicPartition:
    """Where an identity's markers lie. ValueError if the identity makes no topic name."""
    topic = f"{TOPIC_PREFIX}{identity}"
    if not may_be(topic):
        raise ValueError(f"markers topic {topic!r}: a topic's name has letters, digits, '.', '_' and '-', at most 249")
    return TopicPartition(topic, 0)


def next_part(marker: Marker, row: MirrorRow, total: int, digest: str, place: str) -> int:
    """The number of the first part that is not written. TargetRefused if the written parts are of another division."""
    if marker.epoch != row.epoch:
        return 1
    if (marker.parts, marker.digest) != (total, digest):
        raise TargetRefused(
            f"{place}: commit {row.epoch}: part {marker.part} of {marker.parts} of the output with digest {marker.digest} is written,"
            f" but the commit has {total} parts with digest {digest}: another history wrote there"
        )
    return marker.part + 1


def ranges_of(written: Sequence[Written]) -> tuple[WrittenRange, ...]:
    """The ranges that a transaction has written, as its marker tells them: batches that follow each other as one."""
    found: list[WrittenRange] = []
    for (topic, partition), first, count in sorted(written):
        before = found[-1] if found else None
        if before and (before.topic, before.partition, before.first + before.count) == (topic, partition, first):
            found[-1] = WrittenRange(topic, partition, before.first, before.count + count)
        else:
            found.append(WrittenRange(topic, partition, first, count))
    return tuple(found)


def marker_record(marker: Marker) -> NewRecord:
    """The marker as a record."""
    return NewRecord(encode_marker(marker), marker.identity.encode())


@dataclass(frozen=True, slots=True)
class MarkerReading:
    """Bounds of reading markers back."""

    fetch_wait_ms: int = 50
    """For one fetch: behind the last marker stands that of its transaction, which a fetch passes without an answer."""
    silent_fetches_max: int = 600
    """Fetches in a row without progress before the target counts as away: the wait times this."""
    tail_records: int = 64
    """Offsets that are read back from the end at first, and in one fetch; without a marker among them, eight times as many, and so on."""

    def __post_init__(self) -> None:
        """Raise ValueError for values that cannot work."""
        check_positive(self, "kafka.reading")


async def last_marker(log: Log, place: TopicPartition, reading: MarkerReading) -> Marker | None:
    """The newest committed marker; None where there never was one.

    To be called after the transactional identity was initialised: then nothing is open any more below the high watermark. Reads until
    the position has reached it: silence is not the end.

    Raises:
        LogError: of the log.
        TargetUnavailable: the position does not get there.
        TargetRefused: the markers were deleted or damaged.
    """
    end = (await log.end_offsets([place]))[place]
    begin = (await log.begin_offsets([place]))[place]
    tail = reading.tail_records
    while True:
        start = Offset(max(begin, end - tail))
        found = await _newest(log, place, start, end, reading)
        if found is None and start == begin > 0:
            raise TargetRefused(
                f"topic {place.topic}: begins at offset {begin} and has no marker: they were deleted, so what is released is not known;"
                f" its retention must be unlimited. {NO_MARKER}"
            )
        if found is not None or start == begin:
            return found
        tail *= 8


async def _newest(log: Log, place: TopicPartition, start: Offset, end: Offset, reading: MarkerReading) -> Marker | None:
    newest: bytes | None = None
    reader = await log.reader(committed_only=True)
    try:
        await reader.assign({place: start})
        silent = 0
        while (before := reader.position(place)) < end:
            records = await reader.fetch(reading.tail_records, reading.fetch_wait_ms)
            for record in records:
                newest = record.value
            silent = silent + 1 if reader.position(place) == before else 0
            if silent > reading.silent_fetches_max:
                raise TargetUnavailable(
                    f"topic {place.topic}: read up to offset {before} of {end}, then nothing more came; is a transaction open there?"
                )
    finally:
        await reader.close()
    return None if newest is None else decode_marker(place, newest)


def decode_marker(place: TopicPartition | str, value: bytes) -> Marker:
    """A record of a markers topic, or what another target keeps of it. TargetRefused if it is none."""
    try:
        return _CODEC.decode(value)
    except FormatError as error:
        where = place if isinstance(place, str) else f"topic {place.topic}"
        raise TargetRefused(f"{where}: {error}; only the product may write there") from error


def encode_marker(marker: Marker) -> bytes:
    """The bytes of a marker."""
    return _CODEC.encode(marker)
