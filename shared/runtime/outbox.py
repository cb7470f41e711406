"""Sends a task's frames: one writer, order kept per partition, byte-identical repeats after an error (F2).

If a source has rows for sinks alone, they wait for more of them, and for the barrier at the longest.

Nobody sees output of a sink before its epoch is released, so no output comes later for it. And at low rates most of a record's cost is
its own way through frames, brokers and the sink. Watermarks wait with the rows that they are behind (F4, W1).
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import structlog

from tidemark.shared.model.ids import EdgeId, Offset, Seq
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import Out
from tidemark.shared.ports.clock import Clock, Executor, Handle
from tidemark.shared.ports.log import Log, LogError, LogUnavailable, NewRecord, TopicPartition, Writer
from tidemark.shared.protocol.errors import LocalError
from tidemark.shared.runtime.body import Given
from tidemark.shared.runtime.settings import RuntimeSettings

ROWS_MAX: Final = 256
"""More than these go on their way: beyond them a frame costs little a row, and a sink has work to do before the barrier."""


class Gathered:
    """Outputs of one source task that go on their way together."""

    def __init__(self, watermark_ms: int = MIN_TIME) -> None:
        self.rows = 0
        self.watermark_ms = watermark_ms
        """The last that was behind everything."""
        self._outs: list[Given] = []

    def add(self, outs: Sequence[Given]) -> None:
        """Take these behind the others."""
        self._outs += outs
        self.rows += sum(out.batch.num_rows for out in outs if isinstance(out, Out))

    def full(self) -> bool:
        """Whether they are to go."""
        return self.rows > ROWS_MAX

    def taken(self) -> Sequence[Given]:
        """All of them, those that follow one another and are alike as one batch."""
        outs, self._outs, self.rows = self._outs, [], 0
        return list(_joined(outs))


def _joined(outs: Sequence[Given]) -> Iterator[Given]:
    alike: list[Out] = []
    for out in outs:
        if alike and not (isinstance(out, Out) and _are_alike(alike[-1], out)):
            yield _one(alike)
            alike = []
        if isinstance(out, Out):
            alike.append(out)
        else:
            yield out
    if alike:
        yield _one(alike)


def _are_alike(one: Out, other: Out) -> bool:
    same = (one.port, one.content) == (other.port, other.content)
    return same and one.batch.schema.equals(other.batch.schema, check_metadata=True)


def _one(alike: Sequence[Out]) -> Out:
    if len(alike) == 1:
        return alike[0]
    return Out(alike[0].port, alike[0].content, pa.concat_batches([out.batch for out in alike]))


_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A frame on its way."""

    edge: EdgeId
    partition: TopicPartition
    seq: Seq
    data: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    behind: bool = False
    """It goes when the broker has all before it: who reads it finds what went to other partitions there."""


class Outbox:
    """Takes frames in order, and reports each when the broker has it.

    When the log is away, the writer is replaced and everything unacknowledged is sent again, the same bytes in the
    same order: receivers drop frames that they have seen, by seq. Memory is bounded by flow control (F7): the machine
    takes no input while too much is unread; and by `parcels_waiting_max`.
    """

    def __init__(
        self,
        log: Log,
        clock: Clock,
        client: str,
        on_acked: Callable[[Parcel, Offset], None],
        settings: RuntimeSettings,
        on_away: Callable[[], None] = lambda: None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._client = client
        self._on_acked = on_acked
        self._on_away = on_away
        self._settings = settings
        self._unsent: deque[Parcel] = deque()
        """`parcels_waiting_max`, with `_unacked`."""
        self._unacked: deque[tuple[Parcel, Awaitable[Offset]]] = deque()
        """`parcels_waiting_max`, with `_unsent`."""
        self._wake = asyncio.Event()
        self._writer: Writer | None = None
        self._handle: Handle | None = None
        self._dropped = False
        self._answers = True
        """The log has answered since the last outage: until it does, one goes alone, for all that waits would be handed over in vain."""

    def open(self, executor: Executor, on_error: Callable[[BaseException], None]) -> None:
        """Start sending; an error other than an outage goes to `on_error`."""
        self._handle = executor.spawn(self._run(), f"outbox {self._client}", on_error)

    def send(self, parcel: Parcel, *, soon: bool = True) -> None:
        """Queue a frame; never waits. `soon`: it need not wait for the next, which follows at once and may go in the same request.

        LocalError if too many wait already: the sender of a frame does not see that nobody reads.
        """
        if not self._dropped:
            if self.backlog() >= self._settings.parcels_waiting_max:
                message = (
                    f"{self._client}: {self.backlog()} frames or messages wait for the brokers (parcels_waiting_max);"
                    " it begins anew when they are back"
                )
                raise LocalError(message)
            self._unsent.append(parcel)
            if soon:
                self._wake.set()

    def drop(self) -> None:
        """Hand nothing more over, for good (L2); frames handed over before may or may not be in the log."""
        self._dropped = True
        self._unsent.clear()

    def backlog(self) -> int:
        """Parcels that the broker has not acknowledged yet."""
        return len(self._unsent) + len(self._unacked)

    async def drain(self, timeout_ms: int) -> None:
        """Wait until all is acknowledged, at most so long."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        while self.backlog() and self._clock.monotonic_ms() < deadline_ms:
            await self._clock.sleep_ms(5)

    async def close(self) -> None:
        """Stop at once; unacknowledged frames may or may not be in the log."""
        if self._handle is not None:
            self._handle.cancel()
            await self._handle.join()
        await self._give_up_writer()

    async def _run(self) -> None:
        while True:
            try:
                await self._pump()
            except LogUnavailable as error:
                _log.warning("outbox.replaced", client=self._client, reason=str(error), unacked=len(self._unacked))
                self._on_away()
                await self._give_up_writer()
                self._answers = False
                await self._clock.sleep_ms(self._settings.retry_ms)

    async def _pump(self) -> None:
        """Hand over the queued frames, then wait for the oldest answer: frames queued meanwhile go together."""
        if self._writer is None:
            self._writer = await self._log.writer(self._client)
        while True:
            while self._unsent and not (self._unacked and (self._unsent[0].behind or not self._answers)):
                parcel = self._unsent[0]
                pending = await self._writer.send(parcel.partition, NewRecord(parcel.data, parcel.key, parcel.headers))
                if self._unsent:
                    self._unsent.popleft()
                self._unacked.append((parcel, pending))
            if self._unacked:
                parcel, pending = self._unacked[0]
                offset = await pending
                self._unacked.popleft()
                self._on_acked(parcel, offset)
                self._answers = True
            else:
                self._wake.clear()
                await self._wake.wait()

    async def _give_up_writer(self) -> None:
        """Close the writer; frames that it did not acknowledge are unsent again, in order."""
        writer, self._writer = self._writer, None
        if writer is not None:
            await writer.close()
        given_up = self._unacked
        self._unacked = deque()
        """`parcels_waiting_max`, with `_unsent`."""
        if not self._dropped:
            self._unsent.extendleft(parcel for parcel, _ in reversed(given_up))
        for parcel, pending in given_up:
            try:
                await pending
            except (LogError, asyncio.CancelledError) as error:
                _log.debug(
                    "outbox.unacknowledged", client=self._client, edge=parcel.edge, seq=parcel.seq, reason=str(error)
                )
