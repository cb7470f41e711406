"""A leader's work on topics and in the blob store: a command becomes calls, and their result an event (C12).

The topics of a generation, and the mirror of its job, are made before there are tasks, and nobody makes them later. A process that stood
still while a processor was dropped goes on afterwards; a topic that it made would have no owner, and never be deleted.

The topics of current news (commands, reports, answers, read positions) have no retention, for no clock of a broker's decides which records
may go. The leader deletes records that were written `topics_kept_ms` before. Readers begin at the ends of these topics. A process that
stood still for so long has stopped its tasks by its own clock, and starts anew.

Requests go when no leader will have to decide them again. A request that a reader of the topic has copied is not carried out a second
time (F10). A leader remembers answers, also those of earlier leaders. A request says, under the seal, where the answers ended when it was
made. A request from before the first answer that the leader knows is not taken. No clock has a part in it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

import structlog

from tidemark.shared.model.ids import JobId, Offset, ProcessorName
from tidemark.shared.ports.blobs import BlobError
from tidemark.shared.ports.log import Log, LogError, LogRecord, LogUnavailable, TopicPartition
from tidemark.shared.protocol.coordinator import commands as do
from tidemark.shared.protocol.coordinator import events as ev
from tidemark.shared.protocol.coordinator.retention import audits_kept, blob_may_go
from tidemark.shared.runtime.context import Outside, ensure_topics
from tidemark.shared.runtime.fencing import asked_at
from tidemark.shared.runtime.reading import up_to_now
from tidemark.shared.runtime.topics import EDGE_CONFIG, TOLD_CONFIG, Topics
from tidemark.shared.wire.messages import decode_answer


async def create(command: do.CreateTopics, outside: Outside) -> ev.TopicsReady | ev.TopicsFailed:
    """Make the topics that are not there."""
    try:
        await create_mirror(command.job, outside.log, outside.topics)
        for wanted in command.topics:
            await outside.log.create_topic(wanted.topic, wanted.partitions, EDGE_CONFIG)
    except LogUnavailable as error:
        return ev.TopicsFailed(outside.clock.monotonic_ms(), command.op, str(error))
    except LogError as error:
        return ev.TopicsFailed(outside.clock.monotonic_ms(), command.op, str(error), permanent=True)
    return ev.TopicsReady(outside.clock.monotonic_ms(), command.op)


async def create_mirror(job: JobId, log: Log, topics: Topics) -> None:
    """Make a job's mirror where it is not there. LogError."""
    await log.create_topic(topics.commits(job), 1, TOLD_CONFIG)


_log = structlog.get_logger()

Deletion = do.DeleteTopics | do.DeleteRecords | do.TrimMirror | do.DeleteBlobs


async def delete(command: Deletion, outside: Outside) -> ev.CoordinatorEvent:
    """Delete only the objects that the machine names."""
    try:
        await _delete(command, outside)
    except (LogError, BlobError) as error:
        _log.warning("cleanup.failed", command=type(command).__name__, reason=str(error))
        return ev.DeletionFailed(outside.clock.monotonic_ms(), command.op, str(error))
    return ev.Deleted(outside.clock.monotonic_ms(), command.op)


async def _delete(command: Deletion, outside: Outside) -> None:
    match command:
        case do.DeleteTopics(_, topics):
            await outside.log.delete_topics(topics)
        case do.DeleteRecords(_, floors):
            before = {TopicPartition(f.topic, f.partition): f.offset for f in floors}
            await outside.log.delete_records(before)
        case do.TrimMirror(_, job, offset):
            await outside.log.delete_records({TopicPartition(outside.topics.commits(job), 0): offset})
        case do.DeleteBlobs(_, job, up_to, keep):
            names = await outside.blobs.list(f"{job}/")
            keep |= audits_kept(names, job) if up_to is not None else frozenset()
            doomed = [n for n in names if blob_may_go(n, job, up_to, keep)]
            await outside.blobs.delete(doomed)
            if up_to is None:
                await _forget_job(job, outside)


async def _forget_job(job: JobId, outside: Outside) -> None:
    """Its mirror and the release markers in this cluster go; those at other targets name a job that will never be again."""
    topics, log = outside.topics, outside.log
    markers = [t for t in await log.list_topics() if t.startswith(topics.markers(job))]
    await log.delete_topics([topics.commits(job), *markers])


_LOOKS = 10
"""How often the ends are noted within `topics_kept_ms`."""


class Trimmer:
    """Deletes old records of the installation's own topics, for one leader; makes those topics anew that somebody has deleted."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        topics = outside.topics
        named = (topics.commands, topics.reports, topics.answers, topics.flow)
        self._topics = [TopicPartition(topic, 0) for topic in named]
        self._seen: deque[Mapping[TopicPartition, Offset]] = deque(maxlen=_LOOKS)
        """Where the topics ended, the oldest first."""

    async def run(self, leads: Callable[[], bool]) -> None:
        """Look at the ends, and delete records below the ends that were seen a full round ago. An outage is waited out."""
        while True:
            await self._outside.clock.sleep_ms(self._outside.settings.topics_kept_ms // _LOOKS)
            await ensure_topics(self._outside)  # somebody may have deleted one that no process reads all the time
            if not leads():
                self._seen.clear()
                continue
            try:
                ends = await self._outside.log.end_offsets(self._topics)
                if len(self._seen) == _LOOKS:
                    await self._outside.log.delete_records(self._seen[0])
            except LogError as error:
                _log.warning("cleanup.failed", topic="of the installation", reason=str(error))
                if not isinstance(error, LogUnavailable):
                    self._seen.clear()  # a topic that was made anew ends below
            else:
                self._seen.append(ends)


class RequestAnswer(NamedTuple):
    """Why a request was refused, "" if it was carried out; where the answer lies, once that is known."""

    name: ProcessorName
    error: str
    offset: Offset | None = None


class Undecided:
    """Of one coordinator, by request id."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._offsets: dict[str, Offset] = {}
        self._read = Offset(0)
        self._fewer = asyncio.Event()
        self._answers: OrderedDict[str, RequestAnswer] = OrderedDict()
        """By request id, `answers_known_max`, the latest last."""
        self._floor = Offset(0)
        """All answers from here on are known."""

    def begin(self, start: Offset) -> None:
        """A term reads from here: requests that an earlier term left are read again, or another leader has decided them."""
        self._offsets.clear()
        self._read = start

    async def learn(self) -> None:
        """Read the answers of earlier leaders. LogUnavailable."""
        answers, settings = TopicPartition(self._outside.topics.answers, 0), self._outside.settings
        self._answers.clear()
        self._floor = (await self._outside.log.begin_offsets([answers]))[answers]
        async for record in up_to_now(self._outside.log, answers, settings, begin=self._floor):
            told = self._outside.unreadable.read(record, lambda found: decode_answer(found.value or b"", settings.wire))
            if told is not None:
                self._keep(told.request, RequestAnswer(told.name, told.error, record.offset))

    def answered(self, request: str, name: ProcessorName, error: str) -> None:
        """An answer is told; where it lies is not known yet."""
        self._keep(request, RequestAnswer(name, error))

    def _keep(self, request: str, answer: RequestAnswer) -> None:
        self._answers[request] = answer
        self._answers.move_to_end(request)
        while len(self._answers) > self._outside.settings.answers_known_max:
            _, first = self._answers.popitem(last=False)
            if first.offset is not None:
                self._floor = max(self._floor, Offset(first.offset + 1))

    def known(self, request: str, record: LogRecord) -> str | None:
        """The answer to a request that is not to be carried out; None for one that is."""
        if (answer := self._answers.get(request)) is not None:
            return answer.error
        if asked_at(record) < self._floor:
            return "it is not known any more whether this request was carried out: look, and ask with another id"
        return None

    def told(self, request: str, name: ProcessorName) -> bool:
        """Whether the brokers have its answer. Ids are their senders' choice: another processor's request may have the same."""
        answer = self._answers.get(request)
        return answer is not None and answer.name == name and answer.offset is not None

    def heard(self, request: str, offset: Offset) -> None:
        """It has been read."""
        self._offsets[request] = offset
        self._read = Offset(offset + 1)

    def decided(self, request: str, offset: Offset) -> None:
        """It has been answered; the broker has the answer at an offset."""
        if (answer := self._answers.get(request)) is not None:
            self._answers[request] = answer._replace(offset=offset)
        self._offsets.pop(request, None)
        self._fewer.set()

    async def let_go(self) -> None:
        """Delete decided requests, however long it takes: a later leader would carry out anew a request that stayed."""
        topic, log = TopicPartition(self._outside.topics.requests, 0), self._outside.log
        while True:
            await self._fewer.wait()
            self._fewer.clear()
            try:
                await log.delete_records({topic: min(self._offsets.values(), default=self._read)})
            except LogError as error:
                _log.warning("cleanup.failed", topic=topic.topic, reason=str(error))
                self._fewer.set()
                await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
