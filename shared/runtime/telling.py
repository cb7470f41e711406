"""A leader's records for the others: in one order, with its token and the number of changes that the store has confirmed (C8).

Records that were not sent when its term ended are never sent.

A leader that stood still for longer than its lease may have been followed: it decides nothing until it has asked the store. Its writes
are refused in any case. But it does not know tasks that its successor began, and would tell their workers to stop. And a store that
counts fewer changes than leaders have reported has lost some that it had confirmed.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from tidemark.shared.model.ids import EdgeId, LeaderToken, Offset, Seq
from tidemark.shared.ports.clock import Clock
from tidemark.shared.ports.commits import Ambiguous, CommitStore, StoreLost, StoreUnavailable, lacks
from tidemark.shared.ports.log import OffsetOutOfRange, TopicPartition
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.fencing import LEADS_KEY, changes_of, signed, token_of
from tidemark.shared.runtime.outbox import Outbox, Parcel
from tidemark.shared.runtime.reading import up_to_now


class Doubt:
    """Whether a coordinator's process has stood still for longer than its lease, and has not asked the store since."""

    def __init__(self, clock: Clock, lease_ms: int) -> None:
        self._clock = clock
        self._lease_ms = lease_ms
        self._ran_ms = clock.monotonic_ms()
        self._gone = asyncio.Event()
        self._gone.set()
        self.number = 0
        """Of the last time that it stood still."""

    def runs(self) -> None:
        """The process runs: to be said much oftener than a lease lasts."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._ran_ms > self._lease_ms:
            self.number += 1
            self._gone.clear()
        self._ran_ms = now_ms

    def asked(self, number: int) -> None:
        """The store was asked, or could not be, when the process had stood still so often."""
        if number == self.number:
            self._gone.set()

    def there(self) -> bool:
        """Whether the store is to be asked."""
        return not self._gone.is_set()

    async def over(self) -> None:
        """Wait until there is none."""
        self.runs()
        await self._gone.wait()


_log = structlog.get_logger()


class ToldChanges:
    """In the registry, which keeps it, and in commands, on which others act at once; each look reads on from where the last ended."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._positions: dict[TopicPartition, Offset] = {}
        self._most = 0
        self.leader = LeaderToken(0)
        """The last that has told anything; 0 if nobody has led."""

    async def most(self) -> int:
        """The most changes up to where these topics end now; 0 if nobody has led. LogUnavailable."""
        topics = [TopicPartition(topic, 0) for topic in (self._outside.topics.registry, self._outside.topics.commands)]
        for topic, end in (await self._outside.log.end_offsets(topics)).items():
            while self._positions.get(topic) != end:
                try:
                    await self._read(topic)
                    break
                except OffsetOutOfRange:
                    self._positions.pop(topic, None)
        return self._most

    async def _read(self, topic: TopicPartition) -> None:
        begin = self._positions.get(topic)
        async for record in up_to_now(self._outside.log, topic, self._outside.settings, begin=begin):
            self._most = max(self._most, changes_of(record))
            self.leader = max(self.leader, token_of(record))
            self._positions[topic] = Offset(record.offset + 1)

    async def contradicts(self, what: str, store: CommitStore, token: LeaderToken, lease_ms: int) -> None:
        """Others know of more than the store has: wait until it says that another leads. StoreLost where it goes on to name this leader."""
        while True:
            try:
                renewed = await store.renew(token, lease_ms, self._outside.clock.now_ms())
            except (StoreUnavailable, Ambiguous) as error:
                _log.warning("coordinator.leadership_waits", reason=str(error))
                await self._outside.clock.sleep_ms(self._outside.settings.retry_ms)
                continue
            if renewed:
                raise StoreLost(lacks(what))
            return


_PUBLISHED: Final = EdgeId("published")


class Teller:
    """Of one coordinator. `answered`: told the id of a request once the broker has its answer; `on_away`: that nothing can be told now."""

    def __init__(
        self,
        outside: Outside,
        store: CommitStore,
        holder: str,
        answered: Callable[[str, Offset], None],
        on_error: Callable[[BaseException], None],
        on_away: Callable[[], None] = lambda: None,
    ) -> None:
        self._outside = outside
        self._store = store
        self._changes_told = 0
        self._name = f"coordinator {holder}"
        self._answered = answered
        self._on_error = on_error
        self._on_away = on_away
        self._outbox: Outbox | None = None
        self._token = LeaderToken(0)
        self._seq = 0
        self._answers: dict[Seq, str] = {}

    def begin(self, token: LeaderToken) -> None:
        """A term begins: topics of which only the last record of a key stays say so first."""
        self.end()
        self._token = token
        outside = self._outside
        self._outbox = Outbox(
            outside.log, outside.clock, self._name, self._acknowledged, outside.settings, self._on_away
        )
        self._outbox.open(outside.executor, self._on_error)
        for topic in (outside.topics.registry, outside.topics.connections):
            self.tell(topic, LEADS_KEY, str(token).encode())

    def count(self) -> None:
        """Tell in the registry how many changes there were, where nothing there has told it yet."""
        if self._changes_told != self._store.changes:
            self.tell(self._outside.topics.registry, LEADS_KEY, str(self._token).encode())

    def tell(self, topic: str, key: bytes | None, value: bytes | None, *, request: str = "") -> None:
        """Queue a record; nothing, if no term has begun. LocalError if too many wait.

        `request`: the request that it answers; it goes when all that was told before is there.
        """
        if self._outbox is None:
            return
        if request:
            self.count()
        self._seq += 1
        if request:
            self._answers[Seq(self._seq)] = request
        changes = self._store.changes
        if topic == self._outside.topics.registry:
            self._changes_told = changes
        headers = signed(self._token, changes)
        parcel = Parcel(_PUBLISHED, TopicPartition(topic, 0), Seq(self._seq), value, key, headers, bool(request))
        self._outbox.send(parcel)

    def backlog(self) -> int:
        """Records that the broker has not acknowledged yet."""
        return 0 if self._outbox is None else self._outbox.backlog()

    def end(self) -> None:
        """The term is over: another may have told more by now."""
        outbox, self._outbox = self._outbox, None
        self._answers.clear()
        if outbox is not None:
            outbox.drop()
            self._outside.executor.spawn(outbox.close(), f"close {self._name}", self._on_error)

    async def close(self) -> None:
        """Stop at once."""
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            await outbox.close()

    def _acknowledged(self, parcel: Parcel, offset: Offset) -> None:
        if (request := self._answers.pop(parcel.seq, "")) != "":
            self._answered(request, offset)
