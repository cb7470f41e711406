"""What a leader tells the others: in one order, with its token and how many changes the store has confirmed (C8).

What it had not sent when its term ended is never sent.
"""

from collections.abc import Callable
from typing import Final

from tidemark.shared.model.ids import EdgeId, LeaderToken, Offset, Seq
from tidemark.shared.ports.commits import CommitStore
from tidemark.shared.ports.log import TopicPartition
from tidemark.shared.runtime.context import Outside
from tidemark.shared.runtime.fencing import LEADS_KEY, signed
from tidemark.shared.runtime.outbox import Outbox, Parcel

_PUBLISHED: Final = EdgeId("published")


class Teller:
    """Of one coordinator. `answered`: told the id of a request once the broker has its answer; `on_away`: that nothing can be told now."""

    def __init__(
        self,
        outside: Outside,
        store: CommitStore,
        holder: str,
        answered: Callable[[str], None],
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
        """Queue a record; nothing, where no term has begun. `request`: what it answers. LocalError where too many wait."""
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
        parcel = Parcel(_PUBLISHED, TopicPartition(topic, 0), Seq(self._seq), value, key, headers)
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
        del offset
        if (request := self._answers.pop(parcel.seq, "")) != "":
            self._answered(request)
