"""An operator's task: a chain of fused operators between its in edges and its out edges.

Long work runs on a thread: a watermark that lets a join pair a million waiting rows, or a user's slow computation, must not
keep the worker from its heartbeats. Calls still come one at a time; heartbeats meanwhile report the state before the call.
"""

import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from tidemark.services.operator.settings import OperatorSettings
from tidemark.services.operator.users import UsersCode
from tidemark.shared.model.frames import Body
from tidemark.shared.model.held import Hold
from tidemark.shared.model.ids import Epoch, StatePart
from tidemark.shared.model.plan import OUT
from tidemark.shared.model.time import MIN_TIME
from tidemark.shared.operators.base import GROUP, Operator, Out
from tidemark.shared.operators.build import OperatorChain
from tidemark.shared.operators.passing import Passing
from tidemark.shared.operators.rows import while_wanted
from tidemark.shared.runtime.body import Copied, ReceivingBody
from tidemark.shared.runtime.context import AssignedTask
from tidemark.shared.runtime.exchange import load_body
from tidemark.shared.runtime.pieces import Pieces

T = TypeVar("T")
_NEVER: Final = 2**63
"""Rows, above which partials would be merged to be counted."""
_PIECE_MS: Final = 50
"""That a piece of what a watermark lets come due may take at least (C13): each costs a frame or a question of some hundred us."""
_DEFAULTS: Final = OperatorSettings()
_NONE: Final = UsersCode()


Way: TypeAlias = Callable[..., Awaitable[Any]]
"""How a call is made that may take long, with its arguments."""


async def at_once(call: Callable[..., T], *args: object) -> T:
    """Call it here, on the loop."""
    return call(*args)


class Enrichment(Protocol):
    """I/O in front of the chain: a lookup, or requests."""

    async def enrich(self, batch: pa.RecordBatch, way: Way = at_once) -> Sequence[Out]:
        """The rows with what was found for each, and dead letters. An outage that lasts too long is raised.

        way: how expressions are evaluated, at once or beside the loop.
        """
        ...

    def counters(self) -> Mapping[str, int]:
        """Totals since the task began."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class OperatorBody(ReceivingBody):
    """Gives rows, watermarks and time to the chain; of a `copy` edge it keeps the rows of its key groups."""

    def __init__(
        self,
        context: AssignedTask,
        chain: OperatorChain,
        key_by: Operator | None,
        lookups: Enrichment | None = None,
        users: UsersCode = _NONE,
        settings: OperatorSettings = _DEFAULTS,
    ) -> None:
        self._settings = settings
        self._context = context
        self._chain = chain
        self._key_by = key_by
        self._lookups = lookups
        self._users = users
        self._blobs = context.outside.blobs
        plan = context.assign.plan
        self._tasks = plan.tasks[context.assign.vertex]
        self._groups = plan.key_groups
        self._long = any(not isinstance(each, Passing) for each in chain.operators)
        self._wanted = True
        self._working = threading.Lock()
        self._holds: Sequence[Hold] | None = None
        """Those before the call that is being worked on."""
        self._rows = 0
        self._pieces = Pieces(_PIECE_MS)
        """Of rows and timers that a watermark lets come due."""
        self._unfinished = False
        self._now_ms = max((h.protocol.processing_time_ms for h in context.assign.handles), default=MIN_TIME)

    async def open(self, parts: MutableMapping[StatePart, bytes]) -> None:
        """Restore the chain."""
        await self._work(self._chain.restore, parts)

    async def apply(self, tag: str, bodies: Sequence[Body]) -> Sequence[Out]:
        """Rows through the chain."""
        outs: list[Out] = []
        for body in bodies:
            batch = await load_body(self._blobs, body, self._context.outside.settings.wire)
            self._rows += batch.num_rows
            if self._lookups is not None:
                for found in await self._lookups.enrich(batch, self._way(batch)):
                    through = found.port == OUT
                    outs += await self._take(found.batch, body, tag) if through else [found]
                continue
            if self._key_by is None:
                outs += await self._take(batch, body, tag)
                continue
            for keyed in await self._way(batch)(self._key_by.on_batch, batch, body.content, tag):
                if keyed.port == "out":
                    outs += await self._take(self._own(keyed.batch), body, tag)
                elif self._context.assign.index == 0:
                    outs.append(keyed)  # every task sees the row on a copy edge: one of them speaks for it
        return outs

    async def _take(self, batch: pa.RecordBatch, body: Body, tag: str) -> Sequence[Out]:
        outs: Sequence[Out] = await self._way(batch)(self._chain.on_batch, batch, body.content, tag)
        return outs

    def _way(self, batch: pa.RecordBatch) -> Way:
        few = batch.num_rows < self._settings.beside_rows
        return at_once if few and not self._long else self._beside

    async def _work(self, call: Callable[..., T], *args: object) -> T:
        """Work other than rows: beside the loop where the chain is more than stages that pass rows on."""
        return await self._beside(call, *args) if self._long else call(*args)

    async def _beside(self, call: Callable[..., T], *args: object) -> T:
        """On a thread, where the chain may take long."""

        def work() -> T:
            with self._working:
                return while_wanted(lambda: self._wanted, call, *args)

        self._holds = self._chain.holds()
        try:
            return await self._context.outside.executor.blocking(work)
        finally:
            self._holds = None

    def _own(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._tasks == 1:
            return batch
        owners = batch.column(GROUP).to_numpy().astype(np.int64) * self._tasks // self._groups
        return batch.take(pa.array(np.flatnonzero(owners == self._context.assign.index)))

    async def advance(self, watermark_ms: int) -> Sequence[Out]:
        """The watermark through the chain, which is told the time first: windows that close now go out as of now."""
        clock = self._context.outside.clock
        began_ms = clock.monotonic_ms()
        outs, self._unfinished = await self._work(self._advance, self._now(), watermark_ms)
        self._pieces.took(self._pieces.items, clock.monotonic_ms() - began_ms, more=self._unfinished)
        if not self._unfinished:
            self._pieces.begin()
        return outs

    def unfinished(self) -> bool:
        """Whether the watermark lets more come due than a piece."""
        return self._unfinished

    def _advance(self, now_ms: int, watermark_ms: int) -> tuple[Sequence[Out], bool]:
        timed = self._chain.on_processing_time(now_ms)
        outs, unfinished = self._chain.on_watermark_piece(watermark_ms, self._pieces.items)
        return [*timed, *outs], unfinished

    async def fire(self, now_ms: int) -> Sequence[Out]:
        """Processing time through the chain."""
        return await self._work(self._chain.on_processing_time, self._now(now_ms))

    def _now(self, told_ms: int = MIN_TIME) -> int:
        """W5: the wall clock, or the time it was told, and never less than before, a restored snapshot's time included."""
        self._now_ms = max(self._now_ms, told_ms, self._context.outside.clock.now_ms())
        return self._now_ms

    async def flush(self, epoch: Epoch) -> Sequence[Out]:
        """The rows held for batching."""
        del epoch
        return await self._work(self._chain.before_barrier)

    async def copy(self, epoch: Epoch, committed: Epoch) -> Copied:
        """The parts of the chain's state that have changed."""
        del epoch
        if self._users.deaths is not None:
            self._users.deaths.committed(committed)
        between = self._chain.between()
        return Copied(await self._work(self._chain.snapshot), between=between)

    def output_watermark(self) -> int:
        """The chain's watermark, ms."""
        return self._chain.output_watermark()

    def holds(self) -> Sequence[Hold]:
        """The operators of the chain that hold the watermark back."""
        return self._chain.holds() if self._holds is None else self._holds

    def batching(self) -> bool:
        """An operator of the chain holds some."""
        return self._chain.held_rows(_NEVER) > 0

    def full(self) -> bool:
        """An operator of the chain is."""
        return self._chain.full()

    def next_processing_ms(self) -> int:
        """When the chain next has something due by processing time, ms."""
        return self._chain.next_processing_time()

    def counters(self) -> Mapping[str, int]:
        """Rows read, and the operators' counters."""
        asked = {} if self._lookups is None else self._lookups.counters()
        return {"rows": self._rows, **asked, **self._chain.counters()}

    async def close(self) -> None:
        """Let go of the lookup's table and the files on the disk, and note that the task closed in good order."""
        self._wanted = False
        wait_s = self._settings.close_wait_ms / 1000
        idle = await self._context.outside.executor.blocking(self._working.acquire, True, wait_s)
        await self._users.close(self._context.outside.executor, idle=idle)
        if self._lookups is not None:
            await self._lookups.close()
