"""Transactions of the log in memory: writers under an identity that a newer holder fences (S1).

A lost answer to a commit may mean that it happened, or that it happens a little later, unless a fence comes first.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextvars import Context
from typing import Literal

from tidemark.shared.adapters.faults import Fault, Faults
from tidemark.shared.adapters.memory_broker import MemoryBroker
from tidemark.shared.model.ids import Offset
from tidemark.shared.ports.log import LogError, LogUnavailable, NewRecord, TopicPartition, Written


def again(error: LogError) -> LogError:
    """The same error for another caller: an exception object belongs to one traceback."""
    return type(error)(str(error))


class MemoryTransaction:
    """`Transaction` of a `MemoryTransactionalWriter`."""

    def __init__(self, writer: "MemoryTransactionalWriter") -> None:
        self._writer = writer
        self._ended = False
        self._written: list[Written] = []

    async def send_batch(self, partition: TopicPartition, records: Sequence[NewRecord]) -> None:
        """Hand over records in order."""
        self._check()
        first = await self._writer.send(partition, records)
        if first is not None:
            self._written.append(Written(partition, first, len(records)))

    async def written(self) -> Sequence[Written]:
        """The places of the records that were handed over."""
        self._check()
        return tuple(self._written)

    async def commit(self) -> None:
        """All records become visible at once, or an error is raised and it is not known which."""
        self._check()
        self._ended = True
        await self._writer.end("commit", "committed")

    async def abort(self) -> None:
        """None of the records becomes visible."""
        self._check()
        self._ended = True
        await self._writer.end("abort", "aborted")

    def _check(self) -> None:
        if self._ended:
            raise LogError("transaction: used after its end; begin a new one")


class MemoryTransactionalWriter:
    """`TransactionalWriter` to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, faults: Faults, identity: str, epoch: int) -> None:
        self._broker = broker
        self._faults = faults
        self._identity = identity
        self._epoch = epoch
        self._open = False
        self._error: LogError | None = None
        self._late: asyncio.Task[None] | None = None
        self.closed = False

    async def begin(self, partitions: Collection[TopicPartition] = ()) -> MemoryTransaction:
        """Start a transaction; one at a time."""
        del partitions
        self._raise_if_broken()
        if self._open:
            raise LogError(f"transactional writer {self._identity}: the transaction before is still open; end it")
        self._open = True
        return MemoryTransaction(self)

    async def send(self, partition: TopicPartition, records: Sequence[NewRecord]) -> Offset | None:
        """Carry records over, in the open transaction; the first one's offset."""
        self._raise_if_broken()
        await self._faults.pause()
        fault = self._faults.draw("txn")
        taken = {Fault.NONE: len(records), Fault.REFUSED: 0}.get(fault, self._faults.part(len(records)))
        try:
            first = self._broker.append_transaction(self._identity, self._epoch, partition, records[:taken])
        except LogError as error:
            self._error = error
            raise
        if fault is not Fault.NONE:
            self._break()
        return first

    async def end(self, operation: Literal["commit", "abort"], state: Literal["committed", "aborted"]) -> None:
        """End the open transaction."""
        self._raise_if_broken()
        await self._faults.pause()
        fault = self._faults.draw(operation)
        if fault is Fault.REFUSED:
            self._break()
        if fault is Fault.LOST_ANSWER and self._faults.coin():
            # The request is still on its way when the caller gives up; a fence may come before it.
            self._late = asyncio.get_running_loop().create_task(
                self._end_late(state), name=f"{self._identity}.late", context=Context()
            )
            self._break()
        try:
            self._broker.end_transaction(self._identity, self._epoch, state)
        except LogError as error:
            self._error = error
            raise
        self._open = False
        if fault is Fault.LOST_ANSWER:
            self._break()
        await self._faults.pause()

    async def _end_late(self, state: Literal["committed", "aborted"]) -> None:
        await self._faults.pause()
        if self._broker.holds(self._identity, self._epoch):
            self._broker.end_transaction(self._identity, self._epoch, state)

    async def close(self) -> None:
        """Release all resources; idempotent; aborts an open transaction, if the log can be reached."""
        self.closed = True
        if self._open and self._error is None and self._broker.holds(self._identity, self._epoch):
            self._broker.end_transaction(self._identity, self._epoch, "aborted")
        self._open = False
        self._error = self._error or LogError(f"transactional writer {self._identity}: used after close; open anew")

    def _break(self) -> None:
        self._error = LogUnavailable(
            f"transactional writer {self._identity}: the log did not answer, and what it did is not known;"
            " open a new writer and read the markers"
        )
        raise again(self._error)

    def _raise_if_broken(self) -> None:
        if self._error is not None:
            raise again(self._error)
