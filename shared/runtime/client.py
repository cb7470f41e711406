"""How users reach the coordinator: requests and their answers, the registry, the workers' heartbeats. All over topics, without groups."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from tidemark.shared.model.ids import EdgeId, Offset, ProcessorName, VertexId
from tidemark.shared.model.messages import (
    Answered,
    Heartbeat,
    ProcessorStatus,
    PutConnection,
    Report,
    Request,
    Sampled,
    SampleProcessor,
)
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.log import Log, LogRecord, LogUnavailable, NewRecord, Reader, RecordTooLarge, TopicPartition
from tidemark.shared.runtime.fencing import Fence, Headers, asked
from tidemark.shared.runtime.reading import Unreadable, end_of, followed, patiently, reading, up_to_now
from tidemark.shared.runtime.registry import KnownConnections, Registry
from tidemark.shared.runtime.sampling import WAIT_MS
from tidemark.shared.runtime.settings import RuntimeSettings
from tidemark.shared.runtime.topics import Topics
from tidemark.shared.wire.messages import decode_answer, decode_report, decode_sample, encode_message

_DEFAULT: Final = RuntimeSettings()
ANSWER_MS: Final = 60_000
"""For the coordinator to answer, where nobody says otherwise: a leader that has just taken over reads all there is first."""


class RequestRefused(Exception):
    """The coordinator's answer to a request, for the user."""


class RequestTimeout(Exception):
    """No coordinator has answered; the message gives the time waited and advice where to look."""


@dataclass(frozen=True, slots=True)
class EdgeSample:
    """Rows of an edge, the newest last, as `sampling.py` says; and why partitions show none, or not all."""

    rows: Sequence[dict[str, Any]]
    troubles: Sequence[str]


class Client:
    """Requests and views. Holds no state that must last."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        clock: Clock,
        unique: Callable[[], str],
        settings: RuntimeSettings = _DEFAULT,
        *,
        waits_out_ms: int = 0,
    ) -> None:
        """`waits_out_ms`: how long an outage of the brokers keeps a request from being an error."""
        self._waits_out_ms = waits_out_ms
        self._log = log
        self._topics = topics
        self._clock = clock
        self._settings = settings
        self.unique = unique
        self._unreadable = Unreadable()

    async def request(self, request: Request, timeout_ms: int = ANSWER_MS) -> None:
        """Send and wait for the answer. RequestRefused, RequestTimeout; LogError when the broker is away.

        An outage of at most `waits_out_ms` is waited out, and the request sent again: it has an id, and is carried out once.
        """
        ask = partial(self._asked, request, timeout_ms)
        await patiently(self._clock, ask, self._settings, most_ms=self._waits_out_ms)

    async def _asked(self, request: Request, timeout_ms: int) -> None:
        answers, fence = TopicPartition(self._topics.answers, 0), Fence()
        async with reading(self._log) as reader:
            ends = await self._log.end_offsets([answers])
            await reader.assign(ends)
            data = encode_message(request, self._settings.wire)
            try:
                await self._send(data, asked(ends[answers]))
            except RecordTooLarge as error:
                raise RequestRefused(
                    f"a request of {len(data)} bytes fits into no record: put a document's data into files or topics,"
                    f" install code as a package, or raise message_bytes_max of the brokers ({error})"
                ) from error
            deadline_ms = self._clock.monotonic_ms() + timeout_ms
            while self._clock.monotonic_ms() < deadline_ms:
                for record in await self._fetch(reader):
                    if not fence.admits(record):
                        continue
                    answer = self._unreadable.read(record, self._answer_of)
                    # Ids of requests are their senders' choice: another processor's request may have the same one.
                    if answer is not None and (answer.request, answer.name) == (request.request, request.name):
                        if answer.error:
                            raise RequestRefused(answer.error)
                        return
        message = (
            f"no coordinator answered within {timeout_ms / 1000:g} s; is one running? Its log says what it waits for"
        )
        raise RequestTimeout(message)

    async def _fetch(self, reader: Reader) -> list[LogRecord]:
        return await reader.fetch(self._settings.topic_records_max, self._settings.fetch_timeout_ms)

    async def _send(self, data: bytes, headers: Headers) -> None:
        writer = await self._log.writer("client")
        try:
            await (await writer.send(TopicPartition(self._topics.requests, 0), NewRecord(data, headers=headers)))
        finally:
            await writer.close()

    async def statuses(self) -> dict[ProcessorName, ProcessorStatus]:
        """All processors, as the registry has them now. Outages as for requests."""
        found, _ = await patiently(self._clock, self._registry, self._settings, most_ms=self._waits_out_ms)
        return found.statuses

    async def _registry(self) -> tuple[Registry, Offset | None]:
        """All processors, and where the registry goes on; None: nothing is there yet. LogUnavailable."""
        found = Registry(self._settings.wire, unreadable=self._unreadable)
        end = None
        async for record in up_to_now(self._log, TopicPartition(self._topics.registry, 0), self._settings):
            found.take(record)
            end = Offset(record.offset + 1)
        return found, end

    async def sample(
        self, name: ProcessorName, limit: int, wait_ms: int = 3_000, timeout_ms: int = ANSWER_MS
    ) -> list[Any]:
        """The last output documents of a running processor, at most `limit`; not all of them need be committed yet. RequestRefused.

        timeout_ms: for the coordinator to answer, as of `request`; wait_ms: for the tasks then.
        """
        status = (await self.statuses()).get(name)
        sinks = {v for v, service in status.services.items() if service == "sink"} if status is not None else set()
        asked = SampleProcessor(self.unique(), name, limit)
        told = await self._sampled(asked, status, sinks, wait_ms, timeout_ms)
        return [document for _, documents in told for document in documents][-limit:]

    async def sample_edge(
        self,
        name: ProcessorName,
        edge: EdgeId,
        limit: int,
        wait_ms: int = WAIT_MS + 3_000,
        timeout_ms: int = ANSWER_MS,
    ) -> EdgeSample:
        """The last rows of an edge of a running processor, at most `limit`, by event time; the times as of `sample`. RequestRefused."""
        status = (await self.statuses()).get(name)
        receiver = VertexId(edge.rpartition(">")[2])
        asked = SampleProcessor(self.unique(), name, limit, edge)
        told = await self._sampled(asked, status, {receiver}, wait_ms, timeout_ms)
        places = {(sampled.vertex, sampled.index) for sampled, _ in told}
        troubles = [f"{receiver}/{sampled.index}: {sampled.trouble}" for sampled, _ in told if sampled.trouble]
        for vertex, index, _ in status.tasks if status is not None else ():
            if vertex == receiver and (vertex, index) not in places:
                troubles.append(f"{vertex}/{index}: no answer within {wait_ms / 1000:g} s")
        rows = sorted((row for _, rows in told for row in rows), key=lambda row: (row["epoch"], row["eventTime"] or 0))
        return EdgeSample(rows[-limit:], tuple(sorted(troubles)))

    async def _sampled(
        self,
        request: SampleProcessor,
        status: ProcessorStatus | None,
        vertices: set[VertexId],
        wait_ms: int,
        timeout_ms: int,
    ) -> list[tuple[Sampled, list[Any]]]:
        """The answers of all tasks of these vertices that come in time."""
        samples = TopicPartition(self._topics.samples, 0)
        waiting = {(v, i) for v, i, _ in status.tasks if v in vertices} if status is not None else set()
        found: list[tuple[Sampled, list[Any]]] = []
        async with reading(self._log) as reader:
            await reader.assign(await self._log.end_offsets([samples]))
            await self.request(request, timeout_ms)
            deadline_ms = self._clock.monotonic_ms() + wait_ms
            while waiting and self._clock.monotonic_ms() < deadline_ms:
                for record in await self._fetch(reader):
                    told = self._unreadable.read(record, self._sample_of)
                    if told is None or told[0].request != request.request or told[0].edge != request.edge:
                        continue
                    found.append(told)
                    waiting.discard((told[0].vertex, told[0].index))
        return found

    async def put_connection(self, name: str, value: Mapping[str, object] | None) -> None:
        """Write a connection into the registry; None deletes it. RequestRefused."""
        text = None if value is None else msgspec.json.encode(value).decode()
        await self.request(PutConnection(self.unique(), ProcessorName(name), text))

    async def connections(self) -> dict[str, Any]:
        """The registry of connections, without secrets."""
        found = KnownConnections(unreadable=self._unreadable)
        async for record in up_to_now(self._log, TopicPartition(self._topics.connections, 0), self._settings):
            found.take(record)
        return found.values

    async def watch(self, name: ProcessorName) -> AsyncIterator[ProcessorStatus]:
        """A processor's status now, and every later change; no earlier status: a run that ended yesterday has not ended now."""
        partition = TopicPartition(self._topics.registry, 0)
        found, begin = await patiently(self._clock, self._registry, self._settings)
        if name in found.statuses:
            yield found.statuses[name]
        async for record in followed(self._log, self._clock, partition, self._settings, begin=begin):
            if found.take(record) == name and name in found.statuses:
                yield found.statuses[name]

    async def heartbeats(self) -> AsyncIterator[Heartbeat]:
        """Heartbeats of workers from now on."""
        reports = TopicPartition(self._topics.reports, 0)
        begin = await end_of(self._log, self._clock, reports, self._settings)
        async for record in followed(self._log, self._clock, reports, self._settings, begin=begin):
            report = self._unreadable.read(record, self._report_of)
            if isinstance(report, Heartbeat):
                yield report

    def _answer_of(self, record: LogRecord) -> Answered:
        return decode_answer(record.value or b"", self._settings.wire)

    def _report_of(self, record: LogRecord) -> Report | Request:
        return decode_report(record.value or b"", self._settings.wire)

    def _sample_of(self, record: LogRecord) -> tuple[Sampled, list[Any]]:
        sampled = decode_sample(record.value or b"", self._settings.wire)
        return sampled, [msgspec.json.decode(document) for document in sampled.documents]

    async def ready(self, timeout_ms: int) -> None:
        """Wait until a coordinator has made the topics. RequestTimeout."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        wanted, why = set(self._topics.plain()), "its log says why"
        while True:
            try:
                if wanted <= set(await self._log.list_topics()):
                    return
            except LogUnavailable as error:
                why = str(error)
            if self._clock.monotonic_ms() > deadline_ms:
                raise RequestTimeout(f"no coordinator was there within {timeout_ms / 1000:g} s; {why}")
            await self._clock.sleep_ms(self._settings.retry_ms)
