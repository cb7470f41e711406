"""The content of the outputs, by epoch, as readers see it; here topics, by their markers.

Topics are read committed. A marker says where the other records of its transaction lie; the job did not write a record in no marker's
range. Markers follow the commits one by one, and name the digest of the staged data.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from tidemark.services.audit.expected import text_of_record
from tidemark.services.audit.forms import encoding_of
from tidemark.services.audit.history import (
    AuditFailed,
    Commit,
    Identity,
    NotAuditable,
    PastGone,
    ReleaseStep,
    released_steps,
)
from tidemark.services.audit.reading import HeldRecords, committed_records
from tidemark.services.audit.rowsums import NO_ROWS, RowSum
from tidemark.services.sink.connectors.kafkamarkers import TOPIC_PREFIX, Marker, WrittenRange, decode_marker, markers_of
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.language.stages import KafkaEmit
from tidemark.shared.model.ids import FIRST_OFFSET, NO_EPOCH, Epoch, JobId, Offset, VertexId
from tidemark.shared.ports.log import Log, LogError, LogRecord, TopicFound, TopicPartition, TopicRules
from tidemark.shared.ports.sink import Identity as ReleaseIdentity
from tidemark.shared.ports.sink import TargetRefused
from tidemark.shared.runtime.exchange import digest_of


class KeptPartition(Struct, frozen=True, array_like=True):
    """A partition of a topic that a sink writes."""

    next: Offset
    """Records below were judged."""
    begun: Offset | None
    """The first record that the job wrote; None: it wrote none."""
    origin: str = ""
    """The topic's id; none where the brokers told none."""


class KeptTable(Struct, frozen=True):
    """The table of a `$merge`."""

    columns: list[str]
    rows: list[list[str | None]]
    """As they must be, a value for each column (`scratch.rows_of`)."""
    named: list[str] | None
    """The columns that each document named; None: there was no document."""


class KeptOutput(Struct, frozen=True):
    """What an audit knew of the output of one sink vertex at a commit that was released: another one may go on there."""

    markers: dict[str, Epoch] = {}
    """The last epoch of each release identity's marker, by vertex and index."""
    topics: dict[str, dict[int, KeptPartition]] = {}
    others: dict[str, Offset] = {}
    """How far the markers of others in the cluster were read, by topic; none if some had been lost by then."""
    theirs: list[WrittenRange] = []
    """What those wrote into the sink's topic behind `topics`."""
    files: dict[str, RowSum] = {}
    """The rows of a table's files, by name; checked."""
    table: KeptTable | None = None

    def marker(self, identity: Identity) -> Epoch | None:
        """The last epoch of an identity's marker; None: it had none."""
        return self.markers.get(_name(identity))


NO_OUTPUT: Final = KeptOutput()


@dataclass(slots=True)
class Output:
    """The output of one sink vertex."""

    texts: dict[Epoch, list[tuple[str, str]]] = field(default_factory=lambda: defaultdict(list))
    """By epoch: each document, as the text that it has in a topic, or its line, with where it lies."""
    released: dict[Identity, Epoch] = field(default_factory=dict)
    """The marker of each release identity."""
    gone: dict[Epoch, str] = field(default_factory=dict)
    """Epochs with missing output, each with the name of the missing part."""
    mixed: set[Epoch] = field(default_factory=set)
    """Epochs with rows in the same files as rows of other such epochs, or of those that an earlier audit saw."""
    last_mixed: Epoch = NO_EPOCH
    """The last of them."""
    large: list[tuple[str, str]] = field(default_factory=list)
    """The rows of these files."""
    earlier: RowSum = NO_ROWS
    """Those of them that an earlier audit saw, or an earlier piece of this one expects there."""
    owed: RowSum = NO_ROWS
    """Of a piece: the rows of `mixed`, to be looked for in the last piece."""
    files: dict[str, tuple[Epoch, RowSum]] = field(default_factory=dict)
    """The files of a table that were read, each with the last epoch of its rows."""
    table: KeptTable | None = None
    """As it must be at the epoch that is kept."""
    gone_files: frozenset[str] = frozenset()
    """Those that an earlier audit saw, and that are none any more."""
    untold: set[Epoch] = field(default_factory=set)
    """Epochs without a trace of their own output: it lies in the target with that of others."""
    steps: dict[Identity, list[Epoch]] = field(default_factory=dict)
    """The epochs that markers name, behind those that an earlier audit saw."""
    partitions: dict[TopicPartition, KeptPartition] = field(default_factory=dict)
    """How far topics were read."""
    ranges: list[tuple[WrittenRange, Epoch]] = field(default_factory=list)
    """What was read of topics in this audit."""
    others: dict[str, Offset] = field(default_factory=dict)
    """See `KeptOutput`."""
    theirs: list[WrittenRange] = field(default_factory=list)
    """What others wrote."""
    tells: bool = True
    """The markers of others were all there: a record in no range is nobody's."""

    def complete(self, commit: Commit, vertex: VertexId) -> bool:
        """Whether every identity of the vertex has released this commit."""
        return all(
            self.released.get(identity, NO_EPOCH) >= commit.epoch for identity in commit.staged if identity[0] == vertex
        )

    def count(self, epoch: Epoch) -> int:
        """Documents of an epoch; those of files with rows of several are counted at the last."""
        mixed = len(self.large) - self.earlier.rows + self.owed.rows if epoch == self.last_mixed else 0
        return len(self.texts.get(epoch, ())) + mixed

    def keep(self, epoch: Epoch, before: KeptOutput) -> KeptOutput:
        """As of a commit up to which all is released; no row of a file of several epochs is of a later one."""
        markers = {_name(identity): [e for e in epochs if e <= epoch] for identity, epochs in self.steps.items()}
        last = {name: epochs[-1] for name, epochs in markers.items() if epochs}
        ends = {at: read.next for at, read in self.partitions.items()}
        for written, of in sorted(self.ranges, key=lambda each: each[1] > epoch):
            if of <= epoch:
                ends[written.place] = max(ends[written.place], Offset(written.first + written.count))
            else:
                ends[written.place] = min(ends[written.place], written.first)
        topics: dict[str, dict[int, KeptPartition]] = defaultdict(dict)
        for at, read in self.partitions.items():
            topics[at.topic][at.partition] = KeptPartition(ends[at], read.begun, read.origin)
        theirs = [w for w in self.theirs if w.first + w.count > ends.get(w.place, 0)]
        live = {name: rows for name, rows in before.files.items() if name not in self.gone_files}
        files = live | {name: rows for name, (of, rows) in self.files.items() if of <= epoch}
        return KeptOutput(before.markers | last, before.topics | topics, self.others, theirs, files, self.table)


def _name(identity: Identity) -> str:
    return f"{identity[0]}/{identity[1]}"


# --- topics -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VertexReleases:
    """The vertex with the outputs to look at, and the commits that may have been released."""

    job: JobId
    vertex: VertexId
    commits: Sequence[Commit]
    ended: bool
    """Nothing follows: the last commit is final and released. Else output behind the last commit that was read is left alone."""
    before: KeptOutput = NO_OUTPUT
    """What an earlier audit has kept."""
    since: Epoch = NO_EPOCH
    """The commit up to which that one looked; it is the first of `commits` then."""
    until: Epoch | None = None
    """The last of `commits`, where more have come since: a piece is looked at."""
    tells: bool = True
    """See `Output`; of the pieces before."""

    def known(self, epoch: int) -> bool:
        """Whether a release of this commit is to be judged."""
        return self.ended or epoch <= self.commits[-1].epoch

    def identities(self) -> list[Identity]:
        """All release identities that the vertex has had."""
        earlier = ((self.vertex, int(name.rpartition("/")[2])) for name in self.before.markers)
        now = (identity for commit in self.commits for identity in commit.staged if identity[0] == self.vertex)
        return sorted({*earlier, *now})

    def marker(self, identity: Identity) -> Epoch | None:
        """The last one that an earlier audit saw."""
        return self.before.marker(identity)


async def topic_output(log: Log, stage: KafkaEmit, what: VertexReleases) -> Output:
    """The records of a Kafka sink. AuditFailed at the first that is not as the markers say."""
    output = Output()
    named = {str(stage.topic.value)} if isinstance(stage.topic, Literal) else set()
    there = _There(log)
    await there.look(named)
    records: dict[str, list[LogRecord]] = {}
    if what.until is None:
        for topic in sorted(named):
            records[topic] = await _records(log, topic, what.before, output, there, judged=True)
    for identity in what.identities():
        markers = await _markers(log, identity, what)
        await there.look(written.topic for marker, _ in markers for written in marker.written)
        if what.until is None:
            # The topic was read before: what has been released since is for the next audit.
            markers = list(takewhile(lambda each: _is_read(each[0], output, named, there), markers))
        else:
            markers = [each for each in markers if each[0].epoch <= what.until]
        _marked(identity, markers, what)
        for written, of in ((written, marker) for marker, _ in markers for written in marker.written):
            if why := there.lost(of, written.topic):
                output.gone.setdefault(of.epoch, why)
            else:
                output.ranges.append((written, of.epoch))
        output.steps[identity] = [marker.epoch for marker, _ in markers if marker.part == marker.parts]
        released = markers[-1][0].released if markers else what.marker(identity)
        output.released[identity] = NO_EPOCH if released is None else released
    ends = None if what.until is None else _ends(output)
    for topic in sorted({*named, *(written.topic for written, _ in output.ranges)} - records.keys()):
        records[topic] = await _records(log, topic, what.before, output, there, ends, judged=topic in named)
    output.tells = what.tells and await _read_others(log, what, named, output, there)
    judged = named if output.tells else set()
    for topic, found in records.items():
        begins = await _begins(log, topic)
        rules = (await log.topic_rules([topic]))[topic] if begins else TopicRules()
        foreign = output.theirs if topic in judged else None
        _assign(output, what.vertex, topic, found, begins, foreign, encoding_of(stage), compacted=rules.needs_key)
    return output


class _There:
    """The topics that are there, as far as they were looked for."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._looked: set[str] = set()
        self._found: dict[str, TopicFound] = {}

    async def look(self, topics: Iterable[str]) -> None:
        """Look for these, once."""
        if more := sorted({*topics} - self._looked):
            self._looked.update(more)
            self._found |= await self._log.describe_topics(more)

    def id(self, topic: str) -> str:
        """Of a topic that was looked for; "" where none is told."""
        return self._found[topic].id if topic in self._found else ""

    def lost(self, marker: Marker, topic: str) -> str:
        """Why the records of a transaction in a topic are not to be looked for; "" where they must be there."""
        if topic not in self._found:
            return f"topic {topic} is not there: it was deleted, with its records"
        written, now = marker.topics.get(topic, ""), self.id(topic)
        if not written or not now or written == now:
            return ""
        return f"topic {topic}: it was deleted, with its records, and made anew: they lay in the one with id {written}, now it has id {now}"


def _ends(output: Output) -> dict[TopicPartition, Offset]:
    """Behind the last record of each partition that markers name."""
    ends: dict[TopicPartition, Offset] = defaultdict(lambda: FIRST_OFFSET)
    for written, _ in output.ranges:
        ends[written.place] = max(ends[written.place], Offset(written.first + written.count))
    return ends


async def _records(
    log: Log,
    topic: str,
    before: KeptOutput,
    output: Output,
    there: _There,
    ends: Mapping[TopicPartition, Offset] | None = None,
    *,
    judged: bool,
) -> list[LogRecord]:
    """The records of a topic that no earlier audit has judged, up to these ends, or to its own: notes how far it is read.

    judged: those that nobody told of, too.
    """
    held, found = HeldRecords(f"topic {topic}"), list[LogRecord]()
    partitions = [TopicPartition(topic, number) for number in range((await log.list_topics()).get(topic, 0))]
    until = await log.end_offsets(partitions) if ends is None else {at: ends[at] for at in partitions}
    for at, end in until.items():
        known = _known(before, at, there.id(topic))
        output.partitions[at] = KeptPartition(max(end, known.next) if judged else known.next, known.begun, known.origin)
        found += [held.take(r) async for r in committed_records(log, topic, at.partition, known.next, end)]
    return found


def _known(before: KeptOutput, at: TopicPartition, origin: str) -> KeptPartition:
    """What an earlier audit knew of a partition, if it was in the topic that has this id."""
    known = before.topics.get(at.topic, {}).get(at.partition)
    if known is None or (known.origin and origin and known.origin != origin):
        return KeptPartition(FIRST_OFFSET, None, origin)
    return replace(known, origin=origin)


def _is_read(marker: Marker, output: Output, topics: Collection[str], there: _There) -> bool:
    """Whether all records of a transaction lie where these topics were read, or went with one of them."""
    return all(
        written.first + written.count <= output.partitions[written.place].next
        for written in marker.written
        if written.topic in topics and written.place in output.partitions and not there.lost(marker, written.topic)
    )


def _marked(identity: Identity, markers: Sequence[tuple[Marker, str]], what: VertexReleases) -> None:
    """Markers follow the commits one by one, and name the digest of the staged data."""
    known = {place: marker for marker, place in markers if what.known(marker.epoch)}
    steps = [ReleaseStep(m.epoch, m.predecessor, m.part, m.parts, m.digest == "", place) for place, m in known.items()]
    for step, commit in released_steps(identity, steps, what.commits, what.marker(identity)):
        found, expected = known[step.place].digest, digest_of(commit.staged[identity])
        if found != expected:
            message = (
                f"{step.place}: commit {step.epoch}: the marker has digest {found}, the commit's handle {expected}"
            )
            raise AuditFailed(message)


async def _markers(log: Log, identity: Identity, what: VertexReleases) -> list[tuple[Marker, str]]:
    """The markers behind the last one that an earlier audit saw, each with its place."""
    topic, last = markers_of(ReleaseIdentity(what.job, *identity)).topic, what.marker(identity)
    partition = TopicPartition(topic, 0)
    if topic not in await log.list_topics():
        message = f"topic {topic}: the markers of this release identity are not there; they stay while the job lives"
        raise NotAuditable(message)
    begin = (await log.begin_offsets([partition]))[partition]
    found: list[tuple[Marker, str]] = []
    async for record in committed_records(log, topic):
        try:
            found.append((decode_marker(partition, record.value or b""), f"topic {topic} offset {record.offset}"))
        except TargetRefused as error:
            message = f"topic {topic} offset {record.offset}: {error}"
            raise AuditFailed(message) from error
    reaches_back = begin == 0 or (last is not None and any(marker.epoch <= last for marker, _ in found))
    if not reaches_back or not found:
        message = f"topic {topic}: markers below offset {begin} are gone: the sink keeps markers_kept of them"
        raise PastGone(message)
    return [(marker, place) for marker, place in found if last is None or marker.epoch > last]


async def _read_others(log: Log, what: VertexReleases, topics: set[str], output: Output, there: _There) -> bool:
    """Note the ranges that others wrote under markers into these topics: earlier jobs, other sinks. False where some have lost markers."""
    mine = f"{TOPIC_PREFIX}{what.job}.{what.vertex}."
    seen = dict[str, Offset]()
    found = [each for each in what.before.theirs if _is_as_kept(what.before, each.place, there)]
    for topic in sorted(await log.list_topics()):
        if topic.startswith(TOPIC_PREFIX) and not topic.startswith(mine):
            partition, since = TopicPartition(topic, 0), what.before.others.get(topic, FIRST_OFFSET)
            try:
                if (await log.begin_offsets([partition]))[partition] > since:
                    return False
                seen[topic] = (await log.end_offsets([partition]))[partition]
                async for record in committed_records(log, topic, since=since):
                    marker = decode_marker(partition, record.value or b"")
                    own = [each for each in marker.written if each.topic in topics]
                    found += [each for each in own if not there.lost(marker, each.topic)]
            except LogError:
                if topic in await log.list_topics():
                    raise
                return False  # its processor was dropped meanwhile, and its markers went with it
    output.others, output.theirs = seen, found
    return True


def _is_as_kept(before: KeptOutput, at: TopicPartition, there: _There) -> bool:
    """Whether what an earlier audit kept is of the topic that is there now."""
    known = before.topics.get(at.topic, {}).get(at.partition)
    return known is None or _known(before, at, there.id(at.topic)).next == known.next


async def _begins(log: Log, topic: str) -> dict[int, int]:
    partitions = [TopicPartition(topic, number) for number in range((await log.list_topics()).get(topic, 0))]
    return {at.partition: offset for at, offset in (await log.begin_offsets(partitions)).items()}


def _assign(
    output: Output,
    vertex: VertexId,
    topic: str,
    records: Sequence[LogRecord],
    begins: Mapping[int, int],
    foreign: Sequence[WrittenRange] | None,
    encoding: str,
    *,
    compacted: bool,
) -> None:
    """Each record to the epoch of the range that it lies in; each range is full, but for records that retention or compaction has taken.

    foreign: the ranges of others; None: records that are in no range are left alone. So are those in front of all that this job wrote
    into their partition: others may have written them, or an earlier job, together with which its markers went.
    """
    own = [each for each in output.ranges if each[0].topic == topic]
    begun: dict[int, Offset] = {
        at.partition: read.begun
        for at, read in output.partitions.items()
        if at.topic == topic and read.begun is not None
    }
    for written, _ in own:
        first = begun[written.partition] = min(written.first, begun.get(written.partition, written.first))
        if written.place in output.partitions:
            output.partitions[written.place] = replace(output.partitions[written.place], begun=first)
    others = {written for written in foreign or () if written.topic == topic}
    owners = _Owners([*own, *((written, None) for written in others)])
    counts: dict[WrittenRange, int] = defaultdict(int)
    for record in records:
        place = f"{TopicPartition(record.topic, record.partition)} offset {record.offset}"
        owner = owners.find(record)
        if owner is None and (foreign is None or record.offset < begun.get(record.partition, record.offset + 1)):
            continue
        if owner is None:
            message = (
                f"{vertex}: {place}: {(record.value or b'')[:300]!r} is in no release of any job: expected only what "
                "markers tell; a processor that was dropped, or started without state, has left none"
            )
            raise AuditFailed(message)
        written, epoch = owner
        if epoch is not None:
            counts[written] += 1
            output.texts[epoch].append((_text(record, place, encoding), place))
    for written, epoch in own:
        begin = begins.get(written.partition, 0)
        if written.first < begin:
            output.gone.setdefault(epoch, f"{written.place}: records below offset {begin} are gone")
        elif compacted and counts[written] < written.count:
            output.gone.setdefault(
                epoch,
                f"{written.place} is compacted: records from offset {written.first} on gave way to"
                " later ones of their keys",
            )
        elif counts[written] != written.count:
            message = (
                f"epoch {epoch}, {vertex}: {written.place}: expected {written.count} records "
                f"from offset {written.first}, found {counts[written]}"
            )
            raise AuditFailed(message)


class _Owners:
    """Which range an offset lies in. AuditFailed if two claim one."""

    def __init__(self, ranges: Sequence[tuple[WrittenRange, Epoch | None]]) -> None:
        self._by_partition: dict[int, list[tuple[Offset, WrittenRange, Epoch | None]]] = defaultdict(list)
        for written, epoch in ranges:
            self._by_partition[written.partition].append((written.first, written, epoch))
        for partition, entries in self._by_partition.items():
            entries.sort(key=lambda entry: entry[0])
            for before, after in pairwise(entries):
                if before[0] + before[1].count > after[0]:
                    message = (
                        f"topic {after[1].topic} partition {partition} offset {after[0]}: the markers of commits "
                        f"{before[2]} and {after[2]} both claim it: the topic has lost records that its brokers had acknowledged"
                        " (an unclean election, a disk that was put back), and others took their offsets"
                    )
                    raise AuditFailed(message)

    def find(self, record: LogRecord) -> tuple[WrittenRange, Epoch | None] | None:
        entries = self._by_partition.get(record.partition, [])
        at = bisect_right(entries, record.offset, key=lambda entry: entry[0]) - 1
        if at < 0 or record.offset >= entries[at][0] + entries[at][1].count:
            return None
        return entries[at][1], entries[at][2]


def _text(record: LogRecord, place: str, encoding: str) -> str:
    try:
        return text_of_record(record.key, record.value, encoding)
    except ValueError as error:
        message = f"{place}: expected a JSON document, found {(record.value or b'')[:60]!r}"
        raise AuditFailed(message) from error
