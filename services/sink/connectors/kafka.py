"""The Kafka sink: short transactions, each with a part of an epoch's records and a marker (protocol, S2, S3, S6).

- Staged records lie in the commit's handle if small, else in the blob store. What a release will write is written ahead, in a transaction
  that is ended with the commit: most of a release's round trips are over by then. It counts for nothing else, and is aborted after
  `ahead_ms_max`: records of others behind it are not visible before it ends, so no long transaction waits for a commit.
- Initialising the transactional identity fences every earlier holder. After each initialisation the sink reads the markers and writes
  exactly the parts that follow: so a commit whose answer was lost is neither repeated nor skipped.
- After any error or time-out the producer is thrown away; the next call begins with a new one.
- A holder that was fenced stays fenced: it writes nothing more.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import structlog
from msgspec import structs

from tidemark.services.sink.connectors.kafkamarkers import (
    Marker,
    MarkerReading,
    last_marker,
    marker_record,
    markers_of,
    ranges_of,
)
from tidemark.services.sink.connectors.kafkarecords import Made, RecordMaker
from tidemark.services.sink.connectors.kafkaruns import HeldRuns, TopicRun, decode_runs, encode_runs
from tidemark.services.sink.connectors.kafkatopics import TopicLimits
from tidemark.services.sink.connectors.markers import is_due
from tidemark.services.sink.connectors.parts import PartsSink, first_marker, part_markers
from tidemark.services.sink.connectors.registered import Unregistered
from tidemark.services.sink.connectors.staging import Part, PartStore, Staging
from tidemark.shared.language.expressions.ast import Literal
from tidemark.shared.model.checkpoint import MirrorRow
from tidemark.shared.model.ids import Epoch, Offset
from tidemark.shared.model.settings import check_positive, knob
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import (
    Fenced,
    Log,
    LogDenied,
    LogError,
    LogUnavailable,
    RecordColumns,
    TopicFound,
    TopicPartition,
    Transaction,
    TransactionalWriter,
)
from tidemark.shared.ports.sink import Identity, Rejected, TargetRefused, TargetUnavailable
from tidemark.shared.runtime.topics import TOLD_CONFIG

_report = structlog.get_logger()
_TRIM_EVERY: Final = 1_000
"""Transactions, so that a year of them asks the cluster seldom; the topic is longer than `markers_kept` by so many at the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSinkSettings:
    """Bounds of a Kafka sink."""

    part_bytes_max: int = knob(16 * 1024 * 1024)
    """Records of one transaction; also the records held in memory before they are staged."""
    part_records_max: int = 100_000
    """Records of one transaction; a single record above `part_bytes_max` is a part by itself."""
    markers_kept: int = knob(400_000)
    """The newest offsets of an identity's markers topic that stay for audits."""
    ahead_ms_max: int = 1_000
    """How long a transaction that was written ahead waits for its commit; then it is aborted, and written anew with the commit."""
    reading: MarkerReading = field(default_factory=MarkerReading)

    def __post_init__(self) -> None:
        check_positive(self, "kafka sink")


@dataclass(frozen=True, slots=True)
class _FullTransaction:
    """A transaction that has all that it is to commit, the marker as its last record."""

    transaction: Transaction
    marker: Marker

    def is_of(self, marker: Marker) -> bool:
        """Whether it is the transaction of this marker, which does not say yet where its records lie."""
        return structs.replace(self.marker, written=(), topics={}) == marker


class MarkedParts(PartsSink):
    """Staged parts released one after the other, each with a marker behind it in a topic of `log` (S2, S3).

    A sink says in `_released` what the release of a part is besides: records of the same transaction, or an effect before it.
    """

    def __init__(self, log: Log, parts: PartStore, settings: KafkaSinkSettings | None = None) -> None:
        super().__init__(parts)
        self._settings = settings or KafkaSinkSettings()
        self._log = log
        self._writer: TransactionalWriter | None = None
        self._marker: Marker | None = None
        self._fenced: Fenced | None = None
        self._until_trim = _TRIM_EVERY
        """Transactions until older markers are looked at."""
        self._ahead: _FullTransaction | None = None
        """Written before its commit."""
        self._began = ""
        """The first error of an outage of the target, which tells most: later ones are of transactions that it has left open."""
        self._using = asyncio.Lock()
        """Of the producer: it has one transaction at a time."""

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `Sink.open`. Initialising the producer fences earlier holders. May be repeated after TargetUnavailable."""
        self._identity = identity
        async with self._on_target("opening"):
            await self._throw_away()
            await self._log.create_topic(markers_of(identity).topic, 1, TOLD_CONFIG)
            writer = await self._initialised(identity)
            first = first_marker(self._marker, identity, restored_from, "kafka", joins=joins)
            if first is not None:
                await self._commit(await self._write(writer, first, {}, {}))
            assert self._marker is not None, "it was found, or written just now"
        return self._marker.released

    async def _initialised(self, identity: Identity) -> TransactionalWriter:
        """A producer, with the markers read back after its initialisation (S3)."""
        if self._fenced is not None:
            raise self._fenced
        if self._writer is None:
            self._writer = await self._log.transactional_writer(f"tidemark.{identity}")
            self._marker = await last_marker(self._log, markers_of(identity), self._settings.reading)
        return self._writer

    async def _release(self, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        """See `PartsSink._release`."""
        identity = self._identity
        if identity is None:
            raise ValueError("kafka sink: release before open")
        async with self._using, self._on_target(f"releasing commit {row.epoch}"):
            writer = await self._initialised(identity)
            marker = self._marker
            if marker is None:
                raise TargetRefused(f"kafka: the markers of {identity} are gone from {markers_of(identity).topic}")
            if not is_due(identity, marker.released, row, "kafka"):
                return
            topics: dict[str, TopicFound] = {}
            for next_marker, part in self._left(marker, row, staged, passed, "kafka"):
                opened = await self._taken_ahead(next_marker, usable=next_marker.part not in passed)
                if opened is None:
                    records = {} if part is None else await self._released(row.epoch, part, next_marker.part, topics)
                    opened = await self._write(writer, next_marker, records, topics)
                await self._commit(opened)

    async def _taken_ahead(self, marker: Marker, *, usable: bool) -> _FullTransaction | None:
        """The transaction that was written ahead, if it is of this marker; another is aborted."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or (usable and ahead.is_of(marker)):
            return ahead
        await ahead.transaction.abort()
        return None

    @abstractmethod
    async def _released(
        self, epoch: Epoch, part: Part, number: int, topics: dict[str, TopicFound]
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """The records of a part, by partition; what else its release needs has been done.

        topics: those that were asked for; more are added.
        """
        ...

    async def _write(
        self,
        writer: TransactionalWriter,
        marker: Marker,
        records: dict[TopicPartition, list[RecordColumns]],
        topics: Mapping[str, TopicFound],
    ) -> _FullTransaction:
        """One transaction: records, then the marker. topics: those of the records."""
        identity = self._identity
        assert identity is not None
        place = markers_of(identity)
        transaction = await writer.begin((*records, place))
        for partition, columns in records.items():
            for some in columns:
                await transaction.send_batch(partition, some)
        if records:
            ids = {at.topic: topics[at.topic].id for at in records if topics[at.topic].id}
            marker = structs.replace(marker, written=ranges_of(await transaction.written()), topics=ids)
        await transaction.send_batch(place, [marker_record(marker)])
        return _FullTransaction(transaction, marker)

    async def _commit(self, opened: _FullTransaction) -> None:
        identity = self._identity
        assert identity is not None
        place = markers_of(identity)
        self._until_trim -= 1
        written = await opened.transaction.written() if self._until_trim <= 0 else ()
        await opened.transaction.commit()
        self._marker, self._began = opened.marker, ""
        for newest in (w.first for w in written if w.partition == place):
            self._until_trim = _TRIM_EVERY
            if (before := newest - self._settings.markers_kept) > 0:
                await self._trim(place, Offset(before))

    async def _trim(self, place: TopicPartition, before: Offset) -> None:
        """Let go of markers in front of others. A cluster that does not allow it keeps them."""
        try:
            await self._log.delete_records({place: before})
        except LogError as error:
            _report.warning("sink.markers_stay", topic=place.topic, reason=str(error))

    @asynccontextmanager
    async def _on_target(self, doing: str) -> AsyncIterator[None]:
        """The log's errors in the words of a sink; after any the producer is thrown away (S3)."""
        try:
            with self._said(doing):
                yield
        except BaseException as error:
            await self._throw_away()
            if isinstance(error, Fenced):
                self._fenced = error
            raise

    @contextmanager
    def _said(self, doing: str) -> Iterator[None]:
        """The log's errors in the words of a sink."""
        try:
            yield
        except (Fenced, LogDenied):
            raise
        except LogUnavailable as error:
            self._began, now = self._began or str(error), str(error)
            before = "" if self._began == now else f"; it began with: {self._began}"
            raise TargetUnavailable(f"kafka, {doing} for {self._identity}: {now}{before}") from error
        except LogError as error:
            raise TargetRefused(f"kafka, {doing} for {self._identity}: {error}") from error

    async def _throw_away(self) -> None:
        writer, self._writer = self._writer, None
        self._ahead = None
        if writer is not None:
            try:
                await writer.close()
            except LogError:
                # It is being thrown away because of an error; that one is reported, not this one's echo.
                return

    async def close(self) -> None:
        """See `Sink.close`."""
        await self._throw_away()


@dataclass(frozen=True, slots=True)
class _Staged:
    """The records that a commit will release, if it is committed."""

    epoch: Epoch
    committed: Epoch
    handle: bytes
    at_ms: int
    """When it was staged, on the monotonic clock."""


class KafkaSink(MarkedParts):
    """`SinkPort` into topics of one cluster."""

    def __init__(
        self,
        maker: RecordMaker,
        log: Log,
        parts: PartStore,
        clock: Clock,
        executor: Executor,
        settings: KafkaSinkSettings | None = None,
    ) -> None:
        super().__init__(log, parts, settings)
        self._stage = maker.stage
        self._forms = maker.forms
        self._maker = maker
        self._clock = clock
        self._executor = executor
        self._accepting = TopicLimits(log, maker.takes)
        self._topics = TopicLimits(log, maker.takes)
        """The topics as releases know them. Accepting has its own, because the two go on side by side."""
        self._staging = Staging(parts)
        self._held = HeldRuns()
        self._last: _Staged | None = None
        """The records of the last staged epoch."""
        self._next: _Staged | None = None
        """To be written ahead."""
        self._is_prompt = True
        """The last commit came in time for what was written ahead of it: where commits are slow, each would be written twice."""
        self._doubtful = ""
        """The first record of a release that its topic may refuse; it may fit, compressed."""
        self._writing: Handle | None = None
        self._expiring: Handle | None = None

    async def open(self, identity: Identity, restored_from: Epoch, *, joins: bool = False) -> Epoch:
        """See `MarkedParts.open`."""
        self._staging = Staging(self._parts, restored_from)
        self._held = HeldRuns()
        self._next = None
        if self._forms is not None and isinstance(topic := self._stage.topic, Literal):
            await self._forms.prepare(str(topic.value))
        return await super().open(identity, restored_from, joins=joins)

    async def accept(self, batch: pa.RecordBatch) -> Sequence[Rejected]:
        """See `Sink.accept`. After TargetUnavailable nothing of the batch was taken: it may be handed over again."""
        while self._is_full():
            await self._keep_part()
        made, rejected = await self._made(batch)
        try:
            with self._said("looking topics up"):
                missing = await self._accepting.missing({run.topic for _, run in made})
        except BaseException:
            self._accepting.forget()
            raise
        taken: list[TopicRun] = []
        for rows, run in made:
            refused = dict.fromkeys(range(len(rows)), missing[run.topic]) if run.topic in missing else {}
            refused = refused or self._accepting.refused(run)
            rejected += [Rejected(int(rows[n]), reason) for n, reason in refused.items()]
            left = run.without(refused) if refused else run
            taken += [left] if left is not None else []
        for run in taken:
            self._held.add(run)
        return sorted(rejected, key=lambda found: found.row)

    async def _made(self, batch: pa.RecordBatch) -> Made:
        """Records of the batch's rows, once a schema registry has told the numbers of their schemas.

        Expressions are evaluated beside the loop: a row may use up its budget of work.
        """
        if self._maker.is_light:
            return self._maker.runs(batch)
        if self._forms is not None:
            self._forms.begin()
        while True:
            try:
                return await self._executor.blocking(self._maker.runs, batch)
            except Unregistered as missing:
                assert self._forms is not None
                await self._forms.ask(missing.topic)

    def _is_full(self) -> bool:
        settings = self._settings
        return self._held.size_bytes >= settings.part_bytes_max or self._held.count >= settings.part_records_max

    async def _keep_part(self) -> None:
        """The first records that make a part, made durable: the division is fixed here (S3)."""
        runs = self._held.first(self._settings.part_records_max, self._settings.part_bytes_max)
        await self._staging.keep(encode_runs(runs), sum(len(run) for run in runs))
        self._held.drop(runs)

    async def stage(self, epoch: Epoch, committed: Epoch) -> bytes:
        """See `Sink.stage`. May be repeated after TargetUnavailable."""
        while self._held.count:
            await self._keep_part()
        handle = self._staging.handle(epoch, committed)
        self._last = self._next = _Staged(epoch, committed, handle, self._clock.monotonic_ms())
        self._write_soon()
        return handle

    async def release(self, row: MirrorRow, staged: bytes) -> None:
        """See `Sink.release`. An epoch that was staged meanwhile is written ahead behind it."""
        if self._last is not None and self._last.epoch == row.epoch:
            self._is_prompt = self._clock.monotonic_ms() - self._last.at_ms < self._settings.ahead_ms_max
        await super().release(row, staged)
        self._write_soon()

    async def _release(self, row: MirrorRow, staged: bytes, passed: frozenset[int]) -> None:
        """See `MarkedParts._release`. What brokers refuse is tried once more, by the rules that topics have now."""
        try:
            await super()._release(row, staged, passed)
        except TargetRefused as error:
            if not isinstance(error.__cause__, LogError):
                raise
            _report.warning("sink.refused", place=self.place, epoch=row.epoch, reason=str(error))
            self._doubtful = ""
            try:
                await super()._release(row, staged, passed)
            except TargetRefused as again:
                raise TargetRefused(f"{again}{self._doubtful}") from again

    # --- what is written before its commit ----------------------------------------------------------------------------

    def _write_soon(self) -> None:
        if self._is_prompt and self._next is not None and (self._writing is None or self._writing.done()):
            self._writing = self._executor.spawn(self._write_ahead(), f"{self.place} ahead", self._not_ahead)

    async def _write_ahead(self) -> None:
        """The first part of what the next commit will release, if all before it is released. After an error the release does it."""
        async with self._using:
            staged, writer, marker = self._next, self._writer, self._marker
            if staged is None or writer is None or marker is None:
                return
            if (marker.epoch, marker.part) != (staged.committed, marker.parts):
                return  # an earlier commit comes first
            self._next = None
            async with self._on_target(f"writing checkpoint {staged.epoch} ahead"):
                parts = self._parts.listed(staged.handle)
                await self._taken_ahead(marker, usable=False)
                topics: dict[str, TopicFound] = {}
                records = await self._released(staged.epoch, parts[0], 1, topics) if parts else {}
                wanted = part_markers(marker.identity, staged.epoch, staged.committed, staged.handle, len(parts))[0]
                self._ahead = opened = await self._write(writer, wanted, records, topics)
                await opened.transaction.written()
            self._expiring = self._executor.spawn(self._expire(opened), f"{self.place} expiry", self._not_ahead)

    async def _expire(self, opened: _FullTransaction) -> None:
        """Abort it, if its commit does not come."""
        await self._clock.sleep_ms(self._settings.ahead_ms_max)
        async with self._using:
            if self._ahead is opened:
                self._expiring = None
                async with self._on_target(f"letting go of checkpoint {opened.marker.epoch}"):
                    await self._taken_ahead(opened.marker, usable=False)

    async def _taken_ahead(self, marker: Marker, *, usable: bool) -> _FullTransaction | None:
        if self._expiring is not None and self._ahead is not None:
            self._expiring.cancel()
        return await super()._taken_ahead(marker, usable=usable)

    def _not_ahead(self, error: BaseException) -> None:
        """The release begins with a new producer, and meets the same error where it lasts."""
        _report.info("sink.not_ahead", place=self.place, reason=str(error) or repr(error))

    async def close(self) -> None:
        """See `Sink.close`."""
        for beside in (self._writing, self._expiring):
            if beside is not None and not beside.done():
                beside.cancel()
                await beside.join()
        await super().close()

    async def _released(
        self, epoch: Epoch, part: Part, number: int, topics: dict[str, TopicFound]
    ) -> dict[TopicPartition, list[RecordColumns]]:
        """A part's records, each in order: by Kafka's hash of the key, in turn without one."""
        out: dict[TopicPartition, list[RecordColumns]] = {}
        turn = 0
        runs = decode_runs(await self._parts.load(part))
        if unknown := sorted({run.topic for run in runs} - topics.keys()):
            topics |= await self._log.describe_topics(unknown)
        await self._topics.look_up({run.topic for run in runs if run.topic in topics})
        now_ms = self._clock.now_ms()
        for run in runs:
            found = topics.get(run.topic)
            if found is None:
                raise TargetRefused(
                    f"kafka: commit {epoch}, part {number}, record {turn}: topic {run.topic} does not exist any more;"
                    " create it again, and start the processor"
                )
            if not self._doubtful and (refused := self._topics.refused(run)):
                at, reason = next(iter(refused.items()))
                self._doubtful = f"; part {number}, record {turn + at}: {reason}"
            for at, columns in run.by_partition(found.partitions, turn):
                fitting = self._topics.fitting(run.topic, columns, now_ms)
                out.setdefault(TopicPartition(run.topic, at), []).extend(fitting)
            turn += len(run)
        return out

    @property
    def place(self) -> str:
        """See `Sink.place`."""
        return f"{self._stage.path} on {self._stage.connection_name}"

    async def _throw_away(self) -> None:
        # The cause may be that the topics have changed.
        self._topics.forget()
        await super()._throw_away()
